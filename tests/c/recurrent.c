/* Arrays of recurrent layers and anchors through the C interface. */
#include "check.h"
#include "oracle.h"

enum { kTokens = 150, kMost = 8192 };

static int32_t ids[kTokens];

static stet_session* session_of(const char* directory, const stet_session_options* options,
                                size_t count) {
  stet_model* model = NULL;
  stet_session* session = NULL;
  OK(stet_model_load(directory, NULL, &model, &error));
  OK(stet_session_new(model, options, &session, &error));
  OK(stet_session_append(session, ids, count, &error));
  stet_model_free(model);
  return session;
}

static stet_session_info info_of(const stet_session* session) {
  stet_session_info info = {.struct_size = sizeof info};
  OK(stet_session_get_info(session, &info, &error));
  return info;
}

static stet_recurrent_array array_of(const stet_session* session, size_t index) {
  stet_recurrent_array array = {.struct_size = sizeof array};
  OK(stet_session_recurrent_array(session, index, &array, &error));
  return array;
}

static void check_id(stet_session* a, stet_session* b, int same) {
  stet_digests x = {.struct_size = sizeof x}, y = {.struct_size = sizeof y};
  OK(stet_session_get_digests(a, &x, &error));
  OK(stet_session_get_digests(b, &y, &error));
  CHECK((strcmp(x.id, y.id) == 0) == same);
}

static void arrays_are_those_of_cpp(void) {
  static float x[kMost], expected[kMost];
  stet_session* session = session_of(QWEN35, NULL, kTokens);
  CHECK(info_of(session).recurrent_arrays == 6); /* two in each of three layers of four */
  const stet_recurrent_array state = array_of(session, 2), conv = array_of(session, 3);
  CHECK(state.layer == 1 && state.dimensions == 3 && state.count == 1024);
  CHECK(state.shape[0] == 4 && state.shape[1] == 16 && state.shape[2] == 16);
  CHECK_TEXT(state.name, "state");
  CHECK(conv.layer == 1 && conv.dimensions == 2 && conv.count == 384);
  CHECK(conv.shape[0] == 3 && conv.shape[1] == 128 && conv.shape[2] == 0);
  CHECK_TEXT(conv.name, "conv");
  for (size_t i = 0; i < 6; ++i) {
    const stet_recurrent_array a = array_of(session, i);
    OK(stet_session_get_recurrent(session, i, x, a.count, &error));
    oracle_recurrent(QWEN35, ids, kTokens, a.layer, i % 2, expected, a.count);
    CHECK_FLOATS(x, expected, a.count);
  }
  stet_session_free(session);
}

/* Mamba-2's state is stored [heads][d_state][head_dim] and published [heads][head_dim][d_state]. */
static void mambas_state_has_the_shape_of_export(void) {
  enum { kHeads = 4, kDim = 32, kState = 24 };
  static float x[kHeads][kDim][kState], stored[kHeads][kState][kDim];
  stet_session* session = session_of(GRANITE, NULL, 70);
  const stet_recurrent_array a = array_of(session, 2);
  CHECK(a.layer == 2 && a.shape[0] == kHeads && a.shape[1] == kDim && a.shape[2] == kState);
  OK(stet_session_get_recurrent(session, 2, &x[0][0][0], a.count, &error));
  oracle_recurrent(GRANITE, ids, 70, 2, 0, &stored[0][0][0], a.count);
  for (int h = 0; h < kHeads; ++h) {
    for (int d = 0; d < kDim; ++d) {
      for (int s = 0; s < kState; ++s) CHECK(x[h][d][s] == stored[h][s][d]);
    }
  }
  /* The values just read can be written back. Only the edit then distinguishes the two states. */
  static float again[kHeads][kDim][kState];
  x[1][2][3] = 0.25f;
  OK(stet_session_set_recurrent(session, 2, &x[0][0][0], a.count, &error));
  OK(stet_session_get_recurrent(session, 2, &again[0][0][0], a.count, &error));
  CHECK_FLOATS(again, x, a.count);
  stet_session_free(session);
}

static void a_written_array_is_an_edit(void) {
  static float x[1024], y[1024];
  stet_session* session = session_of(QWEN35, NULL, 100);
  stet_session* plain = NULL;
  OK(stet_session_fork(session, &plain, &error));
  OK(stet_session_get_recurrent(session, 2, x, 1024, &error));
  for (int i = 0; i < 1024; ++i) y[i] = x[i] * 0.5f;
  OK(stet_session_set_recurrent(session, 2, y, 1024, &error));
  CHECK(info_of(session).edits == 1);
  check_id(session, plain, 0);
  OK(stet_session_append(session, ids + 100, 40, &error));
  OK(stet_session_rewind(session, 100, &error)); /* back to where the arrays were edited */
  OK(stet_session_get_recurrent(session, 2, x, 1024, &error));
  CHECK_FLOATS(x, y, 1024);
  stet_anchor anchor = {.struct_size = sizeof anchor};
  OK(stet_session_anchor(session, info_of(session).anchors - 1, &anchor, &error));
  CHECK(anchor.position == 100 && anchor.replayable == 0);
  OK(stet_session_rewind(session, 90, &error)); /* before the edit */
  OK(stet_session_rewind(plain, 90, &error));
  CHECK(info_of(session).edits == 0);
  check_id(session, plain, 1);

  y[7] = (float)(1e300 * 1e300);
  FAILS(stet_session_set_recurrent(session, 2, y, 1024, &error), STET_ERROR_ARGUMENT,
        "state: expected finite numbers, found inf");
  FAILS(stet_session_set_recurrent(session, 2, x, 1023, &error), STET_ERROR_ARGUMENT,
        "x: expected 1024 numbers, found 1023");
  FAILS(stet_session_get_recurrent(session, 3, x, 1024, &error), STET_ERROR_ARGUMENT,
        "x: expected 384 numbers, found 1024");
  FAILS(stet_session_get_recurrent(session, 6, x, 1024, &error), STET_ERROR_ARGUMENT,
        "index: expected an index below 6, found 6");
  FAILS(stet_session_get_recurrent(session, 2, NULL, 1024, &error), STET_ERROR_ARGUMENT,
        "x: expected not NULL, found NULL");
  OK(stet_session_rewind(session, 0, &error));
  FAILS(stet_session_set_recurrent(session, 2, x, 1024, &error), STET_ERROR_ARGUMENT,
        "tokens: expected at least one, found none");
  stet_session_free(session);
  stet_session_free(plain);
}

static void anchors_are_listed_and_limited(void) {
  stet_session* session = session_of(QWEN35, NULL, kTokens);
  const size_t bytes = 3 * (1024 + 384) * sizeof(float);
  static const int64_t kAt[] = {64, 128, 150};
  stet_anchor anchor = {.struct_size = sizeof anchor};
  OK(stet_session_keep_anchor(session, &error));
  CHECK(info_of(session).anchors == 3);
  for (size_t i = 0; i < 3; ++i) {
    OK(stet_session_anchor(session, i, &anchor, &error));
    CHECK(anchor.position == kAt[i] && anchor.bytes == bytes && anchor.replayable == 1);
  }
  FAILS(stet_session_anchor(session, 3, &anchor, &error), STET_ERROR_ARGUMENT,
        "index: expected an index below 3, found 3");
  int64_t cost = 1;
  OK(stet_session_rewind_cost(session, 130, &cost, &error));
  CHECK(cost == 2);
  OK(stet_session_rewind_cost(session, 128, &cost, &error));
  CHECK(cost == 0);
  stet_session_free(session);

  const stet_session_options none = {.struct_size = sizeof none, .anchor_bytes = -1};
  session = session_of(QWEN35, &none, kTokens);
  CHECK(info_of(session).anchors == 0);
  OK(stet_session_rewind_cost(session, 130, &cost, &error));
  CHECK(cost == 130);
  FAILS(stet_session_set_compute(session, &none, &error), STET_ERROR_ARGUMENT,
        "anchor_bytes: expected 0, since it cannot change, found -1");
  stet_session_free(session);
  const stet_session_options one = {.struct_size = sizeof one, .anchor_bytes = (int64_t)bytes};
  session = session_of(QWEN35, &one, kTokens);
  CHECK(info_of(session).anchors == 1);
  stet_session_free(session);
}

struct seen {
  size_t rows;
  int64_t at[4];
  float state[1024];
};

static int32_t keep_state(void* context, size_t index, int64_t position, const float* row,
                          size_t count) {
  struct seen* seen = context;
  if (index != 1) return 0;
  CHECK(seen->rows < 4 && count == 1024);
  seen->at[seen->rows++] = position;
  memcpy(seen->state, row, sizeof seen->state);
  return 0;
}

static void states_are_captured_where_asked(void) {
  static const char* const kPoints[] = {"blocks.1.hook_decay", "blocks.1.hook_state"};
  static const int64_t kAt[] = {99, 20, 500};
  static float x[1024];
  const stet_capture_options options = {.struct_size = sizeof options,
                                        .points = kPoints,
                                        .point_count = 2,
                                        .state_positions = kAt,
                                        .state_position_count = 3};
  stet_session* session = session_of(QWEN35, NULL, 10);
  stet_capture* capture = NULL;
  FAILS(stet_session_capture(session, ids + 10, 90, kPoints, 2, 0, &capture, &error),
        STET_ERROR_ARGUMENT,
        "points[1]: expected state_positions: the positions at which to capture "
        "blocks.1.hook_state, of 4096 bytes each, found none");
  CHECK(capture == NULL && info_of(session).size == 10);
  OK(stet_session_capture_with(session, ids + 10, 90, &options, &capture, &error));
  const float* rows = NULL;
  size_t count = 0, width = 0;
  OK(stet_capture_rows(capture, 0, &rows, &count, &width, &error));
  CHECK(count == 90 && width == 4);
  OK(stet_capture_rows(capture, 1, &rows, &count, &width, &error));
  CHECK(count == 2 && width == 1024);
  OK(stet_session_get_recurrent(session, 2, x, 1024, &error));
  CHECK_FLOATS(rows + 1024, x, 1024); /* after the last token */

  static struct seen seen;
  const stet_watch watch = {.struct_size = sizeof watch,
                            .context = &seen,
                            .points = kPoints,
                            .point_count = 2,
                            .on_point = keep_state,
                            .state_positions = kAt,
                            .state_position_count = 2};
  stet_session* other = session_of(QWEN35, NULL, 10);
  OK(stet_session_append_watched(other, ids + 10, 90, &watch, &error));
  CHECK(seen.rows == 2 && seen.at[0] == 20 && seen.at[1] == 99);
  CHECK_FLOATS(seen.state, x, 1024);
  check_id(session, other, 1);
  stet_capture_free(capture);

  stet_point_info info = {.struct_size = sizeof info};
  stet_model* model = NULL;
  OK(stet_model_load(QWEN35, NULL, &model, &error));
  OK(stet_model_point(model, kPoints[1], &info, &error));
  CHECK(info.heads == 4 && info.width == 1024 && !info.of_positions && !info.can_be_changed);
  FAILS(stet_model_point(model, "blocks.3.hook_state", &info, &error), STET_ERROR_ARGUMENT,
        "point: expected a recurrent layer, found blocks.3.hook_state");
  FAILS(stet_model_point(model, "blocks.0.attn.hook_q", &info, &error), STET_ERROR_ARGUMENT,
        "point: expected a layer with attention, found blocks.0.attn.hook_q");
  stet_model_free(model);
  stet_session_free(session);
  stet_session_free(other);
}

static int32_t never_called(void* context, int64_t done) {
  (void)context;
  return (int32_t)done;
}

/* Returns the rows of one point of a capture, of `count` numbers in all. */
static const float* rows_of(const stet_capture* capture, size_t index, size_t count) {
  const float* rows = NULL;
  size_t found = 0, width = 0;
  OK(stet_capture_rows(capture, index, &rows, &found, &width, &error));
  CHECK(found * width == count);
  return rows;
}

static void states_are_captured_in_a_batch(void) {
  static const char* const kPoints[] = {"blocks.1.hook_decay", "blocks.1.hook_state"};
  static const int64_t kFirst[] = {99, 20}, kSecond[] = {30};
  stet_capture_options first = {.struct_size = sizeof first,
                                .points = kPoints,
                                .point_count = 2,
                                .state_positions = kFirst,
                                .state_position_count = 2};
  stet_capture_options second = first;
  second.points = kPoints + 1, second.point_count = 1;
  second.state_positions = kSecond, second.state_position_count = 1;
  const stet_capture_options* const options[] = {&first, &second};
  stet_session *sessions[2] = {session_of(QWEN35, NULL, 10), NULL}, *alone[2] = {NULL, NULL};
  OK(stet_session_fork(sessions[0], &sessions[1], &error));
  OK(stet_session_append(sessions[1], ids + 10, 20, &error));
  for (size_t i = 0; i < 2; ++i) OK(stet_session_fork(sessions[i], &alone[i], &error));
  const stet_batch_entry entries[] = {{sessions[0], ids + 10, 90}, {sessions[1], ids + 30, 1}};
  stet_capture *captures[2] = {NULL, NULL}, *expected[2] = {NULL, NULL}, *none[2];
  FAILS(stet_batch_capture(entries, 2, kPoints, 2, none, &error), STET_ERROR_ARGUMENT,
        "batch[0]: points[1]: expected state_positions: the positions at which to capture "
        "blocks.1.hook_state, of 4096 bytes each, found none");
  OK(stet_batch_capture_with(entries, 2, options, captures, &error));
  for (size_t i = 0; i < 2; ++i)
    OK(stet_session_capture_with(alone[i], entries[i].ids, entries[i].count, options[i],
                                 &expected[i], &error));
  CHECK_FLOATS(rows_of(captures[0], 0, 360), rows_of(expected[0], 0, 360), 360);
  CHECK_FLOATS(rows_of(captures[0], 1, 2048), rows_of(expected[0], 1, 2048), 2048);
  CHECK_FLOATS(rows_of(captures[1], 0, 1024), rows_of(expected[1], 0, 1024), 1024);

  second.logits = 1;
  FAILS(stet_batch_capture_with(entries, 2, options, none, &error), STET_ERROR_ARGUMENT,
        "options.logits: expected 0 in a batch, found 1");
  second.logits = 0;
  second.on_progress = never_called;
  FAILS(stet_batch_capture_with(entries, 2, options, none, &error), STET_ERROR_ARGUMENT,
        "options.on_progress: expected NULL in a batch, found a function");
  const stet_batch_reply replies[] = {{sessions[0], NULL}};
  stet_reply* reply = NULL;
  FAILS(stet_batch_generate(replies, 1, NULL, kPoints, 2, none, &reply, &error),
        STET_ERROR_ARGUMENT,
        "points[1]: expected one of every drawn token; appending the reply's tokens captures "
        "hook_state, found blocks.1.hook_state");
  for (size_t i = 0; i < 2; ++i) {
    check_id(sessions[i], alone[i], 1);
    stet_capture_free(captures[i]);
    stet_capture_free(expected[i]);
    stet_session_free(sessions[i]);
    stet_session_free(alone[i]);
  }
}

static void states_can_be_changed(void) {
  stet_session* session = session_of(QWEN35, NULL, 20);
  stet_session* plain = session_of(QWEN35, NULL, 100);
  const int64_t head = 2;
  const stet_intervention scale = {.struct_size = sizeof scale,
                                   .point = "blocks.1.hook_state",
                                   .heads = &head,
                                   .head_count = 1,
                                   .begin = 40,
                                   .end = 41,
                                   .op = STET_SCALE,
                                   .amount = 0.5f};
  OK(stet_session_attach(session, &scale, &error));
  OK(stet_session_append(session, ids + 20, 80, &error));
  check_id(session, plain, 0);
  stet_difference* difference = NULL;
  OK(stet_session_verify(session, &difference, &error));
  CHECK(difference == NULL && info_of(session).edits == 0);
  stet_intervention add = scale;
  add.op = STET_PROJECT_OUT;
  add.amount = 0;
  add.begin = 0;
  add.end = 0;
  FAILS(stet_session_attach(session, &add, &error), STET_ERROR_ARGUMENT,
        "intervention: op: expected set or scale of hook_state, found project_out");
  stet_session_free(session);
  stet_session_free(plain);
}

static void a_prune_computes_again(void) {
  stet_session* session = session_of(QWEN35, NULL, 20);
  stet_prune_options options = {.struct_size = sizeof options, .keep_last = 5, .sinks = 4};
  int64_t pruned = -1;
  FAILS(stet_session_prune(session, &options, &pruned, &error), STET_ERROR_UNSUPPORTED,
        "prune: expected recompute, which processes the tokens that stay anew: recurrent layers "
        "cannot forget tokens, found family qwen3_5");
  options.flags = STET_PRUNE_SHIFT | STET_PRUNE_RECOMPUTE;
  FAILS(stet_session_prune(session, &options, &pruned, &error), STET_ERROR_ARGUMENT,
        "options.flags: expected STET_PRUNE_SHIFT or STET_PRUNE_RECOMPUTE, found both");
  options.flags = STET_PRUNE_RECOMPUTE;
  OK(stet_session_prune(session, &options, &pruned, &error));
  CHECK(pruned == 11);
  stet_session* expected = session_of(QWEN35, NULL, 4);
  OK(stet_session_append(expected, ids + 15, 5, &error));
  check_id(session, expected, 1);
  stet_session_free(session);
  stet_session_free(expected);
}

static void other_models_have_none(void) {
  stet_session* session = session_of(TINY, NULL, 10);
  float x[1];
  CHECK(info_of(session).recurrent_arrays == 0 && info_of(session).anchors == 0);
  OK(stet_session_keep_anchor(session, &error));
  CHECK(info_of(session).anchors == 0);
  FAILS(stet_session_get_recurrent(session, 0, x, 1, &error), STET_ERROR_ARGUMENT,
        "index: expected an index below 0, found 0");
  stet_session_free(session);
}

int test_recurrent(void) {
  for (int i = 0; i < kTokens; ++i) ids[i] = (i * 97 + 13) % 300;
  arrays_are_those_of_cpp();
  mambas_state_has_the_shape_of_export();
  a_written_array_is_an_edit();
  anchors_are_listed_and_limited();
  states_are_captured_where_asked();
  states_are_captured_in_a_batch();
  states_can_be_changed();
  a_prune_computes_again();
  other_models_have_none();
  return 0;
}
