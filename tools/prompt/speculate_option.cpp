#include "tools/prompt/speculate_option.hpp"

#include <algorithm>

namespace stet::tool {
namespace {

// Loads the draft model, which uses the threads and instruction set of `compute` but a contract of
// its own.
std::function<std::shared_ptr<Drafter>()> model_drafters(const std::string& directory,
                                                         const Model& drafted,
                                                         const ComputeOptions& compute,
                                                         int64_t capacity) {
  ModelOptions options;
  options.checkpoint.directory = directory;
  options.checkpoint.named = true;
  options.session.compute.threads = compute.threads;
  options.session.compute.isa = compute.isa;
  const std::shared_ptr<const Model> model = options.load_model();
  ModelDrafter::check(*model, drafted);
  SessionOptions o = options.session_options();
  o.capacity =
      std::min(checked_capacity(drafted.config(), capacity), model->config().max_positions);
  const auto shared = std::make_shared<DraftSessions>(model, o);
  return [shared] { return std::make_shared<ModelDrafter>(shared); };
}

}  // namespace

void SpeculateOption::add_to(Command& app) {
  app.add_option(
         "--speculate", how_,
         "drafts, which change no reply: suffix (repeats text), a smaller model, or off (default)")
      ->type_name("suffix|MODEL|off")
      ->check(named())
      ->group("Speed");
}

std::function<std::shared_ptr<Drafter>()> SpeculateOption::drafters(const Model& model,
                                                                    const ComputeOptions& compute,
                                                                    int64_t capacity) const {
  if (how_ == "off") return nullptr;
  if (!detail::can_speculate(compute.contract)) {
    say("no effect under {}, where the rows of a pass depend on each other: --speculate\n",
        contract_name(compute.contract));
    return nullptr;
  }
  if (how_ != "suffix") return model_drafters(how_, model, compute, capacity);
  return [] { return std::make_shared<SuffixDrafter>(); };
}

void SpeculateOption::apply(const Session& session, GenerateOptions& options) {
  options.speculator = nullptr;
  if (const auto make = drafters(session.model(), session.compute(), session.capacity())) {
    speculator_ = std::make_shared<Speculator>(make());
    options.speculator = speculator_.get();
  }
}

void SpeculateOption::add(std::span<const int32_t> tokens) {
  if (speculator_ == nullptr) return;
  if (auto* suffix = dynamic_cast<SuffixDrafter*>(&speculator_->drafter())) suffix->add(tokens);
}

void add_drafted(Json& timings, const Reply& reply, bool speculated) {
  if (!speculated) return;
  timings["drafted_tokens"] = reply.drafted;
  timings["accepted_tokens"] = reply.accepted;
}

}  // namespace stet::tool
