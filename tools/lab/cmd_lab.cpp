// stet lab: the laboratory's subcommands in one place, under the names that they have anyway.
#include "tools/command.hpp"

namespace stet::tool {

void add_lab(CLI::App& app) {
  CLI::App* const sub = app.add_subcommand(
      "lab", "Look inside a state, change it, draw it: the subcommands for that.");
  for (auto add : {add_capture, add_measure, add_patch, add_edit, add_export, add_import,
                   add_experiment, add_equivalence})
    add(*sub);
  sub->require_subcommand(0, 1);
  sub->footer("Each is also a subcommand of stet itself: `stet capture` is `stet lab capture`.\n");
  sub->callback([sub] {
    if (sub->get_subcommands().empty()) out(sub->help());
  });
}

}  // namespace stet::tool
