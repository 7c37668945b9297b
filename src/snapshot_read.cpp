// Opening a snapshot, and restoring a session from it. The format: src/snapshot_format.hpp.
#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "src/snapshot_format.hpp"
#include "src/snapshot_meta.hpp"
#include "src/snapshot_state.hpp"
#include "stet/error.hpp"

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

uint64_t Snapshot::file_size() const { return file_->bytes().size(); }

const Snapshot::Section& Snapshot::section(const std::string& name) const {
  for (const Section& s : sections_) {
    if (s.name == name) return s;
  }
  snapshot_damaged(path_, "section " + name, "one", "none");
}

std::span<const std::byte> Snapshot::content(const std::string& name) const {
  const Section& s = section(name);
  return file_->bytes().subspan(s.offset, s.size);
}

Snapshot Snapshot::open(const std::string& path) {
  Snapshot s;
  s.path_ = path;
  s.file_ = MappedFile::open(path);
  Front front = decode_front(s.file_->bytes(), path);
  s.sections_ = std::move(front.sections);
  const std::span<const std::byte> meta = s.content("META");
  s.meta_ = decode_meta({reinterpret_cast<const char*>(meta.data()), meta.size()}, path + ": META");
  const size_t positions = static_cast<size_t>(s.meta_.positions);
  const size_t blocks = static_cast<size_t>(used_blocks(s.meta_.positions));
  s.tokens_ = read_array<int32_t>(s.content("TOKENS"), positions, path, "TOKENS");
  s.visible_ = read_array<uint64_t>(s.content("VISIBLE"), blocks, path, "VISIBLE");
  s.logits_ = read_array<float>(s.content("LOGITS"), s.content("LOGITS").size() / sizeof(float), path, "LOGITS");
  s.blocks_ = read_array<Digest>(s.content("BLOCKS"), blocks, path, "BLOCKS");
  const size_t kv_bytes = blocks * s.meta_.kv.block_bytes();
  if (s.content("KV").size() != kv_bytes) {
    snapshot_damaged(path, "KV", std::to_string(kv_bytes) + " bytes", std::to_string(s.content("KV").size()));
  }
  s.digests_ = combine_digests(s.meta_, s.tokens_, s.visible_, s.logits_, s.blocks_);
  if (!(s.section("KV").digest == s.digests_.kv)) {
    snapshot_damaged(path, "KV", "digest " + digest_text(s.digests_.kv), digest_text(s.section("KV").digest));
  }
  if (!(s.digests_.state == front.state)) {
    snapshot_damaged(path, "state", "digest " + digest_text(front.state), digest_text(s.digests_.state));
  }
  return s;
}

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

// What the file says about itself must hold for the model whose fingerprint it carries.
void Snapshot::check_consistent(const Session& session) const {
  const int64_t vocab = session.model().config().vocab_size;
  if (!(session.kv().shape() == meta_.kv)) snapshot_damaged(path_, "META: kv", "the shape of the model's config", "another");
  const size_t logits = tokens_.empty() ? 0 : static_cast<size_t>(vocab);
  if (logits_.size() != logits) {
    snapshot_damaged(path_, "LOGITS", std::to_string(logits) + " values", std::to_string(logits_.size()));
  }
  for (size_t i = 0; i < tokens_.size(); ++i) {
    if (tokens_[i] < 0 || tokens_[i] >= vocab) {
      snapshot_damaged(path_, "TOKENS[" + std::to_string(i) + "]", "a token id in 0.." + std::to_string(vocab - 1),
                       std::to_string(tokens_[i]));
    }
  }
}

// Copies first and digests the copy, so that what was checked is what is used.
void Snapshot::read_blocks(KvCache& kv, int threads) const {
  const std::byte* from = content("KV").data();
  const size_t block_bytes = meta_.kv.block_bytes();
  std::vector<Digest> found(blocks_.size());
  run_team(threads > 0 ? threads : default_threads(), [&](Team team) {
    const Range mine = team.share(blocks_.size());
    for (size_t b = mine.begin; b < mine.end; ++b) {
      std::byte* to = kv.writable(static_cast<int64_t>(b));
      std::memcpy(to, from + b * block_bytes, block_bytes);
      found[b] = digest_of({to, block_bytes});
    }
  });
  for (size_t b = 0; b < blocks_.size(); ++b) {
    if (!(found[b] == blocks_[b])) {
      snapshot_damaged(path_, "KV block " + std::to_string(b), "digest " + digest_text(blocks_[b]), digest_text(found[b]));
    }
    kv.set_visible(static_cast<int64_t>(b), visible_[b]);
  }
}

Session Snapshot::restore(std::shared_ptr<const Model> model, const std::string& tokenizer,
                          const SessionOptions& options) const {
  check_compatible(*model, tokenizer, options);
  SessionOptions o = options;
  if (o.capacity == 0) o.capacity = meta_.capacity;
  o.kv_type = meta_.kv.type;
  Session session(std::move(model), o);
  check_consistent(session);
  session.kv_.prepare(meta_.positions);
  read_blocks(session.kv_, o.compute.threads);
  session.kv_.commit(meta_.positions);
  session.tokens_ = tokens_;
  session.logits_ = logits_;
  session.generation_ = meta_.generation;
  return session;
}

}  // namespace stet
