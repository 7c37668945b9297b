// Fetch or compute: which blocks of a state come from a store, and which are computed meanwhile.
//
// A block is computed from the blocks before it, and fetched without them. So the blocks at the
// front are computed while those behind are fetched, first blocks first, cut where both take
// equally long: that takes no longer than the better of the two alone, wherever they cross over.
// Everything here is a pure function of what was told: no clock, no I/O, no randomness.
//
//   computing token p        token_seconds (1 + p / growth)     growth: positions whose attention
//                                                                costs as much as all else
//   fetching n bytes         latency_seconds + n byte_seconds
//
// Bits never depend on a decision; time alone does.
#pragma once

#include <algorithm>
#include <cstdint>

namespace stet {

constexpr int64_t kPolicyBlock = 64;  // positions (kv_block.hpp)

// Of the first observations the mean, then of the last eight or so: what came before them fades.
class RunningMean {
 public:
  constexpr explicit RunningMean(double assumed) : value_(assumed) {}
  constexpr void add(double x) {
    seen_ = std::min(seen_ + 1, 8);
    value_ += (x - value_) / seen_;
  }
  constexpr double value() const { return value_; }  // what was assumed, until there is a first
  constexpr bool measured() const { return seen_ > 0; }

 private:
  double value_;
  int seen_ = 0;
};

// In seconds; positions for `growth`.
struct FetchCosts {
  double token_seconds = 0.01, growth = 16384;
  double latency_seconds = 0.001, byte_seconds = 1e-8;
  double write_byte_seconds = 1e-8;
  double encode_seconds = 1e-8, decode_seconds = 4e-9;  // of a codec, for each byte before it
  double ratio = 0.85;                                  // bytes after it for each before it
  // What computing has to save before it is worth the processor's time: others want that, too.
  double least_gain = 0.1;
};

// Of blocks that are missing, in order.
struct FetchPlan {
  int64_t computed = 0;  // at the front, while those behind them are fetched
  double seconds = 0;    // until all are there
};

class FetchPolicy {
 public:
  // `assumed` until it is measured.
  constexpr explicit FetchPolicy(const FetchCosts& assumed = {})
      : growth_(assumed.growth),
        least_gain_(assumed.least_gain),
        token_(assumed.token_seconds),
        latency_(assumed.latency_seconds),
        byte_(assumed.byte_seconds),
        write_byte_(assumed.write_byte_seconds),
        encode_(assumed.encode_seconds),
        decode_(assumed.decode_seconds),
        ratio_(assumed.ratio) {}

  constexpr FetchCosts costs() const {
    return {token_.value(),  growth_,         latency_.value(), byte_.value(), write_byte_.value(),
            encode_.value(), decode_.value(), ratio_.value(),   least_gain_};
  }
  constexpr bool knows_computing() const { return token_.measured(); }
  constexpr bool knows_fetching() const { return byte_.measured(); }

  // ---- What was measured. Times that are not positive are left out.

  // Of a model before anything of it was computed: `token_seconds` assumed, `growth` known.
  constexpr void assume(double token_seconds, double growth) {
    growth_ = growth;
    if (!token_.measured()) token_ = RunningMean(token_seconds);
  }
  // Tokens at positions first .. first + tokens - 1 took that long.
  constexpr void computed(int64_t first, int64_t tokens, double seconds) {
    if (tokens > 0 && seconds > 0) token_.add(seconds / weight(first, tokens));
  }
  // A small request was answered.
  constexpr void answered(double seconds) {
    if (seconds > 0) latency_.add(seconds);
  }
  // That many bytes came within that time, the latency of a request with them.
  constexpr void fetched(uint64_t bytes, double seconds) {
    if (bytes == 0 || seconds <= 0) return;
    byte_.add(std::max(seconds - latency_.value(), seconds / 2) / static_cast<double>(bytes));
  }
  constexpr void written(uint64_t bytes, double seconds) {
    if (bytes > 0 && seconds > 0) write_byte_.add(seconds / static_cast<double>(bytes));
  }
  constexpr void encoded(uint64_t before, uint64_t after, double seconds) {
    if (before == 0 || seconds <= 0) return;
    encode_.add(seconds / static_cast<double>(before));
    ratio_.add(static_cast<double>(after) / static_cast<double>(before));
  }
  constexpr void decoded(uint64_t before, double seconds) {
    if (before > 0 && seconds > 0) decode_.add(seconds / static_cast<double>(before));
  }

  // ---- What is foreseen.

  // Blocks first .. first + blocks - 1, all before them being there.
  constexpr double compute_seconds(int64_t first, int64_t blocks) const {
    return token_.value() * weight(first * kPolicyBlock, blocks * kPolicyBlock);
  }
  constexpr double fetch_seconds(uint64_t bytes) const {
    return bytes == 0 ? 0 : latency_.value() + byte_.value() * static_cast<double>(bytes);
  }

  // ---- What is decided.

  // Of `blocks` that are missing from block `first` on, each of that many bytes in the store.
  constexpr FetchPlan plan(int64_t first, int64_t blocks, uint64_t block_bytes) const {
    int64_t low = 0, high = blocks;  // the least number whose computing is not faster
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (compute_seconds(first, middle) < rest_seconds(blocks - middle, block_bytes))
        low = middle + 1;
      else
        high = middle;
    }
    const FetchPlan more = of(first, blocks, low, block_bytes);
    const FetchPlan less = of(first, blocks, std::max<int64_t>(low - 1, 0), block_bytes);
    const FetchPlan best = less.seconds <= more.seconds ? less : more;
    const FetchPlan fetched = of(first, blocks, 0, block_bytes);
    return fetched.seconds - best.seconds < least_gain_ ? fetched : best;
  }
  // How many blocks one request asks for: as many as come while one is computed, and so many that
  // the latency is a fifth of the time at most; no more than `most`.
  constexpr int64_t batch(int64_t first, int64_t most, uint64_t block_bytes) const {
    const double each = byte_.value() * static_cast<double>(block_bytes),
                 time = std::max(compute_seconds(first, 1), 4 * latency_.value());
    return each * static_cast<double>(most) <= time
               ? most
               : std::max<int64_t>(1, static_cast<int64_t>(time / each));
  }
  // How long a block that is on its way is waited for before it is computed: as long as computing
  // it takes, so that both together cost at most twice the better of the two; and a moment, which
  // nobody minds.
  constexpr double patience_seconds(int64_t block) const {
    return std::max(compute_seconds(block, 1), 0.25);
  }
  // The bytes a second at which fetching these takes as long as computing them; 0: fetching loses
  // at any.
  constexpr double crossover(int64_t first, int64_t blocks, uint64_t block_bytes) const {
    const double left = compute_seconds(first, blocks) - latency_.value();
    return left <= 0 ? 0 : static_cast<double>(blocks) * static_cast<double>(block_bytes) / left;
  }
  // Whether a codec earns its time: what it saves on the way in and out is more than it costs.
  constexpr bool worth_encoding() const {
    return (byte_.value() + write_byte_.value()) * (1 - ratio_.value()) >
           encode_.value() + decode_.value();
  }

 private:
  // Tokens at position 0 that take as long as these.
  constexpr double weight(int64_t first, int64_t tokens) const {
    const double n = static_cast<double>(tokens), p = static_cast<double>(first);
    return n * (1 + (p + (n - 1) / 2) / growth_);
  }
  constexpr double rest_seconds(int64_t blocks, uint64_t block_bytes) const {
    return fetch_seconds(static_cast<uint64_t>(blocks) * block_bytes);
  }
  constexpr FetchPlan of(int64_t first, int64_t blocks, int64_t computed,
                         uint64_t block_bytes) const {
    return {computed, std::max(computed > 0 ? compute_seconds(first, computed) : 0.0,
                               rest_seconds(blocks - computed, block_bytes))};
  }

  double growth_, least_gain_;
  RunningMean token_, latency_, byte_, write_byte_, encode_, decode_, ratio_;
};

}  // namespace stet
