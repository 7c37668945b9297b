// stet logits: raw logits and hidden states, for research and for tests.
#include <fmt/format.h>

#include "stet/error.hpp"
#include "stet/safetensors.hpp"
#include "tools/command.hpp"

namespace stet::tool {
namespace {

struct Options {
  ModelOptions model;
  PromptOptions prompt;
  bool hidden = false, digest = false;
  std::string output;
};

void write_rows(SafeTensorsWriter& file, Rows rows) {
  for (size_t i = 0; i < rows.count; ++i) file.write(std::as_bytes(std::span(rows.row(i), rows.width)));
}

void run(Options& o) {
  const auto tokenizer = load_tokenizer(o.model.directory);
  std::vector<int32_t> ids;
  for (const auto& turn : o.prompt.turns(tokenizer, true)) ids.insert(ids.end(), turn.begin(), turn.end());
  if (ids.empty()) throw Error(ErrorKind::argument, "", "ids", "at least one token", "none");
  const auto model = o.model.load_model();
  Session session(model, o.model.session_options());
  const ModelConfig& c = model->config();
  const int64_t length = static_cast<int64_t>(ids.size());
  std::vector<TensorSpec> specs = {{"logits", DType::f32, {length, c.vocab_size}}, {"input_ids", DType::i32, {length}}};
  std::vector<std::vector<float>> hidden(o.hidden ? static_cast<size_t>(c.layers) + 1 : 0);
  for (size_t i = 0; i < hidden.size(); ++i) {
    specs.push_back({"hidden." + std::to_string(i), DType::f32, {length, c.hidden_size}});
  }
  std::optional<SafeTensorsWriter> file;
  if (!o.output.empty()) {
    file.emplace(o.output, specs, std::map<std::string, std::string>{{"contract", contract_name(session.compute())},
                 {"model", digest_text(model->fingerprints().back().second)}});
  }
  HiddenSink keep_hidden;
  if (o.hidden) {
    keep_hidden = [&](size_t index, int64_t, Rows rows) {
      for (size_t i = 0; i < rows.count; ++i) hidden[index].insert(hidden[index].end(), rows.row(i), rows.row(i) + rows.width);
    };
  }
  RunningDigest digest;
  session.append(
      ids,
      [&](int64_t, Rows rows) {
        if (file) write_rows(*file, rows);
        for (size_t i = 0; i < rows.count; ++i) digest.add(std::as_bytes(std::span(rows.row(i), rows.width)));
      },
      keep_hidden);
  if (file) {
    file->write(std::as_bytes(std::span(ids)));
    for (const std::vector<float>& h : hidden) file->write(std::as_bytes(std::span(h)));
    file->commit();
  }
  if (o.digest) fmt::print("logits {}\nkv {}\n", digest_text(digest.result()), digest_text(digests_of(session).kv));
}

}  // namespace

void add_logits(CLI::App& app) {
  const auto o = std::make_shared<Options>();
  CLI::App* sub = app.add_subcommand("logits", "logits of every position, as safetensors");
  o->model.add_to(*sub);
  o->prompt.add_to(*sub);
  sub->add_flag("--hidden", o->hidden, "hidden states too: after the embedding, after each layer, after the final norm");
  sub->add_option("-o,--output", o->output, "file to write: logits [T, vocab], input_ids [T], hidden.i [T, hidden]");
  sub->add_flag("--digest", o->digest, "print digests of all logits and of the KV cache");
  sub->callback([o] {
    if (!o->prompt.given()) throw CLI::RequiredError("--prompt, --prompt-file, --ids or --ids-file");
    if (o->output.empty() && !o->digest) throw CLI::RequiredError("-o or --digest");
    run(*o);
  });
}

}  // namespace stet::tool
