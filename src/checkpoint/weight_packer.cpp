#include "src/checkpoint/weight_packer.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "src/checkpoint/expert_slices.hpp"
#include "src/checkpoint/rounded.hpp"
#include "src/checkpoint/tensor_numbers.hpp"
#include "stet/base/error.hpp"
#include "stet/kernels/ggml.hpp"
#include "stet/kernels/numbers.hpp"
#include "stet/threads/team.hpp"

namespace stet {
namespace {

using Request = WeightLoader::MatrixRequest;

// Embeddings and head influence the output most, and are a small part of a large model.
bool is_sensitive(const std::string& group) { return group == "embeddings" || group == "head"; }

void widen_row(DType type, const std::byte* from, size_t columns, float* to) {
  if (is_block_dtype(type)) {
    const uint32_t number = ggml_number(type);
    return dequantize_ggml(number, from, columns / ggml_type(number)->elements, to);
  }
  TensorView row;
  row.dtype = type;
  row.bytes = {from, columns * dtype_size(type)};
  for (size_t i = 0; i < columns; ++i) to[i] = number_at(row, i);
}

// Widens blocks of ggml, bfloat16 or float16 to float32.
OwnedTensor widened(const TensorView& from, int threads) {
  const auto rows = static_cast<size_t>(from.shape.at(0)),
             columns = static_cast<size_t>(from.shape.at(1));
  OwnedTensor to{from, Memory(rows * columns * sizeof(float))};
  run_each(threads, rows, [&](size_t row) {
    widen_row(from.dtype, row_of(from, row).data(), columns, to.memory.as<float>() + row * columns);
  });
  to.view.dtype = DType::f32;
  to.view.dtype_text = dtype_name(DType::f32);
  // The size of to.memory is rounded up to whole pages.
  to.view.bytes = {to.memory.data(), rows * columns * sizeof(float)};
  to.view.paired_heads = 0;
  return to;
}

// The numbers of mxfp4 as bfloat16, which holds all of them.
OwnedTensor narrowed(OwnedTensor wide, int threads) {
  const auto rows = static_cast<size_t>(wide.view.shape.at(0)),
             columns = static_cast<size_t>(wide.view.shape.at(1));
  OwnedTensor to{wide.view, Memory(rows * columns * sizeof(uint16_t))};
  run_each(threads, rows, [&](size_t row) {
    for (size_t i = row * columns; i < (row + 1) * columns; ++i)
      to.memory.as<uint16_t>()[i] = round_bf16(wide.memory.as<float>()[i]);
  });
  to.view.dtype = DType::bf16;
  to.view.dtype_text = dtype_name(DType::bf16);
  to.view.bytes = {to.memory.data(), rows * columns * sizeof(uint16_t)};
  return to;
}

// Returns true if the kernels take the blocks of `type` unchanged under this contract.
bool is_kept(DType type, Contract contract) {
  return contract == Contract::ggml ||
         (type == DType::mxfp4 && (contract == Contract::f32 || contract == Contract::f32_blas));
}

// Returns the ends of runs of tensors that become matrices of their own. Consecutive tensors of one
// type form a run. A matrix can be split only where its rows fill whole blocks.
std::vector<size_t> ends_of_runs(const Request& request,
                                 const std::vector<const TensorView*>& views, bool types_apart) {
  const bool whole = std::ranges::all_of(
      request.tensors, [](const auto& tensor) { return tensor.rows % kLanes == 0; });
  std::vector<size_t> ends;
  for (size_t i = 1; i < views.size(); ++i) {
    if (types_apart && whole && views[i]->dtype != views[i - 1]->dtype) ends.push_back(i);
  }
  ends.push_back(views.size());
  return ends;
}

}  // namespace

std::optional<WeightType> rounded_type(Contract contract, const Request& request) {
  if (request.looked_up || request.exact || (contract != Contract::q8 && contract != Contract::q4))
    return std::nullopt;
  return contract == Contract::q8 || is_sensitive(request.group) ? WeightType::q8 : WeightType::q4;
}

std::string joined_names(const Request& request, size_t first, size_t end) {
  if (!request.experts.empty()) return request.experts;
  std::string name;
  for (size_t i = first; i < end; ++i) name += (i == first ? "" : "+") + request.tensors[i].name;
  return name;
}

Matrix WeightPacker::pack(const Request& request, std::byte* place, bool wide) const {
  if (!request.experts.empty()) return pack_experts(request);
  std::vector<OwnedTensor> tensors;
  for (const WeightLoader::Stored& t : request.tensors) {
    const TensorView& found = request.transposed
                                  ? checkpoint_.require(t.name, {request.columns, t.rows})
                                  : checkpoint_.require(t.name, {t.rows, request.columns}, true);
    tensors.push_back(checkpoint_.read(found));
  }
  Views views;
  for (const OwnedTensor& tensor : tensors) {
    refuse_infinite(tensor.view);
    views.push_back(&tensor.view);
  }
  if (rounds(request)) return pack_rounded(request, views);
  const std::optional<WeightType> type = rounded_type(contract_, request);
  std::vector<Matrix> matrices;
  size_t first = 0;
  const bool types_apart =
      std::ranges::any_of(views, [&](const auto* v) { return is_kept(v->dtype, contract_); });
  for (const size_t end : ends_of_runs(request, views, types_apart)) {
    const bool whole = first == 0 && end == views.size();
    matrices.push_back(
        of_one_type(request, views, first, end, whole && !type ? place : nullptr, wide));
    first = end;
  }
  Matrix matrix =
      matrices.size() == 1 ? std::move(matrices[0]) : Matrix::stacked(std::move(matrices));
  if (!type) return matrix;
  try {
    return matrix.quantized(*type, threads_);
  } catch (const WeightError& e) {
    refuse(e, request);
  }
}

bool WeightPacker::rounds(const Request& request) const {
  return blocks_ && !request.looked_up && !request.exact &&
         (blocks_->type != DType::mxfp4 || is_of_expert(request.tensors[0].canonical));
}

// Packs each expert on one thread, so that only a few experts are in memory twice. Experts of
// different types are all widened.
Matrix WeightPacker::pack_experts(const Request& request) const {
  const auto& tensors = request.tensors;
  const TensorView& first =
      checkpoint_.require(tensors[0].name, {tensors[0].rows, request.columns}, true);
  bool differ = false;
  for (const WeightLoader::Stored& t : tensors) {
    const TensorView& found = checkpoint_.require(t.name, {t.rows, request.columns}, true);
    differ = differ || found.dtype != first.dtype;
  }
  return Matrix::of_experts(tensors.size(), threads_, [&](size_t i, std::byte* place) {
    return pack({request.group, {tensors[i]}, request.columns}, place, differ);
  });
}

void WeightPacker::add_fingerprint(const std::string& group, const std::string& name,
                                   const TensorView& tensor, const Sha256& hash) const {
  const std::lock_guard lock(fingerprints_mutex_);
  fingerprints_.add(group, name, tensor, hash);
}

// Fingerprints the rounded tensors, so that a GGUF file of these blocks has the same name.
Matrix WeightPacker::pack_rounded(const Request& request, const Views& views) const {
  const auto columns = static_cast<size_t>(request.columns);
  const DType type = blocks_->type == DType::mxfp4 ? DType::mxfp4
                     : columns % kSuperBlock != 0  ? DType::q8_0
                     : is_sensitive(request.group) ? DType::q6_k
                                                   : blocks_->type;
  if (columns % kQuantBlock != 0)
    throw Error(ErrorKind::unsupported, checkpoint_.file_of(request.tensors[0].name),
                request.tensors[0].name, "columns of a multiple of 32 to round to blocks",
                std::to_string(columns));
  std::vector<OwnedTensor> rounded;
  for (size_t i = 0; i < views.size(); ++i) {
    const std::string& name = request.tensors[i].canonical;
    const std::vector<float> importance =
        blocks_->importance == nullptr ? std::vector<float>() : blocks_->importance->of(name);
    rounded.push_back(rounded_to_blocks(*views[i], request.transposed, type, importance, threads_,
                                        checkpoint_.file_of(views[i]->name)));
    const TensorView& view = rounded.back().view;
    add_fingerprint(request.group, name, view, digest_matrix(view, threads_));
    checkpoint_.drop(*views[i]);
  }
  Views to;
  for (const OwnedTensor& tensor : rounded) to.push_back(&tensor.view);
  return Matrix(to, columns, threads_, static_cast<size_t>(request.heads));
}

// Keeps tensors as they are if all have one type, blocks only under the contract ggml. Otherwise
// widens them. The threads that pack rows also digest them, while the rows are in their caches.
// While one thread waits for the system to clear memory, the others compute.
Matrix WeightPacker::of_one_type(const Request& request, const Views& all, size_t first, size_t end,
                                 std::byte* place, bool wide_all) const {
  const Views views(all.begin() + static_cast<ptrdiff_t>(first),
                    all.begin() + static_cast<ptrdiff_t>(end));
  const bool mixed = wide_all || std::ranges::any_of(views, [&](const TensorView* v) {
                       return v->dtype != views[0]->dtype;
                     });
  const bool keep = is_kept(views[0]->dtype, contract_) && !request.exact && !mixed;
  std::vector<OwnedTensor> wide;
  wide.reserve(views.size());
  Views plain;
  for (const TensorView* view : views) {
    if (mixed ? view->dtype != DType::f32 : is_block_dtype(view->dtype) && !keep) {
      const bool narrow = !mixed && view->dtype == DType::mxfp4 && contract_ == Contract::bf16;
      wide.push_back(widened(*view, threads_));
      if (narrow) wide.back() = narrowed(std::move(wide.back()), threads_);
      view = &wide.back().view;
    }
    plain.push_back(view);
  }
  MatrixDigester digester(views);
  const auto digest = [&](size_t i, size_t n) { digester.add(part_of(digester.slabs(), n, i)); };
  Matrix matrix = request.transposed ? Matrix::transposed(*plain[0], threads_, digest)
                                     : Matrix(plain, static_cast<size_t>(request.columns), threads_,
                                              static_cast<size_t>(request.heads), digest, place);
  const std::vector<Sha256> hashes = digester.result();
  for (size_t i = 0; i < views.size(); ++i) {
    add_fingerprint(request.group, request.tensors[first + i].canonical, *views[i], hashes[i]);
    checkpoint_.drop(*views[i]);
  }
  return matrix;
}

// Refuses MXFP4 blocks with an infinite weight. The greatest weight is 12 times the scale, which is
// infinite from an exponent of 253 on.
void WeightPacker::refuse_infinite(const TensorView& tensor) const {
  if (tensor.dtype != DType::mxfp4) return;
  constexpr size_t kBytes = 17;
  const auto rows = static_cast<size_t>(tensor.shape.at(0));
  run_each(threads_, rows, [&](size_t row) {
    const std::span<const std::byte> blocks = row_of(tensor, row);
    for (size_t at = 0; at < blocks.size(); at += kBytes) {
      if (blocks[at] <= std::byte{252}) continue;
      throw Error(ErrorKind::unsupported, checkpoint_.file_of(tensor.name),
                  fmt::format("{}, row {}, block {}", tensor.name, row, at / kBytes),
                  "an exponent of at most 252 for MXFP4, whose weights are finite",
                  std::to_string(static_cast<int>(blocks[at])));
    }
  });
}

// Rethrows the error with the tensor's name and the weight's place in it.
void WeightPacker::refuse(const WeightError& e, const Request& request) const {
  size_t row = e.row;
  if (request.heads > 0)
    row = interleaved_row(row, static_cast<size_t>(request.rows()),
                          static_cast<size_t>(request.heads));
  auto tensor = request.tensors.begin();
  for (; row >= static_cast<size_t>(tensor->rows); ++tensor)
    row -= static_cast<size_t>(tensor->rows);
  const size_t first = request.transposed ? e.column : row,
               second = request.transposed ? row : e.column;
  throw Error(e.kind, checkpoint_.file_of(tensor->name),
              tensor->name + "[" + std::to_string(first) + ", " + std::to_string(second) + "]",
              e.expected, e.found);
}

}  // namespace stet
