// Fetch or compute: decides which blocks of a state are fetched from a store and which are computed
// meanwhile.
//
// Computing a block needs the blocks before it; fetching does not. Blocks at the front are
// therefore computed while later ones are fetched, divided where both take equally long. This takes
// no longer than the better of the two alone. Everything here is a pure function of its inputs: no
// clock, no I/O, no randomness.
//
//   computing token p        token_seconds (1 + p / growth)     growth: positions whose attention
//                                                                costs as much as all else
//   fetching n bytes         latency_seconds + n byte_seconds
//
// Decisions affect only time, never bits.
#pragma once

#include <algorithm>
#include <cstdint>

namespace stet {

constexpr int64_t kPolicyBlock = 64;  // positions (kv_block.hpp)

// The mean of the first observations, then of about the last eight; older ones fade.
class RunningMean {
 public:
  constexpr explicit RunningMean(double assumed) : value_(assumed) {}
  constexpr void add(double x) {
    seen_ = std::min(seen_ + 1, 8);
    value_ += (x - value_) / seen_;
  }
  // the assumed value until there is an observation
  constexpr double value() const { return value_; }
  constexpr bool measured() const { return seen_ > 0; }

 private:
  double value_;
  int seen_ = 0;
};

// Estimated costs, in seconds; `growth` is in positions.
struct FetchCosts {
  double token_seconds = 0.01, growth = 16384;
  double latency_seconds = 0.001, byte_seconds = 1e-8;
  double write_byte_seconds = 1e-8;
  double encode_seconds = 1e-8, decode_seconds = 4e-9;  // codec, per uncompressed byte
  double ratio = 0.85;                                  // compressed bytes per uncompressed byte
  // Seconds that computing must save to be worth the processor time, which others need, too.
  double least_gain = 0.1;
};

// The decision for missing blocks, in order.
struct FetchPlan {
  int64_t computed = 0;  // blocks at the front to compute; the rest is fetched meanwhile
  double seconds = 0;    // until all are available
};

// Decides between fetching and computing, from measured costs.
class FetchPolicy {
 public:
  // Starts with `assumed` costs, which measurements replace.
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
  constexpr bool has_compute_cost() const { return token_.measured(); }
  constexpr bool has_fetch_cost() const { return byte_.measured(); }

  // ---- Measurements. Times that are not positive are ignored.

  // Sets a model's `growth`, and its assumed `token_seconds` until something was computed.
  constexpr void assume(double token_seconds, double growth) {
    growth_ = growth;
    if (!token_.measured()) token_ = RunningMean(token_seconds);
  }
  // Records that tokens at positions first .. first + tokens - 1 took `seconds`.
  constexpr void computed(int64_t first, int64_t tokens, double seconds) {
    if (tokens > 0 && seconds > 0) token_.add(seconds / weight(first, tokens));
  }
  // Records the time of a small request.
  constexpr void answered(double seconds) {
    if (seconds > 0) latency_.add(seconds);
  }
  // Records the time of fetching `bytes`, including the latency of the request.
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

  // ---- Estimates

  // Returns the time to compute blocks first .. first + blocks - 1, if all before them are
  // available.
  constexpr double compute_seconds(int64_t first, int64_t blocks) const {
    return token_.value() * weight(first * kPolicyBlock, blocks * kPolicyBlock);
  }
  constexpr double fetch_seconds(uint64_t bytes) const {
    return bytes == 0 ? 0 : latency_.value() + byte_.value() * static_cast<double>(bytes);
  }

  // ---- Decisions

  // Returns the plan for `blocks` missing blocks from block `first` on, each of block_bytes in the
  // store.
  constexpr FetchPlan plan(int64_t first, int64_t blocks, uint64_t block_bytes) const {
    int64_t low = 0, high = blocks;  // least number of blocks for which computing is not faster
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
  // Returns the number of blocks to fetch per request, at most `most`. Their transfer takes as long
  // as computing one block. It takes at least four times the latency, which is then at most a fifth
  // of the total.
  constexpr int64_t batch(int64_t first, int64_t most, uint64_t block_bytes) const {
    const double each = byte_.value() * static_cast<double>(block_bytes),
                 time = std::max(compute_seconds(first, 1), 4 * latency_.value());
    return each * static_cast<double>(most) <= time
               ? most
               : std::max<int64_t>(1, static_cast<int64_t>(time / each));
  }
  // Returns the time to wait for a block in transit before computing it. This is the time that
  // computing takes, and at least 0.25 s. Both together then cost at most twice the better of the
  // two.
  constexpr double max_wait_seconds(int64_t block) const {
    return std::max(compute_seconds(block, 1), 0.25);
  }
  // Returns the transfer rate, in bytes per second, at which fetching these blocks takes as long as
  // computing them. Returns 0 if fetching is slower at any rate.
  constexpr double break_even_rate(int64_t first, int64_t blocks, uint64_t block_bytes) const {
    const double left = compute_seconds(first, blocks) - latency_.value();
    return left <= 0 ? 0 : static_cast<double>(blocks) * static_cast<double>(block_bytes) / left;
  }
  // Returns true if the codec saves more transfer time, in and out, than it costs.
  constexpr bool worth_encoding() const {
    return (byte_.value() + write_byte_.value()) * (1 - ratio_.value()) >
           encode_.value() + decode_.value();
  }

 private:
  // Returns the time to compute these tokens, in units of the time of a token at position 0.
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
