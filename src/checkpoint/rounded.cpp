#include "src/checkpoint/rounded.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/quantize.hpp"
#include "src/checkpoint/tensor_numbers.hpp"
#include "stet/base/error.hpp"
#include "stet/kernels/ggml.hpp"
#include "stet/kernels/numbers.hpp"
#include "stet/threads/team.hpp"

namespace stet {
namespace {

void read_row(const TensorView& t, bool transposed, size_t rows, size_t row,
              std::vector<float>& to) {
  if (is_block_dtype(t.dtype)) {
    const GgmlType type = *ggml_type(ggml_number(t.dtype));
    const size_t blocks = to.size() / type.elements;
    dequantize_ggml(ggml_number(t.dtype), row_of(t, row).data(), blocks, to.data());
    return;
  }
  if (t.paired_heads > 0) row = paired_row(row, rows, t.paired_heads);
  for (size_t c = 0; c < to.size(); ++c)
    to[c] = number_at(t, transposed ? c * rows + row : row * to.size() + c);
}

void round_block(DType to, const float* x, const float* importance, std::byte* out) {
  auto* const bytes = reinterpret_cast<uint8_t*>(out);
  if (to == DType::q8_0) {
    const QuantizedBlock block =
        round_block_q8(std::span<const float, kQuantBlock>(x, kQuantBlock));
    std::memcpy(bytes, &block.scale, sizeof block.scale);
    for (int i = 0; i < kQuantBlock; ++i) bytes[2 + i] = block.u[i] ^ 0x80;
    return;
  }
  quantize_ggml(ggml_number(to), x, 1, out, importance);
}

}  // namespace

OwnedTensor rounded_to_blocks(const TensorView& from, bool transposed, DType to,
                              std::span<const float> importance, int threads,
                              const std::string& file) {
  TensorView view = from;
  if (transposed) std::swap(view.shape.at(0), view.shape.at(1));
  const auto rows = static_cast<size_t>(view.shape.at(0)),
             columns = static_cast<size_t>(view.shape.at(1));
  const GgmlType type = *ggml_type(ggml_number(to));
  Memory memory(static_cast<size_t>(tensor_bytes(to, view.shape).value()));
  const size_t blocks = columns / type.elements;
  const float limit = to == DType::mxfp4 ? ggml_limit(ggml_number(to)) : 65520;
  run_each(threads, rows, [&](size_t r) {
    std::vector<float> row(columns);
    read_row(from, transposed, rows, r, row);
    const auto fits = [limit](float x) { return x > -limit && x < limit; };
    const auto bad = std::ranges::find_if_not(row, fits);
    if (bad != row.end()) {
      const auto c = static_cast<size_t>(bad - row.begin());
      throw Error(ErrorKind::unsupported, file,
                  fmt::format("{}[{}, {}]", from.name, transposed ? c : r, transposed ? r : c),
                  fmt::format("less than {:g} in magnitude for {}", limit, dtype_name(to)),
                  fmt::format("{:g}", *bad));
    }
    for (size_t b = 0; b < blocks; ++b) {
      const size_t first = b * type.elements;
      round_block(to, row.data() + first, importance.empty() ? nullptr : &importance[first],
                  memory.data() + (r * blocks + b) * type.bytes);
    }
  });
  view.dtype = to;
  view.dtype_text = dtype_name(to);
  // The size of `memory` is rounded up to whole pages.
  view.bytes = {memory.data(), rows * blocks * type.bytes};
  view.paired_heads = 0;
  return {std::move(view), std::move(memory)};
}

}  // namespace stet
