// Compares caches and logits of two states, number by number.
#include "kernels/compare.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "stet/kernels/math.hpp"

namespace stet {
namespace {

bool same_bits(float x, float y) {
  return std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(y);
}

bool within(double x, double y, double tolerance) {
  return std::abs(x - y) <= tolerance * std::max(1.0, std::abs(x));
}

// Formats a number with its stored bits (`bytes` bytes).
std::string number_text(float x, const void* at, size_t bytes) {
  uint32_t bits = 0;
  std::memcpy(&bits, at, bytes);  // the low bytes: the machine is little-endian
  return fmt::format("{} (bits {:x})", x, bits);
}

class DeviationSum {
 public:
  void add(double difference) {
    const double size =
        std::isnan(difference) ? std::numeric_limits<double>::infinity() : std::abs(difference);
    largest_ = std::max(largest_, size);
    squares_ += size * size;
  }
  void count(int64_t numbers) { count_ += numbers; }
  Deviation get() const {
    return {largest_, count_ == 0 ? 0 : std::sqrt(squares_ / static_cast<double>(count_))};
  }

 private:
  double largest_ = 0, squares_ = 0;
  int64_t count_ = 0;
};

// The keys or the values of one head of one layer in one block.
struct HeadView {
  const KvShape& shape;
  bool key;
  int64_t dims;
  const std::byte* data;

  // Reads one position as float32, [dims].
  void read(int64_t slot, std::vector<float>& x) const { read_row(shape, key, data, slot, x); }
  // Formats one element, whose value is x, with its stored bits; for q8 with its integer and scale.
  std::string text(int64_t slot, int64_t d, float x) const {
    const int64_t i = key ? d * kBlockPositions + slot : slot * dims + d;
    const std::byte* const at = data + static_cast<size_t>(i) * shape.element_size();
    if (shape.type != KvType::q8) return number_text(x, at, shape.element_size());
    float scale;
    std::memcpy(&scale,
                data + shape.elements_bytes(dims) + static_cast<size_t>(slot) * sizeof scale,
                sizeof scale);
    return fmt::format("{} ({} x {})", x, static_cast<int>(*at) - (static_cast<int>(*at) & 128) * 2,
                       scale);
  }
};

HeadView head_of(const KvShape& shape, const std::byte* block, bool key, int64_t layer,
                 int64_t head) {
  const KvLayer l = shape.layer(layer);
  return {shape, key, key ? l.key_dim : l.value_dim, block + shape.offset(key, layer, head)};
}

class KvComparer {
 public:
  KvComparer(const KvCache& a, const KvCache& b, double tolerance)
      : a_(a), b_(b), tolerance_(tolerance), sums_(static_cast<size_t>(a.shape().layers) * 2) {}

  KvDifferences compare(int64_t begin, int64_t end) {
    const int64_t positions = std::min(a_.size(), b_.size());
    for (int64_t block = begin; block < std::min(end, blocks_of(positions)); ++block) {
      compare_block(block,
                    a_.visible(block) & b_.visible(block) & positions_of_block(block, positions));
    }
    KvDifferences found{first_[1], first_[0], {}};
    for (size_t i = 0; i < sums_.size(); i += 2)
      found.layers.push_back({sums_[i + 1].get(), sums_[i].get()});
    return found;
  }

 private:
  void compare_block(int64_t block, uint64_t slots) {
    const KvBlock &one = a_.block_info(block), &other = b_.block_info(block);
    one.check_held(a_.shape(), block);
    other.check_held(b_.shape(), block);
    const std::byte *const mine = one.data(), *const theirs = other.data();
    for (int64_t layer = 0; layer < a_.shape().layers; ++layer) {
      if (!one.holds(layer) || !other.holds(layer)) {
        compare_digests(block, layer, slots);
        continue;
      }
      const int64_t heads = a_.shape().owns(layer) ? a_.shape().layer(layer).kv_heads : 0;
      for (int64_t head = 0; head < heads; ++head) {
        for (const bool key : {true, false}) {
          compare_head(key, {"", block * kBlockPositions, layer, head, -1, "", ""}, slots,
                       head_of(a_.shape(), mine, key, layer, head),
                       head_of(b_.shape(), theirs, key, layer, head));
        }
      }
    }
  }

  // Compares the digests of a layer that one of the caches has dropped, if the types are equal.
  void compare_digests(int64_t block, int64_t layer, uint64_t slots) {
    if (a_.shape().type != b_.shape().type || slots != positions_of_block(block, a_.size()) ||
        slots != positions_of_block(block, b_.size()))
      return;
    const Digest x = a_.block_info(block).digests(a_.shape())[static_cast<size_t>(layer)],
                 y = b_.block_info(block).digests(b_.shape())[static_cast<size_t>(layer)];
    const KvLayer l = a_.shape().layer(layer);
    for (const size_t what : {0u, 1u})
      sums_[static_cast<size_t>(layer) * 2 + what].count(std::popcount(slots) * l.kv_heads *
                                                         (what == 1 ? l.key_dim : l.value_dim));
    std::optional<Difference>& first = first_[1];
    if (x == y || (first && first->position <= block * kBlockPositions)) return;
    first = Difference{"keys and values of the block", block * kBlockPositions, layer, -1, -1,
                       "digest " + digest_text(x),     digest_text(y)};
  }

  void compare_head(bool key, const Difference& at, uint64_t slots, const HeadView& mine,
                    const HeadView& theirs) {
    const int64_t dims = mine.dims;
    DeviationSum& sum = sums_[static_cast<size_t>(at.layer) * 2 + key];
    sum.count(std::popcount(slots) * dims);
    if (mine.shape.type == theirs.shape.type &&
        (mine.data == theirs.data ||
         std::memcmp(mine.data, theirs.data, a_.shape().part_bytes(dims)) == 0))
      return;
    for (std::vector<float>& row : rows_) row.resize(static_cast<size_t>(dims));
    for (; slots != 0; slots &= slots - 1) {
      const int64_t slot = std::countr_zero(slots);
      mine.read(slot, rows_[0]);
      theirs.read(slot, rows_[1]);
      for (int64_t d = 0; d < dims; ++d) {
        const float x = rows_[0][static_cast<size_t>(d)], y = rows_[1][static_cast<size_t>(d)];
        if (same_bits(x, y)) continue;
        sum.add(static_cast<double>(y) - x);
        if (tolerance_ > 0 && within(x, y, tolerance_)) continue;
        std::optional<Difference>& first = first_[key];
        if (first && first->position <= at.position + slot) continue;
        first = Difference{key ? "key" : "value", at.position + slot,      at.layer, at.head, d,
                           mine.text(slot, d, x), theirs.text(slot, d, y), x,        y};
      }
    }
  }

  const KvCache &a_, &b_;
  const double tolerance_;
  std::vector<float> rows_[2];          // one key or value of each cache
  std::optional<Difference> first_[2];  // [0] values, [1] keys
  std::vector<DeviationSum> sums_;      // per layer: values, keys
};

// Returns log(sum of e^x) minus the largest x, which is stored in `largest`.
double log_sum(std::span<const float> x, double* largest) {
  *largest = *std::max_element(x.begin(), x.end());
  double sum = 0;
  for (const float v : x) sum += math::exp(v - *largest);
  return math::log(sum);
}

}  // namespace

KvDifferences compare_kv(const KvCache& a, const KvCache& b, double tolerance, int64_t begin,
                         int64_t end) {
  return KvComparer(a, b, tolerance).compare(begin, end);
}

std::optional<Difference> first_logit(std::span<const float> a, std::span<const float> b,
                                      double tolerance) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (same_bits(a[i], b[i]) || (tolerance > 0 && within(a[i], b[i], tolerance))) continue;
    const auto text = [](const float& x) { return number_text(x, &x, sizeof x); };
    return Difference{"logit",    -1,         -1,   -1,  static_cast<int64_t>(i),
                      text(a[i]), text(b[i]), a[i], b[i]};
  }
  return std::nullopt;
}

double divergence(std::span<const float> a, std::span<const float> b) {
  if (a.empty()) return 0;
  double top_a, top_b;
  const double sum_a = log_sum(a, &top_a), sum_b = log_sum(b, &top_b);
  double total = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double log_p = a[i] - top_a - sum_a, log_q = b[i] - top_b - sum_b;
    const double p = math::exp(log_p);
    if (p > 0) total += p * (log_p - log_q);
  }
  return std::max(total, 0.0);  // rounding can make it slightly negative
}

}  // namespace stet
