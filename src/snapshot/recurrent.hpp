// Encodes and decodes the sections STATE and ANCHORS: the arrays of recurrent layers after the last
// position and at earlier ones (docs/formats.md, "Recurrent state").
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "stet/snapshot/compare.hpp"
#include "stet/snapshot/file.hpp"
#include "stet/snapshot/snapshot.hpp"

namespace stet {

class SnapshotChain;

// Returns one digest for each layer with arrays.
std::vector<Digest> array_digests(const RecurrentShape& shape, std::span<const float> numbers);
// Returns the layers with arrays, in order.
std::vector<int64_t> recurrent_layers(const RecurrentShape& shape);

// A section that is written without copying its large parts.
struct PieceSection {
  std::string name;
  uint64_t size = 0;
  Digest digest;  // digest of the section's index
  std::vector<std::span<const std::byte>> pieces;
};

// The sections of a state's recurrent arrays. The state must outlive them.
class RecurrentSections {
 public:
  // Leaves out arrays that the parent of a delta holds, and damaged anchors that can be recomputed
  // from the tokens. There are no sections for a state without recurrent layers.
  RecurrentSections(const State& state, const SnapshotContents& contents, const Snapshot* parent);

  const std::vector<PieceSection>& all() const { return all_; }

 private:
  void add_state(const State& state, const SnapshotContents& contents);
  void add_anchors(const State& state, const SnapshotContents& contents, const Snapshot* parent);
  void add_piece(std::span<const std::byte> piece);

  std::vector<PieceSection> all_;
  std::vector<std::byte> state_index_, anchors_index_;
};

// Sets the arrays' digests and the index of anchors. The other sections must have been read.
// Throws a format Error.
void decode_recurrent(SnapshotFile& file);

// Loads the arrays after the last position. Returns the damaged layers.
std::vector<int64_t> load_arrays(const SnapshotFile& file, RecurrentState& to);
// Returns the anchors of a file whose bytes are in it or in its parents. With `map`, arrays in a
// mapped file are read when they are first used (is_intact). Otherwise throws a format Error for
// damage, unless `heal`: then it omits damaged anchors that can be recomputed from the tokens.
Anchors load_anchors(const SnapshotChain& chain, const SnapshotFile& file, bool map, bool heal);
// Throws a format Error for damaged arrays of a layer, which says whether tokens give them again.
[[noreturn]] void refuse_arrays(const SnapshotFile& file, int64_t layer);
// Throws a format Error if the live arrays or an anchor's are not as they were written, or have
// other names. Returns the number of arrays' layers and anchors checked.
size_t check_recurrent(const SnapshotChain& chain, const SnapshotFile& file);
// Returns the first anchor whose bytes or name are not those that were saved. `chain` is null if
// the file's parents are not available: anchors in them are then not compared.
std::optional<Difference> damaged_anchor(const SnapshotChain* chain, const SnapshotFile& file);

}  // namespace stet
