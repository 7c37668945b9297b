#include "oracle.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "stet/chat/conversation.hpp"
#include "stet/generate/generate.hpp"
#include "stet/session/session.hpp"
#include "stet/snapshot/snapshot.hpp"
#include "tests/support/heap.hpp"

namespace {

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "oracle: expected %s\n", what);
  std::exit(1);
}

void copy(const std::string& text, char* out, size_t size) {
  require(text.size() < size, "room for the text");
  std::memcpy(out, text.c_str(), text.size() + 1);
}

}  // namespace

void oracle_logits(const char* directory, const int32_t* ids, size_t count, float* out,
                   size_t size) {
  stet::Session session(stet::Model::load(directory));
  std::vector<float> all;
  session.append(std::span(ids, count), [&](int64_t, stet::Rows rows) {
    for (size_t i = 0; i < rows.count; ++i)
      all.insert(all.end(), rows.row(i), rows.row(i) + rows.width);
  });
  require(all.size() == size, "as many logits");
  std::memcpy(out, all.data(), size * sizeof(float));
}

void oracle_recurrent(const char* directory, const int32_t* ids, size_t count, int64_t layer,
                      size_t index, float* out, size_t size) {
  stet::Session session(stet::Model::load(directory));
  session.append(std::span(ids, count));
  const std::span<const float> x = session.recurrent().array(layer, index);
  require(x.size() == size, "as many numbers");
  std::memcpy(out, x.data(), size * sizeof(float));
}

size_t oracle_encode(const char* directory, const char* text, int32_t* out, size_t size) {
  const std::vector<int32_t> ids = stet::Tokenizer::load(std::string(directory))->encode(text);
  require(ids.size() <= size, "room for the ids");
  std::memcpy(out, ids.data(), ids.size() * sizeof(int32_t));
  return ids.size();
}

void oracle_reply(const char* directory, const char* prompt, double temperature, uint64_t seed,
                  int64_t max_tokens, char* out, size_t size) {
  const auto tokenizer = stet::Tokenizer::load(std::string(directory));
  stet::Session session(stet::Model::load(directory));
  session.generation() = stet::default_generation(session.model());
  session.generation().sampling.greedy = temperature == 0;
  if (temperature > 0) session.generation().sampling.temperature = temperature;
  session.generation().sampling.seed = seed;
  stet::append_prompt(session, tokenizer->encode(prompt));
  stet::GenerateOptions options;
  options.max_tokens = max_tokens;
  copy(stet::generate(session, tokenizer.get(), options).text, out, size);
}

void oracle_chat_id(const char* directory, const char* const* messages, size_t count, char* out,
                    size_t size) {
  stet::Session session(stet::Model::load(directory));
  session.generation() = stet::default_generation(session.model());
  stet::Conversation chat(std::move(session), stet::Tokenizer::load(std::string(directory)));
  for (size_t i = 0; i < count; ++i) {
    chat.say(messages[i]);
    chat.reply({});
  }
  copy(stet::sha256_text(stet::digests_of(chat.session()).id), out, size);
}

void oracle_save_cut_reply(const char* directory, const char* path) {
  const auto model = stet::Model::load(directory);
  const auto tokenizer = stet::Tokenizer::load(std::string(directory));
  stet::Session session(model);
  session.generation() = stet::default_generation(*model);
  stet::Conversation chat(std::move(session), tokenizer);
  chat.say("My name is Ada.");
  stet::GenerateOptions options;
  options.max_tokens = 3;
  chat.reply(options);
  stet::Snapshot::save(chat.session(), path, {.tokenizer = tokenizer.get()});
  options.max_tokens = 64;
  std::fputs(chat.reply(options).text.c_str(), stdout);
}

int32_t refuse_memory(int64_t after) {
#ifdef STET_OPERATOR_NEW_IS_TAKEN
  return 0;
#else
  stet::test::heap::allocations_left = -1;
  const int64_t before = stet::test::heap::allocations;
  ::operator delete(::operator new(1));
  if (stet::test::heap::allocations == before) return 0;  // valgrind replaces operator new
  stet::test::heap::allocations_left = after;
  return 1;
#endif
}

int32_t throwing_text(void*, const char*, size_t) { throw std::runtime_error("no more"); }
int32_t throwing_progress(void*, int64_t) { throw 7; }
void throwing_release(void*) { throw std::runtime_error("not released"); }
