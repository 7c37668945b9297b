#include "stet/session/state.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "stet/base/error.hpp"
#include "stet/base/limits.hpp"
#include "stet/kernels/float_environment.hpp"
#include "stet/kernels/kernels.hpp"
#include "stet/kernels/rope.hpp"
#include "stet/kv/kv_writer.hpp"

namespace stet {

void GenerationState::rewind(int64_t size) {
  while (!turns.empty() && turns.back().prompt >= size) turns.pop_back();
  stream.clear();
  held.clear();
  if (turns.empty() || turns.back().end <= size) return;
  Turn& cut = turns.back();
  cut = {cut.prompt, std::min(cut.reply, size), size, true};
}

int64_t shifted_out(const std::vector<Prune>& prunes) {
  int64_t n = 0;
  for (const Prune& p : prunes) n += static_cast<int64_t>(p.removed.size());
  return n;
}

namespace {

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

}  // namespace

// What the first prune removed stands where it says; what the second removed where it says among
// the rest; and so on. What remains is what is still there.
std::vector<int32_t> State::transcript() const {
  if (shifted_out(prunes) == 0) return tokens;
  std::vector<int32_t> all(static_cast<size_t>(drawn()));
  std::vector<bool> taken(all.size());
  FreeSlots slots(all.size());
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

void Dialogue::rewind(int64_t size) {
  while (!messages.empty()) {
    Message& last = messages.back();
    if (last.end <= size) return;
    if (last.drawn && last.begin < size) {
      last.end = size;
      last.content.clear();
      return;
    }
    messages.pop_back();
  }
}

namespace {

// The rotation of every pair of dimensions by -distance positions.
struct Rotation {
  std::vector<float> cos, sin;

  Rotation(const Rope& rope, int64_t head_dim, int64_t distance) {
    const std::vector<float> frequencies = inverse_frequencies(rope, head_dim);
    cos.resize(frequencies.size());
    sin.resize(frequencies.size());
    rope_angles_back(distance, frequencies, cos.data(), sin.data());
  }
};

// Copies one position of one head, its key rotated in `key`, [head_dim].
void move_position(const KvShape& shape, const Rotation& r, const std::byte* from, size_t slot,
                   std::byte* to, size_t to_slot, std::vector<float>& key) {
  const size_t element = shape.element_size(), row = static_cast<size_t>(shape.head_dim) * element;
  read_elements(shape.type, from + slot * element, kBlockPositions, key);
  best_kernels().rope(key.data(), r.cos.data(), r.sin.data(), r.cos.size());
  write_elements(shape.type, key, to + to_slot * element, kBlockPositions);
  std::memcpy(to + shape.head_bytes() + to_slot * row, from + shape.head_bytes() + slot * row, row);
}

// Positions end .. size-1 of `old` become begin .. of `kv`, which has been cut to `begin`.
void close_gap(const KvCache& old, KvCache& kv, const ModelConfig& config, int64_t begin,
               int64_t end) {
  const KvShape& shape = old.shape();
  std::vector<Rotation> rotations;
  for (const Rope& rope : config.ropes) rotations.emplace_back(rope, shape.head_dim, end - begin);
  std::vector<float> key(static_cast<size_t>(shape.head_dim));
  const int64_t moved = old.size() - end;
  KvWriter writer(kv);
  writer.prepare(moved);
  for (int64_t i = 0; i < moved; ++i) {
    const int64_t from = end + i, to = begin + i, from_block = from / kBlockPositions,
                  to_block = to / kBlockPositions;
    const size_t slot = static_cast<size_t>(from % kBlockPositions),
                 to_slot = static_cast<size_t>(to % kBlockPositions);
    const bool seen = (old.visible(from_block) >> slot & 1) != 0;
    const uint64_t bit = uint64_t{1} << to_slot, bits = kv.visible(to_block);
    writer.set_visible(to_block, seen ? bits | bit : bits & ~bit);
    for (int64_t layer = 0; seen && layer < shape.layers; ++layer) {
      const Rotation& r =
          rotations[static_cast<size_t>(config.rope_of[static_cast<size_t>(layer)])];
      for (int64_t head = 0; head < shape.kv_heads; ++head) {
        const size_t offset = shape.k_offset(layer, head);
        move_position(shape, r, old.unchecked_block(from_block) + offset, slot,
                      writer.writable(to_block) + offset, to_slot, key);
      }
    }
  }
  writer.commit(moved);
}

// Turns after the gap move up; what lay in it is cut off.
void shift_turns(GenerationState& g, int64_t begin, int64_t end) {
  const auto moved = [&](int64_t at) {
    return at < begin ? at : std::max(begin, at - (end - begin));
  };
  std::vector<Turn> kept;
  for (const Turn& t : g.turns) {
    if (t.prompt >= begin && t.end <= end && t.end > t.prompt && !t.open) continue;
    kept.push_back({moved(t.prompt), moved(t.reply), moved(t.end), t.open});
  }
  g.turns = std::move(kept);
}

}  // namespace

void check_prune_log(size_t prunes, int64_t removed) {
  const auto check = [](const char* field, size_t most, size_t found) {
    if (found > most)
      throw Error(ErrorKind::capacity, "", field,
                  "at most " + std::to_string(most) + " in a state's log", std::to_string(found));
  };
  check("prunes", kMaxPrunes, prunes);
  check("tokens shifted out", kMaxRemoved, static_cast<size_t>(removed));
}

void prune_range(State& state, const ModelConfig& config, int64_t begin, int64_t end, bool shift) {
  const int64_t size = state.size();
  if (begin < 0 || end < begin || end > size) {
    throw Error(ErrorKind::argument, "", "prune", "positions in 0.." + std::to_string(size),
                std::to_string(begin) + ".." + std::to_string(end));
  }
  if (begin == end) return;
  if (shift && config.ropes.empty()) {
    throw Error(ErrorKind::unsupported, "", "positions",
                "keep (keys of this model carry no rotary position)", "shift");
  }
  check_prune_log(state.prunes.size() + 1, 0);
  const FloatEnvironment contract;
  Prune entry{size, begin, end, shift, {}};
  KvCache kv = state.kv;
  std::vector<int32_t> tokens;
  GenerationState generation;
  if (shift) {
    tokens = state.tokens;
    generation = state.generation;
    entry.removed.assign(tokens.begin() + begin, tokens.begin() + end);
    tokens.erase(tokens.begin() + begin, tokens.begin() + end);
    KvCache before(state.kv);
    for (int64_t b = end / kBlockPositions; b < before.blocks(); ++b) KvWriter(before).load(b);
    KvWriter(kv).truncate(begin);
    close_gap(before, kv, config, begin, end);
    shift_turns(generation, begin, end);
  } else {
    KvWriter(kv).hide(begin, end);
  }
  state.prunes.push_back(std::move(entry));  // the last that can fail
  state.kv = std::move(kv);
  if (!shift) return;
  state.tokens = std::move(tokens);
  state.generation = std::move(generation);
  if (state.tokens.empty()) state.logits.reset();  // there is no last token
}

int64_t prune(State& state, const ModelConfig& config, const PruneOptions& options) {
  for (const auto& [name, value] :
       {std::pair{"keep-last", options.keep_last}, std::pair{"sinks", options.sinks}}) {
    if (value < 0) throw Error(ErrorKind::argument, "", name, "0 or more", std::to_string(value));
  }
  const int64_t size = state.size(), begin = std::min(options.sinks, size);
  const int64_t end = std::max(begin, size - std::min(options.keep_last, size));
  if (options.shift) check_prune_log(0, shifted_out(state.prunes) + end - begin);
  prune_range(state, config, begin, end, options.shift);
  return end - begin;
}

}  // namespace stet
