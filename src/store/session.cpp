#include "stet/store/session.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <utility>

#include "src/store/clock.hpp"
#include "src/store/fetch.hpp"
#include "src/store/recurrent.hpp"
#include "src/store/text.hpp"
#include "stet/base/bytes.hpp"
#include "stet/base/error.hpp"
#include "stet/kv/kv_writer.hpp"
#include "stet/snapshot/encode.hpp"

namespace stet {
namespace {

// Limits mapped files, since a process may open only so many. Further blocks are copied.
constexpr size_t kMostMapped = 256;

// Returns the identity of the last, partial block with the logits. It is stored only if tokens do
// not determine it, because positions that it attended to were pruned later.
Sha256 tail_identity(const Sha256& state) {
  ByteWriter w;
  w.text("stet tail 1\n");
  w.bytes(state.bytes);
  return sha256_of(w.data());
}

bool needs_tail(int64_t size, int64_t floor) {
  return floor > 0 &&
         floor > size / kBlockPositions * kBlockPositions - (size % kBlockPositions == 0);
}

std::vector<std::byte> tail_bytes(const State& state) {
  std::vector<std::byte> bytes;
  if (state.size() % kBlockPositions != 0) {
    const std::byte* block = state.kv.block(state.kv.blocks() - 1);
    bytes.assign(block, block + state.kv.shape().block_bytes());
  }
  const auto logits = std::as_bytes(std::span(*state.logits));
  bytes.insert(bytes.end(), logits.begin(), logits.end());
  return bytes;
}

// Returns the full blocks of a state that a store holds. Blocks of which nothing is visible are
// zeros and are left out.
template <class Visible>
std::vector<int64_t> stored_blocks(int64_t size, Visible visible) {
  std::vector<int64_t> found;
  for (int64_t b = 0; b < size / kBlockPositions; ++b) {
    if (visible(b) != 0) found.push_back(b);
  }
  return found;
}

// Assumed costs until they are measured: a token takes its operations at 10^11 a second. Attention
// over `positions` positions takes as many operations as all matrices.
constexpr double kAssumedOperations = 1e11;

void assume_costs(SharedFetchPolicy& meter, const ModelConfig& c) {
  const auto product = [](int64_t a, int64_t b) {
    return static_cast<double>(a) * static_cast<double>(b);
  };
  const LayerShape l = c.layer(0);
  const double matrices = product(c.hidden_size * 2, l.queries() + l.keys()) +
                          product(c.hidden_size * 3, l.intermediate),
               position = 2 * static_cast<double>(l.queries());
  meter.learn([&](FetchPolicy& p) {
    p.assume(2 * matrices * static_cast<double>(c.layers) / kAssumedOperations,
             matrices / position);
  });
}

// Returns a state of the first full blocks, without anything that belongs to later positions.
State prefix_of(const State& state, const KvShape& shape, int64_t capacity,
                std::span<const std::shared_ptr<KvBlock>> blocks) {
  State front;
  front.origin = state.origin;
  const auto size = static_cast<std::ptrdiff_t>(blocks.size()) * kBlockPositions;
  front.tokens.assign(state.tokens.begin(), state.tokens.begin() + size);
  front.kv = KvCache(shape, capacity);
  KvWriter(front.kv).adopt({blocks.begin(), blocks.end()},
                           std::vector<uint64_t>(blocks.size(), ~uint64_t{0}), size);
  return front;
}

// Restores one state from a store.
class Restorer {
 public:
  Restorer(Store& store, const Snapshot& snapshot, std::shared_ptr<const Model> model,
           const RestoreOptions& how, const SessionOptions& options, const StateRecord* record,
           StoreRestoreReport& report)
      : store_(store),
        snapshot_(snapshot),
        record_(record),
        model_(std::move(model)),
        how_(how),
        options_(options),
        report_(report) {}

  State state() {
    State state = snapshot_.recipe();
    const SnapshotMeta& meta = snapshot_.meta();
    state.kv = KvCache(meta.kv, options_.capacity);
    zeros_ = KvWriter(state.kv).fresh_block();
    zeros_->mark_shared();
    blocks_.assign(static_cast<size_t>(blocks_of(meta.positions)), zeros_);
    fetch(state);
    std::vector<uint64_t> visible;
    for (size_t b = 0; b < blocks_.size(); ++b)
      visible.push_back(snapshot_.visible(static_cast<int64_t>(b)));
    KvWriter(state.kv).adopt(std::move(blocks_), std::move(visible), meta.positions);
    return state;
  }

  // Returns whether the last tokens cannot be computed from the blocks before them.
  bool lost_tail() const { return lost_tail_; }

  // Records the time for computing the tokens after the last full block, if nothing else was
  // computed and they are enough to measure.
  void learn_tail(const Session& session, double seconds) {
    const int64_t tokens = session.size() % kBlockPositions;
    if (missing_ > computed_ || tokens < kBlockPositions / 2) return;
    store_.meter().learn(
        [&](FetchPolicy& p) { p.computed(session.size() - tokens, tokens, seconds); });
  }

  void finish(Session& session) {
    report_.restored.recomputed += static_cast<int64_t>(computed_) * kBlockPositions;
    std::vector<int64_t> computed;
    for (const HealedBlocks& healed : session.take_healed()) {
      computed.insert(computed.end(), healed.blocks.begin(), healed.blocks.end());
      report_.restored.recomputed += healed.tokens;
    }
    const int64_t full = session.size() / kBlockPositions;
    report_.computed = computed_ + static_cast<size_t>(std::ranges::count_if(
                                       computed, [&](int64_t b) { return b < full; }));
    report_.fetched = wanted_ - report_.computed;
    if (report_.computed > missing_)
      ++reasons_[fmt::format("{} held other bytes than the state", report_.computed - missing_)];
    report_.restored.reused =
        session.size() - std::min(session.size(), report_.restored.recomputed);
    report_.restored.checked = true;
    report_reasons();
  }

  void report_reasons() {
    for (const auto& [reason, n] : reasons_) report_.reasons.push_back(reason);
  }

 private:
  SavedBlock saved(int64_t block) const {
    const std::span<const Digest> digests = snapshot_.block_digests(block);
    return {{digests.begin(), digests.end()}, store_.url(), nullptr};
  }

  // Returns a placeholder for a block to be computed: it reads as damaged, and the session heals
  // it.
  std::shared_ptr<KvBlock> missing(int64_t block) {
    return std::make_shared<KvBlock>(zeros_->data(), zeros_, saved(block));
  }

  std::shared_ptr<KvBlock> kept(State& state, int64_t block, const StoredBlock& found,
                                std::span<const std::byte> bytes) {
    SavedBlock as = saved(block);
    if (found.mapping == nullptr)
      return std::make_shared<KvBlock>(bytes.data(), found.owner, std::move(as));
    if (how_.map && mapped_++ < kMostMapped) {
      as.mapping = found.mapping;
      return std::make_shared<KvBlock>(bytes.data(), found.owner, std::move(as));
    }
    std::shared_ptr<KvBlock> own = KvWriter(state.kv).fresh_block();
    copy_bytes(bytes, const_cast<std::byte*>(own->data()));
    return layer_digests(state.kv.shape(), own->data()) == as.digests ? own : missing(block);
  }

  // Records why a block did not come from the store.
  void note(BlockFetch::Found why, const StoredBlock& found, size_t bytes) {
    ++missing_;
    if (why == BlockFetch::Found::faster)
      ++faster_;
    else if (why == BlockFetch::Found::late)
      ++late_;
    else if (!found.refused.empty())
      ++refused_[found.refused];
    else if (why == BlockFetch::Found::missing)
      ++absent_;
    else if (why == BlockFetch::Found::here)
      ++refused_[fmt::format("expected {} bytes, found {}", bytes, found.bytes.size())];
  }

  // Computes a block of a replayable state. The blocks before it must be present.
  std::shared_ptr<KvBlock> computed(const State& state, int64_t block) {
    const int64_t first = block * kBlockPositions;
    if (!running_ || running_->size() != first) {
      running_.emplace(model_,
                       prefix_of(state, state.kv.shape(), options_.capacity,
                                 std::span(blocks_).first(static_cast<size_t>(block))),
                       options_);
    }
    const double start = seconds_now();
    running_->append(std::span(state.tokens).subspan(static_cast<size_t>(first), kBlockPositions));
    const double took = seconds_now() - start;
    store_.meter().learn([&](FetchPolicy& p) { p.computed(first, kBlockPositions, took); });
    State now = running_->state();
    const std::shared_ptr<KvBlock> own = KvWriter(now.kv).share(block);
    if (layer_digests(state.kv.shape(), own->data()) != saved(block).digests)
      throw Error(ErrorKind::format, snapshot_.path(), "KV block " + std::to_string(block), "",
                  "its tokens do not give the block that was saved");
    ++computed_;
    return own;
  }

  void fetch(State& state) {
    const size_t size = state.kv.shape().block_bytes();
    const std::vector<BlockIdentity> all = snapshot_.block_identities();
    std::vector<int64_t> indices =
        stored_blocks(state.size(), [&](int64_t i) { return snapshot_.visible(i); });
    std::vector<Sha256> identities;
    for (const int64_t b : indices) identities.push_back(all[static_cast<size_t>(b)].id);
    wanted_ = indices.size();
    const bool tail = needs_tail(state.size(), state.floor());
    if (tail) {
      identities.push_back(tail_identity(snapshot_.digests().id));
      indices.push_back(state.size() / kBlockPositions);
    }
    const std::vector<Sha256> places = places_of(store_, identities, record_);
    std::vector<BlockFetch::Wanted> wanted;
    for (size_t i = 0; i < places.size(); ++i) wanted.push_back({places[i], indices[i]});
    const bool plain = state.prunes.empty() && state.interventions.empty();
    BlockFetch fetch(store_, wanted, size, plain ? MissingBlocks::compute : MissingBlocks::wait);
    for (size_t i = 0; i < wanted_; ++i) {
      const int64_t b = wanted[i].index;
      const BlockFetch::Found why = fetch.next(i);
      const StoredBlock found = fetch.take(i);
      const bool good = why == BlockFetch::Found::here && found.bytes.size() == size;
      if (!good) note(why, found, size);
      blocks_[static_cast<size_t>(b)] = good    ? kept(state, b, found, found.bytes)
                                        : plain ? computed(state, b)
                                                : missing(b);
    }
    place_tail(state, tail,
               tail && fetch.next(wanted_) == BlockFetch::Found::here ? fetch.take(wanted_)
                                                                      : StoredBlock());
    tell(fetch.fault());
  }

  void tell(const std::string& fault) {
    if (!fault.empty()) ++reasons_[fault];
    if (absent_ > 0)
      ++reasons_[fmt::format("{} {} not in the store", absent_, absent_ == 1 ? "was" : "were")];
    if (faster_ > 0)
      ++reasons_[fmt::format("{} {} faster to compute", faster_, faster_ == 1 ? "was" : "were")];
    if (late_ > 0) ++reasons_[fmt::format("{} did not come in time", late_)];
    for (const auto& [reason, n] : refused_)
      ++reasons_[fmt::format("{} {} refused: {}", n, n == 1 ? "was" : "were", reason)];
  }

  void place_tail(State& state, bool wanted, const StoredBlock& tail) {
    const bool partial = state.size() % kBlockPositions != 0;
    const int64_t last = static_cast<int64_t>(blocks_.size()) - 1;
    const size_t block = partial ? state.kv.shape().block_bytes() : 0;
    if (partial) blocks_.back() = missing(last);
    if (!wanted) return;
    const size_t vocab = static_cast<size_t>(
        ModelConfig::from_canonical(snapshot_.meta().config, snapshot_.path()).vocab_size);
    lost_tail_ = tail.bytes.size() != block + vocab * sizeof(float);
    if (lost_tail_) return;
    if (partial) blocks_.back() = kept(state, last, tail, tail.bytes.first(block));
    state.logits = std::make_shared<std::vector<float>>(vocab);
    std::memcpy(state.logits->data(), tail.bytes.data() + block, vocab * sizeof(float));
  }

  Store& store_;
  const Snapshot& snapshot_;
  const StateRecord* const record_;
  const std::shared_ptr<const Model> model_;
  const RestoreOptions& how_;
  const SessionOptions& options_;
  StoreRestoreReport& report_;
  std::optional<Session> running_;  // computes blocks that are not fetched
  std::shared_ptr<KvBlock> zeros_;
  std::vector<std::shared_ptr<KvBlock>> blocks_;
  size_t wanted_ = 0, missing_ = 0, absent_ = 0, faster_ = 0, late_ = 0, computed_ = 0, mapped_ = 0;
  bool lost_tail_ = false;
  std::map<std::string, size_t> refused_, reasons_;
};

void check_logits(const Snapshot& snapshot, Session& session) {
  const Digest found = digest_of(std::as_bytes(session.logits()));
  if (found == snapshot.digests().logits) return;
  throw Error(ErrorKind::mismatch, snapshot.path(), "logits",
              "digest " + digest_text(snapshot.digests().logits), digest_text(found));
}

std::string counted(size_t n, const char* what) {
  return fmt::format("{} block{} {}", n, n == 1 ? "" : "s", what);
}

}  // namespace

StorePutReport put_session(Store& store, Session& session, const StorePutOptions& how) {
  StorePutReport report;
  SaveOptions o;
  o.tokenizer = how.tokenizer;
  const State& state = session.state();
  const bool recipe = !replay_limit(state);
  o.form = recipe ? SnapshotForm::recipe : SnapshotForm::full;
  StateRecord record;
  record.parent = how.parent;
  record.created = store.now();
  record.note = how.note;
  record.snapshot = encode_snapshot(session, o, &report.digests);
  std::vector<Store::NewBlock> blocks;
  std::vector<std::byte> tail;
  if (recipe) {
    const std::vector<BlockIdentity> ids = session.block_identities();
    const std::optional<StoredAnchor> anchor = anchor_to_store(state);
    const bool usable = state.recurrent.empty() || anchor.has_value();
    for (const int64_t b :
         stored_blocks(usable ? state.size() : 0, [&](int64_t i) { return state.kv.visible(i); })) {
      if (!state.kv.block_info(b).holds_all()) continue;  // readers that need it compute it
      blocks.push_back({ids[static_cast<size_t>(b)].id, [&state, b] {
                          return std::span(state.kv.block(b), state.kv.shape().block_bytes());
                        }});
    }
    if (anchor)
      blocks.push_back({anchor->name,
                        [&state, anchor] {
                          return std::as_bytes(std::span(anchor->anchor->arrays->numbers(),
                                                         state.recurrent.shape().numbers));
                        },
                        nullptr, RecordKind::anchor});
    if (needs_tail(state.size(), state.floor())) {
      tail = tail_bytes(state);
      blocks.push_back({tail_identity(report.digests.id), [&tail] { return std::span(tail); }});
    }
  }
  for (const Store::NewBlock& b : blocks) record.blocks.push_back(store.place(b.identity));
  report.blocks = blocks.size();
  const Store::PutReport put = store.put_blocks(blocks);
  report.written = put.written;
  report.present = put.present;
  report.place = store.put_state(report.digests.id, record);
  return report;
}

StoreSnapshot open_snapshot(Store& store, const Sha256& place) {
  StoreSnapshot s;
  s.record = store.state(place);
  s.snapshot = std::make_shared<const Snapshot>(Snapshot::parse(
      s.record.snapshot, store.url() + " state " + hex_of_hash(place).substr(0, 16)));
  return s;
}

Session restore_session(Store& store, const Snapshot& snapshot, std::shared_ptr<const Model> model,
                        const RestoreOptions& how, StoreRestoreReport* report,
                        const StateRecord* record) {
  StoreRestoreReport ignored;
  StoreRestoreReport& r = report != nullptr ? *report : ignored;
  r = {};
  if (how.replay || snapshot.meta().form != SnapshotForm::recipe)
    return snapshot.restore(model, how, &r.restored);
  SessionOptions o = how.session;
  const SnapshotMeta& meta = snapshot.meta();
  o.kv_type = meta.kv.type;
  if (o.capacity == 0) o.capacity = std::min(meta.capacity, model->config().max_positions);
  checked_capacity(model->config(), o.capacity);
  snapshot.check_compatible(*model, o.compute.contract, how.tokenizer);
  if (meta.positions > o.capacity) {
    throw Error(ErrorKind::capacity, snapshot.path(), "tokens",
                "at most " + std::to_string(o.capacity) + " positions (--ctx)",
                std::to_string(meta.positions));
  }
  if (!snapshot.file()->arrays.empty()) {
    if (auto session = restore_from_anchor(store, snapshot, model, how, o, record, r)) {
      check_logits(snapshot, *session);
      return *std::move(session);
    }
    Session session = snapshot.restore(model, how, &r.restored);
    r.computed = static_cast<size_t>(session.size() / kBlockPositions);
    r.reasons.push_back("the store has no anchor of its last block with all blocks before it");
    return session;
  }
  assume_costs(store.meter(), model->config());
  Restorer restorer(store, snapshot, model, how, o, record, r);
  State state = restorer.state();
  if (restorer.lost_tail()) {
    RestoreOptions recipe = how;
    Session session = snapshot.restore(model, recipe, &r.restored);
    r.computed = static_cast<size_t>(session.size() / kBlockPositions);
    restorer.report_reasons();
    r.reasons.push_back("its last tokens saw what was pruned since, and are not in the store");
    return session;
  }
  Session session(model, std::move(state), o);
  const double start = seconds_now();
  session.state();  // computes missing blocks
  restorer.learn_tail(session, seconds_now() - start);
  check_logits(snapshot, session);
  restorer.finish(session);
  return session;
}

namespace {

// Returns whether fetching the first `blocks` is faster than computing those after `known` tokens.
// Blocks that the store lacks cost nothing either way.
bool is_worth_fetching(Store& store, int64_t blocks, uint64_t bytes, int64_t known) {
  if (store.fetch_choice() == FetchChoice::always) return true;
  const FetchPolicy policy = store.meter().policy();
  const int64_t first = known / kBlockPositions;
  return policy.fetch_seconds(static_cast<uint64_t>(blocks) * bytes) <=
         policy.compute_seconds(first, blocks - first) + policy.costs().least_gain;
}

}  // namespace

std::optional<Session> fetch_prefix(Store& store, std::shared_ptr<const Model> model,
                                    const SessionOptions& options, std::span<const int32_t> ids,
                                    int64_t more_than) {
  const Contract contract = options.compute.contract;
  if (!is_replayable(contract_name(contract))) return std::nullopt;
  const ModelConfig& c = model->config();
  if (c.recurrence.kind != Recurrence::Kind::none)
    return fetch_to_anchor(store, model, options, ids, more_than);
  State state;
  state.origin = origin_of(*model, contract);
  state.kv = KvCache(detail::kv_shape(c, options.kv_type), checked_capacity(c, options.capacity));
  const size_t most = static_cast<size_t>(
      std::min(static_cast<int64_t>(ids.size()), state.kv.capacity()) / kBlockPositions);
  if (static_cast<int64_t>(most) * kBlockPositions <= more_than) return std::nullopt;
  state.tokens.assign(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(most) * 64);
  const KvShape& shape = state.kv.shape();
  assume_costs(store.meter(), c);
  if (!is_worth_fetching(store, static_cast<int64_t>(most), shape.block_bytes(), more_than))
    return std::nullopt;
  std::vector<BlockFetch::Wanted> wanted;
  for (const BlockIdentity& b : block_identities(state))
    wanted.push_back({store.place(b.id), static_cast<int64_t>(wanted.size())});
  BlockFetch fetch(store, wanted, shape.block_bytes(), MissingBlocks::wait);
  std::vector<std::shared_ptr<KvBlock>> blocks;
  for (size_t i = 0; i < wanted.size() && fetch.next(i) == BlockFetch::Found::here; ++i) {
    const StoredBlock b = fetch.take(i);
    if (b.bytes.size() != shape.block_bytes()) break;
    // The record's own digests were checked. These detect later changes of its file.
    SavedBlock as{layer_digests(shape, b.bytes.data()), store.url(),
                  blocks.size() < kMostMapped ? b.mapping : nullptr};
    blocks.push_back(std::make_shared<KvBlock>(b.bytes.data(), b.owner, std::move(as)));
  }
  const auto size = static_cast<int64_t>(blocks.size()) * kBlockPositions;
  if (size <= more_than) fetch.throw_fault();
  if (size <= more_than) return std::nullopt;
  state.tokens.resize(static_cast<size_t>(size));
  std::vector<uint64_t> visible(blocks.size(), ~uint64_t{0});
  KvWriter(state.kv).adopt(std::move(blocks), std::move(visible), size);
  return Session(model, std::move(state), options);
}

std::string StoreRestoreReport::text() const {
  std::string why;
  for (const std::string& reason : reasons) why += (why.empty() ? "" : "; ") + reason;
  const std::string text = counted(fetched, "fetched") + fmt::format(", {} computed", computed);
  return why.empty() ? text : text + " (" + why + ")";
}

}  // namespace stet
