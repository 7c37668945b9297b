#include <algorithm>
#include <cstring>
#include <optional>

#include "kernels/quantize.hpp"
#include "src/checkpoint/fingerprint.hpp"
#include "src/checkpoint/packed.hpp"
#include "stet/base/error.hpp"
#include "stet/kernels/numbers.hpp"
#include "stet/model/model.hpp"
#include "stet/model/weight_loader.hpp"

namespace stet {
namespace {

// What the matrices of a group are rounded to. Embeddings and head decide the most, and are a small
// part of a large model.
std::optional<WeightType> rounded_type(Contract contract, const std::string& group) {
  if (contract != Contract::q8 && contract != Contract::q4) return std::nullopt;
  return contract == Contract::q8 || group == "embeddings" || group == "head" ? WeightType::q8
                                                                              : WeightType::q4;
}

}  // namespace

WeightLoader::WeightLoader(const Checkpoint& checkpoint, std::string prefix, Contract contract,
                           int threads, PackedWriter* writer)
    : checkpoint_(checkpoint),
      prefix_(std::move(prefix)),
      contract_(checkpoint.packed() ? packed_contract(checkpoint) : contract),
      threads_(threads),
      writer_(writer),
      names_(std::make_unique<WeightFingerprints>()) {}

WeightLoader::~WeightLoader() = default;

// The name without what differs between checkpoints of a family.
std::string WeightLoader::canonical(const std::string& name) const {
  constexpr const char* kHead = "lm_head.weight";
  if (name.ends_with(kHead)) return kHead;
  return name.substr(prefix_.size());
}

std::vector<WeightLoader::Part> WeightLoader::prefixed(const std::vector<Part>& parts) const {
  std::vector<Part> full = parts;
  for (Part& part : full) part.name = prefix_ + part.name;
  return full;
}

// The packed matrix of tensors of the checkpoint.
Matrix WeightLoader::pack(const std::string& group, const std::vector<Part>& parts, int64_t columns,
                          bool transposed) {
  std::vector<const TensorView*> views;
  for (const Part& part : parts) {
    views.push_back(transposed ? &checkpoint_.require(part.name, {columns, part.rows})
                               : &checkpoint_.require(part.name, {part.rows, columns}));
    if (views.back()->dtype != views[0]->dtype) {
      throw Error(ErrorKind::unsupported, checkpoint_.file_of(part.name), part.name,
                  "dtype " + views[0]->dtype_text + " like " + views[0]->name,
                  views.back()->dtype_text);
    }
  }
  Matrix matrix = transposed ? Matrix::transposed(*views[0], threads_)
                             : Matrix(views, static_cast<size_t>(columns), threads_);
  for (const TensorView* view : views) {
    names_->add(group, canonical(view->name), *view, digest_matrix(*view, threads_));
    checkpoint_.drop(*view);
  }
  return matrix;
}

Matrix WeightLoader::load(const std::string& group, const std::vector<Part>& parts, int64_t columns,
                          bool transposed, bool rounded) {
  std::string name;
  size_t rows = 0;
  for (const Part& part : parts) {
    name += (name.empty() ? "" : "+") + part.name;
    rows += static_cast<size_t>(part.rows);
  }
  names_->add_group(group);
  const std::optional<WeightType> type = rounded ? rounded_type(contract_, group) : std::nullopt;
  Matrix matrix = checkpoint_.packed()
                      ? packed_matrix(checkpoint_, name, type, rows, static_cast<size_t>(columns))
                      : pack(group, parts, columns, transposed);
  if (not_bf16_.empty() && rounded && matrix.type() != WeightType::bf16) {
    not_bf16_ = parts[0].name;
    its_type_ = checkpoint_.packed() ? weight_type_name(matrix.type())
                                     : checkpoint_.find(parts[0].name)->dtype_text;
  }
  if (type && !checkpoint_.packed()) {
    try {
      matrix = matrix.quantized(*type, threads_);
    } catch (const WeightError& e) {
      refuse(e, parts, transposed);
    }
  }
  bytes_ += matrix.bytes();
  if (writer_ != nullptr) {
    writer_->add(name, matrix);
    matrix = Matrix::packed(matrix.type(), matrix.rows(), matrix.columns(), nullptr, nullptr);
  } else if (rounded) {
    matrices_.push_back(matrix.all());
  }
  return matrix;
}

// Of a matrix of all these parts: names the tensor, and where it is in there.
void WeightLoader::refuse(const WeightError& e, const std::vector<Part>& parts,
                          bool transposed) const {
  size_t row = e.row;
  auto part = parts.begin();
  for (; row >= static_cast<size_t>(part->rows); ++part) row -= static_cast<size_t>(part->rows);
  const size_t first = transposed ? e.column : row, second = transposed ? row : e.column;
  throw Error(e.kind, checkpoint_.file_of(part->name),
              part->name + "[" + std::to_string(first) + ", " + std::to_string(second) + "]",
              e.expected, e.found);
}

Matrix WeightLoader::matrix(const std::string& group, const std::vector<Part>& parts,
                            int64_t columns) {
  return load(group, prefixed(parts), columns, false, true);
}

Matrix WeightLoader::table(const std::string& group, const Part& part, int64_t columns) {
  return load(group, prefixed({part}), columns, false, false);
}

Matrix WeightLoader::head(int64_t vocab, int64_t hidden) {
  const size_t model = prefix_.rfind("model.");
  std::string name =
      (model == std::string::npos ? "" : prefix_.substr(0, model)) + "lm_head.weight";
  if (checkpoint_.find(name) == nullptr) name = "lm_head.weight";
  return load("head", {{name, vocab}}, hidden, false, true);
}

Vector WeightLoader::vector(const std::string& group, const std::string& name, int64_t n,
                            float offset) {
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
  }
  if (offset != 0) add_offset(result, offset);
  names_->add(group, canonical(view.name), view, digest_vector(view));
  bytes_ += result.size() * sizeof(float);
  if (writer_ != nullptr) writer_->add(view);
  return result;
}

Linear WeightLoader::linear(const std::string& group, const std::vector<Part>& layers,
                            int64_t columns, bool bias) {
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
  Linear result{load(group, prefixed({{layer.name + ".weight", layer.rows}}), columns, true, true),
                {}};
  result.bias = vector(group, layer.name + ".bias", layer.rows);
  return result;
}

// By the weights as they were before they were packed or rounded. A file that was packed before
// there were names of values has the others alone.
void WeightLoader::name(Model& model) const {
  const std::string config = model.config().canonical();
  WeightFingerprints::Names names = names_->fingerprints(), legacy = names_->legacy_fingerprints();
  if (checkpoint_.packed()) {
    for (auto& [group, text] : legacy) text = packed_legacy_fingerprint(checkpoint_, group);
    for (auto& [group, text] : names) text = packed_fingerprint(checkpoint_, group);
  }
  if (writer_ != nullptr) {
    for (const auto& [group, text] : legacy) writer_->note_legacy_fingerprint(group, text);
    for (const auto& [group, text] : names) writer_->note_fingerprint(group, text);
  }
  model.legacy_fingerprints_ = with_legacy_model_fingerprint(std::move(legacy), config);
  const bool named = std::ranges::none_of(names, [](const auto& n) { return n.second.empty(); });
  model.fingerprints_ =
      named ? with_model_fingerprint(std::move(names), config) : model.legacy_fingerprints_;
}

void WeightLoader::finish(Model& model) const {
  name(model);
  model.weight_bytes_ = bytes_;
  for (const std::span<const std::byte> matrix : matrices_) {
    if (model.config().tied_head || matrix.data() != model.embedding_.all().data())
      model.matrices_.push_back(matrix);
  }
  model.contract_ =
      contract_ == Contract::q8 || contract_ == Contract::q4 ? contract_ : Contract::f32;
  if (writer_ != nullptr) writer_->note_contract(model.contract_);
  if (!not_bf16_.empty()) model.not_bf16_ = {checkpoint_.file_of(not_bf16_), not_bf16_, its_type_};
}

}  // namespace stet
