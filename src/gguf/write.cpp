// Writes a checkpoint as a GGUF file.
#include <fmt/format.h>

#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "src/checkpoint/expert_slices.hpp"
#include "src/checkpoint/packed.hpp"
#include "src/gguf/sampling.hpp"
#include "src/gguf/write.hpp"
#include "src/threads/interrupt_check.hpp"
#include "stet/base/error.hpp"
#include "stet/checkpoint/gguf.hpp"
#include "stet/kernels/ggml.hpp"
#include "stet/kernels/numbers.hpp"
#include "stet/model/model.hpp"
#include "stet/model/weight_loader.hpp"
#include "stet/threads/team.hpp"

namespace stet {
namespace {

constexpr size_t kConfigBytes = size_t{16} << 20, kRowsAtOnce = size_t{4} << 20;

// Reads the weights of one tensor row by row, in the order of the model.
class SourceRows {
 public:
  SourceRows(const Checkpoint& checkpoint, const WeightSpec& need)
      : checkpoint_(checkpoint), need_(need) {
    if (checkpoint.packed() && !need.is_vector) {
      matrix_ = packed_matrix(checkpoint, need.matrix, static_cast<size_t>(need.matrix_rows),
                              static_cast<size_t>(need.columns));
      return;
    }
    tensor_ = checkpoint.read(*checkpoint.find(need.name));
    view_ = &tensor_.view;
    if (need.transposed) matrix_ = Matrix::transposed(*view_, default_threads());
  }
  ~SourceRows() {
    if (view_ != nullptr && !need_.is_vector) checkpoint_.drop(*view_);
  }
  SourceRows(const SourceRows&) = delete;
  SourceRows& operator=(const SourceRows&) = delete;

  static DType dtype(const Checkpoint& checkpoint, const WeightSpec& need) {
    return checkpoint.packed() ? stored_dtype(packed_type(checkpoint, need.matrix))
                               : checkpoint.find(need.name)->dtype;
  }

  // Returns whether the rows already are blocks of this type.
  bool stored_as(uint32_t type) const {
    if (has_blocks()) return ggml_number(view_->dtype) == type;
    return matrix_.rows() > 0 && is_quantized(matrix_.type()) &&
           ggml_number(stored_dtype(matrix_.type())) == type;
  }
  void copy(size_t row, std::byte* to) const {
    if (!has_blocks()) return matrix_.store_ggml(at(row), to);
    const std::span<const std::byte> blocks = bytes_of(row);
    std::memcpy(to, blocks.data(), blocks.size());
  }
  void widen(size_t row, std::span<float> to) const {
    if (matrix_.rows() > 0) return matrix_.gather(at(row), to.data());
    if (has_blocks()) {
      const uint32_t number = ggml_number(view_->dtype);
      const std::span<const std::byte> blocks = bytes_of(row);
      return dequantize_ggml(number, blocks.data(), blocks.size() / ggml_type(number)->bytes,
                             to.data());
    }
    const std::span<const std::byte> stored = need_.is_vector ? view_->bytes : bytes_of(row);
    for (size_t i = 0; i < to.size(); ++i) to[i] = element(stored, i);
    if (need_.heads > 0 && need_.is_vector) {
      const std::vector<float> stored(to.begin(), to.end());
      for (size_t i = 0; i < to.size(); ++i)
        to[i] = stored[interleaved_row(i, to.size(), static_cast<size_t>(need_.heads))];
    }
  }

 private:
  bool has_blocks() const {
    return view_ != nullptr && matrix_.rows() == 0 && is_block_dtype(view_->dtype);
  }
  // Returns the stored bytes of row `row` of the model.
  std::span<const std::byte> bytes_of(size_t row) const {
    if (need_.heads > 0)
      row = interleaved_row(row, static_cast<size_t>(need_.rows), static_cast<size_t>(need_.heads));
    return row_of(*view_, row);
  }
  size_t at(size_t row) const {
    return row + (view_ == nullptr ? static_cast<size_t>(need_.first_row) : 0);
  }
  float element(std::span<const std::byte> bytes, size_t i) const {
    if (view_->dtype == DType::f32) {
      float x;
      std::memcpy(&x, bytes.data() + i * 4, 4);
      return x;
    }
    uint16_t bits;
    std::memcpy(&bits, bytes.data() + i * 2, 2);
    return view_->dtype == DType::bf16 ? widen_bf16(bits) : widen_f16(bits);
  }

  const Checkpoint& checkpoint_;
  const WeightSpec& need_;
  OwnedTensor tensor_;
  const TensorView* view_ = nullptr;  // view of tensor_; null: rows of matrix_
  Matrix matrix_;
};

// Returns the name of a checkpoint: the last part of its path, without the extension.
std::string model_name_of(const std::string& path) {
  const auto stem = [](const std::filesystem::path& p) {
    return p.extension() == ".gguf" ? p.stem().string() : p.filename().string();
  };
  const std::filesystem::path whole(path);
  return stem(whole.has_filename() ? whole : whole.parent_path());
}

// Returns llama.cpp's general.file_type for a file whose matrices mostly have the ggml type `most`.
uint32_t file_type(uint32_t most) {
  static constexpr std::pair<DType, uint32_t> kFileTypes[] = {
      {DType::f16, 1},   {DType::q4_0, 2},  {DType::q8_0, 7},  {DType::q5_0, 8},  {DType::q4_k, 15},
      {DType::q5_k, 17}, {DType::q6_k, 18}, {DType::bf16, 32}, {DType::mxfp4, 38}};
  for (const auto& [dtype, type] : kFileTypes) {
    if (ggml_number(dtype) == most) return type;
  }
  return 0;
}

struct Tensor {
  GgufDeclared declared;
  const WeightSpec* need = nullptr;  // null: uses `values`
  // The weights that follow in the tensor, such as the same matrix of the other experts.
  std::vector<const WeightSpec*> more = {};
  std::vector<float> values;
  GgufStored stored;
  const WeightSpec* second = nullptr;  // its rows follow those of `need` in each head
  size_t each = 0;                     // rows of such a head
  // If groups is not 0, rows or elements from `first` on belong to heads of values, `head_width` to
  // each; with `columns`, all columns do. The file has them in tiled order (GgufNames::Published).
  size_t groups = 0, head_width = 0, first = 0;
  bool columns = false;
};

// The first place where two values of JSON differ.
struct Difference {
  std::string path;
  nlohmann::json value, found;
};

Difference first_difference(const std::string& path, const nlohmann::json& value,
                            const nlohmann::json& found) {
  if (value.is_object() && found.is_object()) {
    for (const auto& [key, member] : value.items()) {
      const auto other = found.value(key, nlohmann::json());
      if (other != member) return first_difference(path + "." + key, member, other);
    }
  }
  if (value.is_array() && found.is_array() && value.size() == found.size()) {
    for (size_t i = 0; i < value.size(); ++i) {
      if (value[i] != found[i])
        return first_difference(fmt::format("{}[{}]", path, i), value[i], found[i]);
    }
  }
  return {path, value, found};
}

class Conversion {
 public:
  Conversion(const FileSource& source, const GgufWriteOptions& o)
      : options_(o),
        source_(source),
        checkpoint_(Checkpoint::open(source)),
        config_(read_model_config(source.json("config.json", kConfigBytes))),
        architecture_(architecture_for(config_, source.path_of("config.json"))),
        needs_(Model::weights_of(source, checkpoint_)),
        threads_(o.threads > 0 ? o.threads : default_threads()) {
    require_loadable();
    if (o.weights == GgufWeights::mxfp4) require_experts(config_, source.path_of("config.json"));
    for (const WeightSpec& need : needs_) add(need);
    // llama.cpp's GPT-2 stores the head as a tensor of its own.
    if (config_.tied_head && architecture_.layout == GgufLayout::gpt2) add_head();
    add_rope_tensors();
  }

  GgufLeftOut write(const std::string& path) {
    std::vector<GgufDeclared> declared;
    for (const Tensor& e : entries_) declared.push_back(e.declared);
    GgufLeftOut left_out;
    GgufWriter writer(path, keys(left_out), declared);
    // llama.cpp's Llama, under which a Mistral is written, sees all positions.
    if (config_.family == "mistral") left_out.window = config_.layer(0).window;
    for (const Tensor& e : entries_) {
      check_interrupt();
      write(e, writer);
    }
    for (const auto& file : checkpoint_.files()) file->check_unchanged();
    require_same_config(writer.uncommitted());
    writer.commit();
    return left_out;
  }

 private:
  // Returns the type of a weight in the file. Rows that are no whole blocks are F16, as llama.cpp's
  // are, or keep their numbers as float32.
  DType dtype_of(const WeightSpec& need) const {
    const DType type = requested_dtype(need);
    const auto unit = static_cast<int64_t>(ggml_type(ggml_number(type))->elements);
    if (need.columns % unit == 0 || type == DType::mxfp4) return type;  // MXFP4 is refused later
    const bool exact =
        options_.weights == GgufWeights::stored || options_.weights == GgufWeights::mxfp4;
    return exact ? DType::f32 : DType::f16;
  }
  DType requested_dtype(const WeightSpec& need) const {
    // llama.cpp uses biases, norms, tables and routers only in float32.
    if (need.is_vector || (need.looked_up && !need.in_place) || need.exact) return DType::f32;
    const bool ends = need.canonical.find("layers.") != 0 && need.canonical.find("h.") != 0;
    switch (options_.weights) {
      case GgufWeights::stored:
        return SourceRows::dtype(checkpoint_, need);
      case GgufWeights::f32:
        return DType::f32;
      case GgufWeights::bf16:
        return DType::bf16;
      case GgufWeights::f16:
        return DType::f16;
      case GgufWeights::q8_0:
        return DType::q8_0;
      case GgufWeights::q4_0:
        return ends ? DType::q8_0 : DType::q4_0;
      case GgufWeights::q4_k:
        return in_super_blocks(need, ends ? DType::q6_k : DType::q4_k);
      case GgufWeights::q5_k:
        return in_super_blocks(need, ends ? DType::q6_k : DType::q5_k);
      case GgufWeights::q6_k:
        return in_super_blocks(need, DType::q6_k);
      case GgufWeights::mxfp4:
        return is_of_expert(need.canonical) ? DType::mxfp4 : SourceRows::dtype(checkpoint_, need);
    }
    return DType::f32;
  }
  static DType in_super_blocks(const WeightSpec& need, DType type) {
    return need.columns % kSuperBlock == 0 ? type : DType::q8_0;
  }

  // Makes the tensor float32, which loses nothing, if this part of it has another type.
  void widen_for(const WeightSpec& part, GgufDeclared& tensor) const {
    if (ggml_number(dtype_of(part)) != tensor.type) tensor.type = ggml_number(DType::f32);
  }

  // Adds a weight to the tensor of which it is a part. Its parts follow one another: one matrix of
  // all experts, then the other.
  bool add_part(const WeightSpec& need) {
    const auto part = stored_part(architecture_, need.canonical);
    if (!part) return false;
    if (part->number > 0 || part->matrix > 0) {
      Tensor& all = entries_.back();
      // Matrix 0 of every expert is already in the list when matrix 1 is added.
      const int64_t place = part->matrix == 0 ? part->number - 1 : part->number * part->matrices;
      all.more.insert(all.more.begin() + place, &need);
      widen_for(need, all.declared);
      if (part->matrix == 0) ++all.declared.shape[0];
      return true;
    }
    std::vector<int64_t> shape = {1, need.columns};
    if (!need.is_vector) shape.insert(shape.begin() + 1, need.rows * part->matrices);
    entries_.push_back(
        {{part->name, ggml_number(dtype_of(need)), shape}, &need, {}, {}, {part->name}});
    return true;
  }

  void add(const WeightSpec& need) {
    if (add_part(need)) return;
    const auto stored = stored_as(architecture_, need.canonical);
    if (!stored)
      throw Error(ErrorKind::unsupported, checkpoint_.source(), need.name, "",
                  std::string("llama.cpp's ") + architecture_.name + " has no such tensor");
    if (stored->follows) return add_second(stored->name, need);
    std::string name = stored->name;
    // Granite's MLP beside experts has the names of a shared expert.
    if (architecture_.layout == GgufLayout::granite_hybrid && config_.experts.count > 0 &&
        need.canonical.find(".mlp.") != std::string::npos)
      name.insert(name.rfind('.'), "_shexp");
    std::vector<int64_t> shape = {need.columns};
    if (!need.is_vector) shape.insert(shape.begin(), need.rows);
    const Recurrence& r = config_.recurrence;
    if (name.ends_with("conv1d.weight") || name.ends_with("shortconv.conv.weight"))
      shape = {r.channels, r.taps};
    if (architecture_.layout == GgufLayout::granite_hybrid) {
      if (name.ends_with(".ssm_a") || name.ends_with(".ssm_d")) shape = {need.columns, 1};
      if (name.ends_with(".ssm_norm.weight")) shape = {r.groups, need.columns / r.groups};
    }
    entries_.push_back({{name, ggml_number(dtype_of(need)), shape}, &need, {}, {}, *stored});
    tile(need, entries_.back());
  }

  void add_second(const std::string& name, const WeightSpec& need) {
    const auto found =
        std::ranges::find_if(entries_, [&](const Tensor& t) { return t.declared.name == name; });
    const Recurrence& r = config_.recurrence;
    found->second = &need;
    widen_for(need, found->declared);
    found->declared.shape[0] += need.rows;
    found->each = static_cast<size_t>(name.ends_with("attn_q.weight") ? config_.head_dim
                                                                      : r.heads / r.groups);
  }

  // Notes how the file orders heads of values, if there are more of them than heads of keys.
  void tile(const WeightSpec& need, Tensor& t) const {
    const Recurrence& r = config_.recurrence;
    const std::string architecture = architecture_.name, mix = ".linear_attn.";
    const size_t at = need.canonical.find(mix);
    if ((architecture != "qwen35" && architecture != "qwen35moe") || at == std::string::npos ||
        r.heads == r.groups)
      return;
    const std::string name = need.canonical.substr(at + mix.size());
    if (name == "norm.weight") return;
    const bool conv = name == "conv1d.weight", single = name == "A" || name == "dt_bias" ||
                                                        name == "in_proj_a.weight" ||
                                                        name == "in_proj_b.weight";
    t.groups = static_cast<size_t>(r.groups);
    t.head_width = static_cast<size_t>(single ? 1 : conv ? r.value_dim * r.taps : r.value_dim);
    t.columns = name == "out_proj.weight";
    if (conv || name == "in_proj_qkv.weight")
      t.first = static_cast<size_t>(2 * r.groups * r.key_dim * (conv ? r.taps : 1));
  }
  // Returns the model's index of the row (or column) with index `i` of `n` in the file.
  static size_t untiled(const Tensor& t, size_t i, size_t n) {
    if (i < t.first) return i;
    const size_t each = (n - t.first) / t.head_width / t.groups,
                 head = (i - t.first) / t.head_width;
    return t.first + (head % t.groups * each + head / t.groups) * t.head_width +
           (i - t.first) % t.head_width;
  }

  void add_head() {
    for (size_t i = 0; i < entries_.size(); ++i) {
      if (entries_[i].declared.name != "token_embd.weight") continue;
      entries_.push_back(entries_[i]);
      entries_.back().declared.name = "output.weight";
      return;
    }
  }

  // Throws for a model that llama.cpp does not load, although its keys can describe the config.
  void require_loadable() const {
    using Kind = Recurrence::Kind;
    const Recurrence& r = config_.recurrence;
    const GgufLayout layout = architecture_.layout;
    const bool qwen = layout == GgufLayout::qwen_hybrid, lfm2 = layout == GgufLayout::lfm2;
    const auto require = [&](bool holds, const char* field, const char* what) {
      if (holds) return;
      throw Error(ErrorKind::unsupported, source_.path_of("config.json"), field, "",
                  fmt::format("llama.cpp loads models of the architecture {} only with {}; use the "
                              "checkpoint itself, or stet prepare",
                              architecture_.name, what));
    };
    require(lfm2 || config_.experts.dense.empty(), "experts.dense", "experts in every layer");
    require(!qwen || config_.family == "qwen3_5" || config_.experts.count > 0, "experts",
            "experts");
    require(r.kind != Kind::none || !(qwen || lfm2 || layout == GgufLayout::granite_hybrid),
            "recurrent_of", "recurrent layers");
    require(!qwen || r.value_dim == r.key_dim, "recurrence.value_dim", "values as wide as keys");
    require(r.kind != Kind::mamba2 || r.output() == 2 * config_.hidden_size, "recurrence.value_dim",
            "a recurrence of twice the hidden size");
    require(!lfm2 || r.taps > 1, "recurrence.taps", "convolutions of at least 2 inputs");
    require(!lfm2 || config_.heads * config_.head_dim == config_.hidden_size, "head_dim",
            "heads that make up the hidden size");
    require(!r.projection_bias, "recurrence.projection_bias", "recurrent layers without biases");
  }

  void add_numbers(const char* name, std::vector<float> values) {
    entries_.push_back({{name, ggml_number(DType::f32), {static_cast<int64_t>(values.size())}},
                        nullptr,
                        {},
                        std::move(values),
                        {}});
  }

  // Throws if a reader of the divisors cannot tell the scaling.
  void require_llama3(const Rope& rope, const std::vector<float>& divisors) const {
    const double stored_theta = static_cast<double>(static_cast<float>(rope.theta));
    const auto back = llama3_of(stored_theta, config_.rotated(), divisors);
    if (back && back->factor == rope.factor && back->low_freq_factor == rope.low_freq_factor &&
        back->high_freq_factor == rope.high_freq_factor &&
        back->original_positions == rope.original_positions)
      return;
    const auto shown = [](const Rope& r) {
      return fmt::format("factor {}, low_freq_factor {}, high_freq_factor {}, length {}", r.factor,
                         r.low_freq_factor, r.high_freq_factor, r.original_positions);
    };
    throw Error(ErrorKind::unsupported, source_.path_of("config.json"), "rope_scaling",
                back
                    ? shown(*back) + ", which its divisors of frequencies in GGUF mean"
                    : "a scaling that its divisors of frequencies in GGUF tell, with the factors 1 "
                      "and 4",
                shown(rope));
  }

  // Adds the divisors of the frequencies, one for each rotary pair.
  void add_rope_tensors() {
    if (config_.ropes.empty()) return;
    const Rope& rope = config_.ropes[0];
    if (rope.scaling == Rope::Scaling::llama3) {
      Rope plain = rope;
      plain.scaling = Rope::Scaling::none;
      const std::vector<float> from = inverse_frequencies(plain, config_.rotated()),
                               to = inverse_frequencies(rope, config_.rotated());
      std::vector<float> divisors;
      for (size_t i = 0; i < from.size(); ++i) divisors.push_back(from[i] / to[i]);
      require_llama3(rope, divisors);
      add_numbers("rope_freqs.weight", divisors);
    }
    if (rope.scaling == Rope::Scaling::proportional) {
      std::vector<float> divisors;
      for (const float f : inverse_frequencies(rope, config_.rotated(rope)))
        divisors.push_back(f == 0 ? 1e30f : 1.0f);
      add_numbers("rope_freqs.weight", divisors);
    }
    if (rope.scaling == Rope::Scaling::longrope) {
      add_numbers("rope_factors_long.weight", {rope.long_factors.begin(), rope.long_factors.end()});
      add_numbers("rope_factors_short.weight",
                  {rope.short_factors.begin(), rope.short_factors.end()});
    }
  }

  GgufKeys keys(GgufLeftOut& left_out) const {
    GgufKeys keys;
    add_config_keys(config_, architecture_, keys);
    // llama.cpp recognizes some models by name and expects special tokens of them.
    if (options_.tokenizer == GgufTokenizer::own)
      keys.text("general.name", model_name_of(source_.path()));
    uint32_t most = ggml_number(DType::f32);  // the commonest type among matrices of layers
    for (const Tensor& e : entries_) {
      if (e.declared.name.starts_with("blk.") && e.declared.shape.size() > 1)
        most = e.declared.type;
    }
    keys.u32("general.file_type", file_type(most));
    if (ggml_type(most)->elements > 1) keys.u32("general.quantization_version", 2);
    GenerationConfig generation;
    const std::string name = "generation_config.json";
    if (source_.has(name)) {
      const std::string text = source_.read(name, kConfigBytes);
      generation = parse_generation_config(text, source_.path_of(name), config_.vocab_size);
      keys.text(kGgufGeneration, text);
      add_sampling_keys(generation, keys);
    } else if (!config_.eos_ids.empty()) {
      keys.text(kGgufGeneration, nlohmann::json{{"eos_token_id", config_.eos_ids}}.dump());
    }
    if (generation.eos_ids.empty()) generation.eos_ids = config_.eos_ids;
    left_out =
        add_tokenizer_keys(source_, generation, config_.vocab_size, options_.tokenizer, keys);
    return keys;
  }

  // Returns the row of the model for row `row` of the file. llama.cpp stores the rotary pairs of
  // Llama's heads as neighbours.
  size_t model_row(const Tensor& e, size_t row) const {
    if (e.groups > 0 && !e.columns && !e.need->is_vector)
      return untiled(e, row, static_cast<size_t>(e.need->rows));
    if (e.stored.rows == GgufStored::Rows::as_they_are) return row;
    const auto d = static_cast<size_t>(config_.head_dim), within = row % d;
    return row - within + within % 2 * (d / 2) + within / 2;
  }

  void encode(const Tensor& e, const SourceRows& rows, size_t row,
              const std::vector<float>& importance, std::byte* to) const {
    const GgufDeclared& d = e.declared;
    const auto columns = static_cast<size_t>(e.need->columns);
    if (rows.stored_as(d.type) && !e.columns) return rows.copy(model_row(e, row), to);
    std::vector<float> values(columns);
    rows.widen(e.need->is_vector ? row : model_row(e, row), values);
    if (d.shape.size() == 1 && e.stored.rows != GgufStored::Rows::as_they_are) {  // a bias
      const std::vector<float> model = values;
      for (size_t i = 0; i < columns; ++i) values[i] = model[model_row(e, i)];
    }
    if (e.groups > 0 && (e.columns || e.need->is_vector)) {
      const std::vector<float> model = values;
      for (size_t i = 0; i < columns; ++i) values[i] = model[untiled(e, i, columns)];
    }
    if (e.stored.plus_one) add_offset(values, 1.0f);
    require_in_range(e, values);
    quantize_ggml(d.type, values.data(), columns / ggml_type(d.type)->elements, to,
                  importance.empty() ? nullptr : importance.data());
  }

  void require_in_range(const Tensor& e, std::span<const float> values) const {
    const float limit = ggml_limit(e.declared.type);
    for (const float v : values) {
      if (v > -limit && v < limit) continue;
      throw Error(ErrorKind::unsupported, checkpoint_.file_of(e.need->name), e.need->name,
                  fmt::format("numbers below {:g} in magnitude for {}", limit,
                              ggml_type(e.declared.type)->name),
                  fmt::format("{:g}", v));
    }
  }

  void write(const Tensor& e, GgufWriter& writer) const {
    if (e.need == nullptr) return writer.write(std::as_bytes(std::span(e.values)));
    if (e.second != nullptr) return write_both(e, writer);
    write(e, *e.need, writer);
    for (const WeightSpec* const need : e.more) write(e, *need, writer);
  }

  // Writes the rows of two tensors, head by head in turn.
  void write_both(const Tensor& e, GgufWriter& writer) const {
    const SourceRows first(checkpoint_, *e.need), second(checkpoint_, *e.second);
    const auto count = static_cast<size_t>(e.declared.shape[0]);
    std::vector<std::byte> bytes(e.declared.bytes() / count);
    for (size_t i = 0; i < count; ++i) {
      const size_t row = i / (2 * e.each) * e.each + i % e.each;
      encode(e, i / e.each % 2 == 0 ? first : second, row, {}, bytes.data());
      writer.write(bytes);
    }
  }

  void write(const Tensor& e, const WeightSpec& need, GgufWriter& writer) const {
    const SourceRows rows(checkpoint_, need);
    std::vector<float> importance;
    if (options_.importance != nullptr) importance = options_.importance->of(need.canonical);
    const size_t count = need.is_vector ? 1 : static_cast<size_t>(need.rows),
                 row_bytes = e.declared.bytes() / count / (1 + e.more.size()),
                 at_once = std::max<size_t>(1, kRowsAtOnce / row_bytes);
    std::vector<std::byte> bytes;
    for (size_t first = 0; first < count; first += at_once) {
      const size_t n = std::min(at_once, count - first);
      bytes.resize(n * row_bytes);
      run_each(threads_, n, [&](size_t i) {
        encode(e, rows, first + i, importance, bytes.data() + i * row_bytes);
      });
      writer.write(bytes);
    }
  }

  // Reads the file back and throws if the config differs: llama.cpp's keys cannot express every
  // config.
  void require_same_config(const std::string& temporary) const {
    const auto source = gguf_source(temporary);
    const auto back = nlohmann::json::parse(
        read_model_config(source->json("config.json", kConfigBytes)).canonical());
    const auto config = nlohmann::json::parse(config_.canonical());
    for (const auto& [key, value] : config.items()) {
      const auto found = back.value(key, nlohmann::json());
      if (found == value) continue;
      const Difference d = first_difference(key, value, found);
      throw Error(ErrorKind::unsupported, source_.path_of("config.json"), d.path, "",
                  "llama.cpp assumes " + printable(d.found.dump(), 200) + ", the model has " +
                      printable(d.value.dump(), 200) +
                      ": a GGUF file cannot say that; use the checkpoint itself, or stet prepare");
    }
    if (back.size() != config.size())
      throw Error(ErrorKind::unsupported, source_.path_of("config.json"), "", "",
                  "the config has fields that llama.cpp has no keys for");
  }

  GgufWriteOptions options_;
  const FileSource& source_;
  Checkpoint checkpoint_;
  ModelConfig config_;
  const GgufArchitecture& architecture_;
  std::vector<WeightSpec> needs_;
  int threads_;
  std::vector<Tensor> entries_;
};

}  // namespace

GgufLeftOut write_gguf(const FileSource& source, const std::string& path,
                       const GgufWriteOptions& o) {
  return Conversion(source, o).write(path);
}

}  // namespace stet
