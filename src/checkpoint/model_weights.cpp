#include "src/checkpoint/model_weights.hpp"

#include <algorithm>

#include "src/checkpoint/packed.hpp"
#include "src/checkpoint/tensor_numbers.hpp"
#include "src/checkpoint/tensor_types.hpp"
#include "src/checkpoint/weight_guard.hpp"
#include "src/checkpoint/weight_packer.hpp"
#include "src/threads/interrupt_check.hpp"
#include "stet/base/error.hpp"

namespace stet {
namespace {

Vector widened(const TensorView& view, size_t n) {
  Vector result(n);
  for (size_t i = 0; i < n; ++i) result[i] = number_at(view, i);
  return result;
}

// Reorders interleaved heads to all queries, then all keys, then all values.
Vector apart(const Vector& stored, int64_t heads) {
  Vector result(stored.size());
  for (size_t i = 0; i < stored.size(); ++i)
    result[i] = stored[interleaved_row(i, stored.size(), static_cast<size_t>(heads))];
  return result;
}

// Finds a row of a matrix that may be stacked from parts. Returns the part that holds it, and the
// row's index there.
std::pair<const Matrix*, size_t> place_of(const Matrix& matrix, size_t row) {
  for (const Matrix& part : matrix.parts()) {
    if (row < part.rows()) return {&part, row};
    row -= part.rows();
  }
  return {&matrix, row};
}

}  // namespace

ModelWeights::ModelWeights(const Checkpoint& checkpoint, std::string prefix, Contract contract,
                           int threads, std::optional<BlockRounding> blocks)
    : WeightLoader(std::move(prefix)),
      contract_(checkpoint.packed() ? packed_contract(checkpoint) : contract),
      checkpoint_(checkpoint),
      threads_(threads),
      fingerprints_(std::make_unique<WeightFingerprints>()),
      packer_(
          std::make_unique<WeightPacker>(checkpoint, contract_, threads, blocks, *fingerprints_)) {}

ModelWeights::~ModelWeights() = default;

bool ModelWeights::has(const std::string& tensor) const {
  return checkpoint_.find(tensor) != nullptr;
}

// Returns the matrix of all tensors of the request. If their types differ, the packed file holds a
// matrix for each run of tensors, and the result stacks these.
Matrix ModelWeights::packed(const MatrixRequest& request) const {
  std::vector<Matrix> matrices;
  for (size_t first = 0; first < request.tensors.size();) {
    size_t end = request.tensors.size();
    while (end > first + 1 && !has_packed_matrix(checkpoint_, joined_names(request, first, end)))
      --end;
    if (end == first + 1 && !has_packed_matrix(checkpoint_, joined_names(request, first, end)))
      end = request.tensors.size();  // no matrix begins with this tensor: fail with all names
    size_t rows = 0;
    for (size_t i = first; i < end; ++i)
      rows += static_cast<size_t>(request.step(request.tensors[i]));
    matrices.push_back(packed_matrix(checkpoint_, joined_names(request, first, end),
                                     rounded_type(contract_, request), contract_ == Contract::ggml,
                                     rows, static_cast<size_t>(request.columns)));
    first = end;
  }
  return matrices.size() == 1 ? std::move(matrices[0]) : Matrix::stacked(std::move(matrices));
}

// Leaves the table in its file. If the file stores it in another form, keeps it in memory.
Matrix ModelWeights::in_place(const MatrixRequest& request) {
  const Stored& tensor = request.tensors[0];
  const auto rows = static_cast<size_t>(tensor.rows),
             columns = static_cast<size_t>(request.columns);
  const auto own = std::make_shared<OwnedTensor>(
      checkpoint_.read(checkpoint_.require(tensor.name, {tensor.rows, request.columns}, true)));
  const TensorView& view = own->view;
  fingerprints_->add(request.group, tensor.canonical, view, digest_matrix(view, threads_));
  const auto file = std::static_pointer_cast<const FileBytes>(checkpoint_.owner_of(tensor.name));
  const std::span<const std::byte> all = file->bytes();
  const bool in_file =
      view.bytes.data() >= all.data() && view.bytes.data() < all.data() + all.size();
  if (in_file && file->mapping() != nullptr)
    mapped_table_ = std::make_unique<const MappedTable>(
        MappedTable{file->mapping(), file->path(), tensor.name, view.bytes, digest_of(view.bytes)});
  checkpoint_.drop(view);
  const std::shared_ptr<const void> owner =
      in_file ? std::shared_ptr<const void>(file) : std::shared_ptr<const void>(own);
  return Matrix::in_place(view.dtype, rows, columns, view.bytes.data(), owner);
}

std::unique_ptr<const MappedTable> ModelWeights::take_mapped_table() {
  return std::move(mapped_table_);
}

Matrix ModelWeights::load(const MatrixRequest& request) {
  check_interrupt();
  fingerprints_->add_group(request.group);
  Matrix matrix = checkpoint_.packed() ? packed(request)
                  : request.in_place   ? in_place(request)
                                       : packer_->pack(request);
  if (!request.looked_up && !request.exact) note_types(request, matrix);
  return keep(request, std::move(matrix));
}

Matrix ModelWeights::keep(const MatrixRequest& request, Matrix matrix) {
  bytes_ += matrix.bytes();
  if (!request.experts.empty())
    expert_matrices_.push_back(matrix.all());
  else if (!request.looked_up && matrix.parts().empty())
    matrices_.push_back(matrix.all());
  for (const Matrix& part : matrix.parts()) matrices_.push_back(part.all());
  note_loaded(request, matrix);
  return matrix;
}

void ModelWeights::note_types(const MatrixRequest& request, const Matrix& matrix) {
  size_t row = 0;
  for (const Stored& tensor : request.tensors) {
    types_.emplace_back(tensor.canonical, place_of(matrix, row).first->type());
    row += static_cast<size_t>(tensor.rows);
    if (!request.experts.empty()) break;  // all experts have one type
  }
  if (!not_bf16_.empty()) return;
  if (checkpoint_.packed()) {
    if (matrix.type() == WeightType::bf16) return;
    its_type_ = weight_type_name(matrix.type());
    if (matrix.type() == WeightType::mxfp4)
      its_type_ += "; take the checkpoint that this one was packed from";
    not_bf16_ = request.tensors[0].name;
    return;
  }
  for (const Stored& stored : request.tensors) {
    const TensorView& tensor = *checkpoint_.find(stored.name);
    const bool same = tensor.dtype == DType::mxfp4 && matrix.type() == WeightType::bf16;
    if (tensor.dtype == DType::bf16 || same) continue;
    its_type_ = tensor.dtype_text;
    not_bf16_ = stored.name;
    return;
  }
}

void ModelWeights::note_loaded(const MatrixRequest& request, const Matrix& matrix) {
  size_t row = 0;
  for (const Stored& tensor : request.tensors) {
    const auto [within, first] = place_of(matrix, row);
    Matrix shown = within->stored_rows()
                       ? Matrix::in_place(*within->stored_rows(), within->rows(), within->columns(),
                                          within->all().data(), nullptr)
                       : Matrix::packed(within->type(), within->rows(), within->columns(),
                                        within->all().data(), nullptr);
    loaded_.push_back(
        {tensor.canonical, tensor.rows, request.columns, std::move(shown), first, {}});
    row += static_cast<size_t>(request.step(tensor));
  }
}

Vector ModelWeights::load(const VectorRequest& request) {
  const OwnedTensor stored =
      checkpoint_.read(checkpoint_.require(request.tensor.name, {request.tensor.rows}));
  Vector vector = widened(stored.view, static_cast<size_t>(request.tensor.rows));
  if (request.offset != 0) add_offset(vector, request.offset);
  if (request.heads > 0) vector = apart(vector, request.heads);
  fingerprints_->add(request.group, request.tensor.canonical, stored.view,
                     digest_vector(stored.view));
  keep(request, stored.view, vector);
  return vector;
}

void ModelWeights::keep(const VectorRequest& request, const TensorView&, const Vector& vector) {
  bytes_ += vector.size() * sizeof(float);
  loaded_.push_back({request.tensor.canonical, 1, request.tensor.rows, {}, 0, vector});
}

// Sets the model's fingerprints, which are those of the weights before packing or rounding.
void ModelWeights::name(Model& model) const {
  WeightFingerprints::Names names = fingerprints_->fingerprints();
  if (checkpoint_.packed()) {
    for (auto& [group, text] : names) text = packed_fingerprint(checkpoint_, group);
  }
  model.fingerprints_ = with_model_fingerprint(std::move(names), model.config().canonical());
}

void ModelWeights::finish(Model& model) {
  name(model);
  model.loaded_ = std::move(loaded_);
  model.weight_bytes_ = bytes_;
  for (const std::span<const std::byte> matrix : matrices_) {
    if (model.config().tied_head || matrix.data() != model.embedding_.all().data())
      model.matrices_.push_back(matrix);
  }
  for (const std::span<const std::byte> all : expert_matrices_) {
    const ExpertShape& experts = model.config().experts;
    model.matrices_.push_back(all.first(all.size() / static_cast<size_t>(experts.count) *
                                        static_cast<size_t>(experts.chosen)));
  }
  for (const std::span<const std::byte> matrix : model.matrices_)
    model.bytes_per_token_ += matrix.size();
  const bool of_weights =
      contract_ == Contract::q8 || contract_ == Contract::q4 || contract_ == Contract::ggml;
  model.contract_ = of_weights ? contract_ : Contract::f32;
  if (contract_ == Contract::ggml) {
    model.types_ = types_text(types_);
    if (std::ranges::none_of(types_, [](const auto& t) { return is_quantized(t.second); }))
      throw Error(ErrorKind::unsupported, checkpoint_.source(), "weights", "",
                  "the contract ggml needs weights in types of ggml, and this checkpoint has none");
  }
  if (!not_bf16_.empty()) model.not_bf16_ = {checkpoint_.file_of(not_bf16_), not_bf16_, its_type_};
}

// ---------------------------------------------------------------- written to a file

// Writes the matrix and returns one without bytes, since what is written need not be held.
Matrix WrittenWeights::keep(const MatrixRequest& request, Matrix matrix) {
  size_t first = 0;
  const auto write = [&](const Matrix& m) {
    if (!request.experts.empty()) return writer_.add(request.experts, m);
    size_t end = first;
    for (size_t rows = 0; rows < m.rows(); ++end)
      rows += static_cast<size_t>(request.tensors[end].rows);
    writer_.add(joined_names(request, first, end), m);
    first = end;
  };
  if (matrix.parts().empty()) write(matrix);
  for (const Matrix& part : matrix.parts()) write(part);
  return Matrix::packed(matrix.type(), matrix.rows(), matrix.columns(), nullptr, nullptr);
}

void WrittenWeights::keep(const VectorRequest&, const TensorView& stored, const Vector&) {
  writer_.add(stored);
}

void WrittenWeights::finish(Model& model) {
  ModelWeights::finish(model);
  for (const auto& [group, text] : fingerprints().fingerprints())
    writer_.note_fingerprint(group, text);
  writer_.note_contract(model.contract());
}

}  // namespace stet
