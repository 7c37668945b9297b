// What a session must be: a plain list of tokens, processed at once on one thread and pruned where
// it was pruned.
#pragma once

#include <map>

#include "stet/snapshot/snapshot.hpp"
#include "tests/support/models.hpp"

namespace stet::test {

// Token `position` of text `text`: few texts, so that schedules have many states in common.
inline int32_t token_of(const Model& m, uint32_t text, int64_t position) {
  return static_cast<int32_t>((position * position * 31 + position * 7 + text * 101 + 3) %
                              m.config().vocab_size);
}

// A few changes of activations, from where they are attached on.
constexpr uint32_t kChanges = 4;
Intervention change_of(const Model& m, uint32_t which);

// Adds to the last layer's input, as no file can say.
std::shared_ptr<const Callback> callback_of(const Model& m);

class Timeline {
 public:
  int64_t size() const;
  int64_t floor() const;  // how far a rewind may go
  // Positions 0 .. a_end-1 of one and begin .. end-1 of another, with nothing before.
  static Timeline joined(const Timeline& a, int64_t a_end, const Timeline& b, int64_t begin,
                         int64_t end);
  bool is_joined() const { return joint_ != nullptr; }
  void append(std::span<const int32_t> ids);
  void rewind(int64_t size);
  void prune(int64_t begin, int64_t end, bool shift);
  void attach(uint32_t which);
  // A callback from here on, or none any more.
  void call(bool on);
  // Keys and values of a range are scaled, or, where there is a source, copied from there.
  struct Edit {
    KvRange range;
    float factor = 0;
    std::shared_ptr<const Timeline> source;
  };
  void edit(const Edit& edit);
  void round(KvType type);
  // Logits of this size were computed before keys and values were rounded: they may be gone.
  bool may_lack_logits() const;
  bool calls() const;   // a callback is attached
  bool edited() const;  // tokens may not give it

  void replay(const Model& m, Session& session) const;
  std::string text() const;  // the calls that make it
  std::string name() const;  // equal for equal timelines alone

 private:
  // Tokens appended, and then a range taken out (none in the last stage).
  struct Stage {
    std::vector<int32_t> tokens;
    int64_t begin = 0, end = 0;
    bool shift = false;
    struct Change {
      size_t after;  // so many of the tokens
      enum Kind { intervention, callback_on, callback_off, edit, kv_type } kind;
      uint32_t which = 0;
      Edit what = {};
      KvType type = KvType::f32;
      bool moved = false;  // by a rewind to before it
    };
    std::vector<Change> changes;
  };
  static void apply(const Model& m, Session& session, const SessionOptions& plain,
                    const Stage::Change& change);
  static std::string text_of(const Stage::Change& change);
  struct Joint;
  std::vector<Stage> stages_ = {{}};
  int64_t size_ = 0;
  std::shared_ptr<const Joint> joint_;  // null: begins with no tokens
};

struct Timeline::Joint {
  Timeline a, b;
  int64_t a_end, begin, end;
};

struct Truth {
  std::vector<int32_t> tokens;
  Digest logits, kv, state;
  Sha256 id;
  std::vector<BlockIdentity> blocks;

  friend bool operator==(const Truth&, const Truth&) = default;
};

// Whether a session holds all keys and values.
bool is_whole(const Session& session);

// Looks at every block. Of a session that has let some go, `kv` is zero.
Truth truth_of(Session& session);

// What every name that was ever met is the name of, whatever the model, the contract and the type
// of keys and values.
class Names {
 public:
  // Whether it is the name of nothing else.
  bool is_of(const Sha256& name, const Digest& meaning) {
    return known_.try_emplace(name, meaning).first->second == meaning;
  }
  // Whether each block's identity is the name of its bytes alone, with what is visible of them.
  bool blocks_agree(const KvCache& kv, const std::vector<BlockIdentity>& blocks);

 private:
  std::map<Sha256, Digest> known_;
};

// Of one model, contract and kv type. Remembers. Throws std::runtime_error where two states of one
// id go on in different ways.
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
