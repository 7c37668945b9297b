// C interface: converts between its values and stet's.
#include "src/c/internal.hpp"
#include "stet/kernels/kernels.hpp"
#include "stet/threads/team.hpp"

#include <algorithm>

namespace stet::c {

int threads_of(int64_t threads) {
  if (threads < 0 || threads > kMaxThreads)
    fail("threads", "0 .. " + std::to_string(kMaxThreads), std::to_string(threads));
  return static_cast<int>(threads);
}

std::optional<Contract> contract_of(int64_t contract) {
  switch (contract) {
    case STET_CONTRACT_DEFAULT:
      return std::nullopt;
    case STET_CONTRACT_F32:
      return Contract::f32;
    case STET_CONTRACT_F32_BLAS:
      return Contract::f32_blas;
    case STET_CONTRACT_BF16:
      return Contract::bf16;
    case STET_CONTRACT_Q8:
      return Contract::q8;
    case STET_CONTRACT_Q4:
      return Contract::q4;
    case STET_CONTRACT_GGML:
      return Contract::ggml;
    default:
      fail("contract", "one of STET_CONTRACT_...", std::to_string(contract));
  }
}

int32_t contract_value(Contract contract) {
  switch (contract) {
    case Contract::f32:
      return STET_CONTRACT_F32;
    case Contract::f32_blas:
      return STET_CONTRACT_F32_BLAS;
    case Contract::bf16:
      return STET_CONTRACT_BF16;
    case Contract::q8:
      return STET_CONTRACT_Q8;
    case Contract::q4:
      return STET_CONTRACT_Q4;
    case Contract::ggml:
      return STET_CONTRACT_GGML;
  }
  return STET_CONTRACT_DEFAULT;
}

std::optional<KvType> kv_type_of(int64_t type) {
  switch (type) {
    case STET_KV_DEFAULT:
      return std::nullopt;
    case STET_KV_F32:
      return KvType::f32;
    case STET_KV_BF16:
      return KvType::bf16;
    case STET_KV_F16:
      return KvType::f16;
    case STET_KV_Q8:
      return KvType::q8;
    default:
      fail("kv_type", "one of STET_KV_...", std::to_string(type));
  }
}

int32_t kv_type_value(KvType type) {
  switch (type) {
    case KvType::f32:
      return STET_KV_F32;
    case KvType::bf16:
      return STET_KV_BF16;
    case KvType::f16:
      return STET_KV_F16;
    case KvType::q8:
      return STET_KV_Q8;
  }
  return STET_KV_DEFAULT;
}

namespace {

// Returns the value of an option of which 0 means the default and -1 means none.
int64_t none_or(int64_t given, int64_t otherwise, const char* name) {
  if (given < -1) fail(name, "-1 or more", std::to_string(given));
  return given == 0 ? otherwise : std::max<int64_t>(0, given);
}

}  // namespace

int64_t end_of(int64_t end, const char* name) {
  if (end < 0) fail(name, "0 (unbounded) or more", std::to_string(end));
  return end == 0 ? -1 : end;
}

SessionOptions session_options(const stet_session_options* options, Contract fallback) {
  const stet_session_options given = input(options, "options");
  SessionOptions o;
  o.capacity = given.capacity;
  o.kv_type = kv_type_of(given.kv_type).value_or(KvType::f32);
  o.compute.contract = contract_of(given.contract).value_or(fallback);
  o.compute.threads = threads_of(given.threads);
  o.compute.isa = string_or_empty(given.isa);
  if (given.chunk != 0) o.compute.chunk = given.chunk;
  o.window.only = given.window_only != 0;
  o.window.checkpoint_every =
      none_or(given.checkpoint_every, o.window.checkpoint_every, "checkpoint_every");
  o.anchor_bytes = none_or(given.anchor_bytes, o.anchor_bytes, "anchor_bytes");
  if (given.recompute != 0) o.window.before_recall = [](int64_t) {};
  return o;
}

PruneOptions prune_options(const stet_prune_options& options, uint64_t known_flags) {
  check_flags(options.flags, known_flags, "options");
  if (options.flags == (STET_PRUNE_SHIFT | STET_PRUNE_RECOMPUTE))
    fail("options.flags", "STET_PRUNE_SHIFT or STET_PRUNE_RECOMPUTE", "both");
  return {options.keep_last, options.sinks, (options.flags & STET_PRUNE_SHIFT) != 0,
          (options.flags & STET_PRUNE_RECOMPUTE) != 0};
}

SamplingSettings sampling_of(const stet_sampling* sampling) {
  const stet_sampling s = input(&at(sampling, "sampling"), "sampling");
  if (s.greedy != 0 && s.greedy != 1) fail("greedy", "0 or 1", std::to_string(s.greedy));
  SamplingSettings settings;
  settings.greedy = s.greedy == 1;
  settings.temperature = s.temperature;
  settings.top_k = s.top_k;
  settings.top_p = s.top_p;
  settings.min_p = s.min_p;
  settings.typical_p = s.typical_p;
  settings.repetition_penalty = s.repetition_penalty;
  settings.frequency_penalty = s.frequency_penalty;
  settings.presence_penalty = s.presence_penalty;
  if (s.logit_bias_count > kMaxLogitBias)
    fail("logit_bias", "at most " + std::to_string(kMaxLogitBias) + " tokens",
         std::to_string(s.logit_bias_count));
  std::vector<TokenBias> biases;
  for (const stet_token_bias& b : items(s.logit_bias, s.logit_bias_count, "logit_bias"))
    biases.push_back({b.id, b.bias});
  settings.logit_bias = logit_bias_of(std::move(biases));
  settings.seed = s.seed;
  settings.validate("");
  return settings;
}

Message message_of(const stet_message& message) {
  if (message.drawn != 0 && message.drawn != 1)
    fail("drawn", "0 or 1", std::to_string(message.drawn));
  return {string_of(message.role, "role"),
          string_of(message.content, "content"),
          string_of(message.fields, "fields"),
          message.begin,
          message.end,
          message.drawn == 1};
}

stet_message message_value(const Message& message) {
  return {view(message.role), view(message.content), view(message.fields),
          message.begin,      message.end,           message.generated ? 1 : 0};
}

namespace {

template <size_t size>
void copy_text(const std::string& text, char (&to)[size]) {
  text.copy(to, size - 1);
}

}  // namespace

stet_digests digests_value(const StateDigests& digests) {
  stet_digests d{};
  copy_text(digest_text(digests.tokens), d.tokens);
  copy_text(digest_text(digests.logits), d.logits);
  copy_text(digest_text(digests.kv), d.kv);
  copy_text(digest_text(digests.state), d.state);
  copy_text(sha256_text(digests.id), d.id);
  return d;
}

}  // namespace stet::c

const char* stet_isa_name(size_t index) {
  const char* const* names = stet::kernel_names();
  for (size_t i = 0; names[i] != nullptr; ++i) {
    if (i == index) return names[i];
  }
  return nullptr;
}
