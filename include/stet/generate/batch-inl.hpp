// Implements batch.hpp.
#pragma once

namespace stet {

namespace detail {

STET_INL PassCosts* add_drafts(std::span<Generator* const> replies, std::span<BatchEntry> entries,
                               double slowest) {
  PassCosts* costs = nullptr;
  for (const Generator* reply : replies) costs = costs == nullptr ? reply->costs() : costs;
  if (costs == nullptr) return nullptr;
  std::vector<DraftChoice> choices;
  for (size_t i = 0; i < replies.size(); ++i)
    choices.push_back(replies[i]->consider(entries[i].ids[0]));
  choose_drafts(choices, replies.size(), *costs, slowest);
  for (size_t i = 0; i < replies.size(); ++i)
    entries[i].draft = replies[i]->draft(entries[i].ids[0], choices[i]);
  return costs;
}

STET_INL size_t rows_of(std::span<const BatchEntry> entries) {
  size_t rows = 0;
  for (const BatchEntry& entry : entries) rows += entry.ids.size() + entry.draft.size();
  return rows;
}

}  // namespace detail

STET_INL std::vector<Reply> generate(std::span<const BatchReply> batch,
                                     const Tokenizer* tokenizer) {
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
        if (Speculator* const own = batch[i].options.speculator;
            own != nullptr && before.options.speculator == own)
          throw Error(ErrorKind::argument, "", "speculator", "each speculator once", "one twice");
      }
      generators.emplace_back(*batch[i].session, tokenizer, batch[i].options);
    });
  }
  for (size_t i = 0; i < batch.size(); ++i) {
    if (generators[i].certain().empty() || goes_on(i)) going.push_back(i);
  }
  const bool watched =
      std::ranges::any_of(batch, [](const BatchReply& b) { return b.watch != nullptr; });
  // Draws tokens up to one that needs a pass. Returns nothing if the reply has ended.
  const auto draw = [&](size_t i) -> std::optional<int32_t> {
    for (;;) {
      const std::optional<int32_t> id = generators[i].draw();
      if (!id || watched || !generators[i].accept(*id)) return id;
      generators[i].processed(*id);
      if (!goes_on(i)) return std::nullopt;
    }
  };
  while (!going.empty()) {
    std::vector<size_t> drawing;
    std::vector<int32_t> ids;
    for (const size_t i : going) {
      if (const std::optional<int32_t> id = draw(i)) {
        drawing.push_back(i);
        ids.push_back(*id);
      }
    }
    std::vector<BatchEntry> entries;
    std::vector<Generator*> replies;
    for (size_t k = 0; k < drawing.size(); ++k) {
      const BatchReply& b = batch[drawing[k]];
      entries.push_back({b.session, {&ids[k], 1}, b.watch});
      replies.push_back(&generators[drawing[k]]);
    }
    PassCosts* const costs = watched ? nullptr : detail::add_drafts(replies, entries);
    const auto start = std::chrono::steady_clock::now();
    append(entries);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    if (costs != nullptr) costs->add(detail::rows_of(entries), took.count());
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
