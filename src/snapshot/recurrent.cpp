#include "src/snapshot/recurrent.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "src/base/digest_bytes.hpp"
#include "src/snapshot/file.hpp"
#include "src/snapshot/identity.hpp"
#include "src/snapshot/meta.hpp"
#include "src/snapshot/parents.hpp"
#include "stet/base/bytes.hpp"
#include "stet/base/error.hpp"
#include "stet/model/config.hpp"
#include "stet/session/identity.hpp"

namespace stet {

std::vector<int64_t> recurrent_layers(const RecurrentShape& shape) {
  std::vector<int64_t> layers;
  for (size_t l = 0; l < shape.layers.size(); ++l) {
    if (!shape.layers[l].empty()) layers.push_back(static_cast<int64_t>(l));
  }
  return layers;
}

namespace {

constexpr size_t kAnchorEntry = 64, kAnchorsFront = 24, kRoom = 64;
constexpr uint32_t kByContent = 1, kHidden = 2, kBlockEnd = 4, kInParent = 8;

uint64_t padded(uint64_t bytes) { return (bytes + kRoom - 1) / kRoom * kRoom; }

std::span<const std::byte> zeros(uint64_t count) {
  static const std::byte kZeros[kRoom] = {};
  return std::span(kZeros).first(count);
}

// Returns the numbers of a layer's arrays, which follow one another.
template <class T>
std::span<T> layer_of(const RecurrentShape& shape, std::span<T> numbers, int64_t layer) {
  const std::vector<RecurrentArray>& arrays = shape.layers[static_cast<size_t>(layer)];
  const size_t begin = arrays.front().offset;
  return numbers.subspan(begin, arrays.back().offset + arrays.back().count() - begin);
}

std::span<const std::byte> bytes_of(const Anchor& a) {
  return a.last == nullptr ? std::span<const std::byte>() : std::as_bytes(std::span(*a.last));
}

std::span<const float> numbers_of(const Anchor& a, const RecurrentShape& shape) {
  return {a.arrays->numbers(), shape.numbers};
}

Digest digest_of_anchor(std::span<const std::byte> last, std::span<const std::byte> arrays) {
  RunningDigest digest;
  digest.add(last);
  digest.add(arrays);
  return digest.result();
}

// Returns true if `name`, derived from tokens, names the live arrays of a file. Those of a state
// that tokens do not give have no such name.
bool is_name_of_end(const SnapshotFile& file, const Sha256& name) {
  const int64_t end = file.meta.positions;
  const State recipe = file.recipe();
  return Lineage{recipe, file.meta.kv}.replayable() &&
         anchor_names(recipe, file.meta.kv, {&end, 1}).front() == name;
}

bool holds_anchor(const SnapshotFile& file, const AnchorEntry& a) {
  if (a.position == file.meta.positions) return is_name_of_end(file, a.name);
  return std::ranges::any_of(file.anchors, [&](const AnchorEntry& other) {
    return other.position == a.position && other.name == a.name;
  });
}

}  // namespace

std::vector<Digest> array_digests(const RecurrentShape& shape, std::span<const float> numbers) {
  std::vector<Digest> digests;
  for (const int64_t layer : recurrent_layers(shape))
    digests.push_back(digest_of(std::as_bytes(layer_of(shape, numbers, layer))));
  return digests;
}

// ------------------------------------------------------------------ writing

RecurrentSections::RecurrentSections(const State& state, const SnapshotContents& contents,
                                     const Snapshot* parent) {
  if (state.recurrent.empty()) return;
  add_state(state, contents);
  if (contents.meta.form != SnapshotForm::recipe) add_anchors(state, contents, parent);
}

void RecurrentSections::add_piece(std::span<const std::byte> piece) {
  PieceSection& s = all_.back();
  s.pieces.push_back(piece);
  s.size += piece.size();
  if (s.size % kRoom == 0) return;
  s.pieces.push_back(zeros(padded(s.size) - s.size));
  s.size = padded(s.size);
}

void RecurrentSections::add_state(const State& state, const SnapshotContents& contents) {
  ByteWriter index;
  for (const Digest& d : contents.arrays) put(index, d);
  state_index_ = index.take();
  all_.push_back({"STATE", 0, digest_of(state_index_), {}});
  if (contents.meta.form == SnapshotForm::recipe) {
    all_.back().pieces = {state_index_};
    all_.back().size = state_index_.size();
    return;
  }
  add_piece(state_index_);
  const std::span<const std::byte> arrays = std::as_bytes(state.recurrent.numbers());
  all_.back().pieces.push_back(arrays);
  all_.back().size += arrays.size();
}

namespace {

// An anchor to be written.
struct WrittenAnchor {
  const Anchor* anchor;
  Sha256 name;
  bool in_parent;
};

// Returns the anchors before the end, whose arrays are those of STATE. Leaves out damaged ones that
// tokens determine.
std::vector<WrittenAnchor> anchors_to_write(const State& state, const SnapshotFile* parent) {
  std::vector<const Anchor*> anchors;
  std::vector<int64_t> positions;
  for (const auto& a : state.anchors.all()) {
    if (a->position >= state.size()) continue;
    anchors.push_back(a.get());
    positions.push_back(a->position);
  }
  if (anchors.empty()) return {};
  const std::vector<Sha256> names = anchor_names(state, state.kv.shape(), positions);
  std::vector<WrittenAnchor> written;
  for (size_t i = 0; i < anchors.size(); ++i) {
    const Anchor& a = *anchors[i];
    if (a.by_content) {
      written.push_back({&a, recurrent_content(numbers_of(a, state.recurrent.shape())), false});
      continue;
    }
    const bool in_parent = parent != nullptr && holds_anchor(*parent, {names[i], a.position});
    if (in_parent || is_intact(a)) written.push_back({&a, names[i], in_parent});
  }
  return written;
}

}  // namespace

void RecurrentSections::add_anchors(const State& state, const SnapshotContents& contents,
                                    const Snapshot* parent) {
  const std::vector<WrittenAnchor> anchors = anchors_to_write(
      state, contents.meta.form == SnapshotForm::delta ? parent->file().get() : nullptr);
  if (anchors.empty()) return;
  ByteWriter index;
  put(index, contents.digests.state);
  index.u64(anchors.size());
  all_.push_back({"ANCHORS", 0, {}, {}});
  std::vector<std::span<const std::byte>> stored;
  for (const auto& [anchor, name, in_parent] : anchors) {
    const Anchor& a = *anchor;
    index.bytes(name.bytes);
    index.u64(static_cast<uint64_t>(a.position));
    index.u32((a.by_content ? kByContent : 0) | (a.hidden ? kHidden : 0) |
              (a.block_end ? kBlockEnd : 0) | (in_parent ? kInParent : 0));
    if (in_parent) {
      index.u32(0);
      put(index, Digest());
      continue;
    }
    const std::span<const std::byte> last = bytes_of(a),
                                     arrays = std::as_bytes(numbers_of(a, state.recurrent.shape()));
    index.u32(static_cast<uint32_t>(last.size() / sizeof(float)));
    put(index, digest_of_anchor(last, arrays));
    stored.insert(stored.end(), {last, arrays});
  }
  anchors_index_ = index.take();
  all_.back().digest = digest_of(anchors_index_);
  add_piece(anchors_index_);
  for (const std::span<const std::byte> piece : stored) add_piece(piece);
}

// ------------------------------------------------------------------ reading

namespace {

void check_index(const SnapshotFile& file, const std::string& name,
                 std::span<const std::byte> index) {
  const Digest found = digest_of(index), expected = file.find(name)->digest;
  if (!(found == expected))
    snapshot_damaged(file.path, name, "digest " + digest_text(expected), digest_text(found));
}

void check_size(const SnapshotFile& file, const std::string& name, uint64_t expected) {
  const uint64_t found = file.content(name).size();
  if (found != expected)
    snapshot_damaged(file.path, name, std::to_string(expected) + " bytes", std::to_string(found));
}

void check_zeros(const SnapshotFile& file, const std::string& name, uint64_t from, uint64_t to) {
  for (const std::byte b : file.content(name).subspan(from, to - from)) {
    if (b != std::byte{0})
      snapshot_damaged(file.path, name, "zero bytes between its parts", "others");
  }
}

void decode_state(SnapshotFile& file, const RecurrentShape& shape) {
  const size_t index = recurrent_layers(shape).size() * sizeof(Digest);
  const bool recipe = file.meta.form == SnapshotForm::recipe;
  check_size(file, "STATE", recipe ? index : padded(index) + shape.bytes());
  const std::span<const std::byte> section = file.content("STATE");
  check_index(file, "STATE", section.first(index));
  ByteReader r(section.first(index), file.path);
  while (r.remaining() > 0) file.arrays.push_back(get(r, "STATE"));
  if (!recipe) check_zeros(file, "STATE", index, padded(index));
}

AnchorEntry decode_anchor(ByteReader& r, const SnapshotFile& file, int64_t least) {
  AnchorEntry a;
  std::ranges::copy(r.bytes(sizeof a.name, "anchor"), a.name.bytes.begin());
  const uint64_t position = r.u64("anchor");
  const uint32_t flags = r.u32("anchor"), numbers = r.u32("anchor");
  a.digest = get(r, "anchor");
  if (position < static_cast<uint64_t>(least) ||
      position >= static_cast<uint64_t>(file.meta.positions))
    snapshot_damaged(file.path, "ANCHORS",
                     "ascending positions below " + std::to_string(file.meta.positions),
                     std::to_string(position));
  a.position = static_cast<int64_t>(position);
  a.by_content = (flags & kByContent) != 0, a.hidden = (flags & kHidden) != 0;
  a.block_end = (flags & kBlockEnd) != 0, a.in_parent = (flags & kInParent) != 0;
  const bool delta = file.meta.form == SnapshotForm::delta;
  if (flags > (delta ? 15u : 7u) || (a.in_parent && (numbers != 0 || a.by_content)))
    snapshot_damaged(file.path, "ANCHORS", "known flags", std::to_string(flags));
  const auto expected =
      static_cast<uint32_t>(a.hidden ? file.meta.hidden_size : file.meta.vocab_size);
  if (numbers != 0 && numbers != expected)
    snapshot_damaged(file.path, "ANCHORS", std::to_string(expected) + " numbers",
                     std::to_string(numbers));
  a.numbers = numbers;
  return a;
}

// An index for another state is ignored: anchors can be computed again.
void decode_anchors(SnapshotFile& file, const RecurrentShape& shape) {
  const std::span<const std::byte> section = file.content("ANCHORS");
  ByteReader front(section, file.path);
  const Digest state = get(front, "ANCHORS");
  const uint64_t count = front.u64("ANCHORS");
  if (count > section.size() / kAnchorEntry)
    snapshot_damaged(file.path, "ANCHORS", "entries inside of it", std::to_string(count));
  const uint64_t index = kAnchorsFront + count * kAnchorEntry;
  if (index > section.size())
    snapshot_damaged(file.path, "ANCHORS", std::to_string(index) + " bytes at least",
                     std::to_string(section.size()));
  check_index(file, "ANCHORS", section.first(index));
  if (!(state == file.digests.state)) return;
  ByteReader r(section.subspan(kAnchorsFront, count * kAnchorEntry), file.path);
  uint64_t end = index;
  const auto take = [&](uint64_t bytes) {
    const uint64_t at = padded(end);
    if (at > section.size() || bytes > section.size() - at)
      snapshot_damaged(file.path, "ANCHORS", "arrays inside of it", "fewer bytes");
    check_zeros(file, "ANCHORS", end, at);
    end = at + bytes;
    return at;
  };
  for (uint64_t i = 0; i < count; ++i) {
    AnchorEntry a =
        decode_anchor(r, file, file.anchors.empty() ? 1 : file.anchors.back().position + 1);
    if (!a.in_parent) {
      a.last_at = take(a.numbers * sizeof(float));
      a.arrays_at = take(shape.bytes());
    }
    file.anchors.push_back(std::move(a));
  }
  check_size(file, "ANCHORS", padded(end));
  check_zeros(file, "ANCHORS", end, padded(end));
}

}  // namespace

void decode_recurrent(SnapshotFile& file) {
  const RecurrentShape& shape = file.meta.recurrent;
  for (const char* name : {"STATE", "ANCHORS"}) {
    if (file.find(name) != nullptr && shape.empty())
      snapshot_damaged(file.path, "section " + std::string(name), "",
                       "the model has no recurrent layers");
  }
  if (shape.empty()) return;
  if (file.find("STATE") == nullptr)
    snapshot_damaged(file.path, "section STATE", "", "it is missing");
  decode_state(file, shape);
}

void decode_anchor_index(SnapshotFile& file) {
  if (file.find("ANCHORS") == nullptr) return;
  if (file.meta.form == SnapshotForm::recipe)
    snapshot_damaged(file.path, "section ANCHORS", "", "a recipe has no arrays");
  decode_anchors(file, file.meta.recurrent);
}

// ------------------------------------------------------------------ loading

namespace {

std::span<const std::byte> live_bytes(const SnapshotFile& file) {
  return file.content("STATE").subspan(padded(file.arrays.size() * sizeof(Digest)));
}

std::shared_ptr<RecurrentBuffer> buffer_of(std::span<const std::byte> bytes) {
  auto buffer = std::make_shared<RecurrentBuffer>(bytes.size());
  std::memcpy(buffer->memory.data(), bytes.data(), bytes.size());
  return buffer;
}

std::vector<int64_t> damaged_layers(const SnapshotFile& file, const RecurrentShape& shape,
                                    std::span<const float> numbers) {
  const std::vector<int64_t> layers = recurrent_layers(shape);
  const std::vector<Digest> found = array_digests(shape, numbers);
  std::vector<int64_t> damaged;
  for (size_t i = 0; i < layers.size(); ++i) {
    if (!(found[i] == file.arrays[i])) damaged.push_back(layers[i]);
  }
  return damaged;
}

std::string anchor_field(const AnchorEntry& a) {
  return "anchor at position " + std::to_string(a.position);
}

// An anchor's bytes in a file; `file` is null if no file has them.
struct Found {
  const SnapshotFile* file = nullptr;
  const AnchorEntry* entry = nullptr;  // null: the live arrays of `file`
};

// `chain` is null if the file's parents are not available.
Found find_anchor(const SnapshotChain* chain, const SnapshotFile& file, const AnchorEntry& a) {
  if (!a.in_parent) return {&file, &a};
  if (chain == nullptr) return {};
  for (const auto& parent : chain->parents()) {
    if (a.position == parent->meta.positions && is_name_of_end(*parent, a.name))
      return {parent.get(), nullptr};
    for (const AnchorEntry& other : parent->anchors) {
      if (!other.in_parent && other.position == a.position && other.name == a.name)
        return {parent.get(), &other};
    }
  }
  return {};
}

Error anchor_damage(const SnapshotFile& file, const AnchorEntry& a) {
  return {ErrorKind::format, file.path, anchor_field(a), "",
          std::string("its bytes are not those that were saved") +
              (a.by_content ? ", and tokens do not give them" : "; --heal does without it")};
}

// Reads the arrays of an anchor, and its numbers into `last`, which is not null if there are any.
// Throws anchor_damage() for other bytes than those that were saved. Keeps the file mapped.
struct AnchorReader {
  std::shared_ptr<const MappedFile> mapping;
  std::span<const std::byte> numbers, arrays;
  std::shared_ptr<std::vector<float>> last;
  Digest saved;
  Error damage;

  void operator()(std::span<std::byte> to) const {
    copy_bytes(arrays, to.data());
    if (last != nullptr) {
      last->resize(numbers.size() / sizeof(float));
      std::memcpy(last->data(), numbers.data(), numbers.size());
    }
    const auto read =
        last == nullptr ? std::span<const std::byte>() : std::as_bytes(std::span(*last));
    if (!(digest_of_anchor(read, to) == saved)) throw damage;
  }
};

// Reads the live arrays of a file in the same way.
struct LiveReader {
  std::shared_ptr<const MappedFile> mapping;
  std::span<const std::byte> arrays;
  RecurrentShape shape;
  std::vector<Digest> saved;
  Error damage;

  void operator()(std::span<std::byte> to) const {
    copy_bytes(arrays, to.data());
    const std::span numbers(reinterpret_cast<const float*>(to.data()), shape.numbers);
    if (array_digests(shape, numbers) != saved) throw damage;
  }
};

// Returns an anchor. If `map`, and the file is mapped, its arrays and numbers are read when they are
// first used. Otherwise they are read now. Reading throws a format Error for damage.
Anchor load_anchor(const Found& found, const AnchorEntry& as, const RecurrentShape& shape,
                   bool map) {
  const SnapshotFile& from = *found.file;
  const Error damage = anchor_damage(from, as);
  Anchor a{as.position, nullptr, nullptr, false, as.block_end, as.by_content};
  RecurrentBuffer::Read read;
  if (found.entry == nullptr) {
    a.last = from.logits;
    read = LiveReader{from.mapping, live_bytes(from), shape, from.arrays, damage};
  } else {
    const AnchorEntry& e = *found.entry;
    const std::span<const std::byte> section = from.content("ANCHORS");
    a.hidden = e.hidden;
    if (e.numbers > 0) a.last = std::make_shared<std::vector<float>>();
    read = AnchorReader{from.mapping,
                        section.subspan(e.last_at, e.numbers * sizeof(float)),
                        section.subspan(e.arrays_at, shape.bytes()),
                        a.last,
                        e.digest,
                        damage};
  }
  auto arrays = std::make_shared<RecurrentBuffer>(shape.bytes(), std::move(read));
  if (!map || from.mapping == nullptr) arrays->load();
  a.arrays = std::move(arrays);
  return a;
}

// Calls use(entry, name) for each anchor of a file. The name is the one derived from tokens. An
// anchor that is named by its content has another.
template <class Use>
void each_anchor(const SnapshotFile& file, Use use) {
  std::vector<int64_t> positions;
  for (const AnchorEntry& a : file.anchors) positions.push_back(a.position);
  const std::vector<Sha256> names = anchor_names(file.recipe(), file.meta.kv, positions);
  for (size_t i = 0; i < positions.size(); ++i) use(file.anchors[i], names[i]);
}

// Throws a format Error if an anchor's name is not the one derived from its tokens or arrays.
void check_name(const SnapshotFile& file, const AnchorEntry& e, const Sha256& by_tokens,
                const Anchor* anchor, const RecurrentShape& shape) {
  const Sha256 expected = !e.by_content       ? by_tokens
                          : anchor != nullptr ? recurrent_content(numbers_of(*anchor, shape))
                                              : e.name;
  if (expected != e.name)
    snapshot_damaged(file.path, anchor_field(e), sha256_text(expected), sha256_text(e.name));
}

// Returns true if the anchor's bytes are in the file or its parents, and are those that were saved.
// Returns false if no file has them. Throws a format Error for damage and for another name.
bool check_anchor(const SnapshotChain* chain, const SnapshotFile& file, const AnchorEntry& e,
                  const Sha256& by_tokens, const RecurrentShape& shape) {
  const Found found = find_anchor(chain, file, e);
  if (found.file == nullptr) {
    check_name(file, e, by_tokens, nullptr, shape);
    return false;
  }
  const Anchor a = load_anchor(found, e, shape, false);
  check_name(file, e, by_tokens, &a, shape);
  return true;
}

}  // namespace

std::vector<int64_t> load_arrays(const SnapshotFile& file, RecurrentState& to) {
  const RecurrentShape& shape = file.meta.recurrent;
  to = RecurrentState(shape);
  if (shape.empty()) return {};
  to.set(buffer_of(live_bytes(file)));
  return damaged_layers(file, shape, to.numbers());
}

Anchors load_anchors(const SnapshotChain& chain, const SnapshotFile& file, bool map, bool heal) {
  Anchors anchors;
  if (file.anchors.empty()) return anchors;
  const RecurrentShape& shape = file.meta.recurrent;
  each_anchor(file, [&](const AnchorEntry& e, const Sha256& name) {
    const Found found = find_anchor(&chain, file, e);
    if (found.file == nullptr) return;
    try {
      Anchor a = load_anchor(found, e, shape, map);
      check_name(file, e, name, map ? nullptr : &a, shape);
      anchors.add(std::move(a));
    } catch (const Error& error) {
      if (!heal || e.by_content || error.kind != ErrorKind::format) throw;
    }
  });
  return anchors;
}

void refuse_arrays(const SnapshotFile& file, int64_t layer) {
  const auto limit = replay_limit(file.recipe());
  snapshot_damaged(file.path, "recurrent arrays, layer " + std::to_string(layer), "",
                   "its bytes are not those that were saved" +
                       (limit ? ", and tokens do not give them (" + limit->reason + ")"
                              : "; stet resume --heal computes them again"));
}

size_t check_recurrent(const SnapshotChain& chain, const SnapshotFile& file) {
  if (file.arrays.empty() || file.meta.form == SnapshotForm::recipe) return 0;
  const RecurrentShape& shape = file.meta.recurrent;
  const auto live = buffer_of(live_bytes(file));
  for (const int64_t layer : damaged_layers(file, shape, {live->numbers(), shape.numbers}))
    refuse_arrays(file, layer);
  size_t checked = file.arrays.size();
  each_anchor(file, [&](const AnchorEntry& e, const Sha256& name) {
    if (check_anchor(&chain, file, e, name, shape)) ++checked;
  });
  return checked;
}

std::optional<Difference> damaged_anchor(const SnapshotChain* chain, const SnapshotFile& file) {
  std::optional<Difference> damage;
  if (file.anchors.empty()) return damage;
  const RecurrentShape& shape = file.meta.recurrent;
  each_anchor(file, [&](const AnchorEntry& e, const Sha256& name) {
    if (damage) return;
    try {
      check_anchor(chain, file, e, name, shape);
    } catch (const Error& error) {
      if (error.kind != ErrorKind::format) throw;
      damage = {.what = "recurrent arrays of the " + anchor_field(e),
                .position = e.position - 1,
                .expected = "the bytes that were saved",
                .found = "others"};
    }
  });
  return damage;
}

}  // namespace stet
