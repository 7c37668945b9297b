/* Analysis through the C interface: callbacks, captures, traces, access to keys and values,
 * views. */
#include <math.h>

#include "check.h"
#include "oracle.h"
#include "tiny_sessions.h"

typedef struct Adding {
  float x;
  int calls, released;
  int64_t fails_at; /* a position; -1: never */
} Adding;

static int32_t add(void* context, size_t index, int64_t first, float* rows, size_t count,
                   size_t width, size_t stride) {
  Adding* adding = context;
  CHECK(index == 0 && width == kHidden && stride >= width);
  ++adding->calls;
  for (size_t i = 0; i < count; ++i) {
    if (first + (int64_t)i == adding->fails_at) return 1;
    for (size_t k = 0; k < width; ++k) rows[i * stride + k] += adding->x;
  }
  return 0;
}

static void release(void* context) { ++((Adding*)context)->released; }

static void a_function_changes_activations(void) {
  static const char* const points[] = {"blocks.3.hook_resid_mid"};
  Adding adding = {0.25f, 0, 0, -1};
  stet_callback callback = {.struct_size = sizeof callback,
                            .points = points,
                            .point_count = 1,
                            .context = &adding,
                            .change = add,
                            .release = release};
  stet_session* called = session_of(0, 40);
  stet_session* declared = session_of(0, 40);
  float values[kHidden];
  for (int i = 0; i < kHidden; ++i) values[i] = 0.25f;
  const stet_intervention change = {.struct_size = sizeof change,
                                    .point = points[0],
                                    .op = STET_ADD,
                                    .amount = 1,
                                    .values = values,
                                    .value_count = kHidden};
  OK(stet_session_attach(declared, &change, &error));
  OK(stet_session_attach_callback(called, &callback, &error));
  CHECK(info_of(called).edits == 0);
  adding.fails_at = 60;
  FAILS(stet_session_append(called, ids + 40, 60, &error), STET_ERROR_CANCELED,
        "callback: the caller cancelled the call: its callback did not return 0");
  CHECK(info_of(called).size == 40 && info_of(called).edits == 0);
  adding.fails_at = -1;
  OK(stet_session_append(called, ids + 40, 60, &error));
  OK(stet_session_append(declared, ids + 40, 60, &error));
  check_same_logits(called, declared, 1);
  CHECK(info_of(called).edits == 1 && info_of(declared).edits == 0);
  stet_session* fork = NULL;
  OK(stet_session_fork(called, &fork, &error));
  OK(stet_session_detach_callbacks(called, &error));
  CHECK(adding.released == 0);
  OK(stet_session_append(called, ids, 1, &error));
  OK(stet_session_append(fork, ids, 1, &error));
  check_same_logits(called, fork, 0);
  stet_session_free(fork);
  CHECK(adding.released == 1);
  adding.x = NAN;
  OK(stet_session_attach_callback(called, &callback, &error));
  FAILS(stet_session_append(called, ids, 1, &error), STET_ERROR_ARGUMENT,
        "callback: blocks.3.hook_resid_mid, position 101: expected finite numbers, found nan");
  CHECK(info_of(called).size == 101);
  static const char* const wrong[] = {"blocks.3.attn.hook_pattern"};
  callback.points = wrong;
  FAILS(stet_session_attach_callback(called, &callback, &error), STET_ERROR_ARGUMENT,
        "callback: expected a point that can be changed, found blocks.3.attn.hook_pattern");
  callback.change = NULL;
  FAILS(stet_session_attach_callback(called, &callback, &error), STET_ERROR_ARGUMENT,
        "change: expected not NULL, found NULL");
  struct {
    stet_callback known;
    size_t later; /* a member of a newer version */
  } newer = {callback, 1};
  newer.known.struct_size = sizeof newer;
  FAILS_WITH(stet_session_attach_callback(called, &newer.known, &error), STET_ERROR_UNSUPPORTED,
             "");
  FAILS(stet_session_attach_callback(NULL, &callback, &error), STET_ERROR_ARGUMENT,
        "change: expected not NULL, found NULL");
  stet_session_free(called);
  stet_session_free(declared);
  CHECK(adding.released == 6);
}

static void a_batch_captures_what_each_does_alone(void) {
  static const char* const points[] = {"blocks.6.hook_resid_post", "blocks.1.attn.hook_pattern"};
  enum { kFirst = 10, kMore = 40 };
  stet_session* sessions[] = {session_of(0, kFirst), session_of(0, 5)};
  stet_session* alone[] = {session_of(0, kFirst), session_of(0, 5)};
  const stet_batch_entry entries[] = {{sessions[0], ids + kFirst, kMore},
                                      {sessions[1], ids + 5, 1}};
  stet_capture* captures[2] = {NULL, NULL};
  OK(stet_batch_capture(entries, 2, points, 2, captures, &error));
  for (size_t i = 0; i < 2; ++i) {
    stet_capture* expected = NULL;
    OK(stet_session_capture(alone[i], entries[i].ids, entries[i].count, points, 2, 0, &expected,
                            &error));
    for (size_t p = 0; p < 2; ++p) {
      const float *x = NULL, *y = NULL;
      size_t count = 0, width = 0, count_alone = 0, width_alone = 0;
      OK(stet_capture_rows(captures[i], p, &x, &count, &width, &error));
      OK(stet_capture_rows(expected, p, &y, &count_alone, &width_alone, &error));
      CHECK(count == entries[i].count && count == count_alone && width == width_alone);
      CHECK(memcmp(x, y, count * width * sizeof *x) == 0);
    }
    stet_capture_free(expected);
    stet_capture_free(captures[i]);
  }
  static const char* const wrong[] = {"blocks.9.hook_resid_post"};
  FAILS_WITH(stet_batch_capture(entries, 2, wrong, 1, captures, &error), STET_ERROR_ARGUMENT,
             "found blocks.9.hook_resid_post");
  CHECK(captures[0] == NULL && captures[1] == NULL && info_of(sessions[1]).size == 6);
  for (size_t i = 0; i < 2; ++i) {
    stet_session_free(sessions[i]);
    stet_session_free(alone[i]);
  }
}

static void points_are_captured(void) {
  char* names = NULL;
  size_t size = 0;
  OK(stet_model_points(model, &names, &size, &error));
  CHECK(strncmp(names, "hook_embed\nblocks.0.hook_resid_pre\n", 35) == 0 && names[size] == 0);
  stet_free(names);
  static const char* const points[] = {"blocks.6.hook_resid_post",
                                       "blocks.1.attn.hook_attn_scores"};
  stet_session* session = session_of(0, 10);
  stet_session* plain = session_of(0, 50);
  stet_capture* capture = NULL;
  OK(stet_session_capture(session, ids + 10, 40, points, 2, 1, &capture, &error));
  const float *rows = NULL, *logits = NULL, *last = NULL;
  size_t count = 0, width = 0;
  OK(stet_capture_rows(capture, 1, &rows, &count, &width, &error));
  CHECK(count == 40 && width == 4 * 50);
  CHECK(isinf(rows[49]) && !isinf(rows[10]) && !isinf(rows[39 * width + 49]));
  OK(stet_capture_rows(capture, 2, &logits, &count, &width, &error));
  CHECK(count == 40 && width == kVocab);
  OK(stet_session_logits(plain, &last, &size, &error));
  CHECK_FLOATS(logits + 39 * kVocab, last, kVocab);
  OK(stet_capture_rows(capture, 0, &rows, &count, &width, &error));
  float* lens = NULL;
  OK(stet_session_lens(plain, rows + 39 * width, 1, &lens, &size, &error));
  CHECK_FLOATS(lens, last, kVocab);
  stet_free(lens);
  FAILS(stet_capture_rows(capture, 3, &rows, &count, &width, &error), STET_ERROR_ARGUMENT,
        "index: expected an index below 3, found 3");
  stet_capture_free(capture);

  static const char* const wrong[] = {"blocks.9.hook_resid_post"};
  FAILS_WITH(stet_session_capture(session, ids, 1, wrong, 1, 0, &capture, &error),
             STET_ERROR_ARGUMENT, "found blocks.9.hook_resid_post");
  CHECK(capture == NULL && info_of(session).size == 50);
  stet_session_free(session);
  stet_session_free(plain);
}

static float traced[2][kVocab];
static int32_t see_trace(void* context, int64_t index, const float* logits, size_t count) {
  CHECK(context == traced && count == kVocab);
  memcpy(traced[index], logits, sizeof traced[0]);
  return 0;
}

static void changes_are_traced(void) {
  stet_session* before = session_of(0, 20);
  stet_trace* trace = NULL;
  OK(stet_trace_new(before, ids + 20, 60, &trace, &error));
  float values[kHidden];
  for (int i = 0; i < kHidden; ++i) values[i] = 0.5f;
  stet_intervention changes[2];
  for (int i = 0; i < 2; ++i)
    changes[i] = (stet_intervention){.struct_size = sizeof changes[0],
                                     .point = i == 0 ? "blocks.5.hook_resid_pre" : "hook_embed",
                                     .begin = 30 + i,
                                     .end = 40,
                                     .op = STET_SET,
                                     .values = values,
                                     .value_count = kHidden};
  OK(stet_trace_run(trace, changes, 2, see_trace, traced, &error));
  for (int i = 0; i < 2; ++i) {
    stet_session* plain = NULL;
    OK(stet_session_fork(before, &plain, &error));
    OK(stet_session_attach(plain, &changes[i], &error));
    OK(stet_session_append(plain, ids + 20, 60, &error));
    const float* logits = NULL;
    size_t size = 0;
    OK(stet_session_logits(plain, &logits, &size, &error));
    CHECK_FLOATS(traced[i], logits, kVocab);
    stet_session_free(plain);
  }
  changes[1].value_count = 5;
  FAILS_WITH(stet_trace_run(trace, changes, 2, see_trace, traced, &error), STET_ERROR_ARGUMENT,
             "changes[1]: intervention: values: expected 64 numbers, found 5");
  stet_trace_free(trace);
  FAILS_WITH(stet_trace_new(before, NULL, 0, &trace, &error), STET_ERROR_ARGUMENT, "found none");
  stet_session_free(before);
}

typedef struct Rows {
  float logits[2][3][kVocab];
  int64_t positions[2][3];
  size_t counts[2];
} Rows;

static int32_t see_run(void* context, size_t index, int64_t position, const float* logits,
                       size_t count) {
  Rows* const rows = context;
  CHECK(index < 2 && rows->counts[index] < 3 && count == kVocab);
  rows->positions[index][rows->counts[index]] = position;
  memcpy(rows->logits[index][rows->counts[index]++], logits, count * sizeof *logits);
  return 0;
}

/* Two prompts with several changes each, and the logits of several positions. */
static void runs_of_several_changes_are_traced(void) {
  stet_session* before = session_of(0, 20);
  const stet_ids prompts[] = {{ids + 20, 60}, {ids + 7, 30}};
  stet_trace* trace = NULL;
  OK(stet_trace_new_prompts(before, prompts, 2, &trace, &error));
  float values[kHidden];
  for (int i = 0; i < kHidden; ++i) values[i] = 0.5f;
  const stet_intervention changes[2] = {{.struct_size = sizeof changes[0],
                                         .point = "blocks.5.hook_resid_pre",
                                         .begin = 30,
                                         .end = 40,
                                         .op = STET_SET,
                                         .values = values,
                                         .value_count = kHidden},
                                        {.struct_size = sizeof changes[0],
                                         .point = "blocks.2.hook_mlp_out",
                                         .begin = 35,
                                         .op = STET_SCALE,
                                         .amount = 0.5f}};
  const int64_t positions[] = {79, 22, 40};
  stet_traced runs[2] = {{changes, 2, 0, positions, 3}, {changes + 1, 1, 1, NULL, 0}};
  Rows found = {.counts = {0, 0}};
  OK(stet_trace_run_all(trace, runs, 2, see_run, &found, &error));
  CHECK(found.counts[0] == 3 && found.counts[1] == 1 && found.positions[1][0] == 49);
  CHECK(found.positions[0][0] == 22 && found.positions[0][1] == 40);
  for (size_t r = 0; r < 2; ++r) {
    for (size_t i = 0; i < found.counts[r]; ++i) {
      stet_session* plain = NULL;
      OK(stet_session_fork(before, &plain, &error));
      for (size_t c = 0; c < runs[r].change_count; ++c)
        OK(stet_session_attach(plain, &runs[r].changes[c], &error));
      OK(stet_session_append(plain, prompts[r].ids, (size_t)found.positions[r][i] - 19, &error));
      const float* logits = NULL;
      size_t size = 0;
      OK(stet_session_logits(plain, &logits, &size, &error));
      CHECK_FLOATS(found.logits[r][i], logits, kVocab);
      stet_session_free(plain);
    }
  }
  runs[1].prompt = 2;
  FAILS(stet_trace_run_all(trace, runs, 2, see_run, &found, &error), STET_ERROR_ARGUMENT,
        "runs[1]: prompt: expected one below 2, found 2");
  const int64_t early = 19;
  runs[1] = (stet_traced){NULL, 0, 1, &early, 1};
  FAILS(stet_trace_run_all(trace, runs, 2, see_run, &found, &error), STET_ERROR_ARGUMENT,
        "runs[1]: positions: expected positions in 20..49, found 19");
  stet_trace_free(trace);
  FAILS_WITH(stet_trace_new_prompts(before, NULL, 0, &trace, &error), STET_ERROR_ARGUMENT,
             "prompts: expected at least one, found none");
  stet_session_free(before);
}

static void keys_and_values_are_material(void) {
  stet_session* a = session_of(0, 80);
  stet_session* b = session_of(10, 80);
  float x[kDim], y[kDim];
  const int64_t layers[] = {2};
  stet_kv_range range = {.struct_size = sizeof range,
                         .layers = layers,
                         .layer_count = 1,
                         .begin = 3,
                         .end = 5,
                         .keys = 1};
  OK(stet_session_get_key(a, 2, 1, 4, x, kDim, &error));
  OK(stet_session_scale_kv(a, &range, 2, &error));
  OK(stet_session_get_key(a, 2, 1, 4, y, kDim, &error));
  for (int i = 0; i < kDim; ++i) CHECK(y[i] == 2 * x[i]);
  OK(stet_session_set_kv(a, &range, x, kDim, &error));
  OK(stet_session_get_key(a, 2, 0, 3, y, kDim, &error));
  CHECK_FLOATS(x, y, kDim);
  OK(stet_session_copy_kv(a, &range, b, 3, &error));
  OK(stet_session_get_key(a, 2, 0, 3, y, kDim, &error));
  OK(stet_session_get_key(b, 2, 0, 3, x, kDim, &error));
  CHECK_FLOATS(x, y, kDim);
  range.end = -1;
  FAILS(stet_session_zero_kv(a, &range, &error), STET_ERROR_ARGUMENT,
        "range.end: expected 0 (unbounded) or more, found -1");
  OK(stet_session_zero_kv(a, NULL, &error));
  OK(stet_session_get_value(a, 6, 1, 79, y, kDim, &error));
  for (int i = 0; i < kDim; ++i) CHECK(y[i] == 0);
  CHECK(info_of(a).edits == 5);
  range.end = 81;
  FAILS(stet_session_zero_kv(a, &range, &error), STET_ERROR_ARGUMENT,
        "positions: expected positions in 0..79, found 3..80");

  stet_session* joined = NULL;
  const stet_cut cuts[] = {{b, 0, 30}, {b, 40, 80}};
  OK(stet_session_splice(cuts, 2, &joined, &error));
  CHECK(info_of(joined).size == 70 && info_of(joined).edits == 1);
  stet_comparison* beside = NULL;
  OK(stet_session_compare_truth(joined, &beside, &error));
  stet_comparison_info info = {.struct_size = sizeof info};
  OK(stet_comparison_get_info(beside, &info, &error));
  CHECK(info.equal == 0 && info.common_tokens == 70 && info.equal_positions == 30);
  CHECK(info.a_from_b > 0 && info.layers == kLayers);
  stet_comparison_free(beside);
  stet_session_free(joined);
  joined = NULL;
  FAILS(stet_session_splice(NULL, 0, &joined, &error), STET_ERROR_ARGUMENT,
        "cuts: expected at least one, found none");
  CHECK(joined == NULL);
  const stet_cut wrong[] = {{b, 0, 90}};
  FAILS(stet_session_splice(wrong, 1, &joined, &error), STET_ERROR_ARGUMENT,
        "cuts[0]: expected positions in 0..79, found 0..89");
  stet_session_free(a);
  stet_session_free(b);
}

static void views_outlive_what_they_show(void) {
  stet_session* session = session_of(0, 70);
  stet_view *logits_view = NULL, *block_view = NULL;
  const float* logits = NULL;
  const void* block = NULL;
  size_t count = 0, size = 0;
  OK(stet_session_view_logits(session, &logits_view, &logits, &count, &error));
  OK(stet_session_view_block(session, 1, &block_view, &block, &size, &error));
  CHECK(count == kVocab && size == (size_t)kLayers * 2 * 2 * kDim * 64 * sizeof(float));
  float kept[kVocab], value[kDim];
  memcpy(kept, logits, sizeof kept);
  OK(stet_session_get_value(session, 0, 0, 66, value, kDim, &error));
  const float* const first = block;
  CHECK_FLOATS(value, first + kDim * 64 + 2 * kDim, kDim);
  OK(stet_session_append(session, ids, 5, &error));
  OK(stet_session_zero_kv(session, NULL, &error));
  stet_session_free(session);
  CHECK_FLOATS(kept, logits, kVocab);
  CHECK_FLOATS(value, first + kDim * 64 + 2 * kDim, kDim);
  stet_view_free(logits_view);
  stet_view_free(block_view);
  session = NULL;
  OK(stet_session_new(model, NULL, &session, &error));
  OK(stet_session_view_logits(session, &logits_view, &logits, &count, &error));
  CHECK(logits == NULL && count == 0);
  stet_view_free(logits_view);
  FAILS(stet_session_view_block(session, 0, &block_view, &block, &size, &error),
        STET_ERROR_ARGUMENT, "index: expected a block below 0, found 0");
  stet_session_free(session);
}

int test_lab(void) {
  OK(stet_model_load(TINY, NULL, &model, &error));
  for (int i = 0; i < kTokens; ++i) ids[i] = (i * 97 + 13) % kVocab;
  a_function_changes_activations();
  points_are_captured();
  a_batch_captures_what_each_does_alone();
  changes_are_traced();
  runs_of_several_changes_are_traced();
  keys_and_values_are_material();
  views_outlive_what_they_show();
  stet_model_free(model);
  return 0;
}
