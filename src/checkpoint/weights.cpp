#include <algorithm>
#include <cstring>
#include <optional>

#include "kernels/quantize.hpp"
#include "src/checkpoint/fingerprint.hpp"
#include "src/checkpoint/packed.hpp"
#include "src/checkpoint/rounded.hpp"
#include "src/checkpoint/tensor_types.hpp"
#include "stet/base/error.hpp"
#include "stet/kernels/ggml.hpp"
#include "stet/kernels/numbers.hpp"
#include "stet/model/model.hpp"
#include "stet/model/weight_loader.hpp"
#include "stet/threads/team.hpp"

namespace stet {
namespace {

// What the matrices of a group are rounded to. Embeddings and head decide the most, and are a small
// part of a large model.
std::optional<WeightType> rounded_type(Contract contract, const std::string& group) {
  if (contract != Contract::q8 && contract != Contract::q4) return std::nullopt;
  return contract == Contract::q8 || group == "embeddings" || group == "head" ? WeightType::q8
                                                                              : WeightType::q4;
}

// Blocks of ggml as float32.
struct Widened {
  Widened(const TensorView& from, int threads)
      : view(from), memory(static_cast<size_t>(element_count(from.shape).value()) * sizeof(float)) {
    const uint32_t number = ggml_number(from.dtype);
    const GgmlType type = *ggml_type(number);
    const auto rows = static_cast<size_t>(from.shape.at(0)),
               columns = static_cast<size_t>(from.shape.at(1));
    run_each(threads, rows, [&](size_t row) {
      dequantize_ggml(number, row_of(from, row).data(), columns / type.elements,
                      memory.as<float>() + row * columns);
    });
    view.dtype = DType::f32;
    view.dtype_text = dtype_name(DType::f32);
    view.bytes = {memory.data(), rows * columns * sizeof(float)};  // of whole pages
    view.paired_heads = 0;
  }
  TensorView view;
  Memory memory;
};

std::string joined(const std::vector<WeightLoader::Part>& parts, size_t first, size_t end) {
  std::string name;
  for (size_t i = first; i < end; ++i) name += (i == first ? "" : "+") + parts[i].name;
  return name;
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
                          Stored stored, bool rounded) {
  std::vector<TensorView> tensors;
  for (const Part& part : parts) {
    const TensorView& found = stored.transposed
                                  ? checkpoint_.require(part.name, {columns, part.rows})
                                  : checkpoint_.require(part.name, {part.rows, columns}, true);
    tensors.push_back(checkpoint_.read(found));
  }
  std::vector<const TensorView*> views;
  for (const TensorView& tensor : tensors) views.push_back(&tensor);
  if (not_bf16_.empty() && rounded && views[0]->dtype != DType::bf16) {
    not_bf16_ = parts[0].name;
    its_type_ = views[0]->dtype_text;
  }
  if (rounded && round_to_) return pack_rounded(group, parts, views, columns, stored);
  // Tensors of one type after another are one matrix; parts before others have whole blocks of
  // rows.
  std::vector<Matrix> matrices;
  bool whole = true;
  for (const Part& part : parts) whole = whole && part.rows % kLanes == 0;
  const bool apart = contract_ == Contract::ggml && whole;
  for (size_t first = 0; first < views.size();) {
    size_t end = first + 1;
    while (end < views.size() && (!apart || views[end]->dtype == views[first]->dtype)) ++end;
    const auto at = [](auto& list, size_t i) { return list.begin() + static_cast<ptrdiff_t>(i); };
    matrices.push_back(of_one_type(group, {at(parts, first), at(parts, end)},
                                   {at(views, first), at(views, end)}, columns, stored));
    first = end;
  }
  return matrices.size() == 1 ? std::move(matrices[0]) : Matrix::stacked(std::move(matrices));
}

// Named by what they are rounded to, as a GGUF file of these blocks would be.
Matrix WeightLoader::pack_rounded(const std::string& group, const std::vector<Part>& parts,
                                  const std::vector<const TensorView*>& views, int64_t columns,
                                  Stored stored) {
  const bool sensitive = group == "embeddings" || group == "head";
  const DType type = columns % kSuperBlock != 0 ? DType::q8_0
                     : sensitive                ? DType::q6_k
                                                : round_to_->type;
  if (columns % kQuantBlock != 0)
    throw Error(ErrorKind::unsupported, checkpoint_.file_of(parts[0].name), parts[0].name,
                "columns of a multiple of 32 to round to blocks", std::to_string(columns));
  std::vector<RoundedTensor> blocks;
  blocks.reserve(views.size());
  std::vector<const TensorView*> to;
  for (const TensorView* view : views) {
    const std::vector<float> importance = round_to_->importance == nullptr
                                              ? std::vector<float>()
                                              : round_to_->importance->of(canonical(view->name));
    blocks.emplace_back(*view, stored.transposed, type, importance, threads_,
                        checkpoint_.file_of(view->name));
    to.push_back(&blocks.back().view);
    names_->add(group, canonical(view->name), *to.back(), digest_matrix(*to.back(), threads_));
    checkpoint_.drop(*view);
  }
  return Matrix(to, static_cast<size_t>(columns), threads_, static_cast<size_t>(stored.heads));
}

// Blocks stay what they are under the contract ggml, next to their like; otherwise they are
// widened. Rows are digested by the threads that pack them, while they are in their caches; and a
// thread that waits for the system to clear memory leaves the other one to compute.
Matrix WeightLoader::of_one_type(const std::string& group, const std::vector<Part>& parts,
                                 const std::vector<const TensorView*>& views, int64_t columns,
                                 Stored stored) {
  const auto differs = [&](const TensorView* v) { return v->dtype != views[0]->dtype; };
  const bool mixed = std::ranges::any_of(views, differs);
  const bool keep = contract_ == Contract::ggml && !mixed;
  std::vector<Widened> widened;
  widened.reserve(views.size());
  std::vector<const TensorView*> plain;
  for (const TensorView* view : views) {
    const bool wide = is_block_dtype(view->dtype) && !keep;
    if (wide) widened.emplace_back(*view, threads_);
    plain.push_back(wide ? &widened.back().view : view);
    if (plain.back()->dtype != plain[0]->dtype) {
      throw Error(ErrorKind::unsupported, checkpoint_.file_of(parts[plain.size() - 1].name),
                  parts[plain.size() - 1].name,
                  "dtype " + views[0]->dtype_text + " like " + views[0]->name, view->dtype_text);
    }
  }
  MatrixDigester digester(views);
  const auto digest = [&](size_t i, size_t n) { digester.add(part_of(digester.slabs(), n, i)); };
  Matrix matrix = stored.transposed ? Matrix::transposed(*plain[0], threads_, digest)
                                    : Matrix(plain, static_cast<size_t>(columns), threads_,
                                             static_cast<size_t>(stored.heads), digest);
  const std::vector<Sha256> hashes = digester.result();
  for (size_t i = 0; i < views.size(); ++i) {
    names_->add(group, canonical(views[i]->name), *views[i], hashes[i]);
    checkpoint_.drop(*views[i]);
  }
  return matrix;
}

// The matrix of all parts, or, where they have types of their own, those of some after another.
Matrix WeightLoader::of_packed(const std::vector<Part>& parts, size_t columns,
                               std::optional<WeightType> type) const {
  std::vector<Matrix> matrices;
  for (size_t first = 0; first < parts.size();) {
    size_t end = parts.size();
    while (end > first + 1 && !has_packed_matrix(checkpoint_, joined(parts, first, end))) --end;
    if (end == first + 1 && !has_packed_matrix(checkpoint_, joined(parts, first, end)))
      end = parts.size();  // the error names all of them
    size_t rows = 0;
    for (size_t i = first; i < end; ++i) rows += static_cast<size_t>(parts[i].rows);
    matrices.push_back(packed_matrix(checkpoint_, joined(parts, first, end), type,
                                     contract_ == Contract::ggml, rows, columns));
    if (end < parts.size() && rows % kLanes != 0)
      throw Error(ErrorKind::format, checkpoint_.source(), joined(parts, first, end),
                  "a multiple of 16 rows before others", std::to_string(rows));
    first = end;
  }
  return matrices.size() == 1 ? std::move(matrices[0]) : Matrix::stacked(std::move(matrices));
}

// What is written need not be held.
void WeightLoader::write(const std::vector<Part>& parts, Matrix* matrix) {
  size_t first = 0;
  const auto one = [&](const Matrix& m) {
    size_t end = first;
    for (size_t rows = 0; rows < m.rows(); ++end) rows += static_cast<size_t>(parts[end].rows);
    writer_->add(joined(parts, first, end), m);
    first = end;
  };
  if (matrix->parts().empty()) one(*matrix);
  for (const Matrix& part : matrix->parts()) one(part);
  *matrix = Matrix::packed(matrix->type(), matrix->rows(), matrix->columns(), nullptr, nullptr);
}

void WeightLoader::note_types(const std::vector<Part>& parts, const Matrix& matrix) {
  size_t row = 0;
  for (const Part& part : parts) {
    WeightType type = matrix.type();
    size_t end = 0;
    for (const Matrix& m : matrix.parts()) {
      if (row >= end && row < end + m.rows()) type = m.type();
      end += m.rows();
    }
    types_.emplace_back(canonical(part.name), type);
    row += static_cast<size_t>(part.rows);
  }
}

// A part of a stacked matrix lies within one of those it is stacked of.
void WeightLoader::note_loaded(const std::vector<Part>& parts, const Matrix& matrix) {
  const auto alias = [](const Matrix& m) {
    return Matrix::packed(m.type(), m.rows(), m.columns(), m.all().data(), nullptr);
  };
  size_t row = 0;
  for (const Part& part : parts) {
    const Matrix* within = &matrix;
    size_t first = row;
    for (const Matrix& m : matrix.parts()) {
      within = &m;
      if (first < m.rows()) break;
      first -= m.rows();
    }
    loaded_.push_back({canonical(part.name),
                       part.rows,
                       static_cast<int64_t>(matrix.columns()),
                       alias(*within),
                       first,
                       {}});
    row += static_cast<size_t>(part.rows);
  }
}

namespace {

// The matrix of a packed checkpoint that part `at` stands in: that of all parts, or of some after
// another.
void find_packed(const Checkpoint& checkpoint, const std::vector<WeightLoader::Part>& parts,
                 size_t at, WeightNeed* need) {
  for (size_t first = 0; first <= at; ++first) {
    for (size_t end = parts.size(); end > at; --end) {
      const std::string name = joined(parts, first, end);
      if (!has_packed_matrix(checkpoint, name)) continue;
      need->matrix = name;
      for (size_t i = first; i < end; ++i) {
        if (i < at) need->first_row += parts[i].rows;
        need->matrix_rows += parts[i].rows;
      }
      return;
    }
  }
  throw Error(ErrorKind::format, checkpoint.source(), parts[at].name, "a packed matrix of it",
              "none");
}

}  // namespace

void WeightLoader::note(const std::vector<Part>& parts, int64_t columns, Stored stored,
                        bool rounded) const {
  for (size_t i = 0; i < parts.size(); ++i) {
    const Part& part = parts[i];
    WeightNeed need = {};
    need.name = part.name;
    need.canonical = canonical(part.name);
    need.rows = part.rows;
    need.columns = columns;
    need.transposed = stored.transposed;
    need.looked_up = !rounded;
    need.heads = stored.heads;
    if (checkpoint_.packed())
      find_packed(checkpoint_, parts, i, &need);
    else if (stored.transposed)
      checkpoint_.require(part.name, {columns, part.rows});
    else
      checkpoint_.require(part.name, {part.rows, columns}, true);
    needs_->push_back(std::move(need));
  }
}

Matrix WeightLoader::load(const std::string& group, const std::vector<Part>& parts, int64_t columns,
                          Stored stored, bool rounded) {
  if (needs_ != nullptr) {
    note(parts, columns, stored, rounded);
    size_t rows = 0;
    for (const Part& part : parts) rows += static_cast<size_t>(part.rows);
    return Matrix::packed(WeightType::f32, rows, static_cast<size_t>(columns), nullptr, nullptr);
  }
  names_->add_group(group);
  const std::optional<WeightType> type = rounded ? rounded_type(contract_, group) : std::nullopt;
  Matrix matrix = checkpoint_.packed() ? of_packed(parts, static_cast<size_t>(columns), type)
                                       : pack(group, parts, columns, stored, rounded);
  if (not_bf16_.empty() && checkpoint_.packed() && rounded && matrix.type() != WeightType::bf16) {
    not_bf16_ = parts[0].name;
    its_type_ = weight_type_name(matrix.type());
  }
  if (type && !checkpoint_.packed()) {
    try {
      matrix = matrix.quantized(*type, threads_);
    } catch (const WeightError& e) {
      refuse(e, parts, stored);
    }
  }
  bytes_ += matrix.bytes();
  if (rounded) note_types(parts, matrix);
  if (writer_ != nullptr) {
    write(parts, &matrix);
  } else if (rounded && matrix.parts().empty()) {
    matrices_.push_back(matrix.all());
  }
  if (writer_ == nullptr) note_loaded(parts, matrix);
  for (const Matrix& part : matrix.parts()) matrices_.push_back(part.all());
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
  loaded_.push_back({canonical(view.name), 1, n, {}, 0, result});
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
  LoadedWeight& noted = loaded_.back();
  if (needs_ != nullptr) needs_->back().heads = heads;
  for (size_t i = 0; i < stored.size(); ++i)
    result.bias.push_back(stored[interleaved_row(i, stored.size(), static_cast<size_t>(heads))]);
  noted.vector = result.bias;
  return result;
}

// By the weights as they were before they were packed or rounded.
void WeightLoader::name(Model& model) const {
  WeightFingerprints::Names names = names_->fingerprints();
  if (checkpoint_.packed()) {
    for (auto& [group, text] : names) text = packed_fingerprint(checkpoint_, group);
  }
  if (writer_ != nullptr) {
    for (const auto& [group, text] : names) writer_->note_fingerprint(group, text);
  }
  model.fingerprints_ = with_model_fingerprint(std::move(names), model.config().canonical());
}

void WeightLoader::finish(Model& model) {
  name(model);
  model.loaded_ = std::move(loaded_);
  model.weight_bytes_ = bytes_;
  for (const std::span<const std::byte> matrix : matrices_) {
    if (model.config().tied_head || matrix.data() != model.embedding_.all().data())
      model.matrices_.push_back(matrix);
  }
  const bool of_weights =
      contract_ == Contract::q8 || contract_ == Contract::q4 || contract_ == Contract::ggml;
  model.contract_ = of_weights ? contract_ : Contract::f32;
  if (contract_ == Contract::ggml) {
    model.types_ = types_text(types_);
    if (std::ranges::none_of(types_, [](const auto& t) { return is_quantized(t.second); }))
      throw Error(ErrorKind::unsupported, checkpoint_.source(), "weights",
                  "some in types of ggml for the contract ggml", "none");
  }
  if (writer_ != nullptr) writer_->note_contract(model.contract_);
  if (!not_bf16_.empty()) model.not_bf16_ = {checkpoint_.file_of(not_bf16_), not_bf16_, its_type_};
}

}  // namespace stet
