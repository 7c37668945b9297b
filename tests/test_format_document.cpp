// The worked examples of docs/snapshot-format.md and docs/packed-format.md are what is written.
#include <regex>

#include "scratch.hpp"
#include "stet/generate.hpp"
#include "stet/packed.hpp"
#include "stet/snapshot.hpp"
#include "support.hpp"

namespace stet::test {
namespace {

// The lines "OFFSET  BYTES  words" of a document, all in hexadecimal, against the file; and its size, which stands there too.
void expect_lines(const std::string& document, const std::string& file, size_t at_least) {
  const std::string text = read_text_file(std::string(STET_ROOT) + "/docs/" + document, size_t{1} << 20);
  const std::regex row("    ([0-9a-f]{5})  ((?:[0-9a-f]{2} ?)+?)(?:  .*)?");
  std::istringstream lines(text);
  size_t bytes = 0;
  for (std::string line; std::getline(lines, line);) {
    std::smatch match;
    if (!std::regex_match(line, match, row)) continue;
    size_t at = std::stoul(match[1], nullptr, 16);
    const std::string hex = match[2];
    for (size_t i = 0; i + 1 < hex.size(); i += 3, ++at, ++bytes) {
      ASSERT_LT(at, file.size());
      ASSERT_EQ(static_cast<unsigned char>(file[at]), std::stoul(hex.substr(i, 2), nullptr, 16)) << line;
    }
  }
  EXPECT_GT(bytes, at_least);
  EXPECT_NE(text.find("(" + std::to_string(file.size()) + " bytes)"), std::string::npos);
}

TEST(FormatDocument, EveryLineIsInTheSnapshot) {
  const auto m = model(data_path("models/llama2-tiny-f16"));
  SessionOptions o = options(1);
  o.capacity = 8;
  Session s(m, o);
  s.generation() = default_generation(*m);
  append_prompt(s, std::vector<int32_t>{1, 2, 3});
  stet_test::ScratchDir scratch;
  Snapshot::save(s, "", scratch / "example.stet");
  expect_lines("snapshot-format.md", read_text_file(scratch / "example.stet", size_t{1} << 20), 500);
}

TEST(FormatDocument, EveryLineIsInThePackedFile) {
  stet_test::ScratchDir scratch;
  const std::string directory = scratch / "example";
  pack_checkpoint(*directory_source(data_path("models/llama2-tiny-f16")), Contract::q4, directory);
  expect_lines("packed-format.md", read_text_file(directory + "/packed.safetensors", size_t{1} << 20), 140);
}

}  // namespace
}  // namespace stet::test
