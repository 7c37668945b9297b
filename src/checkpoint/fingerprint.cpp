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
constexpr size_t kRows = 16;

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

}  // namespace

TensorDigests digest_matrix(const TensorView& tensor, int threads) {
  const bool widen = is_block_dtype(tensor.dtype);
  const size_t rows = static_cast<size_t>(tensor.shape.at(0)),
               slab_bytes = rows == 0 ? 1 : tensor.bytes.size() / rows * kRows;
  const size_t slabs = (tensor.bytes.size() + slab_bytes - 1) / slab_bytes;
  std::vector<Digest> stored(slabs);
  std::vector<Leaf> leaves(slabs);
  run_team(threads, [&](Team team) {
    const Range mine = team.share(slabs);
    std::vector<float> wide;
    for (size_t s = mine.begin; s < mine.end; ++s) {
      const size_t begin = s * slab_bytes;
      std::span<const std::byte> slab =
          tensor.bytes.subspan(begin, std::min(slab_bytes, tensor.bytes.size() - begin));
      if (widen) {
        const GgmlType type = *ggml_type(ggml_number(tensor.dtype));
        wide.resize(slab.size() / type.bytes * type.elements);
        dequantize_ggml(ggml_number(tensor.dtype), slab.data(), slab.size() / type.bytes,
                        wide.data());
        slab = std::as_bytes(std::span(wide));
      }
      stored[s] = digest_of(slab);
      leaves[s] = leaf_of(slab, widen ? DType::f32 : tensor.dtype, stored[s]);
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
