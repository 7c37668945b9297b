// The state: everything but the weights that influences the next token. Sessions carry it,
// snapshots store it, forks share it.
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
#include "stet/kv/recurrent_state.hpp"
#include "stet/model/config.hpp"
#include "stet/model/hooks.hpp"
#include "stet/sampling/sampler.hpp"
#include "stet/session/anchors.hpp"

namespace stet {

// One exchange, a prompt and its reply, as positions. The reply is empty before its first token;
// the prompt is empty if there was none.
struct Turn {
  int64_t prompt = 0;  // first token of the prompt
  int64_t reply = 0;   // first token of the reply
  int64_t end = 0;     // one past the last token of the reply so far
  bool open = false;   // the reply was cut by a limit and may continue

  bool operator==(const Turn&) const = default;
};

// Settings for drawing and stopping, and what an unfinished reply holds back.
struct GenerationState {
  SamplingSettings sampling;  // includes the seed; each draw depends on seed and position only
  std::vector<int32_t> stop_ids;
  std::vector<std::string> stop_strings;
  std::vector<Turn> turns;
  std::string stream;  // open reply: TextStream::state
  std::string held;    // open reply: StopMatcher::pending

  // Discards everything from a position on: later turns, the end of a turn that is cut (which may
  // then continue), and text held back. A reply that a later prompt ended stays ended, and tokens
  // appended behind an open reply stay a part of it. This may change the state's id, and no logit.
  void rewind(int64_t size);
  // Returns the session's tokens that belong to the open reply, from its first one on. Frequency
  // and presence penalties count these. Prompts and earlier replies are not counted; a reply that
  // was cut and continued counts as one.
  std::span<const int32_t> reply_of(std::span<const int32_t> tokens) const;
  bool operator==(const GenerationState&) const = default;
};

// A message of a chat. Positions count as if none had ever been shifted out (State::transcript).
struct Message {
  std::string role;     // as the template uses it: "system", "user", "assistant", "tool"
  std::string content;  // UTF-8
  // Further members for the template (tool_calls, content as a list, ...): a JSON object, or "".
  std::string fields;
  // The message's tokens. For a generated reply these are its tokens without the stop token. For
  // another message they are the stretch between two such replies that contains it.
  int64_t begin = 0, end = 0;
  // True for a reply of the model: its tokens are authoritative, and content is their text.
  bool generated = false;

  bool operator==(const Message&) const = default;
};

// The chat of a session: all inputs of the chat template. Conversation (conversation.hpp) modifies
// it.
struct ChatState {
  std::vector<Message> messages;
  std::string variables;      // for the template (tools, ...): a JSON object, or ""
  std::string chat_template;  // overrides the tokenizer's; "" uses that
  // Time given to templates that request it (strftime_now), in seconds since 1970. It is stored so
  // that the chat always renders alike.
  int64_t now = 0;
  bool special_in_text = false;  // special tokens in a message's text count as such, not as text

  // Discards messages that extend past a position. A generated reply is cut instead.
  void rewind(int64_t size);
  bool empty() const { return *this == ChatState(); }
  bool operator==(const ChatState&) const = default;
};

// An entry of the prune log, by which a state can be replayed: positions begin .. end-1 were
// removed when there were `at` positions. Without shift, they remain but are hidden. With shift,
// the tokens were removed and the length of the gap was subtracted from later positions.
struct Prune {
  int64_t at = 0, begin = 0, end = 0;
  bool shift = false;
  std::vector<int32_t> removed;  // shift: the removed token ids

  int64_t left() const { return shift ? at - (end - begin) : at; }  // positions that remained
  bool operator==(const Prune&) const = default;
};

// An entry of the edit log: keys or values were changed from outside when there were `at`
// positions. A state with edits is no longer determined by its tokens.
struct KvEdit {
  enum class What : uint8_t {
    key,  // one position, layer and head
    value,
    kv_type,   // all were rounded to another type
    callback,  // positions from `position` on were computed under a callback
    splice,    // positions from `position` on were spliced from several states
    arrays,    // the recurrent arrays after `position` were set; `head` is an array's index
  };
  enum class How : uint8_t { set, scale, copy };  // for keys and values
  What what = What::key;
  int64_t at = 0;
  int64_t prunes = 0;  // earlier prunes; positions are numbered as after them
  int64_t position = -1, layer = -1, head = -1;  // -1: all
  int64_t end = -1;  // positions position .. end-1; -1: one position, or as `what` implies
  How how = How::set;
  std::string source = {};  // copy and splice: the id of the source state

  // Returns one past the last position that the entry edits directly; -1 if it edits all.
  int64_t reach() const { return position < 0 ? -1 : std::max(end, position + 1); }

  bool operator==(const KvEdit&) const = default;
};
const char* kv_edit_name(KvEdit::What what);  // "key", "value", "kv type", "callback", ...

// Returns the number of positions that the shifts of a log removed.
int64_t shifted_out(const std::vector<Prune>& prunes);

// Logits of single positions of an edited state, kept for rewinds: they cannot be recomputed from
// the edited keys and values. Stored as logits, or as the row of hidden state that the head reads.
// Rows are in ascending order of position, and their values are immutable.
class RewindLogits {
 public:
  struct Row {
    int64_t position = 0;
    bool hidden = false;  // true: values are [hidden_size]; false: logits, [vocab_size]
    std::shared_ptr<std::vector<float>> values;
  };

  const std::vector<Row>& rows() const { return rows_; }
  // Returns the row of a position, or null if none was kept.
  const Row* find(int64_t position) const {
    const auto row = std::ranges::lower_bound(rows_, position, {}, &Row::position);
    return row != rows_.end() && row->position == position ? &*row : nullptr;
  }
  // Appends a row. Returns false and does nothing unless its position is after all others.
  bool keep(Row row) {
    if (!rows_.empty() && rows_.back().position >= row.position) return false;
    rows_.push_back(std::move(row));
    return true;
  }
  // Removes positions from `size` on.
  void truncate(int64_t size) {
    while (!rows_.empty() && rows_.back().position >= size) rows_.pop_back();
  }
  void clear() { rows_.clear(); }

 private:
  std::vector<Row> rows_;
};

// The contract and model that computed a state. A session that continues it must have the same.
struct StateOrigin {
  std::string contract;  // contract_name()
  int version = 0;       // version of the contract
  std::string model;     // the model's fingerprint in text form

  bool operator==(const StateOrigin&) const = default;
};

// The state of a session.
struct State {
  StateOrigin origin;
  std::vector<int32_t> tokens;  // position i holds tokens[i]
  KvCache kv;                   // keys, values and visibility of positions 0 .. tokens.size()-1
  // Logits after the last token, [vocab_size]. Null if unknown (no tokens, or rewound). Forks share
  // them; an append allocates new ones.
  std::shared_ptr<std::vector<float>> logits;
  GenerationState generation;
  std::vector<Prune> prunes;                // in order
  std::vector<KvEdit> edits;                // in order; empty if the tokens determine the state
  std::vector<Intervention> interventions;  // in order of attachment
  ChatState chat;                           // empty if there is no chat
  RewindLogits kept = {};                   // empty if the tokens determine the state
  RecurrentState recurrent = {};            // arrays of recurrent layers after the last token
  Anchors anchors = {};                     // arrays at earlier positions
  // Returns the keys and values with all layers of positions begin .. end-1, including those that a
  // window-only session has dropped. Null if nothing was dropped or there is no model.
  using WholeKv = std::function<KvCache(const State& state, int64_t begin, int64_t end)>;
  std::shared_ptr<const WholeKv> whole_kv = nullptr;

  int64_t size() const { return static_cast<int64_t>(tokens.size()); }
  // Returns the size below which the state cannot be rewound, because keys that earlier positions
  // saw no longer exist.
  int64_t floor() const { return prunes.empty() ? 0 : prunes.back().left(); }
  // Returns all tokens that were appended and not rewound, including those shifted out.
  std::vector<int32_t> transcript() const;
  // Returns the size of the transcript. Random draws are keyed by it, so that none repeats after a
  // shift.
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

// Finds free slots by their rank among the free ones in logarithmic time (a Fenwick tree).
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

// The tokens of the first prune go to the slots that it names. Those of each later prune go to
// slots counted among the rest. The current tokens fill the remaining slots.
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
