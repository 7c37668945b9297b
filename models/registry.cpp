// The families stet knows. A new one adds its file, its name here, and its test.
#include "models/family.hpp"
#include "stet/base/error.hpp"

namespace stet {

extern const Family gemma_family, gemma2_family, gemma3_family, gpt2_family, llama_family,
    mistral_family, qwen2_family, qwen3_family;

namespace {

const Family* const kFamilies[] = {&gemma_family, &gemma2_family,  &gemma3_family, &gpt2_family,
                                   &llama_family, &mistral_family, &qwen2_family,  &qwen3_family};

bool contains(const std::vector<std::string>& list, const std::string& name) {
  for (const std::string& entry : list) {
    if (entry == name) return true;
  }
  return false;
}

}  // namespace

const Family& family_of(const JsonReader& json) {
  const std::vector<std::string> names = json.strings("architectures");
  const std::string type = json.string_or("model_type", "");
  std::string known;
  for (const Family* family : kFamilies) {
    if (names.empty() ? contains(family->model_types, type)
                      : contains(family->architectures, names[0]))
      return *family;
    for (const std::string& name : family->architectures)
      known += (known.empty() ? "" : ", ") + name;
  }
  throw Error(ErrorKind::unsupported, json.file(), names.empty() ? "model_type" : "architectures",
              "one of " + known, names.empty() ? (type.empty() ? "nothing" : type) : names[0]);
}

}  // namespace stet
