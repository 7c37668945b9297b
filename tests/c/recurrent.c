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
  CHECK(info_of(session).recurrent_arrays == 6); /* three layers of four */
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
  /* what was read can be written: the edit alone tells the states apart */
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
  OK(stet_session_rewind(session, 100, &error)); /* to the edited arrays */
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
  other_models_have_none();
  return 0;
}
