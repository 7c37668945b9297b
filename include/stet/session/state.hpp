// All that influences the next token and is not a weight: what a session carries, a snapshot keeps
// and a fork shares.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "stet/kv/kv_cache.hpp"
#include "stet/model/config.hpp"
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
  bool operator==(const GenerationState&) const = default;
};

// What someone said. Positions count as if none had ever been shifted out (State::transcript).
struct Message {
  std::string role;     // as the template knows it: "system", "user", "assistant", "tool"
  std::string content;  // UTF-8
  std::string fields;   // further members for the template (tool_calls, content as a list, ...): a
                        // JSON object, or ""
  // Where it is: the tokens of a drawn reply, its stop token left out; of other messages the
  // stretch of tokens between two such replies that holds it.
  int64_t begin = 0, end = 0;
  bool drawn =
      false;  // a reply of the model: its tokens are what was said, and content is their text

  bool operator==(const Message&) const = default;
};

// A conversation: what the chat template is given.
struct Dialogue {
  std::vector<Message> messages;
  std::string variables;      // for the template (tools, ...): a JSON object, or ""
  std::string chat_template;  // in place of the tokenizer's, or ""
  // The time that a template which asks for it (strftime_now) is told, so that it renders alike for
  // ever; seconds since 1970.
  int64_t now = 0;
  bool special_in_text = false;  // marks that a message contains are marks, not text

  // Forgets messages of which a part lies at or after a position; of a drawn reply the front stays.
  void rewind(int64_t size);
  bool empty() const { return *this == Dialogue(); }
  bool operator==(const Dialogue&) const = default;
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
    kv_type,  // all, rounded to another type once they were there
  };
  What what = What::key;
  int64_t at = 0;
  int64_t prunes = 0;  // that were made before: `position` counts as after them
  int64_t position = -1, layer = -1, head = -1;  // -1: all

  bool operator==(const KvEdit&) const = default;
};
const char* kv_edit_name(KvEdit::What what);  // "key", "value", "kv type"

// How many positions the shifts of a log took out.
int64_t shifted_out(const std::vector<Prune>& prunes);

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
  std::vector<Prune> prunes;  // in the order they were made
  std::vector<KvEdit> edits;  // likewise; empty for a state that its tokens give
  Dialogue dialogue;          // empty where there is no chat

  int64_t size() const { return static_cast<int64_t>(tokens.size()); }
  // Below this size the state cannot be rewound: keys that the earlier positions saw are gone.
  int64_t floor() const { return prunes.empty() ? 0 : prunes.back().left(); }
  // Tokens ever appended and not rewound: what randomness is keyed by, so that no draw is repeated
  // after a shift.
  int64_t drawn() const { return size() + shifted_out(prunes); }
  // Those tokens: as if none had been shifted out.
  std::vector<int32_t> transcript() const;
};

// What prune() keeps: the first `sinks` positions and the last `keep_last`.
struct PruneOptions {
  int64_t keep_last = 0, sinks = 0;
  // false: positions stay, and the gap is masked. true: later positions move up to close it.
  bool shift = false;
};

// Takes positions out of a state; needs no weights. Returns the number of positions that are seen
// no more (0: nothing to do). The logits stay those of the last token, as it was computed; where no
// token is left, there are none.
//
// keep is exact: what follows equals a computation in which the pruned positions are masked from
// then on. shift rotates stored keys by -d positions, d = end - begin: for each pair (a, b) of a
// head's dimensions and its angle t = float32(d x frequency), with c = float32(cos t), s =
// float32(sin t):
//   a' = fma(a, c, b s),  b' = fma(b, c, -(a s)),
// in float32, rounded once to the cache's type; values move as they are. Beside keys computed at
// the new position, the error is that of two angles rounded to float32 (relative 2^-24 of the
// position's angle, in radians) and some units in the last place of the rotation itself; for
// float32 caches, it is below 1e-6 of a key's length per thousand positions of d. Values and keys
// of deeper layers keep what they saw of the removed tokens; they are not recomputed.
//
// Throws an argument Error for negative numbers, and where keys of the model carry no rotary
// position (shift); a capacity Error where the log would become longer than a snapshot can hold
// (limits.hpp).
int64_t prune(State& state, const ModelConfig& config, const PruneOptions& options);
// The same with a range: what replaying a log needs. Of the log's limits, that of tokens shifted
// out is left to saving.
void prune_range(State& state, const ModelConfig& config, int64_t begin, int64_t end, bool shift);
// Throws a capacity Error for a log of so many prunes, and tokens that shifts took out, as no
// snapshot can hold.
void check_prune_log(size_t prunes, int64_t removed);

// Edits of positions from `size` on are forgotten, as their positions are by a rewind.
void forget_edits(State& state, int64_t size);

// Replaces the key (as it is stored: after its norm and rotation) or the value of one position by
// `x`, [head_dim], rounded once to the cache's type. Blocks that others share stay as they are. The
// logits stay those of the last token, as it was computed. Throws an argument Error for what is not
// there: a position, layer or head, a position that was pruned, another number of elements, numbers
// that are not finite.
void set_key(State& state, int64_t layer, int64_t head, int64_t position, std::span<const float> x);
void set_value(State& state, int64_t layer, int64_t head, int64_t position,
               std::span<const float> x);
// The same state with keys and values of another type, each rounded once, to nearest even; widening
// is exact. What a session of that type computes from the tokens is not the same, since its later
// layers see rounded keys and values: so this is an edit. `capacity` 0: as it was.
State with_kv_type(const State& state, KvType type, int64_t capacity = 0);

}  // namespace stet
