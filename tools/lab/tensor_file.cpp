#include "tools/lab/tensor_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "stet/base/error.hpp"
#include "stet/kernels/numbers.hpp"
#include "tools/command/command.hpp"

namespace stet::tool {
namespace {

uint64_t bytes_of(const NamedShape& t) {
  const std::optional<int64_t> count = element_count(t.shape);
  if (!count) throw Error(ErrorKind::argument, "", t.name, "a smaller tensor", shape_text(t.shape));
  return static_cast<uint64_t>(*count) * dtype_size(t.dtype);
}

// Appends zeros that are overwritten later.
void append_zeros(AtomicFile& file, uint64_t count) {
  static const std::vector<std::byte> zeros(1 << 20);
  for (; count > 0; count -= std::min<uint64_t>(count, zeros.size())) {
    Interrupts::check();
    file.write(std::span(zeros).first(std::min<uint64_t>(count, zeros.size())));
  }
}

void write_text(AtomicFile& file, std::string_view text) {
  file.write(std::as_bytes(std::span(text)));
}

class OneFile : public TensorFile {
 public:
  OneFile(const std::string& path, const std::vector<NamedShape>& tensors,
          const std::map<std::string, std::string>& metadata)
      : file_(path) {
    Json header = Json::object();
    header["__metadata__"] = metadata;
    uint64_t at = 0;
    for (const NamedShape& t : tensors) {
      const uint64_t end = at + bytes_of(t);
      header[t.name] = {
          {"dtype", dtype_name(t.dtype)}, {"shape", t.shape}, {"data_offsets", {at, end}}};
      begins_.push_back(at);
      sizes_.push_back(dtype_size(t.dtype));
      at = end;
    }
    std::string text = dump(header);
    text.resize((text.size() + 7) / 8 * 8, ' ');
    const uint64_t length = text.size();
    file_.write(std::as_bytes(std::span(&length, 1)));
    write_text(file_, text);
    for (uint64_t& begin : begins_) begin += file_.written();
    append_zeros(file_, at);
  }
  void write(size_t index, size_t offset, std::span<const std::byte> elements) override {
    Interrupts::check();
    file_.write_at(begins_[index] + offset * sizes_[index], elements);
  }
  void commit() override { file_.commit(); }

 private:
  AtomicFile file_;
  std::vector<uint64_t> begins_;
  std::vector<size_t> sizes_;
};

// Removes a new directory in the end if nothing is in it.
struct NewDirectory {
  NewDirectory() = default;
  ~NewDirectory() {
    std::error_code ignored;
    if (!path.empty()) std::filesystem::remove(path, ignored);
  }
  NewDirectory(const NewDirectory&) = delete;
  NewDirectory& operator=(const NewDirectory&) = delete;

  std::string path;
};

// Writes the format of numpy.save, version 1.0 (numpy.lib.format).
class NpyFiles : public TensorFile {
 public:
  NpyFiles(const std::string& directory, const std::vector<NamedShape>& tensors) {
    std::error_code error;
    if (std::filesystem::create_directories(directory, error)) made_.path = directory;
    if (error) throw Error(ErrorKind::io, directory, "", "a directory", error.message());
    for (const NamedShape& t : tensors) {
      sizes_.push_back(dtype_size(t.dtype));
      files_.push_back(std::make_unique<AtomicFile>(directory + t.name + ".npy"));
      std::string shape;
      for (const int64_t n : t.shape) shape += std::to_string(n) + ", ";
      std::string header = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}",
                                       t.dtype == DType::i32 ? "<i4" : "<f4", shape);
      header.resize((10 + header.size() + 1 + 63) / 64 * 64 - 10, ' ');
      header.back() = '\n';
      const auto length = static_cast<uint16_t>(header.size());
      write_text(*files_.back(), std::string_view("\x93NUMPY\x01\x00", 8));
      files_.back()->write(std::as_bytes(std::span(&length, 1)));
      write_text(*files_.back(), header);
      begins_.push_back(files_.back()->written());
      append_zeros(*files_.back(), bytes_of(t));
    }
  }
  void write(size_t index, size_t offset, std::span<const std::byte> elements) override {
    Interrupts::check();
    files_[index]->write_at(begins_[index] + offset * sizes_[index], elements);
  }
  void commit() override {
    for (const auto& file : files_) file->commit();
  }

 private:
  NewDirectory made_;  // destroyed after the files in it
  std::vector<std::unique_ptr<AtomicFile>> files_;
  std::vector<uint64_t> begins_;
  std::vector<size_t> sizes_;
};

}  // namespace

std::unique_ptr<TensorFile> make_tensor_file(const std::string& path,
                                             const std::vector<NamedShape>& tensors,
                                             const std::map<std::string, std::string>& metadata) {
  if (path.ends_with('/')) return std::make_unique<NpyFiles>(path, tensors);
  return std::make_unique<OneFile>(path, tensors, metadata);
}

TensorSource::TensorSource(const std::string& path)
    : path_(path), content_(read_file_to_memory(path)) {
  tensors_ = std::make_unique<SafeTensors>(SafeTensors::parse(content_.bytes(), path));
}

LoadedTensor TensorSource::load(const std::string& name) const {
  const TensorView* t = tensors_->find(name);
  if (t == nullptr) throw Error(ErrorKind::format, path_, name, "a tensor", "none");
  if (!is_weight_dtype(t->dtype))
    throw Error(ErrorKind::format, path_, name, "F32, BF16 or F16", t->dtype_text);
  LoadedTensor loaded{t->shape, std::vector<float>(t->bytes.size() / dtype_size(t->dtype))};
  std::vector<std::byte> aligned(t->bytes.begin(), t->bytes.end());
  const KvType type = t->dtype == DType::f32    ? KvType::f32
                      : t->dtype == DType::bf16 ? KvType::bf16
                                                : KvType::f16;
  read_elements(type, aligned.data(), 1, loaded.values);
  return loaded;
}

}  // namespace stet::tool
