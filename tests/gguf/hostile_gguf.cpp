// GGUF files with damaged headers give an Error of one line or a usable model. If its fingerprint
// is the original's, so are its bits. STET_GGUF_DAMAGED sets the number of files.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <random>

#include "stet/checkpoint/gguf.hpp"
#include "stet/snapshot/snapshot.hpp"
#include "stet/text/tokenizer.hpp"
#include "tests/support/models.hpp"
#include "tests/support/small_gguf.hpp"

namespace stet::test::hostile_gguf_tests {
namespace {

size_t damaged_files() {
  const char* const given = std::getenv("STET_GGUF_DAMAGED");
  return given != nullptr ? std::stoul(given) : 2000;
}

// The result of loading a file.
struct Outcome {
  std::string fingerprint;
  std::vector<Digest> bits;  // digests of logits, keys and values
};

Outcome use(const std::string& path) {
  const auto source = gguf_source(path, false);
  const auto m = Model::load(source, 1);
  const auto tokenizer = Tokenizer::load(*source);
  for (const int32_t id : tokenizer->encode("abc cab zab")) EXPECT_LT(id, m->config().vocab_size);
  SessionOptions o = options(1);
  o.capacity = std::min<int64_t>(m->config().max_positions, 64);
  Session s(m, o);
  s.append(std::vector<int32_t>{0, static_cast<int32_t>(m->config().vocab_size) - 1, 0});
  const StateDigests digests = digests_of(s);
  return {m->fingerprint(), {digests.logits, digests.kv}};
}

std::vector<std::byte> damaged(const std::vector<std::byte>& whole, size_t header,
                               std::mt19937& random) {
  std::vector<std::byte> bytes = whole;
  if (random() % 5 == 0) bytes.resize(random() % bytes.size());
  for (size_t i = 0, n = 1 + random() % 3; i < n && !bytes.empty(); ++i) {
    std::byte& b = bytes[random() % std::min(header, bytes.size())];
    const std::byte choices[] = {std::byte{0}, std::byte{0xFF}, std::byte{0x7F},
                                 b ^ static_cast<std::byte>(1 << random() % 8)};
    b = choices[random() % 4];
  }
  return bytes;
}

TEST(HostileGguf, DamagedHeadersGiveAnErrorOrTheSameBits) {
  const TemporaryDirectory dir;
  const std::string path = dir / "m.gguf";
  const std::vector<std::byte> whole = write_small_gguf(path);
  const Outcome expected = use(path);
  const std::string name = "blk.1.ffn_down.weight",
                    text(reinterpret_cast<const char*>(whole.data()), whole.size());
  const size_t header = text.rfind(name) + name.size() + 32;  // skips its shape, type and offset
  std::mt19937 random(11);
  size_t refused = 0, same = 0;
  const size_t files = damaged_files();
  for (size_t i = 0; i < files; ++i) {
    const std::vector<std::byte> bytes = damaged(whole, header, random);
    std::ofstream(path, std::ios::binary | std::ios::trunc)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
    try {
      const Outcome found = use(path);
      if (found.fingerprint != expected.fingerprint) continue;
      EXPECT_TRUE(found.bits == expected.bits) << "file " << i;
      ++same;
    } catch (const Error& e) {
      EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos) << e.what();
      ++refused;
    }
  }
  EXPECT_GT(refused, files / 4);
  EXPECT_GT(same, files / 100);
  RecordProperty("refused", fmt::format("{} of {}, {} the same model", refused, files, same));
}

TEST(HostileGguf, AFileThatIsWrittenToMeanwhileIsRefused) {
  const TemporaryDirectory dir;
  const std::string path = dir / "m.gguf";
  write_small_gguf(path);
  const auto source = gguf_source(path);
  std::ofstream(path, std::ios::binary | std::ios::app).put(0);
  const std::string error = error_of([&] { Model::load(source, 1); });
  EXPECT_TRUE(error.starts_with("io: " + path + ": the file changed while it was in use: "))
      << error;
}

}  // namespace
}  // namespace stet::test::hostile_gguf_tests
