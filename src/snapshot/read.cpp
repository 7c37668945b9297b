// Opening a snapshot. The format: src/snapshot/write.cpp.
#include <algorithm>
#include <cstring>

#include "src/snapshot/format.hpp"
#include "src/snapshot/identity.hpp"
#include "src/snapshot/kept.hpp"
#include "src/snapshot/meta.hpp"
#include "src/snapshot/state.hpp"
#include "stet/base/bytes.hpp"
#include "stet/base/error.hpp"
#include "stet/base/limits.hpp"
#include "stet/files/archive.hpp"
#include "stet/model/contract.hpp"

namespace stet {
namespace {

Digest digest_in(const std::string& text, const std::string& path, const std::string& field) {
  const std::optional<Digest> digest = parse_digest(text);
  if (!digest) snapshot_damaged(path, field, "a digest", printable(text, 60));
  return *digest;
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

}  // namespace

const Snapshot::Section& Snapshot::section(const std::string& name) const {
  for (const Section& s : sections_) {
    if (s.name == name) return s;
  }
  snapshot_damaged(path_, "section " + name, "one", "none");
}

std::span<const std::byte> Snapshot::content(const std::string& name) const {
  const Section& s = section(name);
  return bytes_.subspan(s.offset, s.size);
}

bool Snapshot::has_section(const std::string& name) const {
  return std::any_of(sections_.begin(), sections_.end(),
                     [&](const Section& s) { return s.name == name; });
}

std::span<const std::byte> Snapshot::optional_content(const std::string& name) const {
  return has_section(name) ? content(name) : std::span<const std::byte>();
}

std::shared_ptr<const FileSource> Snapshot::archive(const std::string& name) const {
  for (const Section& s : sections_) {
    if (s.name != name) continue;
    return archive_source(bytes_.subspan(s.offset, s.size), nullptr, path_ + ": " + name, file_);
  }
  return nullptr;
}

// ---------------------------------------------------------------- opening

Snapshot Snapshot::open(const std::string& path) {
  const std::shared_ptr<const MappedFile> file = MappedFile::open(path);
  Snapshot s = parse(file->bytes(), path);
  s.file_ = file;
  return s;
}

Snapshot Snapshot::open_with_parents(const std::string& path,
                                     const std::optional<std::string>& parent) {
  Snapshot s = open(path);
  s.find_parents(parent);
  return s;
}

Snapshot Snapshot::parse(std::span<const std::byte> bytes, const std::string& path) {
  Snapshot s;
  s.path_ = path;
  s.bytes_ = bytes;
  Front front = decode_front(bytes, path);
  s.sections_ = std::move(front.sections);
  const std::span<const std::byte> meta = s.content("META");
  if (meta.size() > kMaxMetaBytes)
    snapshot_damaged(path, "META", "at most " + std::to_string(kMaxMetaBytes) + " bytes",
                     std::to_string(meta.size()));
  s.meta_ = decode_meta({{reinterpret_cast<const char*>(meta.data()), meta.size()},
                         s.optional_content("PRUNES"),
                         s.optional_content("REMOVED")},
                        path + ": META");
  const size_t positions = static_cast<size_t>(s.meta_.positions),
               blocks = static_cast<size_t>(blocks_of(s.meta_.positions));
  const size_t digests = blocks * static_cast<size_t>(s.meta_.kv.layers);
  s.tokens_ = read_array<int32_t>(s.content("TOKENS"), positions, path, "TOKENS");
  s.visible_ = read_array<uint64_t>(s.content("VISIBLE"), blocks, path, "VISIBLE");
  const size_t rest = positions % 64;
  if (rest != 0 && ~s.visible_.back() >> rest != 0) {
    snapshot_damaged(path, "VISIBLE", "set bits where there are no positions", "others");
  }
  s.logits_ = std::make_shared<std::vector<float>>(read_array<float>(
      s.content("LOGITS"), s.content("LOGITS").size() / sizeof(float), path, "LOGITS"));
  s.blocks_ = read_array<Digest>(s.content("BLOCKS"), digests, path, "BLOCKS");
  s.check_vocabulary();
  s.read_extents();
  const bool recipe = s.meta_.form == SnapshotForm::recipe;
  const Digest logits =
      recipe ? digest_in(s.meta_.logits, path, "META: logits") : digest_of_all(*s.logits_);
  s.digests_ = combine_digests(s.meta_, digest_of_all(s.tokens_), s.visible_, logits, s.blocks_);
  if (!(s.section("KV").digest == s.digests_.kv)) {
    snapshot_damaged(path, "KV", "digest " + digest_text(s.digests_.kv),
                     digest_text(s.section("KV").digest));
  }
  if (!(s.digests_.state == front.state)) {
    snapshot_damaged(path, "state", "digest " + digest_text(front.state),
                     digest_text(s.digests_.state));
  }
  s.digests_.id = front.id;
  s.read_contents();
  if (s.has_section("KEPT"))
    s.kept_ = decode_kept(s.content("KEPT"), s.meta_, s.digests_.state, path + ": KEPT");
  return s;
}

// The hashes of blocks that tokens do not give.
void Snapshot::read_contents() {
  const bool replayable = meta_.edits.empty() && (tokens_.empty() || is_replayable(meta_.contract));
  const size_t named = replayable ? 0 : Lineage{recipe(), meta_.kv}.blocks_by_content().size();
  contents_ = read_array<Sha256>(optional_content("CONTENT"), named, path_, "CONTENT");
}

// Tokens and logits are those of the config's vocabulary.
void Snapshot::check_vocabulary() const {
  const int64_t vocab = meta_vocab(meta_);
  for (size_t i = 0; i < tokens_.size(); ++i) {
    if (tokens_[i] >= 0 && tokens_[i] < vocab) continue;
    snapshot_damaged(path_, "TOKENS[" + std::to_string(i) + "]",
                     "a token id in 0.." + std::to_string(vocab - 1), std::to_string(tokens_[i]));
  }
  const int64_t expected = tokens_.empty() || meta_.form == SnapshotForm::recipe ? 0 : vocab,
                found = static_cast<int64_t>(logits_->size());
  if (found != expected)
    snapshot_damaged(path_, "LOGITS", std::to_string(expected) + " values", std::to_string(found));
}

// Where this file has each block, from KVINDEX or by counting.
void Snapshot::read_extents() {
  const size_t blocks = visible_.size();
  const Section& kv = section("KV");
  const uint64_t block_bytes = meta_.kv.block_bytes();
  extents_.resize(blocks);
  if (has_section("KVINDEX")) return read_index();
  const bool none = meta_.form != SnapshotForm::full && kv.size == 0;
  if (!none && kv.size != blocks * block_bytes) {
    snapshot_damaged(path_, "KV", std::to_string(blocks * block_bytes) + " bytes",
                     std::to_string(kv.size));
  }
  for (size_t b = 0; b < blocks && !none; ++b)
    extents_[b] = {kv.offset + b * block_bytes, block_bytes, kRaw, true};
}

void Snapshot::read_index() {
  const Section& kv = section("KV");
  const uint64_t block_bytes = meta_.kv.block_bytes();
  auto held = std::make_shared<HeldLayers>();
  for (const int64_t window : ModelConfig::from_canonical(meta_.config, path_).window)
    held->push_back(window == 0);
  held_ = std::move(held);
  ByteReader r(content("KVINDEX"), path_);
  uint64_t end = 0, next = 0, expanded = 0;
  while (r.remaining() > 0) {
    const uint32_t block = r.u32("KVINDEX: block"), encoding = r.u32("KVINDEX: encoding");
    const uint64_t offset = r.u64("KVINDEX: offset"), size = r.u64("KVINDEX: bytes");
    const bool raw_fits = encoding == kRaw && size == block_bytes && offset % 4096 == 0;
    const bool held_fits = held_->size() == static_cast<size_t>(meta_.kv.layers) &&
                           ((encoding == kHeldRaw && size == stored_bytes(kHeldRaw)) ||
                            (encoding == kHeldShuffle && stored_bytes(kHeldShuffle) > 0));
    if (block < next || block >= extents_.size() || offset != end || size > kv.size - offset ||
        !(raw_fits || encoding == kByteShuffle || held_fits)) {
      snapshot_damaged(path_, "KVINDEX", "blocks in order, one behind the other",
                       "block " + std::to_string(block) + " at " + std::to_string(offset));
    }
    if (is_shuffled(encoding))
      check_expanded(stored_bytes(encoding), size, expanded += stored_bytes(encoding));
    extents_[block] = {kv.offset + offset, size, encoding, true};
    next = block + 1;
    end = offset + size;
  }
  if (end != kv.size)
    snapshot_damaged(path_, "KV", std::to_string(end) + " bytes", std::to_string(kv.size));
  for (size_t b = 0; b < extents_.size() && meta_.form == SnapshotForm::full; ++b) {
    if (!extents_[b].there && visible_[b] != 0)
      snapshot_damaged(path_, "KVINDEX", "block " + std::to_string(b) + ", which is visible",
                       "none");
  }
}

// What a block has in a file before compression.
uint64_t Snapshot::stored_bytes(uint32_t encoding) const {
  return is_held(encoding) ? held_bytes(meta_.kv, *held_) : meta_.kv.block_bytes();
}

int64_t Snapshot::windowed_blocks() const {
  return std::ranges::count_if(extents_,
                               [](const Extent& e) { return e.there && is_held(e.encoding); });
}

// A compressed block of `size` bytes may be the `block` ones that it says, and so may all of them
// up to it, `expanded` bytes.
void Snapshot::check_expanded(uint64_t block, uint64_t size, uint64_t expanded) const {
  const uint64_t least = block / kMaxDeflateRatio,
                 most = kExpandedBytes + kExpandedRatio * bytes_.size();
  if (size < least)
    snapshot_damaged(path_, "KVINDEX",
                     "at least " + std::to_string(least) + " bytes of a compressed block",
                     std::to_string(size));
  if (expanded <= most) return;
  snapshot_damaged(path_, "KVINDEX",
                   "compressed blocks that become at most " + std::to_string(most) + " bytes",
                   "more");
}

std::vector<BlockIdentity> Snapshot::block_identities() const {
  return Lineage{recipe(), meta_.kv}.identities(contents_);
}

std::span<const Digest> Snapshot::block_digests(int64_t block) const {
  const size_t each = static_cast<size_t>(meta_.kv.layers);
  return std::span(blocks_).subspan(static_cast<size_t>(block) * each, each);
}

bool Snapshot::is_block(int64_t block, const std::byte* bytes) const {
  return std::ranges::equal(layer_digests(meta_.kv, bytes), block_digests(block));
}

uint64_t Snapshot::stored_kv_bytes() const { return section("KV").size; }

}  // namespace stet
