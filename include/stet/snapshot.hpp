// A session in a file. The format is specified at the head of src/snapshot_format.hpp.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
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

// What a snapshot says about itself.
struct SnapshotMeta {
  std::string contract;  // contract_name()
  int contract_version = 0;
  std::string checkpoint;    // name of the directory that the model came from: a hint, not part of the state
  std::string architecture;
  std::string config;        // ModelConfig::canonical()
  std::vector<std::pair<std::string, std::string>> fingerprints;  // as Model::fingerprints(), texts of digests
  std::string tokenizer;     // its fingerprint, or empty
  KvShape kv;
  int64_t capacity = 0, positions = 0;
  GenerationState generation;
};

class Snapshot {
 public:
  struct Section {
    std::string name;
    uint64_t offset, size;
    Digest digest;
  };

  // Writes everything that `session` is to `path`, which afterwards is the whole new snapshot or, on an io Error,
  // what it was before. `tokenizer` is Tokenizer::fingerprint(), or empty when none is in use. Returns the digests.
  // Throws an argument Error for a generation state that could not be read back (see check_generation).
  static StateDigests save(Session& session, const std::string& tokenizer, const std::string& path);

  // Reads and checks all but the keys and values, which stay in the file until restore(). Throws Error: io, or
  // format for anything that is not as it was written.
  static Snapshot open(const std::string& path);

  // A session equal to the one that was saved. Refuses (mismatch Error, all differences at once) a model, a
  // tokenizer or a contract other than those of the snapshot; every block's digest is checked. `options` gives
  // how to compute and, if not 0, a new capacity.
  Session restore(std::shared_ptr<const Model> model, const std::string& tokenizer, const SessionOptions& options) const;

  const std::string& path() const { return path_; }
  uint64_t file_size() const;
  const std::vector<Section>& sections() const { return sections_; }
  const SnapshotMeta& meta() const { return meta_; }
  const std::vector<int32_t>& tokens() const { return tokens_; }
  const GenerationState& generation() const { return meta_.generation; }
  const std::vector<float>& logits() const { return logits_; }
  const StateDigests& digests() const { return digests_; }

 private:
  Snapshot() = default;
  const Section& section(const std::string& name) const;
  std::span<const std::byte> content(const std::string& name) const;
  void check_compatible(const Model& model, const std::string& tokenizer, const SessionOptions& options) const;
  void check_consistent(const Session& session) const;
  void read_blocks(KvCache& kv, int threads) const;

  std::shared_ptr<const MappedFile> file_;
  std::string path_;
  std::vector<Section> sections_;
  SnapshotMeta meta_;
  std::vector<int32_t> tokens_;
  std::vector<uint64_t> visible_;
  std::vector<float> logits_;
  std::vector<Digest> blocks_;
  StateDigests digests_;
};

}  // namespace stet
