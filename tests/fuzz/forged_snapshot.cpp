#include "tests/fuzz/forged_snapshot.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <random>
#include <vector>

#include "stet/files/file.hpp"
#include "stet/generate/generate.hpp"
#include "stet/snapshot/snapshot.hpp"
#include "tests/fuzz/fuzz.hpp"
#include "tests/support/snapshot_image.hpp"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace stet::fuzz {

using test::get_le;
using test::SnapshotImage;

std::string model_directory() { return STET_ROOT "/tests/data/models/llama31-tiny"; }

const std::shared_ptr<const Model>& model() {
  static const auto m = Model::load(model_directory(), 1);
  return m;
}

const Tokenizer& tokenizer() {
  static const auto t = Tokenizer::load(STET_ROOT "/assets/pocket-llama3");
  return *t;
}

MemoryFile::MemoryFile(std::string_view bytes) : fd_(::memfd_create("snapshot", MFD_CLOEXEC)) {
  must(fd_ >= 0 && ::write(fd_, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()),
       "memory");
}

MemoryFile::~MemoryFile() { ::close(fd_); }

std::string MemoryFile::path() const { return "/proc/self/fd/" + std::to_string(fd_); }

std::string MemoryFile::content() const { return read_text_file(path(), size_t{1} << 30); }

namespace {

constexpr size_t kEntry = 64, kStateAt = 72, kTableDigestAt = 56;

// Returns a temporary directory that is removed when the program ends.
const std::string& folder() {
  static const struct Folder {
    std::string path = (std::filesystem::temp_directory_path() / "stet-fuzz-XXXXXX").string();
    Folder() { must(::mkdtemp(path.data()) != nullptr, "a directory"); }
    ~Folder() { std::filesystem::remove_all(path); }
  } made;
  return made.path;
}

Session session(KvType type = KvType::f32) {
  SessionOptions o;
  o.capacity = type == KvType::f32 ? 0 : 200;
  o.kv_type = type;
  o.compute.threads = 1;
  return Session(model(), o);
}

// Snapshots in every form that stet writes.
class Seeds {
 public:
  Seeds() {
    Session empty = session(), reply = session(), blocks = session(KvType::bf16);
    keep(empty);
    reply.append(std::vector<int32_t>{1, 2, 3, 4});
    reply.generation().sampling = {false, 0.75, 41, 0.9, 0.01, 0.99, 1.1, 0xFEDCBA9876543210};
    reply.generation().stop_strings = {"\n\n", "end"};
    reply.chat().messages = {{"user", "hello", R"({"name":"x"})", 0, 4, false}};
    GenerateOptions three;
    three.max_tokens = 3;
    generate(reply, &tokenizer(), three);
    keep(reply);
    const auto brought = directory_source(STET_ROOT "/assets/pocket-llama3");
    keep(reply, {.tokenizer_files = brought.get()});
    for (int32_t i = 0; i < 70; ++i) blocks.append(std::vector<int32_t>{i * 4});
    keep(blocks);
    Snapshot::save(blocks, parent_path(), {.tokenizer = &tokenizer()});
    const Snapshot parent = Snapshot::open(parent_path());
    keep(blocks, {.form = SnapshotForm::recipe});
    for (const int level : {0, 1}) {
      if (level > 0 && !have_zlib()) continue;
      keep(blocks, {.compress = level});
      Session on = blocks.fork();
      on.append(std::vector<int32_t>{9, 8, 7});
      keep(on, {.form = SnapshotForm::delta, .compress = level, .parent = &parent});
    }
    Session pruned = blocks.fork();
    pruned.prune({.keep_last = 20, .sinks = 3});
    keep(pruned);
    pruned.append(std::vector<int32_t>{5, 6, 7});
    pruned.prune({.keep_last = 10, .sinks = 2, .shift = true});
    keep(pruned);
    keep(pruned, {.form = SnapshotForm::recipe});
    const std::vector<float> key(static_cast<size_t>(blocks.kv().shape().head_dim), 0.5f);
    blocks.set_key(0, 0, 3, key);
    keep(blocks);
  }
  const std::string& at(size_t i) const { return files_[i % files_.size()]; }

 private:
  void keep(Session& session, SaveOptions form = {}) {
    form.tokenizer = &tokenizer();
    const std::string path = folder() + "/seed.stet";
    Snapshot::save(session, path, form);
    files_.push_back(read_text_file(path, size_t{1} << 30));
  }
  std::vector<std::string> files_;
};

const std::string& seed_file(size_t i) {
  static const Seeds seeds;
  return seeds.at(i);
}

void put_digest(std::string& file, size_t at, const Digest& d) {
  file.replace(at, 16, test::le(d));
}

// Recomputes the digests of the sections, the table and the header, at the places that the table
// names.
void sign(std::string& file) {
  const std::string_view view = file;
  constexpr size_t header = SnapshotImage::kHeaderBytes, digest_at = header - 16;
  if (view.size() < header) return;
  const size_t entries = std::min<size_t>(get_le(view, 40, 4), (file.size() - header) / kEntry);
  Digest blocks;
  for (size_t i = 0; i < entries; ++i) {
    const size_t at = header + i * kEntry, offset = get_le(view, at + 8, 8),
                 size = get_le(view, at + 16, 8);
    if (offset > file.size() || size > file.size() - offset) continue;
    const std::string_view content = view.substr(offset, size), name = view.substr(at, 8);
    const bool archive = name == "TOKENIZR" || name.starts_with("WEIGHTS");
    const Digest d =
        digest_of(std::as_bytes(std::span(archive ? test::archive_index(content) : content)));
    if (view.substr(at, 7) == std::string_view("BLOCKS\0", 7)) blocks = d;
    put_digest(file, at + 32, view.substr(at, 3) == std::string_view("KV\0", 3) ? blocks : d);
  }
  put_digest(file, kTableDigestAt,
             digest_of(std::as_bytes(std::span(view.substr(header, entries * kEntry)))));
  put_digest(file, digest_at, digest_of(std::as_bytes(std::span(view.substr(0, digest_at)))));
}

// Corrects the state digest, which covers the meaning of the sections. The reader's refusal states
// the expected one.
void sign_state(std::string& file) {
  try {
    Snapshot::parse(std::as_bytes(std::span(file)), "");
  } catch (const Error& e) {
    const std::optional<Digest> state = parse_digest(e.found);
    if (e.field != "state" || !state) return;
    put_digest(file, kStateAt, *state);
    sign(file);
  }
}

std::string mutated(std::string bytes) {
  const size_t size = bytes.size();
  bytes.resize(size + 64);
  bytes.resize(LLVMFuzzerMutate(reinterpret_cast<uint8_t*>(bytes.data()), size, bytes.size()));
  return bytes;
}

// Changes the content, the place or the name of one section, or removes it. Blocks keep correct
// digests.
std::string with_other_section(std::string_view file, std::minstd_rand& random) {
  SnapshotImage image = SnapshotImage::parse(file);
  if (image.sections.empty()) return seed_file(random());
  const size_t i = random() % image.sections.size(), j = random() % image.sections.size();
  SnapshotImage::Section& section = image.sections[i];
  switch (random() % 16) {
    case 0:
      std::swap(section, image.sections[j]);
      break;
    case 1:
      section = image.sections[j];
      break;
    case 2:
      image.sections.erase(image.sections.begin() + static_cast<int64_t>(i));
      break;
    case 3:
      section.name = mutated(section.name).substr(0, 8);
      break;
    case 4:
      section.flags ^= 1u << random() % 32;
      break;
    case 5:
      section.encoding ^= 1u << random() % 32;
      break;
    default:
      section.content = mutated(section.content);
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
    for (size_t b = 0; b < count; ++b)
      *blocks += test::digest_bytes(std::string_view(*kv).substr(b * each, each));
  }
  return image.build();
}

// Changes bytes of the header and the table in place.
std::string with_other_front(std::string file) {
  const size_t size = std::min(file.size(), 192 + 6 * kEntry);
  const std::string front = mutated(file.substr(0, size)).substr(0, size);
  return file.replace(0, front.size(), front);
}

}  // namespace

const std::string& parent_path() {
  static const std::string path = folder() + "/parent.stet";
  return path;
}

const std::string& scratch_path() {
  static const std::string path = folder() + "/output.stet";
  return path;
}

}  // namespace stet::fuzz

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  using namespace stet::fuzz;
  std::minstd_rand random(seed);
  random();
  std::string file(text_of(data, size));
  try {
    if (random() % 64 == 0) file = seed_file(random());
    file = random() % 4 == 0 ? with_other_front(file) : with_other_section(file, random);
  } catch (const std::out_of_range&) {  // not the structure of a snapshot
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
