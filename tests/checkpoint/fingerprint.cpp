// Fingerprints of models: equal for equal values in any file, different for anything else.
#include "src/checkpoint/fingerprint.hpp"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>

#include "src/base/sha256_portable.hpp"
#include "stet/checkpoint/packed.hpp"
#include "stet/kernels/numbers.hpp"
#include "tests/support/models.hpp"

namespace stet::test::fingerprint_tests {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// The tensors of a checkpoint, to be changed and written again.
struct Tensors {
  struct One {
    TensorSpec spec;
    std::vector<std::byte> bytes;
  };
  std::vector<One> all;

  explicit Tensors(const std::string& directory) {
    const auto file =
        safetensors_source(directory_source(directory)->open("model.safetensors"), true);
    for (const TensorView& view : file->tensors())
      all.push_back({{view.name, view.dtype, view.shape}, {view.bytes.begin(), view.bytes.end()}});
    std::ranges::sort(all, {}, [](const One& t) { return t.spec.name; });
  }
  One& of(const std::string& name) {
    return *std::find_if(all.begin(), all.end(), [&](const One& t) { return t.spec.name == name; });
  }
};

void write_shard(const std::string& path, std::span<const Tensors::One> tensors) {
  std::vector<TensorSpec> specs;
  for (const Tensors::One& t : tensors) specs.push_back(t.spec);
  SafeTensorsWriter writer(path, specs);
  for (const Tensors::One& t : tensors) writer.write(t.bytes);
  writer.commit();
}

class Fingerprint : public testing::TestWithParam<std::string> {
 protected:
  // Writes these weights in `shards` files, with the checkpoint's other files. Returns the
  // directory.
  std::string written(const Tensors& tensors, size_t shards = 1,
                      const std::function<void(Json&)>& change_config = nullptr) {
    const std::string to = scratch / std::to_string(++made_);
    fs::create_directory(to);
    Json config = Json::parse(read_text(directory + "/config.json"));
    if (change_config) change_config(config);
    write_file(to + "/config.json", config.dump());
    if (shards == 1) write_shard(to + "/model.safetensors", tensors.all);
    Json map = Json::object();
    for (size_t i = 0, from = 0; shards > 1 && i < shards; ++i) {
      const size_t end = (i + 1) * tensors.all.size() / shards;
      const std::string name = "part-" + std::to_string(i) + ".safetensors";
      write_shard(to + "/" + name, std::span(tensors.all).subspan(from, end - from));
      for (; from < end; ++from) map[tensors.all[from].spec.name] = name;
    }
    if (shards > 1)
      write_file(to + "/model.safetensors.index.json", Json{{"weight_map", map}}.dump());
    return to;
  }
  std::string name_of(const std::string& at) const { return Model::load(at, 2)->fingerprint(); }

  const std::string directory = data_path("models/" + GetParam());
  const std::string published = model(directory)->fingerprint();
  TemporaryDirectory scratch;

 private:
  int made_ = 0;
};

std::vector<std::string> checkpoints() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(data_path("models"))) {
    if (fs::exists(entry.path() / "config.json")) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, Fingerprint, testing::ValuesIn(checkpoints()),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_P(Fingerprint, IsEqualForPackedAndReshardedForms) {
  const Tensors tensors(directory);
  EXPECT_EQ(name_of(written(tensors)), published);
  EXPECT_EQ(name_of(written(tensors, 3)), published);
  for (const Contract contract : {Contract::f32, Contract::q8, Contract::q4}) {
    const std::string to = scratch / std::string(contract_name(contract));
    pack_checkpoint(*directory_source(directory), contract, to, 2);
    EXPECT_EQ(name_of(to), published) << contract_name(contract);
  }
}

float value_of(const Tensors::One& tensor, size_t i) {
  if (tensor.spec.dtype == DType::f32) {
    float x;
    std::memcpy(&x, tensor.bytes.data() + 4 * i, 4);
    return x;
  }
  uint16_t bits;
  std::memcpy(&bits, tensor.bytes.data() + 2 * i, 2);
  return tensor.spec.dtype == DType::bf16 ? widen_bf16(bits) : widen_f16(bits);
}

TEST_P(Fingerprint, IsEqualForAWiderType) {
  Tensors wide(directory);
  for (Tensors::One& t : wide.all) {
    if (t.spec.dtype == DType::u8) continue;  // of MXFP4
    std::vector<float> values(t.bytes.size() / dtype_size(t.spec.dtype));
    for (size_t i = 0; i < values.size(); ++i) values[i] = value_of(t, i);
    const auto bytes = std::as_bytes(std::span(values));
    t.bytes.assign(bytes.begin(), bytes.end());
    t.spec.dtype = DType::f32;
  }
  const auto widened = Model::load(written(wide));
  EXPECT_EQ(widened->fingerprints(), model(directory)->fingerprints());
}

// Flips one bit of every tensor of the text model, wherever the tensor is.
TEST_P(Fingerprint, IsAnotherAfterOneFlippedBit) {
  const Tensors tensors(directory);
  std::mt19937 random(1);
  std::set<std::string> seen = {published};
  for (size_t i = 0; i < tensors.all.size(); ++i) {
    const std::string& name = tensors.all[i].spec.name;
    if (name.find("vision") != std::string::npos || name.find("visual") != std::string::npos ||
        name.find("multi_modal") != std::string::npos)
      continue;
    Tensors changed = tensors;
    std::vector<std::byte>& bytes = changed.all[i].bytes;
    // In MXFP4 the sign bit of a zero means nothing, and a large exponent is refused.
    const unsigned bits = tensors.all[i].spec.dtype == DType::u8 ? 3 : 8;
    bytes[random() % bytes.size()] ^= static_cast<std::byte>(1 << random() % bits);
    EXPECT_TRUE(seen.insert(name_of(written(changed))).second) << name;
  }
}

TEST_P(Fingerprint, ChangesWhenTwoTensorsAreSwapped) {
  const Tensors tensors(directory);
  for (const char* what : {"norm", "proj", "mlp", "c_proj"}) {
    std::vector<size_t> same;
    for (size_t i = 0; i < tensors.all.size(); ++i) {
      const TensorSpec& spec = tensors.all[i].spec;
      if (spec.name.find("vision") != std::string::npos ||
          spec.name.find(what) == std::string::npos)
        continue;
      if (!same.empty() && (spec.shape != tensors.all[same[0]].spec.shape ||
                            tensors.all[i].bytes == tensors.all[same[0]].bytes))
        continue;
      same.push_back(i);
    }
    if (same.size() < 2) continue;
    Tensors swapped = tensors;
    std::swap(swapped.all[same[0]].bytes, swapped.all[same[1]].bytes);
    EXPECT_NE(name_of(written(swapped)), published) << what;
  }
}

TEST_P(Fingerprint, ChangesWithEveryConfigValue) {
  const Tensors tensors(directory);
  const Json config = Json::parse(read_text(directory + "/config.json"));
  int changed = 0;
  for (const auto& [path, change] : std::vector<std::pair<std::string, std::function<void(Json&)>>>{
           {"/rms_norm_eps", [](Json& v) { v = v.get<double>() * 2; }},
           {"/layer_norm_epsilon", [](Json& v) { v = v.get<double>() * 2; }},
           {"/rope_theta", [](Json& v) { v = v.get<double>() + 1; }},
           {"/max_position_embeddings", [](Json& v) { v = v.get<int64_t>() - 1; }},
           {"/query_pre_attn_scalar", [](Json& v) { v = v.get<double>() + 1; }},
           {"/sliding_window", [](Json& v) { v = v.get<int64_t>() + 1; }},
           {"/final_logit_softcapping", [](Json& v) { v = v.get<double>() + 1; }},
           {"/attn_logit_softcapping", [](Json& v) { v = v.get<double>() + 1; }},
           {"/rope_local_base_freq", [](Json& v) { v = v.get<double>() + 1; }},
           {"/num_experts_per_tok", [](Json& v) { v = v.get<int64_t>() - 1; }},
           {"/norm_topk_prob", [](Json& v) { v = !v.get<bool>(); }},
           {"/swiglu_limit", [](Json& v) { v = v.get<double>() + 1; }},
           {"/rope_scaling/truncate", [](Json& v) { v = !v.get<bool>(); }},
           {"/rope_scaling/beta_fast", [](Json& v) { v = v.get<double>() + 1; }},
           {"/rope_scaling/factor", [](Json& v) { v = v.get<double>() + 1; }},
           {"/rope_scaling/beta_slow", [](Json& v) { v = v.get<double>() + 1; }},
           {"/rope_scaling/original_max_position_embeddings",
            [](Json& v) { v = v.get<int64_t>() * 2; }},
           {"/rope_parameters/full_attention/rope_theta", [](Json& v) { v = v.get<double>() + 1; }},
           {"/rope_parameters/sliding_attention/rope_theta",
            [](Json& v) { v = v.get<double>() + 1; }},
           {"/rope_parameters/full_attention/partial_rotary_factor",
            [](Json& v) { v = v.get<double>() / 2; }},
           {"/top_k_experts", [](Json& v) { v = v.get<int64_t>() - 1; }},
           {"/altup_active_idx", [](Json& v) { v = v.get<int64_t>() + 1; }},
           {"/altup_correct_scale", [](Json& v) { v = !v.get<bool>(); }},
           {"/activation_sparsity_pattern/0", [](Json& v) { v = v.get<double>() - 0.1; }}}) {
    for (const std::string& prefix : {std::string(), std::string("/text_config")}) {
      const Json::json_pointer at(prefix + path);
      if (!config.contains(at) || (!config.at(at).is_number() && !config.at(at).is_boolean()))
        continue;
      // A window that no layer uses changes nothing, nor does a number of experts where none are.
      const auto m = Model::load(written(tensors, 1, [&, &f = change](Json& j) { f(j[at]); }));
      if (m->config().canonical() == model(directory)->config().canonical()) {
        EXPECT_TRUE(path == "/sliding_window" || config.value("num_local_experts", 1) == 0) << path;
        continue;
      }
      EXPECT_NE(m->fingerprint(), published) << path;
      ++changed;
    }
  }
  EXPECT_GT(changed, 0);
}

// ---------------------------------------------------------------- the definition

struct Tensor {
  TensorView view;
  std::vector<std::byte> bytes;

  Tensor(DType dtype, std::vector<int64_t> shape, std::span<const std::byte> of)
      : bytes(of.begin(), of.end()) {
    view.name = "t";
    view.dtype = dtype;
    view.dtype_text = dtype == DType::f32 ? "F32" : dtype == DType::f16 ? "F16" : "BF16";
    view.shape = std::move(shape);
    view.bytes = bytes;
  }
};

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

Sha256 leaves(const std::vector<std::pair<uint8_t, Digest>>& all) {
  PortableSha256 hash;
  for (const auto& [type, digest] : all) {
    hash.add(std::as_bytes(std::span(&type, 1)));
    hash.add(std::as_bytes(std::span(&digest, 1)));
  }
  return hash.result();
}

// The digest equals that of the portable XXH3 library, whichever vector instructions compute it and
// however the bytes are cut into pieces.
TEST(FingerprintLeaves, DigestsAreThoseOfXxhash) {
  std::mt19937 random(1);
  std::vector<uint8_t> bytes(100000);
  for (uint8_t& b : bytes) b = static_cast<uint8_t>(random());
  const std::span<const std::byte> all = std::as_bytes(std::span(bytes));
  for (const size_t size : {0, 1, 16, 200, 240, 241, 256, 257, 1024, 5000, 16384, 100000}) {
    const XXH128_hash_t expected = XXH3_128bits(bytes.data(), size);
    EXPECT_EQ(digest_of(all.first(size)), (Digest{expected.low64, expected.high64})) << size;
    for (const size_t piece : {1, 7, 64, 255, 256, 257, 4096, 16384}) {
      RunningDigest running;
      for (size_t at = 0; at < size; at += piece)
        running.add(all.subspan(at, std::min(piece, size - at)));
      EXPECT_EQ(running.result(), digest_of(all.first(size))) << size << " by " << piece;
    }
  }
}

TEST(FingerprintLeaves, AreOf16RowsInTheNarrowestTypeThatHoldsThem) {
  std::vector<float> w(33 * 3);
  for (size_t i = 0; i < w.size(); ++i)
    w[i] = i < 48   ? 0.5f + static_cast<float>(i) / 128
           : i < 96 ? 1 + static_cast<float>(i) / 1024
                    : 1 + static_cast<float>(i) / 65536;
  std::vector<uint16_t> bf16(48), f16(48);
  for (size_t i = 0; i < 48; ++i) bf16[i] = round_bf16(w[i]), f16[i] = round_f16(w[48 + i]);
  const std::vector<float> f32(w.begin() + 96, w.end());
  const Sha256 expected = leaves({{0, digest_of(bytes_of(bf16))},
                                  {1, digest_of(bytes_of(f16))},
                                  {2, digest_of(bytes_of(f32))}});
  for (const int threads : {1, 3})
    EXPECT_EQ(digest_matrix(Tensor(DType::f32, {33, 3}, bytes_of(w)).view, threads), expected);
  EXPECT_EQ(digest_vector(Tensor(DType::f32, {99}, bytes_of(w)).view),
            leaves({{2, digest_of(bytes_of(w))}}));
  EXPECT_EQ(digest_vector(Tensor(DType::bf16, {48}, bytes_of(bf16)).view),
            leaves({{0, digest_of(bytes_of(bf16))}}));
}

// Every float16 value has the same leaf whichever type it is stored in.
TEST(FingerprintLeaves, AreEqualForEveryFloat16InAnyType) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const std::vector<uint16_t> half = {static_cast<uint16_t>(bits)};
    const float x = widen_f16(half[0]);
    if (std::isnan(x)) continue;
    const std::vector<float> wide = {x};
    ASSERT_EQ(digest_vector(Tensor(DType::f16, {1}, bytes_of(half)).view),
              digest_vector(Tensor(DType::f32, {1}, bytes_of(wide)).view))
        << bits;
  }
}

}  // namespace
}  // namespace stet::test::fingerprint_tests
