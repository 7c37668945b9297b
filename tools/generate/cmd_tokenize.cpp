// stet tokenize, detokenize.
#include <fmt/format.h>

#include "src/base/json_value.hpp"
#include "stet/base/error.hpp"
#include "tools/command/command.hpp"

namespace stet::tool {
namespace {

struct TokenizeCommand {
  CheckpointOption checkpoint;
  std::string text, file, ids, bos = "auto";
  bool jsonl = false, json = false, skip_special = false, plain_special = false;
  SourceOptions sources;
};

void run_tokenize(const TokenizeCommand& o) {
  const auto tokenizer = require_tokenizer(o.checkpoint);
  const Tokenizer::Bos bos = bos_of(o.bos);
  if (o.jsonl) {
    return each_line([&](const std::string& line, const std::string& where) {
      const nlohmann::json text = parse_json_value(line, where);
      if (!text.is_string())
        throw Error(ErrorKind::format, where, "", "a JSON string", printable(line, 60));
      return dump(tokenizer->encode(text.get<std::string>(), bos, !o.plain_special));
    });
  }
  const std::string text = o.file.empty() ? o.text : read_prompt(o.file);
  const double start = seconds();
  const std::vector<int32_t> ids = tokenizer->encode(text, bos, !o.plain_special);
  const double taken = seconds() - start;
  if (o.json) {
    out(dump(ids) + "\n");
    return;
  }
  for (const int32_t id : ids) {
    out(fmt::format("{:>8}  {}{}\n", id, printable(tokenizer->piece(id)),
                    tokenizer->is_special(id) ? "  (special)" : ""));
  }
  flush_output();
  say("{} tokens in {:.1f} ms, {:.1f} MB/s\n", ids.size(), taken * 1e3,
      static_cast<double>(text.size()) / taken / 1e6);
}

void run_detokenize(const TokenizeCommand& o) {
  const auto tokenizer = require_tokenizer(o.checkpoint);
  if (o.jsonl) {
    return each_line([&](const std::string& line, const std::string& where) {
      return dump(tokenizer->decode(parse_ids(line, where), o.skip_special));
    });
  }
  const std::string text = tokenizer->decode(parse_ids(o.ids, "--ids"), o.skip_special);
  out_text((o.json ? dump(text) : text) + "\n");
}

}  // namespace

void add_tokenize(Command& app) {
  const auto o = std::make_shared<TokenizeCommand>();
  Command* sub = app.add_subcommand("tokenize", "Convert text to token ids.");
  o->sources.add(sub->add_option("text,-p,--prompt", o->text, "the text")->type_name("TEXT"));
  o->sources.add(
      sub->add_option("--prompt-file", o->file, "the text, from a file (- for standard input)")
          ->type_name("FILE"));
  Option* lines = o->sources.add(
      sub->add_flag("--jsonl", o->jsonl,
                    "one JSON string per line of standard input, one JSON array per line out"));
  sub->add_flag("--json", o->json, "print a JSON array of ids")->excludes(lines);
  add_bos_to(*sub, o->bos, "as the checkpoint says, but no second bos", "Options");
  sub->add_flag("--plain-special", o->plain_special, "treat special tokens in the text as text");
  o->checkpoint.add_to(*sub);
  sub->callback([o] {
    o->sources.require("text, --prompt-file or --jsonl");
    run_tokenize(*o);
  });
}

void add_detokenize(Command& app) {
  const auto o = std::make_shared<TokenizeCommand>();
  Command* sub = app.add_subcommand("detokenize", "Convert token ids to text.");
  o->sources.add(sub->add_option("ids,--ids", o->ids, "token ids: 1,2,3")->type_name("IDS"));
  Option* lines = o->sources.add(
      sub->add_flag("--jsonl", o->jsonl,
                    "one JSON array per line of standard input, one JSON string per line out"));
  sub->add_flag("--json", o->json, "print a JSON string")->excludes(lines);
  add_raw_output(*sub);
  sub->add_flag("--skip-special", o->skip_special, "leave special tokens out");
  o->checkpoint.add_to(*sub);
  sub->callback([o] {
    o->sources.require("ids or --jsonl");
    run_detokenize(*o);
  });
}

}  // namespace stet::tool
