// All that influences the next token and is not a weight: what a session carries, a snapshot keeps
// and a fork shares.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "stet/base/error.hpp"
#include "stet/kv/kv_cache.hpp"
#include "stet/model/config.hpp"
#include "stet/model/hooks.hpp"
#include "stet/sampling/sampler.hpp"

namespace stet {

// One exchange: a prompt and the reply to it, as positions. A turn whose reply has not begun, or
// that had no prompt, has an empty part.
struct Turn {
  int64_t prompt = 0;  // first token of the prompt
  int64_t reply = 0;   // first token of the reply
  int64_t end = 0;     // one past the last token of the reply so far
  bool open = false;   // the reply was cut by a limit and may go on

  bool operator==(const Turn&) const = default;
};

// How the next tokens are drawn, where the reply stops, and what a reply in progress holds back.
struct GenerationState {
  SamplingSettings sampling;  // with the seed; randomness is a function of seed and position
  std::vector<int32_t> stop_ids;
  std::vector<std::string> stop_strings;
  std::vector<Turn> turns;
  std::string stream;  // TextStream::state of an open reply
  std::string held;    // StopMatcher::pending of an open reply

  // Forgets what lies at or after a position: later turns, the end of a turn that is cut, which may
  // then go on, and text held back by a reply.
  void rewind(int64_t size);
  // Of a session's tokens those of the open reply, from its first one on: what frequency and
  // presence penalties count. Earlier replies and prompts are not counted, and a reply that was cut
  // and goes on is one reply.
  std::span<const int32_t> reply_of(std::span<const int32_t> tokens) const;
  bool operator==(const GenerationState&) const = default;
};

// What someone said. Positions count as if none had ever been shifted out (State::transcript).
struct Message {
  std::string role;     // as the template knows it: "system", "user", "assistant", "tool"
  std::string content;  // UTF-8
  // A JSON object of further members for the template (tool_calls, content as a list, ...), or "".
  std::string fields;
  // Where it is: the tokens of a generated reply, its stop token left out; of other messages the
  // stretch of tokens between two such replies that holds it.
  int64_t begin = 0, end = 0;
  // A reply of the model: its tokens are what was said, and content is their text.
  bool generated = false;

  bool operator==(const Message&) const = default;
};

// What a session keeps of a chat: all that the chat template is given. Conversation
// (conversation.hpp) is what changes it.
struct ChatState {
  std::vector<Message> messages;
  std::string variables;      // for the template (tools, ...): a JSON object, or ""
  std::string chat_template;  // in place of the tokenizer's, or ""
  // The time that a template which asks for it (strftime_now) is told, so that it renders alike for
  // ever; seconds since 1970.
  int64_t now = 0;
  bool special_in_text = false;  // marks that a message contains are marks, not text

  // Forgets messages of which a part lies at or after a position; of a generated reply the front
  // stays.
  void rewind(int64_t size);
  bool empty() const { return *this == ChatState(); }
  bool operator==(const ChatState&) const = default;
};

// Positions begin .. end-1 were taken out when `at` positions were there. Either they stay and are
// seen no more, or (shift) those behind them moved up and their tokens went. An entry of the log by
// which the state can be replayed.
struct Prune {
  int64_t at = 0, begin = 0, end = 0;
  bool shift = false;
  std::vector<int32_t> removed;  // shift: the token ids that went

  int64_t left() const { return shift ? at - (end - begin) : at; }  // positions there afterwards
  bool operator==(const Prune&) const = default;
};

// Keys or values were changed from outside, when `at` positions were there: an entry of the log by
// which a state says that its tokens do not give it any more.
struct KvEdit {
  enum class What : uint8_t {
    key,  // of one position, layer and head
    value,
    kv_type,   // all, rounded to another type once they were there
    callback,  // what came from `position` on was computed under a program's own function
    splice,    // positions from `position` on were put together from several states
  };
  enum class How : uint8_t { set, scale, copy };  // of a key or value
  What what = What::key;
  int64_t at = 0;
  int64_t prunes = 0;  // that were made before: `position` counts as after them
  int64_t position = -1, layer = -1, head = -1;  // -1: all
  int64_t end = -1;  // positions position .. end-1; -1: one, or as `what` says
  How how = How::set;
  std::string source = {};  // the id of the state that they are of: of a copy and a splice

  // One past the last position that it changed itself; -1: all of them.
  int64_t reach() const { return position < 0 ? -1 : std::max(end, position + 1); }

  bool operator==(const KvEdit&) const = default;
};
const char* kv_edit_name(KvEdit::What what);  // "key", "value", "kv type", "callback", "splice"

// How many positions the shifts of a log took out.
int64_t shifted_out(const std::vector<Prune>& prunes);

// Logits of single positions of an edited state, which its keys and values do not give again: after
// a rewind they are the logits of before. Kept as they were, or as the row of hidden state that the
// head reads. In the order of their positions; what they hold is never written to.
class KeptLogits {
 public:
  struct Row {
    int64_t position = 0;
    bool hidden = false;  // values: [hidden_size], else logits, [vocab_size]
    std::shared_ptr<std::vector<float>> values;
  };

  const std::vector<Row>& rows() const { return rows_; }
  // Null: it is not kept.
  const Row* find(int64_t position) const {
    const auto row = std::ranges::lower_bound(rows_, position, {}, &Row::position);
    return row != rows_.end() && row->position == position ? &*row : nullptr;
  }
  // Adds a row behind the others. Does nothing, and returns false, for a position that is there
  // already.
  bool keep(Row row) {
    if (!rows_.empty() && rows_.back().position >= row.position) return false;
    rows_.push_back(std::move(row));
    return true;
  }
  // Forgets the positions from `size` on.
  void truncate(int64_t size) {
    while (!rows_.empty() && rows_.back().position >= size) rows_.pop_back();
  }
  void clear() { rows_.clear(); }

 private:
  std::vector<Row> rows_;
};

// What computed a state, beside its tokens. Whoever goes on with it must be the same.
struct StateOrigin {
  std::string contract;  // contract_name()
  int version = 0;       // of the contract
  std::string model;     // its fingerprint, as text

  bool operator==(const StateOrigin&) const = default;
};

struct State {
  StateOrigin origin;
  std::vector<int32_t> tokens;  // position i holds tokens[i]
  KvCache kv;                   // keys, values and visibility of positions 0 .. tokens.size()-1
  // After the last token; null: not known (no tokens, or rewound). Forks share them: whoever goes
  // on makes new ones.
  std::shared_ptr<std::vector<float>> logits;
  GenerationState generation;
  std::vector<Prune> prunes;                // in the order they were made
  std::vector<KvEdit> edits;                // likewise; empty for a state that its tokens give
  std::vector<Intervention> interventions;  // in the order they were attached
  ChatState chat;                           // empty where there is no chat
  KeptLogits kept = {};                     // empty for a state that its tokens give
  // Computes the keys and values of all layers, also of those that a session with windows only has
  // let go. Null: nothing was let go, or there is no model to compute with.
  std::shared_ptr<const std::function<KvCache(const State&)>> whole_kv = nullptr;

  int64_t size() const { return static_cast<int64_t>(tokens.size()); }
  // Below this size the state cannot be rewound: keys that the earlier positions saw are gone.
  int64_t floor() const { return prunes.empty() ? 0 : prunes.back().left(); }
  // All tokens that were appended and not rewound, as if none had been shifted out.
  std::vector<int32_t> transcript() const;
  // Their number: what randomness is keyed by, so that no draw is repeated after a shift.
  int64_t transcript_size() const { return size() + shifted_out(prunes); }
};

inline void GenerationState::rewind(int64_t size) {
  while (!turns.empty() && turns.back().prompt >= size) turns.pop_back();
  stream.clear();
  held.clear();
  if (turns.empty() || turns.back().end <= size) return;
  Turn& cut = turns.back();
  cut = {cut.prompt, std::min(cut.reply, size), size, true};
}

inline std::span<const int32_t> GenerationState::reply_of(std::span<const int32_t> tokens) const {
  if (turns.empty() || !turns.back().open) return {};
  return tokens.subspan(std::min(static_cast<size_t>(turns.back().reply), tokens.size()));
}

inline int64_t shifted_out(const std::vector<Prune>& prunes) {
  int64_t n = 0;
  for (const Prune& p : prunes) n += static_cast<int64_t>(p.removed.size());
  return n;
}

namespace detail {

// The slots of a row that are still free, found by their rank among the free ones in logarithmic
// time (a Fenwick tree).
class FreeSlots {
 public:
  explicit FreeSlots(size_t count) : counts_(count + 1) {
    for (size_t i = 1; i <= count; ++i) counts_[i] = static_cast<uint32_t>(i & (~i + 1));
    top_ = std::bit_floor(count);
  }

  size_t take(size_t rank) {
    size_t at = 0;
    for (size_t step = top_; step > 0; step /= 2) {
      if (at + step >= counts_.size() || counts_[at + step] > rank) continue;
      at += step;
      rank -= counts_[at];
    }
    for (size_t i = at + 1; i < counts_.size(); i += i & (~i + 1)) --counts_[i];
    return at;
  }

 private:
  std::vector<uint32_t> counts_;
  size_t top_;
};

}  // namespace detail

// What the first prune removed stands where it says; what the second removed where it says among
// the rest; and so on. What remains is what is still there.
inline std::vector<int32_t> State::transcript() const {
  if (shifted_out(prunes) == 0) return tokens;
  std::vector<int32_t> all(static_cast<size_t>(transcript_size()));
  std::vector<bool> taken(all.size());
  detail::FreeSlots slots(all.size());
  for (const Prune& p : prunes) {
    for (const int32_t id : p.removed) {
      const size_t slot = slots.take(static_cast<size_t>(p.begin));
      if (slot == all.size())
        throw Error(ErrorKind::argument, "", "prunes", "positions of the tokens before each",
                    std::to_string(p.begin));
      all[slot] = id;
      taken[slot] = true;
    }
  }
  auto next = tokens.begin();
  for (size_t i = 0; i < all.size(); ++i) {
    if (!taken[i]) all[i] = *next++;
  }
  return all;
}

inline void ChatState::rewind(int64_t size) {
  while (!messages.empty()) {
    Message& last = messages.back();
    if (last.end <= size) return;
    if (last.generated && last.begin < size) {
      last.end = size;
      last.content.clear();
      return;
    }
    messages.pop_back();
  }
}

}  // namespace stet
