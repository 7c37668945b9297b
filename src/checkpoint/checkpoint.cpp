#include "stet/checkpoint/checkpoint.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <set>

#include "src/base/json_value.hpp"
#include "src/checkpoint/expert_slices.hpp"
#include "src/checkpoint/gpt_oss_tensors.hpp"
#include "src/checkpoint/recurrent_tensors.hpp"
#include "src/files/open_file.hpp"
#include "src/gguf/tensors.hpp"
#include "stet/base/error.hpp"
#include "stet/base/limits.hpp"
#include "stet/checkpoint/safetensors.hpp"

namespace stet {
namespace {

constexpr size_t kIndexLimit = 100'000'000;
constexpr const char *kWeightsName = "model.safetensors",
                     *kIndexName = "model.safetensors.index.json";

// Returns the name of the file that holds all weights, or of the index of several files.
std::string weights_name(const FileSource& source) {
  for (const char* name : {kPackedName, kWeightsName, kIndexName, kGgufName}) {
    if (source.has(name)) return name;
  }
  std::string found = "neither";
  for (const char* other : {"pytorch_model.bin", "pytorch_model.bin.index.json",
                            "consolidated.00.pth", "consolidated.safetensors", "tf_model.h5",
                            "flax_model.msgpack", "model.safetensors.incomplete"}) {
    if (source.has(other)) found = other + std::string(", which stet does not read");
  }
  for (const char* other : {"model.fp16.safetensors", "pytorch_model.safetensors"}) {
    if (source.has(other)) found = other + std::string("; rename it to ") + kWeightsName;
  }
  if (source.has("pytorch_model.bin") || source.has("pytorch_model.bin.index.json"))
    found += " (transformers' save_pretrained writes it as safetensors)";
  for (size_t shards = 1; shards <= kMaxShards; ++shards) {
    const std::string first = fmt::format("model-00001-of-{:05}.safetensors", shards);
    if (source.has(first))
      found = first + " without the index; fetch it from where the file is from";
  }
  throw Error(ErrorKind::io, source.path(), "",
              std::string(kWeightsName) + " or " + kIndexName + " in it", found);
}

// Returns the file of each tensor, as the index lists them.
std::map<std::string, std::string> read_weight_map(const FileSource& source) {
  const JsonReader index =
      parse_python_json(source.read(kIndexName, kIndexLimit), source.path_of(kIndexName));
  const JsonReader weight_map = index.required_object("weight_map");
  std::map<std::string, std::string> files;
  std::set<std::string> shards;
  for (const std::string& name : weight_map.keys()) {
    const std::string file = weight_map.string(name);
    if (shards.insert(file).second && shards.size() > kMaxShards) {
      weight_map.fail(name, "one of at most " + std::to_string(kMaxShards) + " files");
    }
    if (!is_plain_name(file)) weight_map.fail(name, "the plain name of a file beside the index");
    files.emplace(name, file);
  }
  return files;
}

}  // namespace

Checkpoint Checkpoint::open(const std::string& directory) {
  struct stat info = {};
  if (::stat(directory.c_str(), &info) != 0)
    throw Error(ErrorKind::io, directory, "", "a checkpoint directory", "nothing");
  if (!S_ISDIR(info.st_mode))
    throw Error(ErrorKind::io, directory, "", "a checkpoint directory", "a file");
  return open(*directory_source(directory));
}

Checkpoint Checkpoint::open(const FileSource& source) {
  const std::string name = weights_name(source);
  Checkpoint checkpoint;
  checkpoint.source_ = source.path_of(name);
  checkpoint.packed_ = name == kPackedName;
  checkpoint.gguf_ = name == kGgufName;
  if (name == kIndexName) {
    checkpoint.add_shards(source);
  } else if (name == kGgufName) {
    for (auto& part : gguf_tensors(source))
      checkpoint.add_all_of(checkpoint.add_file(std::move(part)));
    checkpoint.source_ = checkpoint.files_.front()->file()->path();
  } else {
    checkpoint.add_all_of(checkpoint.add_file(safetensors_source(open_file(source, name))));
  }
  checkpoint.split_stacks_of_gpt_oss();
  if (!checkpoint.packed_) checkpoint.derive_recurrent_tensors(source);
  return checkpoint;
}

std::vector<std::string> Checkpoint::files_of(const FileSource& source) {
  const std::string name = weights_name(source);
  if (name == kGgufName) return gguf_part_names(source);
  std::vector<std::string> names = {name};
  if (name != kIndexName) return names;
  std::set<std::string> shards;
  for (const auto& location : read_weight_map(source)) shards.insert(location.second);
  names.insert(names.end(), shards.begin(), shards.end());
  return names;
}

const TensorSource& Checkpoint::add_file(std::unique_ptr<const TensorSource> file) {
  files_.push_back(std::move(file));
  return *files_.back();
}

void Checkpoint::add_all_of(const TensorSource& file) {
  for (size_t i = 0; i < file.tensors().size(); ++i) {
    const std::string& name = file.tensors()[i].name;
    if (!locations_.emplace(name, Location{&file, i}).second)
      throw Error(ErrorKind::format, file.file()->path(), name, "each tensor once", "it twice");
  }
}

void Checkpoint::split_stacks_of_gpt_oss() {
  if (std::ranges::none_of(locations_, [](const auto& l) { return is_of_gpt_oss(l.first); }))
    return;  // other families stack their experts in another way
  std::vector<FileTensor> stacks;
  for (const auto& [name, location] : locations_) {
    if (is_gpt_oss_stack(name)) stacks.push_back({location.file->file(), location.view()});
  }
  if (stacks.empty()) return;
  for (const FileTensor& stack : stacks) locations_.erase(stack.view.name);
  for (auto& source : gpt_oss_experts(stacks)) add_all_of(add_file(std::move(source)));
}

namespace {

// Reads the sizes by which packed projections are divided, whether attention has gates, and the
// taps of convolutions. Only config.json has them; the shapes of the tensors do not show them.
KeyHeads read_key_heads(const FileSource& source) {
  const JsonReader top = source.json("config.json", kIndexLimit);
  const std::optional<JsonReader> nested = top.object("text_config");
  const JsonReader& json = nested ? *nested : top;
  const std::string type = top.string_or("model_type", "");
  const std::vector<std::string> architectures = top.strings("architectures");
  const std::string architecture = architectures.empty() ? "" : architectures[0];
  const char* const taps = json.has("conv_L_cache")   ? "conv_L_cache"
                           : json.has("mamba_d_conv") ? "mamba_d_conv"
                                                      : "linear_conv_kernel_dim";
  const bool short_conv = type.starts_with("lfm2") || architecture.starts_with("Lfm2");
  return {json.integer_or("linear_num_key_heads", 16, 1, kMaxHeads),
          json.integer_or("linear_key_head_dim", 128, 1, kMaxHeadDim),
          type.starts_with("qwen3_next") || type.starts_with("qwen3_5") ||
              architecture.starts_with("Qwen3Next") || architecture.starts_with("Qwen3_5"),
          json.integer_or(taps, short_conv ? 3 : 4, 1, kMaxTaps)};
}

}  // namespace

void Checkpoint::derive_recurrent_tensors(const FileSource& source) {
  std::map<std::string, SourceTensor> all;
  for (const auto& [name, location] : locations_) all[name] = {location.file, location.index};
  RecurrentTensors made =
      recurrent_tensors(all, needs_key_heads(all) ? read_key_heads(source) : KeyHeads{});
  for (const std::string& name : made.replaced) locations_.erase(name);
  for (auto& tensors : made.sources) add_all_of(add_file(std::move(tensors)));
}

void Checkpoint::add_shards(const FileSource& source) {
  std::map<std::string, std::vector<std::string>> wanted;  // tensors of each file
  bool whole_stacks = false;
  for (const auto& [name, file] : read_weight_map(source)) {
    wanted[file].push_back(name);
    whole_stacks = whole_stacks || is_of_gpt_oss(name);
  }
  for (const auto& [name, tensors] : wanted) {
    const TensorSource& file = add_file(safetensors_source(open_file(source, name), whole_stacks));
    std::unordered_map<std::string, std::vector<size_t>> has;  // by name in the file
    for (size_t i = 0; i < file.tensors().size(); ++i) {
      const TensorView& t = file.tensors()[i];
      has[t.stack.empty() ? t.name : t.stack].push_back(i);
    }
    for (const std::string& tensor : tensors) {
      const auto found = has.find(tensor);
      if (found == has.end())
        throw Error(ErrorKind::format, file.file()->path(), tensor,
                    "a tensor, as model.safetensors.index.json says", "nothing");
      for (const size_t i : found->second)
        locations_.emplace(file.tensors()[i].name, Location{&file, i});
    }
  }
}

const TensorView* Checkpoint::find(const std::string& name) const {
  const auto it = locations_.find(name);
  return it == locations_.end() ? nullptr : &it->second.view();
}

const std::string& Checkpoint::file_of(const std::string& name) const {
  const auto it = locations_.find(name);
  return it == locations_.end() ? source_ : it->second.file->file()->path();
}

std::shared_ptr<const void> Checkpoint::owner_of(const std::string& name) const {
  return locations_.at(name).file->file();
}

std::vector<std::shared_ptr<const FileBytes>> Checkpoint::files() const {
  std::vector<std::shared_ptr<const FileBytes>> files;
  for (const auto& file : files_) files.push_back(file->file());
  return files;
}

bool Checkpoint::has_blocks() const {
  return std::ranges::any_of(locations_,
                             [](const auto& l) { return is_block_dtype(l.second.view().dtype); });
}

const TensorView& Checkpoint::require(const std::string& name, const std::vector<int64_t>& shape,
                                      bool blocks) const {
  const TensorView* tensor = find(name);
  const std::string expected = fmt::format("F32, BF16 or F16 {}", shape_text(shape));
  if (tensor == nullptr) {
    const std::string packed = name.substr(0, name.rfind('.')) + ".qweight";
    if (find(packed) != nullptr)
      throw Error(
          ErrorKind::unsupported, file_of(packed), packed, "",
          "weights quantized by GPTQ or AWQ are not supported; take the checkpoint that they "
          "were made from, with --compute q8 or q4, or the model as a GGUF file");
    for (const std::string& stack : stacks_of(name)) {
      if (const TensorView* const t = find(stack))
        throw Error(ErrorKind::format, file_of(stack), stack,
                    "F32, BF16 or F16 [experts, outputs, inputs]",
                    t->dtype_text + " " + shape_text(t->shape));
    }
    throw Error(ErrorKind::format, source_, name, expected, "nothing");
  }
  const std::string found = tensor->dtype_text + " " + shape_text(tensor->shape);
  if (!is_weight_dtype(tensor->dtype) && !(blocks && is_block_dtype(tensor->dtype))) {
    throw Error(ErrorKind::unsupported, file_of(name), name, expected, found);
  }
  if (tensor->shape != shape) {
    const bool made = !gguf_ && !tensor->stack.empty() && tensor->stack != name;
    throw Error(ErrorKind::mismatch, file_of(name),
                made ? name + " (made of " + tensor->stack + ")" : name, expected, found);
  }
  return *tensor;
}

OwnedTensor Checkpoint::read(const TensorView& tensor) const {
  const Location& location = locations_.at(tensor.name);
  return location.file->read(location.index);
}

void Checkpoint::drop(const TensorView& tensor) const {
  const FileBytes& file = *locations_.at(tensor.name).file->file();
  const std::span<const std::byte> all = file.bytes();
  const std::byte* const at = tensor.bytes.data();
  if (at < all.data() || at >= all.data() + all.size()) return;  // a copy in memory
  file.drop(static_cast<size_t>(at - all.data()), tensor.bytes.size());
}

std::vector<std::string> Checkpoint::names() const {
  std::vector<std::string> names;
  for (const auto& location : locations_) names.push_back(location.first);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace stet
