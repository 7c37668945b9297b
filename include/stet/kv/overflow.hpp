// Detects keys and values that float16 cannot represent. Storing them as infinities would silently
// change the model's output and could be saved.
#pragma once

#include <algorithm>
#include <span>
#include <string>

#include "stet/api.h"
#include "stet/base/error.hpp"
#include "stet/kv/kv_cache.hpp"

namespace stet {

// An unsupported Error, thrown if a key or value is too large for an f16 cache. Another cache type
// can hold it.
class STET_API KvOverflow : public Error {
 public:
  KvOverflow(int64_t position, int64_t layer)
      : Error(ErrorKind::unsupported, "", "--kv f16",
              "keys and values below 65520 in magnitude (--kv f32, bf16 or q8 holds larger ones)",
              "a larger one at position " + std::to_string(position) + ", layer " +
                  std::to_string(layer)) {}
};

// Returns true if all `rows` times `width` float16 numbers are finite. Rows begin `stride` numbers
// apart.
STET_API bool all_finite_f16(const std::byte* from, size_t rows, size_t stride, size_t width);

// Returns true if all numbers stay finite when rounded to float16.
STET_API bool fits_f16(std::span<const float> x);

// Throws KvOverflow if positions first .. first+count-1 of an f16 cache hold infinite numbers. Does
// nothing for other types.
inline void check_overflow(const KvCache& kv, int64_t first, int64_t count) {
  const KvShape& shape = kv.shape();
  if (shape.type != KvType::f16) return;
  for (int64_t at = first; at < first + count;) {
    const int64_t block = at / kBlockPositions,
                  end = std::min(first + count, (block + 1) * kBlockPositions);
    const auto slot = static_cast<size_t>(at % kBlockPositions),
               slots = static_cast<size_t>(end - at);
    const std::byte* const base = kv.unchecked_block(block);
    for (int64_t layer = 0; layer < shape.layers; ++layer) {
      const KvLayer l = shape.layer(layer);
      const auto dims = static_cast<size_t>(l.value_dim);
      for (int64_t head = 0; shape.owns(layer) && head < l.kv_heads; ++head) {
        const std::byte* const keys = base + shape.k_offset(layer, head) + slot * 2;
        const std::byte* const values = base + shape.v_offset(layer, head) + slot * dims * 2;
        if (!all_finite_f16(keys, static_cast<size_t>(l.key_dim),
                            static_cast<size_t>(kBlockPositions), slots) ||
            !all_finite_f16(values, 1, 0, slots * dims))
          throw KvOverflow(at, layer);
      }
    }
    at = end;
  }
}

}  // namespace stet
