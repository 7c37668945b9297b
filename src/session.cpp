#include "stet/session.hpp"

#include <algorithm>
#include <functional>

#include "src/gemm.hpp"
#include "stet/error.hpp"

namespace stet {
namespace {

const Kernels& kernels_of(const ComputeOptions& compute) {
  if (compute.isa.empty()) return best_kernels();
  if (const Kernels* found = find_kernels(compute.isa.c_str())) return *found;
  std::string known;
  for (const char* const* name = kernel_names(); *name != nullptr; ++name) known += (known.empty() ? "" : ", ") + std::string(*name);
  throw Error(ErrorKind::argument, "", "isa", "one that this CPU has: " + known, compute.isa);
}

int threads_of(const ComputeOptions& compute) { return compute.threads > 0 ? compute.threads : default_threads(); }

void check(const ComputeOptions& compute, const Model& model) {
  kernels_of(compute);
  model.check_contract(compute.contract);
  if (compute.threads < 0 || compute.threads > 1024) {
    throw Error(ErrorKind::argument, "", "threads", "0 .. 1024", std::to_string(compute.threads));
  }
  if (compute.chunk < 1 || compute.chunk > 65536) {
    throw Error(ErrorKind::argument, "", "chunk", "1 .. 65536", std::to_string(compute.chunk));
  }
  if (compute.blas && compute.contract != Contract::f32) {
    throw Error(ErrorKind::argument, "", "gemm", "own (blas computes the contract f32 alone)", "blas");
  }
  if (compute.blas && !have_blas()) throw Error(ErrorKind::unsupported, "", "gemm", "own (built without OpenBLAS)", "blas");
}

KvShape kv_shape(const ModelConfig& c, KvType type) { return {c.layers, c.kv_heads, c.head_dim, type}; }

void check_ids(std::span<const int32_t> ids, int64_t vocab) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < vocab) continue;
    throw Error(ErrorKind::argument, "", "ids[" + std::to_string(i) + "]", "a token id in 0.." + std::to_string(vocab - 1),
                std::to_string(ids[i]));
  }
}

// Gives the workspace back however the pass ends.
class Borrowed {
 public:
  Borrowed(const Model& model, size_t rows, int threads) : model_(model), w_(model.take_workspace(rows, threads)) {}
  ~Borrowed() { model_.give_workspace(std::move(w_)); }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;
  Workspace& operator*() const { return *w_; }

 private:
  const Model& model_;
  std::unique_ptr<Workspace> w_;
};

}  // namespace

std::string contract_name(const ComputeOptions& compute) {
  return std::string(contract_name(compute.contract)) + (compute.blas ? "-blas" : "");
}

bool choose_contract(const std::string& name, ComputeOptions& compute) {
  ComputeOptions chosen = compute;
  for (const auto& [contract, blas] : {std::pair(Contract::f32, false), {Contract::f32, true}, {Contract::bf16, false}, {Contract::q8, false}, {Contract::q4, false}}) {
    chosen.contract = contract;
    chosen.blas = blas;
    if (contract_name(chosen) != name) continue;
    compute = chosen;
    return true;
  }
  return false;
}

Session::Session(std::shared_ptr<const Model> model, const SessionOptions& options)
    : model_(std::move(model)), compute_(options.compute) {
  check(compute_, *model_);
  const ModelConfig& c = model_->config();
  state_.kv = KvCache(kv_shape(c, options.kv_type), checked_capacity(c, options.capacity));
}

Session::Session(std::shared_ptr<const Model> model, State state, const SessionOptions& options)
    : model_(std::move(model)), compute_(options.compute), state_(std::move(state)) {
  check(compute_, *model_);
  const KvShape& shape = state_.kv.shape();
  if (!(shape == kv_shape(model_->config(), shape.type)) || state_.kv.size() != size()) {
    throw Error(ErrorKind::argument, "", "state", "keys and values of this model", "others");
  }
  check_ids(state_.tokens, model_->config().vocab_size);
}

// While append() runs, positions are prepared and not yet committed: that is how a call from a sink is told.
void Session::refuse_in_sink(const char* call) const {
  if (!state_.kv.pending()) return;
  throw Error(ErrorKind::argument, "", call, "a call after append() has returned", "a call from its sink");
}

void Session::set_compute(const ComputeOptions& compute) {
  refuse_in_sink("set_compute");
  check(compute, *model_);
  if (compute.contract != compute_.contract && size() > 0) {
    throw Error(ErrorKind::argument, "", "contract", contract_name(compute_) + ", under which the tokens were processed",
                contract_name(compute));
  }
  compute_ = compute;
}

Session Session::fork() const {
  refuse_in_sink("fork");
  return *this;
}

void Session::append(std::span<const int32_t> ids, const LogitSink& logits, const HiddenSink& hidden,
                     const Progress& progress) {
  refuse_in_sink("append");
  check_ids(ids, model_->config().vocab_size);
  if (ids.empty()) return;
  const int64_t before = size();
  state_.kv.check_files();
  state_.kv.prepare(static_cast<int64_t>(ids.size()));
  std::shared_ptr<std::vector<float>> next = state_.logits;
  try {
    state_.tokens.reserve(static_cast<size_t>(capacity()));  // once: later tokens allocate nothing
    if (state_.logits == nullptr || state_.logits.use_count() > 2) next = std::make_shared<std::vector<float>>();
    next->reserve(static_cast<size_t>(model_->config().vocab_size));
    const size_t chunk = static_cast<size_t>(compute_.chunk);
    const Borrowed w(*model_, std::min(chunk, ids.size()), threads_of(compute_));
    for (size_t at = 0; at < ids.size(); at += chunk) {
      const std::span<const int32_t> part = ids.subspan(at, std::min(chunk, ids.size() - at));
      run_chunk(part, *w, logits, hidden, at + part.size() == ids.size() ? next.get() : nullptr);
      state_.kv.commit(static_cast<int64_t>(part.size()));
      state_.tokens.insert(state_.tokens.end(), part.begin(), part.end());
      if (progress) progress(size() - before);
    }
    state_.logits = std::move(next);
  } catch (...) {
    if (size() == before + static_cast<int64_t>(ids.size()) && next == state_.logits) state_.logits.reset();  // overwritten
    state_.kv.truncate(before);
    state_.tokens.resize(static_cast<size_t>(before));
    throw;
  }
}

void Session::run_chunk(std::span<const int32_t> ids, Workspace& w, const LogitSink& logits, const HiddenSink& hidden,
                        std::vector<float>* last_logits) {
  const size_t n = ids.size();
  const Span span{&state_.kv, size(), 0, n};
  const auto cut = [n](const Rows& rows) { return rows.rows(0, n); };
  std::vector<Memory> taps;
  std::vector<Rows> tap_rows;
  if (hidden) {
    for (int64_t i = 0; i <= model_->config().layers; ++i) {
      taps.emplace_back(n * w.x.stride * sizeof(float));
      tap_rows.push_back({taps.back().as<float>(), w.x.stride, w.x.width, n});
    }
  }
  const Pass pass{&kernels_of(compute_), compute_.contract, compute_.blas, ids,        {&span, 1},       &w.scratch,
                  tap_rows,              cut(w.x),          cut(w.normed), cut(w.qkv), cut(w.attention), cut(w.gate_up),
                  cut(w.mlp),            cut(w.out)};
  const int threads = threads_of(compute_);
  const Rows last = w.logits.rows(0, 1);
  const auto forward = [&](Team t) {
    model_->forward(t, pass);
    if (last_logits != nullptr && !logits) model_->head(t, pass, pass.out.rows(n - 1, 1), last);
  };
  run_team(threads, std::ref(forward));  // by reference: a copy of the closure would be allocated
  state_.kv.throw_damage();
  const float* final_row = last.data;
  for (size_t i = 0; i < tap_rows.size(); ++i) hidden(i, size(), tap_rows[i]);
  for (size_t at = 0; logits && at < n; at += w.logits.count) {
    const Rows part = w.logits.rows(0, std::min(w.logits.count, n - at));
    const auto head = [&](Team t) { model_->head(t, pass, pass.out.rows(at, part.count), part); };
    run_team(threads, std::ref(head));
    logits(size() + static_cast<int64_t>(at), part);
    final_row = part.row(part.count - 1);
  }
  if (last_logits != nullptr) last_logits->assign(final_row, final_row + last.width);
}

void Session::rewind(int64_t to) {
  refuse_in_sink("rewind");
  if (to < 0 || to > size()) {
    throw Error(ErrorKind::argument, "", "rewind", "a position in 0.." + std::to_string(size()), std::to_string(to));
  }
  if (to == size()) return;
  if (!state_.prunes.empty() && to <= state_.floor()) {
    throw Error(ErrorKind::argument, "", "rewind",
                "a position after " + std::to_string(state_.floor()) + ", where the session was pruned", std::to_string(to));
  }
  cut(to);
  state_.generation.rewind(to);
  state_.dialogue.rewind(to + shifted_out(state_.prunes));
}

void Session::cut(int64_t to) {
  state_.kv.truncate(to);
  state_.tokens.resize(static_cast<size_t>(to));
  state_.logits.reset();
}

int64_t Session::prune(const PruneOptions& options) {
  refuse_in_sink("prune");
  logits();  // a rewound session cannot compute them any more when keys are gone
  return stet::prune(state_, model_->config(), options);
}

void Session::prune_range(int64_t begin, int64_t end, bool shift) {
  refuse_in_sink("prune");
  logits();
  stet::prune_range(state_, model_->config(), begin, end, shift);
}

std::span<const float> Session::logits() {
  refuse_in_sink("logits");
  if (state_.tokens.empty()) return {};
  if (state_.logits == nullptr) {
    Session again = fork();
    again.cut(size() - 1);
    again.append({&state_.tokens.back(), 1});
    state_.logits = std::move(again.state_.logits);
  }
  return *state_.logits;
}

const State& Session::state() {
  logits();
  return state_;
}

}  // namespace stet
