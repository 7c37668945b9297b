// Computes the examples of docs/contracts with stet's kernels on every instruction set.
// tests/model/contract_examples.py computes them from those pages alone.
#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <sstream>

#include "kernels/quantize.hpp"
#include "src/checkpoint/rounded.hpp"
#include "stet/base/digest.hpp"
#include "stet/kernels/ggml.hpp"
#include "stet/kernels/math.hpp"
#include "stet/kernels/numbers.hpp"
#include "stet/kernels/rope.hpp"
#include "stet/kernels/steer.hpp"
#include "stet/kv/kv_block.hpp"
#include "stet/model/config.hpp"
#include "stet/model/matrix.hpp"
#include "tests/support/kernel_testing.hpp"

namespace stet::test::contract_examples_tests {
namespace {

using Words = std::vector<std::string>;

struct Example {
  std::string where, name;
  Words arguments, results;

  float number(size_t i) const { return float_of(bits(i)); }
  uint32_t bits(size_t i) const {
    return static_cast<uint32_t>(std::stoul(arguments.at(i), nullptr, 16));
  }
  double wide(size_t i) const {
    return std::bit_cast<double>(uint64_t{std::stoull(arguments.at(i), nullptr, 16)});
  }
  double decimal(size_t i) const { return std::stod(arguments.at(i)); }
  size_t integer(size_t i) const { return std::stoul(arguments.at(i)); }
  // Returns the value of NAME=VALUE, or `absent`.
  std::string named(const std::string& key, const std::string& absent) const {
    for (const std::string& a : arguments) {
      if (a.starts_with(key + "=")) return a.substr(key.size() + 1);
    }
    return absent;
  }
  double decimal(const std::string& key) const { return std::stod(named(key, "0")); }
  size_t integer(const std::string& key) const { return std::stoul(named(key, "0")); }
};

Words words(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), {}};
}

std::vector<Example> read_examples() {
  std::vector<Example> examples;
  for (const auto& page : std::filesystem::directory_iterator(STET_ROOT "/docs/contracts")) {
    std::ifstream file(page.path());
    std::string line, name;
    for (int number = 1; std::getline(file, line); ++number) {
      const std::string begin = "```example ";
      if (line.starts_with("```")) {
        name = line.starts_with(begin) ? line.substr(begin.size()) : "";
      } else if (!name.empty()) {
        const std::string body = line.substr(0, line.find(" ; "));
        const size_t arrow = body.find(" -> ");
        examples.push_back({fmt::format("{}:{}: {}", page.path().filename().string(), number, line),
                            name, words(body.substr(0, arrow)), words(body.substr(arrow + 4))});
      }
    }
  }
  return examples;
}

// Returns the vector v(n, s) that the pages define.
std::vector<float> vector_of(size_t n, size_t s) {
  std::vector<float> v;
  for (size_t i = 0; i < n; ++i)
    v.push_back(static_cast<float>(static_cast<int>((37 * i + 11 * s) % 101) - 50) / 47.0f);
  return v;
}

std::string text(float x) { return fmt::format("{:08x}", bits_of(x)); }
Words texts(std::span<const float> x) {
  Words all;
  for (const float f : x) all.push_back(text(f));
  return all;
}
Words first_four(const std::vector<float>& x) { return texts(std::span(x).first(4)); }
Words wide_texts(std::initializer_list<double> x) {
  Words all;
  for (const double d : x) all.push_back(fmt::format("{:016x}", std::bit_cast<uint64_t>(d)));
  return all;
}

using Unary = void (*Kernels::*)(const float*, float*, size_t);
using Gated = void (*Kernels::*)(const float*, const float*, float*, size_t);
using Compute = std::function<Words(const Kernels&, const Example&)>;

Compute unary(Unary f) {
  return [f](const Kernels& k, const Example& e) {
    const float x = e.number(0);
    float y;
    (k.*f)(&x, &y, 1);
    return Words{text(y)};
  };
}

Compute gated(Gated f) {
  return [f](const Kernels& k, const Example& e) {
    const float gate = e.number(0), up = e.number(1);
    float y;
    (k.*f)(&gate, &up, &y, 1);
    return Words{text(y)};
  };
}

Words softcap(const Kernels& k, const Example& e) {
  const float cap = e.number(1);
  float y = e.number(0);
  k.divide(&y, cap, &y, 1);
  k.tanh(&y, &y, 1);
  k.scale(&y, cap, 1);
  return {text(y)};
}

// Computes a flushed multiply-add as the odd step of a pair. The even step adds -0, which changes
// nothing.
Words fma_flushed(const Kernels& k, const Example& e) {
  const uint32_t packed[kTileRows] = {e.bits(1) << 16 | 0x8000u};
  alignas(64) uint16_t w[2 * kLanes] = {0, static_cast<uint16_t>(e.bits(0))};
  alignas(64) float from[kLanes] = {e.number(2)};
  alignas(64) float to[kLanes];
  k.tile_pairs(packed, w, 2, 2, {from, kLanes, to, kLanes, 1, 1});
  return {text(to[0])};
}

Words rms_norm(const Kernels& k, const Example& e) {
  const size_t n = e.integer(0);
  const auto x = vector_of(n, e.integer(1)), w = vector_of(n, e.integer(2));
  std::vector<float> y(n);
  k.rms_norm(x.data(), w.data(), static_cast<float>(e.decimal(3)), y.data(), n);
  return first_four(y);
}

Words layer_norm(const Kernels& k, const Example& e) {
  const size_t n = e.integer(0);
  const auto x = vector_of(n, e.integer(1)), w = vector_of(n, e.integer(2)),
             b = vector_of(n, e.integer(3));
  std::vector<float> y(n);
  k.layer_norm(x.data(), w.data(), b.data(), static_cast<float>(e.decimal(4)), y.data(), n);
  return first_four(y);
}

// ---------------------------------------------------------------- products

TensorView row_view(DType dtype, std::span<const std::byte> bytes, size_t columns) {
  TensorView view;
  view.name = "w";
  view.dtype = dtype;
  view.shape = {1, static_cast<int64_t>(columns)};
  view.bytes = bytes;
  return view;
}

Matrix matrix_of(const std::string& kind, const std::vector<float>& w) {
  const TensorView view = row_view(DType::f32, std::as_bytes(std::span(w)), w.size());
  if (kind == "f32") return Matrix({&view}, w.size(), 1);
  if (kind == "bf16") {
    std::vector<uint16_t> narrow;
    for (const float x : w) narrow.push_back(round_bf16(x));
    const TensorView rounded =
        row_view(DType::bf16, std::as_bytes(std::span(narrow)), narrow.size());
    return Matrix({&rounded}, w.size(), 1);
  }
  if (kind == "q8" || kind == "q4")
    return Matrix({&view}, w.size(), 1)
        .quantized(kind == "q8" ? WeightType::q8 : WeightType::q4, 1);
  const DType type = kind == "q4k" ? DType::q4_k : kind == "q5k" ? DType::q5_k : DType::q6_k;
  const OwnedTensor rounded = rounded_to_blocks(view, false, type, {}, 1, "");
  return Matrix({&rounded.view}, w.size(), 1);
}

std::vector<float> multiply(const Kernels& k, const std::string& kind, const Matrix& m,
                            std::vector<float> x) {
  const size_t depth = m.depth();
  x.resize(depth);
  std::vector<float> y(kLanes);
  const auto run = [&](auto gemv, const auto* inputs, size_t stride) {
    gemv(m.block(0), 1, depth, inputs, stride, y.data(), kLanes, 1);
  };
  if (kind == "f32") {
    run(k.gemv[0], x.data(), depth);
  } else if (kind == "bf16") {
    std::vector<uint32_t> pairs(depth / 2);
    k.round_pairs(x.data(), depth, pairs.data());
    run(k.gemv_pairs, pairs.data(), depth / 2);
  } else if (is_super(m.type())) {
    std::vector<SuperInput> inputs(depth / kQuantBlock);
    k.quantize_super(x.data(), depth, inputs.data());
    run(k.gemv_super[super_index(m.type())], inputs.data(), inputs.size());
  } else {
    std::vector<QuantBlock> inputs(depth / kQuantBlock);
    k.quantize(x.data(), depth, inputs.data());
    run(kind == "q8" ? k.gemv_q8 : k.gemv_q4, inputs.data(), inputs.size());
  }
  return y;
}

Compute product(const std::string& kind) {
  return [kind](const Kernels& k, const Example& e) {
    const size_t n = e.integer(0);
    const Matrix m = matrix_of(kind, vector_of(n, e.integer(2)));
    return Words{text(multiply(k, kind, m, vector_of(n, e.integer(1)))[0])};
  };
}

// Returns v(32, s), or the given numbers padded with zeros.
std::vector<float> thirty_two(const Example& e) {
  if (e.arguments.size() == 1) return vector_of(kQuantBlock, e.integer(0));
  std::vector<float> x;
  for (const std::string& number : e.arguments) x.push_back(std::strtof(number.c_str(), nullptr));
  x.resize(kQuantBlock);
  return x;
}

Words quantize(const Kernels& k, const Example& e) {
  QuantBlock block;
  k.quantize(thirty_two(e).data(), kQuantBlock, &block);
  Words all = {text(block.scale)};
  for (const int32_t quad : block.quads) {
    for (int i = 0; i < 4; ++i)
      all.push_back(std::to_string(static_cast<int8_t>(quad >> (8 * i) & 255)));
  }
  return all;
}

Compute rounded_block(QuantizedBlock (*round)(std::span<const float, kQuantBlock>), int zero) {
  return [round, zero](const Kernels&, const Example& e) {
    const auto w = thirty_two(e);
    const QuantizedBlock block = round(std::span<const float, kQuantBlock>(w.data(), kQuantBlock));
    Words all = {fmt::format("{:04x}", block.scale)};
    for (const uint8_t u : block.u) all.push_back(std::to_string(u - zero));
    return all;
  };
}

Compute rounded_super(uint32_t type) {
  return [type](const Kernels&, const Example& e) {
    std::vector<uint8_t> bytes(ggml_type(type)->bytes);
    quantize_ggml(type, vector_of(kSuperBlock, e.integer(0)).data(), 1, bytes.data());
    std::string all;
    for (const uint8_t b : bytes) all += fmt::format("{:02x}", b);
    return Words{all};
  };
}

// The exponent, then the codes: the low four bits of the bytes, then the high ones.
Words rounded_mxfp4(const Kernels&, const Example& e) {
  const std::vector<float> x = thirty_two(e);
  std::array<uint8_t, 1 + kQuantBlock / 2> bytes;
  quantize_ggml(39, x.data(), 1, bytes.data());
  Words all = {std::to_string(bytes[0])};
  for (const int shift : {0, 4}) {
    for (size_t i = 1; i < bytes.size(); ++i) all.push_back(std::to_string(bytes[i] >> shift & 15));
  }
  return all;
}

// ---------------------------------------------------------------- positions, keys, values

Words rope_frequencies(const Kernels&, const Example& e) {
  static const std::map<std::string, Rope::Scaling> kinds = {{"none", Rope::Scaling::none},
                                                             {"linear", Rope::Scaling::linear},
                                                             {"llama3", Rope::Scaling::llama3},
                                                             {"yarn", Rope::Scaling::yarn},
                                                             {"longrope", Rope::Scaling::longrope}};
  Rope rope;
  rope.scaling = kinds.at(e.arguments[0]);
  rope.theta = e.decimal("theta");
  rope.factor = e.decimal("factor");
  rope.low_freq_factor = e.decimal("low");
  rope.high_freq_factor = e.decimal("high");
  rope.original_positions = e.decimal("original");
  rope.beta_fast = e.decimal("fast");
  rope.beta_slow = e.decimal("slow");
  std::istringstream divisors(e.named("divisors", ""));
  for (std::string one; std::getline(divisors, one, ',');)
    rope.short_factors.push_back(static_cast<double>(std::stof(one)));
  return texts(inverse_frequencies(rope, static_cast<int64_t>(e.integer("dim"))));
}

Words angles(const Kernels&, const Example& e) {
  const float frequency = e.number(1);
  float both[2];
  rope_angles(static_cast<int64_t>(e.integer(0)), {&frequency, 1}, both, both + 1);
  return texts(both);
}

Compute rotate(void (*of)(int64_t, std::span<const float>, float*, float*)) {
  return [of](const Kernels& k, const Example& e) {
    const size_t n = e.integer(0);
    Rope rope;
    rope.theta = e.decimal(2);
    std::vector<float> x = vector_of(n, e.integer(1)), cos(n / 2), sin(n / 2);
    of(static_cast<int64_t>(e.integer(3)), inverse_frequencies(rope, static_cast<int64_t>(n)),
       cos.data(), sin.data());
    k.rope(x.data(), cos.data(), sin.data(), n / 2);
    return texts(x);
  };
}

KvShape shape_of(size_t head_dim, const std::string& type) {
  return {1, 1, static_cast<int64_t>(head_dim), parse_kv_type(type).value()};
}

Words store_q8(const Kernels&, const Example& e) {
  const size_t n = e.integer(0);
  const KvShape shape = shape_of(n, "q8");
  std::vector<std::byte> part(shape.part_bytes(shape.head_dim));
  write_row(shape, false, vector_of(n, e.integer(1)), part.data(), 0);
  float scale;
  std::memcpy(&scale, part.data() + shape.elements_bytes(shape.head_dim), sizeof scale);
  Words all = {text(scale)};
  for (size_t i = 0; i < n; ++i)
    all.push_back(std::to_string(static_cast<int8_t>(static_cast<uint8_t>(part[i]))));
  return all;
}

// Keys and values of a block as the kernels take them; the rows of values are padded to a multiple
// of 16.
struct StoredBlock {
  std::vector<std::byte> k, v, wide;

  StoredBlock(const KvShape& shape, size_t first, size_t end)
      : k(shape.part_bytes(shape.head_dim)), v(shape.part_bytes(shape.head_dim)) {
    const auto n = static_cast<size_t>(shape.head_dim), element = shape.element_size(),
               ldv = (n + kLanes - 1) / kLanes * kLanes;
    for (size_t p = first; p < end; ++p) {
      const auto slot = static_cast<int64_t>(p - first);
      write_row(shape, true, vector_of(n, 3 * p + 1), k.data(), slot);
      write_row(shape, false, vector_of(n, 5 * p + 2), v.data(), slot);
    }
    wide.resize(kPanel * ldv * element);
    for (size_t t = 0; t < kPanel; ++t)
      std::memcpy(wide.data() + t * ldv * element, v.data() + t * n * element, n * element);
  }
  AttendBlock view(const KvShape& shape, const Example& e) const {
    const auto n = static_cast<size_t>(shape.head_dim);
    const auto scales = [&](const std::vector<std::byte>& part) {
      return shape.type == KvType::q8 ? reinterpret_cast<const float*>(
                                            part.data() + shape.elements_bytes(shape.head_dim))
                                      : nullptr;
    };
    return {k.data(),
            wide.data(),
            n,
            (n + kLanes - 1) / kLanes * kLanes,
            static_cast<float>(e.decimal("scale")),
            static_cast<float>(e.decimal("cap")),
            {},
            scales(k),
            scales(v)};
  }
};

struct Sums {
  std::vector<float> m, l, o;
  explicit Sums(size_t ldv) : m(kTileRows), l(kTileRows), o(kTileRows * ldv) {}
  SoftmaxSums view() { return {m.data(), l.data(), o.data()}; }
};

Words attention(const Kernels& k, const Example& e) {
  const KvShape shape = shape_of(e.integer("D"), e.named("type", "f32"));
  const size_t n = e.integer("D"), ldv = (n + kLanes - 1) / kLanes * kLanes, t = e.integer("t"),
               window = e.integer("window");
  const std::string pruned = e.named("pruned", "0,0");
  const size_t begin = std::stoul(pruned), end = std::stoul(pruned.substr(pruned.find(',') + 1));
  std::vector<float> q(n * kTileRows);
  for (size_t d = 0; d < n; ++d) q[d * kTileRows] = vector_of(n, 7)[d];
  Sums all(ldv), one(ldv);
  k.reset(all.view(), 1, ldv, nullptr);
  for (size_t first = 0; first <= t; first += kPanel) {
    uint64_t mask = 0;
    for (size_t p = first; p <= std::min(t, first + kPanel - 1); ++p) {
      const bool seen = (window == 0 || p + window > t) && (p < begin || p >= end);
      mask |= uint64_t{seen} << (p - first);
    }
    if (mask == 0) continue;
    const StoredBlock stored(shape, first, std::min(t + 1, first + kPanel));
    const AttendTile tile = {q.data(), 1, &mask, one.view()};
    k.attend[static_cast<int>(shape.type)](stored.view(shape, e), &tile, 1);
    k.merge(all.view(), one.view(), ldv, 1);
  }
  std::vector<float> y(n);
  k.divide(all.o.data(), all.l[0], y.data(), n);
  return first_four(y);
}

Words project_out(const Kernels&, const Example& e) {
  const size_t n = e.integer(0);
  std::vector<float> x = vector_of(n, e.integer(1));
  steer_project_out(x.data(), vector_of(n, e.integer(2)).data(), n);
  return first_four(x);
}

Words clamp(const Kernels&, const Example& e) {
  const size_t n = e.integer(0);
  std::vector<float> x = vector_of(n, e.integer(1));
  const auto at = [&](size_t i) { return static_cast<float>(e.decimal(i)); };
  steer_clamp(x.data(), vector_of(n, e.integer(2)).data(), vector_of(n, e.integer(3)).data(), at(4),
              at(5), at(6), n);
  return first_four(x);
}

const std::map<std::string, Compute>& computations() {
  static const std::map<std::string, Compute> all = {
      {"vector",
       [](auto&, const Example& e) { return texts(vector_of(e.integer(0), e.integer(1))); }},
      {"fma",
       [](auto&, const Example& e) {
         return Words{text(std::fma(e.number(0), e.number(1), e.number(2)))};
       }},
      {"fma-flushed", fma_flushed},
      {"bf16",
       [](auto&, const Example& e) {
         return Words{fmt::format("{:04x}", round_bf16(e.number(0)))};
       }},
      {"f16",
       [](auto&, const Example& e) {
         return Words{fmt::format("{:04x}", round_f16(e.number(0)))};
       }},
      {"exp", unary(&Kernels::exp)},
      {"tanh", unary(&Kernels::tanh)},
      {"gelu", unary(&Kernels::gelu)},
      {"silu", gated(&Kernels::silu_mul)},
      {"gelu-tanh", gated(&Kernels::gelu_tanh_mul)},
      {"softcap", softcap},
      {"rms-norm", rms_norm},
      {"layer-norm", layer_norm},
      {"exp64", [](auto&, const Example& e) { return wide_texts({math::exp(e.wide(0))}); }},
      {"log64", [](auto&, const Example& e) { return wide_texts({math::log(e.wide(0))}); }},
      {"pow64",
       [](auto&, const Example& e) { return wide_texts({math::pow(e.wide(0), e.wide(1))}); }},
      {"sincos64",
       [](auto&, const Example& e) {
         double s, c;
         math::sincos(e.wide(0), &s, &c);
         return wide_texts({s, c});
       }},
      {"product-f32", product("f32")},
      {"product-bf16", product("bf16")},
      {"product-q8", product("q8")},
      {"product-q4", product("q4")},
      {"product-q4k", product("q4k")},
      {"product-q5k", product("q5k")},
      {"product-q6k", product("q6k")},
      {"quantize", quantize},
      {"weights-q8", rounded_block(round_block_q8, 128)},
      {"weights-q4", rounded_block(round_block_q4, 8)},
      {"weights-q4k", rounded_super(12)},
      {"weights-q5k", rounded_super(13)},
      {"weights-q6k", rounded_super(14)},
      {"weights-mxfp4", rounded_mxfp4},
      {"rope-frequencies", rope_frequencies},
      {"rope-angles", angles},
      {"rotate", rotate(rope_angles)},
      {"shift", rotate(rope_angles_back)},
      {"store-q8", store_q8},
      {"attention", attention},
      {"embedding-scale",
       [](auto&, const Example& e) {
         return Words{text(square_root(static_cast<float>(e.integer(0))))};
       }},
      {"project-out", project_out},
      {"clamp", clamp},
      {"digest",
       [](auto&, const Example& e) {
         const std::string& quoted = e.arguments.at(0);
         const std::string plain = quoted.substr(1, quoted.size() - 2);
         return Words{digest_text(digest_of(std::as_bytes(std::span(plain))))};
       }},
  };
  return all;
}

// Examples that no single kernel computes; contract_examples.py asks the command for them.
const std::set<std::string> kElsewhere = {"erf",    "sum",         "squares",
                                          "config", "fingerprint", "block"};

class ContractExamples : public EachIsa {};

TEST_P(ContractExamples, AreReached) {
  std::set<std::string> seen;
  for (const Example& e : read_examples()) {
    if (kElsewhere.contains(e.name)) continue;
    seen.insert(e.name);
    ASSERT_TRUE(computations().contains(e.name)) << e.where;
    EXPECT_EQ(computations().at(e.name)(k, e), e.results) << e.where;
  }
  EXPECT_EQ(seen.size(), computations().size());
}

INSTANTIATE_TEST_SUITE_P(Isa, ContractExamples, testing::ValuesIn(isa_names()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace stet::test::contract_examples_tests
