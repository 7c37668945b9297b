#include "tools/prompt/tokenizer_choice.hpp"

#include <algorithm>
#include <array>

#include "stet/checkpoint/gguf.hpp"
#include "stet/text/tokenizer.hpp"

namespace stet::tool {
namespace {

std::string pre;

}  // namespace

void add_pre_to(Command& app) {
  if (app.has_option("--pre")) return;
  app.add_option("--pre", pre,
                 "how to split text for a GGUF file's tokenizer, instead of its tokenizer.ggml.pre")
      ->type_name("NAME")
      ->group("Model")
      ->check(one_of(pre_tokenizer_names()));
}

const std::string& chosen_pre() { return pre; }

bool has_tokenizer(const FileSource& source) {
  const std::vector<std::string> names = Tokenizer::files_of(source);
  const std::array kinds = {"tokenizer.json", "tokenizer.model", "vocab.json",
                            "tokenizer_fault.json"};
  return !names.empty() &&
         std::ranges::any_of(kinds, [&](const char* kind) { return names.front() == kind; });
}

std::optional<Error> tokenizer_fault(const FileSource& source) {
  if (!has_tokenizer(source)) return std::nullopt;
  try {
    Tokenizer::load(source);
    return std::nullopt;
  } catch (const Error& e) {
    return e;
  }
}

}  // namespace stet::tool
