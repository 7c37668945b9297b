// The `stet` command. Exit status: 0 success; 1 an error in the input or the state; 2 an error in
// the command line.
#include <algorithm>
#include <csignal>
#include <exception>
#include <memory>
#include <new>

#include "stet/api.h"
#include "stet/base/error.hpp"
#include "tools/command/command.hpp"
#include "tools/command/outputs.hpp"
#include "tools/command/run.hpp"
#include "tools/lab/lab.hpp"
#include "tools/store/store.hpp"

namespace {

constexpr char kExamples[] = R"(Examples:
  stet generate -p "Once" -n 20 --save s.stet    reply, and save the state
  stet resume s.stet -n 20                       continue the reply in another process
  stet resume s.stet -p "And then?"              or continue with another prompt
  stet inspect s.stet                            show the state
  stet verify s.stet                             compute it again and compare every byte
Exit status: 0 success; 1 an error in the input or the state; 2 an error in the command line.
)";

struct Subcommand {
  const char* name;
  void (*add)(stet::tool::Command& app);
  bool uses_store = false;   // accepts or writes store:NAME in place of a snapshot's file
  bool opens_store = false;  // uses the store also if the command line has no store:NAME
};

using namespace stet::tool;
constexpr Subcommand kSubcommands[] = {
    {"generate", add_generate, true},
    {"chat", add_chat, true, true},
    {"serve", add_serve, true, true},
    {"save", add_save, true},
    {"resume", add_resume, true},
    {"inspect", add_inspect, true},
    {"check", add_check, true},
    {"verify", add_verify, true},
    {"diff", add_diff, true},
    {"prune", add_prune, true},
    {"convert", add_convert, true},
    {"capture", add_capture, true},
    {"measure", add_measure, true},
    {"patch", add_patch, true},
    {"edit", add_edit, true},
    {"export", add_export},
    {"import", add_import},
    {"experiment", add_experiment, true},
    {"equivalence", add_equivalence},
    {"lab", add_lab},
    {"score", add_score, true},
    {"logits", add_logits, true},
    {"tokenize", add_tokenize},
    {"detokenize", add_detokenize},
    {"template", add_template},
    {"quantize", add_quantize},
    {"prepare", add_prepare},
    {"convert-model", add_convert_model},
    {"bench", add_bench},
    {"store", add_store, true, true},
    {"completion", add_completion},
    {"help", add_help},
};

const Subcommand* find_subcommand(const std::string& name) {
  const auto* const found = std::ranges::find(kSubcommands, name, &Subcommand::name);
  return found == std::end(kSubcommands) ? nullptr : found;
}

// Adds what all subcommands share, and to those that use a store its options.
void add_shared_options_to(Command& app) {
  for (Command* sub : app.subcommands()) {
    const Subcommand* const known = find_subcommand(sub->name());
    if (known != nullptr && known->uses_store) {
      add_store_options(*sub);
      refuse_idle_store_options(*sub, known->opens_store);
    }
    refuse_to_replace_inputs(*sub);
    add_shared_options_to(*sub);  // those of `stet lab`
  }
}

// Adds the subcommand that the first word names. Adds all of them for help, a completion script or
// an unknown word. Describing all options takes longer than many commands run.
void add_subcommands(Command& app, int argc, char** argv) {
  const Subcommand* const named = argc > 1 ? find_subcommand(argv[1]) : nullptr;
  const bool one = named != nullptr && named->add != add_help && named->add != add_completion;
  for (const Subcommand& sub : kSubcommands) {
    if (!one || &sub == named) sub.add(app);
  }
  add_shared_options_to(app);
}

int execute(Command& app, int argc, char** argv) {
  try {
    if (const auto text = app.run(argc, argv)) out(*text);
    finish_output();
  } catch (const ExitStatus& e) {
    return e.status;
  } catch (const UsageError& e) {
    say("stet: {}\n", e.what());
    return 2;
  }
  return 0;
}

}  // namespace

int stet::tool::run_command(int argc, char** argv) {
  open_standard_streams();
  std::signal(SIGXFSZ, SIG_IGN);  // a file size limit is a write error like any other
  std::signal(SIGPIPE, SIG_IGN);  // and so is a closed pipe
  try {
    Command app(
        "stet: a transformer runtime whose state can be saved, moved and proved, bit for bit",
        "stet");
    app.allow_one_subcommand();
    app.set_version([] {
      std::string text = "stet " STET_VERSION "\nteams: " + stet::team_runtime();
      if (const std::string kinds = stet::processor_kinds(); !kinds.empty())
        text += "\nprocessors: " + kinds;
      return text;
    });
    add_subcommands(app, argc, argv);
    app.footer(kExamples);  // set last, since added subcommands inherit the application's footer
    return execute(app, argc, argv);
  } catch (const std::bad_alloc&) {
    write_error("stet: out of memory\n");
  } catch (const std::exception& e) {
    say("stet: {}\n", stet::printable(e.what(), 3000));
  }
  return 1;
}
