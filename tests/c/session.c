/* Models, sessions and batches through the C interface give the bits of the C++ interface. */
#include "check.h"
#include "oracle.h"

enum { kTokens = 150, kMost = 512 };

static stet_model* model;
static size_t vocab;
static int32_t ids[kTokens];
static float expected[kTokens][kMost]; /* logits after each token, from C++ */

static void load(void) {
  stet_model_info info = {.struct_size = sizeof info};
  OK(stet_model_load(TINY, NULL, &model, &error));
  OK(stet_model_get_info(model, &info, &error));
  CHECK_TEXT(info.family, "gemma3");
  CHECK_TEXT(info.architecture, "Gemma3ForCausalLM");
  CHECK_TEXT(info.source, TINY);
  CHECK(info.layers == 7 && info.kv_heads == 2 && info.head_dim == 16);
  CHECK(info.max_positions == 512 && info.weight_bytes > 0);
  CHECK(info.contract == STET_CONTRACT_F32);
  vocab = (size_t)info.vocab_size;
  CHECK(vocab == 320);

  const char* group = NULL;
  const char* fingerprint = NULL;
  OK(stet_model_fingerprint(model, 0, &group, &fingerprint, &error));
  CHECK_TEXT(group, "embeddings");
  OK(stet_model_fingerprint(model, info.fingerprint_count - 1, &group, &fingerprint, &error));
  CHECK_TEXT(group, "model");
  CHECK_TEXT(fingerprint, info.fingerprint);
  FAILS(stet_model_fingerprint(model, 99, &group, &fingerprint, &error), STET_ERROR_ARGUMENT,
        "index: expected an index below 6, found 99");
  CHECK(group == NULL && fingerprint == NULL);

  for (int i = 0; i < kTokens; ++i) ids[i] = (i * 97 + 13) % 320;
  static float rows[kTokens * 320];
  oracle_logits(TINY, ids, kTokens, rows, kTokens * vocab);
  for (int i = 0; i < kTokens; ++i)
    memcpy(expected[i], rows + (size_t)i * vocab, vocab * sizeof(float));
}

static stet_session* new_session(const stet_session_options* options) {
  stet_session* session = NULL;
  OK(stet_session_new(model, options, &session, &error));
  return session;
}

static stet_session_info info_of(const stet_session* session) {
  stet_session_info info = {.struct_size = sizeof info};
  OK(stet_session_get_info(session, &info, &error));
  return info;
}

/* The logits after `count` tokens equal those of C++. */
static void check_logits(stet_session* session, size_t count) {
  const float* logits = NULL;
  size_t size = 0;
  OK(stet_session_logits(session, &logits, &size, &error));
  CHECK(size == vocab);
  CHECK_FLOATS(logits, expected[count - 1], vocab);
}

static void tokens_are_appended(void) {
  stet_session* session = new_session(NULL);
  stet_session_info info = info_of(session);
  CHECK(info.size == 0 && info.capacity == 512 && info.visible == 0 && info.floor == 0);
  CHECK(info.contract == STET_CONTRACT_F32 && info.kv_type == STET_KV_F32);
  CHECK_TEXT(info.contract_name, "f32");
  CHECK_TEXT(info.isa, "");
  const float* logits = expected[0];
  const int32_t* tokens = ids;
  size_t size = 1;
  OK(stet_session_logits(session, &logits, &size, &error));
  CHECK(logits == NULL && size == 0);
  OK(stet_session_tokens(session, &tokens, &size, &error));
  CHECK(tokens == NULL && size == 0);

  OK(stet_session_append(session, ids, kTokens, &error));
  check_logits(session, kTokens);
  info = info_of(session);
  CHECK(info.size == kTokens && info.visible == kTokens && info.drawn == kTokens);
  OK(stet_session_tokens(session, &tokens, &size, &error));
  CHECK(size == kTokens && memcmp(tokens, ids, sizeof ids) == 0);
  stet_session_free(session);
}

static void how_to_compute_changes_no_bit(void) {
  for (size_t isa = 0; stet_isa_name(isa) != NULL; ++isa) {
    const stet_session_options options = {.struct_size = sizeof options,
                                          .capacity = 200,
                                          .threads = 1 + (int64_t)(isa % 2),
                                          .chunk = 7,
                                          .isa = stet_isa_name(isa)};
    stet_session* session = new_session(&options);
    CHECK_TEXT(info_of(session).isa, options.isa);
    CHECK(info_of(session).capacity == 200 && info_of(session).chunk == 7);
    OK(stet_session_append(session, ids, 70, &error));
    check_logits(session, 70);
    const stet_session_options other = {.struct_size = sizeof other, .chunk = 64};
    OK(stet_session_set_compute(session, &other, &error));
    CHECK_TEXT(info_of(session).isa, "");
    OK(stet_session_append(session, ids + 70, kTokens - 70, &error));
    check_logits(session, kTokens);
    stet_session_free(session);
  }
  stet_session* session = new_session(NULL);
  stet_session_options wrong = {.struct_size = sizeof wrong, .capacity = 3};
  FAILS(stet_session_set_compute(session, &wrong, &error), STET_ERROR_ARGUMENT,
        "capacity: expected 0, since it cannot change, found 3");
  wrong.capacity = 0;
  wrong.kv_type = STET_KV_F16;
  FAILS(stet_session_set_compute(session, &wrong, &error), STET_ERROR_ARGUMENT,
        "kv_type: expected 0, since it cannot change, found 3");
  wrong.kv_type = 0;
  wrong.window_only = 1;
  FAILS(stet_session_set_compute(session, &wrong, &error), STET_ERROR_ARGUMENT,
        "window_only: expected 0, since it cannot change, found 1");
  wrong.window_only = 0;
  wrong.recompute = 1;
  FAILS(stet_session_set_compute(session, &wrong, &error), STET_ERROR_ARGUMENT,
        "recompute: expected 0, since it cannot change, found 1");
  stet_session_free(session);
}

static void wrong_arguments_leave_the_session(void) {
  stet_session* session = NULL;
  stet_session_options options = {.struct_size = sizeof options, .capacity = 513};
  FAILS(stet_session_new(model, &options, &session, &error), STET_ERROR_ARGUMENT,
        "capacity: expected 1 .. 512 (max_position_embeddings), found 513");
  CHECK(session == NULL);
  options.capacity = 0;
  options.anchor_bytes = -2;
  FAILS(stet_session_new(model, &options, &session, &error), STET_ERROR_ARGUMENT,
        "anchor_bytes: expected -1 or more, found -2");
  options.anchor_bytes = 0;
  options.window_only = 1;
  options.checkpoint_every = -2;
  FAILS(stet_session_new(model, &options, &session, &error), STET_ERROR_ARGUMENT,
        "checkpoint_every: expected -1 or more, found -2");
  options.checkpoint_every = 7;
  FAILS(stet_session_new(model, &options, &session, &error), STET_ERROR_ARGUMENT,
        "checkpoint_every: expected 0, or at least 272 positions for a window of 8, found 7");
  options.checkpoint_every = options.window_only = 0;
  options.capacity = 70;
  options.kv_type = 9;
  FAILS(stet_session_new(model, &options, &session, &error), STET_ERROR_ARGUMENT,
        "kv_type: expected one of STET_KV_..., found 9");
  options.kv_type = STET_KV_BF16;
  options.contract = -1;
  FAILS(stet_session_new(model, &options, &session, &error), STET_ERROR_ARGUMENT,
        "contract: expected one of STET_CONTRACT_..., found -1");
  options.contract = STET_CONTRACT_DEFAULT;
  options.threads = 8193;
  FAILS(stet_session_new(model, &options, &session, &error), STET_ERROR_ARGUMENT,
        "threads: expected 0 .. 8192, found 8193");
  options.threads = 0;
  options.kv_type = STET_KV_DEFAULT;
  session = new_session(&options);
  FAILS(stet_session_append(session, ids, 71, &error), STET_ERROR_CAPACITY,
        "tokens: expected at most 70 positions (capacity), found 0 + 71");
  FAILS(stet_session_rewind(session, -1, &error), STET_ERROR_ARGUMENT,
        "size: expected a position in 0..0, found -1");
  FAILS(stet_session_prune_range(session, 2, 1, 0, &error), STET_ERROR_ARGUMENT,
        "begin: expected none: there are no tokens, found none (begin 2, end 1)");
  const stet_prune_options prune = {.struct_size = sizeof prune, .keep_last = -1};
  FAILS(stet_session_prune(session, &prune, &(int64_t){0}, &error), STET_ERROR_ARGUMENT,
        "keep_last: expected 0 or more, found -1");
  const int32_t strange[] = {3, 320};
  FAILS(stet_session_append(session, strange, 2, &error), STET_ERROR_ARGUMENT,
        "ids[1]: expected a token id in 0..319, found 320");
  CHECK(info_of(session).size == 0);
  OK(stet_session_append(session, ids, 70, &error));
  check_logits(session, 70);
  stet_session_free(session);
}

static void dropped_windows_are_recomputed_on_demand(void) {
  int32_t many[400];
  for (size_t i = 0; i < 400; ++i) many[i] = ids[i % kTokens];
  stet_session_options options = {.struct_size = sizeof options, .window_only = 1};
  stet_session *refusing = new_session(&options), *whole = new_session(NULL), *spliced = NULL;
  options.recompute = 1;
  stet_session* session = new_session(&options);
  OK(stet_session_append(refusing, many, 400, &error));
  OK(stet_session_append(session, many, 400, &error));
  OK(stet_session_append(whole, many, 400, &error));
  float x[16], y[16];
  FAILS_WITH(stet_session_get_key(refusing, 1, 0, 3, x, 16, &error), STET_ERROR_ARGUMENT,
             "tokens again, found block 0, which was dropped");
  OK(stet_session_get_key(session, 1, 0, 3, x, 16, &error));
  OK(stet_session_get_key(whole, 1, 0, 3, y, 16, &error));
  CHECK_FLOATS(x, y, 16);
  stet_view* view = NULL;
  const void* data = NULL;
  size_t size = 0;
  OK(stet_session_view_block(session, 1, &view, &data, &size, &error));
  stet_view_free(view);
  const stet_cut cuts[] = {{session, 0, 300}, {session, 100, 150}};
  OK(stet_session_splice(cuts, 2, &spliced, &error));
  OK(stet_session_rewind(spliced, 200, &error));
  stet_session_free(spliced);
  stet_session_free(refusing);
  stet_session_free(session);
  stet_session_free(whole);
}

static void forks_and_rewinds_are_exact(void) {
  stet_session* session = new_session(NULL);
  stet_session* fork = NULL;
  OK(stet_session_append(session, ids, 100, &error));
  OK(stet_session_fork(session, &fork, &error));
  OK(stet_session_append(fork, ids, 9, &error));
  check_logits(session, 100);
  OK(stet_session_rewind(fork, 80, &error));
  check_logits(fork, 80);
  OK(stet_session_append(fork, ids + 80, 70, &error));
  check_logits(fork, kTokens);
  stet_session_free(session);
  check_logits(fork, kTokens);
  FAILS_WITH(stet_session_rewind(fork, 151, &error), STET_ERROR_ARGUMENT, "found 151");
  check_logits(fork, kTokens);
  stet_session_free(fork);
}

static void positions_are_pruned(void) {
  stet_session* session = new_session(NULL);
  OK(stet_session_append(session, ids, 100, &error));
  int64_t pruned = -1;
  stet_prune_options options = {.struct_size = sizeof options, .keep_last = 40, .sinks = 4};
  OK(stet_session_prune(session, &options, &pruned, &error));
  stet_session_info info = info_of(session);
  CHECK(pruned == 56 && info.size == 100 && info.visible == 44 && info.prunes == 1);
  CHECK(info.floor == 100);
  FAILS_WITH(stet_session_rewind(session, 50, &error), STET_ERROR_ARGUMENT, "found 50");

  stet_session* shifted = new_session(NULL);
  OK(stet_session_append(shifted, ids, 100, &error));
  options.flags = STET_PRUNE_SHIFT;
  OK(stet_session_prune(shifted, &options, &pruned, &error));
  info = info_of(shifted);
  CHECK(pruned == 56 && info.size == 44 && info.visible == 44 && info.drawn == 100);
  int32_t* transcript = NULL;
  size_t count = 0;
  OK(stet_session_transcript(shifted, &transcript, &count, &error));
  CHECK(count == 100 && memcmp(transcript, ids, 100 * sizeof *ids) == 0);
  stet_free(transcript);

  /* Pruning the same positions as a range gives the same state. */
  stet_session* range = new_session(NULL);
  OK(stet_session_append(range, ids, 100, &error));
  OK(stet_session_prune_range(range, 4, 60, 1, &error));
  stet_digests a = {.struct_size = sizeof a}, b = a, c = a;
  OK(stet_session_get_digests(shifted, &a, &error));
  OK(stet_session_get_digests(range, &b, &error));
  OK(stet_session_get_digests(session, &c, &error));
  CHECK(memcmp(&a, &b, sizeof a) == 0);
  CHECK(strcmp(a.id, c.id) != 0 && strncmp(a.id, "sha256:", 7) == 0 && strlen(a.id) == 71);
  CHECK(strncmp(a.state, "xxh3:", 5) == 0 && strlen(a.state) == 37);
  stet_session_free(session);
  stet_session_free(shifted);
  stet_session_free(range);
}

static void keys_and_values_are_read_and_set(void) {
  stet_session* session = new_session(NULL);
  OK(stet_session_append(session, ids, 80, &error));
  float key[16], value[16], found[16], set[16];
  OK(stet_session_get_key(session, 2, 1, 70, key, 16, &error));
  OK(stet_session_get_value(session, 2, 1, 70, value, 16, &error));
  CHECK(memcmp(key, value, sizeof key) != 0);
  for (int i = 0; i < 16; ++i) set[i] = (float)i / 8 - 1;
  OK(stet_session_set_key(session, 2, 1, 70, set, 16, &error));
  OK(stet_session_get_key(session, 2, 1, 70, found, 16, &error));
  CHECK_FLOATS(found, set, 16);
  OK(stet_session_get_value(session, 2, 1, 70, found, 16, &error));
  CHECK_FLOATS(found, value, 16);
  OK(stet_session_set_value(session, 2, 0, 5, set, 16, &error));
  OK(stet_session_get_value(session, 2, 0, 5, found, 16, &error));
  CHECK_FLOATS(found, set, 16);
  CHECK(info_of(session).edits == 2);
  FAILS(stet_session_get_key(session, 7, 0, 0, found, 16, &error), STET_ERROR_ARGUMENT,
        "layer: expected 0..6, found 7");
  FAILS(stet_session_get_value(session, 0, 2, 0, found, 16, &error), STET_ERROR_ARGUMENT,
        "head: expected 0..1, found 2");
  FAILS(stet_session_get_key(session, 0, 0, 80, found, 16, &error), STET_ERROR_ARGUMENT,
        "position: expected 0..79, found 80");
  FAILS(stet_session_get_key(session, 0, 0, 0, found, 15, &error), STET_ERROR_ARGUMENT,
        "x: expected 16 numbers, found 15");
  FAILS(stet_session_set_key(session, 0, 0, 0, set, 15, &error), STET_ERROR_ARGUMENT,
        "key: expected 16 numbers, found 15");

  /* An edited block is identified by its bytes, and so is the block after it. */
  OK(stet_session_append(session, ids + 80, 60, &error));
  stet_block_identity* blocks = NULL;
  size_t count = 0;
  OK(stet_session_block_identities(session, &blocks, &count, &error));
  CHECK(count == 2 && blocks[0].replayable == 0 && blocks[1].replayable == 0);
  stet_free(blocks);
  stet_session_free(session);
}

static void blocks_are_named_by_what_made_them(void) {
  stet_session* a = new_session(NULL);
  stet_session* b = new_session(NULL);
  OK(stet_session_append(a, ids, kTokens, &error));
  OK(stet_session_append(b, ids, 64, &error));
  stet_block_identity *of_a = NULL, *of_b = NULL;
  size_t count_a = 0, count_b = 0;
  OK(stet_session_block_identities(a, &of_a, &count_a, &error));
  OK(stet_session_block_identities(b, &of_b, &count_b, &error));
  CHECK(count_a == 2 && count_b == 1 && of_a[0].replayable == 1);
  CHECK(memcmp(of_a[0].id, of_b[0].id, 32) == 0 && memcmp(of_a[1].id, of_b[0].id, 32) != 0);
  stet_free(of_a);
  stet_free(of_b);
  char* healed = NULL;
  size_t size = 1;
  OK(stet_session_take_healed(a, &healed, &size, &error));
  CHECK(size == 0);
  CHECK_TEXT(healed, "");
  stet_free(healed);
  stet_session_free(a);
  stet_session_free(b);
}

struct watched {
  stet_session* session;
  int64_t positions, hidden, done, stop_at;
};

static int32_t see_logits(void* context, int64_t position, const float* logits, size_t count) {
  struct watched* w = context;
  CHECK(count == vocab && position == w->positions);
  CHECK_FLOATS(logits, expected[position], vocab);
  ++w->positions;
  return position == w->stop_at;
}

static int32_t see_hidden(void* context, size_t index, int64_t position, const float* hidden,
                          size_t count) {
  struct watched* w = context;
  CHECK(index <= 7 && position < kTokens && hidden != NULL && count == 64);
  ++w->hidden;
  return 0;
}

static int32_t see_progress(void* context, int64_t done) {
  struct watched* w = context;
  w->done = done;
  /* A session that is appending can be read, but not changed. */
  FAILS_WITH(stet_session_rewind(w->session, 0, &error), STET_ERROR_ARGUMENT, "");
  return 0;
}

static void an_append_is_watched(void) {
  stet_session* session = new_session(NULL);
  struct watched seen = {session, 0, 0, 0, -1};
  stet_watch watch = {.struct_size = sizeof watch,
                      .context = &seen,
                      .on_logits = see_logits,
                      .on_hidden = see_hidden,
                      .on_progress = see_progress};
  OK(stet_session_append_watched(session, ids, kTokens, &watch, &error));
  CHECK(seen.positions == kTokens && seen.hidden == 8 * kTokens && seen.done == kTokens);
  int64_t cost = -1;
  OK(stet_session_rewind_cost(session, 60, &cost, &error));
  CHECK(cost == 0); /* all positions are held, so nothing is processed again */
  FAILS_WITH(stet_session_rewind_cost(NULL, 60, &cost, &error), STET_ERROR_ARGUMENT, "found NULL");
  FAILS(stet_session_rewind_cost(session, -1, &cost, &error), STET_ERROR_ARGUMENT,
        "size: expected a position in 0..150, found -1");
  FAILS(stet_session_rewind_cost(session, 151, &cost, &error), STET_ERROR_ARGUMENT,
        "size: expected a position in 0..150, found 151");
  OK(stet_session_rewind(session, 60, &error));

  seen.positions = 60;
  seen.stop_at = 100;
  FAILS(stet_session_append_watched(session, ids + 60, 90, &watch, &error), STET_ERROR_CANCELED,
        "callback: the caller cancelled the call: its callback did not return 0");
  CHECK(info_of(session).size == 60);
  check_logits(session, 60);

  const stet_watch throwing = {.struct_size = sizeof throwing, .on_progress = throwing_progress};
  FAILS(stet_session_append_watched(session, ids + 60, 9, &throwing, &error), STET_ERROR_INTERNAL,
        "exception: unexpected, of a type that is not std::exception");
  CHECK(info_of(session).size == 60);
  OK(stet_session_append_watched(session, ids + 60, 9, NULL, &error));
  check_logits(session, 69);
  stet_session_free(session);
}

typedef struct Points {
  size_t rows[2];
  float last[4096]; /* a row of the residual stream */
  size_t width;
} Points;

static int32_t see_point(void* context, size_t index, int64_t position, const float* row,
                         size_t count) {
  Points* seen = context;
  CHECK(position == (int64_t)seen->rows[index]++);
  if (index == 1) {
    CHECK(count <= 4096);
    memcpy(seen->last, row, count * sizeof *row);
    seen->width = count;
  }
  return 0;
}

static void points_are_seen_and_changed(void) {
  stet_session* session = new_session(NULL);
  static const char* const nowhere[] = {"blocks.99.nope"};
  const stet_watch unseen = {.struct_size = sizeof unseen, .points = nowhere, .point_count = 1};
  FAILS(stet_session_append_watched(session, ids, 3, &unseen, &error), STET_ERROR_ARGUMENT,
        "on_point: expected a function that receives the points, found NULL");
  const int64_t position = -5;
  const stet_watch of_state = {
      .struct_size = sizeof of_state, .state_positions = &position, .state_position_count = 1};
  FAILS(stet_session_append_watched(session, ids, 3, &of_state, &error), STET_ERROR_ARGUMENT,
        "on_point: expected a function that receives the points, found NULL");
  static Points seen;
  char last_layer[64];
  stet_model_info info = {.struct_size = sizeof info};
  OK(stet_model_get_info(model, &info, &error));
  snprintf(last_layer, sizeof last_layer, "blocks.%lld.hook_resid_post",
           (long long)info.layers - 1);
  const char* const names[] = {"blocks.0.attn.hook_pattern", last_layer};
  const stet_watch watch = {.struct_size = sizeof watch,
                            .context = &seen,
                            .points = names,
                            .point_count = 2,
                            .on_point = see_point};
  OK(stet_session_append_watched(session, ids, kTokens, &watch, &error));
  CHECK(seen.rows[0] == kTokens && seen.rows[1] == kTokens);
  float* lens = NULL;
  size_t count = 0;
  OK(stet_session_lens(session, seen.last, 1, &lens, &count, &error));
  const float* logits = NULL;
  size_t vocab = 0;
  OK(stet_session_logits(session, &logits, &vocab, &error));
  CHECK(count == vocab && memcmp(lens, logits, count * sizeof *lens) == 0);
  stet_free(lens);

  stet_session* steered = new_session(NULL);
  stet_intervention change = {.struct_size = sizeof change,
                              .point = last_layer,
                              .op = STET_SET,
                              .values = seen.last,
                              .value_count = seen.width};
  OK(stet_session_attach(steered, &change, &error));
  CHECK(info_of(steered).interventions == 1);
  OK(stet_session_append(steered, ids, 5, &error));
  const float* same = NULL;
  OK(stet_session_logits(steered, &same, &vocab, &error));
  CHECK(memcmp(same, logits, vocab * sizeof *same) == 0);
  change.point = "hook_nowhere";
  FAILS_WITH(stet_session_attach(steered, &change, &error), STET_ERROR_ARGUMENT,
             "found hook_nowhere");
  change.point = last_layer;
  change.value_count = 3;
  FAILS_WITH(stet_session_attach(steered, &change, &error), STET_ERROR_ARGUMENT, "found 3");
  change.value_count = SIZE_MAX;
  FAILS(stet_session_attach(steered, &change, &error), STET_ERROR_ARGUMENT,
        "values: expected at most 2305843009213693951, found 18446744073709551615");
  change.value_count = 3;
  change.op = 9;
  FAILS_WITH(stet_session_attach(steered, &change, &error), STET_ERROR_ARGUMENT, "found 9");
  FAILS_WITH(stet_session_lens(session, NULL, 1, &lens, &count, &error), STET_ERROR_ARGUMENT,
             "found NULL");
  for (int i = 1; i < 64; i *= 2) {
    FAILS_WITH(stet_session_lens(session, seen.last, SIZE_MAX / (size_t)i, &lens, &count, &error),
               STET_ERROR_ARGUMENT, "");
    CHECK(lens == NULL && count == 0);
  }
  stet_session_free(session);
  stet_session_free(steered);
}

static void a_batch_gives_the_bits_of_each_alone(void) {
  stet_session* a = new_session(NULL);
  stet_session* b = new_session(NULL);
  stet_session* alone = new_session(NULL);
  OK(stet_session_append(a, ids, 30, &error));
  const stet_batch_entry entries[] = {{a, ids + 30, 1}, {b, ids, kTokens}};
  OK(stet_batch_append(entries, 2, &error));
  check_logits(a, 31);
  check_logits(b, kTokens);
  OK(stet_session_append(alone, ids, 31, &error));
  stet_digests x = {.struct_size = sizeof x}, y = x;
  OK(stet_session_get_digests(a, &x, &error));
  OK(stet_session_get_digests(alone, &y, &error));
  CHECK(memcmp(&x, &y, sizeof x) == 0);

  const stet_batch_entry twice[] = {{a, ids, 1}, {a, ids, 1}};
  FAILS_WITH(stet_batch_append(twice, 2, &error), STET_ERROR_ARGUMENT, "");
  const stet_batch_entry none[] = {{a, ids, 1}, {NULL, ids, 1}};
  FAILS(stet_batch_append(none, 2, &error), STET_ERROR_ARGUMENT,
        "entries.session: expected not NULL, found NULL");
  const stet_batch_entry empty[] = {{a, ids, 1}, {b, NULL, 0}};
  FAILS(stet_batch_append(empty, 2, &error), STET_ERROR_ARGUMENT,
        "batch[1]: ids: expected at least one token, found none");
  check_logits(a, 31);
  OK(stet_batch_append(NULL, 0, &error));
  stet_session_free(a);
  stet_session_free(b);
  stet_session_free(alone);
}

int test_session(void) {
  load();
  tokens_are_appended();
  how_to_compute_changes_no_bit();
  wrong_arguments_leave_the_session();
  dropped_windows_are_recomputed_on_demand();
  forks_and_rewinds_are_exact();
  positions_are_pruned();
  keys_and_values_are_read_and_set();
  blocks_are_named_by_what_made_them();
  an_append_is_watched();
  points_are_seen_and_changed();
  a_batch_gives_the_bits_of_each_alone();
  stet_model_free(model);
  return 0;
}
