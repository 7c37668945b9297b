#include "src/snapshot/file.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "src/base/digest_bytes.hpp"
#include "src/snapshot/identity.hpp"
#include "src/snapshot/kept.hpp"
#include "src/snapshot/kv_blocks.hpp"
#include "src/snapshot/logs.hpp"
#include "src/snapshot/meta.hpp"
#include "src/snapshot/recurrent.hpp"
#include "stet/base/bytes.hpp"
#include "stet/base/error.hpp"
#include "stet/base/limits.hpp"
#include "stet/files/archive.hpp"
#include "stet/snapshot/snapshot.hpp"

namespace stet {

void snapshot_damaged(const std::string& path, const std::string& field,
                      const std::string& expected, const std::string& found) {
  throw Error(ErrorKind::format, path, field, expected, found);
}

// ------------------------------------------------- header and section table

namespace {

constexpr std::string_view kSectionNames[] = {
    "META", "TOKENS",  "VISIBLE", "PRUNES",   "REMOVED", "LOGITS", "BLOCKS", "CONTENT",
    "KEPT", "KVINDEX", "WEIGHTS", "TOKENIZR", "KV",      "STATE",  "ANCHORS"};

// Returns true for a section whose digest is checked with its contents.
bool has_own_index(std::string_view name) {
  return name == "KV" || name == "STATE" || name == "ANCHORS";
}

constexpr char kMagic[] = "\x93STET\r\n\x1a";
constexpr uint64_t kEntryBytes = 64, kMaxSections = 256;
// Everything before the section KV is read at once. For most models it fits in here.
constexpr size_t kFrontBytes = 1 << 20;
constexpr uint64_t kAlignment = 64, kPage = 4096, kKvAlignment = 65536;
constexpr size_t kDigestBytes = 16;  // a header ends with the digest of the bytes before it
constexpr uint32_t kMustKnow = 1;

// Required features.
constexpr uint64_t kElsewhere = 1, kCompressed = 2, kEdited = 4, kIntervened = 8, kWindowed = 16,
                   kWeighsTokens = 32, kRecurrent = 64;
// Throws an unsupported Error for features that files of this version do not have.
void check_features(const std::string& path, uint32_t version, uint64_t features) {
  constexpr uint64_t kUniform =
      kElsewhere | kCompressed | kEdited | kIntervened | kWindowed | kWeighsTokens;
  const bool tables = version == kSnapshotVersionOfTables;
  if ((features & ~(tables ? kUniform | kRecurrent : kUniform)) == 0) return;
  throw Error(
      ErrorKind::unsupported, path, "required features",
      tables ? "bits 1, 2, 4, 8, 16, 32 and 64 at most" : "bits 1, 2, 4, 8, 16 and 32 at most",
      std::to_string(features));
}

bool is_known_version(uint32_t version) {
  return version == kSnapshotVersion || version == kSnapshotVersionOfTables;
}

struct Header {
  uint32_t version;
  uint64_t sections;
  Digest table, state;
  Sha256 id;
};

void check_digest(const std::string& path, const std::string& field, const Digest& expected,
                  std::span<const std::byte> bytes) {
  const Digest found = digest_of(bytes);
  if (!(found == expected))
    snapshot_damaged(path, field, "digest " + digest_text(expected), digest_text(found));
}

void check_equal(const std::string& path, const std::string& field, uint64_t expected,
                 uint64_t found) {
  if (found != expected)
    snapshot_damaged(path, field, std::to_string(expected), std::to_string(found));
}

Sha256 get_id(ByteReader& r) {
  Sha256 id;
  std::ranges::copy(r.bytes(sizeof id, "state id"), id.bytes.begin());
  return id;
}

Header decode_header(std::span<const std::byte> file, const std::string& path) {
  if (file.size() < 8 || std::memcmp(file.data(), kMagic, 8) != 0) {
    snapshot_damaged(path, "magic", "a stet snapshot", "another file");
  }
  ByteReader r(file, path);
  r.bytes(8, "magic");
  const uint32_t version = r.u32("format version");
  if (!is_known_version(version)) {
    throw Error(ErrorKind::unsupported, path, "format version", "3 or 4", std::to_string(version));
  }
  Header h;
  h.version = version;
  const uint32_t bytes = r.u32("header size");
  const uint64_t features = r.u64("required features");
  r.u64("optional features");
  const uint64_t file_size = r.u64("file size");
  h.sections = r.u32("sections");
  r.u32("reserved");
  const uint64_t table = r.u64("section table");
  h.table = get(r, "table digest");
  h.state = get(r, "state digest");
  h.id = get_id(r);
  r.bytes(kHeaderBytes - kDigestBytes - r.position(), "reserved");
  check_digest(path, "header", get(r, "header digest"), file.first(kHeaderBytes - kDigestBytes));
  check_features(path, version, features);
  check_equal(path, "header size", kHeaderBytes, bytes);
  check_equal(path, "section table", kHeaderBytes, table);
  check_equal(path, "file size", file_size, file.size());
  if (h.sections > kMaxSections || file.size() - kHeaderBytes < h.sections * kEntryBytes) {
    snapshot_damaged(path, "sections", "a table inside the file",
                     std::to_string(h.sections) + " entries");
  }
  return h;
}

// Decodes one entry of the section table. `end` is where the previous section ends. Bytes between
// it and this section must be zero.
SnapshotSection decode_entry(ByteReader& table, uint64_t end, const SnapshotFile& file) {
  SnapshotSection s;
  const std::string name = table.text(8, "section name");
  s.name = name.substr(0, name.find('\0'));
  s.offset = table.u64("offset");
  s.size = table.u64("size");
  const uint32_t flags = table.u32("flags"), encoding = table.u32("encoding");
  s.digest = get(table, "digest");
  table.bytes(16, "reserved");
  const uint64_t size = file.bytes.size();
  if (s.offset < end || s.offset > size || s.size > size - s.offset) {
    snapshot_damaged(file.path, s.name,
                     "a section between byte " + std::to_string(end) +
                         " and the end of the file at " + std::to_string(size),
                     std::to_string(s.size) + " bytes at " + std::to_string(s.offset));
  }
  for (const std::byte b : file.bytes.subspan(end, s.offset - end)) {
    if (b != std::byte{0})
      snapshot_damaged(file.path, "bytes before " + s.name, "zero bytes",
                       std::to_string(static_cast<int>(b)));
  }
  s.must_know = (flags & kMustKnow) != 0;
  if (!is_known_section(s.name) && !s.must_know) return s;
  if (!is_known_section(s.name) || encoding != 0) {
    throw Error(ErrorKind::unsupported, file.path, "section " + s.name, "",
                "this version of stet cannot read it (flags " + std::to_string(flags) +
                    ", encoding " + std::to_string(encoding) + ")");
  }
  return s;
}

// Reads header and table, and checks every byte of the file except the section KV.
Header decode_front(SnapshotFile& file) {
  const Header header = decode_header(file.bytes, file.path);
  const std::span<const std::byte> table =
      file.bytes.subspan(kHeaderBytes, header.sections * kEntryBytes);
  check_digest(file.path, "section table", header.table, table);
  ByteReader entries(table, file.path);
  uint64_t end = kHeaderBytes + table.size();
  for (uint64_t i = 0; i < header.sections; ++i) {
    SnapshotSection s = decode_entry(entries, end, file);
    end = s.offset + s.size;
    if (file.find(s.name) != nullptr)
      snapshot_damaged(file.path, "section " + s.name, "", "it occurs twice");
    const std::span<const std::byte> content = file.bytes.subspan(s.offset, s.size);
    if (is_archive_section(s.name)) {
      if (s.offset % kArchiveAlignment != 0)
        snapshot_damaged(file.path, s.name, "a multiple of 4096", std::to_string(s.offset));
      check_digest(file.path, s.name, s.digest,
                   read_archive_index(content, file.path + ": " + s.name).bytes);
    } else if (!has_own_index(s.name)) {
      check_digest(file.path, s.name, s.digest, content);
    }
    file.sections.push_back(std::move(s));
  }
  if (end != file.bytes.size()) {
    snapshot_damaged(file.path, "file size", std::to_string(end) + " bytes of sections",
                     std::to_string(file.bytes.size()));
  }
  return header;
}

}  // namespace

bool is_known_section(std::string_view name) {
  return std::ranges::find(kSectionNames, name) != std::end(kSectionNames);
}

bool is_archive_section(std::string_view name) { return name == "WEIGHTS" || name == "TOKENIZR"; }

uint64_t front_bytes(size_t sections) { return kHeaderBytes + kEntryBytes * sections; }

uint64_t section_offset(std::string_view name, uint64_t end) {
  const bool page = is_archive_section(name) || !is_known_section(name);
  const uint64_t alignment = name == "KV" ? kKvAlignment : page ? kPage : kAlignment;
  return (end + alignment - 1) / alignment * alignment;
}

uint64_t features_of(const SnapshotContents& contents, bool compressed, bool windowed) {
  const SnapshotMeta& meta = contents.meta;
  return (meta.form != SnapshotForm::full ? kElsewhere : 0) | (compressed ? kCompressed : 0) |
         (meta.edits.empty() ? 0 : kEdited) | (meta.interventions.empty() ? 0 : kIntervened) |
         (windowed ? kWindowed : 0) | (contents.arrays.empty() ? 0 : kRecurrent) |
         (meta.generation.sampling.weighs_tokens() ? kWeighsTokens : 0);
}

std::optional<Sha256> id_in_header(std::span<const std::byte> header) {
  if (header.size() < kHeaderBytes || std::memcmp(header.data(), kMagic, 8) != 0)
    return std::nullopt;
  ByteReader r(header, "");
  r.bytes(8, "magic");
  if (!is_known_version(r.u32("format version"))) return std::nullopt;
  r.bytes(76, "all up to the id");
  return get_id(r);
}

std::vector<std::byte> encode_front(const std::vector<SnapshotSection>& sections, uint32_t version,
                                    uint64_t features, const StateDigests& digests) {
  ByteWriter table;
  for (const SnapshotSection& s : sections) {
    table.text(s.name);
    table.zeros(8 - s.name.size());
    table.u64(s.offset);
    table.u64(s.size);
    table.u32(s.must_know ? kMustKnow : 0);
    table.u32(0);
    put(table, s.digest);
    table.zeros(16);
  }
  ByteWriter w;
  w.text({kMagic, 8});
  w.u32(version);
  w.u32(kHeaderBytes);
  w.u64(features);
  w.u64(0);
  w.u64(sections.back().offset + sections.back().size);
  w.u32(static_cast<uint32_t>(sections.size()));
  w.u32(0);
  w.u64(kHeaderBytes);
  put(w, digest_of(table.data()));
  put(w, digests.state);
  w.bytes(digests.id.bytes);
  w.zeros(kHeaderBytes - kDigestBytes - w.size());
  put(w, digest_of(w.data()));
  w.bytes(table.data());
  return w.take();
}

// --------------------------------------------------- contents of sections

namespace {

Digest digest_in(const std::string& text, const std::string& path, const std::string& field) {
  const std::optional<Digest> digest = parse_digest(text);
  if (!digest) snapshot_damaged(path, field, "a digest", printable(text, 60));
  return *digest;
}

std::span<const std::byte> required(const SnapshotFile& file, std::string_view name) {
  if (file.find(name) == nullptr)
    snapshot_damaged(file.path, "section " + std::string(name), "", "it is missing");
  return file.content(name);
}

template <class T>
std::vector<T> read_array(std::span<const std::byte> bytes, size_t count, const std::string& path,
                          const std::string& name) {
  if (bytes.size() != count * sizeof(T)) {
    snapshot_damaged(path, name, std::to_string(count * sizeof(T)) + " bytes",
                     std::to_string(bytes.size()));
  }
  std::vector<T> out(count);
  if (count > 0) std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

// Checks that token ids and logits fit the config's vocabulary.
void check_vocabulary(const SnapshotFile& file) {
  const int64_t vocab = file.meta.vocab_size;
  for (size_t i = 0; i < file.tokens.size(); ++i) {
    if (file.tokens[i] >= 0 && file.tokens[i] < vocab) continue;
    snapshot_damaged(file.path, "TOKENS[" + std::to_string(i) + "]",
                     "a token id in 0.." + std::to_string(vocab - 1),
                     std::to_string(file.tokens[i]));
  }
  const int64_t expected =
                    file.tokens.empty() || file.meta.form == SnapshotForm::recipe ? 0 : vocab,
                found = static_cast<int64_t>(file.logits->size());
  if (found != expected)
    snapshot_damaged(file.path, "LOGITS", std::to_string(expected) + " values",
                     std::to_string(found));
}

void decode_arrays(SnapshotFile& file) {
  const std::string& path = file.path;
  const size_t positions = static_cast<size_t>(file.meta.positions),
               blocks = static_cast<size_t>(blocks_of(file.meta.positions)),
               layers = static_cast<size_t>(file.meta.kv.layers);
  file.tokens = read_array<int32_t>(required(file, "TOKENS"), positions, path, "TOKENS");
  file.visible = read_array<uint64_t>(required(file, "VISIBLE"), blocks, path, "VISIBLE");
  const size_t rest = positions % 64;
  if (rest != 0 && ~file.visible.back() >> rest != 0)
    snapshot_damaged(path, "VISIBLE", "set bits where there are no positions", "others");
  const std::span<const std::byte> logits = required(file, "LOGITS");
  file.logits = std::make_shared<std::vector<float>>(
      read_array<float>(logits, logits.size() / sizeof(float), path, "LOGITS"));
  file.blocks = read_array<Digest>(required(file, "BLOCKS"), blocks * layers, path, "BLOCKS");
}

// Checks the digests of the decoded contents against those in the file. The id is taken from the
// header unchecked.
void decode_digests(SnapshotFile& file, const Header& header) {
  const Digest logits = file.meta.form == SnapshotForm::recipe
                            ? digest_in(file.meta.logits, file.path, "META: logits")
                            : digest_of(std::as_bytes(std::span(*file.logits)));
  file.digests =
      combine_digests(file.meta, file.tokens, file.visible, logits, file.blocks, file.arrays);
  const Digest& kv = file.find("KV")->digest;
  if (!(kv == file.digests.kv))
    snapshot_damaged(file.path, "KV", "digest " + digest_text(file.digests.kv), digest_text(kv));
  if (!(file.digests.state == header.state)) {
    snapshot_damaged(file.path, "state", "digest " + digest_text(header.state),
                     digest_text(file.digests.state));
  }
  file.digests.id = header.id;
}

// Returns the hashes of the blocks that tokens do not determine.
std::vector<Sha256> decode_content(const SnapshotFile& file) {
  const bool replayable =
      file.meta.edits.empty() && (file.tokens.empty() || is_replayable(file.meta.contract));
  const size_t named =
      replayable ? 0 : Lineage{file.recipe(), file.meta.kv}.blocks_by_content().size();
  return read_array<Sha256>(file.content("CONTENT"), named, file.path, "CONTENT");
}

}  // namespace

std::shared_ptr<const SnapshotFile> decode_file(std::span<const std::byte> bytes,
                                                const std::string& path,
                                                std::shared_ptr<const MappedFile> mapping) {
  const auto file = std::make_shared<SnapshotFile>();
  file->path = path;
  file->bytes = bytes;
  file->mapping = std::move(mapping);
  const Header header = decode_front(*file);
  const std::span<const std::byte> meta = required(*file, "META");
  if (meta.size() > kMaxMetaBytes)
    snapshot_damaged(path, "META", "at most " + std::to_string(kMaxMetaBytes) + " bytes",
                     std::to_string(meta.size()));
  file->meta = decode_meta({{reinterpret_cast<const char*>(meta.data()), meta.size()},
                            file->content("PRUNES"),
                            file->content("REMOVED")},
                           path + ": META");
  check_equal(path, "format version", snapshot_version(file->meta.kv), header.version);
  decode_arrays(*file);
  check_vocabulary(*file);
  required(*file, "KV");
  decode_extents(*file);
  decode_recurrent(*file);
  decode_digests(*file, header);
  file->contents = decode_content(*file);
  if (file->find("KEPT") != nullptr) file->kept = decode_kept(*file);
  decode_anchor_index(*file);
  return file;
}

std::shared_ptr<const SnapshotFile> open_file(const std::string& path) {
  const std::shared_ptr<const MappedFile> mapping = MappedFile::open(path);
  mapping->populate(0, std::min<size_t>(kFrontBytes, mapping->bytes().size()));
  return decode_file(mapping->bytes(), path, mapping);
}

std::vector<EncodedSection> encode_contents(const SnapshotContents& contents) {
  std::vector<EncodedSection> all;
  const auto add = [&](const char* name, std::span<const std::byte> bytes, bool must_know = true) {
    all.push_back({name, {bytes.begin(), bytes.end()}, must_know});
  };
  const auto add_some = [&](const char* name, std::span<const std::byte> bytes,
                            bool must_know = true) {
    if (!bytes.empty()) add(name, bytes, must_know);
  };
  const std::string meta = encode_meta(contents.meta);
  ByteWriter prunes, removed;
  encode_prunes(contents.meta.prunes, prunes, removed);
  check_meta(contents.meta, {meta, prunes.data(), removed.data()});
  add("META", std::as_bytes(std::span(meta)));
  add("TOKENS", std::as_bytes(std::span(contents.tokens)));
  add("VISIBLE", std::as_bytes(std::span(contents.visible)));
  add_some("PRUNES", prunes.data());
  add_some("REMOVED", removed.data());
  add("LOGITS", contents.logits == nullptr ? std::span<const std::byte>()
                                           : std::as_bytes(std::span(*contents.logits)));
  add("BLOCKS", std::as_bytes(std::span(contents.blocks)));
  add_some("CONTENT", std::as_bytes(std::span(contents.contents)));
  if (!contents.meta.edits.empty()) add_some("KEPT", encode_kept(contents), false);
  return all;
}

// ------------------------------------------------------------- a snapshot

Snapshot Snapshot::open(const std::string& path) { return Snapshot(open_file(path)); }

Snapshot Snapshot::open_with_parents(const std::string& path,
                                     const std::optional<std::string>& parent) {
  Snapshot s = open(path);
  s.find_parents(parent);
  return s;
}

Snapshot Snapshot::parse(std::span<const std::byte> bytes, const std::string& path) {
  return Snapshot(decode_file(bytes, path, nullptr));
}

const SnapshotFile* holder_of(const Snapshot* snapshot, const std::string& section) {
  if (snapshot == nullptr) return nullptr;
  if (snapshot->file()->find(section) != nullptr) return snapshot->file().get();
  for (const auto& parent : snapshot->parents()) {
    if (parent->file()->find(section) != nullptr) return parent->file().get();
  }
  return nullptr;
}

std::shared_ptr<const FileSource> archive_in(const SnapshotFile& file, const std::string& section) {
  if (file.find(section) == nullptr) return nullptr;
  return archive_source(file.content(section), nullptr, file.path + ": " + section, file.mapping);
}

std::shared_ptr<const FileSource> Snapshot::archive(const std::string& name) const {
  const SnapshotFile* const holder = holder_of(this, name);
  return holder == nullptr ? nullptr : archive_in(*holder, name);
}

std::vector<BlockIdentity> Snapshot::block_identities() const {
  return Lineage{recipe(), meta().kv}.identities(file_->contents);
}

uint64_t Snapshot::stored_kv_bytes() const { return file_->find("KV")->size; }

int64_t Snapshot::count_window_only_blocks() const {
  return std::ranges::count_if(file_->extents,
                               [](const BlockExtent& e) { return e.there && is_held(e); });
}

}  // namespace stet
