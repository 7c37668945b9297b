// Generates replies of many sessions in shared passes.
#pragma once

#include <deque>
#include <span>
#include <string>
#include <vector>

#include "stet/generate/generate.hpp"

namespace stet {

// One session of a batch, with its own sampling, stops, interventions and options.
struct BatchReply {
  Session* session;
  GenerateOptions options = {};
  TextSink sink = nullptr;       // see generate()
  const Watch* watch = nullptr;  // for the drawn tokens
};

// Generates a reply for each entry, with the bits that generate() alone would give. An entry whose
// reply has ended leaves the batch. Throws what generate() and append() of a batch throw; the
// error's field names the entry at fault. Tokens drawn so far stay in the sessions.
std::vector<Reply> generate(std::span<const BatchReply> batch, const Tokenizer* tokenizer);

inline std::vector<Reply> generate(std::span<const BatchReply> batch, const Tokenizer* tokenizer) {
  std::deque<Generator> generators;
  std::vector<size_t> going;  // indices of unfinished entries
  const auto goes_on = [&](size_t i) {
    const std::string& text = generators[i].certain();
    return !batch[i].sink || batch[i].sink(text);
  };
  for (size_t i = 0; i < batch.size(); ++i) {
    detail::for_entry(batch.size(), i, [&] {
      if (batch[i].session == nullptr)
        throw Error(ErrorKind::argument, "", "session", "a session", "null");
      for (const BatchReply& before : batch.first(i)) {
        if (before.session == batch[i].session)
          throw Error(ErrorKind::argument, "", "session", "each session once", "one twice");
      }
      generators.emplace_back(*batch[i].session, tokenizer, batch[i].options);
    });
  }
  for (size_t i = 0; i < batch.size(); ++i) {
    if (generators[i].certain().empty() || goes_on(i)) going.push_back(i);
  }
  while (!going.empty()) {
    std::vector<size_t> drawing;
    std::vector<int32_t> ids;
    for (const size_t i : going) {
      if (const std::optional<int32_t> id = generators[i].draw()) {
        drawing.push_back(i);
        ids.push_back(*id);
      }
    }
    std::vector<BatchEntry> entries;
    for (size_t k = 0; k < drawing.size(); ++k) {
      const BatchReply& b = batch[drawing[k]];
      entries.push_back({b.session, {&ids[k], 1}, b.watch});
    }
    append(entries);
    going.clear();
    for (size_t k = 0; k < drawing.size(); ++k) {
      generators[drawing[k]].processed(ids[k]);
      if (goes_on(drawing[k])) going.push_back(drawing[k]);
    }
  }
  std::vector<Reply> replies;
  for (Generator& generator : generators) replies.push_back(generator.finish());
  return replies;
}

}  // namespace stet
