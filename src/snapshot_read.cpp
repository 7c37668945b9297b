// Opening a snapshot, and restoring a session from it. The format: src/snapshot_format.hpp.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "src/planes.hpp"
#include "src/snapshot_format.hpp"
#include "src/snapshot_meta.hpp"
#include "src/snapshot_state.hpp"
#include "stet/archive.hpp"
#include "stet/bytes.hpp"
#include "stet/error.hpp"
#include "stet/verify.hpp"

namespace stet {
namespace {

// What differs between a snapshot and what it is to be restored with: parallel lists, for one line.
class Differences {
 public:
  void compare(const std::string& name, const std::string& there, const std::string& here) {
    if (there == here) return;
    add(field_, name);
    add(expected_, there);
    add(found_, here);
  }
  void check(const std::string& path) const {
    if (!field_.empty()) throw Error(ErrorKind::mismatch, path, field_, expected_, found_);
  }

 private:
  static void add(std::string& list, const std::string& entry) {
    list += (list.empty() ? "" : ", ") + (entry.empty() ? std::string("none") : entry);
  }
  std::string field_, expected_, found_;
};

void compare_config(Differences& differences, const std::string& there, const std::string& here) {
  const nlohmann::json a = nlohmann::json::parse(there), b = nlohmann::json::parse(here);
  const auto value = [](const nlohmann::json& j, const std::string& key) {
    return j.contains(key) ? printable(j.at(key).dump(), 40) : std::string("none");
  };
  std::vector<std::string> keys;
  for (const auto& [key, unused] : a.items()) keys.push_back(key);
  for (const auto& [key, unused] : b.items()) {
    if (!a.contains(key)) keys.push_back(key);
  }
  for (const std::string& key : keys) differences.compare(printable(key, 40), value(a, key), value(b, key));
}

// Weights that differ are named by group, with one digest over the whole model; a single group with its own.
void compare_weights(Differences& differences, const SnapshotMeta& meta, const Model& model) {
  std::string groups;
  const auto digest_there = [&](const std::string& name) {
    for (const auto& [there, digest] : meta.fingerprints) {
      if (there == name) return digest;
    }
    return std::string("none");
  };
  size_t count = 0;
  std::string name, here;
  for (const auto& [group, digest] : model.fingerprints()) {
    if (group == "config" || group == "model" || digest_there(group) == digest_text(digest)) continue;
    groups += (count++ == 0 ? "" : "+") + group;
    name = group;
    here = digest_text(digest);
  }
  const std::string whole = digest_text(model.fingerprints().back().second);
  if (count == 1) differences.compare(groups + " weights", digest_there(name), here);
  else differences.compare((count == 0 ? "model" : groups + " weights"), digest_there("model"), whole);
}

Digest digest_in(const std::string& text, const std::string& path, const std::string& field) {
  Digest d;
  if (!parse_digest(text, &d)) snapshot_damaged(path, field, "a digest", printable(text, 60));
  return d;
}

template <class T>
std::vector<T> read_array(std::span<const std::byte> bytes, size_t count, const std::string& path, const std::string& name) {
  if (bytes.size() != count * sizeof(T)) {
    snapshot_damaged(path, name, std::to_string(count * sizeof(T)) + " bytes", std::to_string(bytes.size()));
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

std::shared_ptr<const FileSource> Snapshot::archive(const std::string& name) const {
  for (const Section& s : sections_) {
    if (s.name != name) continue;
    const auto drop = file_ != nullptr ? drop_pages(*file_) : FileBytes::Drop();
    return archive_source(bytes_.subspan(s.offset, s.size), file_, path_ + ": " + name, drop);
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

Snapshot Snapshot::parse(std::span<const std::byte> bytes, const std::string& path) {
  Snapshot s;
  s.path_ = path;
  s.bytes_ = bytes;
  Front front = decode_front(bytes, path);
  s.version_ = front.version;
  s.sections_ = std::move(front.sections);
  const std::span<const std::byte> meta = s.content("META");
  s.meta_ = decode_meta({reinterpret_cast<const char*>(meta.data()), meta.size()}, path + ": META");
  const size_t positions = static_cast<size_t>(s.meta_.positions), blocks = static_cast<size_t>(blocks_of(s.meta_.positions));
  const size_t digests = s.version_ == 1 ? 1 : static_cast<size_t>(s.meta_.kv.layers);
  s.tokens_ = read_array<int32_t>(s.content("TOKENS"), positions, path, "TOKENS");
  s.visible_ = read_array<uint64_t>(s.content("VISIBLE"), blocks, path, "VISIBLE");
  const size_t rest = positions % 64;
  if (rest != 0 && ~s.visible_.back() >> rest != 0) {
    snapshot_damaged(path, "VISIBLE", "set bits where there are no positions", "others");
  }
  s.logits_ = std::make_shared<std::vector<float>>(
      read_array<float>(s.content("LOGITS"), s.content("LOGITS").size() / sizeof(float), path, "LOGITS"));
  s.blocks_ = read_array<Digest>(s.content("BLOCKS"), blocks * digests, path, "BLOCKS");
  s.read_places();
  const bool recipe = s.meta_.form == SnapshotForm::recipe;
  const Digest logits = recipe ? digest_in(s.meta_.logits, path, "META: logits") : digest_of_all(*s.logits_);
  s.digests_ = combine_digests(s.meta_, digest_of_all(s.tokens_), s.visible_, logits, s.blocks_);
  if (!(s.section("KV").digest == s.digests_.kv)) {
    snapshot_damaged(path, "KV", "digest " + digest_text(s.digests_.kv), digest_text(s.section("KV").digest));
  }
  if (!(s.digests_.state == front.state)) {
    snapshot_damaged(path, "state", "digest " + digest_text(front.state), digest_text(s.digests_.state));
  }
  return s;
}

// Where this file has each block, from KVINDEX or by counting.
void Snapshot::read_places() {
  const size_t blocks = visible_.size();
  const Section& kv = section("KV");
  const uint64_t block_bytes = meta_.kv.block_bytes();
  places_.resize(blocks);
  const bool indexed = std::any_of(sections_.begin(), sections_.end(), [](const Section& s) { return s.name == "KVINDEX"; });
  if (!indexed) {
    const bool none = meta_.form != SnapshotForm::full && kv.size == 0;
    if (!none && kv.size != blocks * block_bytes) {
      snapshot_damaged(path_, "KV", std::to_string(blocks * block_bytes) + " bytes", std::to_string(kv.size));
    }
    for (size_t b = 0; b < blocks && !none; ++b) places_[b] = {kv.offset + b * block_bytes, block_bytes, kRaw};
    return;
  }
  ByteReader r(content("KVINDEX"), path_);
  uint64_t end = 0, next = 0;
  while (r.remaining() > 0) {
    const uint32_t block = r.u32("KVINDEX: block"), encoding = r.u32("KVINDEX: encoding");
    const uint64_t offset = r.u64("KVINDEX: offset"), size = r.u64("KVINDEX: bytes");
    const bool raw_fits = encoding == kRaw && size == block_bytes && offset % 4096 == 0;
    if (block < next || block >= blocks || offset != end || size > kv.size - offset || !(raw_fits || encoding == kPlanes)) {
      snapshot_damaged(path_, "KVINDEX", "blocks in order, one behind the other",
                       "block " + std::to_string(block) + " at " + std::to_string(offset));
    }
    places_[block] = {kv.offset + offset, size, encoding};
    next = block + 1;
    end = offset + size;
  }
  if (end != kv.size) snapshot_damaged(path_, "KV", std::to_string(end) + " bytes", std::to_string(kv.size));
}

std::span<const Digest> Snapshot::block_digests(int64_t block) const {
  const size_t each = version_ == 1 ? 1 : static_cast<size_t>(meta_.kv.layers);
  return std::span(blocks_).subspan(static_cast<size_t>(block) * each, each);
}

std::vector<Digest> Snapshot::digests_like_saved(const std::byte* block) const {
  if (version_ == 1) return {digest_of({block, meta_.kv.block_bytes()})};
  return layer_digests(meta_.kv, block);
}

bool Snapshot::is_block(int64_t block, const std::byte* bytes) const {
  return std::ranges::equal(digests_like_saved(bytes), block_digests(block));
}

uint64_t Snapshot::stored_kv_bytes() const { return section("KV").size; }

// ---------------------------------------------------------------- the parent of a delta

namespace {

constexpr int kMaxParents = 256;

// A file beside `path` that holds this state.
std::string file_with_state(const std::filesystem::path& path, const std::string& state) {
  std::error_code error;
  const std::filesystem::path directory = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    if (entry.path().extension() != ".stet" || !entry.is_regular_file(error)) continue;
    std::byte header[128];
    std::ifstream in(entry.path(), std::ios::binary);
    if (!in.read(reinterpret_cast<char*>(header), sizeof header)) continue;
    const std::optional<Digest> found = state_of_header(header);
    if (found && digest_text(*found) == state) return entry.path().string();
  }
  return "";
}

}  // namespace

void Snapshot::find_parent(const std::string& path) const {
  if (meta_.form != SnapshotForm::delta) return;
  if (path.empty() && parent_ != nullptr) return;
  std::string found = path;
  if (found.empty()) {
    const std::filesystem::path name = std::filesystem::path(meta_.parent_file).filename();
    const std::filesystem::path beside = std::filesystem::path(path_).replace_filename(name);
    std::error_code error;
    if (!name.empty() && std::filesystem::is_regular_file(beside, error)) found = beside.string();
  }
  std::shared_ptr<const Snapshot> parent;
  if (!found.empty()) {
    try {
      parent = std::make_shared<const Snapshot>(open(found));
    } catch (const Error&) {
      if (!path.empty()) throw;
    }
  }
  const auto fits = [&] { return parent != nullptr && digest_text(parent->digests().state) == meta_.parent; };
  if (!fits() && path.empty()) {
    found = file_with_state(path_, meta_.parent);
    if (!found.empty()) parent = std::make_shared<const Snapshot>(open(found));
  }
  if (!fits()) {
    throw Error(ErrorKind::io, path_, "parent", "a snapshot of state " + meta_.parent + " beside it, or by --parent",
                parent == nullptr ? "none" : "one of " + digest_text(parent->digests().state));
  }
  if (!(parent->meta().kv == meta_.kv)) snapshot_damaged(path_, "parent", "keys and values of the same shape", "others");
  parent_ = std::move(parent);
}

const Snapshot& Snapshot::parent() const {
  find_parent("");
  return *parent_;
}

Snapshot::Place Snapshot::place(int64_t block, int depth) const {
  const Extent& own = places_[static_cast<size_t>(block)];
  if (own.size > 0) return {this, own};
  if (meta_.form != SnapshotForm::delta || visible(block) == 0) return {};
  if (depth == kMaxParents) snapshot_damaged(path_, "parent", "at most 256 deltas in a chain", "more");
  const Snapshot& from = parent();
  const std::span<const Digest> mine = block_digests(block);
  const bool there = block < blocks_of(from.meta().positions);
  const std::span<const Digest> theirs = there ? from.block_digests(block) : std::span<const Digest>();
  if (!std::equal(mine.begin(), mine.end(), theirs.begin(), theirs.end())) {
    snapshot_damaged(path_, "KV block " + std::to_string(block), "one that the parent has", "none");
  }
  return from.place(block, depth + 1);
}

// ---------------------------------------------------------------- restoring

void Snapshot::check_compatible(const Model& model, const std::string& tokenizer, const SessionOptions& options) const {
  const auto contract = [](const std::string& name, int version) { return name + " version " + std::to_string(version); };
  Differences differences;
  differences.compare("contract", contract(meta_.contract, meta_.contract_version),
                      contract(contract_name(options.compute), kContractVersion));
  differences.compare("architecture", meta_.architecture, model.config().architecture);
  if (meta_.architecture == model.config().architecture) {
    compare_config(differences, meta_.config, model.config().canonical());
  }
  compare_weights(differences, meta_, model);
  if (!tokenizer.empty() && !meta_.tokenizer.empty()) differences.compare("tokenizer", meta_.tokenizer, tokenizer);
  differences.check(path_);
}

// In place, or read and looked at: null when damaged.
std::shared_ptr<KvBlock> Snapshot::load_block(KvCache& kv, int64_t block, bool map, bool trust) const {
  const KvShape& shape = meta_.kv;
  const Place at = place(block);
  if (at.file == nullptr) {
    std::shared_ptr<KvBlock> zeros = kv.fresh_block();
    return visible(block) == 0 || trust || is_block(block, zeros->data()) ? zeros : nullptr;
  }
  const std::span<const std::byte> stored = at.file->bytes_.subspan(at.extent.offset, at.extent.size);
  if (at.extent.encoding == kRaw && map && !trust) {
    const std::span<const Digest> digests = block_digests(block);
    return std::make_shared<KvBlock>(stored.data(), at.file->file_, std::vector(digests.begin(), digests.end()), at.file->path_);
  }
  std::shared_ptr<KvBlock> own = kv.fresh_block();
  std::byte* to = const_cast<std::byte*>(own->data());
  if (at.extent.encoding == kRaw) {
    // The whole block at once, its digests after it: measured a tenth faster than layer after layer.
    std::memcpy(to, stored.data(), stored.size());
  } else {
    try {
      expand_planes(stored, shape.element_size(), {to, shape.block_bytes()}, at.file->path_, "KV block " + std::to_string(block));
    } catch (const Error& e) {
      if (e.kind != ErrorKind::format) throw;
      return nullptr;
    }
  }
  return trust || is_block(block, to) ? own : nullptr;
}

// The state with its blocks; those that are damaged are zero, and listed.
State Snapshot::load(int64_t capacity, const RestoreOptions& how, std::vector<int64_t>* damaged) const {
  State state;
  state.kv = KvCache(meta_.kv, capacity == 0 ? meta_.capacity : capacity);
  if (meta_.positions > state.kv.capacity()) {
    throw Error(ErrorKind::capacity, path_, "tokens", "at most " + std::to_string(state.kv.capacity()) + " positions (--ctx)",
                std::to_string(meta_.positions));
  }
  std::vector<std::shared_ptr<KvBlock>> blocks(visible_.size());
  const bool map = how.map && file_ != nullptr;
  if (meta_.form == SnapshotForm::delta) find_parent("");
  run_each(map ? 1 : default_threads(), blocks.size(), [&](size_t b) {
    try {
      blocks[b] = load_block(state.kv, static_cast<int64_t>(b), map, how.trust);
      if (blocks[b] != nullptr && (how.check || how.heal)) blocks[b]->check_all(meta_.kv, static_cast<int64_t>(b));
    } catch (const Error& e) {
      if (e.kind != ErrorKind::format) throw;
      blocks[b] = nullptr;
    }
  });
  for (size_t b = 0; b < blocks.size(); ++b) {
    if (blocks[b] != nullptr) continue;
    damaged->push_back(static_cast<int64_t>(b));
    blocks[b] = state.kv.fresh_block();
  }
  state.kv.adopt(std::move(blocks), visible_, meta_.positions);
  for (const Snapshot* s = this; map && s != nullptr; s = s->parent_.get()) state.kv.keep_file(s->file_);
  state.tokens = tokens_;
  if (!tokens_.empty() && !logits_->empty()) state.logits = logits_;
  state.generation = meta_.generation;
  state.prunes = meta_.prunes;
  state.dialogue = meta_.dialogue;
  return state;
}

State Snapshot::state(int64_t capacity, const RestoreOptions& how) const {
  if (meta_.form == SnapshotForm::recipe) {
    throw Error(ErrorKind::argument, path_, "form", "full or delta: this needs keys and values", "recipe");
  }
  std::vector<int64_t> damaged;
  State state = load(capacity, how, &damaged);
  if (!damaged.empty()) {
    snapshot_damaged(path_, "KV block " + std::to_string(damaged[0]), "the bytes that were saved (--heal computes them again)", "others");
  }
  return state;
}

namespace {

bool is_mapped(const KvCache& kv) {
  for (int64_t b = 0; b < kv.blocks(); ++b) {
    if (!kv.shared_block(b)->writable()) return true;
  }
  return false;
}

}  // namespace

Session Snapshot::restore(std::shared_ptr<const Model> model, const std::string& tokenizer, const SessionOptions& options,
                          const RestoreOptions& how, RestoreReport* report) const {
  RestoreReport ignored;
  RestoreReport& r = report != nullptr ? *report : ignored;
  SessionOptions o = options;
  if (o.capacity == 0) o.capacity = std::min(meta_.capacity, model->config().max_positions);
  checked_capacity(model->config(), o.capacity);
  if (!how.replay) o.kv_type = meta_.kv.type;
  if (!how.replay) {
    check_compatible(*model, tokenizer, o);
    const KvShape shape{model->config().layers, model->config().kv_heads, model->config().head_dim, meta_.kv.type};
    if (!(shape == meta_.kv)) snapshot_damaged(path_, "META: kv", "the shape of the model's config", "another");
  }
  if (how.replay || meta_.form == SnapshotForm::recipe) {
    Session session = stet::replay(model, recipe(), o);
    if (!how.replay) prove(session);
    r = {0, session.size(), {}, true};
    return session;
  }
  const size_t logits = tokens_.empty() ? 0 : static_cast<size_t>(model->config().vocab_size);
  if (logits_->size() != logits) {
    snapshot_damaged(path_, "LOGITS", std::to_string(logits) + " values", std::to_string(logits_->size()));
  }
  std::vector<int64_t> damaged;
  Session session(model, load(o.capacity, how, &damaged), o);
  if (!damaged.empty() && !how.heal) {
    snapshot_damaged(path_, "KV block " + std::to_string(damaged[0]), "the bytes that were saved (--heal computes them again)", "others");
  }
  r = {session.size(), 0, {}, how.check || how.heal || !is_mapped(session.kv())};
  if (!damaged.empty()) heal(session, damaged, &r);
  return session;
}

// A damaged block is computed again from its tokens, over the blocks before it. Where a prune came later than the block,
// what its tokens saw is gone, and everything is computed again.
void Snapshot::heal(Session& session, const std::vector<int64_t>& damaged, RestoreReport* report) const {
  const State& broken = session.state();
  std::vector<std::shared_ptr<KvBlock>> blocks;
  for (int64_t b = 0; b < broken.kv.blocks(); ++b) blocks.push_back(broken.kv.shared_block(b));
  const SessionOptions options{broken.kv.capacity(), meta_.kv.type, session.compute()};
  if (damaged[0] * kBlockPositions < broken.floor()) {
    const Session again = stet::replay(session.shared_model(), broken, options);
    for (const int64_t b : damaged) blocks[static_cast<size_t>(b)] = again.kv().shared_block(b);
    report->recomputed = again.drawn();
  } else {
    for (const int64_t b : damaged) {
      const int64_t begin = b * kBlockPositions, end = std::min(meta_.positions, begin + kBlockPositions);
      State before{{tokens_.begin(), tokens_.begin() + begin}, KvCache(meta_.kv, broken.kv.capacity()), nullptr, {}, {}, {}};
      before.kv.adopt({blocks.begin(), blocks.begin() + b}, {visible_.begin(), visible_.begin() + b}, begin);
      Session again(session.shared_model(), std::move(before), options);
      again.append(std::span(tokens_).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)));
      blocks[static_cast<size_t>(b)] = again.kv().shared_block(b);
      report->recomputed += end - begin;
    }
  }
  for (const int64_t b : damaged) {
    if (!is_block(b, blocks[static_cast<size_t>(b)]->data())) {
      snapshot_damaged(path_, "KV block " + std::to_string(b), "a block that its tokens give", "another, after it was computed again");
    }
  }
  State whole = broken;
  whole.kv = KvCache(meta_.kv, broken.kv.capacity());
  whole.kv.adopt(std::move(blocks), visible_, meta_.positions);
  for (const Snapshot* s = this; file_ != nullptr && s != nullptr; s = s->parent_.get()) whole.kv.keep_file(s->file_);
  session = Session(session.shared_model(), std::move(whole), options);
  report->healed = damaged;
  report->reused = meta_.positions - std::min(meta_.positions, report->recomputed);
}

// What was computed again from a recipe is what was saved.
void Snapshot::prove(Session& session) const {
  for (size_t b = 0; b < visible_.size(); ++b) {
    if (session.kv().visible(static_cast<int64_t>(b)) == visible_[b]) continue;
    snapshot_damaged(path_, "VISIBLE[" + std::to_string(b) + "]", "what the prunes leave", "another mask");
  }
  const std::vector<Digest> found = all_block_digests(session.kv(), session.compute().threads);
  for (size_t i = 0; i < found.size() && i < blocks_.size(); ++i) {
    if (found[i] == blocks_[i]) continue;
    const size_t layers = static_cast<size_t>(meta_.kv.layers);
    throw Error(ErrorKind::mismatch, path_, "KV block " + std::to_string(i / layers) + ", layer " + std::to_string(i % layers),
                "digest " + digest_text(blocks_[i]), digest_text(found[i]));
  }
  const Digest logits = digest_of(std::as_bytes(session.logits()));
  if (!(logits == digests_.logits)) {
    throw Error(ErrorKind::mismatch, path_, "logits", "digest " + digest_text(digests_.logits), digest_text(logits));
  }
}

}  // namespace stet
