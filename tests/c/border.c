/* The boundary of the C interface: versions, NULL for required arguments, sizes of structs,
 * memory. */
#include "check.h"
#include "oracle.h"

/* A call without its arguments is refused, and names the first missing one. */
#define MISSES(call, field) \
  FAILS(call, STET_ERROR_ARGUMENT, field ": expected not NULL, found NULL")

static void versions_and_names(void) {
  CHECK(stet_abi_version() == STET_ABI_VERSION);
  CHECK_TEXT(stet_version(), STET_PROJECT_VERSION);
  char text[32];
  snprintf(text, sizeof text, "%d.%d.%d", STET_VERSION_MAJOR, STET_VERSION_MINOR,
           STET_VERSION_PATCH);
  CHECK_TEXT(stet_version(), text);
  CHECK_TEXT(stet_status_name(STET_OK), "ok");
  CHECK_TEXT(stet_status_name(STET_ERROR_MISMATCH), "mismatch");
  CHECK_TEXT(stet_status_name(STET_ERROR_INTERNAL), "internal");
  CHECK_TEXT(stet_status_name(STET_ERROR_INTERNAL + 1), "unknown");
  CHECK_TEXT(stet_status_name(-1), "unknown");
  CHECK_TEXT(stet_isa_name(0), "portable");
  CHECK(stet_isa_name(1000) == NULL);
}

static void null_is_freed(void) {
  stet_free(NULL);
  stet_error_free(NULL);
  stet_model_free(NULL);
  stet_tokenizer_free(NULL);
  stet_text_stream_free(NULL);
  stet_chat_template_free(NULL);
  stet_session_free(NULL);
  stet_reply_free(NULL);
  stet_sampler_free(NULL);
  stet_speculator_free(NULL);
  stet_snapshot_free(NULL);
  stet_difference_free(NULL);
  stet_comparison_free(NULL);
  stet_chat_free(NULL);
}

/* Calls without any arguments, then with outputs only. */
static void models_and_text_need_arguments(void) {
  stet_model* model = NULL;
  stet_model_info info = {.struct_size = sizeof info};
  const char *group = "", *fingerprint = "";
  uint64_t bytes = 1;
  MISSES(stet_model_load(NULL, NULL, NULL, &error), "model");
  MISSES(stet_model_load(NULL, NULL, &model, &error), "directory");
  MISSES(stet_model_load_files(NULL, 0, NULL, NULL, NULL, NULL, NULL, &error), "model");
  MISSES(stet_model_load_files(NULL, 0, NULL, NULL, NULL, NULL, &model, &error), "name");
  MISSES(stet_model_load_files(NULL, 1, "x", NULL, NULL, NULL, &model, &error), "files");
  MISSES(stet_model_get_info(NULL, NULL, &error), "info");
  MISSES(stet_model_get_info(NULL, &info, &error), "model");
  MISSES(stet_model_fingerprint(NULL, 0, NULL, &fingerprint, &error), "group");
  CHECK(fingerprint == NULL);
  MISSES(stet_model_fingerprint(NULL, 0, &group, &fingerprint, &error), "model");
  MISSES(stet_model_pack(NULL, NULL, 0, 0, &error), "directory");
  MISSES(stet_model_pack(TINY, NULL, 0, 0, &error), "output");
  MISSES(stet_model_check_packed(NULL, 0, NULL, &error), "bytes");
  MISSES(stet_model_check_packed(NULL, 0, &bytes, &error), "directory");
  CHECK(bytes == 0);

  stet_tokenizer* tokenizer = NULL;
  stet_tokenizer_info about = {.struct_size = sizeof about};
  int32_t *ids = NULL, id = 5;
  size_t size = 5;
  char* text = NULL;
  stet_text name, source;
  MISSES(stet_tokenizer_load(NULL, NULL, &error), "tokenizer");
  MISSES(stet_tokenizer_load(NULL, &tokenizer, &error), "directory");
  MISSES(stet_tokenizer_load_pre(POCKET_LLAMA, NULL, &tokenizer, &error), "pre_tokenizer");
  MISSES(stet_tokenizer_load_files(NULL, 0, NULL, &tokenizer, &error), "name");
  MISSES(stet_tokenizer_get_info(NULL, &about, &error), "tokenizer");
  MISSES(stet_tokenizer_encode(NULL, "x", 1, NULL, &ids, &size, &error), "tokenizer");
  CHECK(size == 0);
  MISSES(stet_tokenizer_encode(NULL, "x", 1, NULL, &ids, NULL, &error), "count");
  MISSES(stet_tokenizer_decode(NULL, NULL, 0, 0, &text, &size, &error), "tokenizer");
  MISSES(stet_tokenizer_id(NULL, "x", 1, &id, &error), "tokenizer");
  MISSES(stet_tokenizer_piece(NULL, 0, &text, &size, &error), "tokenizer");
  MISSES(stet_tokenizer_is_special(NULL, 0, &id, &error), "tokenizer");
  MISSES(stet_tokenizer_special_token(NULL, 0, &name, &source, &error), "tokenizer");
  MISSES(stet_tokenizer_chat_template(NULL, NULL, &source, &error), "tokenizer");
  stet_text_stream* stream = NULL;
  MISSES(stet_text_stream_new(NULL, 0, &stream, &error), "tokenizer");
  MISSES(stet_text_stream_push(NULL, 0, &name, &error), "stream");
  MISSES(stet_text_stream_finish(NULL, &name, &error), "stream");
  MISSES(stet_text_stream_save(NULL, &text, &size, &error), "stream");
  MISSES(stet_text_stream_restore(NULL, NULL, 0, &error), "stream");
  stet_chat_template* chat = NULL;
  MISSES(stet_chat_template_new(NULL, NULL, 0, &chat, &error), "tokenizer");
  MISSES(stet_chat_template_render(NULL, "[]", 2, NULL, &text, &size, NULL, NULL, &error),
         "chat_template");
}

static void sessions_need_arguments(void) {
  stet_session* session = NULL;
  stet_session_info info = {.struct_size = sizeof info};
  stet_digests digests = {.struct_size = sizeof digests};
  stet_sampling sampling = {.struct_size = sizeof sampling};
  const int32_t* ids = NULL;
  const float* logits = NULL;
  int32_t *own = NULL, id = 1;
  size_t size = 1;
  int64_t pruned = 1;
  char* text = NULL;
  float x[1];
  double p = 1;
  MISSES(stet_session_new(NULL, NULL, NULL, &error), "session");
  MISSES(stet_session_new(NULL, NULL, &session, &error), "model");
  MISSES(stet_session_fork(NULL, &session, &error), "session");
  MISSES(stet_session_get_info(NULL, &info, &error), "session");
  MISSES(stet_session_set_compute(NULL, NULL, &error), "session");
  MISSES(stet_session_append(NULL, NULL, 0, &error), "session");
  MISSES(stet_session_append_watched(NULL, NULL, 0, NULL, &error), "session");
  MISSES(stet_session_tokens(NULL, &ids, &size, &error), "session");
  MISSES(stet_session_transcript(NULL, &own, &size, &error), "session");
  MISSES(stet_session_logits(NULL, &logits, &size, &error), "session");
  MISSES(stet_session_rewind(NULL, 0, &error), "session");
  MISSES(stet_session_prune(NULL, NULL, &pruned, &error), "session");
  MISSES(stet_session_prune_range(NULL, 0, 0, 0, &error), "session");
  MISSES(stet_session_get_key(NULL, 0, 0, 0, x, 1, &error), "session");
  MISSES(stet_session_get_value(NULL, 0, 0, 0, x, 1, &error), "session");
  MISSES(stet_session_set_key(NULL, 0, 0, 0, x, 1, &error), "session");
  MISSES(stet_session_set_value(NULL, 0, 0, 0, x, 1, &error), "session");
  MISSES(stet_session_recurrent_array(NULL, 0, NULL, &error), "array");
  MISSES(stet_session_get_recurrent(NULL, 0, x, 1, &error), "session");
  MISSES(stet_session_set_recurrent(NULL, 0, x, 1, &error), "session");
  MISSES(stet_session_anchor(NULL, 0, NULL, &error), "anchor");
  MISSES(stet_session_keep_anchor(NULL, &error), "session");
  MISSES(stet_session_get_digests(NULL, &digests, &error), "session");
  MISSES(stet_session_block_identities(NULL, &(stet_block_identity*){NULL}, &size, &error),
         "session");
  MISSES(stet_session_take_healed(NULL, &text, &size, &error), "session");
  MISSES(stet_batch_append(NULL, 1, &error), "entries");
  MISSES(stet_batch_capture(NULL, 1, NULL, 0, &(stet_capture*){NULL}, &error), "entries");
  MISSES(stet_batch_capture_with(NULL, 1, NULL, &(stet_capture*){NULL}, &error), "entries");
  MISSES(stet_sampling_init(NULL, &error), "sampling");
  MISSES(stet_session_get_sampling(NULL, &sampling, &error), "session");
  MISSES(stet_session_set_sampling(NULL, &sampling, &error), "session");
  MISSES(stet_session_use_recommended(NULL, &error), "session");
  MISSES(stet_session_stop_ids(NULL, &ids, &size, &error), "session");
  MISSES(stet_session_set_stop_ids(NULL, NULL, 0, &error), "session");
  MISSES(stet_session_stop_string(NULL, 0, &(stet_text){NULL, 0}, &error), "session");
  MISSES(stet_session_set_stop_strings(NULL, NULL, 0, &error), "session");
  MISSES(stet_session_turn(NULL, 0, NULL, &error), "turn");
  MISSES(stet_session_turn(NULL, 0, &(stet_turn){0, 0, 0, 0}, &error), "session");
  MISSES(stet_session_append_prompt(NULL, NULL, 0, &error), "session");
  MISSES(stet_session_generate(NULL, NULL, NULL, &(stet_reply*){NULL}, &error), "session");
  MISSES(stet_session_end_reply(NULL, NULL, &text, &size, &error), "session");
  MISSES(stet_sampler_new(1, NULL, &error), "sampler");
  MISSES(stet_speculator_new(NULL, NULL, NULL, &error), "speculator");
  MISSES(stet_sampler_set_drawn(NULL, NULL, 0, &error), "sampler");
  MISSES(stet_sampler_sample(NULL, &sampling, x, 1, NULL, 0, 0, &id, &error), "sampler");
  MISSES(stet_sampler_probabilities(NULL, &sampling, x, 1, NULL, 0, x, &error), "sampler");
  MISSES(stet_log_probability(NULL, 1, 0, &p, &error), "logits");
  CHECK(id == 0 && p == 0 && size == 0 && pruned == 0);
}

static void snapshots_and_chats_need_arguments(void) {
  stet_snapshot* snapshot = NULL;
  stet_session* session = NULL;
  stet_snapshot_info info = {.struct_size = sizeof info};
  stet_digests digests = {.struct_size = sizeof digests};
  stet_difference* difference = NULL;
  stet_comparison* comparison = NULL;
  stet_comparison_info about = {.struct_size = sizeof about};
  stet_comparison_part part = {.struct_size = sizeof part};
  stet_comparison_layer layer = {.struct_size = sizeof layer};
  stet_message message;
  const int32_t* ids = NULL;
  const float* logits = NULL;
  size_t size = 0;
  MISSES(stet_session_save(NULL, NULL, "x", NULL, NULL, &error), "session");
  MISSES(stet_snapshot_open(NULL, NULL, &snapshot, &error), "path");
  MISSES(stet_snapshot_open_bytes(NULL, 1, "x", NULL, NULL, &snapshot, &error), "data");
  MISSES(stet_snapshot_open_bytes("", 0, NULL, NULL, NULL, &snapshot, &error), "name");
  MISSES(stet_snapshot_open_bytes_over(NULL, 1, "x", NULL, NULL, NULL, &snapshot, &error),
         "parent");
  MISSES(stet_session_save_bytes(NULL, NULL, NULL, &(void*){NULL}, &size, NULL, &error), "session");
  MISSES(stet_snapshot_get_info(NULL, &info, &error), "snapshot");
  MISSES(stet_snapshot_get_digests(NULL, &digests, &error), "snapshot");
  MISSES(stet_snapshot_tokens(NULL, &ids, &size, &error), "snapshot");
  MISSES(stet_snapshot_logits(NULL, &logits, &size, &error), "snapshot");
  MISSES(stet_snapshot_message(NULL, 0, &message, &error), "snapshot");
  MISSES(stet_snapshot_check(NULL, 0, NULL, &error), "snapshot");
  MISSES(stet_snapshot_load_model(NULL, NULL, &(stet_model*){NULL}, &error), "snapshot");
  MISSES(stet_snapshot_load_tokenizer(NULL, &(stet_tokenizer*){NULL}, &error), "snapshot");
  MISSES(stet_snapshot_restore(NULL, NULL, NULL, NULL, NULL, NULL, &session, &error), "snapshot");
  MISSES(stet_snapshot_convert(NULL, "x", NULL, NULL, NULL, NULL, &error), "snapshot");
  MISSES(stet_snapshot_verify(NULL, NULL, NULL, NULL, NULL, &difference, &error), "snapshot");
  MISSES(stet_session_verify(NULL, &difference, &error), "session");
  MISSES(stet_session_first_difference(NULL, NULL, 0, &difference, &error), "expected");
  MISSES(stet_session_compare(NULL, NULL, &comparison, &error), "a");
  MISSES(stet_snapshot_compare(NULL, NULL, &comparison, &error), "a");
  MISSES(stet_comparison_get_info(NULL, &about, &error), "comparison");
  MISSES(stet_comparison_get_part(NULL, 0, &part, &error), "comparison");
  MISSES(stet_comparison_get_layer(NULL, 0, &layer, &error), "comparison");

  stet_chat* chat = NULL;
  stet_prompt_report report = {.struct_size = sizeof report};
  int32_t open = 1;
  char* text = NULL;
  MISSES(stet_session_message(NULL, 0, &message, &error), "session");
  MISSES(stet_chat_new(NULL, NULL, NULL, &chat, &error), "session");
  MISSES(stet_chat_fork(NULL, &chat, &error), "chat");
  MISSES(stet_chat_session(NULL, &session, &error), "chat");
  MISSES(stet_chat_say(NULL, "", 0, NULL, &error), "chat");
  MISSES(stet_chat_prompt(NULL, NULL, 0, NULL, NULL, NULL, &error), "chat");
  MISSES(stet_chat_plan(NULL, NULL, 0, NULL, &error), "report");
  MISSES(stet_chat_plan(NULL, NULL, 0, &report, &error), "chat");
  MISSES(stet_chat_reply(NULL, NULL, &(stet_reply*){NULL}, &error), "chat");
  MISSES(stet_chat_is_open(NULL, &open, &error), "chat");
  MISSES(stet_chat_close(NULL, &text, &size, &error), "chat");
  MISSES(stet_chat_rewind(NULL, 1, &error), "chat");
  MISSES(stet_chat_retry(NULL, &error), "chat");
  MISSES(stet_chat_set_system(NULL, "", 0, &error), "chat");
  MISSES(stet_chat_message_count(NULL, &size, &error), "chat");
  MISSES(stet_chat_message(NULL, 0, &message, &error), "chat");
  CHECK(open == 0);
}

static void an_error_has_parts(void) {
  stet_model* model = NULL;
  CHECK(stet_model_load("no/such/\nplace", NULL, &model, &error) == STET_ERROR_IO);
  CHECK(error->kind == STET_ERROR_IO && strncmp(error->file, "no/such/\nplace", 14) == 0);
  CHECK(strchr(error->message, '\n') == NULL && strstr(error->message, "no/such/\\nplace") != NULL);
  CHECK_TEXT(error->field, "");
  CHECK_TEXT(error->found, "nothing of that name");
  CHECK(error->expected[0] != '\0');
  stet_error_free(error);
  error = NULL;
  CHECK(stet_model_load("no/such/place", NULL, &model, NULL) == STET_ERROR_IO);

  /* A NUL in `found` does not truncate it. */
  stet_tokenizer* tokenizer = NULL;
  stet_session* session = NULL;
  OK(stet_model_load(TINY, NULL, &model, &error));
  OK(stet_session_new(model, NULL, &session, &error));
  const stet_text broken = {"a\0b\xFF", 4};
  CHECK(stet_session_set_stop_strings(session, &broken, 1, &error) == STET_ERROR_ARGUMENT);
  CHECK_TEXT(error->found, "a\\x00b\xFF");
  CHECK_TEXT(error->message, "stop[0]: expected UTF-8, found a\\x00b\\xff");
  stet_error_free(error);
  error = NULL;
  stet_session_free(session);
  stet_model_free(model);
  CHECK(tokenizer == NULL);
}

/* Structs of older and of newer versions are accepted. */
static void structs_may_grow(void) {
  stet_model* model = NULL;
  stet_session* session = NULL;
  OK(stet_model_load(TINY, NULL, &model, &error));
  stet_session_options options = {.capacity = 99, .threads = -1};
  FAILS(stet_session_new(model, &options, &session, &error), STET_ERROR_ARGUMENT,
        "options.struct_size: expected the size of the struct, 72, found 0");
  options.struct_size = (size_t)-1;
  CHECK(stet_session_new(model, &options, &session, NULL) == STET_ERROR_ARGUMENT);

  options.struct_size = offsetof(stet_session_options, threads); /* it ends after the capacity */
  OK(stet_session_new(model, &options, &session, &error));
  struct {
    size_t struct_size;
    int64_t size, capacity;
    unsigned char guard[8];
  } old = {offsetof(stet_session_info, floor), 7, 7, {1, 2, 3, 4, 5, 6, 7, 8}};
  static const unsigned char kGuard[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  stet_session_info whole;
  unsigned char grown[sizeof whole + 8];
  memcpy(&whole, &old, sizeof old < sizeof whole ? sizeof old : sizeof whole);
  OK(stet_session_get_info(session, (stet_session_info*)(void*)&old, &error));
  CHECK(old.size == 0 && old.capacity == 99 && memcmp(old.guard, kGuard, 8) == 0);

  memset(grown, 255, sizeof grown);
  whole.struct_size = sizeof grown;
  memcpy(grown, &whole, sizeof(size_t));
  OK(stet_session_get_info(session, (stet_session_info*)(void*)grown, &error));
  memcpy(&whole, grown, sizeof whole);
  CHECK(whole.capacity == 99 && whole.struct_size == sizeof grown);
  for (size_t i = sizeof whole; i < sizeof grown; ++i) CHECK(grown[i] == 0);
  stet_session_free(session);

  struct {
    stet_session_options known;
    int64_t later;
  } newer = {{.struct_size = sizeof newer, .capacity = 98}, 0};
  OK(stet_session_new(model, (const stet_session_options*)(const void*)&newer, &session, &error));
  stet_session_free(session);
  newer.later = 1;
  FAILS(
      stet_session_new(model, (const stet_session_options*)(const void*)&newer, &session, &error),
      STET_ERROR_UNSUPPORTED,
      "options: the caller's struct of 80 bytes sets members beyond the 72 bytes that this library "
      "knows");
  CHECK(session == NULL);
  stet_model_free(model);
}

/* Lets the n-th allocation of the call fail, for n = 0, 1, ..., until the call succeeds. Each
 * failure must give one error and no output. Counts the failures. The error may also be one of
 * capacity, with which a cache reports that it is too large for memory. */
#define REFUSALS(call, count)                        \
  do {                                               \
    stet_status status = STET_ERROR_MEMORY;          \
    for (count = 0;; ++count) {                      \
      refuse_memory(count);                          \
      status = (call);                               \
      refuse_memory(-1);                             \
      if (status == STET_OK) break;                  \
      CHECK(error != NULL && error->kind == status); \
      if (status == STET_ERROR_MEMORY)               \
        CHECK_TEXT(error->message, "out of memory"); \
      else                                           \
        CHECK(status == STET_ERROR_CAPACITY);        \
      stet_error_free(error);                        \
      error = NULL;                                  \
    }                                                \
    CHECK(error == NULL);                            \
  } while (0)

/* Leaves out two libraries that end the process when they get no memory: JSON (nlohmann's
 * destructor allocates), and sentencepiece's encoder, whose unwinding frees unallocated memory.
 * The tokenizer here is therefore a byte-level BPE. */
static void memory_runs_out(void) {
  stet_model* model = NULL;
  stet_tokenizer* tokenizer = NULL;
  stet_session *session = NULL, *fork = NULL;
  stet_chat* chat = NULL;
  stet_reply* reply = NULL;
  OK(stet_model_load(POCKET_LLAMA, NULL, &model, &error));
  OK(stet_tokenizer_load(POCKET_LLAMA, &tokenizer, &error));
  const stet_session_options one = {.struct_size = sizeof one, .threads = 1};
  const int32_t ids[] = {2, 5, 382, 298, 16};
  int32_t* encoded = NULL;
  size_t size = 0;
  int count = 0;
  REFUSALS(stet_session_new(model, &one, &session, &error), count);
  CHECK(count > 1);
  REFUSALS(stet_session_append(session, ids, 5, &error), count);
  CHECK(count > 1);
  stet_session* whole = NULL; /* failures on the way change no bit */
  OK(stet_session_new(model, NULL, &whole, &error));
  OK(stet_session_append(whole, ids, 5, &error));
  stet_difference* difference = NULL;
  OK(stet_session_first_difference(whole, session, 0, &difference, &error));
  CHECK(difference == NULL);
  REFUSALS(stet_session_fork(session, &fork, &error), count);
  CHECK(count > 1);
  REFUSALS(stet_tokenizer_encode(tokenizer, "Hi", 2, NULL, &encoded, &size, &error), count);
  CHECK(count > 1);
  stet_free(encoded);
  const stet_generate_options few = {.struct_size = sizeof few, .max_tokens = 1};
  REFUSALS(stet_session_generate(fork, tokenizer, &few, &reply, &error), count);
  CHECK(count > 1);
  stet_reply_free(reply);
  REFUSALS(stet_chat_new(whole, tokenizer, NULL, &chat, &error), count);
  CHECK(count > 1);
  stet_chat_free(chat);
  stet_session_free(session);
  stet_session_free(whole);
  stet_session_free(fork);
  stet_tokenizer_free(tokenizer);
  stet_model_free(model);
}

int test_border(void) {
  versions_and_names();
  null_is_freed();
  models_and_text_need_arguments();
  sessions_need_arguments();
  snapshots_and_chats_need_arguments();
  an_error_has_parts();
  structs_may_grow();
  if (refuse_memory(-1)) memory_runs_out();
  return 0;
}
