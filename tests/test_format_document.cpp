// The worked example of docs/snapshot-format.md is what is written.
#include <fstream>
#include <regex>

#include "scratch.hpp"
#include "stet/generate.hpp"
#include "stet/snapshot.hpp"
#include "support.hpp"

namespace stet::test {
namespace {

TEST(FormatDocument, EveryLineIsInTheFile) {
  const auto m = model(data_path("models/llama2-tiny-f16"));
  SessionOptions o = options(1);
  o.capacity = 8;
  Session s(m, o);
  s.generation() = default_generation(*m);
  append_prompt(s, std::vector<int32_t>{1, 2, 3});
  stet_test::ScratchDir scratch;
  Snapshot::save(s, "", scratch / "example.stet");
  const std::string file = read_text_file(scratch / "example.stet", size_t{1} << 20);
  std::ifstream document(std::string(STET_ROOT) + "/docs/snapshot-format.md");
  const std::regex row("    ([0-9a-f]{5})  ((?:[0-9a-f]{2} ?)+?)(?:  .*)?");
  std::string line;
  size_t bytes = 0;
  while (std::getline(document, line)) {
    std::smatch match;
    if (!std::regex_match(line, match, row)) continue;
    size_t at = std::stoul(match[1], nullptr, 16);
    const std::string hex = match[2];
    for (size_t i = 0; i + 1 < hex.size(); i += 3, ++at, ++bytes) {
      ASSERT_LT(at, file.size());
      ASSERT_EQ(static_cast<unsigned char>(file[at]), std::stoul(hex.substr(i, 2), nullptr, 16)) << line;
    }
  }
  EXPECT_GT(bytes, 500u);
  std::ifstream again(std::string(STET_ROOT) + "/docs/snapshot-format.md");
  const std::string all((std::istreambuf_iterator<char>(again)), {});
  EXPECT_NE(all.find("(" + std::to_string(file.size()) + " bytes)"), std::string::npos);
}

}  // namespace
}  // namespace stet::test
