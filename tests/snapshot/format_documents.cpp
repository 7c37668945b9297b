// The worked examples of docs/formats.md, compared with the files that stet writes.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "stet/checkpoint/packed.hpp"
#include "stet/generate/generate.hpp"
#include "stet/snapshot/snapshot.hpp"
#include "tests/support/models.hpp"
#include "tests/support/snapshot_image.hpp"

namespace stet::test::format_documents_tests {
namespace {

// Compares the lines "OFFSET  BYTES  words" of an example, all in hexadecimal, with the file, and
// also the size that the page gives. The example is the text below `heading`, up to the next one.
void expect_lines(const std::string& heading, const std::string& file, size_t at_least) {
  const std::string page = read_text(STET_ROOT "/docs/formats.md");
  const size_t begin = page.find("### " + heading + "\n");
  ASSERT_NE(begin, std::string::npos) << heading;
  const std::string text = page.substr(begin, page.find("\n##", begin) - begin);
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
      ASSERT_EQ(static_cast<unsigned char>(file[at]), std::stoul(hex.substr(i, 2), nullptr, 16))
          << line;
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
  TemporaryDirectory scratch;
  Snapshot::save(s, scratch / "example.stet");
  expect_lines("Example of a snapshot", read_text(scratch / "example.stet"), 500);
}

// A second implementation of that page.
TEST(FormatDocument, TheStateDigestFollowsTheDocument) {
  using Json = nlohmann::json;
  for (const char* name : {"v3-full", "v3-recipe", "v3-conversation", "v3-shifted", "v3-kept",
                           "v3-edited", "v4-full", "v4-shifted"}) {
    SnapshotImage image =
        SnapshotImage::parse(read_text(data_path(std::string("snapshots/") + name + ".stet")));
    const Json meta = Json::parse(image.section("META").content);
    std::string text = meta["contract"].get<std::string>() + " " +
                       std::to_string(meta["contract_version"].get<int>()) + " " +
                       meta["kv"]["type"].get<std::string>() + " " +
                       meta["fingerprints"].back()["digest"].get<std::string>() + " " +
                       meta["generation"].dump();
    Json prunes = Json::array();
    const bool sections = std::any_of(image.sections.begin(), image.sections.end(),
                                      [](const auto& s) { return s.name == "PRUNES"; });
    const std::string log = sections ? image.section("PRUNES").content : "";
    for (size_t at = 0, removed = 0; at < log.size(); at += 32) {
      const uint64_t begin = get_le(log, at + 8, 8), end = get_le(log, at + 16, 8);
      const bool shift = get_le(log, at + 24, 4) == 1;
      Json ids = Json::array();
      for (uint64_t i = begin; shift && i < end; ++i, removed += 4)
        ids.push_back(get_le(image.section("REMOVED").content, removed, 4));
      prunes.push_back({{"at", get_le(log, at, 8)},
                        {"begin", begin},
                        {"end", end},
                        {"positions", shift ? "shift" : "keep"},
                        {"removed", ids}});
    }
    if (!prunes.empty()) text += " " + prunes.dump();
    if (meta.contains("edits")) text += " edits " + meta["edits"].dump();
    if (meta.contains("dialogue")) text += " " + meta["dialogue"].dump();
    Digest logits = digest_of(std::as_bytes(std::span(image.section("LOGITS").content)));
    if (meta["form"] == "recipe") logits = parse_digest(meta["logits"]).value();
    for (const char* section : {"TOKENS", "VISIBLE"})
      text += digest_bytes(image.section(section).content);
    text += le(logits) + digest_bytes(image.section("BLOCKS").content);
    EXPECT_EQ(image.state, digest_bytes(text)) << name;
  }
}

TEST(FormatDocument, EveryLineIsInThePackedFile) {
  TemporaryDirectory scratch;
  const std::string directory = scratch / "example";
  pack_checkpoint(*directory_source(data_path("models/llama2-tiny-f16")), Contract::q4, directory);
  expect_lines("Example of a packed checkpoint", read_text(directory + "/packed.safetensors"), 140);
}

}  // namespace
}  // namespace stet::test::format_documents_tests
