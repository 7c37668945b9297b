// Reads the header of a safetensors file.
#include "stet/checkpoint/safetensors.hpp"

#include <cstring>
#include <string>

#include "stet/base/bytes.hpp"
#include "tests/fuzz/fuzz.hpp"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

using namespace stet;

// Mutates the JSON and corrects its length, which a blind mutation seldom does. Sometimes mutates
// any byte.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  ByteReader reader(std::as_bytes(std::span(data, size)), "");
  const size_t header = size < 8 ? size : reader.u64("");
  if (seed % 4 == 0 || size < 8 || header > size - 8) return LLVMFuzzerMutate(data, size, max_size);
  const std::string rest(fuzz::text_of(data, size).substr(8 + header));
  const size_t changed = LLVMFuzzerMutate(data + 8, header, max_size - 8 - rest.size());
  ByteWriter length;
  length.u64(changed);
  std::memcpy(data, length.data().data(), 8);
  std::memcpy(data + 8 + changed, rest.data(), rest.size());
  return 8 + changed + rest.size();
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return fuzz::read_and_use([&] {
    const std::span<const std::byte> bytes = std::as_bytes(std::span(data, size));
    const SafeTensors file = SafeTensors::parse(bytes, "model.safetensors");
    const std::byte* end = nullptr;  // tensors are contiguous up to the end of the file
    for (const TensorView& t : file.tensors()) {
      fuzz::must(file.find(t.name) == &t, "a tensor is found by its name");
      fuzz::must(end == nullptr || t.bytes.data() == end, "no hole and no overlap");
      end = t.bytes.data() + t.bytes.size();
      fuzz::touch(t.bytes);
    }
    fuzz::must(end == nullptr || end == bytes.data() + bytes.size(),
               "the last tensor ends the file");
  });
}
