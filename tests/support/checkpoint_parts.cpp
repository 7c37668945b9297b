#include "tests/support/checkpoint_parts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <random>
#include <stdexcept>

#include "tests/support/models.hpp"

namespace stet::test {

CheckpointParts::CheckpointParts(const std::string& name) {
  const std::string from = data_path("models/" + name);
  config = nlohmann::json::parse(read_text(from + "/config.json"));
  const Golden weights(from + "/model.safetensors");
  for (const TensorView& t : weights.all())
    tensors_.push_back({{t.name, t.dtype, t.shape}, {t.bytes.begin(), t.bytes.end()}});
}

void CheckpointParts::rename(const std::string& from, const std::string& to) {
  for (Tensor& t : tensors_) {
    if (const size_t at = t.spec.name.find(from); at != std::string::npos)
      t.spec.name.replace(at, from.size(), to);
  }
}

void CheckpointParts::stack(const std::string& at, int64_t experts,
                            const std::vector<std::string>& names, const std::string& to) {
  Tensor all{{to, DType::f32, {experts, 0}}, {}};
  for (int64_t e = 0; e < experts; ++e) {
    for (const std::string& name : names) {
      const Tensor one = take(fmt::format("{}.{}.{}.weight", at, e, name));
      all.spec.dtype = one.spec.dtype;
      all.bytes.insert(all.bytes.end(), one.bytes.begin(), one.bytes.end());
      if (e == 0) all.spec.shape[1] += one.spec.shape[0];
      all.spec.shape.resize(3, one.spec.shape[1]);
    }
  }
  tensors_.push_back(std::move(all));
}

void CheckpointParts::add(const std::string& name, const std::vector<int64_t>& shape, float size) {
  Tensor t{{name, DType::f32, shape}, {}};
  size_t n = 1;
  for (const int64_t dim : shape) n *= static_cast<size_t>(dim);
  std::mt19937 random(static_cast<uint32_t>(tensors_.size()));
  std::vector<float> values(n);
  for (float& v : values)
    v = size * (static_cast<float>(random() >> 8) / static_cast<float>(1 << 23) - 1);
  t.bytes.resize(n * sizeof(float));
  std::memcpy(t.bytes.data(), values.data(), t.bytes.size());
  tensors_.push_back(std::move(t));
}

void CheckpointParts::keep_layers(int64_t count) {
  std::erase_if(tensors_, [&](const Tensor& t) {
    const size_t at = t.spec.name.find("layers.");
    return at != std::string::npos && std::stoll(t.spec.name.substr(at + 7)) >= count;
  });
  config["num_hidden_layers"] = count;
  if (config.contains("layer_types")) {
    nlohmann::json& types = config["layer_types"];
    types.erase(types.begin() + count, types.end());
  }
}

void CheckpointParts::cut_to_bf16() {
  for (Tensor& t : tensors_) {
    if (t.spec.dtype != DType::f32) continue;
    t.spec.dtype = DType::bf16;
    for (size_t i = 0; i * 4 < t.bytes.size(); ++i)
      std::memcpy(&t.bytes[2 * i], &t.bytes[4 * i + 2], 2);
    t.bytes.resize(t.bytes.size() / 2);
  }
}

std::vector<std::byte>& CheckpointParts::bytes(const std::string& name) {
  const auto it = std::ranges::find(tensors_, name, [](const Tensor& t) { return t.spec.name; });
  if (it == tensors_.end()) throw std::runtime_error("no tensor " + name);
  return it->bytes;
}

std::string CheckpointParts::write(const std::string& directory) const {
  std::filesystem::create_directories(directory);
  write_file(directory + "/config.json", config.dump());
  std::vector<TensorSpec> specs;
  for (const Tensor& t : tensors_) specs.push_back(t.spec);
  SafeTensorsWriter writer(directory + "/model.safetensors", specs);
  for (const Tensor& t : tensors_) writer.write(t.bytes);
  writer.commit();
  return directory;
}

CheckpointParts::Tensor CheckpointParts::take(const std::string& name) {
  const auto it = std::ranges::find(tensors_, name, [](const Tensor& t) { return t.spec.name; });
  if (it == tensors_.end()) throw std::runtime_error("no tensor " + name);
  Tensor t = std::move(*it);
  tensors_.erase(it);
  return t;
}

}  // namespace stet::test
