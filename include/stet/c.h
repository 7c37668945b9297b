/* The C99 interface of stet, also for other languages. docs/c-and-python.md shows it in use.
 *
 * Calls      A function that can fail returns STET_OK or the kind of its failure. Its last
 *            parameter, `error`, may be NULL. Otherwise *error becomes NULL on success, and on
 *            failure an error that the caller frees with stet_error_free(). Outputs precede
 *            `error` and must not be NULL unless their description allows it. On failure, outputs
 *            that are handles, pointers or numbers become NULL or 0, and structs keep their values.
 *            Unless described otherwise, a failed call changes nothing. Functions never throw. NULL
 *            for a required argument gives STET_ERROR_ARGUMENT.
 * Ownership  A handle is freed by the function of its name, in any order: it keeps alive what it
 *            needs of others (a session its model). Freeing NULL does nothing. A buffer described
 *            as "new" belongs to the caller, who frees it with stet_free(). A "borrowed" buffer
 *            belongs to the handle that returned it. It is valid until that handle is freed or
 *            passed to a function that takes it without const, even if that call fails. "Static"
 *            text is valid forever. Arguments are read only during the call, unless described
 *            otherwise.
 * Text       is UTF-8 as (pointer, size in bytes) and need not end with NUL; (NULL, 0) is the empty
 *            text. Text that the library returns has a NUL after its last byte, which the size does
 *            not count. A plain const char* (paths, names) ends with NUL.
 * Structs    that begin with struct_size may grow at their end in later versions. Set it to sizeof
 *            the struct before every call, also for outputs. Set all unused members of an input to
 *            zero, which means the default. NULL for a struct of options means all defaults.
 *            Unknown flags or members give STET_ERROR_UNSUPPORTED. Structs without struct_size
 *            never change, except that those made by the library (stet_error, stet_reply,
 *            stet_difference) may grow at their end.
 * Shapes     [a][b] is row-major.
 * Threads    Models, tokenizers, chat templates, snapshots and comparisons are immutable: any
 *            number of threads may use one at once. A session, batch, chat, text stream or
 *            sampler may be used by one thread at a time. Freeing counts as use.
 * Callbacks  run on the calling thread, except stet_change_callback. They receive their `context`,
 *            may only read, fork and save the session that they are called for, and return 0 to
 *            continue. During an append they may not even fork or save it. A call that may not be
 *            made gives STET_ERROR_ARGUMENT.
 * Numbers    `threads` 0 means all processors that the process may use. Positions count from 0. */
#ifndef STET_C_H
#define STET_C_H

#include <stddef.h>
#include <stdint.h>

#include "stet/api.h"

/* Increases when programs compiled against an older header would no longer work. */
#define STET_ABI_VERSION 1

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Version, status, errors ---------------------------------------------------------------- */

/* Returns the library's ABI version. A program checks that it equals STET_ABI_VERSION. */
STET_API uint32_t stet_abi_version(void);
STET_API const char* stet_version(void); /* version as text, "0.1.0"; static */

typedef int32_t stet_status;
enum {
  STET_OK = 0,
  STET_ERROR_IO = 1,          /* a file cannot be opened, read or written */
  STET_ERROR_FORMAT = 2,      /* bytes do not follow their format */
  STET_ERROR_UNSUPPORTED = 3, /* well-formed, but not supported by this build */
  STET_ERROR_MISMATCH = 4,    /* two things that must agree do not, such as snapshot and model */
  STET_ERROR_CAPACITY = 5,    /* more tokens than the session has room for */
  STET_ERROR_ARGUMENT = 6,    /* an argument is out of its range */
  STET_ERROR_MEMORY = 7,      /* out of memory */
  STET_ERROR_CANCELED = 8,    /* a callback returned non-zero */
  STET_ERROR_INTERNAL = 9     /* a foreign exception, for example from a callback in C++ */
};
STET_API const char* stet_status_name(stet_status status); /* "io", "format", ...; static */

typedef struct stet_error {
  stet_status kind;
  const char* message;  /* the whole error on one line, control characters escaped */
  const char* file;     /* a path, the name of the parsed input, or "" */
  const char* field;    /* the field within it, or "" */
  const char* expected; /* expected value, or ""; only NUL is escaped in these four parts */
  const char* found;    /* found value; a whole sentence if `expected` is "" */
} stet_error;
/* Frees an error. */
STET_API void stet_error_free(stet_error* error);

STET_API void stet_free(void* buffer); /* frees a "new" buffer */

/* Sets the interrupt callback of the calling thread. Calls of this thread that process tokens call
 * it when a pass through the model begins, and then every few milliseconds between pieces of work.
 * Saving, converting, restoring and checking a snapshot call it between blocks of 64 positions.
 * Loading and packing a model call it between matrices.
 * It runs on the same thread and must not process tokens itself.
 *
 * If it returns non-zero, the call ends with STET_ERROR_CANCELED. Its sessions and files are
 * unchanged, except that tokens of a reply already drawn remain. NULL removes the callback. */
typedef int32_t (*stet_interrupt_callback)(void* context);
STET_API void stet_set_interrupt(stet_interrupt_callback interrupt, void* context);

/* Returns the name of kernel set `index` that this processor supports, slowest first, or NULL after
 * the last. Static. */
STET_API const char* stet_isa_name(size_t index);

/* ---- Values used by several functions ------------------------------------------------------- */

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

/* Called once when bytes or a context lent to the library are no longer needed, also if the call
 * that lent them fails. Runs on the thread that frees the last handle that needs them. May be NULL:
 * the bytes must then stay valid until all handles made from them are freed. */
typedef void (*stet_release_callback)(void* context);

/* The numeric contract: the arithmetic of linear layers (docs/contracts-and-identity.md). */
enum {
  STET_CONTRACT_DEFAULT = 0, /* the snapshot's, or the one that weights were rounded for, or f32 */
  STET_CONTRACT_F32 = 1,
  STET_CONTRACT_F32_BLAS = 2, /* bits depend on shapes and threads */
  STET_CONTRACT_BF16 = 3,
  STET_CONTRACT_Q8 = 4,
  STET_CONTRACT_Q4 = 5,
  STET_CONTRACT_GGML = 6 /* each tensor in its own type, as stored in GGUF files */
};

/* The type of keys and values. */
enum {
  STET_KV_DEFAULT = 0, /* the snapshot's, or f32 */
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
  /* STET_CONTRACT_Q8, _Q4: round the weights unless they are packed; _F32: widen quantized types of
   * GGUF files, which are kept by default */
  int64_t contract;
} stet_model_options;

/* Loads a checkpoint directory in the published Hugging Face layout, or a packed one. *model is a
 * new handle. */
STET_API stet_status stet_model_load(const char* directory, const stet_model_options* options,
                                     stet_model** model, stet_error** error);

/* Loads a model from files in memory. Names and the array are read only during the call. The bytes
 * are lent until release(context) is called. Errors report `name` as the directory. */
STET_API stet_status stet_model_load_files(const stet_file* files, size_t count, const char* name,
                                           stet_release_callback release, void* context,
                                           const stet_model_options* options, stet_model** model,
                                           stet_error** error);

/* Frees a model. */
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
  /* STET_CONTRACT_Q8, _Q4, _GGML: the contract that the weights were loaded for */
  int64_t contract;
  size_t fingerprint_count; /* see stet_model_fingerprint() */
} stet_model_info;
/* Fills `info`. Its strings are borrowed from the model. */
STET_API stet_status stet_model_get_info(const stet_model* model, stet_model_info* info,
                                         stet_error** error);

/* Returns fingerprint `index` < fingerprint_count: of a group of tensors ("embeddings", "norms",
 * "attention", ...), of "config", and last of the whole "model". Both outputs are borrowed. */
STET_API stet_status stet_model_fingerprint(const stet_model* model, size_t index,
                                            const char** group, const char** fingerprint,
                                            stet_error** error);

/* Packs the checkpoint in `directory` for a contract into `output`, a new or empty directory. A
 * packed checkpoint loads in milliseconds. STET_CONTRACT_DEFAULT keeps the weights as they are.
 * _F32 does so, too, but widens quantized types of GGUF files. */
STET_API stet_status stet_model_pack(const char* directory, const char* output, int32_t contract,
                                     int32_t threads, stet_error** error);

/* Compares all weights of a packed checkpoint with their digests. *bytes is their total size. On
 * STET_ERROR_FORMAT, the error names the first damaged tensor. */
STET_API stet_status stet_model_check_packed(const char* directory, int32_t threads,
                                             uint64_t* bytes, stet_error** error);

/* ---- Tokenizers ----------------------------------------------------------------------------- */

typedef struct stet_tokenizer stet_tokenizer;

/* Loads the tokenizer of a checkpoint directory. *tokenizer is a new handle. */
STET_API stet_status stet_tokenizer_load(const char* directory, stet_tokenizer** tokenizer,
                                         stet_error** error);
/* Loads the tokenizer of a GGUF file whose tokenizer.ggml.pre is missing, wrong or unknown to stet:
 * pre_tokenizer ("llama-bpe") takes its place. An unknown name is an argument error that lists the
 * known ones; so is a directory, whose tokenizer.json has the rules itself. *tokenizer is a new
 * handle. */
STET_API stet_status stet_tokenizer_load_pre(const char* file, const char* pre_tokenizer,
                                             stet_tokenizer** tokenizer, stet_error** error);
/* Loads a tokenizer from files in memory, which are read only during the call. Errors
 * report `name` as the directory. */
STET_API stet_status stet_tokenizer_load_files(const stet_file* files, size_t count,
                                               const char* name, stet_tokenizer** tokenizer,
                                               stet_error** error);
/* Frees a tokenizer. */
STET_API void stet_tokenizer_free(stet_tokenizer* tokenizer);

typedef struct stet_tokenizer_info {
  size_t struct_size;
  const char* fingerprint; /* borrowed */
  int64_t size;            /* highest id plus one */
  int32_t bos, eos;        /* -1: none */
  size_t special_count;    /* see stet_tokenizer_special_token() */
} stet_tokenizer_info;
/* Fills `info`. Its strings are borrowed from the tokenizer. */
STET_API stet_status stet_tokenizer_get_info(const stet_tokenizer* tokenizer,
                                             stet_tokenizer_info* info, stet_error** error);

enum {
  STET_ENCODE_BOS = 1, /* put bos first even if the checkpoint does not ask for it */
  /* Add no tokens to those of the text. Without either flag, bos is added as the checkpoint asks,
   * but not twice if the text begins with one. */
  STET_ENCODE_NO_BOS = 2,
  STET_ENCODE_PLAIN = 4,    /* special tokens in the text ("<eos>") stay text: for untrusted text */
  STET_ENCODE_CONTINUED = 8 /* the text continues another: put no space before it */
};

typedef struct stet_encode_options {
  size_t struct_size;
  uint64_t flags;
  /* ranges in which special tokens stay text, in order; not with STET_ENCODE_PLAIN */
  const stet_range* plain;
  size_t plain_count;
} stet_encode_options;

/* Encodes a text to tokens. ids: new, [count]; NULL if there are none. */
STET_API stet_status stet_tokenizer_encode(const stet_tokenizer* tokenizer, const char* text,
                                           size_t size, const stet_encode_options* options,
                                           int32_t** ids, size_t* count, stet_error** error);
/* Encodes a context and its continuation for scoring (stet_session_score), divided as in
 * lm-evaluation-harness. White space at the end of the context belongs to the continuation. Both
 * texts are encoded together, and the context takes as many tokens as it has alone.
 *
 * Of the options, only flags are used, and not STET_ENCODE_CONTINUED. ids: new, [count]; the
 * continuation starts at ids[begin]. */
STET_API stet_status stet_tokenizer_encode_pair(const stet_tokenizer* tokenizer,
                                                const char* context, size_t context_size,
                                                const char* continuation, size_t continuation_size,
                                                const stet_encode_options* options, int32_t** ids,
                                                size_t* count, size_t* begin, stet_error** error);
/* Decodes tokens to text. out: new, always valid UTF-8. If skip_special is not 0, special tokens
 * are left out. */
STET_API stet_status stet_tokenizer_decode(const stet_tokenizer* tokenizer, const int32_t* ids,
                                           size_t count, int32_t skip_special, char** out,
                                           size_t* out_size, stet_error** error);
/* Returns the id of a token as written in the vocabulary ("<bos>"), or -1 if there is none. */
STET_API stet_status stet_tokenizer_id(const stet_tokenizer* tokenizer, const char* piece,
                                       size_t size, int32_t* id, stet_error** error);
/* Returns the token with this id as written in the vocabulary. out: new; "" for an unused id. */
STET_API stet_status stet_tokenizer_piece(const stet_tokenizer* tokenizer, int32_t id, char** out,
                                          size_t* out_size, stet_error** error);
/* Sets *special to 1 if skip_special leaves this token out, otherwise 0. */
STET_API stet_status stet_tokenizer_is_special(const stet_tokenizer* tokenizer, int32_t id,
                                               int32_t* special, stet_error** error);
/* Returns special token `index` < special_count under its name in templates ("bos_token", "<bos>").
 * Borrowed. */
STET_API stet_status stet_tokenizer_special_token(const stet_tokenizer* tokenizer, size_t index,
                                                  stet_text* name, stet_text* text,
                                                  stet_error** error);
/* Returns the Jinja source of the chat template: the default one if `name` is NULL, otherwise the
 * named one ("tool_use"). "" if there is none. Borrowed. */
STET_API stet_status stet_tokenizer_chat_template(const stet_tokenizer* tokenizer, const char* name,
                                                  stet_text* source, stet_error** error);

/* Decodes tokens one by one. Bytes of an unfinished character wait for the next token. */
typedef struct stet_text_stream stet_text_stream;
/* Creates a stream. If skip_special is not 0, special tokens are left out. */
STET_API stet_status stet_text_stream_new(const stet_tokenizer* tokenizer, int32_t skip_special,
                                          stet_text_stream** stream, stet_error** error);
/* Frees a stream. */
STET_API void stet_text_stream_free(stet_text_stream* stream);
/* Adds a token and returns the text that it completes, often "". Borrowed. */
STET_API stet_status stet_text_stream_push(stet_text_stream* stream, int32_t id, stet_text* text,
                                           stet_error** error);
/* Returns the remaining text, borrowed. The stream then starts again. */
STET_API stet_status stet_text_stream_finish(stet_text_stream* stream, stet_text* text,
                                             stet_error** error);
/* Save and restore the stream's complete state as bytes. state: new. */
STET_API stet_status stet_text_stream_save(const stet_text_stream* stream, char** state,
                                           size_t* size, stet_error** error);
STET_API stet_status stet_text_stream_restore(stet_text_stream* stream, const char* state,
                                              size_t size, stet_error** error);

/* Renders chat messages to the text of a prompt. */
typedef struct stet_chat_template stet_chat_template;
/* Creates a template: the tokenizer's own if `source` is NULL, otherwise `source` with the
 * tokenizer's special tokens. */
STET_API stet_status stet_chat_template_new(const stet_tokenizer* tokenizer, const char* source,
                                            size_t size, stet_chat_template** chat_template,
                                            stet_error** error);
/* Frees a template. */
STET_API void stet_chat_template_free(stet_chat_template* chat_template);

enum { STET_RENDER_GENERATION_PROMPT = 1 }; /* end where the model's reply begins */

typedef struct stet_render_options {
  size_t struct_size;
  uint64_t flags;
  stet_text variables; /* a JSON object of further variables (tools, ...) */
  int64_t now;         /* for strftime_now: seconds since 1970 */
} stet_render_options;

/* Renders messages, a JSON array of {"role": ..., "content": ...}. out: new. plain: new,
 * [plain_count], NULL if there are none: the ranges that came from messages and should be encoded
 * as plain text. plain and plain_count may both be NULL. */
STET_API stet_status stet_chat_template_render(const stet_chat_template* chat_template,
                                               const char* messages, size_t size,
                                               const stet_render_options* options, char** out,
                                               size_t* out_size, stet_range** plain,
                                               size_t* plain_count, stet_error** error);

/* ---- Sessions ------------------------------------------------------------------------------- */

typedef struct stet_session stet_session; /* everything that changes while a model runs */

typedef struct stet_session_options {
  size_t struct_size;
  int64_t capacity; /* positions; 0: the model's maximum, or the snapshot's */
  int64_t threads;
  int64_t chunk;   /* tokens per pass; 0: 512. Does not change bits */
  const char* isa; /* one of stet_isa_name(); NULL: the best. Does not change bits */
  int32_t kv_type, contract;
  /* If window_only is nonzero, layers with a sliding window keep only that window. They also keep
   * the window before each multiple of checkpoint_every positions (0: 8192; -1: none). Bits do not
   * depend on it.
   *
   * A call that needs a dropped window fails, and the error says how many tokens would have to be
   * processed again. If recompute is nonzero, it processes them instead. */
  int32_t window_only, recompute;
  int64_t checkpoint_every;
  /* memory for anchors of recurrent layers (stet_session_anchor), in bytes; 0: 1 GiB; -1: none */
  int64_t anchor_bytes;
} stet_session_options;
/* Creates an empty session. *session is a new handle. */
STET_API stet_status stet_session_new(const stet_model* model, const stet_session_options* options,
                                      stet_session** session, stet_error** error);
/* Frees a session. Does nothing for a session that belongs to a chat (stet_chat_session). */
STET_API void stet_session_free(stet_session* session);
/* Creates an independent copy. Both share blocks of keys and values until one writes. */
STET_API stet_status stet_session_fork(const stet_session* session, stet_session** fork,
                                       stet_error** error);

typedef struct stet_session_info {
  size_t struct_size;
  int64_t size;     /* tokens present */
  int64_t capacity; /* maximal number of tokens */
  int64_t floor;    /* size after the last prune: a rewind must end behind it; 0: no prune */
  int64_t visible;  /* visible positions: size minus those pruned */
  int64_t drawn;    /* tokens appended and not rewound, including those shifted out */
  int64_t threads, chunk;
  const char* isa;               /* borrowed; "": the best */
  const char* contract_name;     /* "f32"; static */
  int32_t contract, kv_type;     /* never STET_..._DEFAULT */
  size_t stop_ids, stop_strings; /* see stet_session_stop_ids(), _stop_string() */
  size_t turns, messages;        /* see stet_session_turn(), _message() */
  size_t prunes, edits;          /* entries of the logs */
  size_t interventions;
  size_t recurrent_arrays; /* see stet_session_recurrent_array() */
  size_t anchors;          /* see stet_session_anchor() */
} stet_session_info;
/* Fills `info`. Its strings are borrowed or static. */
STET_API stet_status stet_session_get_info(const stet_session* session, stet_session_info* info,
                                           stet_error** error);
/* Changes how the session computes: threads, chunk, isa, contract. The contract may not change
 * while there are tokens. All other members must be 0. */
STET_API stet_status stet_session_set_compute(stet_session* session,
                                              const stet_session_options* options,
                                              stet_error** error);

/* Processes tokens after those already present. STET_ERROR_CAPACITY: they do not fit.
 * STET_ERROR_ARGUMENT: an id is outside the vocabulary. On failure the session is unchanged. */
STET_API stet_status stet_session_append(stet_session* session, const int32_t* ids, size_t count,
                                         stet_error** error);

/* Receives the logits that follow the token at a position, [count]. Valid during the call. */
typedef int32_t (*stet_logits_callback)(void* context, int64_t position, const float* logits,
                                        size_t count);
/* Receives hidden state `index` of the token at a position, [count]. 0 is the embedding, i is the
 * state after i layers, the last is after the final norm. Valid during the call. */
typedef int32_t (*stet_hidden_callback)(void* context, size_t index, int64_t position,
                                        const float* hidden, size_t count);
/* Receives the row of one position at points[index], [count]; for scores and patterns it is
 * [heads][positions so far]. Valid during the call. */
typedef int32_t (*stet_point_callback)(void* context, size_t index, int64_t position,
                                       const float* row, size_t count);
/* Receives the number of tokens of this call processed so far. */
typedef int32_t (*stet_progress_callback)(void* context, int64_t done);

typedef struct stet_watch { /* callbacks, each of which may be NULL */
  size_t struct_size;
  void* context;
  stet_logits_callback on_logits;
  stet_hidden_callback on_hidden;
  stet_progress_callback on_progress;
  /* [point_count] names of points (docs/lab.md), each once: "blocks.0.attn.hook_z". on_point
   * receives each point's row for every position. NULL if there are none. */
  const char* const* points;
  size_t point_count;
  stet_point_callback on_point;
  /* [state_position_count], each once: the positions at which to capture hook_state, which is
   * refused without them */
  const int64_t* state_positions;
  size_t state_position_count;
} stet_watch;

/* Like stet_session_append(), with callbacks for every position. If one returns non-zero, the
 * session is unchanged and the call returns STET_ERROR_CANCELED. */
STET_API stet_status stet_session_append_watched(stet_session* session, const int32_t* ids,
                                                 size_t count, const stet_watch* watch,
                                                 stet_error** error);

enum {
  STET_SET = 0,         /* x = values */
  STET_ADD = 1,         /* x += amount * values */
  STET_SCALE = 2,       /* x *= amount */
  STET_PROJECT_OUT = 3, /* x minus its projection onto values */
  STET_CLAMP = 4 /* sets a feature of a sparse autoencoder to amount; values: encoder, decoder */
};

/* A change of activations, part of the state. Applies to tokens processed after it was attached. */
typedef struct stet_intervention {
  size_t struct_size;
  const char* point;     /* "hook_resid_post", for `layers`; or "blocks.3....", without `layers` */
  const int64_t* layers; /* [layer_count]; none: all */
  size_t layer_count;
  const int64_t* heads; /* [head_count]; none: all columns */
  size_t head_count;
  int64_t begin, end; /* positions begin .. end-1; end 0: unbounded */
  int32_t op;
  float amount, bias, threshold; /* bias, threshold: 0 unless op is STET_CLAMP */
  const float* values;           /* [value_count]: one row, or for STET_SET one per position */
  size_t value_count;
  /* For scores and patterns, which accept STET_SET, _ADD and _SCALE: key positions key_begin ..
   * key_end-1; key_end 0: unbounded. values: one number, or one per key position. A score of
   * -INFINITY hides the position. */
  int64_t key_begin, key_end;
} stet_intervention;

/* Attaches an intervention from the current position on; see docs/lab.md. */
STET_API stet_status stet_session_attach(stet_session* session,
                                         const stet_intervention* intervention, stet_error** error);
/* Returns intervention `index` < stet_session_info.interventions, in order of attachment. *attached
 * is the position from which it applies, and may be NULL. Pointers are borrowed. `point` excludes
 * the layer; `end` is 0 if it is unbounded. */
STET_API stet_status stet_session_intervention(const stet_session* session, size_t index,
                                               stet_intervention* intervention, int64_t* attached,
                                               stet_error** error);
/* Ends an intervention at a position not before the current size. The session is then the same as
 * if it had been attached with that end. A later rewind does not move the end. An intervention that
 * has changed nothing until then is removed, and the indices of later ones decrease. */
STET_API stet_status stet_session_detach(stet_session* session, size_t index, int64_t position,
                                         stet_error** error);
/* Applies the final norm and the head to rows of the residual stream, [rows][hidden_size]. logits:
 * new, [count] = [rows][vocab_size]. */
STET_API stet_status stet_session_lens(const stet_session* session, const float* residual,
                                       size_t rows, float** logits, size_t* count,
                                       stet_error** error);

/* Changes activations in place. `rows` are [count][width], `stride` floats apart: points[index] at
 * positions from `first` on. Any computing thread may call it, one call at a time. */
typedef int32_t (*stet_change_callback)(void* context, size_t index, int64_t first, float* rows,
                                        size_t count, size_t width, size_t stride);

typedef struct stet_callback {
  size_t struct_size;
  const char* const* points; /* [point_count] names, each once; only points that can be changed */
  size_t point_count;
  void* context;
  stet_change_callback change;   /* required; a non-zero result cancels the call */
  stet_release_callback release; /* for the context; may be NULL */
} stet_callback;

/* Attaches a function that changes activations of tokens processed from now on, by this session and
 * its forks, until it is detached. Snapshots do not contain it. What it affects cannot be
 * recomputed: the state counts it as an edit and is identified by its bytes. */
STET_API stet_status stet_session_attach_callback(stet_session* session,
                                                  const stet_callback* callback,
                                                  stet_error** error);
/* Detaches all callbacks of the session. */
STET_API stet_status stet_session_detach_callbacks(stet_session* session, stet_error** error);

/* Returns the names of all points of a model in the order of the pass, one per line. text: new. */
STET_API stet_status stet_model_points(const stet_model* model, char** text, size_t* size,
                                       stet_error** error);

typedef struct stet_point_info {
  size_t struct_size;
  int64_t heads;        /* heads in a row, one after the other; 0: none */
  int64_t width;        /* numbers in a row; for scores and patterns, per position */
  int32_t of_positions; /* 1: a row is [heads][positions] (scores and patterns) */
  /* 1: callbacks can change it; 0 for scores, patterns and hook_state, which only interventions
   * change */
  int32_t can_be_changed;
} stet_point_info;
/* Describes a point, named with its layer, or without for the first layer that has it. */
STET_API stet_status stet_model_point(const stet_model* model, const char* point,
                                      stet_point_info* info, stet_error** error);

/* Captured rows of points. A capture owns their memory. */
typedef struct stet_capture stet_capture;
/* Appends tokens and captures the rows of points[0] .. points[point_count-1]. If `logits` is not 0,
 * also captures the logits of every position, as one more point. */
STET_API stet_status stet_session_capture(stet_session* session, const int32_t* ids, size_t count,
                                          const char* const* points, size_t point_count,
                                          int32_t logits, stet_capture** capture,
                                          stet_error** error);
typedef struct stet_capture_options {
  size_t struct_size;
  const char* const* points; /* [point_count] */
  size_t point_count;
  int32_t logits;
  stet_progress_callback on_progress; /* may be NULL */
  void* context;
  const int64_t* state_positions; /* [state_position_count], as in stet_watch */
  size_t state_position_count;
} stet_capture_options;
/* Like stet_session_capture(), with progress reports, and positions of hook_state. */
STET_API stet_status stet_session_capture_with(stet_session* session, const int32_t* ids,
                                               size_t count, const stet_capture_options* options,
                                               stet_capture** capture, stet_error** error);
/* Frees a capture. */
STET_API void stet_capture_free(stet_capture* capture);
/* Returns the rows of point `index`: borrowed, [count][width]. Scores and patterns are
 * [heads][positions]; later positions are -inf and 0. */
STET_API stet_status stet_capture_rows(const stet_capture* capture, size_t index,
                                       const float** rows, size_t* count, size_t* width,
                                       stet_error** error);

/* Intermediate results of tokens, for activation patching sweeps: changed versions need recomputing
 * only from their first changed layer and position on. */
typedef struct stet_trace stet_trace;
/* Processes tokens after those of the session, which does not change. *trace is a new handle. */
STET_API stet_status stet_trace_new(const stet_session* before, const int32_t* ids, size_t count,
                                    stet_trace** trace, stet_error** error);
/* Frees a trace. */
STET_API void stet_trace_free(stet_trace* trace);
/* Computes the logits under each change alone. They are bit for bit those of a session to which the
 * change was attached before the tokens. on_logits receives the change's index in `changes` as its
 * position, in any order. */
STET_API stet_status stet_trace_run(stet_trace* trace, const stet_intervention* changes,
                                    size_t count, stet_logits_callback on_logits, void* context,
                                    stet_error** error);

typedef struct stet_ids { /* tokens */
  const int32_t* ids;
  size_t count;
} stet_ids;
/* Creates a trace of several prompts, each after the tokens of the session. */
STET_API stet_status stet_trace_new_prompts(const stet_session* before, const stet_ids* prompts,
                                            size_t count, stet_trace** trace, stet_error** error);

typedef struct stet_traced {        /* one run over a prompt of a trace, with all changes at once */
  const stet_intervention* changes; /* [change_count], attached in this order */
  size_t change_count;
  size_t prompt;            /* index of the prompt in the trace */
  const int64_t* positions; /* [position_count] whose logits are wanted; none: the last */
  size_t position_count;
} stet_traced;
/* Receives the logits that follow the token at a position of runs[index], [count]. Valid during the
 * call. */
typedef int32_t (*stet_trace_callback)(void* context, size_t index, int64_t position,
                                       const float* logits, size_t count);
/* Computes runs with any number of changes. on_logits is called once for each wanted position, in
 * ascending order within a run. */
STET_API stet_status stet_trace_run_all(stet_trace* trace, const stet_traced* runs, size_t count,
                                        stet_trace_callback on_logits, void* context,
                                        stet_error** error);

/* Returns the session's tokens: borrowed, [count]; NULL if there are none. */
STET_API stet_status stet_session_tokens(const stet_session* session, const int32_t** ids,
                                         size_t* count, stet_error** error);
/* Returns all tokens that were appended and not rewound, including those shifted out: new, [count];
 * NULL if there are none. */
STET_API stet_status stet_session_transcript(const stet_session* session, int32_t** ids,
                                             size_t* count, stet_error** error);
/* Returns the logits that follow the last token: borrowed, [count] = [vocab_size]; NULL if there
 * are no tokens. After a rewind they are computed here. */
STET_API stet_status stet_session_logits(stet_session* session, const float** logits, size_t* count,
                                         stet_error** error);

/* Drops all tokens from position `size` on, as if they had never been appended. */
STET_API stet_status stet_session_rewind(stet_session* session, int64_t size, stet_error** error);
/* Returns the number of tokens that this rewind would process again: 0 unless window_only is set or
 * the model has recurrent layers. STET_ERROR_ARGUMENT: the session has no such position. */
STET_API stet_status stet_session_rewind_cost(const stet_session* session, int64_t size,
                                              int64_t* tokens, stet_error** error);

enum {
  STET_PRUNE_SHIFT = 1, /* renumber later positions; otherwise the gap is masked */
  /* Process later tokens again, as if the removed ones had never been there; models with recurrent
   * layers need it. Excludes STET_PRUNE_SHIFT. Not for stet_snapshot_convert(), which has no model */
  STET_PRUNE_RECOMPUTE = 2
};

typedef struct stet_prune_options {
  size_t struct_size;
  uint64_t flags;
  int64_t keep_last; /* positions kept at the end */
  int64_t sinks;     /* positions kept at the beginning */
} stet_prune_options;

/* Removes positions from the middle. *pruned is their number. Options are required. */
STET_API stet_status stet_session_prune(stet_session* session, const stet_prune_options* options,
                                        int64_t* pruned, stet_error** error);
/* Removes positions begin .. end-1. If `shift` is not 0, later positions are
 * renumbered, which closes the gap. */
STET_API stet_status stet_session_prune_range(stet_session* session, int64_t begin, int64_t end,
                                              int32_t shift, stet_error** error);

/* Read or replace the stored key (after norm and rotation) or value of one position. x is [count] =
 * [head_dim]. Reading heals a block that the session's file has lost (stet_session_take_healed).
 * After a replacement, tokens no longer determine the state, and the session logs an edit. */
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

/* A range of keys and values. Pruned positions are skipped. */
typedef struct stet_kv_range {
  size_t struct_size;
  const int64_t* layers; /* [layer_count]; none: all */
  size_t layer_count;
  const int64_t* heads; /* [head_count] KV heads; none: all */
  size_t head_count;
  int64_t begin, end;   /* positions begin .. end-1; end 0: to the last */
  int32_t keys, values; /* 1: included; both 0: both */
} stet_kv_range;
/* Zero, scale, set or copy all keys and values of a range; each counts as an edit. x: [count], one
 * vector of head_dim for all, or [positions][heads][head_dim] for each layer. copy_kv copies from
 * positions `position` .. of a session of the same model, and rotates keys to the new positions. */
STET_API stet_status stet_session_zero_kv(stet_session* session, const stet_kv_range* range,
                                          stet_error** error);
STET_API stet_status stet_session_scale_kv(stet_session* session, const stet_kv_range* range,
                                           float factor, stet_error** error);
STET_API stet_status stet_session_set_kv(stet_session* session, const stet_kv_range* range,
                                         const float* x, size_t count, stet_error** error);
STET_API stet_status stet_session_copy_kv(stet_session* session, const stet_kv_range* range,
                                          const stet_session* from, int64_t position,
                                          stet_error** error);

typedef struct stet_recurrent_array { /* what a recurrent layer keeps in place of keys and values */
  size_t struct_size;
  int64_t layer;
  const char* name;   /* "state" or "conv"; static */
  int64_t shape[4];   /* as stet export writes it; the last varies fastest */
  int32_t dimensions; /* used entries of shape */
  size_t count;       /* numbers */
} stet_recurrent_array;
/* Describes array `index` < stet_session_info.recurrent_arrays, layer by layer. */
STET_API stet_status stet_session_recurrent_array(const stet_session* session, size_t index,
                                                  stet_recurrent_array* array, stet_error** error);
/* Read or replace array `index` after the last token. x is [count]. A replacement counts as an edit:
 * tokens then no longer determine the state. It keeps the array as an anchor, and requires a session
 * with tokens. */
STET_API stet_status stet_session_get_recurrent(const stet_session* session, size_t index, float* x,
                                                size_t count, stet_error** error);
STET_API stet_status stet_session_set_recurrent(stet_session* session, size_t index, const float* x,
                                                size_t count, stet_error** error);

typedef struct stet_anchor { /* arrays of all recurrent layers at an earlier position */
  size_t struct_size;
  int64_t position; /* tokens before it; a rewind to here processes none again */
  uint64_t bytes;
  int32_t replayable; /* 0: tokens may give other arrays, so anchor_bytes does not limit it */
} stet_anchor;
/* Returns anchor `index` < stet_session_info.anchors, in ascending order of position. */
STET_API stet_status stet_session_anchor(const stet_session* session, size_t index,
                                         stet_anchor* anchor, stet_error** error);
/* Keeps an anchor at the session's size. Does nothing without recurrent layers. */
STET_API stet_status stet_session_keep_anchor(stet_session* session, stet_error** error);

typedef struct stet_cut { /* positions begin .. end-1 of a session */
  stet_session* from;
  int64_t begin, end;
} stet_cut;
/* Creates a session that concatenates all cuts, with keys rotated to their new positions. Nothing
 * is recomputed. Settings come from the first cut. stet_session_compare_truth() measures how far it
 * is from a computation of its tokens. */
STET_API stet_status stet_session_splice(const stet_cut* cuts, size_t count, stet_session** spliced,
                                         stet_error** error);

/* A view of the library's memory, read in place. It stays valid and unchanged until it is freed,
 * also after the session is freed. */
typedef struct stet_view stet_view;
/* Frees a view. */
STET_API void stet_view_free(stet_view* view);
/* Returns the names of a model's weights, as TransformerLens names them, one per line. text: new. A
 * tensor without such a name keeps its name in the checkpoint. */
STET_API stet_status stet_model_weights(const stet_model* model, char** text, size_t* size,
                                        stet_error** error);
typedef struct stet_weight {
  size_t struct_size;
  const float* data; /* owned by the view, row-major */
  int64_t shape[4];
  int32_t dimensions; /* used entries of shape */
} stet_weight;
/* Returns the values that the model multiplies with, widened to float32. Matrices are
 * [inputs][outputs], those of heads [heads][inputs][outputs] ("blocks.0.attn.W_Q"; keys and values
 * have the KV heads). The embedding is scaled as the family scales it. */
STET_API stet_status stet_model_weight(const stet_model* model, const char* name, stet_view** view,
                                       stet_weight* weight, stet_error** error);
/* Returns the logits that follow the last token, [count]; NULL if there are no tokens. */
STET_API stet_status stet_session_view_logits(stet_session* session, stet_view** view,
                                              const float** data, size_t* count,
                                              stet_error** error);
/* Returns block `index`: positions 64 index .. 64 index + 63. For each layer and KV head it holds
 * keys [head_dim][64], then values [64][head_dim], in the session's type. */
STET_API stet_status stet_session_view_block(stet_session* session, int64_t index, stet_view** view,
                                             const void** data, size_t* size, stet_error** error);

/* Digests of a state, as NUL-terminated text. The XXH3 digests detect damage and differences. The
 * id identifies the state. */
typedef struct stet_digests {
  size_t struct_size;
  char tokens[40]; /* "xxh3:" and 32 hex digits */
  char logits[40];
  char kv[40];
  char state[40]; /* over everything */
  char id[72];    /* "sha256:" and 64 hex digits: the state's name */
} stet_digests;
/* Computes the digests of a session. */
STET_API stet_status stet_session_get_digests(stet_session* session, stet_digests* digests,
                                              stet_error** error);

typedef struct stet_block_identity { /* of a full block of 64 positions */
  /* SHA-256; equal ids mean equal bytes (docs/contracts-and-identity.md). */
  uint8_t id[32];
  int32_t replayable; /* 1: its tokens determine it; 0: the id is a digest of its bytes */
} stet_block_identity;
/* Returns the identities of all full blocks. blocks: new, [count]; NULL if there are none. */
STET_API stet_status stet_session_block_identities(stet_session* session,
                                                   stet_block_identity** blocks, size_t* count,
                                                   stet_error** error);

/* Returns the blocks healed since the last call: damaged in a snapshot's file, and recomputed.
 * text: new, one line per file; "" if there was nothing. */
STET_API stet_status stet_session_take_healed(stet_session* session, char** text, size_t* size,
                                              stet_error** error);

typedef struct stet_batch_entry {
  stet_session* session;
  const int32_t* ids; /* [count], at least one */
  size_t count;
} stet_batch_entry;
/* Appends tokens to several sessions in shared passes, with bit for bit the results of
 * separate appends. All sessions must have the same model and contract, and each may occur once. On
 * failure all are unchanged. */
STET_API stet_status stet_batch_append(const stet_batch_entry* entries, size_t count,
                                       stet_error** error);
/* Like stet_batch_append(), and captures rows of points as stet_session_capture() does. captures is
 * [count], each new. On failure there is none. */
STET_API stet_status stet_batch_capture(const stet_batch_entry* entries, size_t count,
                                        const char* const* points, size_t point_count,
                                        stet_capture** captures, stet_error** error);
/* Like stet_batch_capture(), with points and positions of hook_state for each entry. options is
 * [count], for the entries in this order; logits and on_progress are refused. */
STET_API stet_status stet_batch_capture_with(const stet_batch_entry* entries, size_t count,
                                             const stet_capture_options* const* options,
                                             stet_capture** captures, stet_error** error);

/* ---- Generation ----------------------------------------------------------------------------- */

typedef struct stet_token_bias { /* added to the logit of a token */
  int32_t id;
  double bias; /* [-100, 100]; 0: none */
} stet_token_bias;

typedef struct stet_sampling {
  size_t struct_size;
  double temperature;        /* [1e-30, 1e30] */
  double top_p;              /* [0, 1]; 1: off */
  double min_p;              /* [0, 1]; 0: off */
  double typical_p;          /* (0, 1]; 1: off */
  double repetition_penalty; /* [1e-30, 1e30]; 1: off */
  uint64_t seed;             /* draws depend on seed and position only */
  int32_t top_k;             /* >= 0; 0: off */
  int32_t greedy; /* 1: the best token; of the other settings, only penalties and biases apply */
  /* A token that occurs c > 0 times in the reply so far has its score lowered by c *
   * frequency_penalty + presence_penalty. */
  double frequency_penalty;          /* [-2, 2]; 0: off */
  double presence_penalty;           /* [-2, 2]; 0: off */
  const stet_token_bias* logit_bias; /* [logit_bias_count], each token once, in any order */
  size_t logit_bias_count;           /* at most 4096 */
} stet_sampling;

/* Fills in the settings of a new session: greedy, everything else off. */
STET_API stet_status stet_sampling_init(stet_sampling* sampling, stet_error** error);
/* Get or set the sampling settings, which sessions and snapshots keep. Zeros are not defaults here:
 * start from stet_session_get_sampling() or stet_sampling_init(). The biases that get_sampling
 * returns are borrowed. set_sampling keeps settings that an older struct_size does not include. */
STET_API stet_status stet_session_get_sampling(const stet_session* session, stet_sampling* sampling,
                                               stet_error** error);
STET_API stet_status stet_session_set_sampling(stet_session* session, const stet_sampling* sampling,
                                               stet_error** error);
/* Uses the sampling settings and stop tokens that the checkpoint recommends. Keeps the seed and
 * stop strings. */
STET_API stet_status stet_session_use_recommended(stet_session* session, stet_error** error);

/* Return (borrowed) and replace the stop tokens. */
STET_API stet_status stet_session_stop_ids(const stet_session* session, const int32_t** ids,
                                           size_t* count, stet_error** error);
STET_API stet_status stet_session_set_stop_ids(stet_session* session, const int32_t* ids,
                                               size_t count, stet_error** error);
/* Returns stop string `index`. Borrowed. */
STET_API stet_status stet_session_stop_string(const stet_session* session, size_t index,
                                              stet_text* text, stet_error** error);
/* Replaces the stop strings. Each is 1 to 65536 bytes of UTF-8. */
STET_API stet_status stet_session_set_stop_strings(stet_session* session, const stet_text* strings,
                                                   size_t count, stet_error** error);

typedef struct stet_turn { /* a prompt and its reply, as positions */
  int64_t prompt, reply, end;
  int32_t open; /* 1: the reply may continue */
} stet_turn;
/* Returns turn `index`. */
STET_API stet_status stet_session_turn(const stet_session* session, size_t index, stet_turn* turn,
                                       stet_error** error);

/* Appends tokens as a prompt, which a reply is to follow. An open reply is closed first. */
STET_API stet_status stet_session_append_prompt(stet_session* session, const int32_t* ids,
                                                size_t count, stet_error** error);

/* Like stet_session_append_prompt(), with progress reports. If the callback returns non-zero, the
 * session is unchanged and the call returns STET_ERROR_CANCELED. */
STET_API stet_status stet_session_append_prompt_watched(stet_session* session, const int32_t* ids,
                                                        size_t count,
                                                        stet_progress_callback on_progress,
                                                        void* context, stet_error** error);

/* Receives, after every token, the text that has become certain; often empty. */
typedef int32_t (*stet_text_callback)(void* context, const char* text, size_t size);
/* Receives a drawn token and the logits, [count], that it was drawn from. */
typedef int32_t (*stet_token_callback)(void* context, int32_t id, const float* logits,
                                       size_t count);

/* Drafts the tokens that a reply may have next, so that a pass can process several. Replies, states
 * and digests are the same with any drafts or none; only the time differs. It learns from replies of
 * any session, and serves one reply at a time: a batch takes each speculator once. */
typedef struct stet_speculator stet_speculator;
/* Creates a speculator. draft: NULL to continue earlier occurrences of the last tokens, or a smaller
 * model of the same vocabulary, which may be freed. options: of the draft model's session. */
STET_API stet_status stet_speculator_new(const stet_model* draft,
                                         const stet_session_options* options,
                                         stet_speculator** speculator, stet_error** error);
/* Frees a speculator. */
STET_API void stet_speculator_free(stet_speculator* speculator);

enum { STET_GENERATE_IGNORE_EOS = 1 }; /* continue after a stop token */

typedef struct stet_generate_options {
  size_t struct_size;
  uint64_t flags;
  int64_t max_tokens; /* 0: 256 */
  void* context;
  stet_text_callback on_text;   /* may be NULL; non-zero ends the reply */
  stet_token_callback on_token; /* may be NULL; non-zero ends the reply after this token */
  stet_speculator* speculator;  /* NULL: no speculation */
} stet_generate_options;

enum {
  STET_STOP_EOS = 1,     /* a stop token was drawn */
  STET_STOP_STRING = 2,  /* a stop string was completed */
  STET_STOP_LENGTH = 3,  /* max_tokens, or the session is full; the reply stays open */
  STET_STOP_CALLBACK = 4 /* a callback returned non-zero; the reply stays open */
};

typedef struct stet_reply { /* freed with stet_reply_free() */
  const int32_t* ids;       /* [id_count], drawn in this call, including a stop token */
  size_t id_count;
  stet_text text;             /* their text, without special tokens and stop strings */
  int32_t stop;               /* STET_STOP_... */
  uint64_t drafted, accepted; /* drafted tokens that were processed, and those that were drawn */
} stet_reply;
/* Frees a reply. */
STET_API void stet_reply_free(stet_reply* reply);

/* Generates a reply, or continues an open one. The tokenizer may be NULL: the reply then has no
 * text, and stop strings are an error. If a callback in C++ throws, or the call fails between two
 * tokens, the tokens drawn so far stay in the session. */
STET_API stet_status stet_session_generate(stet_session* session, const stet_tokenizer* tokenizer,
                                           const stet_generate_options* options, stet_reply** reply,
                                           stet_error** error);
typedef struct stet_batch_reply {
  stet_session* session;                /* its own sampling, stops and interventions apply */
  const stet_generate_options* options; /* for this session; NULL: all defaults */
} stet_batch_reply;
/* Generates a reply of each session in shared passes, with bit for bit the results of
 * separate calls. All sessions must have the same model and contract, and each may occur once.
 * replies: [count], each new.
 *
 * captures: [count], each new, of the drawn tokens, as in stet_session_capture(); may be NULL if
 * there are no points. On failure there are none, and tokens drawn so far stay in the sessions. */
STET_API stet_status stet_batch_generate(const stet_batch_reply* entries, size_t count,
                                         const stet_tokenizer* tokenizer, const char* const* points,
                                         size_t point_count, stet_capture** captures,
                                         stet_reply** replies, stet_error** error);
/* Closes an open reply. text: new, the end of its text that was held back. */
STET_API stet_status stet_session_end_reply(stet_session* session, const stet_tokenizer* tokenizer,
                                            char** text, size_t* size, stet_error** error);

/* Draws tokens from logits, without a session. Holds scratch memory, and the tokens given to
 * stet_sampler_set_drawn(). */
typedef struct stet_sampler stet_sampler;
/* Creates a sampler for logits of this size. */
STET_API stet_status stet_sampler_new(int32_t vocab_size, stet_sampler** sampler,
                                      stet_error** error);
/* Frees a sampler. */
STET_API void stet_sampler_free(stet_sampler* sampler);
/* Sets the tokens of the reply so far, which frequency and presence penalties count from now on. A
 * new sampler has none. */
STET_API stet_status stet_sampler_set_drawn(stet_sampler* sampler, const int32_t* ids, size_t count,
                                            stet_error** error);
/* Draws the token for `position`. logits: [vocab_size], finite or -inf. previous: tokens that the
 * repetition penalty applies to. */
STET_API stet_status stet_sampler_sample(stet_sampler* sampler, const stet_sampling* sampling,
                                         const float* logits, size_t count, const int32_t* previous,
                                         size_t previous_count, uint64_t position, int32_t* id,
                                         stet_error** error);
/* Writes the distribution that a token is drawn from to `out`, [count] like the logits. */
STET_API stet_status stet_sampler_probabilities(stet_sampler* sampler,
                                                const stet_sampling* sampling, const float* logits,
                                                size_t count, const int32_t* previous,
                                                size_t previous_count, float* out,
                                                stet_error** error);
/* Returns the natural logarithm of a token's probability under the softmax of the logits. */
STET_API stet_status stet_log_probability(const float* logits, size_t count, int32_t id,
                                          double* result, stet_error** error);

/* ---- Scoring -------------------------------------------------------------------------------- */

/* scores ids[begin] .. ids[count-1], each given all tokens before it */
typedef struct stet_score_request {
  const int32_t* ids;
  size_t count, begin;
} stet_score_request;

typedef struct stet_token_score {
  double log_probability; /* natural logarithm, as in stet_log_probability() */
  int32_t id;
  int32_t best; /* the most probable token at this place; among equals the lowest id */
} stet_token_score;

typedef struct stet_score_options {
  size_t struct_size;
  size_t batch; /* maximal number of texts processed together; 0: 16. Does not change bits */
} stet_score_options;

/* Receives the scores of requests[index], [count]. Valid during the call. */
typedef int32_t (*stet_score_callback)(void* context, size_t index, const stet_token_score* tokens,
                                       size_t count);

/* Scores each request after the tokens of the session, which does not change. Common beginnings of
 * requests are processed once. on_score is called once for each, in any order. If it returns
 * non-zero, the call ends with STET_ERROR_CANCELED.
 *
 * A request with begin 0 requires a session with tokens. Arguments are checked before anything is
 * computed. */
STET_API stet_status stet_session_score(const stet_session* session,
                                        const stet_score_request* requests, size_t count,
                                        const stet_score_options* options,
                                        stet_score_callback on_score, void* context,
                                        stet_error** error);

/* ---- Snapshots ------------------------------------------------------------------------------ */

typedef struct stet_snapshot stet_snapshot; /* a saved session, in a file or in memory */

enum {
  STET_FORM_FULL = 0,  /* everything */
  STET_FORM_DELTA = 1, /* keys and values that its parent lacks */
  STET_FORM_RECIPE = 2 /* no keys and values: they are recomputed and proved */
};

enum {
  STET_SAVE_WITH_WEIGHTS = 1,  /* include the model's files */
  STET_SAVE_WITH_TOKENIZER = 2 /* include the tokenizer's files */
};

typedef struct stet_save_options {
  size_t struct_size;
  uint64_t flags;
  const stet_snapshot* parent; /* required for STET_FORM_DELTA, otherwise NULL */
  int64_t threads;
  int64_t mode;           /* permissions of a new file, less the umask; 0: 0600 */
  int32_t form, compress; /* compress: zlib level 1 .. 9; 0: uncompressed, can be mapped */
} stet_save_options;

/* Saves the session to `path`. The file is replaced atomically: on failure it is what it was
 * before. The exception is an error with field "durability": the file is then the new snapshot, but
 * a power loss may undo it. The tokenizer may be NULL; its fingerprint is saved. digests may be
 * NULL. */
STET_API stet_status stet_session_save(stet_session* session, const stet_tokenizer* tokenizer,
                                       const char* path, const stet_save_options* options,
                                       stet_digests* digests, stet_error** error);

/* Like stet_session_save(), to memory: data is new, [size], for stet_snapshot_open_bytes(). Flags
 * are refused, and `mode` is not used. */
STET_API stet_status stet_session_save_bytes(stet_session* session, const stet_tokenizer* tokenizer,
                                             const stet_save_options* options, void** data,
                                             size_t* size, stet_digests* digests,
                                             stet_error** error);

/* Opens a snapshot and checks everything but keys and values, which stay in the file until they are
 * used. parent: the file that a delta was made from; if NULL, it is searched for in the
 * snapshot's directory when needed. STET_ERROR_ARGUMENT: the snapshot is not a delta. */
STET_API stet_status stet_snapshot_open(const char* path, const char* parent,
                                        stet_snapshot** snapshot, stet_error** error);
/* Opens a snapshot in memory. The bytes are lent until release(context); sessions restored from it
 * do not need them. Errors report `name` as the file; no file is opened. A delta needs
 * stet_snapshot_open_bytes_over(). */
STET_API stet_status stet_snapshot_open_bytes(const void* data, size_t size, const char* name,
                                              stet_release_callback release, void* context,
                                              stet_snapshot** snapshot, stet_error** error);
/* Like stet_snapshot_open_bytes(), for a delta. parent: the snapshot that it was made from, which may
 * be freed; if it is a delta itself, its own parents are used. STET_ERROR_ARGUMENT: the snapshot is
 * not a delta. */
STET_API stet_status stet_snapshot_open_bytes_over(const void* data, size_t size, const char* name,
                                                   const stet_snapshot* parent,
                                                   stet_release_callback release, void* context,
                                                   stet_snapshot** snapshot, stet_error** error);
/* Frees a snapshot. */
STET_API void stet_snapshot_free(stet_snapshot* snapshot);

typedef struct stet_snapshot_info {
  size_t struct_size;
  /* Borrowed. */
  const char* path;
  const char* contract_name;
  const char* architecture;
  const char* config; /* the model's shape, as one line of JSON */
  const char* model_fingerprint;
  const char* tokenizer_fingerprint; /* may be "" */
  const char* checkpoint;            /* name of the model's directory */
  const char* parent_id;             /* of a delta, if known; otherwise "" */
  const char* parent_file;           /* its name at that time, or "" */
  uint64_t file_size;
  uint64_t stored_kv_bytes; /* keys and values in this file, compressed or not */
  int64_t positions, capacity;
  int64_t layers, kv_heads, head_dim;
  int32_t form, format_version;
  int32_t contract; /* STET_CONTRACT_DEFAULT: unknown to this library */
  int32_t contract_version;
  int32_t kv_type;
  int32_t has_logits, has_weights, has_tokenizer; /* 0 or 1 */
  size_t messages;                                /* see stet_snapshot_message() */
  size_t prunes, edits;
} stet_snapshot_info;
/* Fills `info`. Its strings are borrowed. */
STET_API stet_status stet_snapshot_get_info(const stet_snapshot* snapshot, stet_snapshot_info* info,
                                            stet_error** error);
/* Returns the digests stored in the file; stet_snapshot_check() verifies them. */
STET_API stet_status stet_snapshot_get_digests(const stet_snapshot* snapshot, stet_digests* digests,
                                               stet_error** error);
/* Returns the tokens: borrowed, [count]. */
STET_API stet_status stet_snapshot_tokens(const stet_snapshot* snapshot, const int32_t** ids,
                                          size_t* count, stet_error** error);
/* Returns the logits: borrowed, [vocab_size]; NULL for a recipe and if there are no tokens. */
STET_API stet_status stet_snapshot_logits(const stet_snapshot* snapshot, const float** logits,
                                          size_t* count, stet_error** error);

typedef struct stet_check_report {
  size_t struct_size;
  uint64_t blocks; /* blocks of keys and values checked, including those of parents */
  uint64_t files;  /* files of a self-contained snapshot checked */
} stet_check_report;
/* Verifies, without a model, that every byte is as written. Compressed blocks are verified by the
 * bytes that they expand to. On STET_ERROR_FORMAT, the error names the first damage. report may be
 * NULL. */
STET_API stet_status stet_snapshot_check(const stet_snapshot* snapshot, int32_t threads,
                                         stet_check_report* report, stet_error** error);

/* Load the model or the tokenizer that a self-contained snapshot contains. */
STET_API stet_status stet_snapshot_load_model(const stet_snapshot* snapshot,
                                              const stet_model_options* options, stet_model** model,
                                              stet_error** error);
STET_API stet_status stet_snapshot_load_tokenizer(const stet_snapshot* snapshot,
                                                  stet_tokenizer** tokenizer, stet_error** error);

enum {
  STET_RESTORE_IN_MEMORY = 1, /* copy the blocks instead of mapping the file */
  STET_RESTORE_CHECK = 2,     /* check all blocks now instead of before their first use */
  STET_RESTORE_HEAL = 4,      /* recompute damaged blocks */
  STET_RESTORE_TRUST = 8,     /* accept blocks unchecked, even damaged; excludes CHECK and HEAL */
  STET_RESTORE_REPLAY = 16 /* recompute everything, allowing another model, contract or kv_type */
};

typedef struct stet_restore_options {
  size_t struct_size;
  uint64_t flags;
} stet_restore_options;

typedef struct stet_restore_report {
  size_t struct_size;
  int64_t reused, recomputed; /* tokens */
  int64_t healed;             /* blocks */
  int64_t checked;            /* 1: every digest was compared; 0: deferred to first use */
} stet_restore_report;

/* Creates a session equal to the saved one. STET_ERROR_MISMATCH lists all differences of model,
 * tokenizer or contract. The tokenizer may be NULL. report may be NULL. */
STET_API stet_status stet_snapshot_restore(const stet_snapshot* snapshot, const stet_model* model,
                                           const stet_tokenizer* tokenizer,
                                           const stet_session_options* options,
                                           const stet_restore_options* how,
                                           stet_restore_report* report, stet_session** session,
                                           stet_error** error);

typedef struct stet_convert_options {
  size_t struct_size;
  const stet_prune_options* prune; /* NULL: nothing is pruned */
  int64_t capacity;                /* 0: unchanged */
  int64_t kv_type; /* STET_KV_DEFAULT: unchanged; another type is an edit of the state */
} stet_convert_options;

/* Writes the state in another form, pruned, rounded, or with another capacity. Needs no model, but
 * needs keys and values, which a recipe lacks. Files in a self-contained snapshot are copied.
 * pruned (a number of positions) and digests may be NULL. */
STET_API stet_status stet_snapshot_convert(const stet_snapshot* snapshot, const char* path,
                                           const stet_convert_options* options,
                                           const stet_save_options* save, int64_t* pruned,
                                           stet_digests* digests, stet_error** error);

/* ---- Verifying and comparing ---------------------------------------------------------------- */

typedef struct stet_difference { /* freed with stet_difference_free(), unless borrowed */
  const char* text;              /* "position 70, layer 1, key, head 0, element 3: expected ..." */
  const char* where;             /* the first part of text */
  const char* what;              /* "token", "key", "value", "logit", "visibility", ... */
  const char* expected;
  const char* found;
  int64_t position, layer, head, element; /* -1: not applicable */
  double expected_number, found_number;   /* NaN if not numbers */
} stet_difference;
/* Frees a difference that is not borrowed. */
STET_API void stet_difference_free(stet_difference* difference);

enum { STET_VERIFY_BISECT = 1 }; /* compare digests of each layer of each block */

typedef struct stet_verify_options {
  size_t struct_size;
  uint64_t flags;
} stet_verify_options;

typedef struct stet_verify_report {
  size_t struct_size;
  int64_t tokens;     /* tokens processed again */
  int64_t blocks, of; /* blocks that tokens determine and that were compared; of all */
  int64_t by_digests; /* of those, compared by digest, entirely or in dropped layers */
  int64_t logits;     /* 1: the last token's logits equal the recomputed ones; else 0 */
  int64_t whole;      /* 1: the entire state was proved; else 0 */
  int64_t position;   /* from here on tokens do not determine the state; -1: no limit */
  char reason[256];   /* the reason, or "" */
} stet_verify_report;

/* Recomputes a snapshot's state from its tokens, as far as they determine it, and compares.
 * difference: the first difference in the file, NULL if there is none. The report then says how
 * much was proved: 0 blocks if edits leave none that the tokens determine. report may be NULL. */
STET_API stet_status stet_snapshot_verify(const stet_snapshot* snapshot, const stet_model* model,
                                          const stet_session_options* options,
                                          const stet_verify_options* how,
                                          stet_verify_report* report, stet_difference** difference,
                                          stet_error** error);
/* Like stet_snapshot_verify(), for a session. */
STET_API stet_status stet_session_verify(stet_session* session, stet_difference** difference,
                                         stet_error** error);
/* Like stet_session_verify(), with a report, which may be NULL. */
STET_API stet_status stet_session_verify_with_report(stet_session* session,
                                                     stet_verify_report* report,
                                                     stet_difference** difference,
                                                     stet_error** error);

/* Returns the first place where `found` differs from `expected`; NULL if they are equal. Numbers
 * are equal if their bits are or, with tolerance > 0, if they differ by at most tolerance x max(1,
 * |expected|). */
STET_API stet_status stet_session_first_difference(stet_session* expected, stet_session* found,
                                                   double tolerance, stet_difference** difference,
                                                   stet_error** error);

typedef struct stet_comparison stet_comparison;
/* Compares two sessions part by part. *comparison is a new handle. */
STET_API stet_status stet_session_compare(stet_session* a, stet_session* b,
                                          stet_comparison** comparison, stet_error** error);
/* Compares the state that a session's tokens, prunes and interventions give (a) with the session
 * (b). The difference is the effect of edits. */
STET_API stet_status stet_session_compare_truth(stet_session* session, stet_comparison** comparison,
                                                stet_error** error);
/* Compares two snapshots part by part. *comparison is a new handle. */
STET_API stet_status stet_snapshot_compare(const stet_snapshot* a, const stet_snapshot* b,
                                           stet_comparison** comparison, stet_error** error);
/* Frees a comparison. */
STET_API void stet_comparison_free(stet_comparison* comparison);

typedef struct stet_comparison_info {
  size_t struct_size;
  size_t parts, layers;
  int64_t equal;           /* 1: everything that was compared is equal */
  int64_t common_tokens;   /* equal tokens, from the first on */
  int64_t equal_positions; /* positions with equal keys and values, from the first on */
  /* Kullback-Leibler divergence of the next token's distributions, in nats; NaN if a state has no
   * logits */
  double a_from_b, b_from_a;
} stet_comparison_info;
/* Fills `info`. */
STET_API stet_status stet_comparison_get_info(const stet_comparison* comparison,
                                              stet_comparison_info* info, stet_error** error);

typedef struct stet_comparison_part {
  size_t struct_size;
  /* Borrowed. */
  const char* name;                  /* "model", "tokens", "keys", "logits", ... */
  const char* note;                  /* why it was not compared, or "" */
  const stet_difference* difference; /* the first; NULL: none found */
  int64_t compared;                  /* 0: not compared, at least in part */
} stet_comparison_part;
/* Returns part `index` < parts. */
STET_API stet_status stet_comparison_get_part(const stet_comparison* comparison, size_t index,
                                              stet_comparison_part* part, stet_error** error);

typedef struct stet_comparison_layer { /* difference of keys and values */
  size_t struct_size;
  double key_largest, key_rms, value_largest, value_rms;
} stet_comparison_layer;
/* Returns the differences of layer `index` < layers. */
STET_API stet_status stet_comparison_get_layer(const stet_comparison* comparison, size_t index,
                                               stet_comparison_layer* layer, stet_error** error);

/* ---- Conversations -------------------------------------------------------------------------- */

typedef struct stet_message {
  stet_text role; /* "system", "user", "assistant", ... */
  stet_text content;
  stet_text fields;   /* a JSON object of further members for the template, or "" */
  int64_t begin, end; /* position in the transcript; 0 for a new message */
  int32_t drawn;      /* 1: a reply of the model, whose tokens are authoritative */
} stet_message;

/* Return message `index` of a session or a snapshot. Borrowed. */
STET_API stet_status stet_session_message(const stet_session* session, size_t index,
                                          stet_message* message, stet_error** error);
STET_API stet_status stet_snapshot_message(const stet_snapshot* snapshot, size_t index,
                                           stet_message* message, stet_error** error);

typedef struct stet_chat stet_chat; /* a conversation through the checkpoint's chat template */

/* These flags say what special tokens in a message's text are. Without either, the session says it:
 * text in a new session; in a restored one, what its file says. */
enum {
  STET_CHAT_SPECIAL_IN_TEXT = 1, /* they are special tokens */
  STET_CHAT_PLAIN_TEXT = 2       /* they are text; excludes STET_CHAT_SPECIAL_IN_TEXT */
};

typedef struct stet_chat_options { /* empty or 0: as in the session */
  size_t struct_size;
  uint64_t flags;
  stet_text variables;     /* a JSON object for the template (tools, ...); "{}": none */
  stet_text chat_template; /* replaces the tokenizer's */
  int64_t now;             /* time for templates that request it: seconds since 1970 */
} stet_chat_options;

/* Creates a chat on a fork of the session, with its messages. The session stays the caller's and
 * does not change. */
STET_API stet_status stet_chat_new(const stet_session* session, const stet_tokenizer* tokenizer,
                                   const stet_chat_options* options, stet_chat** chat,
                                   stet_error** error);
/* Frees a chat and its session. */
STET_API void stet_chat_free(stet_chat* chat);
/* Creates an independent copy of the chat. */
STET_API stet_status stet_chat_fork(const stet_chat* chat, stet_chat** fork, stet_error** error);
/* Returns the chat's own session, for saving, inspection or other settings. Borrowed; valid until
 * the chat is freed. */
STET_API stet_status stet_chat_session(stet_chat* chat, stet_session** session, stet_error** error);

typedef struct stet_prompt_report { /* tokens of a prompt */
  size_t struct_size;
  int64_t kept;       /* already in the cache and kept */
  int64_t recomputed; /* of earlier messages, processed again after a change before them */
  int64_t added;      /* of new or changed messages */
} stet_prompt_report;

/* Adds a user message and prepares a reply. report may be NULL. */
STET_API stet_status stet_chat_say(stet_chat* chat, const char* text, size_t size,
                                   stet_prompt_report* report, stet_error** error);
/* Replaces the chat's messages by `messages`. Pass drawn ones as stet_chat_message() returned them.
 * Clear `drawn` if you change the content: STET_ERROR_ARGUMENT otherwise. on_progress and report may
 * be NULL. */
STET_API stet_status stet_chat_prompt(stet_chat* chat, const stet_message* messages, size_t count,
                                      stet_progress_callback on_progress, void* context,
                                      stet_prompt_report* report, stet_error** error);
/* Reports what stet_chat_prompt() would keep, recompute and add. */
STET_API stet_status stet_chat_plan(const stet_chat* chat, const stet_message* messages,
                                    size_t count, stet_prompt_report* report, stet_error** error);
/* Generates a reply, or continues one that was cut, as stet_session_generate() does. */
STET_API stet_status stet_chat_reply(stet_chat* chat, const stet_generate_options* options,
                                     stet_reply** reply, stet_error** error);
/* Sets *open to 1 if the last reply was cut and can continue, otherwise 0. */
STET_API stet_status stet_chat_is_open(const stet_chat* chat, int32_t* open, stet_error** error);
/* Closes a reply that was cut. text: new, the end of its text that was held back. */
STET_API stet_status stet_chat_close(stet_chat* chat, char** text, size_t* size,
                                     stet_error** error);
/* Discards the last `turns` user messages and everything after each of them. */
STET_API stet_status stet_chat_rewind(stet_chat* chat, int64_t turns, stet_error** error);
/* Discards the last reply, so that another can be generated. */
STET_API stet_status stet_chat_retry(stet_chat* chat, stet_error** error);
/* Sets the system message, or removes it (""), for the next prompt. */
STET_API stet_status stet_chat_set_system(stet_chat* chat, const char* text, size_t size,
                                          stet_error** error);
/* Returns the number of messages. */
STET_API stet_status stet_chat_message_count(const stet_chat* chat, size_t* count,
                                             stet_error** error);
/* Returns message `index`. Borrowed. */
STET_API stet_status stet_chat_message(const stet_chat* chat, size_t index, stet_message* message,
                                       stet_error** error);

#ifdef __cplusplus
}
#endif

#endif /* STET_C_H */
