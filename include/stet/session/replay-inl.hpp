// Implements replay(): computes a state from its recipe.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <string>

namespace stet {

// Appends the transcript in order, and repeats each prune and intervention at the size at which it
// was made.
STET_INL Session replay(std::shared_ptr<const Model> model, const State& state,
                        const SessionOptions& options, const Progress& progress,
                        const Appender& append) {
  if (!state.edits.empty()) {
    throw Error(ErrorKind::argument, "", "edits",
                "none: a state whose keys or values were edited cannot be computed again",
                std::to_string(state.edits.size()));
  }
  const std::vector<int32_t> all = state.transcript();
  std::span<const int32_t> rest = all;
  const int64_t capacity = checked_capacity(model->config(), options.capacity);
  if (state.size() > capacity)
    throw Error(ErrorKind::capacity, "", "tokens",
                "at most " + std::to_string(capacity) + " positions (--ctx)",
                std::to_string(state.size()));
  SessionOptions own = options;  // replaying is reprocessing, so before_recall must not refuse
  own.capacity = capacity;
  for (const Prune& p : state.prunes) own.capacity = std::max(own.capacity, p.at);
  if (own.window.only) own.window.before_recall = [](int64_t) {};
  Session session(model, own);
  std::vector<int64_t> anchors;
  for (const auto& a : state.anchors.all()) anchors.push_back(a->position);
  session.anchor_at(std::move(anchors));
  const auto append_to = [&](int64_t end) {
    const int64_t from = session.size();
    if (end < from || static_cast<size_t>(end - from) > rest.size()) {
      throw Error(ErrorKind::argument, "", "prunes", "positions of the tokens before each",
                  std::to_string(end));
    }
    const std::span<const int32_t> next = rest.first(static_cast<size_t>(end - from));
    const auto report = [&](int64_t done) { progress(from + done); };
    if (!append) {
      session.append(next, nullptr, nullptr, progress ? Progress(report) : Progress());
    } else if (!next.empty()) {
      append(session, next);
      if (progress) progress(end);
    }
    rest = rest.subspan(next.size());
  };
  auto next_change = state.interventions.begin();
  const auto attach_after = [&](int64_t prunes) {
    for (; next_change != state.interventions.end() && next_change->prunes == prunes;
         ++next_change) {
      append_to(next_change->at);
      session.attach(*next_change);
    }
  };
  for (const Prune& p : state.prunes) {
    attach_after(static_cast<int64_t>(session.prunes().size()));
    append_to(p.at);
    session.prune_range(p.begin, p.end, p.shift);
  }
  attach_after(static_cast<int64_t>(session.prunes().size()));
  append_to(state.size());
  session.lower_capacity(capacity);
  if (own.window.only) session.set_before_recall(options.window.before_recall);
  session.generation() = state.generation;
  session.chat() = state.chat;
  return session;
}

}  // namespace stet
