/* Sampling and generation through the C interface give the text and the tokens of the C++
 * interface. */
#include <math.h>
#include <stddef.h>

#include "check.h"
#include "oracle.h"

static stet_model* model;
static stet_tokenizer* tokenizer;
static const char kPrompt[] = "Once upon a time there was";

/* Returns a session with the recommended settings and the prompt. */
static stet_session* prompted(void) {
  stet_session* session = NULL;
  OK(stet_session_new(model, NULL, &session, &error));
  OK(stet_session_use_recommended(session, &error));
  int32_t* ids = NULL;
  size_t count = 0;
  OK(stet_tokenizer_encode(tokenizer, kPrompt, strlen(kPrompt), NULL, &ids, &count, &error));
  OK(stet_session_append_prompt(session, ids, count, &error));
  stet_free(ids);
  return session;
}

static void sample_with(stet_session* session, double temperature, uint64_t seed) {
  stet_sampling sampling = {.struct_size = sizeof sampling};
  OK(stet_session_get_sampling(session, &sampling, &error));
  sampling.greedy = 0;
  sampling.temperature = temperature;
  sampling.seed = seed;
  OK(stet_session_set_sampling(session, &sampling, &error));
}

static stet_reply* reply_of(stet_session* session, const stet_generate_options* options) {
  stet_reply* reply = NULL;
  OK(stet_session_generate(session, tokenizer, options, &reply, &error));
  return reply;
}

static void settings_stay_with_the_session(void) {
  stet_session* session = NULL;
  OK(stet_session_new(model, NULL, &session, &error));
  stet_sampling s = {.struct_size = sizeof s}, fresh = s;
  OK(stet_session_get_sampling(session, &s, &error));
  OK(stet_sampling_init(&fresh, &error));
  CHECK(memcmp(&s, &fresh, sizeof s) == 0);
  CHECK(s.greedy == 1 && s.temperature == 1 && s.top_k == 0 && s.top_p == 1 && s.seed == 0);

  s.greedy = 0;
  s.top_p = 0.5;
  s.seed = UINT64_MAX;
  OK(stet_session_set_sampling(session, &s, &error));
  s.top_p = 1.5;
  FAILS_WITH(stet_session_set_sampling(session, &s, &error), STET_ERROR_ARGUMENT, "found 1.5");
  s.top_p = 0.5;
  s.greedy = 2;
  FAILS(stet_session_set_sampling(session, &s, &error), STET_ERROR_ARGUMENT,
        "greedy: expected 0 or 1, found 2");
  stet_sampling found = {.struct_size = sizeof found};
  OK(stet_session_get_sampling(session, &found, &error));
  CHECK(found.top_p == 0.5 && found.seed == UINT64_MAX && found.greedy == 0);

  OK(stet_session_use_recommended(session, &error));
  OK(stet_session_get_sampling(session, &found, &error));
  CHECK(found.top_k == 64 && found.top_p == 0.95 && found.greedy == 1 && found.seed == UINT64_MAX);
  const int32_t* ids = NULL;
  size_t count = 0;
  OK(stet_session_stop_ids(session, &ids, &count, &error));
  CHECK(count == 2 && ids[0] == 1 && ids[1] == 6);
  const int32_t others[] = {7, 8, 9};
  OK(stet_session_set_stop_ids(session, others, 3, &error));
  OK(stet_session_stop_ids(session, &ids, &count, &error));
  CHECK(count == 3 && memcmp(ids, others, sizeof others) == 0);
  const int32_t strange[] = {7, 1620};
  FAILS(stet_session_set_stop_ids(session, strange, 2, &error), STET_ERROR_ARGUMENT,
        "stop_ids[1]: expected a token id in 0..1619, found 1620");
  OK(stet_session_set_stop_ids(session, NULL, 0, &error));
  OK(stet_session_stop_ids(session, &ids, &count, &error));
  CHECK(count == 0 && ids == NULL);

  const stet_text strings[] = {{"\n\n", 2}, {"a\0b", 3}};
  OK(stet_session_set_stop_strings(session, strings, 2, &error));
  stet_text text;
  OK(stet_session_stop_string(session, 1, &text, &error));
  CHECK(text.size == 3 && memcmp(text.data, "a\0b", 4) == 0);
  FAILS(stet_session_stop_string(session, 2, &text, &error), STET_ERROR_ARGUMENT,
        "index: expected an index below 2, found 2");
  const stet_text broken[] = {{"\xFF", 1}};
  FAILS(stet_session_set_stop_strings(session, broken, 1, &error), STET_ERROR_ARGUMENT,
        "stop[0]: expected UTF-8, found \\xff");
  stet_session_info info = {.struct_size = sizeof info};
  OK(stet_session_get_info(session, &info, &error));
  CHECK(info.stop_strings == 2 && info.stop_ids == 0);
  stet_session_free(session);
}

static void replies_are_those_of_cpp(void) {
  char expected[4096];
  oracle_reply(POCKET, kPrompt, 0, 0, 40, expected, sizeof expected);
  stet_session* session = prompted();
  const stet_generate_options options = {.struct_size = sizeof options, .max_tokens = 40};
  stet_reply* reply = reply_of(session, &options);
  CHECK_TEXT(reply->text.data, expected);
  CHECK(reply->text.size == strlen(expected) && reply->id_count > 0);
  stet_turn turn;
  OK(stet_session_turn(session, 0, &turn, &error));
  CHECK(turn.prompt == 0 && turn.reply > 0);
  CHECK(turn.end == turn.reply + (int64_t)reply->id_count);
  CHECK(turn.open == (reply->stop == STET_STOP_LENGTH));
  CHECK(stet_session_turn(session, 1, &turn, NULL) == STET_ERROR_ARGUMENT);
  stet_reply_free(reply);
  stet_session_free(session);

  oracle_reply(POCKET, kPrompt, 0.9, 1234567, 40, expected, sizeof expected);
  session = prompted();
  sample_with(session, 0.9, 1234567);
  reply = reply_of(session, &options);
  CHECK_TEXT(reply->text.data, expected);
  stet_reply_free(reply);
  stet_session_free(session);
}

/* Returns the state after a reply of at most 24 tokens that ignores stop tokens. */
static stet_digests whole_reply(char* text, size_t size) {
  stet_session* session = prompted();
  sample_with(session, 0.8, 5);
  const stet_generate_options options = {
      .struct_size = sizeof options, .flags = STET_GENERATE_IGNORE_EOS, .max_tokens = 24};
  stet_reply* reply = reply_of(session, &options);
  CHECK(reply->stop == STET_STOP_LENGTH && reply->id_count == 24 && reply->text.size < size);
  memcpy(text, reply->text.data, reply->text.size + 1);
  stet_reply_free(reply);
  stet_digests digests = {.struct_size = sizeof digests};
  OK(stet_session_get_digests(session, &digests, &error));
  stet_session_free(session);
  return digests;
}

struct heard {
  int tokens;
  int stop_at; /* tokens */
  char text[4096];
};

static int32_t hear_text(void* context, const char* text, size_t size) {
  struct heard* heard = context;
  CHECK(strlen(text) == size);
  strcat(heard->text, text);
  return 0;
}

static int32_t hear_token(void* context, int32_t id, const float* logits, size_t count) {
  struct heard* heard = context;
  CHECK(count == 1620 && id >= 0 && id < 1620 && logits[id] > -INFINITY);
  return ++heard->tokens == heard->stop_at;
}

static int32_t stop_at_once(void* context, const char* text, size_t size) {
  (void)context, (void)text, (void)size;
  return -1;
}

static void a_reply_may_be_cut_anywhere(void) {
  char whole[4096];
  const stet_digests expected = whole_reply(whole, sizeof whole);
  stet_session* session = prompted();
  sample_with(session, 0.8, 5);
  struct heard heard = {0, 7, ""};
  stet_generate_options options = {.struct_size = sizeof options,
                                   .flags = STET_GENERATE_IGNORE_EOS,
                                   .max_tokens = 24,
                                   .context = &heard,
                                   .on_text = hear_text,
                                   .on_token = hear_token};
  stet_reply* reply = reply_of(session, &options);
  CHECK(reply->stop == STET_STOP_CALLBACK && reply->id_count == 7 && heard.tokens == 7);
  stet_reply_free(reply);

  options.on_text = stop_at_once;
  options.on_token = NULL;
  reply = reply_of(session, &options);
  CHECK(reply->stop == STET_STOP_CALLBACK && reply->id_count == 1);
  strcat(heard.text, reply->text.data);
  stet_reply_free(reply);

  options.on_text = throwing_text;
  FAILS(stet_session_generate(session, tokenizer, &options, &reply, &error), STET_ERROR_INTERNAL,
        "exception: unexpected: no more");
  CHECK(reply == NULL);
  stet_session_info info = {.struct_size = sizeof info};
  OK(stet_session_get_info(session, &info, &error));

  options.on_text = hear_text;
  options.max_tokens = 24 - 9;
  reply = reply_of(session, &options);
  CHECK(reply->stop == STET_STOP_LENGTH && reply->id_count == 15);
  stet_reply_free(reply);
  stet_digests found = {.struct_size = sizeof found};
  OK(stet_session_get_digests(session, &found, &error));
  CHECK_TEXT(found.tokens, expected.tokens);
  CHECK_TEXT(found.state, expected.state);
  CHECK_TEXT(found.id, expected.id);

  char* rest = NULL;
  size_t size = 0;
  OK(stet_session_end_reply(session, tokenizer, &rest, &size, &error));
  CHECK(strlen(rest) == size);
  stet_turn turn;
  OK(stet_session_turn(session, 0, &turn, &error));
  CHECK(turn.open == 0);
  stet_free(rest);
  stet_session_free(session);
}

static void stop_strings_end_a_reply(void) {
  char whole[4096];
  whole_reply(whole, sizeof whole);
  stet_session* session = prompted();
  sample_with(session, 0.8, 5);
  char stop[4] = "";
  memcpy(stop, whole + 10, 3);
  const stet_text strings[] = {{stop, 3}};
  OK(stet_session_set_stop_strings(session, strings, 1, &error));
  const stet_generate_options options = {
      .struct_size = sizeof options, .flags = STET_GENERATE_IGNORE_EOS, .max_tokens = 24};
  stet_reply* reply = reply_of(session, &options);
  const size_t before = (size_t)(strstr(whole, stop) - whole);
  CHECK(reply->stop == STET_STOP_STRING && reply->text.size == before);
  CHECK(memcmp(reply->text.data, whole, before) == 0);
  stet_reply_free(reply);
  FAILS(stet_session_generate(session, NULL, &options, &reply, &error), STET_ERROR_ARGUMENT,
        "stop strings: expected a tokenizer to match them in text, found none");
  OK(stet_session_set_stop_strings(session, NULL, 0, &error));
  OK(stet_session_generate(session, NULL, &options, &reply, &error));
  CHECK(reply->text.size == 0 && reply->id_count == 24);
  stet_reply_free(reply);
  stet_session_free(session);
}

static void a_tokenizer_of_another_model_is_refused(void) {
  stet_model* tiny = NULL;
  stet_session* session = NULL;
  stet_reply* reply = NULL;
  stet_chat* chat = NULL;
  OK(stet_model_load(TINY, NULL, &tiny, &error));
  OK(stet_session_new(tiny, NULL, &session, &error));
  OK(stet_session_append(session, (const int32_t[]){1, 2}, 2, &error));
  static const char* const kRefusal =
      "tokenizer: expected that of the model, whose ids are below 320, found one with ids up to "
      "1619";
  FAILS(stet_session_generate(session, tokenizer, NULL, &reply, &error), STET_ERROR_MISMATCH,
        kRefusal);
  FAILS(stet_chat_new(session, tokenizer, NULL, &chat, &error), STET_ERROR_MISMATCH, kRefusal);
  CHECK(reply == NULL && chat == NULL);
  stet_session_free(session);
  stet_model_free(tiny);
}

static void wrong_options_draw_nothing(void) {
  stet_session* session = NULL;
  stet_reply* reply = NULL;
  OK(stet_session_new(model, NULL, &session, &error));
  FAILS(stet_session_generate(session, tokenizer, NULL, &reply, &error), STET_ERROR_ARGUMENT,
        "prompt: expected at least one token, found none");
  stet_generate_options options = {.struct_size = sizeof options, .max_tokens = -1};
  FAILS(stet_session_generate(session, tokenizer, &options, &reply, &error), STET_ERROR_ARGUMENT,
        "max_tokens: expected 0 or more, found -1");
  const stet_text endless = {"a", SIZE_MAX};
  FAILS(stet_session_set_stop_strings(session, &endless, 1, &error), STET_ERROR_ARGUMENT,
        "stop[0]: expected 1 to 65536 bytes, found 18446744073709551615");
  options.max_tokens = 1;
  options.flags = 2;
  FAILS(stet_session_generate(session, tokenizer, &options, &reply, &error), STET_ERROR_UNSUPPORTED,
        "options.flags: expected flags of 1, found 2");
  CHECK(reply == NULL);
  stet_session_free(session);
}

static void penalties_and_biases_stay_with_the_session(void) {
  stet_session* session = prompted();
  stet_sampling s = {.struct_size = sizeof s}, found = s;
  OK(stet_session_get_sampling(session, &s, &error));
  CHECK(s.frequency_penalty == 0 && s.presence_penalty == 0);
  CHECK(s.logit_bias == NULL && s.logit_bias_count == 0);
  const stet_token_bias biases[] = {{300, 2.5}, {7, -100}, {9, 0}};
  s.frequency_penalty = 0.5;
  s.presence_penalty = -0.25;
  s.logit_bias = biases;
  s.logit_bias_count = 3;
  OK(stet_session_set_sampling(session, &s, &error));
  OK(stet_session_get_sampling(session, &found, &error));
  CHECK(found.frequency_penalty == 0.5 && found.presence_penalty == -0.25);
  CHECK(found.logit_bias_count == 2 && found.logit_bias[0].id == 7 &&
        found.logit_bias[0].bias == -100 && found.logit_bias[1].id == 300);
  stet_sampling again = {.struct_size = sizeof again};
  OK(stet_session_get_sampling(session, &again, &error));
  CHECK(again.logit_bias == found.logit_bias); /* borrowed memory is valid as long as its owner */

  /* A program compiled before the new fields existed changes only the fields that it knows. */
  stet_sampling old = {.struct_size = offsetof(stet_sampling, frequency_penalty)};
  OK(stet_session_get_sampling(session, &old, &error));
  old.top_k = 5;
  OK(stet_session_set_sampling(session, &old, &error));
  OK(stet_session_get_sampling(session, &found, &error));
  CHECK(found.top_k == 5 && found.frequency_penalty == 0.5 && found.logit_bias_count == 2);

  s.frequency_penalty = 3;
  FAILS(stet_session_set_sampling(session, &s, &error), STET_ERROR_ARGUMENT,
        "frequency_penalty: expected a number in [-2, 2], found 3");
  s.frequency_penalty = 0;
  s.logit_bias = NULL;
  FAILS(stet_session_set_sampling(session, &s, &error), STET_ERROR_ARGUMENT,
        "logit_bias: expected not NULL, found NULL");
  const stet_token_bias twice[] = {{7, 1}, {7, 1}}, strange[] = {{1620, 1}};
  s.logit_bias = twice;
  s.logit_bias_count = 2;
  FAILS(stet_session_set_sampling(session, &s, &error), STET_ERROR_ARGUMENT,
        "logit_bias[7]: expected each token once, found a second bias");
  s.logit_bias = strange;
  s.logit_bias_count = 1;
  FAILS(stet_session_set_sampling(session, &s, &error), STET_ERROR_ARGUMENT,
        "logit_bias: expected a token id in 0..1619, found 1620");
  s.logit_bias_count = 4097; /* more than the array has: it is not read */
  FAILS(stet_session_set_sampling(session, &s, &error), STET_ERROR_ARGUMENT,
        "logit_bias: expected at most 4096 tokens, found 4097");
  s.logit_bias_count = SIZE_MAX;
  FAILS_WITH(stet_session_set_sampling(session, &s, &error), STET_ERROR_ARGUMENT,
             "found 18446744073709551615");
  stet_session_free(session);
}

static void a_sampler_draws_what_the_session_draws(int weighs) {
  stet_session* session = prompted();
  sample_with(session, 0.8, 99);
  stet_sampler* sampler = NULL;
  OK(stet_sampler_new(1620, &sampler, &error));
  stet_sampling sampling = {.struct_size = sizeof sampling};
  OK(stet_session_get_sampling(session, &sampling, &error));
  const stet_token_bias bias = {17, 3};
  int32_t drawn[12] = {0};
  if (weighs) {
    sampling.frequency_penalty = 2;
    sampling.presence_penalty = 1;
    sampling.logit_bias = &bias;
    sampling.logit_bias_count = 1;
    OK(stet_session_set_sampling(session, &sampling, &error));
  }
  const stet_generate_options one = {.struct_size = sizeof one, .max_tokens = 1};
  for (int i = 0; i < 12; ++i) {
    const float* logits = NULL;
    const int32_t* tokens = NULL;
    size_t vocab = 0, count = 0;
    int32_t id = -1;
    OK(stet_session_logits(session, &logits, &vocab, &error));
    OK(stet_session_tokens(session, &tokens, &count, &error));
    OK(stet_sampler_set_drawn(sampler, drawn, (size_t)i, &error));
    OK(stet_sampler_sample(sampler, &sampling, logits, vocab, tokens, count, count, &id, &error));
    drawn[i] = id;
    float p[1620];
    OK(stet_sampler_probabilities(sampler, &sampling, logits, vocab, tokens, count, p, &error));
    CHECK(p[id] > 0);
    double log_p = 1;
    OK(stet_log_probability(logits, vocab, id, &log_p, &error));
    CHECK(log_p < 0 && log_p > -30);
    stet_reply* reply = reply_of(session, &one);
    CHECK(reply->id_count == 1 && reply->ids[0] == id);
    stet_reply_free(reply);
  }
  const float two[] = {0, -INFINITY}, none[] = {-INFINITY}, nan[] = {NAN};
  int32_t id = -1;
  double log_p = 1;
  FAILS(stet_sampler_sample(sampler, &sampling, two, 2, NULL, 0, 0, &id, &error),
        STET_ERROR_ARGUMENT, "logits: expected 1620 values, found 2");
  OK(stet_log_probability(two, 2, 0, &log_p, &error));
  CHECK(log_p == 0);
  FAILS(stet_log_probability(two, 2, 2, &log_p, &error), STET_ERROR_ARGUMENT,
        "id: expected an id below 2, found 2");
  FAILS(stet_log_probability(none, 1, 0, &log_p, &error), STET_ERROR_ARGUMENT,
        "logits: expected at least one finite value, found -inf alone");
  FAILS(stet_log_probability(nan, 1, 0, &log_p, &error), STET_ERROR_ARGUMENT,
        "logits: expected finite values or -inf, found nan");
  stet_sampler_free(sampler);
  FAILS(stet_sampler_new(0, &sampler, &error), STET_ERROR_ARGUMENT,
        "vocab_size: expected a positive integer up to 1048576, found 0");
  FAILS(stet_sampler_new(INT32_MAX, &sampler, &error), STET_ERROR_ARGUMENT,
        "vocab_size: expected a positive integer up to 1048576, found 2147483647");
  OK(stet_sampler_new(4, &sampler, &error));
  const int32_t strange[] = {3, 4};
  FAILS(stet_sampler_set_drawn(sampler, strange, 2, &error), STET_ERROR_ARGUMENT,
        "ids[1]: expected a token id in 0..3, found 4");
  stet_sampler_free(sampler);
  stet_session_free(session);
}

static int32_t stop_at_third(void* context, int32_t id, const float* logits, size_t count) {
  int* seen = context;
  CHECK(id >= 0 && logits != NULL && count == 1620);
  return ++*seen == 3;
}

/* Each row replies with its own settings as it would alone, and is captured. */
static void a_batch_replies_as_each_would_alone(void) {
  enum { kRows = 4 };
  static const char* const points[] = {"blocks.2.hook_resid_post", "blocks.1.attn.hook_pattern"};
  static const stet_text stop = {"e", 1};
  static const float zeros[256];
  const stet_intervention change = {.struct_size = sizeof change,
                                    .point = "blocks.3.hook_mlp_out",
                                    .op = STET_SET,
                                    .values = zeros,
                                    .value_count = 256};
  stet_generate_options options[kRows] = {{0}};
  stet_session *together[kRows], *alone[kRows];
  int seen[2] = {0, 0};
  for (int i = 0; i < kRows; ++i) {
    options[i].struct_size = sizeof options[i];
    options[i].max_tokens = 4 + 3 * i;
    options[i].flags = STET_GENERATE_IGNORE_EOS;
    for (int which = 0; which < 2; ++which) {
      stet_session* s = prompted();
      if (i == 1) sample_with(s, 1.5, 7);
      if (i == 2) OK(stet_session_set_stop_strings(s, &stop, 1, &error));
      if (i == 3) OK(stet_session_attach(s, &change, &error));
      (which == 0 ? together : alone)[i] = s;
    }
  }
  options[3].on_token = stop_at_third;
  stet_batch_reply entries[kRows];
  for (int i = 0; i < kRows; ++i) entries[i] = (stet_batch_reply){together[i], &options[i]};
  options[3].context = &seen[0];
  stet_reply* replies[kRows] = {NULL};
  stet_capture* captures[kRows] = {NULL};
  OK(stet_batch_generate(entries, kRows, tokenizer, points, 2, captures, replies, &error));
  options[3].context = &seen[1];
  static const int stops[kRows] = {STET_STOP_LENGTH, STET_STOP_LENGTH, STET_STOP_STRING,
                                   STET_STOP_CALLBACK};
  for (int i = 0; i < kRows; ++i) {
    stet_session* again = NULL;
    OK(stet_session_fork(alone[i], &again, &error));
    stet_reply* reply = reply_of(alone[i], &options[i]);
    CHECK(replies[i]->id_count == reply->id_count && replies[i]->stop == reply->stop);
    CHECK(reply->stop == stops[i]);
    CHECK(memcmp(replies[i]->ids, reply->ids, reply->id_count * sizeof *reply->ids) == 0);
    CHECK_TEXT(replies[i]->text.data, reply->text.data);
    stet_digests a = {.struct_size = sizeof a}, b = a;
    OK(stet_session_get_digests(together[i], &a, &error));
    OK(stet_session_get_digests(alone[i], &b, &error));
    CHECK_TEXT(a.id, b.id);
    stet_capture* capture = NULL;
    OK(stet_session_capture(again, reply->ids, reply->id_count, points, 2, 0, &capture, &error));
    for (size_t p = 0; p < 2; ++p) {
      const float *x = NULL, *y = NULL;
      size_t count = 0, width = 0, same_count = 0, same_width = 0;
      OK(stet_capture_rows(captures[i], p, &x, &count, &width, &error));
      OK(stet_capture_rows(capture, p, &y, &same_count, &same_width, &error));
      CHECK(count == reply->id_count && count == same_count && width == same_width);
      CHECK_FLOATS(x, y, count * width);
    }
    stet_capture_free(capture);
    stet_capture_free(captures[i]);
    stet_reply_free(reply);
    stet_reply_free(replies[i]);
    stet_session_free(again);
  }
  entries[1] = entries[0];
  FAILS(stet_batch_generate(entries, 2, tokenizer, NULL, 0, NULL, replies, &error),
        STET_ERROR_ARGUMENT, "batch[1]: session: expected each session once, found one twice");
  CHECK(replies[0] == NULL && replies[1] == NULL);
  FAILS(stet_batch_generate(entries, 2, tokenizer, points, 2, NULL, replies, &error),
        STET_ERROR_ARGUMENT, "captures: expected not NULL, found NULL");
  OK(stet_batch_generate(NULL, 0, NULL, NULL, 0, NULL, NULL, &error));
  for (int i = 0; i < kRows; ++i) {
    stet_session_free(together[i]);
    stet_session_free(alone[i]);
  }
}

static int32_t end_at_two(void* context, int64_t done) {
  *(int64_t*)context = done;
  return done >= 2;
}

static void a_prompt_says_how_far_it_has_come(void) {
  const stet_session_options one = {.struct_size = sizeof one, .chunk = 1};
  const int32_t ids[] = {2, 20, 21, 22};
  int64_t done = 0;
  stet_session* session = NULL;
  OK(stet_session_new(model, &one, &session, &error));
  FAILS(stet_session_append_prompt_watched(session, ids, 4, end_at_two, &done, &error),
        STET_ERROR_CANCELED,
        "callback: the caller cancelled the call: its callback did not return 0");
  stet_session_info info = {.struct_size = sizeof info};
  OK(stet_session_get_info(session, &info, &error));
  CHECK(done == 2 && info.size == 0 && info.turns == 0);
  OK(stet_session_append_prompt_watched(session, ids, 4, NULL, NULL, &error));
  OK(stet_session_get_info(session, &info, &error));
  CHECK(info.size == 4 && info.turns == 1);
  stet_session_free(session);
}

/* Generates the same reply twice in each of two sessions, with and without drafts. */
static void speculation_changes_no_reply(const stet_model* draft) {
  stet_session* with = prompted();
  stet_session* without = prompted();
  sample_with(with, 0.3, 7);
  sample_with(without, 0.3, 7);
  stet_speculator* speculator = NULL;
  OK(stet_speculator_new(draft, NULL, &speculator, &error));
  stet_generate_options options = {.struct_size = sizeof options, .max_tokens = 60};
  options.flags = STET_GENERATE_IGNORE_EOS;
  uint64_t accepted = 0;
  for (int i = 0; i < 2; ++i) {
    options.speculator = NULL;
    stet_reply* expected = reply_of(without, &options);
    options.speculator = speculator;
    stet_reply* reply = reply_of(with, &options);
    CHECK_TEXT(reply->text.data, expected->text.data);
    CHECK(reply->id_count == expected->id_count);
    CHECK(memcmp(reply->ids, expected->ids, reply->id_count * sizeof *reply->ids) == 0);
    CHECK(reply->accepted <= reply->drafted && expected->drafted == 0);
    accepted += reply->accepted;
    stet_reply_free(reply);
    stet_reply_free(expected);
  }
  CHECK(draft == NULL || accepted > 0);
  stet_digests a = {.struct_size = sizeof a}, b = {.struct_size = sizeof b};
  OK(stet_session_get_digests(with, &a, &error));
  OK(stet_session_get_digests(without, &b, &error));
  CHECK(memcmp(&a, &b, sizeof a) == 0);
  stet_speculator_free(speculator);
  stet_session_free(without);
  stet_session_free(with);
}

static void a_draft_model_has_the_vocabulary(void) {
  stet_model* other = NULL;
  stet_speculator* speculator = NULL;
  OK(stet_model_load(OTHER, NULL, &other, &error));
  OK(stet_speculator_new(other, NULL, &speculator, &error));
  stet_session* session = prompted();
  stet_generate_options options = {
      .struct_size = sizeof options, .max_tokens = 3, .speculator = speculator};
  stet_reply* reply = NULL;
  FAILS(stet_session_generate(session, tokenizer, &options, &reply, &error), STET_ERROR_ARGUMENT,
        OTHER ": vocab_size: expected 1620, as of the model whose tokens are drafted, found 320");
  CHECK(reply == NULL);
  stet_session_free(session);
  stet_speculator_free(speculator);
  stet_model_free(other);
}

/* A callback reads, forks and saves the session. Whatever would change it is refused. */
static int32_t change_session(void* context) {
  stet_session* session = context;
  const int32_t id = 5;
  const stet_text stop = {"e", 1};
  const stet_prune_options keep = {.struct_size = sizeof keep, .keep_last = 2};
  const stet_session_options chunk = {.struct_size = sizeof chunk, .chunk = 3};
  stet_sampling sampling = {.struct_size = sizeof sampling};
  OK(stet_session_get_sampling(session, &sampling, &error));
  int64_t pruned = 0;
  char* text = NULL;
  size_t size = 0;
  stet_reply* reply = NULL;
  const stet_intervention half = {
      .struct_size = sizeof half, .point = "hook_resid_mid", .op = STET_SCALE, .amount = 0.5f};
#define REFUSED(call, name)        \
  FAILS(call, STET_ERROR_ARGUMENT, \
        name ": expected a call after generate() has returned, found a call from its callback")
  REFUSED(stet_session_append(session, &id, 1, &error), "append");
  REFUSED(stet_session_append_prompt(session, &id, 1, &error), "append");
  REFUSED(stet_session_generate(session, tokenizer, NULL, &reply, &error), "append");
  REFUSED(stet_session_rewind(session, 2, &error), "rewind");
  REFUSED(stet_session_prune(session, &keep, &pruned, &error), "prune");
  REFUSED(stet_session_prune_range(session, 1, 2, 0, &error), "prune");
  REFUSED(stet_session_attach(session, &half, &error), "attach");
  REFUSED(stet_session_set_compute(session, &chunk, &error), "set_compute");
  REFUSED(stet_session_set_sampling(session, &sampling, &error), "set_sampling");
  REFUSED(stet_session_use_recommended(session, &error), "use_recommended");
  REFUSED(stet_session_set_stop_ids(session, &id, 1, &error), "set_stop_ids");
  REFUSED(stet_session_set_stop_strings(session, &stop, 1, &error), "set_stop_strings");
  REFUSED(stet_session_end_reply(session, NULL, &text, &size, &error), "end_reply");
#undef REFUSED
  const float* logits = NULL;
  stet_session* fork = NULL;
  OK(stet_session_logits(session, &logits, &size, &error));
  OK(stet_session_save(session, tokenizer, "during.stet", NULL, NULL, &error));
  OK(stet_session_fork(session, &fork, &error));
  OK(stet_session_append(fork, &id, 1, &error));
  stet_session_free(fork);
  return 0;
}

static int32_t on_token_changes(void* context, int32_t id, const float* logits, size_t count) {
  CHECK(id >= 0 && logits != NULL && count == 1620);
  return change_session(context);
}

static int32_t on_text_changes(void* context, const char* text, size_t size) {
  CHECK(text != NULL && size < 100);
  return change_session(context);
}

static void callbacks_of_a_reply_change_nothing(void) {
  for (int way = 0; way < 3; ++way) {
    stet_session *alone = prompted(), *session = prompted();
    stet_generate_options options = {.struct_size = sizeof options, .max_tokens = 3};
    stet_reply *expected = reply_of(alone, &options), *reply = NULL;
    options.context = session;
    if (way == 1) options.on_token = on_token_changes;
    if (way != 1) options.on_text = on_text_changes;
    const stet_batch_reply entry = {session, &options};
    if (way == 2)
      OK(stet_batch_generate(&entry, 1, tokenizer, NULL, 0, NULL, &reply, &error));
    else
      reply = reply_of(session, &options);
    CHECK_TEXT(reply->text.data, expected->text.data);
    stet_digests a = {.struct_size = sizeof a}, b = a;
    OK(stet_session_get_digests(alone, &a, &error));
    OK(stet_session_get_digests(session, &b, &error));
    CHECK_TEXT(a.id, b.id);
    const int32_t id = 5;
    OK(stet_session_append(session, &id, 1, &error));
    stet_reply_free(expected);
    stet_reply_free(reply);
    stet_session_free(alone);
    stet_session_free(session);
  }
}

int test_generate(void) {
  OK(stet_model_load(POCKET, NULL, &model, &error));
  OK(stet_tokenizer_load(POCKET, &tokenizer, &error));
  settings_stay_with_the_session();
  replies_are_those_of_cpp();
  a_reply_may_be_cut_anywhere();
  stop_strings_end_a_reply();
  a_tokenizer_of_another_model_is_refused();
  wrong_options_draw_nothing();
  penalties_and_biases_stay_with_the_session();
  a_sampler_draws_what_the_session_draws(0);
  a_sampler_draws_what_the_session_draws(1);
  a_batch_replies_as_each_would_alone();
  a_prompt_says_how_far_it_has_come();
  speculation_changes_no_reply(NULL);
  speculation_changes_no_reply(model);
  a_draft_model_has_the_vocabulary();
  callbacks_of_a_reply_change_nothing();
  stet_tokenizer_free(tokenizer);
  stet_model_free(model);
  return 0;
}
