// Stores digests in files as two u64, low half first.
#pragma once

#include <string_view>

#include "stet/base/bytes.hpp"
#include "stet/base/digest.hpp"

namespace stet {

inline void put(ByteWriter& w, const Digest& d) {
  w.u64(d.low);
  w.u64(d.high);
}

inline Digest get(ByteReader& r, std::string_view field) {
  Digest d;
  d.low = r.u64(field);
  d.high = r.u64(field);
  return d;
}

}  // namespace stet
