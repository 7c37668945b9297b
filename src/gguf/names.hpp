// The names that GGUF gave keys and tensors, and those under which they were published.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "src/gguf/gguf.hpp"

namespace stet {

class GgufNames {
 public:
  // The first part of a file has the keys. Throws an unsupported Error for an architecture that
  // stet does not know, a format Error for keys that are missing or do not fit.
  explicit GgufNames(const std::vector<Gguf>& parts);

  std::string config() const;  // config.json
  std::string generation_config() const;
  int64_t vocab_size() const { return vocab_size_; }

  struct Published {
    std::string name;
    int64_t rotated_heads = 0;
    bool less_one = false;
  };
  // Nothing for a tensor that the config stands for (rope_freqs).
  std::optional<Published> published(const GgufTensor& tensor) const;

 private:
  const GgufTensor* find(const std::string& name) const;
  std::string key(const char* name) const { return architecture_ + "." + name; }
  int64_t need(const char* name, int64_t max) const;
  double need_number(const char* name) const;

  const std::vector<Gguf>& parts_;
  const Gguf& keys_;
  std::string architecture_;
  int64_t vocab_size_ = 0, heads_ = 0, kv_heads_ = 0;
};

}  // namespace stet
