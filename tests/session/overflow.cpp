// Keys and values too large for float16: nothing is kept, and the error names the types that can
// hold them.
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>

#include "stet/kernels/numbers.hpp"
#include "stet/kv/overflow.hpp"
#include "stet/session/edit.hpp"
#include "stet/snapshot/snapshot.hpp"
#include "tests/support/models.hpp"

namespace stet::test::overflow_tests {
namespace {

const std::string kExpected =
    ": expected keys and values below 65520 in magnitude (--kv f32, bf16 or q8 holds larger ones), "
    "found a larger one at position ";

// A checkpoint that computes the same function with values 2^24 times as large, for which the
// attention output compensates.
class Overflow : public testing::Test {
 protected:
  Overflow() {
    const std::string from = data_path("models/gemma3-tiny-bf16");
    std::filesystem::copy_file(from + "/config.json", directory_ / "config.json");
    const Golden original(from + "/model.safetensors");
    std::vector<TensorSpec> specs;
    for (const TensorView& t : original.all()) specs.push_back({t.name, t.dtype, t.shape});
    SafeTensorsWriter writer(directory_ / "model.safetensors", specs);
    for (const TensorView& t : original.all()) {
      const int by = t.name.ends_with("v_proj.weight")   ? 24
                     : t.name.ends_with("o_proj.weight") ? -24
                                                         : 0;
      std::vector<std::byte> bytes(t.bytes.begin(), t.bytes.end());
      for (size_t i = 0; by != 0 && i < bytes.size(); i += 2) {
        uint16_t bits;
        std::memcpy(&bits, &bytes[i], sizeof bits);
        bits = round_bf16(std::ldexp(widen_bf16(bits), by));
        std::memcpy(&bytes[i], &bits, sizeof bits);
      }
      writer.write(bytes);
    }
    writer.commit();
    large_ = Model::load(directory_.path(), 1);
  }
  static Session session(const std::shared_ptr<const Model>& m, KvType type) {
    SessionOptions o = options(2);
    o.kv_type = type;
    return Session(m, o);
  }

  TemporaryDirectory directory_;
  std::shared_ptr<const Model> large_;
};

TEST_F(Overflow, OtherTypesHoldTheValues) {
  const std::vector<int32_t> ids = random_tokens(*large_, 70);
  const auto plain = model(data_path("models/gemma3-tiny-bf16"));
  for (const KvType type : {KvType::f32, KvType::bf16}) {
    Session a = session(large_, type), b = session(plain, type);
    a.append(ids);
    b.append(ids);
    EXPECT_TRUE(same_bytes(a.logits(), b.logits()))
        << kv_type_name(type);  // powers of two are exact
  }
  Session q8 = session(large_, KvType::q8);
  q8.append(ids);
  EXPECT_FALSE(find_not_finite(q8.logits()));
}

TEST_F(Overflow, NothingIsKeptInFloat16) {
  const std::vector<int32_t> ids = random_tokens(*large_, 70);
  Session s = session(large_, KvType::f16);
  for (const size_t count : {size_t{1}, size_t{70}}) {
    const auto append = [&] { s.append(std::span(ids).first(count)); };
    EXPECT_EQ(error_of(append), "unsupported: --kv f16" + kExpected + "0, layer 0");
    EXPECT_THROW(append(), KvOverflow);
    EXPECT_EQ(s.size(), 0);
  }
  Session sound = session(model(data_path("models/gemma3-tiny-bf16")), KvType::f16);
  sound.append(ids);
  EXPECT_EQ(sound.size(), 70);
}

// Overflow is detected at any position, dimension, layer and head, in keys and in values.
TEST_F(Overflow, IsDetectedAtEveryPlace) {
  Session s = session(model(data_path("models/gemma3-tiny-bf16")), KvType::f16);
  const std::vector<int32_t> ids = random_tokens(s.model(), 130);
  s.append(ids);
  KvCache kv = s.kv();
  const KvShape& shape = kv.shape();
  check_overflow(kv, 0, 130);
  KvWriter writer(kv);
  for (int64_t b = 0; b < kv.blocks(); ++b) writer.own(b);
  for (const int64_t position : {int64_t{0}, int64_t{63}, int64_t{64}, int64_t{129}}) {
    for (const bool key : {true, false}) {
      for (const int64_t layer : {int64_t{0}, shape.layers - 1}) {
        const int64_t head = shape.kv_heads - 1, slot = position % kBlockPositions,
                      d = shape.head_dim - 1;
        std::byte* const at =
            writer.writable(position / kBlockPositions) + shape.offset(key, layer, head) +
            static_cast<size_t>(key ? d * kBlockPositions + slot : slot * shape.head_dim + d) * 2;
        uint16_t before, infinite = 0xFC00;
        std::memcpy(&before, at, sizeof before);
        std::memcpy(at, &infinite, sizeof infinite);
        EXPECT_THROW(check_overflow(kv, 0, 130), KvOverflow) << position << key << layer;
        EXPECT_THROW(check_overflow(kv, position, 1), KvOverflow);
        if (position > 0) check_overflow(kv, 0, position);
        if (position < 129) check_overflow(kv, position + 1, 129 - position);
        std::memcpy(at, &before, sizeof before);
      }
    }
  }
}

TEST_F(Overflow, IsRefusedByEditsAndConversions) {
  Session wide = session(large_, KvType::f32);
  wide.append(random_tokens(*large_, 70));
  EXPECT_EQ(error_of([&] { with_kv_type(wide.state(), KvType::f16, 0); }),
            "unsupported: --kv f16" + kExpected + "0, layer 0");
  Session half = session(model(data_path("models/gemma3-tiny-bf16")), KvType::f16);
  half.append(random_tokens(half.model(), 70));
  const auto before = kv_bytes(half.kv());
  std::vector<float> x(static_cast<size_t>(half.kv().shape().head_dim), 1.0f);
  x[3] = 65520.0f;
  EXPECT_EQ(error_of([&] { half.set_key(0, 0, 5, x); }),
            "argument: key: expected numbers below 65520 in magnitude for f16, found 65520.000000");
  EXPECT_TRUE(kv_bytes(half.kv()) == before);
  x[3] = 65519.0f;
  half.set_key(0, 0, 5, x);
}

}  // namespace
}  // namespace stet::test::overflow_tests
