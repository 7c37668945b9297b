// stet logits: logits and hidden states, for research and for tests.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "stet/base/error.hpp"
#include "stet/checkpoint/safetensors.hpp"
#include "stet/sampling/sampler.hpp"
#include "tools/command/command.hpp"
#include "tools/lab/lab.hpp"

namespace stet::tool {
namespace {

struct LogitsCommand {
  LabOptions lab;
  bool hidden = false, digest = false, nll = false;
  std::string output;
};

using Hidden = std::vector<std::vector<float>>;  // [layers + 1][T * hidden_size]

// Returns the digest of all bytes of keys and values, block after block.
Digest kv_digest(const KvCache& kv) {
  RunningDigest digest;
  const int64_t blocks = (kv.size() + kBlockPositions - 1) / kBlockPositions;
  for (int64_t b = 0; b < blocks; ++b) digest.add({kv.block(b), kv.shape().block_bytes()});
  return digest.result();
}

void add_rows(std::vector<float>& to, Rows rows) {
  for (size_t i = 0; i < rows.count; ++i)
    to.insert(to.end(), rows.row(i), rows.row(i) + rows.width);
}

void print_digests(const Digest& logits, Session& session) {
  out(fmt::format("logits {}\nkv {}\n", digest_text(logits), digest_text(kv_digest(session.kv()))));
  const std::span<const float> arrays = session.state().recurrent.numbers();
  if (!arrays.empty())
    out(fmt::format("recurrent {}\n", digest_text(digest_of(std::as_bytes(arrays)))));
}

// Writes rows to a file, in the order of its tensors, and to a digest.
class Output {
 public:
  Output(const LogitsCommand& o, const Session& session, const std::vector<int32_t>& ids)
      : ids_(ids) {
    const ModelConfig& c = session.model().config();
    const int64_t length = static_cast<int64_t>(ids.size());
    std::vector<TensorSpec> specs = {{"logits", DType::f32, {length, c.vocab_size}},
                                     {"input_ids", DType::i32, {length}}};
    if (o.hidden) hidden_.resize(static_cast<size_t>(c.layers) + 1);
    for (size_t i = 0; i < hidden_.size(); ++i) {
      specs.push_back({"hidden." + std::to_string(i), DType::f32, {length, c.hidden_size}});
    }
    if (o.output.empty()) return;
    const std::map<std::string, std::string> metadata = {
        {"contract", contract_name(session.model(), session.compute().contract)},
        {"model", session.model().fingerprint()},
        {"first_position", std::to_string(session.size())}};
    file_.emplace(o.output, specs, metadata);
  }

  void logits(Rows rows) {
    for (size_t i = 0; i < rows.count; ++i) {
      const auto bytes = std::as_bytes(std::span(rows.row(i), rows.width));
      if (file_) file_->write(bytes);
      digest_.add(bytes);
    }
  }
  void hidden(size_t index, Rows rows) { add_rows(hidden_[index], rows); }
  void finish() {
    if (!file_) return;
    file_->write(std::as_bytes(std::span(ids_)));
    for (const std::vector<float>& h : hidden_) file_->write(std::as_bytes(std::span(h)));
    file_->commit();
  }
  Digest digest() const { return digest_.result(); }

 private:
  const std::vector<int32_t>& ids_;
  std::optional<SafeTensorsWriter> file_;
  Hidden hidden_;
  RunningDigest digest_;
};

// Computes the mean of -ln p(token | tokens before it) over all tokens that have one before them.
class Likelihood {
 public:
  // `first` is the position of the first token.
  Likelihood(const std::vector<int32_t>& ids, int64_t first) : ids_(ids), first_(first) {}

  void logits(int64_t first, Rows rows) {
    for (size_t i = 0; i < rows.count; ++i)
      add(static_cast<size_t>(first - first_) + i + 1, {rows.row(i), rows.width});
  }
  // Adds the token of index `next`, if there is one, given the logits before it.
  void add(size_t next, std::span<const float> logits) {
    if (next >= ids_.size()) return;
    total_ -= log_probability(logits, ids_[next]);
    ++count_;
  }
  std::string text() const {
    const double mean = total_ / static_cast<double>(count_);
    require_finite({{"nll", mean}}, "--nll");
    return fmt::format("nll {:.5f} per token, perplexity {:.4f}, over {} tokens\n", mean,
                       std::exp(mean), count_);
  }

 private:
  const std::vector<int32_t>& ids_;
  int64_t first_;
  double total_ = 0;
  size_t count_ = 0;
};

void run(LogitsCommand& o) {
  if (!o.output.empty()) check_writable(o.output);
  LabWork work = begin(o.lab);
  Session& session = work.session;
  const std::vector<int32_t>& ids = work.ids;
  const bool continues = session.size() > 0;
  if (o.nll && ids.size() < 2 && !continues) usage_error("--nll needs at least two tokens");
  end_on_signals([&] {
    Output output(o, session, ids);
    HiddenSink hidden;
    if (o.hidden) hidden = [&](size_t index, int64_t, Rows rows) { output.hidden(index, rows); };
    Likelihood likelihood(ids, session.size());
    if (o.nll && continues) likelihood.add(0, session.logits());
    const auto logits = [&](int64_t first, Rows rows) {
      output.logits(rows);
      if (o.nll) likelihood.logits(first, rows);
    };
    session.append(ids, logits, hidden);
    output.finish();
    if (o.nll) out(likelihood.text());
    if (o.digest) print_digests(output.digest(), session);
  });
}

}  // namespace

void add_logits(Command& app) {
  const auto o = std::make_shared<LogitsCommand>();
  Command* sub = app.add_subcommand(
      "logits", "Write the logits of every position, and hidden states, as safetensors.");
  Option* output =
      sub->add_option("-o,--output", o->output,
                      "file to write: logits [T, vocab], input_ids [T], hidden.i [T, hidden]")
          ->type_name("FILE")
          ->group("Output");
  sub->add_flag("--hidden", o->hidden,
                "also hidden.0: the embedding; hidden.i: before layer i; last: after layers and "
                "final norm")
      ->needs(output)
      ->group("Output");
  sub->add_flag("--digest", o->digest,
                "print digests of all logits, the KV cache and recurrent arrays")
      ->group("Output");
  sub->add_flag("--nll", o->nll, "print the mean negative log-likelihood of the tokens")
      ->group("Output");
  o->lab.add_to(*sub);
  sub->callback([o] {
    o->lab.prompt.require();
    if (o->output.empty() && !o->digest && !o->nll) required_error("-o, --digest or --nll");
    run(*o);
  });
}

}  // namespace stet::tool
