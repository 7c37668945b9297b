#include <cstring>

#include "models/family.hpp"
#include "stet/bytes.hpp"
#include "stet/error.hpp"

namespace stet {

void WeightLoader::record(const std::string& group, const TensorView& tensor, const Digest& digest) {
  groups_[group][tensor.name] = {tensor.dtype_text, shape_text(tensor.shape), digest};
}

Matrix WeightLoader::stack(const std::string& group, const std::vector<const TensorView*>& views, int64_t columns) {
  for (const TensorView* view : views) {
    if (view->dtype != views[0]->dtype) {
      throw Error(ErrorKind::unsupported, checkpoint_.file_of(view->name), view->name,
                  "dtype " + views[0]->dtype_text + " like " + views[0]->name, view->dtype_text);
    }
  }
  if (not_bf16_ == nullptr && views[0]->dtype != DType::bf16) not_bf16_ = views[0];
  std::vector<Digest> digests;
  Matrix matrix(views, static_cast<size_t>(columns), threads_, &digests);
  for (size_t i = 0; i < views.size(); ++i) {
    record(group, *views[i], digests[i]);
    checkpoint_.drop(*views[i]);
  }
  bytes_ += matrix.bytes();
  return matrix;
}

Matrix WeightLoader::matrix(const std::string& group, const std::vector<Part>& parts, int64_t columns) {
  std::vector<const TensorView*> views;
  for (const Part& part : parts) views.push_back(&checkpoint_.require(prefix_ + part.name, {part.rows, columns}));
  return stack(group, views, columns);
}

Matrix WeightLoader::head(int64_t vocab, int64_t hidden) {
  const size_t model = prefix_.rfind("model.");
  std::string name = (model == std::string::npos ? "" : prefix_.substr(0, model)) + "lm_head.weight";
  if (checkpoint_.find(name) == nullptr) name = "lm_head.weight";
  return stack("head", {&checkpoint_.require(name, {vocab, hidden})}, hidden);
}

Vector WeightLoader::vector(const std::string& group, const std::string& name, int64_t n, float offset) {
  const TensorView& view = checkpoint_.require(prefix_ + name, {n});
  Vector result(static_cast<size_t>(n));
  for (size_t i = 0; i < result.size(); ++i) {
    if (view.dtype == DType::f32) {
      std::memcpy(&result[i], view.bytes.data() + i * 4, 4);
    } else {
      uint16_t bits;
      std::memcpy(&bits, view.bytes.data() + i * 2, 2);
      result[i] = view.dtype == DType::bf16 ? widen_bf16(bits) : widen_f16(bits);
    }
    if (offset != 0) result[i] += offset;
  }
  record(group, view, digest_of(view.bytes));
  bytes_ += result.size() * sizeof(float);
  return result;
}

Linear WeightLoader::linear(const std::string& group, const std::vector<Part>& layers, int64_t columns, bool bias) {
  std::vector<Part> weights;
  for (const Part& layer : layers) weights.push_back({layer.name + ".weight", layer.rows});
  Linear result{matrix(group, weights, columns), {}};
  for (const Part& layer : layers) {
    if (!bias) break;
    const Vector one = vector(group, layer.name + ".bias", layer.rows);
    result.bias.insert(result.bias.end(), one.begin(), one.end());
  }
  return result;
}

Linear WeightLoader::transposed(const std::string& group, const Part& layer, int64_t columns) {
  const TensorView& view = checkpoint_.require(prefix_ + layer.name + ".weight", {columns, layer.rows});
  if (not_bf16_ == nullptr && view.dtype != DType::bf16) not_bf16_ = &view;
  Digest digest;
  Linear result{Matrix::transposed(view, threads_, &digest), {}};
  record(group, view, digest);
  checkpoint_.drop(view);
  bytes_ += result.weight.bytes();
  result.bias = vector(group, layer.name + ".bias", layer.rows);
  return result;
}

void WeightLoader::finish(Model& model) const {
  ByteWriter whole;
  const auto add = [&](const std::string& name, const Digest& digest) {
    model.fingerprints_.emplace_back(name, digest);
    whole.text(name);
    whole.u64(digest.low);
    whole.u64(digest.high);
  };
  for (const char* group : {"embeddings", "norms", "attention", "mlp", "head"}) {
    const auto found = groups_.find(group);
    if (found == groups_.end()) continue;
    ByteWriter w;
    for (const auto& [name, entry] : found->second) {
      w.text(name + " " + entry.dtype + " " + entry.shape + "\n");
      w.u64(entry.digest.low);
      w.u64(entry.digest.high);
    }
    add(group, digest_of(w.data()));
  }
  const std::string config = model.config().canonical();
  add("config", digest_of(std::as_bytes(std::span(config))));
  model.fingerprints_.emplace_back("model", digest_of(whole.data()));
  model.weight_bytes_ = bytes_;
  if (not_bf16_ != nullptr) model.not_bf16_ = {checkpoint_.file_of(not_bf16_->name), not_bf16_->name, not_bf16_->dtype_text};
}

}  // namespace stet
