// stet tokenize, detokenize.
#include <fmt/format.h>

#include <iostream>

#include "stet/error.hpp"
#include "stet/file.hpp"
#include "tools/command.hpp"

namespace stet::tool {
namespace {

constexpr size_t kTextLimit = size_t{1} << 30;

struct Options {
  ModelOptions model;
  std::string text, file, ids, bos = "auto";
  bool jsonl = false, json = false, skip_special = false, plain_special = false;
};

// f(line, line number) for every line of standard input.
template <class F>
void each_line(F f) {
  std::string line;
  for (size_t number = 1; std::getline(std::cin, line); ++number) f(line, "line " + std::to_string(number));
  std::fflush(stdout);
}

void run_tokenize(const Options& o) {
  const auto tokenizer = require_tokenizer(o.model.directory);
  const Tokenizer::Bos bos = bos_of(o.bos);
  if (o.jsonl) {
    return each_line([&](const std::string& line, const std::string& where) {
      const nlohmann::json text = nlohmann::json::parse(line, nullptr, false);
      if (!text.is_string()) throw Error(ErrorKind::format, "standard input", where, "a JSON string", line.substr(0, 60));
      fmt::print("{}\n", Json(tokenizer->encode(text.get<std::string>(), bos, !o.plain_special)).dump());
    });
  }
  const std::string text = o.file.empty() ? o.text : read_text_file(o.file == "-" ? "/dev/stdin" : o.file, kTextLimit);
  const std::vector<int32_t> ids = tokenizer->encode(text, bos, !o.plain_special);
  if (o.json) {
    fmt::print("{}\n", Json(ids).dump());
    return;
  }
  for (const int32_t id : ids) {
    fmt::print("{:>8}  {}{}\n", id, printable(tokenizer->piece(id)), tokenizer->is_special(id) ? "  (special)" : "");
  }
  fmt::print(stderr, "{} tokens\n", ids.size());
}

void run_detokenize(const Options& o) {
  const auto tokenizer = require_tokenizer(o.model.directory);
  if (o.jsonl) {
    return each_line([&](const std::string& line, const std::string& where) {
      const std::string text = tokenizer->decode(parse_ids(line, "standard input: " + where), o.skip_special);
      fmt::print("{}\n", Json(text).dump());
    });
  }
  const std::string text = tokenizer->decode(parse_ids("[" + o.ids + "]", "--ids"), o.skip_special);
  fmt::print("{}\n", o.json ? Json(text).dump() : text);
}

}  // namespace

void add_tokenize(CLI::App& app) {
  const auto o = std::make_shared<Options>();
  CLI::App* sub = app.add_subcommand("tokenize", "text to token ids");
  o->model.add_to(*sub);
  sub->add_option("text,-p,--prompt", o->text, "the text");
  sub->add_option("--prompt-file", o->file, "the text, from a file (- for standard input)");
  sub->add_option("--bos", o->bos, "special tokens around the text: auto (as the checkpoint says), on or off")->capture_default_str();
  sub->add_flag("--plain-special", o->plain_special, "special tokens in the text are ordinary text");
  sub->add_flag("--json", o->json, "a JSON array of ids");
  sub->add_flag("--jsonl", o->jsonl, "one JSON string per line of standard input, one JSON array per line out");
  sub->callback([o] { run_tokenize(*o); });
}

void add_detokenize(CLI::App& app) {
  const auto o = std::make_shared<Options>();
  CLI::App* sub = app.add_subcommand("detokenize", "token ids to text");
  o->model.add_to(*sub);
  sub->add_option("ids,--ids", o->ids, "token ids: 1,2,3");
  sub->add_flag("--skip-special", o->skip_special, "leave special tokens out");
  sub->add_flag("--json", o->json, "a JSON string");
  sub->add_flag("--jsonl", o->jsonl, "one JSON array per line of standard input, one JSON string per line out");
  sub->callback([o] { run_detokenize(*o); });
}

}  // namespace stet::tool
