// A session in a file. The format is specified at the head of src/snapshot.cpp.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "stet/file.hpp"
#include "stet/session.hpp"

namespace stet {

constexpr uint32_t kSnapshotVersion = 1;

// What names the state and everything it depends on. Two sessions with equal digests continue alike.
struct StateDigests {
  Digest tokens;  // token ids
  Digest logits;  // of the last position
  Digest kv;      // all blocks
  Digest state;   // all of it: contract, model, tokens, visibility, logits, keys, values, generation state
};

// Computes missing logits first (after a rewind), hence not const.
StateDigests digests_of(Session& session);

class Snapshot {
 public:
  struct Section {
    std::string name;
    uint64_t offset, size;
    Digest digest;
  };

  // Writes everything that `session` is to `path`, which afterwards is the whole new snapshot or, on an io Error,
  // what it was before. `tokenizer` is Tokenizer::fingerprint(), or empty when none is in use. Returns the digests.
  static StateDigests save(Session& session, const std::string& tokenizer, const std::string& path);

  // Reads and checks all but the keys and values, which stay in the file until restore(). Throws Error: io, or
  // format for anything that is not as it was written.
  static Snapshot open(const std::string& path);

  // A session equal to the one that was saved. Refuses (mismatch Error, all differences at once) a model, a
  // tokenizer or a contract other than those of the snapshot; every block's digest is checked. `options` gives
  // how to compute and, if not 0, a new capacity.
  Session restore(std::shared_ptr<const Model> model, const std::string& tokenizer, const SessionOptions& options) const;

  const std::string& path() const { return path_; }
  uint32_t version() const { return version_; }
  uint64_t file_size() const;
  const std::vector<Section>& sections() const { return sections_; }
  const std::string& contract() const { return contract_; }
  int contract_version() const { return contract_version_; }
  const std::string& architecture() const { return architecture_; }
  const std::string& config() const { return config_; }  // ModelConfig::canonical()
  // As Model::fingerprints(), texts of digests.
  const std::vector<std::pair<std::string, std::string>>& fingerprints() const { return fingerprints_; }
  const std::string& tokenizer() const { return tokenizer_; }
  const KvShape& kv_shape() const { return shape_; }
  int64_t capacity() const { return capacity_; }
  const std::vector<int32_t>& tokens() const { return tokens_; }
  const GenerationState& generation() const { return generation_; }
  const std::vector<float>& logits() const { return logits_; }
  const StateDigests& digests() const { return digests_; }

 private:
  Snapshot() = default;
  void read_meta(std::span<const std::byte> bytes);
  void check_compatible(const Model& model, const std::string& tokenizer, const SessionOptions& options) const;

  std::shared_ptr<const MappedFile> file_;
  std::string path_;
  uint32_t version_ = 0;
  std::vector<Section> sections_;
  std::string contract_, architecture_, config_, tokenizer_;
  int contract_version_ = 0;
  std::vector<std::pair<std::string, std::string>> fingerprints_;
  KvShape shape_;
  int64_t capacity_ = 0;
  std::vector<int32_t> tokens_;
  std::vector<uint64_t> visible_;
  size_t positions_ = 0;
  std::vector<float> logits_;
  std::vector<Digest> blocks_;
  GenerationState generation_;
  StateDigests digests_;
};

}  // namespace stet
