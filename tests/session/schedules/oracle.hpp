// The reference for a session: a plain list of tokens, processed in one call on one thread, with
// the same prunes and edits.
#pragma once

#include <map>

#include "stet/snapshot/snapshot.hpp"
#include "tests/support/models.hpp"

namespace stet::test {

// Returns token `position` of text `text`. Texts are few, so that schedules share many states.
inline int32_t token_of(const Model& m, uint32_t text, int64_t position) {
  return static_cast<int32_t>((position * position * 31 + position * 7 + text * 101 + 3) %
                              m.config().vocab_size);
}

// A few interventions, in force from where they are attached.
constexpr uint32_t kChanges = 4;
Intervention change_of(const Model& m, uint32_t which);
// Returns an intervention on the state of a recurrent layer: `which` selects the layer, the
// operation, the heads, and positions from `at` on.
Intervention state_change_of(const Model& m, uint32_t which, int64_t at);
// Returns its first position, and the one after its last (-1: unbounded).
std::pair<int64_t, int64_t> state_change_positions(uint32_t which, int64_t at);

// Returns a state in which an array of a recurrent layer is set.
State with_array(State state, uint32_t which);

// Returns a layer with keys and values of its own, or a recurrent one. `which` selects among them.
int64_t layer_of(const ModelConfig& config, bool recurrent, uint32_t which);

// Returns a callback that adds to the last layer's input. No file can hold it.
std::shared_ptr<const Callback> callback_of(const Model& m);

class Timeline {
 public:
  int64_t size() const;
  int64_t floor() const;  // the smallest size for a rewind
  // Returns positions 0 .. a_end-1 of one timeline, followed by begin .. end-1 of another.
  static Timeline joined(const Timeline& a, int64_t a_end, const Timeline& b, int64_t begin,
                         int64_t end);
  bool is_joined() const { return joint_ != nullptr; }
  void append(std::span<const int32_t> ids);
  void rewind(int64_t size);
  void prune(int64_t begin, int64_t end, bool shift);
  void attach(uint32_t which);
  void change_state(uint32_t which);
  // Attaches or detaches a callback from here on.
  void call(bool on);
  // Scales keys and values of a range or, with a source, copies them from there.
  struct Edit {
    KvRange range;
    float factor = 0;
    std::shared_ptr<const Timeline> source;
  };
  void edit(const Edit& edit);
  // Sets an array of a recurrent layer.
  void set_array(uint32_t which);
  void round(KvType type);
  // Returns true if logits of this size were computed before keys and values were rounded, so that
  // they may be unavailable.
  bool may_lack_logits() const;
  bool calls() const;   // a callback is attached
  bool edited() const;  // tokens may not reproduce it
  // Returns true if an intervention was attached after `position`, or names positions after it.
  bool intervenes_after(int64_t position) const;

  void replay(const Model& m, Session& session) const;
  std::string text() const;  // the calls that make it
  std::string name() const;  // equal only for equal timelines

 private:
  // Appended tokens, followed by a pruned range (none in the last stage).
  struct Stage {
    std::vector<int32_t> tokens;
    int64_t begin = 0, end = 0;
    bool shift = false;
    struct Change {
      size_t after;  // number of tokens before it
      enum Kind { intervention, of_state, callback_on, callback_off, edit, kv_type, arrays } kind;
      uint32_t which = 0;
      Edit what = {};
      KvType type = KvType::f32;
      bool moved = false;  // a rewind to before it has moved it

      bool intervenes() const { return kind == intervention || kind == of_state; }
    };
    std::vector<Change> changes;
  };
  static void apply(const Model& m, Session& session, const SessionOptions& plain,
                    const Stage::Change& change);
  static std::string text_of(const Stage::Change& change);
  struct Joint;
  std::vector<Stage> stages_ = {{}};
  int64_t size_ = 0;
  std::shared_ptr<const Joint> joint_;  // null: begins without tokens
};

struct Timeline::Joint {
  Timeline a, b;
  int64_t a_end, begin, end;
};

struct Truth {
  std::vector<int32_t> tokens;
  Digest logits, kv, arrays, state;
  Sha256 id;
  std::vector<BlockIdentity> blocks;

  friend bool operator==(const Truth&, const Truth&) = default;
};

// Returns true if a session holds all keys and values.
bool is_whole(const Session& session);

// Reads every block. `kv` is zero for a session that has evicted blocks.
Truth truth_of(Session& session);

// Maps every name met so far to its meaning, across models, contracts and types of keys and values.
class Names {
 public:
  // Records the meaning of a name. Returns false if the name already has another meaning.
  bool is_of(const Sha256& name, const Digest& meaning) {
    return known_.try_emplace(name, meaning).first->second == meaning;
  }
  // Returns true if each block's identity belongs to its bytes and visible positions alone.
  bool blocks_agree(const KvCache& kv, const std::vector<BlockIdentity>& blocks);
  // Returns true if the name of each anchor, and of the arrays after the last token, belongs to its
  // arrays alone. Those that are named by their content need no check.
  bool anchors_agree(const State& state);

 private:
  std::map<Sha256, Digest> known_;
};

// The reference results of one model, contract and kv type, cached. Throws std::runtime_error if
// two states with one id continue differently.
class Oracle {
 public:
  Oracle(std::shared_ptr<const Model> model, const SessionOptions& plain, Names& names)
      : model_(std::move(model)), plain_(plain), names_(names) {}
  const Truth& truth(const Timeline& timeline);

 private:
  std::shared_ptr<const Model> model_;
  SessionOptions plain_;
  Names& names_;
  std::map<std::string, Truth> known_;
};

}  // namespace stet::test
