/* Interventions listed and detached, points and weights by name, and calls that report progress
 * or are cancelled, through the C interface. */
#include "check.h"
#include "oracle.h"
#include "tiny_sessions.h"

static int64_t told_last;
static int32_t tell(void* context, int64_t done) {
  CHECK(context == &told_last && done > told_last);
  told_last = done;
  return 0;
}

static void a_capture_says_how_far_it_has_come(void) {
  static const char* const points[] = {"blocks.6.hook_resid_post"};
  const stet_session_options small = {.struct_size = sizeof small, .chunk = 7};
  stet_capture_options options = {.struct_size = sizeof options,
                                  .points = points,
                                  .point_count = 1,
                                  .on_progress = tell,
                                  .context = &told_last};
  stet_session* session = NULL;
  OK(stet_session_new(model, &small, &session, &error));
  stet_capture* capture = NULL;
  OK(stet_session_capture_with(session, ids, kTokens, &options, &capture, &error));
  CHECK(told_last == kTokens);
  const float* rows = NULL;
  size_t count = 0, width = 0;
  OK(stet_capture_rows(capture, 0, &rows, &count, &width, &error));
  CHECK(count == kTokens && width == kHidden);
  stet_capture_free(capture);
  stet_session_free(session);
}

static void points_say_their_shapes(void) {
  stet_point_info info = {.struct_size = sizeof info};
  OK(stet_model_point(model, "blocks.6.attn.hook_k", &info, &error));
  CHECK(info.heads == 2 && info.width == 2 * kDim && info.can_be_changed && !info.of_positions);
  OK(stet_model_point(model, "attn.hook_pattern", &info, &error));
  CHECK(info.heads == 4 && info.width == 4 && !info.can_be_changed && info.of_positions);
  OK(stet_model_point(model, "hook_embed", &info, &error));
  CHECK(info.heads == 0 && info.width == kHidden);
  FAILS(stet_model_point(model, "blocks.7.attn.hook_k", &info, &error), STET_ERROR_ARGUMENT,
        "point: expected the name of a point of family gemma3, found blocks.7.attn.hook_k");
}

/* Writes the id of the state of `count` tokens, with the change attached after `before` of them. */
static void id_with(const stet_intervention* change, size_t before, size_t count, char* id) {
  stet_session* session = session_of(0, before);
  if (change != NULL) OK(stet_session_attach(session, change, &error));
  if (count > before) OK(stet_session_append(session, ids + before, count - before, &error));
  stet_digests digests = {.struct_size = sizeof digests};
  OK(stet_session_get_digests(session, &digests, &error));
  strcpy(id, digests.id);
  stet_session_free(session);
}

static void check_id(stet_session* session, const char* expected) {
  stet_digests digests = {.struct_size = sizeof digests};
  OK(stet_session_get_digests(session, &digests, &error));
  CHECK_TEXT(digests.id, expected);
}

static void interventions_are_listed_and_detached(void) {
  float values[kHidden];
  for (int i = 0; i < kHidden; ++i) values[i] = (float)i / 64;
  const int64_t layers[] = {2, 5};
  stet_intervention change = {.struct_size = sizeof change,
                              .point = "hook_resid_mid",
                              .layers = layers,
                              .layer_count = 2,
                              .op = STET_ADD,
                              .amount = 0.5f,
                              .values = values,
                              .value_count = kHidden};
  char expected[72];
  stet_session* session = session_of(0, 40);
  stet_intervention wrong = change;
  wrong.point = "blocks.3.hook_resid_mid";
  FAILS(stet_session_attach(session, &wrong, &error), STET_ERROR_ARGUMENT,
        "layers: expected none beside the point of one layer, blocks.3.hook_resid_mid, found 2 of "
        "them");
  wrong = change;
  wrong.amount = 1e38f;
  values[0] = -10;
  FAILS(stet_session_attach(session, &wrong, &error), STET_ERROR_ARGUMENT,
        "intervention: values: expected numbers whose products with the amount are finite in "
        "float32, found a product that is not");
  values[0] = 0;
  wrong = change;
  wrong.bias = 1;
  FAILS(stet_session_attach(session, &wrong, &error), STET_ERROR_ARGUMENT,
        "bias: expected 0, since only STET_CLAMP has one, found 1");
  wrong.bias = 0;
  wrong.threshold = 7;
  FAILS(stet_session_attach(session, &wrong, &error), STET_ERROR_ARGUMENT,
        "threshold: expected 0, since only STET_CLAMP has one, found 7");
  wrong.threshold = 0;
  wrong.end = -1;
  FAILS(stet_session_attach(session, &wrong, &error), STET_ERROR_ARGUMENT,
        "end: expected 0 (unbounded) or more, found -1");
  wrong.end = 0;
  wrong.key_end = -3;
  FAILS(stet_session_attach(session, &wrong, &error), STET_ERROR_ARGUMENT,
        "key_end: expected 0 (unbounded) or more, found -3");
  wrong.key_end = 0;
  wrong.op = STET_SET;
  wrong.amount = 5;
  FAILS(stet_session_attach(session, &wrong, &error), STET_ERROR_ARGUMENT,
        "amount: expected 0, since STET_SET and STET_PROJECT_OUT have none, found 5");
  OK(stet_session_attach(session, &change, &error));
  OK(stet_session_append(session, ids + 40, 30, &error));

  stet_intervention found = {.struct_size = sizeof found};
  int64_t attached = 0;
  OK(stet_session_intervention(session, 0, &found, &attached, &error));
  CHECK_TEXT(found.point, "hook_resid_mid");
  CHECK(attached == 40 && found.layer_count == 2 && found.layers[1] == 5 && found.head_count == 0);
  CHECK(found.op == STET_ADD && found.amount == 0.5f && found.begin == 0 && found.end == 0);
  CHECK(found.value_count == kHidden);
  CHECK_FLOATS(found.values, values, kHidden);
  FAILS(stet_session_intervention(session, 1, &found, &attached, &error), STET_ERROR_ARGUMENT,
        "index: expected an index below 1, found 1");

  /* Detaching at 70 equals attaching with the end 70. Later tokens do not see the change. */
  FAILS(stet_session_detach(session, 0, 69, &error), STET_ERROR_ARGUMENT,
        "intervention: position: expected 70..16777216, found 69");
  FAILS(stet_session_detach(session, 1, 70, &error), STET_ERROR_ARGUMENT,
        "intervention: index: expected one below 1, found 1");
  OK(stet_session_detach(session, 0, 70, &error));
  OK(stet_session_append(session, ids + 70, 30, &error));
  change.end = 70;
  id_with(&change, 40, 100, expected);
  check_id(session, expected);
  OK(stet_session_intervention(session, 0, &found, NULL, &error));
  CHECK(found.end == 70);
  OK(stet_session_detach(session, 0, 100, &error)); /* already ended */
  check_id(session, expected);
  stet_difference* difference = NULL;
  OK(stet_session_verify(session, &difference, &error));
  CHECK(difference == NULL);

  /* An intervention that has changed nothing is removed. */
  change.end = 0;
  OK(stet_session_attach(session, &change, &error));
  OK(stet_session_detach(session, 1, 100, &error));
  check_id(session, expected);
  stet_session_free(session);

  /* If the values have a row for each position, detaching keeps the rows that were already used. */
  float rows[50 * kHidden];
  for (int i = 0; i < 50 * kHidden; ++i) rows[i] = (float)(i % 97) / 97;
  change.op = STET_SET, change.values = rows, change.value_count = 50 * kHidden;
  change.amount = 0;
  change.begin = 50, change.end = 100;
  session = session_of(0, 40);
  OK(stet_session_attach(session, &change, &error));
  OK(stet_session_append(session, ids + 40, 20, &error));
  OK(stet_session_detach(session, 0, 60, &error));
  OK(stet_session_append(session, ids + 60, 40, &error));
  change.end = 60, change.value_count = 10 * kHidden;
  id_with(&change, 40, 100, expected);
  check_id(session, expected);
  stet_session_free(session);
}

/* A shift moves positions while a change is in force, and the change is then detached. All
 * tokens before the shift were processed under it. */
static void a_change_is_detached_after_a_shift(void) {
  float values[kHidden];
  for (int i = 0; i < kHidden; ++i) values[i] = (float)i / 64;
  const stet_intervention change = {.struct_size = sizeof change,
                                    .point = "blocks.3.hook_resid_mid",
                                    .op = STET_ADD,
                                    .amount = 1,
                                    .values = values,
                                    .value_count = kHidden};
  stet_session* session = session_of(0, 10);
  OK(stet_session_attach(session, &change, &error));
  OK(stet_session_append(session, ids + 10, 70, &error));
  OK(stet_session_prune_range(session, 5, 65, 1, &error)); /* 20 positions are left */
  stet_session* open = NULL;
  OK(stet_session_fork(session, &open, &error));
  OK(stet_session_append(session, ids, 4, &error));
  OK(stet_session_detach(session, 0, 24, &error));
  OK(stet_session_append(session, ids + 4, 6, &error));
  OK(stet_session_append(open, ids, 10, &error));
  check_same_logits(session, open, 0);
  stet_difference* difference = NULL;
  OK(stet_session_verify(session, &difference, &error));
  CHECK(difference == NULL);
  OK(stet_session_rewind(session, 24, &error));
  OK(stet_session_rewind(open, 24, &error));
  check_same_logits(session, open, 1);

  /* A snapshot keeps interventions detached. */
  OK(stet_session_append(session, ids + 4, 6, &error));
  stet_digests digests = {.struct_size = sizeof digests};
  OK(stet_session_save(session, NULL, "detached.stet", NULL, &digests, &error));
  stet_snapshot* snapshot = NULL;
  OK(stet_snapshot_open("detached.stet", NULL, &snapshot, &error));
  stet_session* again = NULL;
  OK(stet_snapshot_restore(snapshot, model, NULL, NULL, NULL, NULL, &again, &error));
  check_id(again, digests.id);
  OK(stet_snapshot_verify(snapshot, model, NULL, NULL, NULL, &difference, &error));
  CHECK(difference == NULL);
  OK(stet_session_append(again, ids, 5, &error));
  OK(stet_session_append(session, ids, 5, &error));
  check_same_logits(again, session, 1);
  stet_session_free(again);
  stet_snapshot_free(snapshot);
  stet_session_free(open);
  stet_session_free(session);
}

static void weights_are_read_by_their_names(void) {
  char* names = NULL;
  size_t size = 0;
  OK(stet_model_weights(model, &names, &size, &error));
  CHECK(strncmp(names, "embed.W_E\n", 10) == 0 && strstr(names, "\nunembed.W_U\n") != NULL);
  stet_free(names);
  stet_view* view = NULL;
  stet_weight weight = {.struct_size = sizeof weight};
  static const char* const point[] = {"hook_embed"};
  stet_session* session = session_of(0, 0);
  stet_capture* capture = NULL;
  OK(stet_session_capture(session, ids, 5, point, 1, 0, &capture, &error));
  const float* rows = NULL;
  size_t count = 0, width = 0;
  OK(stet_capture_rows(capture, 0, &rows, &count, &width, &error));
  OK(stet_model_weight(model, "embed.W_E", &view, &weight, &error));
  CHECK(weight.dimensions == 2 && weight.shape[0] == kVocab && weight.shape[1] == kHidden);
  for (int i = 0; i < 5; ++i)
    CHECK_FLOATS(rows + i * kHidden, weight.data + ids[i] * kHidden, kHidden);
  stet_view_free(view);
  OK(stet_model_weight(model, "blocks.0.attn.W_O", &view, &weight, &error));
  CHECK(weight.dimensions == 3 && weight.shape[0] == 4 && weight.shape[1] == kDim &&
        weight.shape[2] == kHidden);
  stet_view_free(view);
  FAILS(stet_model_weight(model, "W_O", &view, &weight, &error), STET_ERROR_ARGUMENT,
        "name: expected the name of a weight of family gemma3, found W_O");
  CHECK(view == NULL);
  stet_capture_free(capture);
  stet_session_free(session);
}

static float traced[2][kVocab];
static int32_t see_trace(void* context, int64_t index, const float* logits, size_t count) {
  CHECK(context == traced && count == kVocab);
  memcpy(traced[index], logits, sizeof traced[0]);
  return 0;
}

static int asked;
static int32_t ask(void* context) {
  ++asked;
  return *(int*)context;
}

static void a_thread_can_end_what_it_waits_for(void) {
  int answer = 0;
  stet_session* session = session_of(0, 40);
  stet_session* plain = session_of(0, 40);
  stet_trace* trace = NULL;
  OK(stet_trace_new(plain, ids + 40, 20, &trace, &error));
  stet_set_interrupt(ask, &answer);
  asked = 0;
  OK(stet_session_append(session, ids + 40, 1, &error));
  CHECK(asked > 0);
  OK(stet_session_append(plain, ids + 40, 1, &error));
  answer = 1;
  FAILS(stet_session_append(session, ids + 41, 20, &error), STET_ERROR_CANCELED,
        "interrupt: the caller cancelled the call: its interrupt function did not return 0");
  CHECK(info_of(session).size == 41);
  stet_reply* reply = NULL;
  FAILS(stet_session_generate(session, NULL, NULL, &reply, &error), STET_ERROR_CANCELED,
        "interrupt: the caller cancelled the call: its interrupt function did not return 0");
  CHECK(reply == NULL && info_of(session).size == 41);
  const stet_batch_entry entries[] = {{session, ids + 41, 20}, {plain, ids + 41, 20}};
  FAILS(stet_batch_append(entries, 2, &error), STET_ERROR_CANCELED,
        "interrupt: the caller cancelled the call: its interrupt function did not return 0");
  const stet_intervention change = {.struct_size = sizeof change,
                                    .point = "blocks.3.hook_resid_mid",
                                    .op = STET_SCALE,
                                    .end = 60};
  FAILS(stet_trace_run(trace, &change, 1, see_trace, traced, &error), STET_ERROR_CANCELED,
        "interrupt: the caller cancelled the call: its interrupt function did not return 0");
  stet_set_interrupt(NULL, NULL);
  check_same_logits(session, plain, 1);
  OK(stet_batch_append(entries, 2, &error));
  check_same_logits(session, plain, 1);
  char expected[72];
  id_with(NULL, 0, 61, expected);
  check_id(session, expected);
  stet_trace_free(trace);
  stet_session_free(session);
  stet_session_free(plain);
}

int test_interventions(void) {
  OK(stet_model_load(TINY, NULL, &model, &error));
  for (int i = 0; i < kTokens; ++i) ids[i] = (i * 97 + 13) % kVocab;
  a_capture_says_how_far_it_has_come();
  points_say_their_shapes();
  interventions_are_listed_and_detached();
  a_change_is_detached_after_a_shift();
  weights_are_read_by_their_names();
  a_thread_can_end_what_it_waits_for();
  stet_model_free(model);
  return 0;
}
