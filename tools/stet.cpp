// The `stet` command. Exit status: 0 done; 1 the input or the state is at fault; 2 the command line
// is.
#include <csignal>
#include <exception>
#include <memory>
#include <new>

#include "stet/api.h"
#include "stet/base/error.hpp"
#include "tools/command.hpp"
#include "tools/help.hpp"
#include "tools/run.hpp"
#include "tools/store/store.hpp"

namespace {

constexpr char kExamples[] = R"(Examples:
  stet generate -p "Once" -n 20 --save s.stet    reply, and keep the state
  stet resume s.stet -n 20                       go on with that reply, in another process
  stet resume s.stet -p "And then?"              or with another prompt
  stet inspect s.stet                            what the state is
  stet verify s.stet                             that it is what its tokens give, byte for byte
Exit status: 0 done; 1 the input or the state is at fault; 2 the command line is.
)";

// Which accept or write store:NAME in place of a snapshot's file.
constexpr const char* kStoreUsers[] = {
    "generate", "chat",    "save",  "resume", "inspect", "check",      "verify", "diff", "convert",
    "capture",  "measure", "patch", "edit",   "export",  "experiment", "serve",  "store"};

int run(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
    if (app.get_subcommands().empty()) throw CLI::RequiredError("a subcommand");
  } catch (const CLI::CallForHelp&) {
    stet::tool::out(app.help());
  } catch (const CLI::CallForVersion&) {
    stet::tool::out(app.version() + "\n");
  } catch (const stet::tool::ExitStatus& e) {
    return e.status;
  } catch (const CLI::ParseError& e) {
    stet::tool::say("stet: {}\n", stet::tool::usage_text(app, e.what()));
    return 2;
  }
  stet::tool::finish_output();
  return 0;
}

}  // namespace

int stet::tool::run_command(int argc, char** argv) {
  open_standard_streams();
  std::signal(SIGXFSZ, SIG_IGN);  // a file size limit is a write error like any other
  std::signal(SIGPIPE, SIG_IGN);  // and so is a reader that has gone
  try {
    CLI::App app{"stet: transformer state that can be saved, moved and proved, bit for bit",
                 "stet"};
    app.require_subcommand(0, 1);
    app.set_version_flag("--version",
                         [] { return "stet " STET_VERSION "\nteams: " + stet::team_runtime(); });
    app.formatter(std::make_shared<HelpFormatter>());
    app.get_formatter()->column_width(28);
    for (auto add :
         {add_generate, add_chat,          add_serve,      add_save,        add_resume,
          add_inspect,  add_check,         add_verify,     add_diff,        add_prune,
          add_convert,  add_capture,       add_measure,    add_patch,       add_edit,
          add_export,   add_import,        add_experiment, add_equivalence, add_lab,
          add_logits,   add_tokenize,      add_detokenize, add_template,    add_quantize,
          add_prepare,  add_convert_model, add_bench,      add_store,       add_completion,
          add_help}) {
      add(app);
    }
    CLI::App* const lab = app.get_subcommand("lab");
    for (const char* name : kStoreUsers) {
      stet::tool::add_store_options(*app.get_subcommand(name));
      for (CLI::App* same :
           lab->get_subcommands([&](CLI::App* sub) { return sub->get_name() == name; }))
        stet::tool::add_store_options(*same);
    }
    app.footer(kExamples);
    return run(app, argc, argv);
  } catch (const std::bad_alloc&) {
    write_error("stet: expected enough memory, found none left\n");
  } catch (const std::exception& e) {
    say("stet: {}\n", stet::printable(e.what(), 3000));
  }
  return 1;
}
