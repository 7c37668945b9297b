/* stet for C99, and for every language that calls C. docs/c.md shows it in use.
 *
 * Calls      A function that can fail returns STET_OK or the kind of its failure. Its last
 *            parameter, `error`, may be NULL; otherwise *error is NULL after a success and after a
 *            failure an error to be freed with stet_error_free(). Outputs come just before it, and
 *            are not NULL unless their description allows it. After a failure, outputs that are
 *            handles, pointers or numbers are NULL or 0 and structs are as they were; whatever the
 *            call would have changed is as it was, unless its description says otherwise. No
 *            exception leaves a function, and NULL where something is needed is
 *            STET_ERROR_ARGUMENT.
 * Ownership  Handles are freed by the function of their name, in any order: what a handle needs of
 *            others (a session its model) it keeps alive itself. Freeing NULL does nothing. A
 *            buffer that is described as "new" is the caller's, to be freed with stet_free(). One
 *            that is "borrowed" belongs to the handle it was asked of, and is valid until that
 *            handle is freed or next passed to a function that takes it without const, even if that
 *            fails. What the caller passes in is only read during the call, unless a function says
 *            otherwise.
 * Text       is UTF-8 as (pointer, size in bytes), and need not end with NUL; (NULL, 0) is the
 *            empty text. What comes out has a NUL behind its last byte, which the size does not
 *            count. A plain const char* (paths, names) ends at its NUL.
 * Structs    that begin with struct_size may grow at their end in later versions: set it to
 *            sizeof the struct before every call, also where the struct is an output, and all
 *            unused members of an input to zero, which means the default. NULL for a struct of
 *            options means all defaults. Flags and members that the library does not know are
 *            refused with STET_ERROR_UNSUPPORTED. Structs without struct_size never change.
 *            Where the library makes a struct (stet_error, stet_reply, stet_difference), members
 *            may be added at its end.
 * Threads    Models, tokenizers, chat templates, snapshots and comparisons never change: any number
 *            of threads may use one at once. A session, batch, chat, text stream or sampler may be
 *            used by one thread at a time. Freeing counts as use.
 * Callbacks  run on the calling thread, but for stet_change_callback. They get their `context`, may
 *            only read the session that they are called for, and return 0 to go on.
 * Numbers    `threads` 0 means all processors that the process may run on. Positions count from 0.
 */
#ifndef STET_C_H
#define STET_C_H

#include <stddef.h>
#include <stdint.h>

#include "stet/api.h"

/* Grows whenever a program that was compiled against an older header would not work any more. */
#define STET_ABI_VERSION 1

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Version, status, errors ---------------------------------------------------------------- */

/* What the library was built as. A program checks stet_abi_version() == STET_ABI_VERSION. */
STET_API uint32_t stet_abi_version(void);
STET_API const char* stet_version(void); /* "0.1.0"; static */

typedef int32_t stet_status;
enum {
  STET_OK = 0,
  STET_ERROR_IO = 1,          /* a file cannot be opened, read or written */
  STET_ERROR_FORMAT = 2,      /* bytes do not follow their format */
  STET_ERROR_UNSUPPORTED = 3, /* well-formed, but of a kind that this build does not handle */
  STET_ERROR_MISMATCH = 4,    /* two things that must agree do not (snapshot and model, say) */
  STET_ERROR_CAPACITY = 5,    /* more tokens than the session was made for */
  STET_ERROR_ARGUMENT = 6,    /* a value handed in by the caller is out of its range */
  STET_ERROR_MEMORY = 7,      /* the system gives no more memory */
  STET_ERROR_CANCELED = 8,    /* a callback returned non-zero */
  STET_ERROR_INTERNAL = 9     /* an exception that is not stet's, as from a callback in C++ */
};
STET_API const char* stet_status_name(stet_status status); /* "io", "format", ...; static */

typedef struct stet_error {
  stet_status kind;
  const char* message;  /* all of it on one line, control characters escaped */
  const char* file;     /* a path, or the name of what was parsed, or "" */
  const char* field;    /* what within it, or "" */
  const char* expected; /* what should be there; the four parts are not escaped, but for NUL */
  const char* found;    /* what is there, or "" */
} stet_error;
STET_API void stet_error_free(stet_error* error);

STET_API void stet_free(void* buffer); /* a buffer that is the caller's */

/* Asked by calls of the thread that set it, on that thread, while tokens are processed: as each
 * pass through the model begins, and between pieces of its work, every few milliseconds at most.
 * Nonzero ends the call, which then returns STET_ERROR_CANCELED; its sessions are as they were, but
 * that tokens of a reply which were drawn before stay. It may call nothing that processes tokens.
 * NULL: nobody is asked any more. */
typedef int32_t (*stet_interrupt_callback)(void* context);
STET_API void stet_set_interrupt(stet_interrupt_callback interrupt, void* context);

/* The name of kernel set `index` that this processor has, the slowest first; NULL past the last.
 * Static. */
STET_API const char* stet_isa_name(size_t index);

/* ---- Values that several functions share ---------------------------------------------------- */

typedef struct stet_text {
  const char* data;
  size_t size;
} stet_text;

typedef struct stet_range { /* bytes begin .. end-1 of a text */
  size_t begin, end;
} stet_range;

typedef struct stet_file { /* a file in memory */
  const char* name;        /* "config.json" */
  const void* data;
  size_t size;
} stet_file;

/* Called once when bytes that were lent to the library are not needed any more, from whichever
 * thread frees the last handle that needs them; also when the call that lent them fails. May be
 * NULL: then the bytes stay until all that was made from them has been freed. */
typedef void (*stet_release_callback)(void* context);

/* The numeric contract: what linear layers compute with (docs/contracts.md). */
enum {
  STET_CONTRACT_DEFAULT =
      0, /* that of the snapshot, or that the weights were rounded for, or f32 */
  STET_CONTRACT_F32 = 1,
  STET_CONTRACT_F32_BLAS = 2, /* bits depend on shapes and threads */
  STET_CONTRACT_BF16 = 3,
  STET_CONTRACT_Q8 = 4,
  STET_CONTRACT_Q4 = 5,
  STET_CONTRACT_GGML = 6 /* each tensor in a type of its own, as GGUF files have them */
};

/* The type of keys and values. */
enum {
  STET_KV_DEFAULT = 0, /* that of the snapshot, or f32 */
  STET_KV_F32 = 1,
  STET_KV_BF16 = 2,
  STET_KV_F16 = 3,
  STET_KV_Q8 = 4 /* int8, with a float32 scale for each key and each value */
};

/* ---- Models --------------------------------------------------------------------------------- */

typedef struct stet_model stet_model; /* immutable weights */

enum { STET_MODEL_IN_MEMORY = 1 }; /* read the files instead of mapping them */

typedef struct stet_model_options {
  size_t struct_size;
  uint64_t flags;
  int64_t threads;
  int64_t contract; /* STET_CONTRACT_Q8, _Q4: round the weights to it, unless they are packed; _F32:
                       widen quantized types of GGUF files, which are kept by default */
} stet_model_options;

/* Reads a checkpoint directory in the published Hugging Face layout, or a packed one. */
STET_API stet_status stet_model_load(const char* directory, const stet_model_options* options,
                                     stet_model** model, stet_error** error);

/* The same from files in memory. Names and the array are only read during the call; the bytes are
 * lent until release(context). `name` stands for the directory in errors. */
STET_API stet_status stet_model_load_files(const stet_file* files, size_t count, const char* name,
                                           stet_release_callback release, void* context,
                                           const stet_model_options* options, stet_model** model,
                                           stet_error** error);

STET_API void stet_model_free(stet_model* model);

typedef struct stet_model_info {
  size_t struct_size;
  /* Borrowed. */
  const char* family;       /* "gemma3" */
  const char* architecture; /* "Gemma3ForCausalLM" */
  const char* source;       /* the directory */
  const char* fingerprint;  /* "sha256:..." of config and weights */
  int64_t vocab_size, hidden_size, intermediate_size;
  int64_t layers, heads, kv_heads, head_dim;
  int64_t max_positions;
  uint64_t weight_bytes;
  int64_t contract;         /* STET_CONTRACT_Q8, _Q4, _GGML: what the weights were loaded for */
  size_t fingerprint_count; /* see stet_model_fingerprint() */
} stet_model_info;
STET_API stet_status stet_model_get_info(const stet_model* model, stet_model_info* info,
                                         stet_error** error);

/* Fingerprint `index` < fingerprint_count: of a group of tensors ("embeddings", "norms",
 * "attention", ...), of "config", and as the last of the whole "model". Both borrowed. */
STET_API stet_status stet_model_fingerprint(const stet_model* model, size_t index,
                                            const char** group, const char** fingerprint,
                                            stet_error** error);

/* Packs the checkpoint in `directory` for a contract into `output`, a new or empty directory, which
 * loads in milliseconds. STET_CONTRACT_DEFAULT keeps the weights as they are; _F32, too, but those
 * of quantized types in GGUF files, which it widens. */
STET_API stet_status stet_model_pack(const char* directory, const char* output, int32_t contract,
                                     int32_t threads, stet_error** error);

/* Compares all weights of a packed checkpoint with their digests: STET_ERROR_FORMAT names the first
 * that is not what it was. */
STET_API stet_status stet_model_check_packed(const char* directory, int32_t threads,
                                             uint64_t* bytes, stet_error** error);

/* ---- Tokenizers ----------------------------------------------------------------------------- */

typedef struct stet_tokenizer stet_tokenizer;

STET_API stet_status stet_tokenizer_load(const char* directory, stet_tokenizer** tokenizer,
                                         stet_error** error);
/* Loads the tokenizer of a GGUF file whose tokenizer.ggml.pre is missing, wrong or unknown to stet:
 * pre_tokenizer ("llama-bpe") takes its place. An unknown name is an argument error that lists the
 * known ones; so is a directory, whose tokenizer.json has the rules itself. */
STET_API stet_status stet_tokenizer_load_pre(const char* file, const char* pre_tokenizer,
                                             stet_tokenizer** tokenizer, stet_error** error);
/* From files in memory, which are only read during the call. `name` stands for the directory in
 * errors. */
STET_API stet_status stet_tokenizer_load_files(const stet_file* files, size_t count,
                                               const char* name, stet_tokenizer** tokenizer,
                                               stet_error** error);
STET_API void stet_tokenizer_free(stet_tokenizer* tokenizer);

typedef struct stet_tokenizer_info {
  size_t struct_size;
  const char* fingerprint; /* borrowed */
  int64_t size;            /* one more than the highest id */
  int32_t bos, eos;        /* -1: none */
  size_t special_count;    /* see stet_tokenizer_special_token() */
} stet_tokenizer_info;
STET_API stet_status stet_tokenizer_get_info(const stet_tokenizer* tokenizer,
                                             stet_tokenizer_info* info, stet_error** error);

enum {
  STET_ENCODE_BOS = 1, /* bos comes first even where the checkpoint does not ask for it */
  /* Nothing but the text's own tokens. Neither: as the checkpoint asks, but no second bos where the
   * text begins with one. */
  STET_ENCODE_NO_BOS = 2,
  STET_ENCODE_PLAIN = 4,    /* marks in the text ("<eos>") stay text: for text of unknown origin */
  STET_ENCODE_CONTINUED = 8 /* the text goes on from another: no space is put before it */
};

typedef struct stet_encode_options {
  size_t struct_size;
  uint64_t flags;
  const stet_range* plain; /* where marks stay text, in order; not with STET_ENCODE_PLAIN */
  size_t plain_count;
} stet_encode_options;

/* ids: new, [count]; NULL for none. */
STET_API stet_status stet_tokenizer_encode(const stet_tokenizer* tokenizer, const char* text,
                                           size_t size, const stet_encode_options* options,
                                           int32_t** ids, size_t* count, stet_error** error);
/* A context and a text that goes on from it, to be scored (stet_session_score), cut as the
 * lm-evaluation-harness cuts them: white space at the context's end belongs to the continuation; of
 * the tokens of both texts put together, as many are the context's as it has alone. options: flags
 * alone, but for STET_ENCODE_CONTINUED. ids: new, [count]; those from `begin` on are the
 * continuation. */
STET_API stet_status stet_tokenizer_encode_pair(const stet_tokenizer* tokenizer,
                                                const char* context, size_t context_size,
                                                const char* continuation, size_t continuation_size,
                                                const stet_encode_options* options, int32_t** ids,
                                                size_t* count, size_t* begin, stet_error** error);
/* out: new. Valid UTF-8 whatever the ids; with skip_special, special tokens are left out. */
STET_API stet_status stet_tokenizer_decode(const stet_tokenizer* tokenizer, const int32_t* ids,
                                           size_t count, int32_t skip_special, char** out,
                                           size_t* out_size, stet_error** error);
/* The id of a token as the vocabulary writes it ("<bos>"); -1 where there is none. */
STET_API stet_status stet_tokenizer_id(const stet_tokenizer* tokenizer, const char* piece,
                                       size_t size, int32_t* id, stet_error** error);
/* The inverse; out: new, "" for an id that the vocabulary leaves out. */
STET_API stet_status stet_tokenizer_piece(const stet_tokenizer* tokenizer, int32_t id, char** out,
                                          size_t* out_size, stet_error** error);
/* Whether decoding can leave it out: 0 or 1. */
STET_API stet_status stet_tokenizer_is_special(const stet_tokenizer* tokenizer, int32_t id,
                                               int32_t* special, stet_error** error);
/* Named special token `index` < special_count, as templates see it ("bos_token", "<bos>").
 * Borrowed. */
STET_API stet_status stet_tokenizer_special_token(const stet_tokenizer* tokenizer, size_t index,
                                                  stet_text* name, stet_text* text,
                                                  stet_error** error);
/* The Jinja source of the chat template, or of that with a name ("tool_use"; NULL: the default);
 * "" where there is none. Borrowed. */
STET_API stet_status stet_tokenizer_chat_template(const stet_tokenizer* tokenizer, const char* name,
                                                  stet_text* source, stet_error** error);

/* Text of tokens as they come: bytes of an unfinished character wait for the next token. */
typedef struct stet_text_stream stet_text_stream;
STET_API stet_status stet_text_stream_new(const stet_tokenizer* tokenizer, int32_t skip_special,
                                          stet_text_stream** stream, stet_error** error);
STET_API void stet_text_stream_free(stet_text_stream* stream);
/* The text that this id completes, often "". Borrowed. */
STET_API stet_status stet_text_stream_push(stet_text_stream* stream, int32_t id, stet_text* text,
                                           stet_error** error);
/* What is left at the end, borrowed; the stream then starts anew. */
STET_API stet_status stet_text_stream_finish(stet_text_stream* stream, stet_text* text,
                                             stet_error** error);
/* All that the stream remembers, as bytes to be kept (new), and its inverse. */
STET_API stet_status stet_text_stream_save(const stet_text_stream* stream, char** state,
                                           size_t* size, stet_error** error);
STET_API stet_status stet_text_stream_restore(stet_text_stream* stream, const char* state,
                                              size_t size, stet_error** error);

/* Chat messages to the text of a prompt. */
typedef struct stet_chat_template stet_chat_template;
/* The tokenizer's own template, or with `source` not NULL another one for the same special tokens.
 */
STET_API stet_status stet_chat_template_new(const stet_tokenizer* tokenizer, const char* source,
                                            size_t size, stet_chat_template** chat_template,
                                            stet_error** error);
STET_API void stet_chat_template_free(stet_chat_template* chat_template);

enum { STET_RENDER_GENERATION_PROMPT = 1 }; /* end where the model's reply begins */

typedef struct stet_render_options {
  size_t struct_size;
  uint64_t flags;
  stet_text variables; /* a JSON object of further variables (tools, ...) */
  int64_t now;         /* for strftime_now: seconds since 1970 */
} stet_render_options;

/* messages: a JSON array of {"role": ..., "content": ...}. out: new. plain: new, [plain_count],
 * NULL for none: what came from messages, to be encoded as plain text; both may be NULL. */
STET_API stet_status stet_chat_template_render(const stet_chat_template* chat_template,
                                               const char* messages, size_t size,
                                               const stet_render_options* options, char** out,
                                               size_t* out_size, stet_range** plain,
                                               size_t* plain_count, stet_error** error);

/* ---- Sessions ------------------------------------------------------------------------------- */

typedef struct stet_session stet_session; /* all that changes while a model runs */

typedef struct stet_session_options {
  size_t struct_size;
  int64_t capacity; /* positions; 0: all that the model has, or the snapshot's */
  int64_t threads;
  int64_t chunk;   /* tokens processed at once; 0: 512. Changes no bit */
  const char* isa; /* one of stet_isa_name(); NULL: the best. Changes no bit */
  int32_t kv_type, contract;
  /* Nonzero: of layers with a sliding window that window alone is kept, and the one before each
   * multiple of checkpoint_every positions (0: 8192; -1: none). No bit depends on it. What needs a
   * window that was not kept fails and says how many tokens it would process again, unless
   * recompute is nonzero. */
  int32_t window_only, recompute;
  int64_t checkpoint_every;
} stet_session_options;

STET_API stet_status stet_session_new(const stet_model* model, const stet_session_options* options,
                                      stet_session** session, stet_error** error);
/* Nothing happens for a session that is a chat's (stet_chat_session). */
STET_API void stet_session_free(stet_session* session);
/* A second session that shares every full block of keys and values with this one. */
STET_API stet_status stet_session_fork(const stet_session* session, stet_session** fork,
                                       stet_error** error);

typedef struct stet_session_info {
  size_t struct_size;
  int64_t size;     /* tokens that are there */
  int64_t capacity; /* that can be */
  int64_t floor;    /* below this size, rewinding is impossible: of the last prune */
  int64_t visible;  /* positions that are seen: size less those that were pruned */
  int64_t drawn;    /* tokens ever appended and not rewound, those shifted out included */
  int64_t threads, chunk;
  const char* isa;               /* borrowed; "": the best */
  const char* contract_name;     /* "f32"; static */
  int32_t contract, kv_type;     /* never STET_..._DEFAULT */
  size_t stop_ids, stop_strings; /* see stet_session_stop_ids(), _stop_string() */
  size_t turns, messages;        /* see stet_session_turn(), _message() */
  size_t prunes, edits;          /* entries of the logs */
  size_t interventions;
} stet_session_info;
STET_API stet_status stet_session_get_info(const stet_session* session, stet_session_info* info,
                                           stet_error** error);
/* How to compute from now on: threads, chunk, isa, contract, which may not change while there are
 * tokens. capacity and kv_type must be 0. */
STET_API stet_status stet_session_set_compute(stet_session* session,
                                              const stet_session_options* options,
                                              stet_error** error);

/* Tokens go through the model after those that are there: STET_ERROR_CAPACITY when they do not
 * fit. */
STET_API stet_status stet_session_append(stet_session* session, const int32_t* ids, size_t count,
                                         stet_error** error);

/* The logits that follow the token at a position, [count]; valid during the call. */
typedef int32_t (*stet_logits_callback)(void* context, int64_t position, const float* logits,
                                        size_t count);
/* Hidden state `index` of the token at a position, [count] (0: embedding; i: after layer i; the
 * last: after the norm); valid during the call. */
typedef int32_t (*stet_hidden_callback)(void* context, size_t index, int64_t position,
                                        const float* hidden, size_t count);
/* The row of one position at points[index], [count], valid during the call. Of scores and patterns
 * it is [heads][positions so far]. */
typedef int32_t (*stet_point_callback)(void* context, size_t index, int64_t position,
                                       const float* row, size_t count);
/* How many tokens of this call were processed so far. */
typedef int32_t (*stet_progress_callback)(void* context, int64_t done);

typedef struct stet_watch { /* callbacks, each of which may be NULL */
  size_t struct_size;
  void* context;
  stet_logits_callback on_logits;
  stet_hidden_callback on_hidden;
  stet_progress_callback on_progress;
  /* [point_count] names of points (docs/points.md), each once: "blocks.0.attn.hook_z". Each row of
   * each is handed out, of every position; NULL for none. */
  const char* const* points;
  size_t point_count;
  stet_point_callback on_point;
} stet_watch;

/* The same with callbacks for every position. When one returns non-zero, the session is as it was
 * before the call, which returns STET_ERROR_CANCELED. */
STET_API stet_status stet_session_append_watched(stet_session* session, const int32_t* ids,
                                                 size_t count, const stet_watch* watch,
                                                 stet_error** error);

enum {
  STET_SET = 0,         /* x = values */
  STET_ADD = 1,         /* x += amount values */
  STET_SCALE = 2,       /* x *= amount */
  STET_PROJECT_OUT = 3, /* x -= its part in the direction of values */
  STET_CLAMP = 4        /* a feature of a sparse autoencoder to amount; values: encoder, decoder */
};

/* A change of activations of what is processed after it was attached; part of the state. */
typedef struct stet_intervention {
  size_t struct_size;
  const char* point;     /* "hook_resid_post": of `layers`; or with its layer, "blocks.3...." */
  const int64_t* layers; /* [layer_count]; none: all */
  size_t layer_count;
  const int64_t* heads; /* [head_count]; none: all columns */
  size_t head_count;
  int64_t begin, end; /* positions begin .. end-1; end 0: from `begin` on for ever */
  int32_t op;
  float amount, bias, threshold; /* the last two: of STET_CLAMP */
  const float* values;           /* [value_count]: a row, or for STET_SET one for each position */
  size_t value_count;
  /* Of scores and patterns, which take STET_SET, _ADD and _SCALE: positions key_begin .. key_end-1
   * that are looked at; key_end 0: all from there on. values: one, or one for each of these; a
   * score that is set to -INFINITY is not seen. */
  int64_t key_begin, key_end;
} stet_intervention;

/* Attaches it from here on: see docs/lab.md. */
STET_API stet_status stet_session_attach(stet_session* session,
                                         const stet_intervention* intervention, stet_error** error);
/* Intervention `index` < stet_session_info.interventions, in the order in which they were attached,
 * and the position from which on: borrowed. `point` is without its layer, `end` 0 where it goes on
 * for ever. attached may be NULL. */
STET_API stet_status stet_session_intervention(const stet_session* session, size_t index,
                                               stet_intervention* intervention, int64_t* attached,
                                               stet_error** error);
/* It ends at a position that is not there yet: the session is then what it would be, had it been
 * attached with that end, and a later rewind leaves the end where it is. One that has changed
 * nothing by then is forgotten, and those behind it move up. */
STET_API stet_status stet_session_detach(stet_session* session, size_t index, int64_t position,
                                         stet_error** error);
/* The final norm and head over rows of the residual stream, [rows][hidden_size] one after the
 * other: new, [count] = [rows][vocab_size]. */
STET_API stet_status stet_session_lens(const stet_session* session, const float* residual,
                                       size_t rows, float** logits, size_t* count,
                                       stet_error** error);

/* Changes activations in place: `rows` are [count][width], `stride` floats apart, at points[index],
 * of positions from `first` on. Called by one of the threads that compute, one call at a time. */
typedef int32_t (*stet_change_callback)(void* context, size_t index, int64_t first, float* rows,
                                        size_t count, size_t width, size_t stride);

typedef struct stet_callback {
  size_t struct_size;
  const char* const* points; /* [point_count] names, each once, of points that can be changed */
  size_t point_count;
  void* context;
  stet_change_callback change;   /* needed; where it returns non-zero, the call is canceled */
  stet_release_callback release; /* of the context, or NULL */
} stet_callback;

/* From here on the function changes activations of what this session and its forks process, until
 * it is detached. Snapshots do not hold it, and what it had part in cannot be computed again: such
 * a state counts it among its edits, and is named by its bytes. */
STET_API stet_status stet_session_attach_callback(stet_session* session,
                                                  const stet_callback* callback,
                                                  stet_error** error);
STET_API stet_status stet_session_detach_callbacks(stet_session* session, stet_error** error);

/* The names of all points of a model, in the order of the pass, a line for each: new. */
STET_API stet_status stet_model_points(const stet_model* model, char** text, size_t* size,
                                       stet_error** error);

typedef struct stet_point_info {
  size_t struct_size;
  int64_t heads;          /* that a row is of, one after the other; 0: none */
  int64_t width;          /* numbers of a row; of scores and patterns, those of one position */
  int32_t of_positions;   /* 1: scores and patterns: [heads][positions] */
  int32_t can_be_changed; /* 1: by callbacks, too; scores and patterns by interventions alone: 0 */
} stet_point_info;
/* A point by its name, with its layer or, where all layers are alike, without. */
STET_API stet_status stet_model_point(const stet_model* model, const char* point,
                                      stet_point_info* info, stet_error** error);

/* What was at points while tokens were processed; the memory of its rows is its own. */
typedef struct stet_capture stet_capture;
/* Appends the tokens and keeps the rows of points[0] .. points[point_count-1]; with `logits` not 0
 * also the logits of every position, as one more. */
STET_API stet_status stet_session_capture(stet_session* session, const int32_t* ids, size_t count,
                                          const char* const* points, size_t point_count,
                                          int32_t logits, stet_capture** capture,
                                          stet_error** error);
typedef struct stet_capture_options {
  size_t struct_size;
  const char* const* points; /* [point_count] */
  size_t point_count;
  int32_t logits;
  stet_progress_callback on_progress; /* or NULL */
  void* context;
} stet_capture_options;
/* The same, told how far it has come. */
STET_API stet_status stet_session_capture_with(stet_session* session, const int32_t* ids,
                                               size_t count, const stet_capture_options* options,
                                               stet_capture** capture, stet_error** error);
STET_API void stet_capture_free(stet_capture* capture);
/* Borrowed: [count][width]. Scores and patterns are [heads][positions], -inf and 0 where positions
 * come later. */
STET_API stet_status stet_capture_rows(const stet_capture* capture, size_t index,
                                       const float** rows, size_t* count, size_t* width,
                                       stet_error** error);

/* What tokens gave, kept so that their end can be computed again under changes, each from its layer
 * and position on: sweeps of activation patching. */
typedef struct stet_trace stet_trace;
/* The tokens go through the model after what the session holds, which stays as it is. */
STET_API stet_status stet_trace_new(const stet_session* before, const int32_t* ids, size_t count,
                                    stet_trace** trace, stet_error** error);
STET_API void stet_trace_free(stet_trace* trace);
/* Each change alone, with the bits that attaching it before the tokens would give: on_logits gets
 * its place in `changes` as the position, in any order. */
STET_API stet_status stet_trace_run(stet_trace* trace, const stet_intervention* changes,
                                    size_t count, stet_logits_callback on_logits, void* context,
                                    stet_error** error);

typedef struct stet_ids { /* tokens */
  const int32_t* ids;
  size_t count;
} stet_ids;
/* The same of several prompts, each after what the session holds. */
STET_API stet_status stet_trace_new_prompts(const stet_session* before, const stet_ids* prompts,
                                            size_t count, stet_trace** trace, stet_error** error);

typedef struct stet_traced {        /* a prompt of a trace under changes, all of them at once */
  const stet_intervention* changes; /* [change_count], attached in this order */
  size_t change_count;
  size_t prompt;            /* which of the trace's */
  const int64_t* positions; /* [position_count], whose logits are asked for; none: the last */
  size_t position_count;
} stet_traced;
/* The logits that follow the token at a position of runs[index], [count]; valid during the call. */
typedef int32_t (*stet_trace_callback)(void* context, size_t index, int64_t position,
                                       const float* logits, size_t count);
/* The same of runs with any number of changes: on_logits is called once for each position that a
 * run asks for, those of a run in ascending order. */
STET_API stet_status stet_trace_run_all(stet_trace* trace, const stet_traced* runs, size_t count,
                                        stet_trace_callback on_logits, void* context,
                                        stet_error** error);

/* The tokens that are there, [count], borrowed; NULL for none. */
STET_API stet_status stet_session_tokens(const stet_session* session, const int32_t** ids,
                                         size_t* count, stet_error** error);
/* The same as if none had ever been shifted out: new, [count], NULL for none. */
STET_API stet_status stet_session_transcript(const stet_session* session, int32_t** ids,
                                             size_t* count, stet_error** error);
/* Logits that follow the last token, [count] = [vocab_size], borrowed; NULL when there are no
 * tokens. After a rewind they are computed here. */
STET_API stet_status stet_session_logits(stet_session* session, const float** logits, size_t* count,
                                         stet_error** error);

/* Drops all tokens from position `size` on: as if they had never been. */
STET_API stet_status stet_session_rewind(stet_session* session, int64_t size, stet_error** error);
/* How many tokens that processes again: 0 unless window_only. */
STET_API stet_status stet_session_rewind_cost(const stet_session* session, int64_t size,
                                              int64_t* tokens, stet_error** error);

enum { STET_PRUNE_SHIFT = 1 }; /* later positions move up; otherwise the gap is masked */

typedef struct stet_prune_options {
  size_t struct_size;
  uint64_t flags;
  int64_t keep_last; /* positions kept at the end */
  int64_t sinks;     /* positions kept at the beginning */
} stet_prune_options;

/* Takes positions out of the middle; `pruned` says how many are seen no more. Options are needed.
 */
STET_API stet_status stet_session_prune(stet_session* session, const stet_prune_options* options,
                                        int64_t* pruned, stet_error** error);
/* Takes out positions begin .. end-1. */
STET_API stet_status stet_session_prune_range(stet_session* session, int64_t begin, int64_t end,
                                              int32_t shift, stet_error** error);

/* Reads into, or replaces from, x, [count] = [head_dim], the stored key (after its norm and
 * rotation) or value of one position. After a replacement the session's tokens do not give its
 * state any more, and it says so. */
STET_API stet_status stet_session_get_key(const stet_session* session, int64_t layer, int64_t head,
                                          int64_t position, float* x, size_t count,
                                          stet_error** error);
STET_API stet_status stet_session_get_value(const stet_session* session, int64_t layer,
                                            int64_t head, int64_t position, float* x, size_t count,
                                            stet_error** error);
STET_API stet_status stet_session_set_key(stet_session* session, int64_t layer, int64_t head,
                                          int64_t position, const float* x, size_t count,
                                          stet_error** error);
STET_API stet_status stet_session_set_value(stet_session* session, int64_t layer, int64_t head,
                                            int64_t position, const float* x, size_t count,
                                            stet_error** error);

/* Which keys and values; positions that were pruned are left out. */
typedef struct stet_kv_range {
  size_t struct_size;
  const int64_t* layers; /* [layer_count]; none: all */
  size_t layer_count;
  const int64_t* heads; /* [head_count], of keys and values; none: all */
  size_t head_count;
  int64_t begin, end;   /* positions begin .. end-1; end 0: to the last */
  int32_t keys, values; /* 1: these; both 0: both */
} stet_kv_range;
/* Like stet_session_set_key(), of all of a range. x: [count], one vector of head_dim for each, or
 * [positions][heads][head_dim] for each layer. From positions `position` .. of a session of the
 * same model: keys are rotated to where they are then. */
STET_API stet_status stet_session_zero_kv(stet_session* session, const stet_kv_range* range,
                                          stet_error** error);
STET_API stet_status stet_session_scale_kv(stet_session* session, const stet_kv_range* range,
                                           float factor, stet_error** error);
STET_API stet_status stet_session_set_kv(stet_session* session, const stet_kv_range* range,
                                         const float* x, size_t count, stet_error** error);
STET_API stet_status stet_session_copy_kv(stet_session* session, const stet_kv_range* range,
                                          const stet_session* from, int64_t position,
                                          stet_error** error);

typedef struct stet_cut { /* positions begin .. end-1 of a session */
  stet_session* from;
  int64_t begin, end;
} stet_cut;
/* A session of all these positions, one cut after the other, keys rotated to where they are now;
 * nothing is computed again. Settings are those of the first. stet_session_compare_truth() says how
 * far that is from what the tokens give. */
STET_API stet_status stet_session_splice(const stet_cut* cuts, size_t count, stet_session** spliced,
                                         stet_error** error);

/* Memory of the library that is read in place: it stays as it is until it is freed, whatever
 * becomes of the session. */
typedef struct stet_view stet_view;
STET_API void stet_view_free(stet_view* view);
/* The names of a model's weights, as TransformerLens calls them, a line for each: new. A tensor
 * that has no such name keeps that of its checkpoint. */
STET_API stet_status stet_model_weights(const stet_model* model, char** text, size_t* size,
                                        stet_error** error);
typedef struct stet_weight {
  size_t struct_size;
  const float* data; /* of the view, row after row */
  int64_t shape[4];
  int32_t dimensions; /* as many of them count */
} stet_weight;
/* The numbers that the model multiplies with, widened to float32: matrices as [inputs][outputs],
 * those of heads as [heads][inputs][outputs] ("blocks.0.attn.W_Q", of keys and values the heads
 * that these have). The embedding is scaled as its family scales it. */
STET_API stet_status stet_model_weight(const stet_model* model, const char* name, stet_view** view,
                                       stet_weight* weight, stet_error** error);
/* Logits that follow the last token, [count]; NULL when there are no tokens. */
STET_API stet_status stet_session_view_logits(stet_session* session, stet_view** view,
                                              const float** data, size_t* count,
                                              stet_error** error);
/* Block `index`, of positions 64 index .. 64 index + 63: for each layer and head of keys and
 * values, keys as [head_dim][64] and then values as [64][head_dim], of the type that the session
 * has. */
STET_API stet_status stet_session_view_block(stet_session* session, int64_t index, stet_view** view,
                                             const void** data, size_t* size, stet_error** error);

/* What tells a state from others, as text that ends with NUL. */
typedef struct stet_digests {
  size_t struct_size;
  char tokens[40]; /* "xxh3:" and 32 hex digits */
  char logits[40];
  char kv[40];
  char state[40]; /* of all of it */
  char id[72];    /* "sha256:" and 64 hex digits: the state's name */
} stet_digests;
STET_API stet_status stet_session_get_digests(stet_session* session, stet_digests* digests,
                                              stet_error** error);

typedef struct stet_block_identity { /* of 64 positions that are full */
  uint8_t id[32];                    /* SHA-256: the same id, the same bytes (docs/identity.md) */
  int32_t replayable;                /* 1: its tokens give it; 0: the id is that of its bytes */
} stet_block_identity;
/* blocks: new, [count], NULL for none. */
STET_API stet_status stet_session_block_identities(stet_session* session,
                                                   stet_block_identity** blocks, size_t* count,
                                                   stet_error** error);

/* What was healed since the last call: blocks of a snapshot's file that were not what had been
 * saved, and were computed again. A line for each file, new; "" for nothing. */
STET_API stet_status stet_session_take_healed(stet_session* session, char** text, size_t* size,
                                              stet_error** error);

typedef struct stet_batch_entry {
  stet_session* session;
  const int32_t* ids; /* [count], at least one */
  size_t count;
} stet_batch_entry;
/* Every session goes on by its tokens, in shared passes, with the bits of an append of its own. All
 * are of one model and contract, and each stands once. After a failure all are as they were. */
STET_API stet_status stet_batch_append(const stet_batch_entry* entries, size_t count,
                                       stet_error** error);
/* The same, and keeps rows of points as stet_session_capture() does: captures is [count], each new.
 * After a failure there is none. */
STET_API stet_status stet_batch_capture(const stet_batch_entry* entries, size_t count,
                                        const char* const* points, size_t point_count,
                                        stet_capture** captures, stet_error** error);

/* ---- Generation ----------------------------------------------------------------------------- */

typedef struct stet_token_bias { /* what is added to the logit of a token */
  int32_t id;
  double bias; /* [-100, 100]; 0 counts as none */
} stet_token_bias;

typedef struct stet_sampling {
  size_t struct_size;
  double temperature;        /* [1e-30, 1e30] */
  double top_p;              /* [0, 1]; 1: off */
  double min_p;              /* [0, 1]; 0: off */
  double typical_p;          /* (0, 1]; 1: off */
  double repetition_penalty; /* [1e-30, 1e30]; 1: off */
  uint64_t seed;             /* draws are a function of seed and position */
  int32_t top_k;             /* >= 0; 0: off */
  int32_t greedy; /* 1: the best token, whatever the other settings but penalties and biases */
  /* A token that stands c > 0 times in the reply so far has its score lowered by c times the
   * first, and once by the second. */
  double frequency_penalty;          /* [-2, 2]; 0: off */
  double presence_penalty;           /* [-2, 2]; 0: off */
  const stet_token_bias* logit_bias; /* [logit_bias_count], each token once, in any order */
  size_t logit_bias_count;           /* at most 4096 */
} stet_sampling;

/* The settings of a new session: greedy, everything off. */
STET_API stet_status stet_sampling_init(stet_sampling* sampling, stet_error** error);
/* These settings stay with the session and its snapshots. Zero is no default here: change what
 * stet_session_get_sampling() or stet_sampling_init() gave. The biases that the first gives are
 * borrowed. The second keeps what a struct_size of an older version does not have. */
STET_API stet_status stet_session_get_sampling(const stet_session* session, stet_sampling* sampling,
                                               stet_error** error);
STET_API stet_status stet_session_set_sampling(stet_session* session, const stet_sampling* sampling,
                                               stet_error** error);
/* Sampling and stop tokens that the checkpoint recommends. The seed and stop strings stay. */
STET_API stet_status stet_session_use_recommended(stet_session* session, stet_error** error);

STET_API stet_status stet_session_stop_ids(const stet_session* session, const int32_t** ids,
                                           size_t* count, stet_error** error); /* borrowed */
STET_API stet_status stet_session_set_stop_ids(stet_session* session, const int32_t* ids,
                                               size_t count, stet_error** error);
/* Stop string `index`; borrowed. */
STET_API stet_status stet_session_stop_string(const stet_session* session, size_t index,
                                              stet_text* text, stet_error** error);
/* Each of 1 to 65536 bytes of UTF-8. */
STET_API stet_status stet_session_set_stop_strings(stet_session* session, const stet_text* strings,
                                                   size_t count, stet_error** error);

typedef struct stet_turn { /* a prompt and the reply to it, as positions */
  int64_t prompt, reply, end;
  int32_t open; /* 1: the reply may go on */
} stet_turn;
STET_API stet_status stet_session_turn(const stet_session* session, size_t index, stet_turn* turn,
                                       stet_error** error);

/* Appends tokens as a prompt that a reply is to follow; an open reply before it is closed. */
STET_API stet_status stet_session_append_prompt(stet_session* session, const int32_t* ids,
                                                size_t count, stet_error** error);

/* The same, told how far it has come. When the callback returns non-zero, the session is as it was
 * before the call, which returns STET_ERROR_CANCELED. */
STET_API stet_status stet_session_append_prompt_watched(stet_session* session, const int32_t* ids,
                                                        size_t count,
                                                        stet_progress_callback on_progress,
                                                        void* context, stet_error** error);

/* Text that is certain now, after every token; often empty. */
typedef int32_t (*stet_text_callback)(void* context, const char* text, size_t size);
/* A token that was drawn, and the logits, [count], that it was drawn from. */
typedef int32_t (*stet_token_callback)(void* context, int32_t id, const float* logits,
                                       size_t count);

enum { STET_GENERATE_IGNORE_EOS = 1 }; /* go on after a stop token */

typedef struct stet_generate_options {
  size_t struct_size;
  uint64_t flags;
  int64_t max_tokens; /* 0: 256 */
  void* context;
  stet_text_callback on_text;   /* either may be NULL; when one returns non-zero, the reply ends */
  stet_token_callback on_token; /* after this token, with STET_STOP_CALLBACK */
} stet_generate_options;

enum {
  STET_STOP_EOS = 1,     /* a stop token was drawn */
  STET_STOP_STRING = 2,  /* a stop string was completed */
  STET_STOP_LENGTH = 3,  /* max_tokens, or a full session: the reply is open */
  STET_STOP_CALLBACK = 4 /* a callback said so: the reply is open */
};

typedef struct stet_reply { /* freed with stet_reply_free() */
  const int32_t* ids;       /* [id_count], drawn in this call, a stop token included */
  size_t id_count;
  stet_text text; /* of them; special tokens and a stop string left out */
  int32_t stop;   /* STET_STOP_... */
} stet_reply;
STET_API void stet_reply_free(stet_reply* reply);

/* Draws a reply, or goes on with an open one. The tokenizer may be NULL: then there is no text, and
 * stop strings are an error. When a callback written in C++ throws, or the call fails between two
 * tokens, the tokens drawn so far stay in the session. */
STET_API stet_status stet_session_generate(stet_session* session, const stet_tokenizer* tokenizer,
                                           const stet_generate_options* options, stet_reply** reply,
                                           stet_error** error);
typedef struct stet_batch_reply {
  stet_session* session;                /* its own sampling, stops and interventions count */
  const stet_generate_options* options; /* of its own; NULL: all defaults */
} stet_batch_reply;
/* Draws a reply of each session, in shared passes, with the bits of a reply of its own: sessions
 * are of one model and contract, and each stands once. replies: [count], each new. captures:
 * [count], each new, of the tokens that were drawn, as stet_session_capture() has them; may be NULL
 * where there are no points. After a failure there are none, and tokens drawn so far stay in the
 * sessions. */
STET_API stet_status stet_batch_generate(const stet_batch_reply* entries, size_t count,
                                         const stet_tokenizer* tokenizer, const char* const* points,
                                         size_t point_count, stet_capture** captures,
                                         stet_reply** replies, stet_error** error);
/* Closes an open reply that is not to go on. text: new, the end of its text that was held back. */
STET_API stet_status stet_session_end_reply(stet_session* session, const stet_tokenizer* tokenizer,
                                            char** text, size_t* size, stet_error** error);

/* From logits to a token, without a session. Holds scratch memory, and the tokens that
 * stet_sampler_set_drawn() gave it. */
typedef struct stet_sampler stet_sampler;
STET_API stet_status stet_sampler_new(int32_t vocab_size, stet_sampler** sampler,
                                      stet_error** error);
STET_API void stet_sampler_free(stet_sampler* sampler);
/* The tokens of the reply so far, which frequency and presence penalties count from now on; a new
 * sampler has none. */
STET_API stet_status stet_sampler_set_drawn(stet_sampler* sampler, const int32_t* ids, size_t count,
                                            stet_error** error);
/* The token that is to stand at `position`. logits [vocab_size]: finite or -inf; previous: what the
 * repetition penalty applies to. */
STET_API stet_status stet_sampler_sample(stet_sampler* sampler, const stet_sampling* sampling,
                                         const float* logits, size_t count, const int32_t* previous,
                                         size_t previous_count, uint64_t position, int32_t* id,
                                         stet_error** error);
/* The distribution that it is drawn from, into `out`, [count] as the logits. */
STET_API stet_status stet_sampler_probabilities(stet_sampler* sampler,
                                                const stet_sampling* sampling, const float* logits,
                                                size_t count, const int32_t* previous,
                                                size_t previous_count, float* out,
                                                stet_error** error);
/* The natural logarithm of a token's probability under the softmax of the logits alone. */
STET_API stet_status stet_log_probability(const float* logits, size_t count, int32_t id,
                                          double* result, stet_error** error);

/* ---- Scoring -------------------------------------------------------------------------------- */

typedef struct stet_score_request { /* ids[begin] .. ids[count-1], each given all before it */
  const int32_t* ids;
  size_t count, begin;
} stet_score_request;

typedef struct stet_token_score {
  double log_probability; /* natural logarithm, as stet_log_probability() */
  int32_t id;
  int32_t best; /* the likeliest token in its place; of equals the lowest id */
} stet_token_score;

typedef struct stet_score_options {
  size_t struct_size;
  size_t batch; /* texts that are processed together, at most; 0: 16. Changes no bit */
} stet_score_options;

/* The scores of requests[index], [count], valid during the call. */
typedef int32_t (*stet_score_callback)(void* context, size_t index, const stet_token_score* tokens,
                                       size_t count);

/* Scores each request after what the session holds, which stays as it is. What requests begin with
 * alike is processed once. on_score is called once for each, in any order, and once it returns
 * non-zero no more: STET_ERROR_CANCELED. A request with begin 0 needs a session with tokens. What
 * can be refused is, before anything is computed. */
STET_API stet_status stet_session_score(const stet_session* session,
                                        const stet_score_request* requests, size_t count,
                                        const stet_score_options* options,
                                        stet_score_callback on_score, void* context,
                                        stet_error** error);

/* ---- Snapshots ------------------------------------------------------------------------------ */

typedef struct stet_snapshot stet_snapshot; /* a session in a file, or in bytes */

enum {
  STET_FORM_FULL = 0,  /* everything */
  STET_FORM_DELTA = 1, /* keys and values that its parent does not have */
  STET_FORM_RECIPE = 2 /* no keys and values: they are computed again, and proved */
};

enum {
  STET_SAVE_WITH_WEIGHTS = 1,  /* put the model's files into the snapshot */
  STET_SAVE_WITH_TOKENIZER = 2 /* put the tokenizer's files into the snapshot */
};

typedef struct stet_save_options {
  size_t struct_size;
  uint64_t flags;
  const stet_snapshot* parent; /* needed for STET_FORM_DELTA, otherwise NULL */
  int64_t threads;
  int64_t mode;           /* permissions of a new file, less the umask; 0: 0600 */
  int32_t form, compress; /* compress: zlib level 1 .. 9; 0: blocks that can be mapped */
} stet_save_options;

/* Writes all that the session is to `path`, which afterwards is the whole new snapshot or, after a
 * failure, what it was before; unless the error's field is "durability": then it is the new one,
 * which a loss of power may undo. The tokenizer may be NULL; its fingerprint is kept. digests may
 * be NULL. */
STET_API stet_status stet_session_save(stet_session* session, const stet_tokenizer* tokenizer,
                                       const char* path, const stet_save_options* options,
                                       stet_digests* digests, stet_error** error);

/* Checks all but keys and values, which stay in the file until they are used. parent: the file that
 * a delta was made from; NULL: it is looked for beside the snapshot when it is needed. */
STET_API stet_status stet_snapshot_open(const char* path, const char* parent,
                                        stet_snapshot** snapshot, stet_error** error);
/* From bytes in memory, lent until release(context); sessions restored from them do not need them.
 * `name` is the file of errors. */
STET_API stet_status stet_snapshot_open_bytes(const void* data, size_t size, const char* name,
                                              stet_release_callback release, void* context,
                                              stet_snapshot** snapshot, stet_error** error);
STET_API void stet_snapshot_free(stet_snapshot* snapshot);

typedef struct stet_snapshot_info {
  size_t struct_size;
  /* Borrowed. */
  const char* path;
  const char* contract_name;
  const char* architecture;
  const char* config; /* the model's shape, as one line of JSON */
  const char* model_fingerprint;
  const char* tokenizer_fingerprint; /* or "" */
  const char* checkpoint;            /* the name that the model's directory had */
  const char* parent_id;             /* of a delta, where it is known, or "" */
  const char* parent_file;           /* the name that it had, or "" */
  uint64_t file_size;
  uint64_t stored_kv_bytes; /* of keys and values in this file, compressed or not */
  int64_t positions, capacity;
  int64_t layers, kv_heads, head_dim;
  int32_t form, format_version;
  int32_t contract; /* STET_CONTRACT_DEFAULT: one that this library does not know */
  int32_t contract_version;
  int32_t kv_type;
  int32_t has_logits, has_weights, has_tokenizer; /* 0 or 1 */
  size_t messages;                                /* see stet_snapshot_message() */
  size_t prunes, edits;
} stet_snapshot_info;
STET_API stet_status stet_snapshot_get_info(const stet_snapshot* snapshot, stet_snapshot_info* info,
                                            stet_error** error);
/* As the file gives them; stet_snapshot_check() proves them. */
STET_API stet_status stet_snapshot_get_digests(const stet_snapshot* snapshot, stet_digests* digests,
                                               stet_error** error);
STET_API stet_status stet_snapshot_tokens(const stet_snapshot* snapshot, const int32_t** ids,
                                          size_t* count, stet_error** error); /* borrowed */
/* [vocab_size], borrowed; NULL for a recipe, and where there are no tokens. */
STET_API stet_status stet_snapshot_logits(const stet_snapshot* snapshot, const float** logits,
                                          size_t* count, stet_error** error);

typedef struct stet_check_report {
  size_t struct_size;
  uint64_t blocks; /* of keys and values that were looked at, those of parents among them */
  uint64_t files;  /* of a self-contained snapshot */
} stet_check_report;
/* Proves, without a model, that every byte is what was written: STET_ERROR_FORMAT names the first
 * that is not. report may be NULL. */
STET_API stet_status stet_snapshot_check(const stet_snapshot* snapshot, int32_t threads,
                                         stet_check_report* report, stet_error** error);

/* The model and the tokenizer that a self-contained snapshot brings along. */
STET_API stet_status stet_snapshot_load_model(const stet_snapshot* snapshot,
                                              const stet_model_options* options, stet_model** model,
                                              stet_error** error);
STET_API stet_status stet_snapshot_load_tokenizer(const stet_snapshot* snapshot,
                                                  stet_tokenizer** tokenizer, stet_error** error);

enum {
  STET_RESTORE_IN_MEMORY = 1, /* copy the blocks instead of mapping the file */
  STET_RESTORE_CHECK = 2,     /* look at all blocks now, not when they are first used */
  STET_RESTORE_HEAL = 4,      /* compute damaged blocks again */
  STET_RESTORE_TRUST = 8,     /* take blocks as they are, damaged or not */
  STET_RESTORE_REPLAY = 16    /* compute everything again, under another model, contract, kv_type */
};

typedef struct stet_restore_options {
  size_t struct_size;
  uint64_t flags;
} stet_restore_options;

typedef struct stet_restore_report {
  size_t struct_size;
  int64_t reused, recomputed; /* tokens */
  int64_t healed;             /* blocks */
  int64_t checked;            /* 1: every digest was compared; 0: that happens before first use */
} stet_restore_report;

/* A session equal to the one that was saved. STET_ERROR_MISMATCH, with all differences, for another
 * model, tokenizer or contract; the tokenizer may be NULL. report may be NULL. */
STET_API stet_status stet_snapshot_restore(const stet_snapshot* snapshot, const stet_model* model,
                                           const stet_tokenizer* tokenizer,
                                           const stet_session_options* options,
                                           const stet_restore_options* how,
                                           stet_restore_report* report, stet_session** session,
                                           stet_error** error);

typedef struct stet_convert_options {
  size_t struct_size;
  const stet_prune_options* prune; /* NULL: nothing is pruned */
  int64_t capacity;                /* 0: as it is */
  int64_t kv_type;                 /* STET_KV_DEFAULT: as it is; another is an edit of the state */
} stet_convert_options;

/* The same state in another form, or pruned, rounded, with another capacity; needs no model, but
 * keys and values, which a recipe lacks. The files of a self-contained snapshot come along. pruned
 * (positions) and digests may be NULL. */
STET_API stet_status stet_snapshot_convert(const stet_snapshot* snapshot, const char* path,
                                           const stet_convert_options* options,
                                           const stet_save_options* save, int64_t* pruned,
                                           stet_digests* digests, stet_error** error);

/* ---- Verifying and comparing ---------------------------------------------------------------- */

typedef struct stet_difference { /* freed with stet_difference_free(), unless borrowed */
  const char* text;              /* "position 70, layer 1, key, head 0, element 3: expected ..." */
  const char* where;             /* the front of it */
  const char* what;              /* "token", "key", "value", "logit", "visibility", ... */
  const char* expected;
  const char* found;
  int64_t position, layer, head, element; /* -1: does not apply */
  double expected_number, found_number;   /* NaN where they are no numbers */
} stet_difference;
STET_API void stet_difference_free(stet_difference* difference);

enum { STET_VERIFY_BISECT = 1 }; /* compare digests of each layer of each block */

typedef struct stet_verify_options {
  size_t struct_size;
  uint64_t flags;
} stet_verify_options;

typedef struct stet_verify_report {
  size_t struct_size;
  int64_t tokens;     /* that were processed again */
  int64_t blocks, of; /* blocks that are what the tokens give, and were compared; of all */
  int64_t by_digests; /* of those, compared by digests, wholly or in layers not at hand */
  int64_t logits;     /* 1: those of the last token are what the tokens give; else 0 */
  int64_t whole;      /* 1: all of the state was proved; else 0 */
  int64_t position;   /* from where on the tokens do not give the state; -1: they give all of it */
  char reason[256];   /* and why; "" */
} stet_verify_report;

/* Computes a snapshot's state again from its tokens, as far as they give it, and compares.
 * difference: what differs first in the file; NULL: nothing does, and the report says how much was
 * proved: nothing, with 0 blocks, where edits leave none that the tokens give. report may be NULL.
 */
STET_API stet_status stet_snapshot_verify(const stet_snapshot* snapshot, const stet_model* model,
                                          const stet_session_options* options,
                                          const stet_verify_options* how,
                                          stet_verify_report* report, stet_difference** difference,
                                          stet_error** error);
/* The same of a running session. */
STET_API stet_status stet_session_verify(stet_session* session, stet_difference** difference,
                                         stet_error** error);
STET_API stet_status stet_session_verify_with_report(stet_session* session,
                                                     stet_verify_report* report,
                                                     stet_difference** difference,
                                                     stet_error** error);

/* The first place where `found` is not as `expected`; NULL: they are equal. Numbers are equal when
 * their bits are, or with tolerance > 0 within tolerance x max(1, |expected|). */
STET_API stet_status stet_session_first_difference(stet_session* expected, stet_session* found,
                                                   double tolerance, stet_difference** difference,
                                                   stet_error** error);

typedef struct stet_comparison stet_comparison;
/* Part by part. */
STET_API stet_status stet_session_compare(stet_session* a, stet_session* b,
                                          stet_comparison** comparison, stet_error** error);
/* The same of what the session's tokens, prunes and interventions give when all is computed again
 * (a), and what it is (b): how far edits have taken it from there. */
STET_API stet_status stet_session_compare_truth(stet_session* session, stet_comparison** comparison,
                                                stet_error** error);
STET_API stet_status stet_snapshot_compare(const stet_snapshot* a, const stet_snapshot* b,
                                           stet_comparison** comparison, stet_error** error);
STET_API void stet_comparison_free(stet_comparison* comparison);

typedef struct stet_comparison_info {
  size_t struct_size;
  size_t parts, layers;
  int64_t equal;             /* 1: all that was compared is */
  int64_t common_tokens;     /* that are equal, from the first on */
  int64_t equal_positions;   /* whose keys and values are equal, from the first on */
  double a_from_b, b_from_a; /* Kullback-Leibler divergence of the next token's distributions, in
                                nats; NaN where a state has no logits */
} stet_comparison_info;
STET_API stet_status stet_comparison_get_info(const stet_comparison* comparison,
                                              stet_comparison_info* info, stet_error** error);

typedef struct stet_comparison_part {
  size_t struct_size;
  /* Borrowed. */
  const char* name;                  /* "model", "tokens", "keys", "logits", ... */
  const char* note;                  /* why it was not compared, or "" */
  const stet_difference* difference; /* the first; NULL: equal, as far as it was compared */
  int64_t compared;                  /* 0: at least in part not */
} stet_comparison_part;
STET_API stet_status stet_comparison_get_part(const stet_comparison* comparison, size_t index,
                                              stet_comparison_part* part, stet_error** error);

typedef struct stet_comparison_layer { /* how far keys and values are apart */
  size_t struct_size;
  double key_largest, key_rms, value_largest, value_rms;
} stet_comparison_layer;
STET_API stet_status stet_comparison_get_layer(const stet_comparison* comparison, size_t index,
                                               stet_comparison_layer* layer, stet_error** error);

/* ---- Conversations -------------------------------------------------------------------------- */

typedef struct stet_message {
  stet_text role; /* "system", "user", "assistant", ... */
  stet_text content;
  stet_text fields;   /* a JSON object of further members for the template, or "" */
  int64_t begin, end; /* where it is in the transcript; 0 for a new one */
  int32_t drawn;      /* 1: a reply of the model, whose tokens are what was said */
} stet_message;

/* Messages that a session or a snapshot holds. Borrowed. */
STET_API stet_status stet_session_message(const stet_session* session, size_t index,
                                          stet_message* message, stet_error** error);
STET_API stet_status stet_snapshot_message(const stet_snapshot* snapshot, size_t index,
                                           stet_message* message, stet_error** error);

typedef struct stet_chat stet_chat; /* a conversation through the checkpoint's chat template */

enum { STET_CHAT_SPECIAL_IN_TEXT = 1 }; /* marks that a message contains are marks, not text */

typedef struct stet_chat_options { /* what is empty or 0 stays as the session has it */
  size_t struct_size;
  uint64_t flags;
  stet_text variables;     /* a JSON object for the template (tools, ...) */
  stet_text chat_template; /* in place of the tokenizer's */
  int64_t now;             /* for a template that asks for the time: seconds since 1970 */
} stet_chat_options;

/* Goes on from a fork of the session, with the messages that it has; the session stays the caller's
 * and as it is. */
STET_API stet_status stet_chat_new(const stet_session* session, const stet_tokenizer* tokenizer,
                                   const stet_chat_options* options, stet_chat** chat,
                                   stet_error** error);
STET_API void stet_chat_free(stet_chat* chat);
STET_API stet_status stet_chat_fork(const stet_chat* chat, stet_chat** fork, stet_error** error);
/* The chat's own session, to be saved, looked at or given other settings; borrowed, valid until the
 * chat is freed. */
STET_API stet_status stet_chat_session(stet_chat* chat, stet_session** session, stet_error** error);

typedef struct stet_prompt_report { /* tokens of a prompt */
  size_t struct_size;
  int64_t kept;       /* were in the cache, and stay */
  int64_t recomputed; /* of earlier messages, processed again since something before them changed */
  int64_t added;      /* of new or changed messages */
} stet_prompt_report;

/* One more message of the user, and the beginning of a reply. report may be NULL. */
STET_API stet_status stet_chat_say(stet_chat* chat, const char* text, size_t size,
                                   stet_prompt_report* report, stet_error** error);
/* Makes `messages` what the chat holds. Drawn ones are as stet_chat_message() gave them; clear
 * `drawn` of one whose content was changed. on_progress may be NULL. report may be NULL. */
STET_API stet_status stet_chat_prompt(stet_chat* chat, const stet_message* messages, size_t count,
                                      stet_progress_callback on_progress, void* context,
                                      stet_prompt_report* report, stet_error** error);
/* What stet_chat_prompt() would keep, recompute and add. */
STET_API stet_status stet_chat_plan(const stet_chat* chat, const stet_message* messages,
                                    size_t count, stet_prompt_report* report, stet_error** error);
/* Draws a reply, or goes on with one that was cut; as stet_session_generate(). */
STET_API stet_status stet_chat_reply(stet_chat* chat, const stet_generate_options* options,
                                     stet_reply** reply, stet_error** error);
/* Whether the last reply was cut and can go on: 0 or 1. */
STET_API stet_status stet_chat_is_open(const stet_chat* chat, int32_t* open, stet_error** error);
/* Closes a reply that was cut. text: new, the end of it that was held back. */
STET_API stet_status stet_chat_close(stet_chat* chat, char** text, size_t* size,
                                     stet_error** error);
/* Forgets the last `turns` messages of the user and all that followed each. */
STET_API stet_status stet_chat_rewind(stet_chat* chat, int64_t turns, stet_error** error);
/* Forgets the last reply, so that another can be drawn. */
STET_API stet_status stet_chat_retry(stet_chat* chat, stet_error** error);
/* Puts, changes or (with "") removes the system message, for the next prompt. */
STET_API stet_status stet_chat_set_system(stet_chat* chat, const char* text, size_t size,
                                          stet_error** error);
STET_API stet_status stet_chat_message_count(const stet_chat* chat, size_t* count,
                                             stet_error** error);
/* Borrowed. */
STET_API stet_status stet_chat_message(const stet_chat* chat, size_t index, stet_message* message,
                                       stet_error** error);

#ifdef __cplusplus
}
#endif

#endif /* STET_C_H */
