// Implements window.hpp.
#pragma once

namespace stet {

namespace detail {

STET_INL HeldLayers held_layers(const ModelConfig& c) {
  HeldLayers held(c.window.size());
  for (size_t l = 0; l < held.size(); ++l) {
    const int64_t owner = c.layer(static_cast<int64_t>(l)).owner;
    if (owner != static_cast<int64_t>(l)) held[l] = true;
    if (owner >= 0 && c.window[l] == 0) held[static_cast<size_t>(owner)] = true;
  }
  return held;
}

}  // namespace detail

STET_INL std::shared_ptr<const WindowPlan> plan_window(const ModelConfig& c, Contract contract,
                                                       const WindowOptions& options) {
  WindowPlan plan;
  plan.window = detail::widest_window(c);
  plan.held = std::make_shared<const HeldLayers>(detail::held_layers(c));
  plan.every = options.checkpoint_every;
  plan.keep_from = options.keep_from;
  if (plan.window == 0) {
    throw Error(ErrorKind::unsupported, "", "window-only", "a model with sliding-window layers",
                "family " + c.family);
  }
  if (!is_replayable(contract_name(contract))) {
    throw Error(ErrorKind::unsupported, "", "window-only", "a contract whose bits are reproducible",
                contract_name(contract));
  }
  const int64_t least = 2 * plan.window + 256;
  if (plan.every != 0 && plan.every < least) {
    throw Error(ErrorKind::argument, "", "checkpoint-every",
                "0, or at least " + std::to_string(least) + " positions for a window of " +
                    std::to_string(plan.window),
                std::to_string(plan.every));
  }
  return std::make_shared<const WindowPlan>(std::move(plan));
}

STET_INL uint64_t window_only_bytes(const ModelConfig& c, const KvShape& shape, int64_t every,
                                    int64_t positions) {
  WindowPlan plan;
  plan.window = detail::widest_window(c);
  plan.every = every;
  const HeldLayers all = detail::held_layers(c);
  uint64_t held = 0;
  for (int64_t l = 0; l < shape.layers; ++l)
    held += all[static_cast<size_t>(l)] ? shape.layer_bytes(l) : 0;
  const int64_t blocks = (positions + kBlockPositions - 1) / kBlockPositions;
  uint64_t bytes = 0;
  for (int64_t b = 0; b < blocks; ++b)
    bytes += b < plan.first_whole(positions) && !plan.of_checkpoint(b) ? held : shape.block_bytes();
  return bytes;
}

}  // namespace stet
