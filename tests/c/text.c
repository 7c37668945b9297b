/* Tokenizers, text streams and chat templates through the C interface. */
#include "check.h"
#include "oracle.h"

static stet_tokenizer* tokenizer;

static int32_t id_of(const char* piece) {
  int32_t id = -2;
  OK(stet_tokenizer_id(tokenizer, piece, strlen(piece), &id, &error));
  return id;
}

static void it_says_what_it_is(void) {
  stet_tokenizer_info info = {.struct_size = sizeof info};
  OK(stet_tokenizer_get_info(tokenizer, &info, &error));
  CHECK(info.bos == id_of("<bos>") && info.eos == id_of("<eos>") && info.bos == 2);
  CHECK(info.size == 1620 && strncmp(info.fingerprint, "xxh3:", 5) == 0);
  CHECK(id_of("no such piece") == -1);

  stet_text name, text;
  int found = 0;
  for (size_t i = 0; i < info.special_count; ++i) {
    OK(stet_tokenizer_special_token(tokenizer, i, &name, &text, &error));
    if (strcmp(name.data, "bos_token") != 0) continue;
    CHECK_TEXT(text.data, "<bos>");
    CHECK(text.size == 5);
    ++found;
  }
  CHECK(found == 1);
  FAILS_WITH(stet_tokenizer_special_token(tokenizer, 999, &name, &text, &error),
             STET_ERROR_ARGUMENT, "found 999");
  CHECK(name.data == NULL && text.size == 0);

  OK(stet_tokenizer_chat_template(tokenizer, NULL, &text, &error));
  CHECK(text.size > 0 && strlen(text.data) == text.size);
  OK(stet_tokenizer_chat_template(tokenizer, "no such template", &text, &error));
  CHECK(text.size == 0 && text.data[0] == '\0');

  char* piece = NULL;
  size_t size = 0;
  OK(stet_tokenizer_piece(tokenizer, 2, &piece, &size, &error));
  CHECK(size == 5);
  CHECK_TEXT(piece, "<bos>");
  stet_free(piece);
  FAILS_WITH(stet_tokenizer_piece(tokenizer, 1620, &piece, &size, &error), STET_ERROR_ARGUMENT,
             "found 1620");
  CHECK(piece == NULL && size == 0);
  int32_t special = -1;
  OK(stet_tokenizer_is_special(tokenizer, 2, &special, &error));
  CHECK(special == 1);
  OK(stet_tokenizer_is_special(tokenizer, 500, &special, &error));
  CHECK(special == 0);
}

static size_t encoded(const char* text, size_t size, const stet_encode_options* options,
                      int32_t** ids) {
  size_t count = 0;
  OK(stet_tokenizer_encode(tokenizer, text, size, options, ids, &count, &error));
  return count;
}

static void text_is_encoded_and_decoded(void) {
  static const char kText[] = "My name is Ada, na\xC3\xAFve \xF0\x9F\x98\x80.<eos>";
  int32_t expected[64], *ids = NULL;
  const size_t expected_count = oracle_encode(POCKET, kText, expected, 64);
  size_t count = encoded(kText, strlen(kText), NULL, &ids);
  CHECK(count == expected_count && memcmp(ids, expected, count * sizeof *ids) == 0);
  CHECK(ids[0] == 2 && ids[count - 1] == id_of("<eos>"));

  char* text = NULL;
  size_t size = 0;
  OK(stet_tokenizer_decode(tokenizer, ids, count, 1, &text, &size, &error));
  CHECK(size == strlen(kText) - 5 && memcmp(text, kText, size) == 0);
  stet_free(text);
  OK(stet_tokenizer_decode(tokenizer, ids, count, 0, &text, &size, &error));
  CHECK_TEXT(text + 5, kText);
  stet_free(text);
  stet_free(ids);

  /* Special tokens that are spelled in plain text stay text: in all of it, or in given ranges. */
  stet_encode_options plain = {.struct_size = sizeof plain, .flags = STET_ENCODE_PLAIN};
  const size_t plain_count = encoded("a<eos>", 6, &plain, &ids);
  CHECK(plain_count > 3 && ids[plain_count - 1] != id_of("<eos>"));
  const stet_range range = {1, 6};
  const stet_encode_options ranges = {
      .struct_size = sizeof ranges, .plain = &range, .plain_count = 1};
  int32_t* same = NULL;
  CHECK(encoded("a<eos>", 6, &ranges, &same) == plain_count);
  CHECK(memcmp(ids, same, plain_count * sizeof *ids) == 0);
  stet_free(ids);
  stet_free(same);
  plain.plain = &range;
  plain.plain_count = 1;
  FAILS(stet_tokenizer_encode(tokenizer, "a<eos>", 6, &plain, &ids, &count, &error),
        STET_ERROR_ARGUMENT,
        "options.plain: STET_ENCODE_PLAIN makes all text plain: pass no ranges with it");

  const stet_encode_options no_bos = {.struct_size = sizeof no_bos, .flags = STET_ENCODE_NO_BOS};
  CHECK(encoded("", 0, &no_bos, &ids) == 0 && ids == NULL);
  CHECK(encoded(NULL, 0, &no_bos, &ids) == 0 && ids == NULL);
  const stet_encode_options bos = {.struct_size = sizeof bos,
                                   .flags = STET_ENCODE_BOS | STET_ENCODE_CONTINUED};
  CHECK(encoded("a\0b", 3, &bos, &ids) > 2 && ids[0] == 2);
  stet_free(ids);
  const stet_encode_options both = {.struct_size = sizeof both,
                                    .flags = STET_ENCODE_BOS | STET_ENCODE_NO_BOS};
  FAILS(stet_tokenizer_encode(tokenizer, "a", 1, &both, &ids, &count, &error), STET_ERROR_ARGUMENT,
        "options.flags: STET_ENCODE_BOS and STET_ENCODE_NO_BOS exclude each other");
  const int32_t strange[] = {-1};
  FAILS_WITH(stet_tokenizer_decode(tokenizer, strange, 1, 0, &text, &size, &error),
             STET_ERROR_ARGUMENT, "found -1");
  CHECK(text == NULL && size == 0);
}

static void a_text_has_a_size_that_exists(void) {
  int32_t* ids = NULL;
  size_t count = 1;
  FAILS(stet_tokenizer_encode(tokenizer, "a", SIZE_MAX, NULL, &ids, &count, &error),
        STET_ERROR_ARGUMENT,
        "text: expected at most 9223372036854775807, found 18446744073709551615");
  CHECK(ids == NULL && count == 0);
}

static void a_stream_gives_the_text_of_decode(void) {
  static const char kText[] = "na\xC3\xAFve \xF0\x9F\x98\x80.";
  int32_t* ids = NULL;
  const size_t count = encoded(kText, strlen(kText), NULL, &ids);
  stet_text_stream *stream = NULL, *resumed = NULL;
  OK(stet_text_stream_new(tokenizer, 1, &stream, &error));
  char all[64] = "";
  stet_text text;
  for (size_t i = 0; i < count; ++i) {
    OK(stet_text_stream_push(stream, ids[i], &text, &error));
    CHECK(strlen(text.data) == text.size);
    strcat(all, text.data);
    /* A new stream continues from the bytes that this one saves. */
    char* state = NULL;
    size_t size = 0;
    OK(stet_text_stream_save(stream, &state, &size, &error));
    OK(stet_text_stream_new(tokenizer, 1, &resumed, &error));
    OK(stet_text_stream_restore(resumed, state, size, &error));
    stet_free(state);
    stet_text_stream_free(stream);
    stream = resumed;
  }
  OK(stet_text_stream_finish(stream, &text, &error));
  strcat(all, text.data);
  CHECK_TEXT(all, kText);
  CHECK(stet_text_stream_push(stream, 1620, &text, NULL) == STET_ERROR_ARGUMENT);
  CHECK(stet_text_stream_restore(stream, "?", 1, NULL) == STET_ERROR_FORMAT);
  stet_text_stream_free(stream);
  stet_free(ids);
}

static void templates_are_rendered(void) {
  static const char kMessages[] = "[{\"role\": \"user\", \"content\": \"Hi <eos>\"}]";
  stet_chat_template* chat = NULL;
  OK(stet_chat_template_new(tokenizer, NULL, 0, &chat, &error));
  stet_render_options options = {.struct_size = sizeof options,
                                 .flags = STET_RENDER_GENERATION_PROMPT};
  char* text = NULL;
  size_t size = 0, count = 0;
  stet_range* plain = NULL;
  OK(stet_chat_template_render(chat, kMessages, strlen(kMessages), &options, &text, &size, &plain,
                               &count, &error));
  const char* content = strstr(text, "Hi <eos>");
  CHECK(content != NULL && strlen(text) == size && count > 0);
  const stet_range last = plain[count - 1]; /* the first range may be the role */
  CHECK(last.begin == (size_t)(content - text) && last.end == last.begin + 8);
  stet_free(text);
  stet_free(plain);
  FAILS_WITH(stet_chat_template_render(chat, "[", 1, &options, &text, &size, NULL, NULL, &error),
             STET_ERROR_FORMAT, "");
  FAILS(stet_chat_template_render(chat, kMessages, strlen(kMessages), &options, &text, &size,
                                  &plain, NULL, &error),
        STET_ERROR_ARGUMENT, "plain: plain and plain_count belong together: pass both or neither");
  stet_chat_template_free(chat);

  static const char kSource[] = "{{ greeting }}, {{ messages[0].role }}{{ bos_token }}";
  OK(stet_chat_template_new(tokenizer, kSource, strlen(kSource), &chat, &error));
  options.variables = (stet_text){"{\"greeting\": \"Hello\"}", 21};
  OK(stet_chat_template_render(chat, kMessages, strlen(kMessages), &options, &text, &size, NULL,
                               NULL, &error));
  CHECK_TEXT(text, "Hello, user<bos>");
  stet_free(text);
  stet_chat_template_free(chat);
  FAILS_WITH(stet_chat_template_new(tokenizer, "{% if", 5, &chat, &error), STET_ERROR_FORMAT, "");
  CHECK(chat == NULL);
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

static void it_is_made_of_bytes(void) {
  stet_file files[2] = {{.name = "tokenizer.model"}, {.name = "tokenizer_config.json"}};
  char* bytes[2] = {content_of(POCKET "/tokenizer.model", &files[0].size),
                    content_of(POCKET "/tokenizer_config.json", &files[1].size)};
  for (int i = 0; i < 2; ++i) files[i].data = bytes[i];
  stet_tokenizer* made = NULL;
  OK(stet_tokenizer_load_files(files, 2, "flash", &made, &error));
  for (int i = 0; i < 2; ++i) free(bytes[i]);
  stet_tokenizer_info a = {.struct_size = sizeof a}, b = a;
  OK(stet_tokenizer_get_info(tokenizer, &a, &error));
  OK(stet_tokenizer_get_info(made, &b, &error));
  CHECK_TEXT(a.fingerprint, b.fingerprint);
  stet_tokenizer_free(made);

  FAILS_WITH(stet_tokenizer_load_files(files, 0, "flash", &made, &error), STET_ERROR_IO, "");
  const stet_file outside[] = {{"../tokenizer.model", "", 0}};
  FAILS(stet_tokenizer_load_files(outside, 1, "flash", &made, &error), STET_ERROR_ARGUMENT,
        "files.name: expected a plain file name, found ../tokenizer.model");
  const stet_file twice[] = {{"a", "", 0}, {"a", "", 0}};
  FAILS(stet_tokenizer_load_files(twice, 2, "flash", &made, &error), STET_ERROR_ARGUMENT,
        "files.name: expected each name once, found a");
  FAILS_WITH(stet_tokenizer_load("no/such/place", &made, &error), STET_ERROR_IO, "");
  FAILS(stet_tokenizer_load_pre(POCKET, "", &made, &error), STET_ERROR_ARGUMENT,
        "pre_tokenizer: expected the name of a pre-tokenizer, found an empty text");
  FAILS_WITH(stet_tokenizer_load_pre(POCKET, "gpt-2", &made, &error), STET_ERROR_ARGUMENT,
             "is a directory");
  CHECK(made == NULL);
}

int test_text(void) {
  OK(stet_tokenizer_load(POCKET, &tokenizer, &error));
  it_says_what_it_is();
  text_is_encoded_and_decoded();
  a_text_has_a_size_that_exists();
  a_stream_gives_the_text_of_decode();
  templates_are_rendered();
  it_is_made_of_bytes();
  stet_tokenizer_free(tokenizer);
  return 0;
}
