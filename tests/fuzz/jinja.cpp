// Renders a template with the JSON variables that follow kSplit. Checks the marks, which are the
// ranges of the output that came from variables.
#include "stet/text/jinja.hpp"

#include <algorithm>

#include "stet/text/utf8.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace stet;

namespace {

constexpr std::string_view kSplit("\0--\0", 4);

jinja::Variables variables_of(std::string_view json) {
  int origin = 0;
  jinja::Variables all = {{"x", jinja::Value::string("<x>", 100)}};
  const jinja::Value value = jinja::Value::from_json(json, "variables");
  for (const auto& [name, member] : value.members())
    all.emplace_back(name, member.marked(origin++));
  return all;
}

void check(const jinja::Text& text) {
  fuzz::must(utf8_valid(text.bytes), "text is UTF-8");
  size_t last = 0;
  for (const jinja::Mark& mark : text.marks) {
    fuzz::must(mark.begin >= last && mark.begin < mark.end && mark.end <= text.bytes.size(),
               "marks are in order");
    fuzz::must(mark.origin >= 0, "a mark has an origin");
    last = mark.end;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input = fuzz::text_of(data, size);
  const size_t split = std::min(input.find(kSplit), size);
  return fuzz::read_and_use([&] {
    const jinja::Program program = jinja::Program::parse(input.substr(0, split), "template");
    const jinja::Variables variables =
        variables_of(split < size ? input.substr(split + kSplit.size()) : "{}");
    jinja::RenderOptions options;
    options.limits = {
        .steps = 100'000, .memory = size_t{16} << 20, .output = size_t{4} << 20, .depth = 300};
    const jinja::Text text = program.render(variables, options);
    check(text);
    fuzz::must(program.render(variables, options) == text, "a template renders the same again");
  });
}
