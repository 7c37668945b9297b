// stet prune, convert, verify, diff: what is done with snapshots beside resuming them.
#include <fmt/format.h>

#include <filesystem>

#include "stet/error.hpp"
#include "stet/verify.hpp"
#include "tools/command.hpp"

namespace stet::tool {
namespace {

struct Options {
  std::string snapshot, other, output, parent;
  SaveFileOptions save;
  PruneOptions prune;
  std::string positions = "keep";
  ModelOptions model;
  bool bisect = false, json = false;
};

CLI::Option* add_snapshot(CLI::App& app, std::string& path, const char* name = "snapshot") {
  return app.add_option(name, path, "a snapshot")->required()->type_name("FILE");
}

Json saved_json(const std::string& path, const StateDigests& digests, int64_t positions) {
  return {{"snapshot", path}, {"positions", positions}, {"bytes", std::filesystem::file_size(path)}, {"digests", digests_json(digests)}};
}

void run_prune(const Options& o) {
  const Snapshot snapshot = Snapshot::open(o.snapshot, o.parent);
  State state = snapshot.state();
  PruneOptions options = o.prune;
  options.shift = o.positions == "shift";
  const int64_t gone = prune(state, ModelConfig::from_canonical(snapshot.meta().config, o.snapshot), options);
  const StateDigests digests = o.save.write(state, snapshot, o.output, {});
  if (o.json) {
    Json j = saved_json(o.output, digests, state.size());
    j["pruned"] = gone;
    out(dump(j) + "\n");
  } else {
    say("pruned {} of {} positions ({}), {} left visible, state {}\n", gone, snapshot.tokens().size(), o.positions,
               visible_positions(state.kv), digest_text(digests.state));
  }
}

void run_convert(Options& o) {
  const Snapshot snapshot = Snapshot::open(o.snapshot, o.parent);
  StateDigests digests;
  if (snapshot.meta().form == SnapshotForm::recipe) {
    choose_checkpoint(o.model, snapshot);
    Session session = restore_session(snapshot, o.model, {}, nullptr);
    digests = o.save.write(session.state(), snapshot, o.output, o.model.checkpoint);
  } else {
    choose_checkpoint(o.model, snapshot);
    digests = o.save.write(snapshot.state(0, {.check = true}), snapshot, o.output, o.model.checkpoint);
  }
  if (o.json) {
    out(dump(saved_json(o.output, digests, snapshot.meta().positions)) + "\n");
  } else {
    say("{}: {} -> {}: {}, state {}\n", o.output, snapshot.file_size(), std::filesystem::file_size(o.output), o.save.form,
               digest_text(digests.state));
  }
}

// 1 when something differs.
int report(const std::optional<Difference>& difference, bool json, const std::string& good, Json j) {
  j["equal"] = !difference.has_value();
  if (difference) {
    const auto number = [](int64_t x) { return x < 0 ? Json(nullptr) : Json(x); };
    j["difference"] = {{"what", difference->what}, {"position", number(difference->position)}, {"layer", number(difference->layer)},
                       {"head", number(difference->head)}, {"element", number(difference->element)},
                       {"expected", difference->expected}, {"found", difference->found}};
  }
  if (json) out(dump(j) + "\n");
  else out((difference ? "different: " + printable(difference->text(), 400) : good) + "\n");
  return difference ? 1 : 0;
}

int run_verify(Options& o) {
  const Snapshot snapshot = Snapshot::open(o.snapshot, o.parent);
  choose_checkpoint(o.model, snapshot);
  choose_contract(o.model, snapshot);
  const SessionOptions options = o.model.session_options();
  const auto model = o.model.load_model();
  snapshot.check_compatible(*model, "", options);
  const double start = seconds();
  const bool digests = o.bisect || snapshot.meta().form == SnapshotForm::recipe;
  const auto difference = verify(snapshot, model, options, o.bisect, prefill_progress(snapshot.meta().positions));
  const std::string how = options.compute.contract == Contract::f32_blas ? fmt::format("within {} (BLAS)", kBlasTolerance)
                          : digests            ? "by digests of every layer of every block"
                                               : "byte for byte";
  return report(difference, o.json,
                fmt::format("verified: {} tokens replayed in {:.2f} s; keys, values and logits are equal, {}; state {}",
                            snapshot.meta().positions, seconds() - start, how, digest_text(snapshot.digests().state)),
                {{"snapshot", o.snapshot}, {"tokens", snapshot.meta().positions}, {"seconds", seconds() - start}, {"compared", how},
                 {"prunes", snapshot.meta().prunes.size()}});
}

int run_diff(const Options& o) {
  const Snapshot a = Snapshot::open(o.snapshot), b = Snapshot::open(o.other);
  std::optional<Difference> difference = different_origin(a, b);
  if (!difference) {
    const bool bytes = a.meta().form != SnapshotForm::recipe && b.meta().form != SnapshotForm::recipe;
    difference = bytes ? first_difference(a.state(0, {.trust = true}), b.state(0, {.trust = true})) : different_digests(a, b);
  }
  return report(difference, o.json, "equal: state " + digest_text(a.digests().state), {{"a", o.snapshot}, {"b", o.other}});
}

void exit_with(int status) {
  finish_output();
  if (status != 0) throw ExitStatus{status};
}

}  // namespace

void add_prune(CLI::App& app) {
  const auto o = std::make_shared<Options>();
  CLI::App* sub = app.add_subcommand("prune", "Take positions out of a snapshot: needs no model.");
  add_snapshot(*sub, o->snapshot);
  sub->add_option("-o,--output", o->output, "the pruned snapshot")->required()->type_name("FILE");
  sub->add_option("--keep-last", o->prune.keep_last, "positions kept at the end")->required()->type_name("N")->check(integer(0, INT64_MAX));
  sub->add_option("--sinks", o->prune.sinks, "positions kept at the beginning (default: 0)")->type_name("K")->check(integer(0, INT64_MAX));
  sub->add_option("--positions", o->positions, "keep: the gap is masked (default); shift: later positions move up")
      ->type_name("HOW")->check(CLI::IsMember({"keep", "shift"}));
  sub->add_option("--parent", o->parent, "the snapshot that a delta was made from")->type_name("FILE");
  o->save.add_to(*sub);
  sub->add_flag("--json", o->json, "print a JSON object");
  sub->callback([o] { run_prune(*o); });
}

void add_convert(CLI::App& app) {
  const auto o = std::make_shared<Options>();
  CLI::App* sub = app.add_subcommand("convert", "Another form of the same state.");
  add_snapshot(*sub, o->snapshot);
  sub->add_option("-o,--output", o->output, "the converted snapshot")->required()->type_name("FILE");
  sub->add_option("--parent", o->parent, "the snapshot that a delta was made from")->type_name("FILE");
  o->save.add_to(*sub);
  sub->add_flag("--json", o->json, "print a JSON object");
  o->model.add_to(*sub);
  sub->callback([o] { run_convert(*o); });
}

void add_verify(CLI::App& app) {
  const auto o = std::make_shared<Options>();
  CLI::App* sub = app.add_subcommand("verify", "Process the tokens of a snapshot again and compare every byte.");
  add_snapshot(*sub, o->snapshot);
  sub->add_flag("--bisect", o->bisect, "compare digests of each layer of each block: names the first that differs, and needs no "
                                       "keys and values in the file");
  sub->add_option("--parent", o->parent, "the snapshot that a delta was made from")->type_name("FILE");
  sub->add_flag("--json", o->json, "print a JSON object");
  o->model.add_to(*sub);
  sub->callback([o] { exit_with(run_verify(*o)); });
}

void add_diff(CLI::App& app) {
  const auto o = std::make_shared<Options>();
  CLI::App* sub = app.add_subcommand("diff", "The first difference between two snapshots.");
  add_snapshot(*sub, o->snapshot);
  add_snapshot(*sub, o->other, "other");
  sub->add_flag("--json", o->json, "print a JSON object");
  sub->callback([o] { exit_with(run_diff(*o)); });
}

}  // namespace stet::tool
