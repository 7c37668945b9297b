#include "src/checkpoint/gpt_oss_tensors.hpp"

#include <cstring>
#include <map>
#include <string_view>
#include <utility>

#include "stet/base/error.hpp"

namespace stet {
namespace {

constexpr int64_t kMostStacked = 4096;  // experts of one tensor
constexpr int64_t kInputsOfBlock = 32, kCodesOfBlock = 16;
constexpr size_t kBytesOfBlock = 1 + kCodesOfBlock;  // of a ggml block: the exponent comes first

struct StackName {
  std::string before;  // "model.layers.0.mlp.experts."
  bool gate_up;
  std::string_view kind;  // "", "_bias", "_blocks" or "_scales"
};

std::optional<StackName> stack_name(const std::string& name) {
  constexpr std::string_view kExperts = ".experts.";
  const size_t at = name.rfind(kExperts);
  if (at == std::string::npos) return std::nullopt;
  const std::string_view rest = std::string_view(name).substr(at + kExperts.size());
  for (const std::string_view matrix : {"gate_up_proj", "down_proj"}) {
    for (const std::string_view kind : {"", "_bias", "_blocks", "_scales"}) {
      if (rest.starts_with(matrix) && rest.substr(matrix.size()) == kind)
        return StackName{name.substr(0, at + kExperts.size()), matrix == "gate_up_proj", kind};
    }
  }
  return std::nullopt;
}

// One matrix or bias of one expert, made of outputs first, first + step, ... of a stack.
struct StackedPart {
  TensorView view;  // name, type and shape of the resulting tensor; no bytes
  TensorView from, scales;
  std::shared_ptr<const FileBytes> scales_file;  // may be another file than that of the blocks
  size_t expert, first, step;

  size_t outputs() const { return static_cast<size_t>(view.shape.front()); }
};

const std::byte* bytes_of_expert(const TensorView& stack, size_t expert) {
  return stack.bytes.data() + stack.bytes.size() / static_cast<size_t>(stack.shape[0]) * expert;
}

void copy_bias(const StackedPart& p, std::byte* to) {
  const size_t element = dtype_size(p.from.dtype);
  const std::byte* const from = bytes_of_expert(p.from, p.expert);
  for (size_t i = 0; i < p.outputs(); ++i)
    std::memcpy(to + i * element, from + (p.first + i * p.step) * element, element);
}

// [inputs][outputs] -> [outputs][inputs]
void copy_transposed(const StackedPart& p, std::byte* to) {
  const size_t element = dtype_size(p.from.dtype), inputs = static_cast<size_t>(p.from.shape[1]),
               row = static_cast<size_t>(p.from.shape[2]) * element;
  const std::byte* const from = bytes_of_expert(p.from, p.expert);
  for (size_t k = 0; k < inputs; ++k) {
    for (size_t i = 0; i < p.outputs(); ++i)
      std::memcpy(to + (i * inputs + k) * element,
                  from + k * row + (p.first + i * p.step) * element, element);
  }
}

// Copies blocks. Byte j holds inputs 2 j and 2 j + 1. In ggml's order the low half of byte i holds
// input i, and the high half input i + 16.
void copy_blocks(const StackedPart& p, std::byte* to) {
  const auto blocks = static_cast<size_t>(p.from.shape[2]);
  const std::byte *const codes = bytes_of_expert(p.from, p.expert), *const scales = bytes_of_expert(
                                                                        p.scales, p.expert);
  for (size_t i = 0; i < p.outputs(); ++i) {
    const size_t row = (p.first + i * p.step) * blocks;
    for (size_t b = 0; b < blocks; ++b, to += kBytesOfBlock) {
      const std::byte* const from = codes + (row + b) * kCodesOfBlock;
      to[0] = scales[row + b];
      for (size_t j = 0; j < kCodesOfBlock; j += 2) {
        const std::byte low = from[j / 2], high = from[kCodesOfBlock / 2 + j / 2];
        to[1 + j] = (low & std::byte{15}) | high << 4;
        to[2 + j] = low >> 4 | (high & std::byte{0xF0});
      }
    }
  }
}

class GptOssExperts : public TensorSource {
 public:
  GptOssExperts(std::shared_ptr<const FileBytes> file, std::vector<StackedPart> parts)
      : TensorSource(std::move(file), views_of(parts)), parts_(std::move(parts)) {}

  OwnedTensor read(size_t index) const override {
    const StackedPart& p = parts_[index];
    const auto size = static_cast<size_t>(tensor_bytes(p.view.dtype, p.view.shape).value());
    OwnedTensor tensor{p.view, Memory(size)};
    std::byte* const to = tensor.memory.data();
    if (p.view.dtype == DType::mxfp4)
      copy_blocks(p, to);
    else if (p.view.shape.size() == 1)
      copy_bias(p, to);
    else
      copy_transposed(p, to);
    tensor.view.bytes = {to, size};
    return tensor;
  }

 private:
  static std::vector<TensorView> views_of(const std::vector<StackedPart>& parts) {
    std::vector<TensorView> views;
    for (const StackedPart& p : parts) views.push_back(p.view);
    return views;
  }

  std::vector<StackedPart> parts_;
};

[[noreturn]] void refuse_stack(const FileTensor& t, const std::string& expected) {
  throw Error(ErrorKind::format, t.file->path(), t.view.name, expected,
              t.view.dtype_text + " " + shape_text(t.view.shape));
}

// Adds the parts of one stack; `scales` is null except for X_blocks.
void add_parts(const FileTensor& stack, const StackName& name, const FileTensor* scales,
               std::vector<StackedPart>& to) {
  const TensorView& from = stack.view;
  const bool blocks = scales != nullptr, bias = name.kind == "_bias";
  const size_t dimensions = blocks ? 4 : bias ? 2 : 3;
  const bool typed = blocks ? from.dtype == DType::u8 : is_weight_dtype(from.dtype);
  if (!typed || from.shape.size() != dimensions || from.shape[0] < 1 ||
      from.shape[0] > kMostStacked || (blocks && from.shape[3] != kCodesOfBlock))
    refuse_stack(stack, blocks ? "U8 [experts, outputs, blocks, 16]"
                        : bias ? "weights [experts, outputs]"
                               : "weights [experts, inputs, outputs]");
  if (blocks &&
      (scales->view.dtype != DType::u8 ||
       scales->view.shape != std::vector<int64_t>(from.shape.begin(), from.shape.end() - 1)))
    refuse_stack(*scales, "U8 of the first three dimensions of " + from.name);
  const int64_t outputs = blocks || bias ? from.shape[1] : from.shape[2],
                inputs = blocks ? from.shape[2] * kInputsOfBlock
                         : bias ? 0
                                : from.shape[1];
  const int64_t step = name.gate_up ? 2 : 1;
  if (outputs % step != 0) refuse_stack(stack, "as many gates as ups");
  for (int64_t i = 0; i < from.shape[0] * step; ++i) {
    const char* const matrix = !name.gate_up ? "down_proj" : i % 2 == 0 ? "gate_proj" : "up_proj";
    StackedPart part{{},
                     from,
                     {},
                     nullptr,
                     static_cast<size_t>(i / step),
                     static_cast<size_t>(i % step),
                     static_cast<size_t>(step)};
    part.view.name =
        name.before + std::to_string(i / step) + "." + matrix + (bias ? ".bias" : ".weight");
    part.view.dtype = blocks ? DType::mxfp4 : from.dtype;
    part.view.dtype_text = dtype_name(part.view.dtype);
    part.view.shape = {outputs / step};
    if (!bias) part.view.shape.push_back(inputs);
    part.view.stack = from.name;
    if (blocks) {
      part.scales = scales->view;
      part.scales_file = scales->file;
    }
    to.push_back(std::move(part));
  }
}

}  // namespace

bool is_of_gpt_oss(const std::string& name) { return name.ends_with(".self_attn.sinks"); }

bool is_gpt_oss_stack(const std::string& name) { return stack_name(name).has_value(); }

std::vector<std::unique_ptr<const TensorSource>> gpt_oss_experts(
    const std::vector<FileTensor>& stacks) {
  std::map<std::string, const FileTensor*> all;
  for (const FileTensor& t : stacks) all[t.view.name] = &t;
  std::map<std::shared_ptr<const FileBytes>, std::vector<StackedPart>> files;
  for (const auto& [full, tensor] : all) {
    const StackName name = stack_name(full).value();
    if (name.kind == "_scales") continue;
    const FileTensor* scales = nullptr;
    if (name.kind == "_blocks") {
      const std::string end = "_blocks";
      const auto found = all.find(full.substr(0, full.size() - end.size()) + "_scales");
      if (found == all.end()) refuse_stack(*tensor, "scales beside the blocks");
      scales = found->second;
    }
    add_parts(*tensor, name, scales, files[tensor->file]);
  }
  std::vector<std::unique_ptr<const TensorSource>> sources;
  for (auto& [file, parts] : files)
    sources.push_back(std::make_unique<const GptOssExperts>(file, std::move(parts)));
  return sources;
}

}  // namespace stet
