// Poly1305 after RFC 8439, section 2.5. A number below 2^130 has five digits of 26 bits, so that
// sums of products of digits fit 64 bits. No branch and no address depends on the key.
#include "src/base/poly1305_portable.hpp"

#include <cstdint>
#include <cstring>

namespace stet {
namespace {

constexpr size_t kPolyBlock = 16;  // bytes
constexpr size_t kPolyBlocks = 4;  // blocks whose carries are propagated together
constexpr uint64_t kDigitMask = (uint64_t{1} << 26) - 1;

struct Number {
  uint64_t digit[5] = {};
};

// A factor, and five times its digits, since 2^130 is 5 modulo 2^130 - 5.
struct Factor {
  Number once, five_times;
};

uint64_t read_little_endian(const std::byte* at) {
  const auto byte = [at](int i) { return static_cast<uint64_t>(at[i]) << (8 * i); };
  return byte(0) | byte(1) | byte(2) | byte(3) | byte(4) | byte(5) | byte(6) | byte(7);
}

// Returns low + 2^64 high + 2^128 top.
Number number_of(uint64_t low, uint64_t high, uint64_t top) {
  return {{low & kDigitMask, low >> 26 & kDigitMask, (low >> 52 | high << 12) & kDigitMask,
           high >> 14 & kDigitMask, high >> 40 | top << 24}};
}

Number block_at(const std::byte* at) {
  return number_of(read_little_endian(at), read_little_endian(at + 8), 1);
}

Factor factor_of(const Number& x) {
  Factor f{x, {}};
  for (int i = 0; i < 5; ++i) f.five_times.digit[i] = 5 * x.digit[i];
  return f;
}

void add(Number& sum, const Number& x) {
  for (int i = 0; i < 5; ++i) sum.digit[i] += x.digit[i];
}

// Adds a * f to `sum`. If the digits of `a` are below 2^28, kPolyBlocks such sums stay below 2^63.
void add_product(Number& sum, const Number& a, const Factor& f) {
  const auto& [a0, a1, a2, a3, a4] = a.digit;
  const auto& [b0, b1, b2, b3, b4] = f.once.digit;
  const auto& [c0, c1, c2, c3, c4] = f.five_times.digit;
  sum.digit[0] += a0 * b0 + a1 * c4 + a2 * c3 + a3 * c2 + a4 * c1;
  sum.digit[1] += a0 * b1 + a1 * b0 + a2 * c4 + a3 * c3 + a4 * c2;
  sum.digit[2] += a0 * b2 + a1 * b1 + a2 * b0 + a3 * c4 + a4 * c3;
  sum.digit[3] += a0 * b3 + a1 * b2 + a2 * b1 + a3 * b0 + a4 * c4;
  sum.digit[4] += a0 * b4 + a1 * b3 + a2 * b2 + a3 * b1 + a4 * b0;
}

// Propagates carries modulo 2^130 - 5. All digits of the result are below 2^26, except the second,
// which may be 2^14 more. Applied twice, all are below 2^26: the carry that wraps around then meets
// a small second digit.
Number carried(Number x) {
  for (int i = 0; i < 4; ++i) {
    x.digit[i + 1] += x.digit[i] >> 26;
    x.digit[i] &= kDigitMask;
  }
  x.digit[0] += 5 * (x.digit[4] >> 26);
  x.digit[4] &= kDigitMask;
  x.digit[1] += x.digit[0] >> 26;
  x.digit[0] &= kDigitMask;
  return x;
}

Number product(const Number& a, const Factor& f) {
  Number sum;
  add_product(sum, a, f);
  return carried(sum);
}

// Reduces `x`, carried once, to below 2^130 - 5: returns x, or (x + 5) - 2^130 if x + 5 reaches
// 2^130.
Number reduced(Number x) {
  x = carried(x);
  Number more = x;
  more.digit[0] += 5;
  for (int i = 0; i < 4; ++i) {
    more.digit[i + 1] += more.digit[i] >> 26;
    more.digit[i] &= kDigitMask;
  }
  const uint64_t reaches = uint64_t{0} - (more.digit[4] >> 26);  // all ones, or zero
  more.digit[4] &= kDigitMask;
  for (int i = 0; i < 5; ++i) x.digit[i] = (x.digit[i] & ~reaches) | (more.digit[i] & reaches);
  return x;
}

Poly1305Tag tag_of(const Number& x, const std::byte* s) {
  const auto& [x0, x1, x2, x3, x4] = x.digit;
  const uint64_t low = x0 | x1 << 26 | x2 << 52, high = x2 >> 12 | x3 << 14 | x4 << 40,
                 sum = low + read_little_endian(s),
                 rest = high + read_little_endian(s + 8) + (sum < low ? 1 : 0);
  Poly1305Tag tag;
  for (size_t i = 0; i < 8; ++i) {
    tag[i] = static_cast<std::byte>(sum >> (8 * i));
    tag[8 + i] = static_cast<std::byte>(rest >> (8 * i));
  }
  return tag;
}

}  // namespace

Poly1305Tag portable_poly1305_of(std::span<const std::byte, 32> key,
                                 std::span<const std::byte> message) {
  const Number r = number_of(read_little_endian(key.data()) & 0x0ffffffc0fffffff,
                             read_little_endian(key.data() + 8) & 0x0ffffffc0ffffffc, 0);
  Factor powers[kPolyBlocks] = {factor_of(r)};  // r, r^2, ...
  for (size_t i = 1; i < kPolyBlocks; ++i)
    powers[i] = factor_of(product(powers[i - 1].once, powers[0]));
  Number sum;
  for (; message.size() >= kPolyBlocks * kPolyBlock;
       message = message.subspan(kPolyBlocks * kPolyBlock)) {
    add(sum, block_at(message.data()));
    Number next;
    add_product(next, sum, powers[kPolyBlocks - 1]);
    for (size_t i = 1; i < kPolyBlocks; ++i)
      add_product(next, block_at(message.data() + i * kPolyBlock), powers[kPolyBlocks - 1 - i]);
    sum = carried(next);
  }
  for (; message.size() >= kPolyBlock; message = message.subspan(kPolyBlock)) {
    add(sum, block_at(message.data()));
    sum = product(sum, powers[0]);
  }
  if (!message.empty()) {
    std::byte last[kPolyBlock] = {};
    std::memcpy(last, message.data(), message.size());
    last[message.size()] = std::byte{1};
    add(sum, number_of(read_little_endian(last), read_little_endian(last + 8), 0));
    sum = product(sum, powers[0]);
  }
  return tag_of(reduced(sum), key.data() + 16);
}

}  // namespace stet
