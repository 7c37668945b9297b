/* Snapshots, verifying and comparing through the C interface. */
#include <math.h>

#include "check.h"
#include "oracle.h"

enum { kTokens = 150 };

static stet_model* model;
static int32_t ids[kTokens];

static stet_session* session_of(size_t count) {
  stet_session* session = NULL;
  OK(stet_session_new(model, NULL, &session, &error));
  OK(stet_session_append(session, ids, count, &error));
  return session;
}

static stet_digests digests_of(stet_session* session) {
  stet_digests digests = {.struct_size = sizeof digests};
  OK(stet_session_get_digests(session, &digests, &error));
  return digests;
}

static stet_snapshot* opened(const char* path) {
  stet_snapshot* snapshot = NULL;
  OK(stet_snapshot_open(path, NULL, &snapshot, &error));
  return snapshot;
}

static stet_session* restored(const stet_snapshot* snapshot) {
  stet_session* session = NULL;
  OK(stet_snapshot_restore(snapshot, model, NULL, NULL, NULL, NULL, &session, &error));
  return session;
}

/* All state digests are equal, and so are the logits of one more token. */
static void check_same(stet_session* a, stet_session* b) {
  stet_digests x = digests_of(a), y = digests_of(b);
  CHECK(memcmp(&x, &y, sizeof x) == 0);
  stet_session* sessions[] = {a, b};
  const float* logits[2];
  size_t count = 0;
  for (int i = 0; i < 2; ++i) {
    OK(stet_session_append(sessions[i], ids, 1, &error));
    OK(stet_session_logits(sessions[i], &logits[i], &count, &error));
  }
  CHECK_FLOATS(logits[0], logits[1], count);
}

static char* content_of(const char* path, size_t* size) {
  FILE* file = fopen(path, "rb");
  CHECK(file != NULL && fseek(file, 0, SEEK_END) == 0);
  *size = (size_t)ftell(file);
  rewind(file);
  char* bytes = malloc(*size);
  CHECK(bytes != NULL && fread(bytes, 1, *size, file) == *size);
  fclose(file);
  return bytes;
}

static void write_bytes(const char* path, const char* bytes, size_t size) {
  FILE* file = fopen(path, "wb");
  CHECK(file != NULL && fwrite(bytes, 1, size, file) == size && fclose(file) == 0);
}

static void every_form_restores_the_same_bytes(void) {
  stet_session* half = session_of(70);
  OK(stet_session_save(half, NULL, "parent.stet", NULL, NULL, &error));
  stet_session_free(half);
  stet_snapshot* parent = opened("parent.stet");
  const stet_save_options forms[] = {
      {.struct_size = sizeof forms[0]},
      {.struct_size = sizeof forms[0], .mode = 0644, .threads = 1},
      {.struct_size = sizeof forms[0], .form = STET_FORM_DELTA, .parent = parent},
      {.struct_size = sizeof forms[0], .form = STET_FORM_RECIPE}};
  for (size_t i = 0; i < sizeof forms / sizeof *forms; ++i) {
    stet_session* session = session_of(kTokens);
    stet_digests saved = {.struct_size = sizeof saved}, found = saved, as = digests_of(session);
    OK(stet_session_save(session, NULL, "form.stet", &forms[i], &saved, &error));
    CHECK(memcmp(&saved, &as, sizeof saved) == 0);
    stet_snapshot* snapshot = opened("form.stet");
    stet_snapshot_info info = {.struct_size = sizeof info};
    OK(stet_snapshot_get_info(snapshot, &info, &error));
    CHECK(info.form == forms[i].form && info.positions == kTokens && info.capacity == 512);
    CHECK(info.contract == STET_CONTRACT_F32 && info.kv_type == STET_KV_F32);
    CHECK(info.has_logits == (info.form != STET_FORM_RECIPE) && info.has_weights == 0);
    CHECK(info.layers == 7 && info.kv_heads == 2 && info.head_dim == 16 && info.messages == 0);
    CHECK_TEXT(info.path, "form.stet");
    CHECK_TEXT(info.contract_name, "f32");
    CHECK_TEXT(info.checkpoint, "gemma3-tiny");
    CHECK_TEXT(info.parent_file, info.form == STET_FORM_DELTA ? "parent.stet" : "");
    OK(stet_snapshot_get_digests(snapshot, &found, &error));
    CHECK(memcmp(&saved, &found, sizeof saved) == 0);
    const int32_t* tokens = NULL;
    const float* logits = NULL;
    const float* live = NULL;
    size_t count = 0;
    OK(stet_snapshot_tokens(snapshot, &tokens, &count, &error));
    CHECK(count == kTokens && memcmp(tokens, ids, sizeof ids) == 0);
    OK(stet_session_logits(session, &live, &count, &error));
    OK(stet_snapshot_logits(snapshot, &logits, &count, &error));
    CHECK((logits == NULL) == (info.form == STET_FORM_RECIPE));
    if (logits != NULL) CHECK_FLOATS(logits, live, count);

    stet_check_report report = {.struct_size = sizeof report};
    OK(stet_snapshot_check(snapshot, 1, &report, &error));
    CHECK(report.blocks == (info.form == STET_FORM_RECIPE ? 0 : 3) && report.files == 0);
    stet_session* again = restored(snapshot);
    stet_snapshot_free(snapshot);
    check_same(session, again);
    stet_session_free(again);
    stet_session_free(session);
  }
  stet_save_options wrong = {.struct_size = sizeof wrong, .form = STET_FORM_DELTA};
  stet_session* session = session_of(3);
  FAILS(stet_session_save(session, NULL, "wrong.stet", &wrong, NULL, &error), STET_ERROR_ARGUMENT,
        "parent: expected the snapshot that a delta is made against, found NULL");
  wrong.form = STET_FORM_FULL;
  wrong.parent = parent;
  FAILS(stet_session_save(session, NULL, "wrong.stet", &wrong, NULL, &error), STET_ERROR_ARGUMENT,
        "parent: only the form STET_FORM_DELTA has a parent");
  wrong.parent = NULL;
  wrong.compress = 10;
  FAILS(stet_session_save(session, NULL, "wrong.stet", &wrong, NULL, &error), STET_ERROR_ARGUMENT,
        "compress: expected 0 .. 9, found 10");
  wrong.compress = 0;
  wrong.form = 3;
  FAILS(stet_session_save(session, NULL, "wrong.stet", &wrong, NULL, &error), STET_ERROR_ARGUMENT,
        "form: expected one of STET_FORM_..., found 3");
  FAILS_WITH(stet_session_save(session, NULL, "no/such/folder.stet", NULL, NULL, &error),
             STET_ERROR_IO, "No such file or directory");
  FAILS(stet_session_save(session, NULL, "", NULL, NULL, &error), STET_ERROR_IO,
        "path: the name is empty; name a file");
  stet_session_free(session);
  stet_snapshot_free(parent);
}

static void a_delta_opens_with_its_parent(void) {
  stet_session* session = session_of(70);
  OK(stet_session_save(session, NULL, "elsewhere", NULL, NULL, &error));
  stet_snapshot* parent = opened("elsewhere");
  const stet_save_options delta = {
      .struct_size = sizeof delta, .form = STET_FORM_DELTA, .parent = parent};
  OK(stet_session_append(session, ids + 70, 80, &error));
  OK(stet_session_save(session, NULL, "delta.stet", &delta, NULL, &error));
  stet_snapshot_free(parent);
  CHECK(rename("elsewhere", "moved") == 0);
  stet_snapshot* snapshot = NULL;
  OK(stet_snapshot_open("delta.stet", "moved", &snapshot, &error));
  stet_session* again = restored(snapshot);
  check_same(session, again);
  stet_session_free(session);
  stet_session_free(again);
  stet_snapshot_free(snapshot);
  FAILS_WITH(stet_snapshot_open("delta.stet", "missing", &snapshot, &error), STET_ERROR_IO,
             "No such file or directory");
  CHECK(snapshot == NULL);
  FAILS(stet_snapshot_open("moved", "missing", &snapshot, &error), STET_ERROR_ARGUMENT,
        "moved: parent: expected none, since the snapshot is not a delta, found one");
  CHECK(remove("moved") == 0);
}

static void count_release(void* context) { ++*(int*)context; }

static void it_is_read_from_bytes(void) {
  stet_session* session = session_of(kTokens);
  OK(stet_session_save(session, NULL, "bytes.stet", NULL, NULL, &error));
  size_t size = 0;
  char* bytes = content_of("bytes.stet", &size);
  int released = 0;
  stet_snapshot* snapshot = NULL;
  OK(stet_snapshot_open_bytes(bytes, size, "flash", count_release, &released, &snapshot, &error));
  stet_session* again = restored(snapshot);
  CHECK(released == 0);
  stet_snapshot_free(snapshot);
  CHECK(released == 1);
  memset(bytes, 0, size); /* the restored session does not read them */
  check_same(session, again);
  FAILS_WITH(
      stet_snapshot_open_bytes(bytes, size, "flash", count_release, &released, &snapshot, &error),
      STET_ERROR_FORMAT, "");
  CHECK(released == 2 && snapshot == NULL);
  CHECK(stet_snapshot_open_bytes(bytes, size, "flash", throwing_release, NULL, &snapshot, NULL) ==
        STET_ERROR_FORMAT);
  free(bytes);
  stet_session_free(session);
  stet_session_free(again);
}

static void it_is_saved_as_bytes(void) {
  stet_session* session = session_of(kTokens);
  stet_digests expected = {.struct_size = sizeof expected}, digests = expected;
  OK(stet_session_save(session, NULL, "saved.stet", NULL, &expected, &error));
  size_t size = 0, count = 0;
  char* file = content_of("saved.stet", &count);
  void* bytes = NULL;
  OK(stet_session_save_bytes(session, NULL, NULL, &bytes, &size, &digests, &error));
  CHECK(size == count && memcmp(bytes, file, size) == 0);
  CHECK(memcmp(&digests, &expected, sizeof digests) == 0);
  free(file);
  stet_free(bytes);
  const stet_save_options whole = {.struct_size = sizeof whole, .flags = STET_SAVE_WITH_WEIGHTS};
  FAILS(stet_session_save_bytes(session, NULL, &whole, &bytes, &size, NULL, &error),
        STET_ERROR_UNSUPPORTED, "options.flags: expected flags of 0, found 1");
  CHECK(bytes == NULL && size == 0);
  stet_session_free(session);
}

/* The name of bytes is a label: parents beside the file of that name are not searched for. */
static void a_delta_in_memory_gets_its_parent(void) {
  stet_session *session = session_of(kTokens / 2), *longer = session_of(kTokens);
  void *whole = NULL, *delta = NULL;
  size_t whole_size = 0, delta_size = 0;
  int released = 0;
  OK(stet_session_save(session, NULL, "beside.stet", NULL, NULL, &error));
  OK(stet_session_save_bytes(session, NULL, NULL, &whole, &whole_size, NULL, &error));
  stet_snapshot *parent = NULL, *snapshot = NULL, *other = NULL;
  OK(stet_snapshot_open_bytes(whole, whole_size, "whole", count_release, &released, &parent,
                              &error));
  const stet_save_options over = {
      .struct_size = sizeof over, .form = STET_FORM_DELTA, .parent = parent};
  OK(stet_session_save_bytes(longer, NULL, &over, &delta, &delta_size, NULL, &error));
  OK(stet_snapshot_open_bytes(delta, delta_size, "beside.stet", NULL, NULL, &snapshot, &error));
  stet_session* again = NULL;
  char expected[300];
  snprintf(expected, sizeof expected,
           "beside.stet: parent: the delta needs the snapshot of state %s; a delta in memory has "
           "to be opened with its parent",
           digests_of(session).id);
  FAILS(stet_snapshot_restore(snapshot, model, NULL, NULL, NULL, NULL, &again, &error),
        STET_ERROR_IO, expected);
  FAILS(
      stet_snapshot_open_bytes_over(whole, whole_size, "whole", parent, NULL, NULL, &other, &error),
      STET_ERROR_ARGUMENT,
      "whole: parent: expected none, since the snapshot is not a delta, found one");
  FAILS(stet_snapshot_open_bytes_over(delta, delta_size, "delta", NULL, NULL, NULL, &other, &error),
        STET_ERROR_ARGUMENT, "parent: expected not NULL, found NULL");
  stet_snapshot_free(snapshot);
  OK(stet_snapshot_open_bytes_over(delta, delta_size, "delta", parent, count_release, &released,
                                   &snapshot, &error));
  stet_snapshot_free(parent);
  CHECK(released == 0); /* the delta needs the bytes of its parent */
  again = restored(snapshot);
  stet_snapshot_free(snapshot);
  CHECK(released == 2);
  stet_free(whole);
  stet_free(delta);
  check_same(longer, again);
  stet_session_free(session);
  stet_session_free(longer);
  stet_session_free(again);
}

static void damage_is_found_and_healed(void) {
  stet_session* session = session_of(kTokens);
  OK(stet_session_save(session, NULL, "damaged.stet", NULL, NULL, &error));
  size_t size = 0;
  char* bytes = content_of("damaged.stet", &size);
  write_bytes("cut.stet", bytes, size / 2);
  FAILS_WITH(stet_snapshot_open("cut.stet", NULL, &(stet_snapshot*){NULL}, &error),
             STET_ERROR_FORMAT, "");
  write_bytes("empty.stet", "", 0);
  FAILS_WITH(stet_snapshot_open("empty.stet", NULL, &(stet_snapshot*){NULL}, &error),
             STET_ERROR_FORMAT, "");
  FAILS_WITH(stet_snapshot_open("missing.stet", NULL, &(stet_snapshot*){NULL}, &error),
             STET_ERROR_IO, "No such file or directory");

  float key[16], *x = key;
  OK(stet_session_get_key(session, 0, 0, 0, x, 16, &error));
  size_t at = size; /* place of the first key; the keys of its dimension 0 are consecutive */
  for (size_t i = 0; i + 4 <= size && at == size; i += 4096) {
    if (memcmp(bytes + i, key, 4) == 0) at = i;
  }
  CHECK(at < size);
  bytes[at] ^= 1;
  write_bytes("damaged.stet", bytes, size);
  free(bytes);
  stet_snapshot* snapshot = opened("damaged.stet");
  FAILS_WITH(stet_snapshot_check(snapshot, 0, NULL, &error), STET_ERROR_FORMAT, "");
  stet_session* again = NULL;
  stet_restore_options how = {.struct_size = sizeof how, .flags = STET_RESTORE_CHECK};
  CHECK(stet_snapshot_restore(snapshot, model, NULL, NULL, &how, NULL, &again, &error) ==
        STET_ERROR_FORMAT);
  CHECK(strstr(error->field, "KV block 0") != NULL && strstr(error->file, "damaged.stet") != NULL);
  stet_error_free(error);
  error = NULL;
  how.flags = STET_RESTORE_HEAL | STET_RESTORE_IN_MEMORY;
  stet_restore_report report = {.struct_size = sizeof report};
  OK(stet_snapshot_restore(snapshot, model, NULL, NULL, &how, &report, &again, &error));
  CHECK(report.healed == 1 && report.checked == 1 && report.recomputed >= 64);
  check_same(session, again);
  stet_session_free(again);

  /* Verifying recomputes the state from its tokens and names the damaged element. */
  stet_difference* difference = NULL;
  stet_verify_report proved = {.struct_size = sizeof proved};
  OK(stet_snapshot_verify(snapshot, model, NULL, NULL, &proved, &difference, &error));
  CHECK(difference != NULL && difference->position == 0 && difference->layer == 0);
  CHECK_TEXT(difference->what, "key");
  CHECK_TEXT(difference->where, "position 0, layer 0, key, head 0, element 0");
  CHECK(difference->expected_number == (double)key[0]);
  CHECK(difference->found_number != difference->expected_number);
  CHECK(strncmp(difference->text, difference->where, strlen(difference->where)) == 0);
  CHECK(difference->expected[0] != '\0' && difference->found[0] != '\0');
  stet_difference_free(difference);
  how.flags = STET_RESTORE_TRUST;
  OK(stet_snapshot_restore(snapshot, model, NULL, NULL, &how, NULL, &again, &error));
  OK(stet_session_verify(again, &difference, &error));
  CHECK(difference != NULL && difference->head == 0 && difference->element == 0);
  stet_difference_free(difference);
  stet_session_free(again);
  how.flags = STET_RESTORE_TRUST | STET_RESTORE_CHECK;
  FAILS(stet_snapshot_restore(snapshot, model, NULL, NULL, &how, NULL, &again, &error),
        STET_ERROR_ARGUMENT, "trust: trust, which uses blocks unchecked, excludes check");
  how.flags = STET_RESTORE_TRUST | STET_RESTORE_HEAL;
  FAILS(stet_snapshot_restore(snapshot, model, NULL, NULL, &how, NULL, &again, &error),
        STET_ERROR_ARGUMENT, "trust: trust, which uses blocks unchecked, excludes heal");
  how.flags = 64;
  FAILS(stet_snapshot_restore(snapshot, model, NULL, NULL, &how, NULL, &again, &error),
        STET_ERROR_UNSUPPORTED, "how.flags: expected flags of 31, found 64");
  CHECK(again == NULL);
  stet_snapshot_free(snapshot);
  stet_session_free(session);
}

static void other_models_are_refused(void) {
  stet_session* session = session_of(9);
  OK(stet_session_save(session, NULL, "own.stet", NULL, NULL, &error));
  stet_snapshot* snapshot = opened("own.stet");
  stet_model* other = NULL;
  OK(stet_model_load(OTHER, NULL, &other, &error));
  stet_session* again = NULL;
  CHECK(stet_snapshot_restore(snapshot, other, NULL, NULL, NULL, NULL, &again, &error) ==
        STET_ERROR_MISMATCH);
  CHECK(error->kind == STET_ERROR_MISMATCH && again == NULL);
  CHECK_TEXT(error->file, "own.stet");
  stet_error_free(error);
  error = NULL;
  CHECK(stet_snapshot_verify(snapshot, other, NULL, NULL, NULL, &(stet_difference*){NULL}, NULL) ==
        STET_ERROR_MISMATCH);

  stet_session_options options = {.struct_size = sizeof options, .kv_type = STET_KV_BF16};
  FAILS(stet_snapshot_restore(snapshot, model, NULL, &options, NULL, NULL, &again, &error),
        STET_ERROR_MISMATCH,
        "own.stet: kv_type: the snapshot holds f32; STET_RESTORE_REPLAY computes it again as bf16");
  const stet_restore_options replay = {.struct_size = sizeof replay, .flags = STET_RESTORE_REPLAY};
  stet_restore_report report = {.struct_size = sizeof report};
  OK(stet_snapshot_restore(snapshot, model, NULL, &options, &replay, &report, &again, &error));
  CHECK(report.recomputed == 9 && report.reused == 0);
  stet_session_info info = {.struct_size = sizeof info};
  OK(stet_session_get_info(again, &info, &error));
  CHECK(info.kv_type == STET_KV_BF16 && info.size == 9);
  stet_session_free(again);
  options.kv_type = STET_KV_DEFAULT;
  options.capacity = 8;
  FAILS_WITH(stet_snapshot_restore(snapshot, model, NULL, &options, NULL, NULL, &again, &error),
             STET_ERROR_CAPACITY, "found 9");
  FAILS(stet_snapshot_verify(snapshot, model, &options, NULL, NULL, &(stet_difference*){NULL},
                             &error),
        STET_ERROR_ARGUMENT, "capacity: expected 0, which takes the snapshot's, found 8");
  stet_model_free(other);
  stet_snapshot_free(snapshot);
  stet_session_free(session);
}

static void snapshots_are_converted(void) {
  stet_session* session = session_of(kTokens);
  OK(stet_session_save(session, NULL, "from.stet", NULL, NULL, &error));
  stet_snapshot* snapshot = opened("from.stet");
  const stet_prune_options prune = {
      .struct_size = sizeof prune, .flags = STET_PRUNE_SHIFT, .keep_last = 50, .sinks = 2};
  const stet_convert_options options = {
      .struct_size = sizeof options, .prune = &prune, .capacity = 300};
  int64_t pruned = 0;
  stet_digests digests = {.struct_size = sizeof digests};
  OK(stet_snapshot_convert(snapshot, "to.stet", &options, NULL, &pruned, &digests, &error));
  CHECK(pruned == 98);
  OK(stet_session_prune(session, &prune, &pruned, &error));
  const stet_digests live = digests_of(session);
  CHECK(memcmp(&live, &digests, sizeof live) == 0);
  stet_snapshot* converted = opened("to.stet");
  stet_snapshot_info info = {.struct_size = sizeof info};
  OK(stet_snapshot_get_info(converted, &info, &error));
  CHECK(info.positions == 52 && info.capacity == 300 && info.prunes == 1 && info.edits == 0);
  stet_snapshot_free(converted);

  const stet_convert_options rounded = {.struct_size = sizeof rounded, .kv_type = STET_KV_F16};
  const stet_save_options recipe = {.struct_size = sizeof recipe, .form = STET_FORM_RECIPE};
  OK(stet_snapshot_convert(snapshot, "to.stet", &rounded, NULL, NULL, NULL, &error));
  converted = opened("to.stet");
  OK(stet_snapshot_get_info(converted, &info, &error));
  CHECK(info.kv_type == STET_KV_F16 && info.edits == 1);
  stet_verify_report nothing = {.struct_size = sizeof nothing};
  stet_difference* unequal = NULL;
  OK(stet_snapshot_verify(converted, model, NULL, NULL, &nothing, &unequal, &error));
  CHECK(unequal == NULL && nothing.blocks == 0 && nothing.of == 3 && nothing.whole == 0);
  CHECK(nothing.position == 0 && nothing.logits == 0);
  CHECK_TEXT(nothing.reason, "keys and values were rounded to another type");
  stet_snapshot_free(converted);
  OK(stet_snapshot_convert(snapshot, "to.stet", NULL, &recipe, NULL, NULL, &error));
  converted = opened("to.stet");
  FAILS_WITH(stet_snapshot_convert(converted, "again.stet", NULL, NULL, NULL, NULL, &error),
             STET_ERROR_ARGUMENT,
             "and this needs keys and values; restore it with its model, as stet convert does");
  stet_snapshot_free(converted);
  const stet_save_options weights = {.struct_size = sizeof weights,
                                     .flags = STET_SAVE_WITH_WEIGHTS};
  FAILS(stet_snapshot_convert(snapshot, "to.stet", NULL, &weights, NULL, NULL, &error),
        STET_ERROR_UNSUPPORTED, "options.flags: expected flags of 0, found 1");
  stet_snapshot_free(snapshot);
  stet_session_free(session);
}

static void states_are_verified_and_compared(void) {
  stet_session* a = session_of(kTokens);
  stet_session* b = session_of(100);
  OK(stet_session_append(b, ids, 50, &error)); /* other tokens from 100 on */
  OK(stet_session_save(a, NULL, "a.stet", NULL, NULL, &error));
  OK(stet_session_save(b, NULL, "b.stet", NULL, NULL, &error));
  stet_snapshot *x = opened("a.stet"), *y = opened("b.stet");
  stet_difference* difference = NULL;
  stet_verify_report report = {.struct_size = sizeof report};
  const stet_verify_options bisect = {.struct_size = sizeof bisect, .flags = STET_VERIFY_BISECT};
  const stet_session_options one = {.struct_size = sizeof one, .threads = 1, .chunk = 13};
  OK(stet_snapshot_verify(x, model, &one, NULL, &report, &difference, &error));
  CHECK(difference == NULL && report.tokens == kTokens && report.blocks == 3 && report.of == 3);
  OK(stet_snapshot_verify(x, model, NULL, &bisect, NULL, &difference, &error));
  CHECK(difference == NULL);
  OK(stet_session_verify(a, &difference, &error));
  CHECK(difference == NULL);
  OK(stet_session_verify_with_report(a, &report, &difference, &error));
  CHECK(difference == NULL && report.whole == 1 && report.blocks == 3 && report.logits == 1);
  CHECK(report.position == -1 && report.reason[0] == '\0' && report.by_digests == 0);

  OK(stet_session_first_difference(a, a, 0, &difference, &error));
  CHECK(difference == NULL);
  OK(stet_session_first_difference(a, b, 0, &difference, &error));
  CHECK(difference != NULL && difference->position == 100 && difference->layer == -1);
  CHECK_TEXT(difference->what, "token");
  stet_difference_free(difference);
  FAILS(stet_session_first_difference(a, b, NAN, &difference, &error), STET_ERROR_ARGUMENT,
        "tolerance: expected 0 or more, found nan");

  stet_comparison *live = NULL, *files = NULL;
  OK(stet_session_compare(a, b, &live, &error));
  OK(stet_snapshot_compare(x, y, &files, &error));
  stet_comparison_info info = {.struct_size = sizeof info}, same = info;
  OK(stet_comparison_get_info(live, &info, &error));
  CHECK(info.equal == 0 && info.common_tokens == 100 && info.equal_positions == 100);
  CHECK(info.layers == 7 && info.a_from_b > 0 && info.b_from_a > 0);
  OK(stet_comparison_get_info(files, &same, &error));
  CHECK(same.equal_positions == 100 && same.a_from_b == info.a_from_b);
  int keys = 0;
  for (size_t i = 0; i < info.parts; ++i) {
    stet_comparison_part part = {.struct_size = sizeof part};
    OK(stet_comparison_get_part(live, i, &part, &error));
    CHECK(part.note != NULL && part.compared == 1);
    if (strcmp(part.name, "keys") != 0) continue;
    CHECK(part.difference != NULL && part.difference->position == 100);
    ++keys;
  }
  CHECK(keys == 1);
  stet_comparison_layer layer = {.struct_size = sizeof layer};
  OK(stet_comparison_get_layer(live, 0, &layer, &error));
  CHECK(layer.key_largest > layer.key_rms && layer.key_rms > 0 && layer.value_rms > 0);
  FAILS(stet_comparison_get_layer(live, 7, &layer, &error), STET_ERROR_ARGUMENT,
        "index: expected an index below 7, found 7");
  stet_comparison_free(live);
  stet_comparison_free(files);
  stet_snapshot_free(x);
  stet_snapshot_free(y);

  float set[16] = {0};
  OK(stet_session_set_key(a, 0, 0, 0, set, 16, &error));
  OK(stet_session_verify_with_report(a, &report, &difference, &error));
  CHECK(difference == NULL && report.whole == 0 && report.blocks == 2 && report.of == 3);
  CHECK(report.logits == 1 && report.position == 0);
  CHECK_TEXT(report.reason, "the key of position 0, layer 0, head 0 was set");
  stet_session_free(a);
  stet_session_free(b);
}

static void a_snapshot_brings_its_model_along(void) {
  stet_model* pocket = NULL;
  stet_tokenizer* tokenizer = NULL;
  stet_session *session = NULL, *again = NULL;
  OK(stet_model_load(POCKET, NULL, &pocket, &error));
  OK(stet_tokenizer_load(POCKET, &tokenizer, &error));
  OK(stet_session_new(pocket, NULL, &session, &error));
  OK(stet_session_append(session, ids, 9, &error));
  const stet_save_options all = {.struct_size = sizeof all,
                                 .flags = STET_SAVE_WITH_WEIGHTS | STET_SAVE_WITH_TOKENIZER};
  OK(stet_session_save(session, tokenizer, "all.stet", &all, NULL, &error));
  const stet_save_options missing = {.struct_size = sizeof missing,
                                     .flags = STET_SAVE_WITH_TOKENIZER};
  FAILS(stet_session_save(session, NULL, "none.stet", &missing, NULL, &error), STET_ERROR_ARGUMENT,
        "tokenizer: expected not NULL, found NULL");
  stet_model_free(pocket);
  stet_tokenizer_free(tokenizer);

  size_t size = 0;
  int released = 0;
  char* bytes = content_of("all.stet", &size);
  stet_snapshot* snapshot = NULL;
  OK(stet_snapshot_open_bytes(bytes, size, "flash", count_release, &released, &snapshot, &error));
  stet_snapshot_info info = {.struct_size = sizeof info};
  OK(stet_snapshot_get_info(snapshot, &info, &error));
  CHECK(info.has_weights == 1 && info.has_tokenizer == 1);
  CHECK(strlen(info.tokenizer_fingerprint) == 37);
  OK(stet_snapshot_load_model(snapshot, NULL, &pocket, &error));
  OK(stet_snapshot_load_tokenizer(snapshot, &tokenizer, &error));
  OK(stet_snapshot_restore(snapshot, pocket, tokenizer, NULL, NULL, NULL, &again, &error));
  stet_snapshot_free(snapshot);
  stet_tokenizer_free(tokenizer);
  stet_model_free(pocket);
  check_same(session, again);
  stet_session_free(session);
  CHECK(released == 0); /* the restored session's model still reads from the bytes */
  stet_session_free(again);
  CHECK(released == 1);
  free(bytes);

  snapshot = opened("own.stet");
  FAILS(stet_snapshot_load_model(snapshot, NULL, &pocket, &error), STET_ERROR_ARGUMENT,
        "own.stet: weights: the snapshot was saved without it");
  FAILS(stet_snapshot_load_tokenizer(snapshot, &tokenizer, &error), STET_ERROR_ARGUMENT,
        "own.stet: tokenizer: the snapshot was saved without it");
  stet_snapshot_free(snapshot);
}

static void a_model_is_made_of_bytes_and_packed(void) {
  stet_file files[2] = {{.name = "config.json"}, {.name = "model.safetensors"}};
  char* bytes[2] = {content_of(TINY "/config.json", &files[0].size),
                    content_of(TINY "/model.safetensors", &files[1].size)};
  for (int i = 0; i < 2; ++i) files[i].data = bytes[i];
  int released = 0;
  stet_model *lent = NULL, *copied = NULL, *none = NULL;
  OK(stet_model_load_files(files, 2, "flash", count_release, &released, NULL, &lent, &error));
  const stet_model_options in_memory = {
      .struct_size = sizeof in_memory, .flags = STET_MODEL_IN_MEMORY, .threads = 1};
  OK(stet_model_load(TINY, &in_memory, &copied, &error));
  stet_model_info a = {.struct_size = sizeof a}, b = a;
  OK(stet_model_get_info(lent, &a, &error));
  OK(stet_model_get_info(model, &b, &error));
  CHECK_TEXT(a.fingerprint, b.fingerprint);
  CHECK_TEXT(a.source, "flash");
  stet_model* models[] = {lent, copied};
  stet_session* expected = session_of(70);
  const stet_digests live = digests_of(expected);
  for (int i = 0; i < 2; ++i) {
    stet_session* session = NULL;
    OK(stet_session_new(models[i], NULL, &session, &error));
    stet_model_free(models[i]);
    OK(stet_session_append(session, ids, 70, &error));
    const stet_digests found = digests_of(session);
    CHECK(memcmp(&found, &live, sizeof live) == 0);
    CHECK(released == 0 || i == 1);
    stet_session_free(session);
    CHECK(released == 1);
  }
  stet_session_free(expected);
  FAILS_WITH(
      stet_model_load_files(files, 1, "flash", count_release, &released, NULL, &none, &error),
      STET_ERROR_IO, "");
  CHECK(released == 2 && none == NULL);
  for (int i = 0; i < 2; ++i) free(bytes[i]);

  uint64_t checked = 0;
  remove("packed/config.json");
  remove("packed/packed.safetensors");
  OK(stet_model_pack(TINY, "packed", STET_CONTRACT_Q8, 0, &error));
  OK(stet_model_check_packed("packed", 0, &checked, &error));
  CHECK(checked > 0);
  OK(stet_model_load("packed", NULL, &lent, &error));
  OK(stet_model_get_info(lent, &a, &error));
  CHECK(a.contract == STET_CONTRACT_Q8);
  stet_session* session = NULL;
  OK(stet_session_new(lent, NULL, &session, &error)); /* takes the contract of the weights */
  stet_session_info info = {.struct_size = sizeof info};
  OK(stet_session_get_info(session, &info, &error));
  CHECK_TEXT(info.contract_name, "q8");
  OK(stet_session_append(session, ids, 9, &error));
  OK(stet_session_save(session, NULL, "q8.stet", NULL, NULL, &error));
  stet_snapshot* snapshot = opened("q8.stet");
  stet_session* again = NULL;
  OK(stet_snapshot_restore(snapshot, lent, NULL, NULL, NULL, NULL, &again, &error));
  check_same(session, again);
  stet_session_free(again);
  stet_snapshot_free(snapshot);
  stet_session_free(session);
  stet_model_free(lent);
  FAILS_WITH(stet_model_check_packed(TINY, 0, &checked, &error), STET_ERROR_UNSUPPORTED,
             "packed.safetensors: the checkpoint has no packed weights");
  FAILS_WITH(stet_model_load("no/such/place", NULL, &lent, &error), STET_ERROR_IO,
             "found nothing of that name");
}

int test_snapshot(void) {
  OK(stet_model_load(TINY, NULL, &model, &error));
  for (int i = 0; i < kTokens; ++i) ids[i] = (i * 97 + 13) % 320;
  every_form_restores_the_same_bytes();
  a_delta_opens_with_its_parent();
  it_is_read_from_bytes();
  it_is_saved_as_bytes();
  a_delta_in_memory_gets_its_parent();
  damage_is_found_and_healed();
  other_models_are_refused();
  snapshots_are_converted();
  states_are_verified_and_compared();
  a_snapshot_brings_its_model_along();
  a_model_is_made_of_bytes_and_packed();
  stet_model_free(model);
  return 0;
}
