#include "src/snapshot/identity.hpp"

#include <algorithm>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>

#include "src/base/digest_bytes.hpp"
#include "src/snapshot/meta.hpp"
#include "src/threads/interrupt_check.hpp"
#include "stet/base/bytes.hpp"
#include "stet/base/error.hpp"
#include "stet/model/contract.hpp"
#include "stet/threads/team.hpp"

namespace stet {

// -------------------------------------------------------- the state digest

std::vector<uint64_t> visibility(const KvCache& kv) {
  std::vector<uint64_t> bits;
  for (int64_t b = 0; b < blocks_of(kv.size()); ++b) bits.push_back(kv.visible(b));
  return bits;
}

std::vector<Digest> all_block_digests(const KvCache& kv, int threads) {
  const size_t blocks = static_cast<size_t>(blocks_of(kv.size())),
               layers = static_cast<size_t>(kv.shape().layers);
  std::vector<Digest> digests(blocks * layers);
  kv.check_all(threads_or_all(threads));
  run_each(threads_or_all(threads), blocks, [&](size_t b) {
    check_interrupt();
    const std::vector<Digest> of = kv.block_info(static_cast<int64_t>(b)).digests(kv.shape());
    std::copy(of.begin(), of.end(), digests.begin() + static_cast<std::ptrdiff_t>(b * layers));
  });
  return digests;
}

StateDigests combine_digests(const SnapshotMeta& meta, std::span<const int32_t> tokens,
                             std::span<const uint64_t> visible, const Digest& logits,
                             std::span<const Digest> blocks, std::span<const Digest> arrays) {
  StateDigests d;
  d.tokens = digest_of(std::as_bytes(tokens));
  d.logits = logits;
  d.kv = digest_of(std::as_bytes(blocks));
  RunningDigest all;
  const auto text = [&](std::string_view piece) { all.add(std::as_bytes(std::span(piece))); };
  text(meta.contract + " " + std::to_string(meta.contract_version) + " " +
       kv_type_name(meta.kv.type) + " " + meta.fingerprints.back().second + " " +
       encode_generation(meta.generation));
  if (!meta.prunes.empty()) {
    text(" ");
    encode_prunes(meta.prunes, text);
  }
  if (!meta.edits.empty()) text(" edits " + encode_edits(meta.edits));
  if (!meta.interventions.empty())
    text(" interventions " + encode_interventions(meta.interventions));
  if (!meta.chat.empty()) text(" " + encode_chat(meta.chat));
  for (const Digest& part : {d.tokens, digest_of(std::as_bytes(visible)), d.logits, d.kv}) {
    ByteWriter w;
    put(w, part);
    all.add(w.data());
  }
  if (!arrays.empty()) {
    d.recurrent = digest_of(std::as_bytes(arrays));
    ByteWriter w;
    put(w, d.recurrent);
    all.add(w.data());
  }
  d.state = all.result();
  return d;
}

// ------------------------------------------------------------------ the id

namespace {

void put_text(ByteWriter& w, const std::string& text) {
  w.u64(text.size());
  w.text(text);
}

void put_ids(ByteWriter& w, std::span<const int32_t> ids) { w.bytes(std::as_bytes(ids)); }

void put_prune(ByteWriter& w, const Prune& p) {
  for (const int64_t x : {p.at, p.begin, p.end}) w.u64(static_cast<uint64_t>(x));
  w.u8(p.shift);
  put_ids(w, p.removed);
}

void put_intervention(ByteWriter& w, const Intervention& x) {
  put_text(w, encode_interventions({x}));
}

Sha256 start_of(const Lineage& l) {
  ByteWriter w;
  w.text("stet blocks 1\n");
  put_text(w, l.recipe.origin.contract);
  w.u32(static_cast<uint32_t>(l.recipe.origin.version));
  put_text(w, kv_type_name(l.shape.type));
  w.u32(kKvVersion);
  put_text(w, l.recipe.origin.model);
  return sha256_of(w.data());
}

// A point in a state's history: the number of prunes so far, then the number of positions.
struct Time {
  int64_t prunes = 0, positions = 0;
  auto operator<=>(const Time&) const = default;
};

// Follows the tokens, prunes and interventions of a state in their order, and names its blocks.
class Chain {
 public:
  // If there are no prunes, the chain also names the anchors at these ascending positions.
  explicit Chain(const Lineage& l, std::span<const int64_t> anchors = {})
      : link_(start_of(l)), anchors_(anchors) {
    const std::vector<int32_t> all = l.recipe.transcript();
    rest_ = all;
    auto next = l.recipe.interventions.begin();
    const auto intervene_after = [&](size_t prunes) {
      for (; next != l.recipe.interventions.end() && next->prunes == static_cast<int64_t>(prunes);
           ++next) {
        append_to(next->at);
        intervene(*next);
      }
    };
    for (const Prune& p : l.recipe.prunes) {
      intervene_after(pruned_.size());
      append_to(p.at);
      prune(p);
    }
    intervene_after(pruned_.size());
    append_to(l.recipe.size());
    rest_ = {};
  }

  struct Block {
    Sha256 id;
    Time changed;
  };

  const std::vector<Sha256>& anchors() const { return anchor_names_; }

  // Returns each block with its name. A block that a prune changed after it was filled is named by
  // the last such prune.
  std::vector<Block> blocks(const std::vector<Prune>& prunes) const {
    std::vector<Block> all = filled_;
    // next[b] is the first block from b on that no later prune has changed
    std::vector<size_t> next(all.size() + 1);
    std::iota(next.begin(), next.end(), size_t{0});
    const auto unchanged = [&](size_t b) {
      while (next[b] != b) b = next[b] = next[next[b]];
      return b;
    };
    for (size_t k = prunes.size(); k > 0; --k) {
      const Prune& p = prunes[k - 1];
      const size_t end =
          p.shift ? all.size() : std::min(all.size(), static_cast<size_t>(blocks_of(p.end)));
      for (size_t b = unchanged(std::min(static_cast<size_t>(p.begin / kBlockPositions), end));
           b < end; b = unchanged(b)) {
        if (all[b].changed.prunes < static_cast<int64_t>(k)) all[b] = pruned(k, b, p);
        next[b] = b + 1;
      }
    }
    return all;
  }

 private:
  void append_to(int64_t end) {
    if (end < size_ || static_cast<size_t>(end - size_) > rest_.size()) {
      throw Error(ErrorKind::argument, "", "prunes", "positions of the tokens before each",
                  std::to_string(end));
    }
    while (size_ < end) {
      const int64_t border = (size_ / kBlockPositions + 1) * kBlockPositions,
                    stop = std::min(border, end),
                    to = anchors_.empty() ? stop : std::min(stop, anchors_.front());
      const auto count = static_cast<size_t>(to - size_);
      pending_.insert(pending_.end(), rest_.begin(),
                      rest_.begin() + static_cast<std::ptrdiff_t>(count));
      rest_ = rest_.subspan(count);
      size_ = to;
      if (to == border) fill();
      if (!anchors_.empty() && to == anchors_.front()) name_anchor();
    }
  }

  void name_anchor() {
    ByteWriter w;
    w.u8('R');
    w.bytes(link_.bytes);
    w.u64(pending_.size());
    put_ids(w, pending_);
    anchor_names_.push_back(sha256_of(w.data()));
    anchors_ = anchors_.subspan(1);
  }

  void fill() {
    ByteWriter w;
    w.u8('B');
    w.bytes(link_.bytes);
    put_ids(w, pending_);
    link_ = sha256_of(w.data());
    pending_.clear();
    filled_.push_back({link_, {static_cast<int64_t>(pruned_.size()), size_}});
  }

  void prune(const Prune& p) {
    ByteWriter w;
    w.u8('P');
    w.bytes(link_.bytes);
    w.u64(pending_.size());
    put_ids(w, pending_);
    put_prune(w, p);
    link_ = sha256_of(w.data());
    pending_.clear();
    pruned_.push_back(link_);
    size_ = p.left();
    filled_.resize(static_cast<size_t>(size_ / kBlockPositions));
  }

  void intervene(const Intervention& x) {
    ByteWriter w;
    w.u8('I');
    w.bytes(link_.bytes);
    w.u64(pending_.size());
    put_ids(w, pending_);
    put_intervention(w, x);
    link_ = sha256_of(w.data());
    pending_.clear();
  }

  Block pruned(size_t k, size_t block, const Prune& p) const {
    ByteWriter w;
    w.u8('T');
    w.bytes(pruned_[k - 1].bytes);
    w.u64(block);
    return {sha256_of(w.data()), {static_cast<int64_t>(k), p.left()}};
  }

  Sha256 link_;
  int64_t size_ = 0;
  std::span<const int32_t> rest_;     // tokens of the transcript not yet appended
  std::vector<int32_t> pending_;      // tokens since link_
  std::vector<Block> filled_;         // in order
  std::vector<Sha256> pruned_;        // the link after each prune
  std::span<const int64_t> anchors_;  // positions not reached yet
  std::vector<Sha256> anchor_names_;
};

// Returns the time of the first edit. Nothing computed before it depends on an edit.
std::optional<Time> first_edit(const State& recipe) {
  std::optional<Time> first;
  for (const KvEdit& e : recipe.edits) {
    const Time at{e.prunes, e.at};
    first = std::min(first.value_or(at), at);
  }
  return first;
}

// Returns which of these blocks tokens do not determine: blocks edited, or changed after an edit.
// Setting recurrent arrays edits no block, but identities count the block before it as edited.
std::vector<bool> by_content(const State& recipe, const std::vector<Chain::Block>& blocks,
                             bool before_arrays) {
  std::vector<bool> found(blocks.size(), !is_replayable(recipe.origin.contract));
  const std::optional<Time> edited = first_edit(recipe);
  for (size_t b = 0; edited && b < blocks.size(); ++b)
    found[b] = found[b] || blocks[b].changed > *edited;
  for (const KvEdit& e : recipe.edits) {
    if (e.what == KvEdit::What::arrays && !before_arrays) continue;
    if (e.position < 0) found.assign(blocks.size(), true);
    const auto end = std::min(found.size(), static_cast<size_t>(blocks_of(e.reach())));
    for (auto b = static_cast<size_t>(e.position / kBlockPositions); b < end; ++b) found[b] = true;
  }
  return found;
}

}  // namespace

std::vector<bool> replayable_blocks(const State& state) {
  std::vector<bool> given(static_cast<size_t>(blocks_of(state.size())), true);
  if (state.edits.empty()) return given;
  std::vector<Chain::Block> blocks = Chain({state, state.kv.shape()}).blocks(state.prunes);
  if (blocks.size() < given.size())
    blocks.push_back({{}, {static_cast<int64_t>(state.prunes.size()), state.size()}});
  given = by_content(state, blocks, false);
  given.flip();
  return given;
}

std::vector<int64_t> Lineage::blocks_by_content() const {
  std::vector<int64_t> found;
  if (replayable()) return found;
  const std::vector<bool> full = by_content(recipe, Chain(*this).blocks(recipe.prunes), true);
  for (size_t b = 0; b < full.size(); ++b) {
    if (full[b]) found.push_back(static_cast<int64_t>(b));
  }
  if (recipe.size() % kBlockPositions != 0) found.push_back(full_blocks());
  return found;
}

std::vector<BlockIdentity> Lineage::identities(std::span<const Sha256> content) const {
  std::vector<BlockIdentity> all;
  const std::vector<Chain::Block> blocks = Chain(*this).blocks(recipe.prunes);
  const std::vector<bool> named_by_content =
      replayable() ? std::vector<bool>(blocks.size()) : by_content(recipe, blocks, true);
  auto next = content.begin();
  for (size_t b = 0; b < blocks.size(); ++b)
    all.push_back({named_by_content[b] ? *next++ : blocks[b].id, !named_by_content[b]});
  return all;
}

Sha256 Lineage::id(std::span<const Sha256> content, const Sha256& logits,
                   const std::optional<Sha256>& arrays) const {
  RunningSha256 hash;
  ByteWriter w;
  const auto flush = [&] { hash.add(std::exchange(w, ByteWriter()).data()); };
  w.text("stet state 1\n");
  w.bytes(start_of(*this).bytes);
  w.u64(recipe.tokens.size());
  flush();
  hash.add(std::as_bytes(std::span(recipe.tokens)));
  w.u64(recipe.prunes.size());
  for (const Prune& p : recipe.prunes) {
    put_prune(w, p);
    flush();
  }
  put_text(w, recipe.edits.empty() ? "" : encode_edits(recipe.edits));
  if (!recipe.interventions.empty()) put_text(w, encode_interventions(recipe.interventions));
  put_text(w, encode_generation(recipe.generation));
  put_text(w, recipe.chat.empty() ? "" : encode_chat(recipe.chat));
  for (const BlockIdentity& block : identities(content)) w.bytes(block.id.bytes);
  if (!replayable()) {
    w.bytes(recipe.size() % kBlockPositions == 0 ? Sha256().bytes : content.back().bytes);
    w.bytes(logits.bytes);
    if (arrays) w.bytes(arrays->bytes);
  }
  flush();
  return hash.result();
}

std::vector<Sha256> anchor_names(const State& recipe, const KvShape& shape,
                                 std::span<const int64_t> positions) {
  return Chain({recipe, shape}, positions).anchors();
}

Sha256 recurrent_content(std::span<const float> numbers) {
  RunningSha256 hash;
  hash.add(std::as_bytes(std::span(std::string_view("stet recurrent content 1\n"))));
  hash.add(std::as_bytes(numbers));
  return hash.result();
}

Sha256 block_content(const KvShape& shape, const std::byte* block) {
  ByteWriter w;
  w.text(shape.is_uniform() ? "stet block content 1\n" : "stet block content 2\n");
  put_text(w, kv_type_name(shape.type));
  const auto put_all = [&](std::initializer_list<int64_t> all) {
    for (const int64_t x : all) w.u64(static_cast<uint64_t>(x));
  };
  if (shape.is_uniform())
    put_all({shape.layers, shape.kv_heads, shape.head_dim});
  else
    put_all({shape.layers});
  for (const KvLayer& l : shape.table)
    put_all({l.owner, l.kv_heads, l.key_dim, l.value_dim, l.window});
  RunningSha256 hash;
  hash.add(w.data());
  hash.add({block, shape.content_bytes()});
  return hash.result();
}

std::vector<Sha256> block_hashes(const State& state, std::span<const int64_t> blocks, int threads) {
  std::vector<Sha256> contents(blocks.size());
  if (blocks.empty()) return contents;
  state.kv.check_all(threads_or_all(threads));
  for (const int64_t b : blocks) state.kv.block_info(b).check_all(state.kv.shape(), b);
  run_each(threads_or_all(threads), blocks.size(), [&](size_t i) {
    check_interrupt();
    contents[i] = state.kv.block_info(blocks[i]).content(state.kv.shape());
  });
  return contents;
}

std::vector<BlockIdentity> block_identities(const State& state, int threads) {
  const Lineage lineage{state, state.kv.shape()};
  return lineage.identities(block_hashes(state, lineage.blocks_by_content(), threads));
}

Sha256 state_id(const State& state, std::span<const Sha256> contents) {
  const Lineage lineage{state, state.kv.shape()};
  if (lineage.replayable()) return lineage.id(contents, Sha256());
  const std::span<const float> logits =
      state.logits == nullptr ? std::span<const float>() : std::span<const float>(*state.logits);
  std::optional<Sha256> arrays;
  if (!state.recurrent.empty()) arrays = recurrent_content(state.recurrent.numbers());
  return lineage.id(contents, sha256_of(std::as_bytes(logits)), arrays);
}

Sha256 state_id(const State& state, int threads) {
  const Lineage lineage{state, state.kv.shape()};
  return state_id(state, block_hashes(state, lineage.blocks_by_content(), threads));
}

}  // namespace stet
