#include "src/checkpoint/recurrent_tensors.hpp"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "src/checkpoint/tensor_numbers.hpp"
#include "stet/base/error.hpp"
#include "stet/kernels/math.hpp"
#include "stet/threads/team.hpp"

namespace stet {
namespace {

// A tensor made of another one. It has some of the rows in another order, all numbers in another
// shape, or -exp of each number.
struct DerivedTensor {
  TensorView view;
  SourceTensor from;
  std::vector<Range> rows = {};  // the rows of `from` to copy, in order; empty: all numbers
  bool negative_exp = false;
};

class DerivedTensors : public TensorSource {
 public:
  DerivedTensors(std::shared_ptr<const FileBytes> file, std::vector<DerivedTensor> entries)
      : TensorSource(std::move(file), views_of(entries)), entries_(std::move(entries)) {}

  OwnedTensor read(size_t index) const override {
    const DerivedTensor& e = entries_[index];
    OwnedTensor stored = e.from.source->read(e.from.index);
    const TensorView from = stored.view;
    if (e.rows.empty() && !e.negative_exp) {
      stored.view = e.view;
      stored.view.bytes = from.bytes;
      return stored;
    }
    OwnedTensor made{e.view, Memory(bytes_of(e.view))};
    std::byte* to = made.memory.data();
    made.view.bytes = {to, bytes_of(e.view)};
    if (e.negative_exp) {
      for (size_t i = 0; i < from.bytes.size() / dtype_size(from.dtype); ++i) {
        const auto a = static_cast<float>(-math::exp(static_cast<double>(number_at(from, i))));
        std::memcpy(to + i * sizeof a, &a, sizeof a);
      }
      return made;
    }
    for (const Range some : e.rows) {
      for (size_t row = some.begin; row < some.end; ++row) {
        const std::span<const std::byte> bytes = row_of(from, row);
        to = std::copy(bytes.begin(), bytes.end(), to);
      }
    }
    return made;
  }

 private:
  static size_t bytes_of(const TensorView& view) {
    return static_cast<size_t>(tensor_bytes(view.dtype, view.shape).value());
  }
  static std::vector<TensorView> views_of(const std::vector<DerivedTensor>& entries) {
    std::vector<TensorView> views;
    for (const DerivedTensor& e : entries) views.push_back(e.view);
    return views;
  }

  std::vector<DerivedTensor> entries_;
};

[[noreturn]] void refuse_shape(const SourceTensor& t, const std::string& expected) {
  throw Error(ErrorKind::format, t.source->file()->path(), t.view().name, expected,
              t.view().dtype_text + " " + shape_text(t.view().shape));
}

std::string name_before(const std::string& name, std::string_view ending) {
  return name.substr(0, name.size() - ending.size());
}

constexpr std::string_view kQueries = ".self_attn.q_proj.weight";

bool is_convolution(const std::string& name) {
  return name.ends_with(".linear_attn.conv1d.weight") || name.ends_with(".mamba.conv1d.weight") ||
         name.ends_with(".conv.conv.weight");
}

// Returns whether a tensor of queries has twice as many rows as their outputs have columns.
bool has_doubled_queries(const std::map<std::string, SourceTensor>& all, const SourceTensor& t) {
  const std::string at = name_before(t.view().name, kQueries) + ".self_attn.";
  const auto output = all.find(at + "o_proj.weight"), norm = all.find(at + "q_norm.weight");
  const std::vector<int64_t>& s = t.view().shape;
  return output != all.end() && norm != all.end() && s.size() == 2 &&
         output->second.view().shape.size() == 2 && norm->second.view().shape.size() == 1 &&
         s[0] == 2 * output->second.view().shape[1];
}

class Deriver {
 public:
  Deriver(const std::map<std::string, SourceTensor>& all, KeyHeads keys) : all_(all), keys_(keys) {}

  RecurrentTensors derive() {
    const bool gated = keys_.gated || std::ranges::any_of(all_, [](const auto& t) {
                         return t.first.find(".linear_attn.") != std::string::npos;
                       });
    for (const auto& [name, tensor] : all_) {
      const TensorView& v = tensor.view();
      if (!is_weight_dtype(v.dtype) && !is_block_dtype(v.dtype)) continue;
      if (name.ends_with(".A_log")) exponentiate(tensor);
      if (is_convolution(name)) flatten_convolution(tensor);
      for (const char* const ending : {".mamba.A", ".mamba.D", ".mamba.norm.weight"})
        if (name.ends_with(ending)) flatten(tensor);
      if (name.ends_with(kQkvz)) unpack_qkvz(tensor);
      if (name.ends_with(kBa)) unpack_ba(tensor);
      if (gated && name.ends_with(kQueries)) split_gate(tensor);
      if (name.ends_with(kShared)) split_shared(tensor);
      if (name.ends_with(kSharedOut))
        put(tensor, name_before(name, kSharedOut) + ".mlp.down_proj.weight", v.shape);
    }
    for (auto& [source, entries] : made_)
      result_.sources.push_back(
          std::make_unique<const DerivedTensors>(source->file(), std::move(entries)));
    return std::move(result_);
  }

 private:
  static constexpr std::string_view kQkvz = ".linear_attn.in_proj_qkvz.weight",
                                    kBa = ".linear_attn.in_proj_ba.weight",
                                    kShared = ".shared_mlp.input_linear.weight",
                                    kSharedOut = ".shared_mlp.output_linear.weight";

  DerivedTensor& put(const SourceTensor& from, const std::string& name,
                     std::vector<int64_t> shape) {
    const std::string& old = from.view().name;
    if (result_.replaced.empty() || result_.replaced.back() != old) result_.replaced.push_back(old);
    DerivedTensor made{from.view(), from};
    made.view.name = name;
    made.view.shape = std::move(shape);
    made.view.bytes = {};
    made.view.paired_heads = 0;
    if (made.view.stack.empty()) made.view.stack = old;
    std::vector<DerivedTensor>& entries = made_[from.source];
    entries.push_back(std::move(made));
    return entries.back();
  }
  void put_rows(const SourceTensor& from, const std::string& name, std::vector<Range> rows) {
    size_t count = 0;
    for (const Range some : rows) count += some.size();
    put(from, name, {static_cast<int64_t>(count), from.view().shape[1]}).rows = std::move(rows);
  }

  void exponentiate(const SourceTensor& t) {
    DerivedTensor& made = put(t, name_before(t.view().name, "_log"), t.view().shape);
    made.view.dtype = DType::f32;
    made.view.dtype_text = dtype_name(DType::f32);
    made.negative_exp = true;
  }
  void flatten(const SourceTensor& t) {
    const std::vector<int64_t>& s = t.view().shape;
    if (s.size() == 2 || (s.size() == 3 && s[1] == 1))
      put(t, t.view().name, {s.front() * s.back()});
  }
  // A convolution that is stored the other way round would have as many numbers.
  void flatten_convolution(const SourceTensor& t) {
    const std::vector<int64_t>& s = t.view().shape;
    if (s.size() == 3 && keys_.taps != 0 && (s[1] != 1 || s[2] != keys_.taps))
      refuse_shape(t, "[channels, 1, " + std::to_string(keys_.taps) + "]");
    flatten(t);
  }
  // The rows of each key head: queries, keys, values and gates of its value heads.
  void unpack_qkvz(const SourceTensor& t) {
    const std::vector<int64_t>& s = t.view().shape;
    if (s.size() != 2 || keys_.heads < 1 || s[0] % keys_.heads != 0 ||
        s[0] / keys_.heads <= 2 * keys_.dim || (s[0] / keys_.heads - 2 * keys_.dim) % 2 != 0)
      refuse_shape(t, "rows of " + std::to_string(keys_.heads) + " heads of keys");
    const auto each = static_cast<size_t>(s[0] / keys_.heads), dim = static_cast<size_t>(keys_.dim),
               values = (each - 2 * dim) / 2;
    const auto of_heads = [&](size_t first, size_t count, std::vector<Range>& rows) {
      for (size_t g = 0; g < static_cast<size_t>(keys_.heads); ++g)
        rows.push_back({g * each + first, g * each + first + count});
    };
    std::vector<Range> qkv, z;
    of_heads(0, dim, qkv);
    of_heads(dim, dim, qkv);
    of_heads(2 * dim, values, qkv);
    of_heads(2 * dim + values, values, z);
    const std::string at = name_before(t.view().name, kQkvz) + ".linear_attn.";
    put_rows(t, at + "in_proj_qkv.weight", std::move(qkv));
    put_rows(t, at + "in_proj_z.weight", std::move(z));
  }
  void unpack_ba(const SourceTensor& t) {
    const std::vector<int64_t>& s = t.view().shape;
    if (s.size() != 2 || keys_.heads < 1 || s[0] % (2 * keys_.heads) != 0)
      refuse_shape(t, "rows of " + std::to_string(keys_.heads) + " heads of keys");
    const auto values = static_cast<size_t>(s[0] / (2 * keys_.heads));
    std::vector<Range> b, a;
    for (size_t g = 0; g < static_cast<size_t>(keys_.heads); ++g) {
      b.push_back({2 * g * values, (2 * g + 1) * values});
      a.push_back({(2 * g + 1) * values, (2 * g + 2) * values});
    }
    const std::string at = name_before(t.view().name, kBa) + ".linear_attn.";
    put_rows(t, at + "in_proj_b.weight", std::move(b));
    put_rows(t, at + "in_proj_a.weight", std::move(a));
  }
  void split_gate(const SourceTensor& t) {
    if (!has_doubled_queries(all_, t)) return;
    const std::string at = name_before(t.view().name, kQueries) + ".self_attn.";
    const auto dim = static_cast<size_t>(all_.at(at + "q_norm.weight").view().shape[0]),
               rows = static_cast<size_t>(t.view().shape[0]);
    if (dim == 0 || rows % (2 * dim) != 0)
      refuse_shape(t, "rows of heads of " + std::to_string(dim) + " queries and gates");
    std::vector<Range> queries, gates;
    for (size_t first = 0; first < rows; first += 2 * dim) {
      queries.push_back({first, first + dim});
      gates.push_back({first + dim, first + 2 * dim});
    }
    put_rows(t, at + "q_proj.weight", std::move(queries));
    put_rows(t, at + "q_gate.weight", std::move(gates));
  }
  void split_shared(const SourceTensor& t) {
    const std::vector<int64_t>& s = t.view().shape;
    if (s.size() != 2 || s[0] % 2 != 0) refuse_shape(t, "as many gates as ups");
    const auto half = static_cast<size_t>(s[0] / 2);
    const std::string at = name_before(t.view().name, kShared) + ".mlp.";
    put_rows(t, at + "gate_proj.weight", {{0, half}});
    put_rows(t, at + "up_proj.weight", {{half, 2 * half}});
  }

  const std::map<std::string, SourceTensor>& all_;
  KeyHeads keys_;
  RecurrentTensors result_;
  std::map<const TensorSource*, std::vector<DerivedTensor>> made_;
};

}  // namespace

bool needs_key_heads(const std::map<std::string, SourceTensor>& all) {
  return std::ranges::any_of(all, [&](const auto& t) {
    return t.first.ends_with(".linear_attn.in_proj_qkvz.weight") ||
           t.first.ends_with(".linear_attn.in_proj_ba.weight") ||
           (is_convolution(t.first) && t.second.view().shape.size() == 3) ||
           (t.first.ends_with(kQueries) && has_doubled_queries(all, t.second));
  });
}

RecurrentTensors recurrent_tensors(const std::map<std::string, SourceTensor>& all, KeyHeads keys) {
  return Deriver(all, keys).derive();
}

}  // namespace stet
