#include "tools/prompt/speculate_option.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <type_traits>
#include <utility>

#include "stet/base/error.hpp"
#include "stet/threads/interrupt.hpp"
#include "tools/prompt/tokenizer_choice.hpp"

namespace stet::tool {
namespace {

// Says on stderr why the draft model drafts nothing, once for each reason in a row.
class ReportingDrafter : public ModelDrafter {
 public:
  ReportingDrafter(std::shared_ptr<DraftSessions> shared, std::shared_ptr<std::string> said)
      : ModelDrafter(shared), directory_(shared->model().directory()), said_(std::move(said)) {}

  Offer offer(const Session& session, int32_t next, size_t most) override {
    return reported([&] { return ModelDrafter::offer(session, next, most); });
  }
  void catch_up(const Session& session, int32_t next, size_t count) override {
    reported([&] { ModelDrafter::catch_up(session, next, count); });
  }
  std::span<const int32_t> draft(const Session& session, int32_t next, size_t count) override {
    return reported([&] { return ModelDrafter::draft(session, next, count); });
  }

 private:
  template <class Call>
  std::invoke_result_t<Call> reported(const Call& call) {
    try {
      return call();
    } catch (const Interrupted&) {
      throw;
    } catch (const std::exception& e) {
      if (std::exchange(*said_, e.what()) != e.what())
        say("{}: the draft model failed, and replies continue without its drafts: {}\n",
            printable(directory_), e.what());
      throw;
    }
  }

  std::string directory_;
  std::shared_ptr<std::string> said_;
};

// Throws an argument Error unless both models use the same tokens. With tokenizers, one may have
// more ids than the other, such as padded embeddings.
void check_vocabulary(const Model& draft, const Model& model, const Tokenizer* tokenizer) {
  const auto own = tokenizer == nullptr || !has_tokenizer(draft.source())
                       ? nullptr
                       : load_tokenizer(draft.source());
  if (own == nullptr) return ModelDrafter::check(draft, model);
  if (own->fingerprint() == tokenizer->fingerprint()) return;
  for (int32_t id = 0; id < std::min(own->size(), tokenizer->size()); ++id) {
    if (own->piece(id) == tokenizer->piece(id)) continue;
    throw Error(ErrorKind::argument, draft.directory(), fmt::format("tokenizer: token {}", id),
                fmt::format("\"{}\", as of the model whose tokens are drafted",
                            printable(tokenizer->piece(id))),
                fmt::format("\"{}\"", printable(own->piece(id))));
  }
}

// Loads the draft model, unless it is the model itself. It shares the model's threads, instruction
// set, cache and checks, but has a contract of its own.
std::function<std::shared_ptr<Drafter>()> model_drafters(const std::string& directory,
                                                         const DraftedModel& drafted) {
  const ComputeOptions& compute = drafted.compute;
  ModelOptions options;
  options.checkpoint.directory = directory;
  options.checkpoint.named = true;
  options.cache = drafted.options.cache;
  options.in_memory = drafted.options.in_memory;
  options.check = drafted.options.check;
  options.session.compute.threads = compute.threads;
  options.session.compute.isa = compute.isa;
  const bool same = directory == drafted.model->directory();
  const std::shared_ptr<const Model> model = same ? drafted.model : options.load_model();
  if (!same) check_vocabulary(*model, *drafted.model, drafted.tokenizer);
  SessionOptions o = options.session_options();
  if (same) o.compute.contract = compute.contract;
  const int64_t capacity = checked_capacity(drafted.model->config(), drafted.capacity);
  o.capacity = std::min(capacity, model->config().max_positions);
  if (o.capacity < capacity)
    say("{}: drafts end after {} positions, the context of the draft model\n", printable(directory),
        o.capacity);
  const auto shared = std::make_shared<DraftSessions>(model, o);
  return [shared, said = std::make_shared<std::string>()] {
    return std::make_shared<ReportingDrafter>(shared, said);
  };
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

std::function<std::shared_ptr<Drafter>()> SpeculateOption::drafters(
    const DraftedModel& drafted) const {
  if (how_ == "off") return nullptr;
  if (!detail::can_speculate(drafted.compute.contract)) {
    say("no effect under {}, where the rows of a pass depend on each other: --speculate\n",
        contract_name(drafted.compute.contract));
    return nullptr;
  }
  if (how_ != "suffix") return model_drafters(how_, drafted);
  return [] { return std::make_shared<SuffixDrafter>(); };
}

void SpeculateOption::apply(const Session& session, const ModelOptions& model,
                            const Tokenizer* tokenizer, GenerateOptions& options) {
  options.speculator = nullptr;
  if (const auto make = drafters(
          {session.shared_model(), model, tokenizer, session.compute(), session.capacity()})) {
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
