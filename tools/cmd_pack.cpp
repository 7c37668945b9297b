// stet quantize, stet prepare: checkpoints that are mapped and used as they stand in the file.
#include <fmt/format.h>

#include <filesystem>
#include <map>

#include "stet/base/error.hpp"
#include "stet/checkpoint/gguf.hpp"
#include "stet/checkpoint/packed.hpp"
#include "stet/checkpoint/safetensors.hpp"
#include "tools/command.hpp"

namespace stet::tool {
namespace {

struct PackCommand {
  CheckpointOption checkpoint;
  std::string to, directory;
  int threads = 0;
};

void run(const PackCommand& o) {
  const double start = seconds();
  const auto source = o.checkpoint.source();
  static const std::map<std::string, DType> kBlocks = {
      {"q4k", DType::q4_k}, {"q5k", DType::q5_k}, {"q6k", DType::q6_k}};
  const auto blocks = kBlocks.find(o.to);
  if (blocks != kBlocks.end()) {
    pack_checkpoint(*source, Contract::ggml, o.directory, o.threads, blocks->second);
  } else {
    pack_checkpoint(*source, o.to.empty() ? contract_of_weights(*source) : *parse_contract(o.to),
                    o.directory, o.threads);
  }
  const auto size =
      static_cast<double>(std::filesystem::file_size(o.directory + "/" + kPackedName));
  out(fmt::format("{}: {} of weights{} in {:.1f} s\n", printable(o.directory), bytes_text(size),
                  o.to.empty() ? "" : " rounded to " + o.to, seconds() - start));
}

void add(CLI::App& app, const std::string& name, const std::string& help,
         const std::shared_ptr<PackCommand>& o) {
  CLI::App* sub = app.add_subcommand(name, help);
  o->checkpoint.add_to(*sub);
  o->checkpoint.add_overrides_to(*sub);
  sub->add_option("-o,--output", o->directory, "directory to make, or an empty one")
      ->type_name("DIR")
      ->required()
      ->check(named());
  if (name == "quantize") {
    sub->add_option(
           "--to", o->to,
           "q8, q4: integers of 8 or 4 bits in blocks of 32; q4k, q5k, q6k: ggml's K types")
        ->type_name("FORMAT")
        ->required()
        ->check(one_of({"q8", "q4", "q4k", "q5k", "q6k"}));
  }
  add_threads(*sub, o->threads);
  sub->callback([o] { run(*o); });
}

}  // namespace

void add_quantize(CLI::App& app) {
  add(app, "quantize", "A checkpoint with rounded weights, mapped and used in place.",
      std::make_shared<PackCommand>());
}
void add_prepare(CLI::App& app) {
  add(app, "prepare", "The same checkpoint, packed once: mapped and used in place.",
      std::make_shared<PackCommand>());
}

}  // namespace stet::tool
