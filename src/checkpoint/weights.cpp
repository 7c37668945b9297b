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

WeightLoader::WeightLoader(const Checkpoint& checkpoint, std::string prefix,
                           std::vector<WeightNeed>* needs)
    : WeightLoader(checkpoint, std::move(prefix), Contract::f32, 1) {
  needs_ = needs;
}

WeightLoader::~WeightLoader() = default;

// The name without what differs between checkpoints of a family.
std::string WeightLoader::canonical(const std::string& name) const {
  constexpr const char* kHead = "lm_head.weight";
  if (name.ends_with(kHead)) return kHead;
  return name.starts_with(prefix_) ? name.substr(prefix_.size()) : name;
}

std::vector<WeightLoader::Part> WeightLoader::prefixed(const std::vector<Part>& parts) const {
  std::vector<Part> full = parts;
  for (Part& part : full) part.name = prefix_ + part.name;
  return full;
}

// The packed matrix of tensors of the checkpoint.
Matrix WeightLoader::pack(const std::string& group, const std::vector<Part>& parts, int64_t columns,
                          Stored stored) {
  std::vector<const TensorView*> views;
  for (const Part& part : parts) {
    views.push_back(stored.transposed ? &checkpoint_.require(part.name, {columns, part.rows})
                                      : &checkpoint_.require(part.name, {part.rows, columns}));
    if (views.back()->dtype != views[0]->dtype) {
      throw Error(ErrorKind::unsupported, checkpoint_.file_of(part.name), part.name,
                  "dtype " + views[0]->dtype_text + " like " + views[0]->name,
                  views.back()->dtype_text);
    }
  }
  for (const TensorView* view : views) checkpoint_.fill(*view);
  Matrix matrix = stored.transposed ? Matrix::transposed(*views[0], threads_)
                                    : Matrix(views, static_cast<size_t>(columns), threads_,
                                             static_cast<size_t>(stored.heads));
  for (const TensorView* view : views) {
    names_->add(group, canonical(view->name), *view, digest_matrix(*view, threads_));
    checkpoint_.drop(*view);
  }
  return matrix;
}

namespace {

std::string joined(const std::vector<WeightLoader::Part>& parts) {
  std::string name;
  for (const auto& part : parts) name += (name.empty() ? "" : "+") + part.name;
  return name;
}

}  // namespace

void WeightLoader::note(const std::vector<Part>& parts, int64_t columns, Stored stored,
                        bool rounded) const {
  int64_t rows = 0, all = 0;
  for (const Part& part : parts) all += part.rows;
  for (const Part& part : parts) {
    if (!checkpoint_.packed()) {
      stored.transposed ? checkpoint_.require(part.name, {columns, part.rows})
                        : checkpoint_.require(part.name, {part.rows, columns});
    }
    needs_->push_back({part.name, canonical(part.name), part.rows, columns, false,
                       stored.transposed, !rounded, stored.heads, joined(parts), rows, all});
    rows += part.rows;
  }
}

Matrix WeightLoader::load(const std::string& group, const std::vector<Part>& parts, int64_t columns,
                          Stored stored, bool rounded) {
  const std::string name = joined(parts);
  size_t rows = 0;
  for (const Part& part : parts) rows += static_cast<size_t>(part.rows);
  if (needs_ != nullptr) {
    note(parts, columns, stored, rounded);
    return Matrix::packed(WeightType::f32, rows, static_cast<size_t>(columns), nullptr, nullptr);
  }
  names_->add_group(group);
  const std::optional<WeightType> type = rounded ? rounded_type(contract_, group) : std::nullopt;
  Matrix matrix = checkpoint_.packed()
                      ? packed_matrix(checkpoint_, name, type, rows, static_cast<size_t>(columns))
                      : pack(group, parts, columns, stored);
  if (not_bf16_.empty() && rounded && matrix.type() != WeightType::bf16) {
    not_bf16_ = parts[0].name;
    its_type_ = checkpoint_.packed() ? weight_type_name(matrix.type())
                                     : checkpoint_.find(parts[0].name)->dtype_text;
  }
  if (type && !checkpoint_.packed()) {
    try {
      matrix = matrix.quantized(*type, threads_);
    } catch (const WeightError& e) {
      refuse(e, parts, stored);
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
                          Stored stored) const {
  size_t row = e.row;
  if (stored.heads > 0)
    row =
        interleaved_row(row, static_cast<size_t>(parts[0].rows), static_cast<size_t>(stored.heads));
  auto part = parts.begin();
  for (; row >= static_cast<size_t>(part->rows); ++part) row -= static_cast<size_t>(part->rows);
  const size_t first = stored.transposed ? e.column : row,
               second = stored.transposed ? row : e.column;
  throw Error(e.kind, checkpoint_.file_of(part->name),
              part->name + "[" + std::to_string(first) + ", " + std::to_string(second) + "]",
              e.expected, e.found);
}

Matrix WeightLoader::matrix(const std::string& group, const std::vector<Part>& parts,
                            int64_t columns) {
  return load(group, prefixed(parts), columns, {}, true);
}

Matrix WeightLoader::table(const std::string& group, const Part& part, int64_t columns) {
  return load(group, prefixed({part}), columns, {}, false);
}

Matrix WeightLoader::head(int64_t vocab, int64_t hidden, const char* plain) {
  const size_t model = prefix_.rfind("model.");
  std::string name = (model == std::string::npos ? "" : prefix_.substr(0, model)) + plain;
  if (checkpoint_.find(name) == nullptr) name = plain;
  return load("head", {{name, vocab}}, hidden, {}, true);
}

Vector WeightLoader::vector(const std::string& group, const std::string& name, int64_t n,
                            float offset) {
  const TensorView& view = checkpoint_.require(prefix_ + name, {n});
  if (needs_ != nullptr)
    needs_->push_back({view.name, canonical(view.name), 1, n, true, false, false, 0, "", 0, 0});
  checkpoint_.fill(view);
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
  Linear result{load(group, prefixed({{layer.name + ".weight", layer.rows}}), columns,
                     {.transposed = true}, true),
                {}};
  result.bias = vector(group, layer.name + ".bias", layer.rows);
  return result;
}

Linear WeightLoader::interleaved(const std::string& group, const Part& layer, int64_t columns,
                                 int64_t heads, bool bias) {
  Linear result{load(group, prefixed({{layer.name + ".weight", layer.rows}}), columns,
                     {.heads = heads}, true),
                {}};
  if (!bias) return result;
  const Vector stored = vector(group, layer.name + ".bias", layer.rows);
  if (needs_ != nullptr) needs_->back().heads = heads;
  for (size_t i = 0; i < stored.size(); ++i)
    result.bias.push_back(stored[interleaved_row(i, stored.size(), static_cast<size_t>(heads))]);
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
