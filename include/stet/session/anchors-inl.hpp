// Implements what a session does with recurrent arrays and anchors (anchors.hpp).
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "stet/base/error.hpp"
#include "stet/kv/kv_writer.hpp"

namespace stet {

namespace detail {

std::shared_ptr<std::vector<float>> logits_of(const Model& model, const ComputeOptions& compute,
                                              const std::vector<float>& hidden);  // batch-inl.hpp
std::vector<int64_t> partial_blocks(const State& state, int64_t begin, int64_t end);

STET_INL bool gives_arrays_again(const State& state, int64_t from, int64_t to) {
  if (from == to) return true;
  if (!is_replayable(state.origin.contract)) return false;
  return std::ranges::all_of(state.edits, [&](const KvEdit& e) {
    if (e.position >= to) return true;
    if (e.what == KvEdit::What::callback) return false;
    if (e.what == KvEdit::What::arrays) return e.at <= from;
    return e.at <= from || (e.at >= to && e.position >= from);
  });
}

}  // namespace detail

// ------------------------------------------------------------------ anchors

STET_INL void Session::add_anchor(Anchor anchor) {
  anchor.by_content =
      anchor.by_content || !state_.edits.empty() || !is_replayable(state_.origin.contract);
  state_.anchors.add(std::move(anchor));
}

STET_INL void Session::keep_anchor(bool by_content) {
  if (state_.recurrent.empty() || size() == 0) return;
  if (state_.logits != nullptr) logits_shared_.set();
  add_anchor({size(), state_.recurrent.share(), state_.logits, false, false, by_content});
  state_.anchors.settle(anchor_bytes_, state_.recurrent.shape().bytes());
}

STET_INL void Session::keep_anchor() {
  enter("keep_anchor");
  keep_anchor(false);
}

STET_INL void Session::anchor_at(std::vector<int64_t> positions) {
  refuse_in_sink("anchor_at");
  if (state_.recurrent.empty()) return;
  std::erase_if(positions, [&](int64_t p) { return p <= size(); });
  std::ranges::sort(positions);
  anchors_wanted_ = std::move(positions);
}

// Returns how many of the next `rest` tokens of an append the next pass may process.
STET_INL size_t Session::until_anchor(size_t rest) const {
  if (state_.recurrent.empty()) return rest;
  const int64_t end = size() + static_cast<int64_t>(rest);
  return static_cast<size_t>(next_anchor(size(), end, anchors_wanted_) - size());
}

// Ends a pass of an append whose last position is `end` - 1: commits its arrays, and adds an anchor
// if one is wanted here. `hidden` is the input of the head at the pass's last token, [hidden_size].
STET_INL void Session::end_pass(const float* hidden, int64_t end) {
  if (state_.recurrent.empty()) return;
  state_.recurrent.commit_pass();
  const bool wanted = std::ranges::binary_search(anchors_wanted_, size());
  const bool block_end = size() % kBlockPositions == 0 &&
                         end / kBlockPositions - size() / kBlockPositions < Anchors::kBlockEnds;
  if (!wanted && !block_end) return;
  auto last = std::make_shared<std::vector<float>>(hidden, hidden + model_->config().hidden_size);
  add_anchor({size(), state_.recurrent.share(), std::move(last), true, !wanted});
}

// ------------------------------------------------------- computing again

// Returns the last position at or before `from_at_most` from which the arrays at `to` can be
// computed. Returns nothing if there is none.
STET_INL std::optional<Session::StartingPoint> Session::starting_point(int64_t from_at_most,
                                                                       int64_t to) const {
  const Anchors::All& all = state_.anchors.all();
  for (size_t i = all.size(); i-- > 0;) {
    const Anchor& a = *all[i];
    if (a.position > from_at_most || !recompute_.holds_window(state_, a.position)) continue;
    if (detail::gives_arrays_again(state_, a.position, to) && is_intact(a))
      return StartingPoint{a.position, a.arrays};
  }
  if (detail::gives_arrays_again(state_, 0, to)) return StartingPoint{};
  return std::nullopt;
}

STET_INL Session::StartingPoint Session::checked_starting_point(int64_t to) const {
  if (const std::optional<StartingPoint> found = starting_point(to, to)) return *found;
  for (const auto& a : state_.anchors.all()) {  // a damaged one is the better reason
    if (a->position <= to && detail::gives_arrays_again(state_, a->position, to)) a->arrays->load();
  }
  std::string anchors;
  for (const auto& a : state_.anchors.all())
    anchors += (anchors.empty() ? "" : ", ") + std::to_string(a->position);
  throw Error(ErrorKind::argument, "", "rewind",
              "a position with an anchor" + (anchors.empty() ? "" : " (" + anchors + ")") +
                  ": tokens do not give the recurrent arrays of others (" +
                  replay_limit(state_)->reason + ")",
              std::to_string(to));
}

STET_INL int64_t Session::rewind_cost(int64_t to) const {
  refuse_moved("rewind_cost");
  if (state_.recurrent.empty()) return recompute_.rewind_cost(state_, to);
  if (to < 0 || to >= size()) return 0;
  const std::optional<StartingPoint> from = starting_point(to, to);
  return from ? to - from->position : 0;
}

// Returns a session of the first `to` tokens. Those from the starting point on are processed again.
STET_INL Session Session::compute_from(const StartingPoint& from, int64_t to) const {
  Session again(*this);
  again.callbacks_.clear();
  discard_interventions(again.state_, to);
  again.cut(from.position);
  discard_edits(again.state_, from.position);
  again.state_.recurrent.set(from.arrays);
  again.append(
      std::span(state_.tokens)
          .subspan(static_cast<size_t>(from.position), static_cast<size_t>(to - from.position)));
  return again;
}

STET_INL int64_t Session::process_again(int64_t to) {
  enter_change("process_again");
  if (to < 0 || to > size())
    throw Error(ErrorKind::argument, "", "position", "0.." + std::to_string(size()),
                std::to_string(to));
  if (state_.recurrent.empty() || to == 0) {
    rewind(to);
    return to;
  }
  const std::optional<StartingPoint> from = starting_point(to - 1, to);
  if (!from)
    throw Error(ErrorKind::argument, "", "position",
                "one whose recurrent arrays can be recomputed from tokens",
                std::to_string(to) + " (" + replay_limit(state_)->reason + ")");
  *this = compute_from(*from, to);
  return from->position;
}

namespace detail {

// Returns the first `to` positions of `kv`. Blocks that lack layers come from `again`, which ends
// there and holds the window of the next query.
STET_INL KvCache cut_kv(const KvCache& kv, KvCache& again, int64_t to) {
  KvCache cut = kv;
  for (int64_t b = 0; b < blocks_of(to); ++b) {
    if (!cut.block_info(b).holds_all()) KvWriter(cut).replace(b, KvWriter(again).share(b));
  }
  KvWriter(cut).truncate(to);
  return cut;
}

}  // namespace detail

// Cuts the session to `to` positions, with the recurrent arrays there. In an edited state, they are
// kept as an anchor, because the tokens after them can be processed again only from there on.
STET_INL void Session::rewind_recurrent(int64_t to) {
  const StartingPoint from = checked_starting_point(to);
  if (from.position == to) {
    cut(to);
    state_.recurrent.set(from.arrays);
    return;
  }
  if (recompute_.keeps_windows_only()) recompute_.announce(to - from.position);
  Session again = compute_from(from, to);
  if (!detail::partial_blocks(state_, 0, to).empty())
    with_healing([&] { state_.kv = detail::cut_kv(state_.kv, again.state_.kv, to); });
  cut(to);
  state_.recurrent = std::move(again.state_.recurrent);
  for (const auto& a : again.state_.anchors.all()) {
    if (a->position > from.position) state_.anchors.add(*a);
  }
  state_.logits = std::move(again.state_.logits);
  logits_shared_.set();
}

STET_INL void Session::restore_recurrent_logits() {
  const Anchor* const here = state_.anchors.find(size());
  logits_shared_.set();
  if (here != nullptr && here->last != nullptr && is_intact(*here)) {
    state_.logits = here->hidden ? detail::logits_of(*model_, compute_, *here->last) : here->last;
    return;
  }
  const std::optional<StartingPoint> from = starting_point(size() - 1, size());
  if (!from)
    throw Error(ErrorKind::argument, "", "logits",
                "a token whose logits are kept (append one: its logits are known)",
                "that of position " + std::to_string(size() - 1) +
                    ", whose logits are from before an edit (" + replay_limit(state_)->reason +
                    ")");
  recompute_.tell(size() - from->position);
  state_.logits = std::move(compute_from(*from, size()).state_.logits);
}

// ------------------------------------------------------------------ pruning

STET_INL void Session::refuse_prune() const {
  if (state_.recurrent.empty()) return;
  throw Error(ErrorKind::unsupported, "", "prune",
              "--recompute, which processes the tokens that stay anew: recurrent layers cannot "
              "forget tokens",
              "family " + model_->config().family);
}

namespace detail {

// Subtracts the gap's length from the positions of messages after it, and removes messages inside
// it.
STET_INL void shift_messages(ChatState& chat, int64_t begin, int64_t end) {
  const auto moved = [&](int64_t at) {
    return at < begin ? at : std::max(begin, at - (end - begin));
  };
  for (Message& m : chat.messages) {
    const int64_t before = m.end - m.begin;
    if (m.begin >= begin && m.end <= end && before > 0) m.role.clear();
    m.begin = moved(m.begin), m.end = moved(m.end);
    if (m.generated && m.end - m.begin != before) m.content.clear();
  }
  std::erase_if(chat.messages, [](const Message& m) { return m.role.empty(); });
}

}  // namespace detail

// Removes positions begin .. end-1 by processing all later tokens again without them.
STET_INL void Session::process_without(int64_t begin, int64_t end) {
  for (const Intervention& w : state_.interventions) {
    if (w.at > begin || w.end > begin || w.begin > begin)
      throw Error(ErrorKind::unsupported, "", "prune",
                  "no interventions that name positions after " + std::to_string(begin),
                  range_text(w.begin, w.end));
  }
  GenerationState generation = state_.generation;
  ChatState chat = state_.chat;
  detail::shift_turns(generation, begin, end);
  detail::shift_messages(chat, begin, end);
  Session again(*this);
  again.rewind(begin);
  again.append(std::span(state_.tokens).subspan(static_cast<size_t>(end)));
  again.state_.generation = std::move(generation);
  again.state_.chat = std::move(chat);
  *this = std::move(again);
}

}  // namespace stet
