// Limits the memory of a JSON text's tree, counting it value by value while the tree is built.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "stet/base/error.hpp"
#include "stet/base/limits.hpp"

namespace stet {

class JsonMemory {
 public:
  JsonMemory(size_t text, const std::string& file)
      : most_(kJsonBytes + kJsonRatio * text), left_(most_), file_(file) {}

  // Charges a rough cost: an element of an array that has just doubled, or a map node with its key.
  // Throws a format Error beyond the limit.
  template <class Json>
  void charge(const Json& value, const std::string* key) {
    size_t cost = key != nullptr ? 96 + key->capacity() : 2 * sizeof value;
    if (value.is_string()) cost += 48 + value.template get_ref<const std::string&>().capacity();
    if (value.is_structured()) cost += 64;
    if (cost > left_)
      throw Error(ErrorKind::format, file_, "",
                  "JSON whose values take at most " + std::to_string(most_) + " bytes", "more");
    left_ -= cost;
  }

 private:
  size_t most_, left_;
  const std::string& file_;
};

}  // namespace stet
