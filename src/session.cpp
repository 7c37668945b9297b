#include "stet/session.hpp"

#include <algorithm>
#include <functional>

#include "src/blas/openblas.hpp"
#include "src/kv_writer.hpp"
#include "stet/error.hpp"

namespace stet {
namespace {

const Kernels& kernels_of(const ComputeOptions& compute) {
  if (compute.isa.empty()) return best_kernels();
  if (const Kernels* found = find_kernels(compute.isa.c_str())) return *found;
  std::string known;
  for (const char* const* name = kernel_names(); *name != nullptr; ++name)
    known += (known.empty() ? "" : ", ") + std::string(*name);
  throw Error(ErrorKind::argument, "", "isa", "one that this CPU has: " + known, compute.isa);
}

int threads_of(const ComputeOptions& compute) {
  return compute.threads > 0 ? compute.threads : default_threads();
}

TeamOptions team_of(const ComputeOptions& compute) {
  return {threads_of(compute), compute.team, compute.executor};
}

void check(const ComputeOptions& compute, const Model& model) {
  kernels_of(compute);
  model.check_contract(compute.contract);
  if (compute.threads < 0 || compute.threads > kMostThreads) {
    throw Error(ErrorKind::argument, "", "threads", "0 .. " + std::to_string(kMostThreads),
                std::to_string(compute.threads));
  }
  if (compute.chunk < 1 || compute.chunk > 65536) {
    throw Error(ErrorKind::argument, "", "chunk", "1 .. 65536", std::to_string(compute.chunk));
  }
  if (compute.executor == nullptr) check_team_backend(compute.team);
  if (compute.contract == Contract::f32_blas) load_openblas();
}

KvShape kv_shape(const ModelConfig& c, KvType type) {
  return {c.layers, c.kv_heads, c.head_dim, type};
}

std::string place(size_t entry) { return "batch[" + std::to_string(entry) + "]: "; }

void check_ids(std::span<const int32_t> ids, int64_t vocab) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < vocab) continue;
    throw Error(ErrorKind::argument, "", "ids[" + std::to_string(i) + "]",
                "a token id in 0.." + std::to_string(vocab - 1), std::to_string(ids[i]));
  }
}

// Gives the workspace back however the pass ends.
class Borrowed {
 public:
  Borrowed(const Model& model, size_t rows, int threads)
      : model_(model), w_(model.take_workspace(rows, threads)) {}
  ~Borrowed() { model_.give_workspace(std::move(w_)); }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;
  Workspace& operator*() const { return *w_; }

 private:
  const Model& model_;
  std::unique_ptr<Workspace> w_;
};

// Where hidden states are copied to, as wide as the residual stream.
struct Taps {
  Taps(int64_t count, const Workspace& w) {
    for (int64_t i = 0; i < count; ++i) {
      memory.emplace_back(w.ids.size() * w.x.stride * sizeof(float));
      rows.push_back({memory.back().as<float>(), w.x.stride, w.x.width, w.ids.size()});
    }
  }
  std::vector<Memory> memory;
  std::vector<Rows> rows;
};

Pass make_pass(const ComputeOptions& compute, Workspace& w, std::span<Rows> hidden) {
  const auto cut = [&w](const Rows& rows) { return rows.rows(0, w.ids.size()); };
  return {&kernels_of(compute),
          compute.contract,
          w.ids,
          w.spans,
          &w.scratch,
          hidden,
          cut(w.x),
          cut(w.normed),
          cut(w.qkv),
          cut(w.attention),
          cut(w.gate_up),
          cut(w.mlp),
          cut(w.out)};
}

// How often a call begins anew because a file has changed meanwhile.
constexpr int kMostMends = 8;

[[noreturn]] void throw_restless() {
  throw Error(ErrorKind::io, "", "files", "some that keep still while a pass reads them",
              "one that changed every time");
}

}  // namespace

StateOrigin origin_of(const Model& model, Contract contract) {
  return {contract_name(contract), kContractVersion, model.fingerprint()};
}

namespace {

std::string contract_text(const StateOrigin& origin) {
  return origin.contract + " version " + std::to_string(origin.version);
}

// Of a state that a session of `model` is to go on from.
void check_origin(const StateOrigin& state, const StateOrigin& session, const Model& model) {
  if (contract_text(state) != contract_text(session)) {
    throw Error(ErrorKind::mismatch, "", "contract",
                contract_text(state) + ", under which the tokens were processed",
                contract_text(session));
  }
  if (!model.is_named(state.model)) {
    throw Error(ErrorKind::mismatch, "", "model",
                state.model + ", by which the tokens were processed", session.model);
  }
}

}  // namespace

Session::Session(std::shared_ptr<const Model> model, const SessionOptions& options)
    : model_(std::move(model)), compute_(options.compute) {
  check(compute_, *model_);
  const ModelConfig& c = model_->config();
  state_.origin = origin_of(*model_, compute_.contract);
  state_.kv = KvCache(kv_shape(c, options.kv_type), checked_capacity(c, options.capacity));
}

Session::Session(std::shared_ptr<const Model> model, State state, const SessionOptions& options)
    : model_(std::move(model)), compute_(options.compute), state_(std::move(state)) {
  logits_shared_.set();
  check(compute_, *model_);
  const KvShape& shape = state_.kv.shape();
  if (!(shape == kv_shape(model_->config(), shape.type)) || state_.kv.size() != size()) {
    throw Error(ErrorKind::argument, "", "state", "keys and values of this model", "others");
  }
  const StateOrigin origin = origin_of(*model_, compute_.contract);
  check_origin(state_.origin, origin, *model_);
  state_.origin = origin;
  check_ids(state_.tokens, model_->config().vocab_size);
}

void Session::refuse_in_sink(const char* call) const {
  if (growth_.before < 0) return;
  throw Error(ErrorKind::argument, "", call, "a call after append() has returned",
              "a call from its sink");
}

void Session::set_compute(const ComputeOptions& compute) {
  refuse_in_sink("set_compute");
  check(compute, *model_);
  const StateOrigin origin = origin_of(*model_, compute.contract);
  if (size() > 0) check_origin(state_.origin, origin, *model_);
  state_.origin = origin;
  compute_ = compute;
}

Session::Session(const Session& other)
    : model_(other.model_), compute_(other.compute_), state_(other.state_) {
  other.logits_shared_.set();
  logits_shared_.set();
}

Session Session::fork() const {
  refuse_in_sink("fork");
  return *this;
}

void Session::append(std::span<const int32_t> ids, const LogitSink& logits,
                     const HiddenSink& hidden, const Progress& progress) {
  refuse_in_sink("append");
  if (ids.empty()) return;
  const BatchEntry alone{this, ids};
  advance({&alone, 1}, {logits, hidden, progress});
}

void append(std::span<const BatchEntry> batch) {
  for (size_t i = 0; i < batch.size(); ++i) {
    if (batch[i].session == nullptr)
      throw Error(ErrorKind::argument, "", place(i) + "session", "a session", "null");
    if (batch[i].ids.empty())
      throw Error(ErrorKind::argument, "", place(i) + "ids", "at least one token", "none");
  }
  const Session::Sinks none{nullptr, nullptr, nullptr};
  if (!batch.empty()) Session::advance(batch, none);
}

// The tokens of all entries, one after the other, are cut into passes of `chunk` rows. Each
// session's last row is kept until all are through: then one product gives the logits, and nothing
// can fail any more.
void Session::advance(std::span<const BatchEntry> batch, const Sinks& sinks) {
  const Session& first = *batch[0].session;
  size_t begun = 0, tokens = 0;
  try {
    for (; begun < batch.size(); ++begun) {
      begin_entry(batch, begun);
      tokens += batch[begun].ids.size();
    }
    const size_t most = std::min(tokens, static_cast<size_t>(first.compute_.chunk));
    const Borrowed w(*first.model_, std::max(most, batch.size()), threads_of(first.compute_));
    for (size_t done = 0; done < tokens; done += most) run_pass(batch, most, *w, sinks);
    finish(batch, *w);
  } catch (...) {
    for (const BatchEntry& entry : batch.first(begun)) entry.session->undo();
    throw;
  }
}

namespace {

// What `step` does for one entry of a batch; an Error names the entry.
template <class Step>
void for_entry(size_t entries, size_t index, Step step) {
  try {
    step();
  } catch (const Error& e) {
    if (entries == 1) throw;
    throw Error(e.kind, e.file, place(index) + e.field, e.expected, e.found);
  }
}

}  // namespace

void Session::begin_entry(std::span<const BatchEntry> batch, size_t index) {
  const BatchEntry& entry = batch[index];
  for_entry(batch.size(), index, [&] {
    for (const BatchEntry& other : batch.first(entry.session->growth_.before < 0 ? 0 : index)) {
      if (other.session == entry.session)
        throw Error(ErrorKind::argument, "", "session", "one that stands once",
                    "one that stands twice");
    }
    entry.session->begin(*batch[0].session, entry.ids);
  });
}

// What can fail before the first pass; preparing the cache comes last, so that a failure leaves
// nothing to undo.
void Session::begin(const Session& first, std::span<const int32_t> ids) {
  refuse_in_sink("append");
  if (model_ != first.model_)
    throw Error(ErrorKind::argument, "", "model", "that of the first session", "another");
  if (compute_.contract != first.compute_.contract) {
    throw Error(ErrorKind::argument, "", "contract",
                contract_name(first.compute_.contract) + std::string(", as of the first session"),
                contract_name(compute_.contract));
  }
  check_ids(ids, model_->config().vocab_size);
  state_.tokens.reserve(static_cast<size_t>(capacity()));  // once: later tokens allocate nothing
  std::shared_ptr<std::vector<float>> logits =
      spare_ != nullptr ? std::move(spare_) : logits_room();
  // Those of the token before become the next spare ones, unless there are none or others have
  // them.
  if (state_.logits == nullptr || logits_shared_.is_set()) spare_ = logits_room();
  with_mending([&] { KvWriter(state_.kv).prepare(static_cast<int64_t>(ids.size())); });
  growth_ = {size(), std::move(logits)};
}

std::shared_ptr<std::vector<float>> Session::logits_room() const {
  auto room = std::make_shared<std::vector<float>>();
  room->reserve(static_cast<size_t>(model_->config().vocab_size));
  return room;
}

void Session::undo() {
  KvWriter(state_.kv).truncate(growth_.before);
  state_.tokens.resize(static_cast<size_t>(growth_.before));
  spare_ = std::move(growth_.logits);
  growth_ = {};
}

// Runs what reads blocks, and changes nothing when it throws, until none of them was damaged.
template <class Reads>
void Session::with_mending(Reads reads) {
  for (int tries = 0;; ++tries) {
    try {
      return reads();
    } catch (const DamagedBlock&) {
      if (tries == kMostMends) throw;
    }
    mend(KvCache::Look::at_all);
  }
}

// Runs a pass until all that it read of files was what was saved there. Its spans are those of the
// entries from `first_entry` on.
void Session::run_until_sound(std::span<const BatchEntry> batch, size_t first_entry,
                              const Pass& pass, const Workspace& w) {
  const Session& first = *batch[0].session;
  const auto forward = [&](Team t) { first.model_->forward(t, pass); };
  for (int tries = 0; tries <= kMostMends; ++tries) {
    const uint64_t weights = first.model_->weights_version();
    run_operations(team_of(first.compute_),
                   std::ref(forward));  // by reference: a copy of the closure would be allocated
    bool sound = first.model_->weights_held_since(weights);
    for (size_t i = first_entry; i < first_entry + w.spans.size(); ++i) {
      Session& session = *batch[i].session;
      if (session.state_.kv.pass_was_sound()) continue;
      sound = false;
      for_entry(batch.size(), i, [&] { session.mend(KvCache::Look::again); });
    }
    if (sound) return;
  }
  throw_restless();
}

// The next `most` tokens of the batch: a stretch of consecutive entries, of which the first may
// have begun already and the last may go on in the next pass.
void Session::run_pass(std::span<const BatchEntry> batch, size_t most, Workspace& w,
                       const Sinks& sinks) {
  const auto done = [](const BatchEntry& e) {
    return static_cast<size_t>(e.session->size() - e.session->growth_.before);
  };
  size_t entry = 0;
  while (done(batch[entry]) == batch[entry].ids.size()) ++entry;
  w.ids.clear();
  w.spans.clear();
  for (const BatchEntry& e : batch.subspan(entry)) {
    const std::span<const int32_t> part =
        e.ids.subspan(done(e)).first(std::min(e.ids.size() - done(e), most - w.ids.size()));
    if (part.empty()) break;
    w.spans.push_back({&e.session->state_.kv, e.session->size(), w.ids.size(), part.size()});
    w.ids.insert(w.ids.end(), part.begin(), part.end());
  }
  const Session& first = *batch[0].session;
  Taps taps(sinks.hidden ? first.model_->config().layers + 1 : 0, w);
  const Pass pass = make_pass(first.compute_, w, taps.rows);
  run_until_sound(batch, entry, pass, w);
  hand_out(first, pass, w, sinks);
  for (const Span& span : w.spans) {
    const BatchEntry& e = batch[entry];
    const auto ids = w.ids.begin() + static_cast<std::ptrdiff_t>(span.row);
    KvWriter(*span.kv).commit(static_cast<int64_t>(span.count));
    e.session->state_.tokens.insert(e.session->state_.tokens.end(), ids,
                                    ids + static_cast<std::ptrdiff_t>(span.count));
    std::copy_n(pass.out.row(span.row + span.count - 1), pass.out.width, w.last.row(entry++));
    if (sinks.progress) sinks.progress(static_cast<int64_t>(done(e)));
  }
}

// To the sinks, of a batch of one: its rows.
void Session::hand_out(const Session& session, const Pass& pass, const Workspace& w,
                       const Sinks& sinks) {
  for (size_t i = 0; i < pass.hidden.size(); ++i) sinks.hidden(i, session.size(), pass.hidden[i]);
  for (size_t at = 0; sinks.logits && at < pass.out.count; at += w.logits.count) {
    const Rows part = w.logits.rows(0, std::min(w.logits.count, pass.out.count - at));
    session.run_head(pass, pass.out.rows(at, part.count), part);
    sinks.logits(session.size() + static_cast<int64_t>(at), part);
  }
}

void Session::run_head(const Pass& pass, Rows hidden, Rows logits) const {
  const auto head = [&](Team t) { model_->head(t, pass, hidden, logits); };
  run_operations(team_of(compute_), std::ref(head));
}

// The logits of every entry, from weights that were the model's all the while.
void Session::compute_logits(std::span<const BatchEntry> batch, const Pass& pass, Workspace& w) {
  const Session& first = *batch[0].session;
  for (int tries = 0; tries <= kMostMends; ++tries) {
    const uint64_t weights = first.model_->weights_version();
    for (size_t at = 0; at < batch.size(); at += w.logits.count) {
      const Rows part = w.logits.rows(0, std::min(w.logits.count, batch.size() - at));
      first.run_head(pass, w.last.rows(at, part.count), part);
      for (size_t i = 0; i < part.count; ++i)
        batch[at + i].session->growth_.logits->assign(part.row(i), part.row(i) + part.width);
    }
    if (first.model_->weights_held_since(weights)) return;
  }
  throw_restless();
}

// Once there are logits nothing can fail. Those of the token before are written to again at the
// next, unless others have them.
void Session::finish(std::span<const BatchEntry> batch, Workspace& w) {
  compute_logits(batch, make_pass(batch[0].session->compute_, w, {}), w);
  for (const BatchEntry& entry : batch) {
    Session& session = *entry.session;
    if (session.spare_ == nullptr) session.spare_ = std::move(session.state_.logits);
    session.state_.logits = std::move(session.growth_.logits);
    session.logits_shared_.clear();
    session.growth_ = {};
  }
}

void Session::rewind(int64_t to) {
  refuse_in_sink("rewind");
  if (to < 0 || to > size()) {
    throw Error(ErrorKind::argument, "", "rewind", "a position in 0.." + std::to_string(size()),
                std::to_string(to));
  }
  if (to == size()) return;
  if (!state_.prunes.empty() && to <= state_.floor()) {
    throw Error(
        ErrorKind::argument, "", "rewind",
        "a position after " + std::to_string(state_.floor()) + ", where the session was pruned",
        std::to_string(to));
  }
  cut(to);
  forget_edits(state_, to);
  state_.generation.rewind(to);
  state_.dialogue.rewind(to + shifted_out(state_.prunes));
}

void Session::cut(int64_t to) {
  with_mending([&] { KvWriter(state_.kv).truncate(to); });
  state_.tokens.resize(static_cast<size_t>(to));
  state_.logits.reset();
}

int64_t Session::prune(const PruneOptions& options) {
  refuse_in_sink("prune");
  logits();  // a rewound session cannot compute them any more when keys are gone
  int64_t gone = 0;
  with_mending([&] { gone = stet::prune(state_, model_->config(), options); });
  return gone;
}

void Session::prune_range(int64_t begin, int64_t end, bool shift) {
  refuse_in_sink("prune");
  logits();
  with_mending([&] { stet::prune_range(state_, model_->config(), begin, end, shift); });
}

void Session::set_key(int64_t layer, int64_t head, int64_t position, std::span<const float> x) {
  refuse_in_sink("set_key");
  logits();
  with_mending([&] { stet::set_key(state_, layer, head, position, x); });
}

void Session::set_value(int64_t layer, int64_t head, int64_t position, std::span<const float> x) {
  refuse_in_sink("set_value");
  logits();
  with_mending([&] { stet::set_value(state_, layer, head, position, x); });
}

std::vector<BlockIdentity> Session::block_identities() {
  refuse_in_sink("block_identities");
  std::vector<BlockIdentity> all;
  with_mending([&] { all = stet::block_identities(state_, compute_.threads); });
  return all;
}

std::span<const float> Session::logits() {
  refuse_in_sink("logits");
  if (state_.tokens.empty()) return {};
  if (state_.logits == nullptr) {
    Session again = fork();
    again.cut(size() - 1);
    again.append({&state_.tokens.back(), 1});
    state_.logits = std::move(again.state_.logits);
    logits_shared_.clear();
  }
  return *state_.logits;
}

const State& Session::state() {
  logits();
  mend(KvCache::Look::at_all);
  logits_shared_.set();  // whoever copies the state shares them
  return state_;
}

}  // namespace stet
