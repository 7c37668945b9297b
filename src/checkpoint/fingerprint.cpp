#include "src/checkpoint/fingerprint.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

#include "stet/base/bytes.hpp"
#include "stet/kernels/ggml.hpp"
#include "stet/kernels/numbers.hpp"
#include "stet/model/matrix.hpp"

namespace stet {
namespace {

constexpr const char* kGroups[] = {"embeddings", "norms", "attention", "mlp", "head"};
constexpr size_t kRows = 16;   // rows of a slab
constexpr size_t kSlabs = 16;  // slabs that a thread digests at a time

template <class T>
T element(std::span<const std::byte> bytes, size_t i) {
  T x;
  std::memcpy(&x, bytes.data() + i * sizeof x, sizeof x);
  return x;
}

uint32_t bits_of(float x) { return element<uint32_t>(std::as_bytes(std::span(&x, 1)), 0); }

// Keeps the upper half of a float32, which is the bfloat16. Returns whether that is exact.
bool f32_to_bf16(uint32_t x, uint16_t* y) {
  *y = static_cast<uint16_t>(x >> 16);
  return (x & 0xffff) == 0;
}

bool f32_to_f16(uint32_t x, uint16_t* y) {
  float f;
  std::memcpy(&f, &x, sizeof f);
  *y = round_f16(f);
  return bits_of(widen_f16(*y)) == x;
}

bool f16_to_bf16(uint16_t x, uint16_t* y) { return f32_to_bf16(bits_of(widen_f16(x)), y); }

// Converts each element and adds the results to `digest` unless it is null. Returns false at the
// first element that `to` cannot convert exactly.
template <class From>
bool add_converted(std::span<const std::byte> bytes, bool to(From, uint16_t*),
                   RunningDigest* digest) {
  std::array<uint16_t, 512> out;
  size_t filled = 0;
  const auto flush = [&] {
    if (digest != nullptr) digest->add(std::as_bytes(std::span(out).first(filled)));
    filled = 0;
  };
  for (size_t i = 0; i < bytes.size() / sizeof(From); ++i) {
    if (!to(element<From>(bytes, i), &out[filled])) return false;
    if (++filled == out.size()) flush();
  }
  flush();
  return true;
}

// Returns the leaf of bytes that come in chunks. each(f) calls f for the chunks in order as long as
// it returns true, and returns whether it always did.
template <class Each>
WeightLeaf digest_slab(DType dtype, const Each& each) {
  using Chunk = std::span<const std::byte>;
  RunningDigest stored, narrow;
  bool bf16 = dtype != DType::bf16, f16 = dtype == DType::f32, first = true;
  each([&](Chunk chunk) {
    stored.add(chunk);
    if (bf16)
      bf16 = dtype == DType::f16 ? add_converted<uint16_t>(chunk, f16_to_bf16, &narrow)
                                 : add_converted<uint32_t>(chunk, f32_to_bf16, &narrow);
    if (f16 && !bf16 && first) f16 = add_converted<uint32_t>(chunk, f32_to_f16, nullptr);
    first = false;
    return true;
  });
  const Digest whole = stored.result();
  if (dtype == DType::bf16) return {0, whole};
  if (bf16) return {0, narrow.result()};
  if (dtype == DType::f16) return {1, whole};
  RunningDigest half;
  const auto add = [&](Chunk chunk) { return add_converted<uint32_t>(chunk, f32_to_f16, &half); };
  if (f16 && each(add)) return {1, half.result()};
  return {2, whole};
}

Sha256 hash_of(std::span<const WeightLeaf> leaves) {
  ByteWriter w;
  for (const WeightLeaf& leaf : leaves) {
    w.u8(leaf.type);
    w.u64(leaf.digest.low);
    w.u64(leaf.digest.high);
  }
  return sha256_of(w.data());
}

size_t row_count(const TensorView& matrix) { return static_cast<size_t>(matrix.shape.at(0)); }

// Reads rows of a matrix in their order; blocks of ggml are widened to float32. Widening happens in
// small pieces that stay in the first-level cache until they are digested.
class RowReader {
 public:
  explicit RowReader(const TensorView& matrix)
      : matrix_(matrix), widen_(is_block_dtype(matrix.dtype)) {
    if (widen_) type_ = *ggml_type(ggml_number(matrix.dtype));
  }

  DType dtype() const { return widen_ ? DType::f32 : matrix_.dtype; }

  template <class Use>
  bool each(size_t begin, size_t end, const Use& use) {
    if (!widen_ && matrix_.paired_heads == 0) {
      const size_t bytes = row_of(matrix_, 0).size();
      return use(matrix_.bytes.subspan(begin * bytes, (end - begin) * bytes));
    }
    for (size_t row = begin; row < end; ++row) {
      const std::span<const std::byte> stored = row_of(matrix_, row);
      if (widen_ ? !each_widened(stored, use) : !use(stored)) return false;
    }
    return true;
  }

 private:
  template <class Use>
  bool each_widened(std::span<const std::byte> row, const Use& use) {
    const size_t at_once = widened_.size() / type_.elements;
    for (size_t left = row.size() / type_.bytes; left > 0;) {
      const size_t blocks = std::min(left, at_once);
      dequantize_ggml(ggml_number(matrix_.dtype), row.data(), blocks, widened_.data());
      if (!use(std::as_bytes(std::span(widened_).first(blocks * type_.elements)))) return false;
      row = row.subspan(blocks * type_.bytes);
      left -= blocks;
    }
    return true;
  }

  const TensorView& matrix_;
  bool widen_;
  GgmlType type_{};
  alignas(64) std::array<float, 4096> widened_;
};

}  // namespace

MatrixDigester::MatrixDigester(const std::vector<const TensorView*>& matrices)
    : matrices_(matrices), first_{0} {
  for (const TensorView* m : matrices)
    first_.push_back(first_.back() + (row_count(*m) + kRows - 1) / kRows);
  leaves_.resize(first_.back());
}

void MatrixDigester::add(Range slabs) {
  for (size_t m = 0; m < matrices_.size(); ++m) {
    const size_t begin = std::max(slabs.begin, first_[m]), end = std::min(slabs.end, first_[m + 1]);
    RowReader reader(*matrices_[m]);
    for (size_t s = begin; s < end; ++s) {
      const size_t row = (s - first_[m]) * kRows;
      leaves_[s] = digest_slab(reader.dtype(), [&](const auto& use) {
        return reader.each(row, std::min(row_count(*matrices_[m]), row + kRows), use);
      });
    }
  }
}

std::vector<Sha256> MatrixDigester::result() const {
  std::vector<Sha256> hashes;
  for (size_t m = 0; m < matrices_.size(); ++m)
    hashes.push_back(hash_of(std::span(leaves_).subspan(first_[m], first_[m + 1] - first_[m])));
  return hashes;
}

Sha256 digest_matrix(const TensorView& tensor, int threads) {
  MatrixDigester digester({&tensor});
  const size_t pieces = (digester.slabs() + kSlabs - 1) / kSlabs;
  run_each(threads, pieces,
           [&](size_t piece) { digester.add(part_of(digester.slabs(), pieces, piece)); });
  return digester.result()[0];
}

Sha256 digest_vector(const TensorView& tensor) {
  const WeightLeaf leaf =
      digest_slab(tensor.dtype, [&](const auto& use) { return use(tensor.bytes); });
  return hash_of(std::span(&leaf, 1));
}

void WeightFingerprints::add(const std::string& group, const std::string& name,
                             const TensorView& tensor, const Sha256& hash) {
  groups_[group][name] = {shape_text(tensor.shape), hash};
}

WeightFingerprints::Names WeightFingerprints::fingerprints() const {
  Names names;
  for (const char* group : kGroups) {
    const auto found = groups_.find(group);
    if (found == groups_.end()) continue;
    ByteWriter w;
    w.text("stet tensors 1\n");
    for (const auto& [name, entry] : found->second) {
      w.text(name + " " + entry.shape + "\n");
      w.bytes(entry.hash.bytes);
    }
    names.emplace_back(group, sha256_text(sha256_of(w.data())));
  }
  return names;
}

WeightFingerprints::Names with_model_fingerprint(WeightFingerprints::Names groups,
                                                 const std::string& config) {
  groups.emplace_back("config", sha256_text(sha256_of(std::as_bytes(std::span(config)))));
  ByteWriter w;
  w.text("stet model 1\n");
  for (const auto& [group, text] : groups) {
    w.text(group + "\n");
    w.bytes(parse_sha256(text).value().bytes);
  }
  groups.emplace_back("model", sha256_text(sha256_of(w.data())));
  return groups;
}

}  // namespace stet
