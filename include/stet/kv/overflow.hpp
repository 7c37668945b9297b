// Keys and values that float16 does not hold. A cache that kept them as infinite would answer
// something else than the model, or nothing, and could be saved so.
#pragma once

#include <algorithm>
#include <span>
#include <string>

#include "stet/api.h"
#include "stet/base/error.hpp"
#include "stet/kv/kv_cache.hpp"

namespace stet {

// An unsupported Error: keys and values of the tokens at hand are too large for f16. Another type
// of cache holds them.
class STET_API KvOverflow : public Error {
 public:
  KvOverflow(int64_t position, int64_t layer)
      : Error(ErrorKind::unsupported, "", "--kv f16",
              "keys and values below 65520 in magnitude (--kv f32, bf16 or q8 holds larger ones)",
              "a larger one at position " + std::to_string(position) + ", layer " +
                  std::to_string(layer)) {}
};

// Returns whether all of `rows` times `width` float16 numbers are finite. Each row begins `stride`
// numbers behind the one before.
STET_API bool all_finite_f16(const std::byte* from, size_t rows, size_t stride, size_t width);

// Returns whether all numbers are finite when they are rounded to float16.
STET_API bool fits_f16(std::span<const float> x);

// Throws KvOverflow for positions first .. first+count-1 of a cache in f16 that hold infinite
// numbers.
inline void check_overflow(const KvCache& kv, int64_t first, int64_t count) {
  const KvShape& shape = kv.shape();
  if (shape.type != KvType::f16) return;
  const auto dims = static_cast<size_t>(shape.head_dim);
  for (int64_t at = first; at < first + count;) {
    const int64_t block = at / kBlockPositions,
                  end = std::min(first + count, (block + 1) * kBlockPositions);
    const auto slot = static_cast<size_t>(at % kBlockPositions),
               slots = static_cast<size_t>(end - at);
    const std::byte* const base = kv.unchecked_block(block);
    for (int64_t layer = 0; layer < shape.layers; ++layer) {
      for (int64_t head = 0; head < shape.kv_heads; ++head) {
        const std::byte* const keys = base + shape.k_offset(layer, head) + slot * 2;
        const std::byte* const values = base + shape.v_offset(layer, head) + slot * dims * 2;
        if (!all_finite_f16(keys, dims, static_cast<size_t>(kBlockPositions), slots) ||
            !all_finite_f16(values, 1, 0, slots * dims))
          throw KvOverflow(at, layer);
      }
    }
    at = end;
  }
}

}  // namespace stet
