// Defines compute_fast or compute_plain, as STET_UNIT says. Every inline function of stet and of
// the families that it calls is compiled in this file with this file's flags.
#include "unit.hpp"

#include "models/gemma.hpp"
#include "models/gemma2.hpp"
#include "models/gemma3.hpp"
#include "models/gemma3n.hpp"
#include "models/gemma4.hpp"
#include "models/gpt2.hpp"
#include "models/gpt_neox.hpp"
#include "models/gpt_oss.hpp"
#include "models/granite.hpp"
#include "models/granite_hybrid.hpp"
#include "models/granite_moe.hpp"
#include "models/lfm2.hpp"
#include "models/llama.hpp"
#include "models/mistral.hpp"
#include "models/mixtral.hpp"
#include "models/olmo2.hpp"
#include "models/olmo3.hpp"
#include "models/olmoe.hpp"
#include "models/phi3.hpp"
#include "models/qwen2.hpp"
#include "models/qwen3.hpp"
#include "models/qwen3_5.hpp"
#include "models/qwen3_moe.hpp"
#include "models/qwen3_next.hpp"
#include "models/smollm3.hpp"
#include "stet/stet.hpp"

namespace {

using namespace stet;

std::vector<int32_t> read_ids(const std::string& file) {
  std::vector<int32_t> ids;
  for (const int64_t id :
       parse_json("{\"ids\":" + read_text_file(file, size_t{1} << 20) + "}", file)
           .integers("ids", 0, INT32_MAX))
    ids.push_back(static_cast<int32_t>(id));
  return ids;
}

std::string prompt_digests(Session& session, const std::vector<int32_t>& ids) {
  RunningDigest logits, kv;
  session.append(ids, [&](int64_t, Rows rows) {
    for (size_t i = 0; i < rows.count; ++i)
      logits.add(std::as_bytes(std::span(rows.row(i), rows.width)));
  });
  for (int64_t b = 0; b < session.kv().blocks(); ++b)
    kv.add({session.kv().block(b), session.kv().shape().block_bytes()});
  std::string lines =
      "logits " + digest_text(logits.result()) + "\nkv " + digest_text(kv.result()) + "\n";
  const std::span<const float> arrays = session.state().recurrent.numbers();
  if (!arrays.empty()) lines += "recurrent " + digest_text(digest_of(std::as_bytes(arrays))) + "\n";
  return lines;
}

// Appends a session and its fork as a batch, and uses all features of the sampler. Prunes where the
// model allows it. Returns the digests of both states.
std::string edited_digest(Session& session) {
  SamplingSettings& sampling = session.generation().sampling;
  sampling = {.greedy = false,
              .temperature = 0.9,
              .top_k = 40,
              .top_p = 0.95,
              .min_p = 0.01,
              .typical_p = 0.9,
              .repetition_penalty = 1.1,
              .seed = 7};
  generate(session, nullptr, {.max_tokens = 6, .ignore_eos = true});
  session.rewind(session.size() - 2);
  Session fork = session.fork();
  const int32_t one[] = {3}, two[] = {4, 5, 6};
  const BatchEntry batch[] = {{&session, one}, {&fork, two}};
  append(batch);
  // A recurrence cannot forget tokens, and positions without rotation cannot shift.
  if (!session.model().config().ropes.empty() && session.state().recurrent.empty()) {
    fork.prune({.keep_last = fork.size() - 6, .sinks = 2, .shift = true});
  }
  generate(fork, nullptr, {.max_tokens = 4, .ignore_eos = true});
  return "state " + digest_text(digests_of(session).state) + " " +
         digest_text(digests_of(fork).state) + "\n";
}

}  // namespace

std::string STET_UNIT(const std::string& directory, const std::string& contract,
                      const std::string& ids_file, const std::string& kv_type) {
  SessionOptions options;
  options.kv_type = parse_kv_type(kv_type).value();
  options.compute.contract = parse_contract(contract).value();
  Session session(Model::load(directory_source(directory), 0, options.compute.contract), options);
  const std::string prompt = prompt_digests(session, read_ids(ids_file));
  return prompt + edited_digest(session);
}
