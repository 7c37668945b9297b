#include "src/checkpoint/fingerprint.hpp"

#include <cstring>
#include <span>

#include "stet/base/bytes.hpp"
#include "stet/kernels/ggml.hpp"
#include "stet/kernels/numbers.hpp"
#include "stet/model/matrix.hpp"
#include "stet/threads/team.hpp"

namespace stet {
namespace {

constexpr const char* kGroups[] = {"embeddings", "norms", "attention", "mlp", "head"};
constexpr size_t kRows = 16;   // of a slab
constexpr size_t kSlabs = 16;  // that a thread digests before it takes more

template <class T>
T element(std::span<const std::byte> bytes, size_t i) {
  T x;
  std::memcpy(&x, bytes.data() + i * sizeof x, sizeof x);
  return x;
}

uint32_t bits_of(float x) { return element<uint32_t>(std::as_bytes(std::span(&x, 1)), 0); }

// What `to` makes of each element; nothing when it says of one, as a rule the first, that it
// cannot.
template <class From, class To>
std::vector<uint16_t> converted(std::span<const std::byte> bytes, To to) {
  uint16_t first;
  if (!to(element<From>(bytes, 0), &first)) return {};
  std::vector<uint16_t> out(bytes.size() / sizeof(From));
  for (size_t i = 0; i < out.size(); ++i) {
    if (!to(element<From>(bytes, i), &out[i])) return {};
  }
  return out;
}

// A bfloat16 is the upper half of a float32.
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

struct Leaf {
  uint8_t type;  // 0: bfloat16, 1: float16, 2: float32
  Digest digest;
};

// Of rows whose bytes have the digest `stored`.
Leaf leaf_of(std::span<const std::byte> rows, DType dtype, const Digest& stored) {
  const auto narrow = [](uint8_t type, const std::vector<uint16_t>& values) {
    return Leaf{type, digest_of(std::as_bytes(std::span(values)))};
  };
  if (dtype == DType::bf16 || rows.empty()) return {0, stored};
  if (dtype == DType::f16) {
    const std::vector<uint16_t> bf16 = converted<uint16_t>(rows, f16_to_bf16);
    return bf16.empty() ? Leaf{1, stored} : narrow(0, bf16);
  }
  const std::vector<uint16_t> bf16 = converted<uint32_t>(rows, f32_to_bf16);
  if (!bf16.empty()) return narrow(0, bf16);
  const std::vector<uint16_t> f16 = converted<uint32_t>(rows, f32_to_f16);
  return f16.empty() ? Leaf{2, stored} : narrow(1, f16);
}

Sha256 hash_of(const std::vector<Leaf>& leaves) {
  ByteWriter w;
  for (const Leaf& leaf : leaves) {
    w.u8(leaf.type);
    w.u64(leaf.digest.low);
    w.u64(leaf.digest.high);
  }
  return sha256_of(w.data());
}

// Rows of a matrix in their order, blocks of ggml as float32. What is read stays as it is until the
// next is.
class SlabReader {
 public:
  explicit SlabReader(const TensorView& matrix)
      : matrix_(matrix), widen_(is_block_dtype(matrix.dtype)) {}

  DType dtype() const { return widen_ ? DType::f32 : matrix_.dtype; }
  std::span<const std::byte> read(size_t begin, size_t end) {
    const size_t stored = row_of(matrix_, 0).size(), made = made_bytes(stored);
    if (!widen_ && matrix_.paired_heads == 0)
      return matrix_.bytes.subspan(begin * stored, (end - begin) * stored);
    made_.resize((end - begin) * made);
    for (size_t row = begin; row < end; ++row)
      make(row_of(matrix_, row), made_.data() + (row - begin) * made);
    return made_;
  }

 private:
  size_t made_bytes(size_t stored) const {
    const auto type = ggml_type(ggml_number(matrix_.dtype));
    return widen_ ? stored / type->bytes * type->elements * sizeof(float) : stored;
  }
  void make(std::span<const std::byte> row, std::byte* to) const {
    const uint32_t number = ggml_number(matrix_.dtype);
    if (widen_)
      dequantize_ggml(number, row.data(), row.size() / ggml_type(number)->bytes,
                      reinterpret_cast<float*>(to));
    else
      std::memcpy(to, row.data(), row.size());
  }

  const TensorView& matrix_;
  bool widen_;
  std::vector<std::byte> made_;
};

}  // namespace

TensorDigests digest_matrix(const TensorView& tensor, int threads) {
  const size_t rows = static_cast<size_t>(tensor.shape.at(0)), slabs = (rows + kRows - 1) / kRows;
  std::vector<Digest> stored(slabs);
  std::vector<Leaf> leaves(slabs);
  run_each(threads, (slabs + kSlabs - 1) / kSlabs, [&](size_t piece) {
    SlabReader reader(tensor);
    for (size_t s = piece * kSlabs; s < std::min(slabs, (piece + 1) * kSlabs); ++s) {
      const std::span<const std::byte> slab =
          reader.read(s * kRows, std::min(rows, (s + 1) * kRows));
      stored[s] = digest_of(slab);
      leaves[s] = leaf_of(slab, reader.dtype(), stored[s]);
    }
  });
  return {digest_of(std::as_bytes(std::span(stored))), hash_of(leaves)};
}

TensorDigests digest_vector(const TensorView& tensor) {
  const Digest stored = digest_of(tensor.bytes);
  return {stored, hash_of({leaf_of(tensor.bytes, tensor.dtype, stored)})};
}

void WeightFingerprints::add(const std::string& group, const std::string& name,
                             const TensorView& tensor, const TensorDigests& digests) {
  const std::string dtype =
      is_block_dtype(tensor.dtype) ? dtype_name(DType::f32) : tensor.dtype_text;
  groups_[group][name] = {tensor.name, dtype, shape_text(tensor.shape), digests};
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
      w.bytes(entry.digests.values.bytes);
    }
    names.emplace_back(group, sha256_text(sha256_of(w.data())));
  }
  return names;
}

WeightFingerprints::Names WeightFingerprints::legacy_fingerprints() const {
  Names names;
  for (const char* group : kGroups) {
    const auto found = groups_.find(group);
    if (found == groups_.end()) continue;
    std::map<std::string, const Entry*> by_full_name;
    for (const auto& [name, entry] : found->second) by_full_name[entry.full_name] = &entry;
    ByteWriter w;
    for (const auto& [name, entry] : by_full_name) {
      w.text(name + " " + entry->dtype + " " + entry->shape + "\n");
      w.u64(entry->digests.stored.low);
      w.u64(entry->digests.stored.high);
    }
    names.emplace_back(group, digest_text(digest_of(w.data())));
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

WeightFingerprints::Names with_legacy_model_fingerprint(WeightFingerprints::Names groups,
                                                        const std::string& config) {
  groups.emplace_back("config", digest_text(digest_of(std::as_bytes(std::span(config)))));
  ByteWriter w;
  for (const auto& [group, text] : groups) {
    const Digest digest = parse_digest(text).value();
    w.text(group);
    w.u64(digest.low);
    w.u64(digest.high);
  }
  groups.emplace_back("model", digest_text(digest_of(w.data())));
  return groups;
}

}  // namespace stet
