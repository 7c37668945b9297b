/* Conversations through the C interface give the states of the C++ interface. */
#include "check.h"
#include "oracle.h"

static stet_model* model;
static stet_tokenizer* tokenizer;
static const char* const kSaid[] = {"My name is Ada.", "What is my name?", "Thank you."};

static stet_chat* new_chat(void) {
  stet_session* session = NULL;
  stet_chat* chat = NULL;
  OK(stet_session_new(model, NULL, &session, &error));
  OK(stet_session_use_recommended(session, &error));
  OK(stet_chat_new(session, tokenizer, NULL, &chat, &error));
  stet_session_free(session); /* the chat has a session of its own */
  return chat;
}

static void say(stet_chat* chat, const char* text) {
  OK(stet_chat_say(chat, text, strlen(text), NULL, &error));
}

/* Returns the text of a reply. The caller frees it. */
static char* reply_of(stet_chat* chat, const stet_generate_options* options) {
  stet_reply* reply = NULL;
  OK(stet_chat_reply(chat, options, &reply, &error));
  CHECK(reply->id_count > 0);
  char* text = malloc(reply->text.size + 1);
  CHECK(text != NULL);
  memcpy(text, reply->text.data, reply->text.size + 1);
  stet_reply_free(reply);
  return text;
}

static stet_session* session_of(stet_chat* chat) {
  stet_session* session = NULL;
  OK(stet_chat_session(chat, &session, &error));
  return session;
}

static stet_digests digests_of(stet_chat* chat) {
  stet_digests digests = {.struct_size = sizeof digests};
  OK(stet_session_get_digests(session_of(chat), &digests, &error));
  return digests;
}

static size_t count_of(const stet_chat* chat) {
  size_t count = 0;
  OK(stet_chat_message_count(chat, &count, &error));
  return count;
}

static stet_message message_of(const stet_chat* chat, size_t index) {
  stet_message message;
  OK(stet_chat_message(chat, index, &message, &error));
  return message;
}

static stet_chat* scripted(size_t turns) {
  stet_chat* chat = new_chat();
  for (size_t i = 0; i < turns; ++i) {
    say(chat, kSaid[i]);
    free(reply_of(chat, NULL));
  }
  return chat;
}

static void a_conversation_is_that_of_cpp(void) {
  char expected[128];
  for (size_t turns = 1; turns <= 3; ++turns) {
    stet_chat* chat = scripted(turns);
    oracle_chat_id(POCKET, kSaid, turns, expected, sizeof expected);
    CHECK_TEXT(digests_of(chat).id, expected);
    CHECK(count_of(chat) == 2 * turns);
    const stet_message user = message_of(chat, 0), model_said = message_of(chat, 1);
    CHECK_TEXT(user.role.data, "user");
    CHECK_TEXT(user.content.data, kSaid[0]);
    CHECK(user.drawn == 0 && model_said.drawn == 1 && model_said.begin >= user.end);
    CHECK_TEXT(model_said.role.data, "assistant");
    CHECK(model_said.fields.size == 0 && model_said.end > model_said.begin);
    stet_message same;
    OK(stet_session_message(session_of(chat), 1, &same, &error));
    CHECK_TEXT(same.content.data, model_said.content.data);
    FAILS_WITH(stet_chat_message(chat, 99, &same, &error), STET_ERROR_ARGUMENT, "found 99");
    stet_chat_free(chat);
  }
}

static void forks_go_their_own_way_and_back(void) {
  stet_chat *chat = scripted(2), *fork = NULL, *first = scripted(1);
  OK(stet_chat_fork(chat, &fork, &error));
  const stet_digests before = digests_of(chat);
  say(fork, "Something else.");
  free(reply_of(fork, NULL));
  stet_digests now = digests_of(chat);
  CHECK(memcmp(&before, &now, sizeof now) == 0 && count_of(fork) == 6);
  OK(stet_chat_rewind(fork, 1, &error));
  now = digests_of(fork);
  CHECK_TEXT(now.kv, before.kv);
  CHECK_TEXT(now.tokens, before.tokens);
  OK(stet_chat_rewind(fork, 1, &error));
  CHECK_TEXT(digests_of(fork).id, digests_of(first).id);
  FAILS(stet_chat_rewind(fork, 2, &error), STET_ERROR_ARGUMENT, "turns: expected 1 .. 1, found 2");

  /* Drawing a greedy reply again gives the same reply. */
  OK(stet_chat_retry(chat, &error));
  CHECK(count_of(chat) == 3);
  free(reply_of(chat, NULL));
  CHECK_TEXT(digests_of(chat).id, before.id);
  stet_chat_free(chat);
  stet_chat_free(fork);
  stet_chat_free(first);
  chat = new_chat();
  FAILS(stet_chat_retry(chat, &error), STET_ERROR_ARGUMENT,
        "retry: expected a reply to draw again, found none");
  FAILS(stet_chat_rewind(chat, 1, &error), STET_ERROR_ARGUMENT,
        "turns: expected a conversation with a message of the user, found none");
  stet_chat_free(chat);
}

static void a_cut_reply_goes_on_or_is_closed(void) {
  const stet_generate_options one = {.struct_size = sizeof one, .max_tokens = 1};
  stet_chat *chat = new_chat(), *fork = NULL;
  int32_t open = -1;
  say(chat, kSaid[0]);
  OK(stet_chat_is_open(chat, &open, &error));
  CHECK(open == 0);
  char* front = reply_of(chat, &one);
  OK(stet_chat_is_open(chat, &open, &error));
  CHECK(open == 1);
  OK(stet_chat_fork(chat, &fork, &error));
  char* rest = reply_of(chat, NULL);
  stet_chat* whole = scripted(1);
  CHECK_TEXT(digests_of(chat).id, digests_of(whole).id);
  const stet_message said = message_of(whole, 1);
  CHECK(said.content.size >= strlen(front) &&
        strncmp(said.content.data, front, strlen(front)) == 0);
  free(front);
  free(rest);

  char* held = NULL;
  size_t size = 9;
  OK(stet_chat_close(fork, &held, &size, &error));
  CHECK(strlen(held) == size);
  stet_free(held);
  OK(stet_chat_is_open(fork, &open, &error));
  CHECK(open == 0);
  stet_chat_free(chat);
  stet_chat_free(fork);
  stet_chat_free(whole);
}

static int32_t refuse(void* context, int64_t done) {
  *(int64_t*)context = done;
  return 1;
}

static void messages_are_edited(void) {
  stet_chat* chat = scripted(1);
  const stet_digests before = digests_of(chat);
  stet_message messages[3] = {message_of(chat, 0), message_of(chat, 1)};
  messages[2] = (stet_message){.role = {"user", 4}, .content = {"Who are you?", 12}};
  stet_prompt_report plan = {.struct_size = sizeof plan}, report = plan;
  OK(stet_chat_plan(chat, messages, 3, &plan, &error));
  CHECK(plan.kept > 0 && plan.recomputed == 0 && plan.added > 0);

  int64_t done = 0;
  FAILS(stet_chat_prompt(chat, messages, 3, refuse, &done, &report, &error), STET_ERROR_CANCELED,
        "callback: the caller cancelled the call: its callback did not return 0");
  CHECK(done == plan.added);
  stet_digests now = digests_of(chat);
  CHECK(memcmp(&before, &now, sizeof now) == 0 && count_of(chat) == 2);

  for (size_t i = 0; i < 2; ++i) messages[i] = message_of(chat, i); /* they were only borrowed */
  OK(stet_chat_prompt(chat, messages, 3, NULL, NULL, &report, &error));
  CHECK(report.kept == plan.kept && report.added == plan.added && count_of(chat) == 3);
  stet_chat* said = scripted(1);
  OK(stet_chat_say(said, "Who are you?", 12, &report, &error));
  CHECK(report.kept == plan.kept && report.added == plan.added);
  CHECK_TEXT(digests_of(chat).id, digests_of(said).id);
  free(reply_of(said, NULL));

  /* After an edit of the first message everything that follows is computed again. */
  for (size_t i = 0; i < 2; ++i) messages[i] = message_of(chat, i);
  messages[0].content = (stet_text){"My name is Bo.", 14};
  OK(stet_chat_plan(chat, messages, 3, &plan, &error));
  CHECK(plan.kept > 0 && plan.recomputed + plan.added > report.added);
  messages[0].drawn = 2;
  FAILS(stet_chat_plan(chat, messages, 3, &plan, &error), STET_ERROR_ARGUMENT,
        "drawn: expected 0 or 1, found 2");
  messages[0].drawn = 0;
  messages[0].fields = (stet_text){"[]", 2};
  FAILS(stet_chat_plan(chat, messages, 3, &plan, &error), STET_ERROR_ARGUMENT,
        "messages[0].fields: expected a JSON object, found []");
  messages[0].fields = (stet_text){NULL, 0};
  messages[1].role = (stet_text){"us\xff", 3};
  FAILS(stet_chat_prompt(chat, messages, 3, NULL, NULL, NULL, &error), STET_ERROR_ARGUMENT,
        "messages[1].role: expected UTF-8, found us\\xff");
  messages[1] = message_of(chat, 1);
  messages[0].content = (stet_text){"a\xff", 2}; /* becomes a replacement character */
  OK(stet_chat_plan(chat, messages, 3, &plan, &error));
  OK(stet_chat_prompt(chat, messages, 3, NULL, NULL, &report, &error));
  CHECK(report.kept == plan.kept && report.added == plan.added);
  stet_chat_free(chat);
  stet_chat_free(said);
}

static void a_changed_reply_is_not_a_drawn_one(void) {
  stet_chat* chat = scripted(1);
  const stet_digests before = digests_of(chat);
  stet_message messages[3] = {message_of(chat, 0), message_of(chat, 1)};
  messages[2] = (stet_message){.role = {"user", 4}, .content = {"Who are you?", 12}};
  messages[1].content = (stet_text){"I am Bo.", 8};
  char expected[200];
  snprintf(expected, sizeof expected,
           "messages: the reply at %d has another text than its tokens; a reply that was changed "
           "must not be marked as drawn",
           (int)messages[1].begin);
  stet_prompt_report report = {.struct_size = sizeof report};
  FAILS(stet_chat_plan(chat, messages, 3, &report, &error), STET_ERROR_ARGUMENT, expected);
  FAILS(stet_chat_prompt(chat, messages, 3, NULL, NULL, NULL, &error), STET_ERROR_ARGUMENT,
        expected);
  CHECK_TEXT(digests_of(chat).id, before.id);
  messages[1].drawn = 0;
  OK(stet_chat_prompt(chat, messages, 3, NULL, NULL, NULL, &error));
  CHECK_TEXT(message_of(chat, 1).content.data, "I am Bo.");
  stet_chat_free(chat);
}

static size_t marks_in(const stet_session* session, const stet_chat_options* options) {
  stet_chat* chat = NULL;
  const int32_t* ids = NULL;
  size_t count = 0, found = 0;
  int32_t mark = 0;
  OK(stet_chat_new(session, tokenizer, options, &chat, &error));
  say(chat, "<end_of_turn>");
  OK(stet_tokenizer_id(tokenizer, "<end_of_turn>", 13, &mark, &error));
  OK(stet_session_tokens(session_of(chat), &ids, &count, &error));
  for (size_t i = 0; i < count; ++i) found += ids[i] == mark;
  stet_chat_free(chat);
  return found;
}

static void special_tokens_are_text_whatever_the_session_says(void) {
  stet_session* session = NULL;
  stet_chat* chat = NULL;
  stet_chat_options special = {.struct_size = sizeof special, .flags = STET_CHAT_SPECIAL_IN_TEXT};
  const stet_chat_options plain = {.struct_size = sizeof plain, .flags = STET_CHAT_PLAIN_TEXT};
  OK(stet_session_new(model, NULL, &session, &error));
  CHECK(marks_in(session, NULL) == 1);
  CHECK(marks_in(session, &special) == 2);
  OK(stet_chat_new(session, tokenizer, &special, &chat, &error));
  CHECK(marks_in(session_of(chat), NULL) == 2);
  CHECK(marks_in(session_of(chat), &plain) == 1);
  stet_chat_free(chat);
  special.flags |= STET_CHAT_PLAIN_TEXT;
  FAILS(stet_chat_new(session, tokenizer, &special, &chat, &error), STET_ERROR_ARGUMENT,
        "options.flags: expected STET_CHAT_SPECIAL_IN_TEXT or STET_CHAT_PLAIN_TEXT, found both");
  stet_session_free(session);
}

/* A callback of a reply may not change the chat. */
static int32_t change_chat(void* context, const char* text, size_t size) {
  stet_chat* chat = context;
  stet_reply* reply = NULL;
#define REFUSED(call, name)        \
  FAILS(call, STET_ERROR_ARGUMENT, \
        name ": expected a call after generate() has returned, found a call from its callback")
  CHECK(text != NULL && size < 100);
  REFUSED(stet_chat_say(chat, "hi", 2, NULL, &error), "prompt");
  REFUSED(stet_chat_reply(chat, NULL, &reply, &error), "reply");
  REFUSED(stet_chat_set_system(chat, "hi", 2, &error), "set_system");
  REFUSED(stet_chat_retry(chat, &error), "rewind");
  REFUSED(stet_chat_rewind(chat, 1, &error), "rewind");
#undef REFUSED
  OK(stet_chat_is_open(chat, &(int32_t){0}, &error));
  CHECK(reply == NULL);
  return 0;
}

static void a_callback_leaves_the_chat(void) {
  stet_chat *chat = new_chat(), *expected = scripted(1);
  say(chat, kSaid[0]);
  const stet_generate_options options = {
      .struct_size = sizeof options, .on_text = change_chat, .context = chat};
  free(reply_of(chat, &options));
  CHECK_TEXT(digests_of(chat).id, digests_of(expected).id);
  stet_chat_free(chat);
  stet_chat_free(expected);
}

static void a_system_message_is_put_and_removed(void) {
  stet_chat *chat = new_chat(), *plain = scripted(1);
  OK(stet_chat_set_system(chat, "Be brief.", 9, &error));
  CHECK(count_of(chat) == 1);
  CHECK_TEXT(message_of(chat, 0).role.data, "system");
  CHECK_TEXT(message_of(chat, 0).content.data, "Be brief.");
  OK(stet_chat_set_system(chat, "", 0, &error));
  CHECK(count_of(chat) == 0);
  say(chat, kSaid[0]);
  free(reply_of(chat, NULL));
  CHECK_TEXT(digests_of(chat).id, digests_of(plain).id);
  stet_chat_free(chat);
  stet_chat_free(plain);
}

static void it_goes_on_from_a_snapshot(void) {
  stet_chat *chat = scripted(2), *whole = scripted(3);
  OK(stet_session_save(session_of(chat), tokenizer, "chat.stet", NULL, NULL, &error));
  stet_session_free(session_of(chat)); /* has no effect: the chat owns the session */
  stet_snapshot* snapshot = NULL;
  stet_session* session = NULL;
  OK(stet_snapshot_open("chat.stet", NULL, &snapshot, &error));
  stet_snapshot_info info = {.struct_size = sizeof info};
  OK(stet_snapshot_get_info(snapshot, &info, &error));
  CHECK(info.messages == 4);
  stet_message message;
  OK(stet_snapshot_message(snapshot, 2, &message, &error));
  CHECK_TEXT(message.content.data, kSaid[1]);
  CHECK(message.content.size == strlen(kSaid[1]));
  FAILS(stet_snapshot_message(snapshot, 4, &message, &error), STET_ERROR_ARGUMENT,
        "index: expected an index below 4, found 4");
  OK(stet_snapshot_restore(snapshot, model, tokenizer, NULL, NULL, NULL, &session, &error));
  stet_chat_free(chat);
  OK(stet_chat_new(session, tokenizer, NULL, &chat, &error));
  stet_session_free(session);
  stet_snapshot_free(snapshot);
  say(chat, kSaid[2]);
  free(reply_of(chat, NULL));
  CHECK_TEXT(digests_of(chat).id, digests_of(whole).id);
  stet_chat_free(chat);
  stet_chat_free(whole);
}

static void options_choose_the_template(void) {
  static const char kTemplate[] =
      "{{ bos_token }}{{ mood }}:{% for m in messages %}{{ m.content }}{% endfor %}";
  stet_session* session = NULL;
  stet_chat* chat = NULL;
  OK(stet_session_new(model, NULL, &session, &error));
  stet_chat_options options = {.struct_size = sizeof options,
                               .flags = STET_CHAT_SPECIAL_IN_TEXT,
                               .variables = {"{\"mood\": \"glad\"}", 16},
                               .chat_template = {kTemplate, strlen(kTemplate)},
                               .now = 1000};
  OK(stet_chat_new(session, tokenizer, &options, &chat, &error));
  say(chat, "Hi<eos>");
  const int32_t* ids = NULL;
  size_t count = 0, size = 0;
  char* text = NULL;
  OK(stet_session_tokens(session_of(chat), &ids, &count, &error));
  CHECK(ids[count - 1] == 1); /* with this option <eos> in a message is the special token */
  OK(stet_tokenizer_decode(tokenizer, ids, count, 0, &text, &size, &error));
  CHECK_TEXT(text, "<bos>glad:Hi<eos>");
  stet_free(text);
  stet_chat_free(chat);
  stet_session_info info = {.struct_size = sizeof info};
  OK(stet_session_get_info(session, &info, &error));
  CHECK(info.size == 0 && info.messages == 0); /* the session is unchanged */

  options.chat_template = (stet_text){"{% if", 5};
  FAILS_WITH(stet_chat_new(session, tokenizer, &options, &chat, &error), STET_ERROR_FORMAT, "");
  CHECK(chat == NULL);
  options.flags = 6;
  FAILS(stet_chat_new(session, tokenizer, &options, &chat, &error), STET_ERROR_UNSUPPORTED,
        "options.flags: expected flags of 3, found 6");
  stet_session_free(session);
}

static void too_long_a_prompt_leaves_the_chat(void) {
  const stet_session_options small = {.struct_size = sizeof small, .capacity = 32};
  stet_session* session = NULL;
  stet_chat* chat = NULL;
  OK(stet_session_new(model, &small, &session, &error));
  OK(stet_chat_new(session, tokenizer, NULL, &chat, &error));
  char text[400];
  memset(text, 'x', sizeof text);
  CHECK(stet_chat_say(chat, text, sizeof text, NULL, &error) == STET_ERROR_CAPACITY);
  CHECK_TEXT(error->field, "tokens");
  CHECK(strncmp(error->expected, "at most 32 positions", 20) == 0 && atoi(error->found) > 32);
  stet_error_free(error);
  error = NULL;
  CHECK(count_of(chat) == 0);
  say(chat, "Hi");
  stet_chat_free(chat);
  stet_session_free(session);
}

int test_chat(void) {
  OK(stet_model_load(POCKET, NULL, &model, &error));
  OK(stet_tokenizer_load(POCKET, &tokenizer, &error));
  a_conversation_is_that_of_cpp();
  forks_go_their_own_way_and_back();
  a_cut_reply_goes_on_or_is_closed();
  messages_are_edited();
  a_changed_reply_is_not_a_drawn_one();
  special_tokens_are_text_whatever_the_session_says();
  a_callback_leaves_the_chat();
  a_system_message_is_put_and_removed();
  it_goes_on_from_a_snapshot();
  options_choose_the_template();
  too_long_a_prompt_leaves_the_chat();
  stet_tokenizer_free(tokenizer);
  stet_model_free(model);
  return 0;
}
