#include "src/checkpoint/model_weights.hpp"
#include "src/checkpoint/packed.hpp"
#include "src/checkpoint/weight_packer.hpp"
#include "stet/base/error.hpp"

namespace stet {
namespace {

// Finds the matrix of a packed checkpoint that holds tensor `at`: a matrix of all tensors of the
// request or of some consecutive ones.
void find_packed(const Checkpoint& checkpoint, const WeightLoader::MatrixRequest& request,
                 size_t at, WeightSpec* need) {
  const auto& tensors = request.tensors;
  for (size_t first = 0; first <= at; ++first) {
    for (size_t end = tensors.size(); end > at; --end) {
      const std::string name = joined_names(request, first, end);
      if (!has_packed_matrix(checkpoint, name)) continue;
      need->matrix = name;
      for (size_t i = first; i < end; ++i) {
        if (i < at) need->first_row += request.step(tensors[i]);
        need->matrix_rows += request.step(tensors[i]);
      }
      return;
    }
  }
  throw Error(ErrorKind::format, checkpoint.source(), tensors[at].name, "a packed matrix of it",
              "none");
}

}  // namespace

bool WeightNeeds::has(const std::string& tensor) const {
  return checkpoint_.find(tensor) != nullptr;
}

Matrix WeightNeeds::load(const MatrixRequest& request) {
  for (size_t i = 0; i < request.tensors.size(); ++i) {
    const Stored& tensor = request.tensors[i];
    WeightSpec need = {};
    need.name = tensor.name;
    need.canonical = tensor.canonical;
    need.rows = tensor.rows;
    need.columns = request.columns;
    need.transposed = request.transposed;
    need.looked_up = request.looked_up;
    need.in_place = request.in_place;
    need.heads = request.heads;
    need.exact = request.exact;
    if (checkpoint_.packed())
      find_packed(checkpoint_, request, i, &need);
    else if (request.transposed)
      checkpoint_.require(tensor.name, {request.columns, tensor.rows});
    else
      checkpoint_.require(tensor.name, {tensor.rows, request.columns}, true);
    needs_.push_back(std::move(need));
  }
  return Matrix::packed(WeightType::f32, static_cast<size_t>(request.rows()),
                        static_cast<size_t>(request.columns), nullptr, nullptr);
}

Vector WeightNeeds::load(const VectorRequest& request) {
  const Stored& tensor = request.tensor;
  checkpoint_.require(tensor.name, {tensor.rows});
  WeightSpec need = {};
  need.name = tensor.name;
  need.canonical = tensor.canonical;
  need.rows = 1;
  need.columns = tensor.rows;
  need.is_vector = true;
  need.heads = request.heads;
  needs_.push_back(std::move(need));
  return Vector(static_cast<size_t>(tensor.rows));
}

}  // namespace stet
