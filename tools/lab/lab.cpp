#include "tools/lab/lab.hpp"

#include "stet/base/error.hpp"
#include "stet/text/utf8.hpp"

namespace stet::tool {

void LabOptions::add_to(CLI::App& app) {
  prompt.add_to(app);
  add_without_prompt_to(app);
}

void LabOptions::add_without_prompt_to(CLI::App& app) {
  CLI::Option* snapshot =
      app.add_option("--from", from, "a snapshot whose state goes before the prompt")
          ->type_name("FILE");
  restore.add_to(app, snapshot);
  interventions.add_to(app);
  model.add_to(app);
}

LabWork begin(LabOptions& o) {
  std::shared_ptr<const Tokenizer> tokenizer;
  std::optional<Session> session;
  if (o.from.empty()) {
    tokenizer = load_tokenizer(o.model.checkpoint);
    session.emplace(o.model.load_model(), o.model.session_options());
  } else {
    const Snapshot snapshot = o.restore.open(o.from);
    choose_checkpoint(o.model, snapshot);
    follow(o.model, snapshot, o.restore.how.replay);
    tokenizer = tokenizer_of(snapshot, o.model);
    session.emplace(restore_session(snapshot, o.model, o.restore.how, tokenizer.get()));
  }
  std::vector<int32_t> ids;
  if (o.prompt.given()) {
    for (const Prompt& p : o.prompt.read(o.model.source()->path(), tokenizer, session->size() == 0))
      ids.insert(ids.end(), p.ids.begin(), p.ids.end());
  }
  o.interventions.attach_to(*session);
  return {tokenizer, std::move(*session), std::move(ids)};
}

std::string token_text(const Tokenizer* tokenizer, int32_t id) {
  if (tokenizer == nullptr || id >= tokenizer->size()) return std::to_string(id);
  return printable(utf8_lossy(tokenizer->bytes(id)), 40);
}

}  // namespace stet::tool
