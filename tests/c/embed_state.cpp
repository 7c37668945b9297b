// Saves a reply that was cut, and prints how it goes on. Arguments: a checkpoint directory, the
// snapshot to write.
#include <cstdio>

#include "stet/chat/conversation.hpp"
#include "stet/snapshot/snapshot.hpp"

int main(int, char** argv) {
  const auto model = stet::Model::load(argv[1]);
  const auto tokenizer = stet::Tokenizer::load(std::string(argv[1]));
  stet::Session session(model);
  session.generation() = stet::default_generation(*model);
  stet::Conversation chat(std::move(session), tokenizer);
  chat.say("My name is Ada.");
  stet::GenerateOptions options;
  options.max_tokens = 3;
  chat.reply(options);
  stet::Snapshot::save(chat.session(), argv[2], {.tokenizer = tokenizer.get()});
  options.max_tokens = 64;
  std::fputs(chat.reply(options).text.c_str(), stdout);
}
