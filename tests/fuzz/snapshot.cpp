// A snapshot: opened, restored, and used. Digests guard every byte, so the mutator changes a file part by part and then
// makes the digests right again: most of what it makes reaches the readers behind them.
#include "stet/snapshot.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <random>

#include "src/planes.hpp"
#include "stet/file.hpp"
#include "stet/generate.hpp"
#include "stet/tokenizer.hpp"
#include "tests/fuzz/fuzz.hpp"
#include "tests/snapshot_image.hpp"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

using namespace stet;
using test::get_le;
using test::SnapshotImage;

namespace {

constexpr size_t kHeader = 128, kEntry = 64, kStateAt = 72, kTableDigestAt = 56, kHeaderDigestAt = 112;

const std::shared_ptr<const Model>& model() {
  static const auto m = Model::load(STET_ROOT "/tests/data/models/llama31-tiny", 1);
  return m;
}

const Tokenizer& tokenizer() {
  static const auto t = Tokenizer::load(STET_ROOT "/assets/pocket-llama3");
  return *t;
}

SessionOptions one_thread(KvType type = KvType::f32) {
  SessionOptions o;
  o.capacity = type == KvType::f32 ? 0 : 200;
  o.kv_type = type;
  o.compute.threads = 1;
  return o;
}

// A file in memory, with a path.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view bytes) : fd_(::memfd_create("snapshot", MFD_CLOEXEC)) {
    fuzz::must(fd_ >= 0 && ::write(fd_, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()), "memory");
  }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  ~MemoryFile() { ::close(fd_); }
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

// What stet itself writes: nothing, a reply in progress, two blocks of 16-bit keys and values.
std::vector<std::string> make_seeds() {
  std::string directory = (std::filesystem::temp_directory_path() / "stet-fuzz-XXXXXX").string();
  fuzz::must(::mkdtemp(directory.data()) != nullptr, "a directory");
  const std::string path = directory + "/seed.stet";
  std::vector<std::string> seeds;
  const auto keep = [&](Session& session, const SaveOptions& form = {}) {
    Snapshot::save(session, tokenizer().fingerprint(), path, form);
    seeds.push_back(read_text_file(path, size_t{1} << 30));
  };
  Session empty(model(), one_thread()), reply(model(), one_thread()), blocks(model(), one_thread(KvType::bf16));
  keep(empty);
  reply.append(std::vector<int32_t>{1, 2, 3, 4});
  reply.generation().sampling = {false, 0.75, 41, 0.9, 0.01, 0.99, 1.1, 0xFEDCBA9876543210};
  reply.generation().stop_strings = {"\n\n", "end"};
  GenerateOptions three;
  three.max_tokens = 3;
  generate(reply, &tokenizer(), three);
  keep(reply);
  for (int32_t i = 0; i < 70; ++i) blocks.append(std::vector<int32_t>{i * 4});
  keep(blocks);
  keep(blocks, {.form = SnapshotForm::recipe});
  if (have_zlib()) keep(blocks, {.compress = 1});
  blocks.prune({.keep_last = 20, .sinks = 3});
  keep(blocks);
  blocks.append(std::vector<int32_t>{5, 6, 7});
  blocks.prune({.keep_last = 10, .sinks = 2, .shift = true});
  keep(blocks);
  std::filesystem::remove_all(directory);
  return seeds;
}

const std::string& seed_file(size_t i) {
  static const std::vector<std::string> seeds = make_seeds();
  return seeds[i % seeds.size()];
}

void put_digest(std::string& file, size_t at, const Digest& d) { file.replace(at, 16, test::le(d)); }

Digest digest_from(std::string_view text) {  // of digest_text
  const auto half = [&](size_t at) { return std::strtoull(std::string(text.substr(at, 16)).c_str(), nullptr, 16); };
  return text.size() == 37 ? Digest{half(21), half(5)} : Digest{};
}

// Digests of the sections, of the table and of the header, wherever the table says that they are.
void sign(std::string& file) {
  if (file.size() < kHeader) return;
  const std::string_view view = file;
  const size_t entries = std::min<size_t>(get_le(view, 40, 4), (file.size() - kHeader) / kEntry);
  Digest blocks;
  for (size_t i = 0; i < entries; ++i) {
    const size_t at = kHeader + i * kEntry, offset = get_le(view, at + 8, 8), size = get_le(view, at + 16, 8);
    if (offset > file.size() || size > file.size() - offset) continue;
    const Digest d = digest_of(std::as_bytes(std::span(view.substr(offset, size))));
    if (view.substr(at, 7) == std::string_view("BLOCKS\0", 7)) blocks = d;
    put_digest(file, at + 32, view.substr(at, 3) == std::string_view("KV\0", 3) ? blocks : d);
  }
  put_digest(file, kTableDigestAt, digest_of(std::as_bytes(std::span(view.substr(kHeader, entries * kEntry)))));
  put_digest(file, kHeaderDigestAt, digest_of(std::as_bytes(std::span(view.substr(0, kHeaderDigestAt)))));
}

// The state digest is over what the sections mean: the reader's own refusal tells it.
void sign_state(std::string& file) {
  const MemoryFile memory(file);
  try {
    Snapshot::open(memory.path());
  } catch (const Error& e) {
    if (e.field != "state") return;
    put_digest(file, kStateAt, digest_from(e.found));
    sign(file);
  }
}

std::string mutated(std::string bytes) {
  const size_t size = bytes.size();
  bytes.resize(size + 64);
  bytes.resize(LLVMFuzzerMutate(reinterpret_cast<uint8_t*>(bytes.data()), size, bytes.size()));
  return bytes;
}

// One section has other content, another place, another name, or is gone; blocks keep digests that are right.
std::string with_other_section(std::string_view file, std::minstd_rand& random) {
  SnapshotImage image = SnapshotImage::parse(file);
  if (image.sections.empty()) return seed_file(random());
  image.version = get_le(file, 8, 4);
  image.required = get_le(file, 16, 8);
  const size_t i = random() % image.sections.size(), j = random() % image.sections.size();
  SnapshotImage::Section& section = image.sections[i];
  switch (random() % 16) {
    case 0: std::swap(section, image.sections[j]); break;
    case 1: section = image.sections[j]; break;
    case 2: image.sections.erase(image.sections.begin() + static_cast<int64_t>(i)); break;
    case 3: section.name = mutated(section.name).substr(0, 8); break;
    case 4: section.flags ^= 1u << random() % 32; break;
    case 5: section.encoding ^= 1u << random() % 32; break;
    default: section.content = mutated(section.content);
  }
  std::string *kv = nullptr, *blocks = nullptr;
  for (SnapshotImage::Section& s : image.sections) {
    if (s.name == "KV") kv = &s.content;
    if (s.name == "BLOCKS") blocks = &s.content;
  }
  const size_t count = blocks == nullptr ? 0 : blocks->size() / 16;
  if (kv != nullptr && count > 0 && kv->size() % count == 0 && random() % 4 != 0) {
    const size_t each = kv->size() / count;
    blocks->clear();
    for (size_t b = 0; b < count; ++b) *blocks += test::digest_bytes(std::string_view(*kv).substr(b * each, each));
  }
  return image.build();
}

// Header and table with bytes changed where they are.
std::string with_other_front(std::string file) {
  const size_t size = std::min(file.size(), kHeader + 6 * kEntry);
  const std::string front = mutated(file.substr(0, size)).substr(0, size);
  return file.replace(0, front.size(), front);
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  std::minstd_rand random(seed);
  random();
  std::string file(fuzz::text_of(data, size));
  try {
    if (random() % 64 == 0) file = seed_file(random());
    file = random() % 4 == 0 ? with_other_front(file) : with_other_section(file, random);
  } catch (const std::out_of_range&) {  // not the shape of a snapshot
    file = seed_file(random());
  }
  if (random() % 16 != 0) {
    sign(file);
    sign_state(file);
  }
  if (file.size() > max_size) file.resize(max_size);
  std::copy(file.begin(), file.end(), reinterpret_cast<char*>(data));
  return file.size();
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  return fuzz::read_and_use([&] {
    const MemoryFile memory(fuzz::text_of(data, size));
    const Snapshot snapshot = Snapshot::open(memory.path());
    fuzz::must(snapshot.file_size() == size, "all of the file");
    fuzz::must(snapshot.tokens().size() == static_cast<size_t>(snapshot.meta().positions), "a token per position");
    fuzz::touch(std::as_bytes(std::span(snapshot.logits())));
    for (const Snapshot::Section& s : snapshot.sections()) fuzz::must(s.offset + s.size <= size, "sections of the file");
    Session session = snapshot.restore(model(), snapshot.meta().tokenizer, one_thread());
    fuzz::must(digests_of(session).state == snapshot.digests().state, "the state that was saved");
    GenerateOptions two;
    two.max_tokens = 2;
    two.ignore_eos = true;
    if (session.size() > 0) generate(session, &tokenizer(), two);
    session.rewind(session.size() / 2);
    session.logits();
  });
}
