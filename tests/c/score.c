/* Scores through the C interface are the log-probabilities of the logits that appending gives. */
#include "check.h"
#include "oracle.h"

enum { kVocab = 320, kMost = 60, kRequests = 5 };

static stet_model* model;
static int32_t ids[kMost];

typedef struct Seen {
  stet_token_score tokens[kRequests][kMost];
  size_t counts[kRequests];
  int calls, stops_at;
} Seen;

static int32_t see(void* context, size_t index, const stet_token_score* tokens, size_t count) {
  Seen* seen = context;
  CHECK(index < kRequests && count <= kMost);
  if (count > 0) memcpy(seen->tokens[index], tokens, count * sizeof *tokens);
  seen->counts[index] = count;
  return ++seen->calls == seen->stops_at;
}

/* Compares the scores of all[begin ..] with the logits of separate sessions, one for each token. */
static void check_alone(const Seen* seen, size_t index, const int32_t* all, size_t count,
                        size_t begin) {
  CHECK(seen->counts[index] == count - begin);
  for (size_t i = begin; i < count; ++i) {
    stet_session* session = NULL;
    OK(stet_session_new(model, NULL, &session, &error));
    OK(stet_session_append(session, all, i, &error));
    const float* logits = NULL;
    size_t size = 0;
    double expected = 0;
    OK(stet_session_logits(session, &logits, &size, &error));
    OK(stet_log_probability(logits, size, all[i], &expected, &error));
    const stet_token_score* const token = &seen->tokens[index][i - begin];
    CHECK(token->id == all[i] && token->log_probability == expected);
    CHECK(logits[token->best] >= logits[all[i]]);
    stet_session_free(session);
  }
}

static void requests_are_scored(void) {
  stet_session* empty = NULL;
  OK(stet_session_new(model, NULL, &empty, &error));
  const stet_score_request requests[kRequests] = {
      {ids, 60, 1}, {ids, 50, 49}, {ids + 3, 4, 2}, {ids, 1, 1}, {NULL, 0, 0}};
  for (size_t batch = 0; batch < 3; ++batch) {
    Seen seen = {.calls = 0};
    const stet_score_options options = {.struct_size = sizeof options, .batch = batch};
    OK(stet_session_score(empty, requests, kRequests, &options, see, &seen, &error));
    CHECK(seen.calls == kRequests);
    check_alone(&seen, 0, ids, 60, 1);
    check_alone(&seen, 1, ids, 50, 49);
    check_alone(&seen, 2, ids + 3, 4, 2);
    CHECK(seen.counts[3] == 0 && seen.counts[4] == 0);
  }
  stet_session* before = NULL;
  OK(stet_session_new(model, NULL, &before, &error));
  OK(stet_session_append(before, ids, 20, &error));
  const stet_score_request behind = {ids + 20, 10, 0};
  Seen seen = {.calls = 0};
  OK(stet_session_score(before, &behind, 1, NULL, see, &seen, &error));
  check_alone(&seen, 0, ids, 30, 20);
  Seen stopped = {.calls = 0, .stops_at = 1};
  FAILS_WITH(stet_session_score(empty, requests, kRequests, NULL, see, &stopped, &error),
             STET_ERROR_CANCELED, "its callback did not return 0");
  CHECK(stopped.calls == 1);
  stet_session_free(before);
  stet_session_free(empty);
}

static int32_t change(void* session, size_t index, const stet_token_score* tokens, size_t count) {
  (void)index, (void)tokens, (void)count;
  FAILS(stet_session_append(session, ids, 2, &error), STET_ERROR_ARGUMENT,
        "append: expected a call after score() has returned, found a call from its callback");
  return 0;
}

static void callbacks_may_not_change_the_session(void) {
  stet_session* session = NULL;
  OK(stet_session_new(model, NULL, &session, &error));
  const stet_score_request request = {ids, 9, 1};
  OK(stet_session_score(session, &request, 1, NULL, change, session, &error));
  OK(stet_session_append(session, ids, 2, &error));
  stet_session_free(session);
}

static void wrong_requests_are_refused(void) {
  stet_session* empty = NULL;
  OK(stet_session_new(model, NULL, &empty, &error));
  Seen seen = {.calls = 0};
  stet_score_request requests[2] = {{ids, 5, 1}, {ids, 5, 6}};
  FAILS(stet_session_score(empty, requests, 2, NULL, see, &seen, &error), STET_ERROR_ARGUMENT,
        "requests[1]: begin: expected at most the 5 ids, found 6");
  requests[1].begin = 0;
  FAILS(stet_session_score(empty, requests, 2, NULL, see, &seen, &error), STET_ERROR_ARGUMENT,
        "requests[1]: begin: expected at least 1, because no token precedes the first, found 0");
  const int32_t wrong[] = {1, kVocab};
  requests[1] = (stet_score_request){wrong, 2, 1};
  FAILS(stet_session_score(empty, requests, 2, NULL, see, &seen, &error), STET_ERROR_ARGUMENT,
        "requests[1]: ids[1]: expected a token id in 0..319, found 320");
  FAILS(stet_session_score(empty, requests, 1, NULL, NULL, NULL, &error), STET_ERROR_ARGUMENT,
        "on_score: expected not NULL, found NULL");
  CHECK(seen.calls == 0);
  stet_session_free(empty);
}

static void pairs_are_cut_where_the_context_ends(void) {
  static const char kContext[] = "Let a = 3. What is a? ", kText[] = "a is 3.";
  stet_tokenizer* tokenizer = NULL;
  OK(stet_tokenizer_load(POCKET, &tokenizer, &error));
  int32_t *pair = NULL, *context = NULL;
  size_t count = 0, begin = 0, context_count = 0;
  OK(stet_tokenizer_encode_pair(tokenizer, kContext, strlen(kContext), kText, strlen(kText), NULL,
                                &pair, &count, &begin, &error));
  OK(stet_tokenizer_encode(tokenizer, kContext, strlen(kContext) - 1, NULL, &context,
                           &context_count, &error));
  CHECK(begin == context_count && memcmp(pair, context, begin * sizeof *pair) == 0);
  char* text = NULL;
  size_t size = 0;
  OK(stet_tokenizer_decode(tokenizer, pair + 1, count - 1, 0, &text, &size, &error));
  CHECK_TEXT(text, "Let a = 3. What is a? a is 3.");
  stet_free(text);
  stet_free(pair);
  stet_free(context);
  const stet_encode_options wrong = {.struct_size = sizeof wrong, .flags = STET_ENCODE_CONTINUED};
  FAILS_WITH(
      stet_tokenizer_encode_pair(tokenizer, "", 0, kText, 1, &wrong, &pair, &count, &begin, &error),
      STET_ERROR_UNSUPPORTED, "expected flags of 7, found 8");
  CHECK(pair == NULL && count == 0 && begin == 0);
  stet_tokenizer_free(tokenizer);
}

int test_score(void) {
  OK(stet_model_load(TINY, NULL, &model, &error));
  for (int i = 0; i < kMost; ++i) ids[i] = (i * 97 + 13) % kVocab;
  requests_are_scored();
  callbacks_may_not_change_the_session();
  wrong_requests_are_refused();
  pairs_are_cut_where_the_context_ends();
  stet_model_free(model);
  return 0;
}
