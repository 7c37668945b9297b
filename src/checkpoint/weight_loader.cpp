// Turns a family's requests for weights into requests for the tensors of a checkpoint.
#include "stet/model/weight_loader.hpp"

namespace stet {

int64_t WeightLoader::MatrixRequest::rows() const {
  int64_t rows = 0;
  for (const Stored& tensor : tensors) rows += step(tensor);
  return rows;
}

int64_t WeightLoader::MatrixRequest::step(const Stored& tensor) const {
  return experts.empty() ? tensor.rows : (tensor.rows + kLanes - 1) / kLanes * kLanes;
}

WeightLoader::Stored WeightLoader::stored(const std::string& name, int64_t rows) const {
  constexpr const char* kHead = "lm_head.weight";
  if (name.ends_with(kHead)) return {name, kHead, rows};
  return {name, name.starts_with(prefix_) ? name.substr(prefix_.size()) : name, rows};
}

std::vector<WeightLoader::Stored> WeightLoader::stored(const std::vector<Part>& parts,
                                                       const char* ending) const {
  std::vector<Stored> tensors;
  for (const Part& part : parts) tensors.push_back(stored(prefix_ + part.name + ending, part.rows));
  return tensors;
}

Matrix WeightLoader::matrix(const std::string& group, const std::vector<Part>& parts,
                            int64_t columns) {
  return load(MatrixRequest{group, stored(parts), columns});
}

Matrix WeightLoader::table(const std::string& group, const Part& part, int64_t columns) {
  return load(MatrixRequest{group, stored(std::vector<Part>{part}), columns, true});
}

Matrix WeightLoader::table_in_place(const std::string& group, const Part& part, int64_t columns) {
  MatrixRequest request{group, stored(std::vector<Part>{part}), columns, true};
  request.in_place = true;
  return load(request);
}

Matrix WeightLoader::head(int64_t vocab, int64_t hidden, const char* plain) {
  const size_t model = prefix_.rfind("model.");
  std::string name = (model == std::string::npos ? "" : prefix_.substr(0, model)) + plain;
  if (!has(name)) name = plain;
  return load(MatrixRequest{"head", {stored(name, vocab)}, hidden});
}

Vector WeightLoader::vector(const std::string& group, const std::string& name, int64_t n,
                            float offset) {
  return load(VectorRequest{group, stored(prefix_ + name, n), offset});
}

Linear WeightLoader::linear(const std::string& group, const std::vector<Part>& layers,
                            int64_t columns, bool bias) {
  Linear result{load(MatrixRequest{group, stored(layers, ".weight"), columns}), {}};
  for (const Part& layer : layers) {
    if (!bias) break;
    const Vector one = vector(group, layer.name + ".bias", layer.rows);
    result.bias.insert(result.bias.end(), one.begin(), one.end());
  }
  return result;
}

Matrix WeightLoader::experts(const std::string& group, const std::string& experts, int64_t count,
                             const Part& part, int64_t columns) {
  std::vector<Part> all;
  for (int64_t i = 0; i < count; ++i)
    all.push_back({experts + "." + std::to_string(i) + "." + part.name, part.rows});
  MatrixRequest request{group, stored(all, ".weight"), columns};
  request.experts = prefix_ + experts + ".*." + part.name + ".weight";
  return load(request);
}

Vector WeightLoader::expert_biases(const std::string& group, const std::string& experts,
                                   int64_t count, const Part& part) {
  Vector all;
  for (int64_t i = 0; i < count; ++i) {
    const Vector one =
        vector(group, experts + "." + std::to_string(i) + "." + part.name + ".bias", part.rows);
    all.insert(all.end(), one.begin(), one.end());
  }
  return all;
}

Linear WeightLoader::exact(const std::string& group, const Part& layer, int64_t columns,
                           bool bias) {
  MatrixRequest request{group, stored(std::vector<Part>{layer}, ".weight"), columns};
  request.exact = true;
  Linear result{load(request), {}};
  if (bias) result.bias = vector(group, layer.name + ".bias", layer.rows);
  return result;
}

Linear WeightLoader::transposed(const std::string& group, const Part& layer, int64_t columns) {
  Linear result{
      load(MatrixRequest{group, stored(std::vector<Part>{layer}, ".weight"), columns, false, true}),
      {}};
  result.bias = vector(group, layer.name + ".bias", layer.rows);
  return result;
}

Linear WeightLoader::interleaved(const std::string& group, const Part& layer, int64_t columns,
                                 int64_t heads, bool bias) {
  Linear result{load(MatrixRequest{group, stored(std::vector<Part>{layer}, ".weight"), columns,
                                   false, false, heads}),
                {}};
  if (bias)
    result.bias =
        load(VectorRequest{group, stored(prefix_ + layer.name + ".bias", layer.rows), 0, heads});
  return result;
}

}  // namespace stet
