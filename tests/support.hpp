// What several tests need: bundled and fixture checkpoints, golden tensors, comparison of bytes.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "stet/file.hpp"
#include "stet/model.hpp"
#include "stet/safetensors.hpp"
#include "stet/session.hpp"

namespace stet::test {

inline std::string data_path(const std::string& name) { return std::string(STET_ROOT) + "/tests/data/" + name; }
inline std::string asset_path(const std::string& name) { return std::string(STET_ROOT) + "/assets/" + name; }

// Loaded once per process: weights are immutable.
inline std::shared_ptr<const Model> model(const std::string& directory) {
  static std::map<std::string, std::shared_ptr<const Model>> loaded;
  std::shared_ptr<const Model>& m = loaded[directory];
  if (m == nullptr) m = Model::load(directory);
  return m;
}

// A safetensors file with numbers widened to double or integers.
class Golden {
 public:
  explicit Golden(const std::string& path)
      : bytes_(read_file(path, size_t{1} << 30)), tensors_(SafeTensors::parse(bytes_, path)) {}

  const TensorView& view(const std::string& name) const {
    const TensorView* v = tensors_.find(name);
    if (v == nullptr) throw std::runtime_error("no golden tensor " + name);
    return *v;
  }
  bool has(const std::string& name) const { return tensors_.find(name) != nullptr; }
  std::vector<float> floats(const std::string& name) const {
    const TensorView& v = view(name);
    if (v.dtype != DType::f32) throw std::runtime_error(name + " is " + v.dtype_text);
    std::vector<float> out(v.bytes.size() / 4);
    std::memcpy(out.data(), v.bytes.data(), v.bytes.size());
    return out;
  }
  std::vector<int32_t> ids(const std::string& name) const {
    const TensorView& v = view(name);
    const size_t size = dtype_size(v.dtype);
    std::vector<int32_t> out(v.bytes.size() / size);
    for (size_t i = 0; i < out.size(); ++i) std::memcpy(&out[i], v.bytes.data() + i * size, 4);
    return out;
  }

 private:
  std::vector<std::byte> bytes_;
  SafeTensors tensors_;
};

inline SessionOptions options(int threads, const std::string& isa = "", int64_t chunk = 512) {
  SessionOptions o;
  o.compute.threads = threads;
  o.compute.isa = isa;
  o.compute.chunk = chunk;
  return o;
}

// Logits of all positions of `ids`, appended in one call: [T][vocab].
inline std::vector<float> all_logits(Session& session, std::span<const int32_t> ids) {
  std::vector<float> out;
  session.append(ids, [&](int64_t, Rows rows) {
    for (size_t i = 0; i < rows.count; ++i) out.insert(out.end(), rows.row(i), rows.row(i) + rows.width);
  });
  return out;
}

inline int32_t argmax(std::span<const float> x) {
  return static_cast<int32_t>(std::max_element(x.begin(), x.end()) - x.begin());
}

inline bool same_bytes(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

// All bytes of keys and values, block after block.
inline std::vector<std::byte> kv_bytes(const KvCache& kv) {
  std::vector<std::byte> out;
  const int64_t blocks = (kv.size() + kBlockPositions - 1) / kBlockPositions;
  for (int64_t b = 0; b < blocks; ++b) out.insert(out.end(), kv.block(b), kv.block(b) + kv.shape().block_bytes());
  return out;
}

}  // namespace stet::test
