// stet lab: groups the subcommands of the laboratory, which are also subcommands of stet.
#include "tools/lab/lab.hpp"

namespace stet::tool {

void add_lab(Command& app) {
  Command* const sub = app.add_subcommand("lab", "Inspect, change and plot the inside of a state.");
  for (auto add : {add_capture, add_measure, add_score, add_patch, add_edit, add_export, add_import,
                   add_experiment, add_equivalence})
    add(*sub);
  sub->allow_one_subcommand();
  sub->footer("Each is also a subcommand of stet itself: `stet capture` is `stet lab capture`.\n");
  sub->callback([sub] {
    if (!sub->subcommand_given()) out(sub->help());
  });
}

}  // namespace stet::tool
