// stet quantize and prepare, which write checkpoints that are mapped and used in place, and stet
// convert-model, which writes GGUF.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "stet/base/error.hpp"
#include "stet/checkpoint/checkpoint.hpp"
#include "stet/checkpoint/gguf.hpp"
#include "stet/checkpoint/packed.hpp"
#include "stet/model/importance.hpp"
#include "stet/session/session.hpp"
#include "tools/command/command.hpp"
#include "tools/prompt/tokenizer_choice.hpp"

namespace stet::tool {
namespace {

struct PackCommand {
  CheckpointOption checkpoint;
  std::string to, directory, importance;
  int threads = 0;
};

// Returns the importance of inputs on the text of `file`, or null without a file. It is measured
// with the original weights, on separate pieces of the text. Each piece begins with the special
// tokens that the tokenizer puts before a text.
std::unique_ptr<const Importance> measured(const CheckpointOption& checkpoint,
                                           const std::string& file,
                                           const std::shared_ptr<const FileSource>& source,
                                           int threads) {
  constexpr size_t kPiece = 512, kMostText = size_t{1} << 26;
  if (file.empty()) return nullptr;
  const auto tokenizer = require_tokenizer(checkpoint, "for --importance");
  const std::string text = read_text_file(file, kMostText);
  const std::vector<int32_t> ids = tokenizer->encode(text, Tokenizer::Bos::off),
                             marks = tokenizer->encode("", Tokenizer::Bos::automatic);
  if (ids.empty()) throw Error(ErrorKind::argument, file, "", "some text", "none");
  SessionOptions options;
  options.compute.threads = threads;
  options.compute.contract = contract_of_weights(*source);
  const auto model = Model::load(source, threads, options.compute.contract);
  auto importance = std::make_unique<Importance>(model->config());
  const Watch watch{importance->points(),
                    [&](const PointAt& at, int64_t, Rows rows) { importance->add(at, rows); }};
  const size_t most = std::min(kPiece, static_cast<size_t>(model->config().max_positions));
  const bool begins = tokenizer->bos() && !marks.empty() && marks[0] == *tokenizer->bos();
  for (size_t first = 0; first < ids.size();) {
    std::vector<int32_t> piece;
    if (begins) piece.push_back(*tokenizer->bos());
    const size_t end = std::min(ids.size(), first + most - piece.size());
    piece.insert(piece.end(), ids.begin() + static_cast<std::ptrdiff_t>(first),
                 ids.begin() + static_cast<std::ptrdiff_t>(end));
    Session(model, options).append(piece, nullptr, nullptr, nullptr, &watch);
    first = end;
  }
  return importance;
}

// Names some of the tensors that the written checkpoint lacks, because the model does not use them.
// Nothing in it shows later that there were any.
void warn_of_left_out(const FileSource& source) {
  constexpr size_t kShown = 3;
  const std::vector<std::string> names = unused_tensors(source);
  if (names.empty()) return;
  std::string shown;
  for (size_t i = 0; i < std::min(kShown, names.size()); ++i)
    shown += (i == 0 ? "" : ", ") + printable(names[i], 80);
  say("warning: the model does not use {} of the tensors, which are left out: {}{}\n", names.size(),
      shown, names.size() > kShown ? ", ...; stet inspect lists all (passed_over)" : "");
}

void run(const PackCommand& o) {
  const double start = seconds();
  const auto source = o.checkpoint.source();
  static const std::map<std::string, DType> kBlocks = {
      {"q4k", DType::q4_k}, {"q5k", DType::q5_k}, {"q6k", DType::q6_k}, {"mxfp4", DType::mxfp4}};
  const auto blocks = kBlocks.find(o.to);
  if (!o.importance.empty() && !o.to.ends_with("k"))
    usage_error("--importance is for --to q4k, q5k and q6k only");
  if (blocks != kBlocks.end()) {
    check_pack_directory(o.directory);
    const auto importance = measured(o.checkpoint, o.importance, source, o.threads);
    pack_checkpoint(*source, Contract::ggml, o.directory, o.threads, nullptr,
                    BlockRounding{blocks->second, importance.get()});
  } else {
    pack_checkpoint(*source, o.to.empty() ? contract_of_weights(*source) : *parse_contract(o.to),
                    o.directory, o.threads);
  }
  warn_of_left_out(*source);
  const auto size =
      static_cast<double>(std::filesystem::file_size(o.directory + "/" + kPackedName));
  out(fmt::format("{}: {} of weights{} in {:.1f} s\n", printable(o.directory), bytes_text(size),
                  o.to.empty() ? "" : " rounded to " + o.to, seconds() - start));
}

void add_importance(Command& app, std::string& file) {
  app.add_option(
         "--importance", file,
         "sample text in UTF-8 for K types: errors count more for inputs that are large on it")
      ->type_name("FILE");
}

void add(Command& app, const std::string& name, const std::string& help,
         const std::shared_ptr<PackCommand>& o) {
  Command* sub = app.add_subcommand(name, help);
  o->checkpoint.add_to(*sub);
  o->checkpoint.add_overrides_to(*sub);
  sub->add_option("-o,--output", o->directory, "a new or empty directory")
      ->type_name("DIR")
      ->required();
  if (name == "quantize") {
    sub->add_option(
           "--to", o->to,
           "q8, q4: integers of 8 or 4 bits in blocks of 32; q4k, q5k, q6k: ggml's K types; mxfp4: "
           "experts alone")
        ->type_name("FORMAT")
        ->required()
        ->check(one_of({"q8", "q4", "q4k", "q5k", "q6k", "mxfp4"}));
    add_importance(*sub, o->importance);
  }
  add_threads(*sub, o->threads);
  sub->callback([o] { end_on_signals([&] { run(*o); }); });
}

const std::vector<std::pair<std::string, GgufWeights>> kTypes = {
    {"f32", GgufWeights::f32},      {"f16", GgufWeights::f16},   {"bf16", GgufWeights::bf16},
    {"q8_0", GgufWeights::q8_0},    {"q4_0", GgufWeights::q4_0}, {"q4_k", GgufWeights::q4_k},
    {"q5_k", GgufWeights::q5_k},    {"q6_k", GgufWeights::q6_k}, {"mxfp4", GgufWeights::mxfp4},
    {"stored", GgufWeights::stored}};
const std::vector<std::pair<std::string, GgufTokenizer>> kTokenizers = {
    {"own", GgufTokenizer::own},
    {"none", GgufTokenizer::none},
    {"made-up", GgufTokenizer::placeholder}};

template <class T>
T chosen(const std::vector<std::pair<std::string, T>>& all, const std::string& name) {
  return std::ranges::find(all, name, &std::pair<std::string, T>::first)->second;
}
template <class T>
Check one_of_these(const std::vector<std::pair<std::string, T>>& all) {
  std::vector<std::string> names;
  for (const auto& [name, value] : all) names.push_back(name);
  return one_of(names);
}

struct ConvertCommand {
  CheckpointOption checkpoint;
  std::string file, type = "stored", tokenizer = "own", importance;
  int threads = 0;
};

void run(const ConvertCommand& o) {
  const double start = seconds();
  if (!o.importance.empty() && !o.type.ends_with("_k"))
    usage_error("--importance is for --type q4_k, q5_k and q6_k only");
  const auto source = o.checkpoint.source();
  check_writable(o.file);
  GgufTokenizer tokenizer = chosen(kTokenizers, o.tokenizer);
  if (tokenizer == GgufTokenizer::own) {
    if (const auto fault = tokenizer_fault(*source)) {
      say("warning: the file has no tokenizer: {}\n", fault->what());
      tokenizer = GgufTokenizer::none;
    }
  }
  const auto importance = measured(o.checkpoint, o.importance, source, o.threads);
  const GgufLeftOut left_out =
      write_gguf(*source, o.file, {chosen(kTypes, o.type), tokenizer, o.threads, importance.get()});
  for (const std::string& token : left_out.tokens)
    say("warning: the file has no token {}: the model has no embedding for it\n",
        printable(token, 60));
  if (left_out.window > 0)
    say("warning: llama.cpp does not read the model's window of {} positions, and sees all\n",
        left_out.window);
  warn_of_left_out(*source);
  out(fmt::format("{}: {} in {:.1f} s\n", printable(o.file),
                  bytes_text(static_cast<double>(std::filesystem::file_size(o.file))),
                  seconds() - start));
}

}  // namespace

void add_convert_model(Command& app) {
  const auto o = std::make_shared<ConvertCommand>();
  Command* sub = app.add_subcommand(
      "convert-model",
      "Convert a checkpoint to a GGUF file, for llama.cpp and programs that read its files.");
  o->checkpoint.add_to(*sub);
  o->checkpoint.add_overrides_to(*sub);
  sub->add_option_function(
         "IN",
         [o](const std::string& given) {
           o->checkpoint.directory = given;
           o->checkpoint.named = true;
         },
         "the same as -m")
      ->type_name("IN")
      ->check(named())
      ->excludes("-m");
  sub->add_option("-o,--output", o->file, "file to write")
      ->type_name("OUT.gguf")
      ->required()
      ->check(named());
  sub->add_option(
         "--type", o->type,
         "type of matrices: f32, f16, bf16, q8_0, q4_0, q4_k, q5_k or q6_k, or mxfp4 of experts "
         "(default: as stored)")
      ->type_name("TYPE")
      ->check(one_of_these(kTypes));
  add_importance(*sub, o->importance);
  sub->add_option(
         "--tokenizer", o->tokenizer,
         "own (default), none, or made-up (a placeholder, for programs that use ids but need one)")
      ->type_name("WHICH")
      ->check(one_of_these(kTokenizers));
  add_threads(*sub, o->threads);
  sub->callback([o] { end_on_signals([&] { run(*o); }); });
}

void add_quantize(Command& app) {
  add(app, "quantize", "Quantize a checkpoint to a packed one, which is mapped and used in place.",
      std::make_shared<PackCommand>());
}
void add_prepare(Command& app) {
  add(app, "prepare",
      "Pack a checkpoint without rounding; the packed one is mapped and used in place.",
      std::make_shared<PackCommand>());
}

}  // namespace stet::tool
