// stet prune, convert and verify: operations on a snapshot other than resuming it.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "stet/base/error.hpp"
#include "stet/snapshot/verify.hpp"
#include "tools/state/difference.hpp"
#include "tools/store/store.hpp"

namespace stet::tool {
namespace {

struct SnapshotCommand {
  std::string snapshot, output;
  std::optional<std::string> parent;
  SaveFileOptions save;
  PruneOptions prune;
  std::string positions = "keep";
  ModelOptions model;
  bool bisect = false, json = false;
};

void add_snapshot(Command& app, SnapshotCommand& o) {
  app.add_option("snapshot", o.snapshot, "a snapshot")->required()->type_name("FILE");
  app.add_option("--parent", o.parent, "the snapshot that a delta was made from")
      ->type_name("FILE");
  app.add_flag("--json", o.json, "print a JSON object");
}

// Throws a UsageError for options that would have no effect.
void refuse(const Command& app, const std::vector<std::string>& names, const std::string& reason) {
  for (const std::string& name : names) {
    if (app.count(name) > 0) throw UsageError(name + ": " + reason);
  }
}

Snapshot open_snapshot(const SnapshotCommand& o) {
  const Snapshot snapshot = open_state(o.snapshot);
  if (snapshot.meta().form == SnapshotForm::delta)
    return open_state_with_parents(o.snapshot, o.parent);
  require_delta(snapshot, o.parent);
  return snapshot;
}

Json saved_json(const std::string& path, const StateDigests& digests, int64_t positions) {
  return {{"snapshot", path},
          {"positions", positions},
          {"bytes", std::filesystem::file_size(path)},
          {"digests", digests_json(digests)}};
}

const std::vector<std::string> kComputing = {
    "--compute", "--gemm",     "--threads", "--team",        "--isa",
    "--chunk",   "--check",    "--no-mmap", "--window-only", "--checkpoint-every",
    "--anchors", "--cache-dir"};
const std::vector<std::string> kOfCheckpoint = {"--model", "--eos", "--pre", "--chat-template"};

// Returns the state of a recipe.
State computed_state(ModelOptions& model, const Snapshot& snapshot) {
  choose_contract(model, snapshot);
  return state_of_recipe(snapshot, model.load_model(), model);
}

// Removes positions by processing those that stay again. The result is another state, without an
// entry in the log of prunes.
void run_recompute(const Command& app, SnapshotCommand& o, const Snapshot& snapshot) {
  refuse(app, {"--positions"},
         "this option is for prunes without --recompute, after which "
         "positions always move up");
  choose_contract(o.model, snapshot);
  Session session = restore_session(snapshot, o.model, {}, nullptr);
  const int64_t gone = session.prune(o.prune);
  const StateDigests digests =
      o.save.write(session.state(), snapshot, o.output, o.model.checkpoint);
  if (o.json) {
    Json j = saved_json(o.output, digests, session.size());
    j["pruned"] = gone;
    j["recomputed"] = gone > 0;
    out(dump(j) + "\n");
  } else if (gone == 0) {
    say("removed none of {} positions: the same state, {}\n", snapshot.tokens().size(),
        sha256_text(digests.id));
  } else {
    say("removed {} of {} positions and processed the later ones again: another state, {}\n", gone,
        snapshot.tokens().size(), sha256_text(digests.id));
  }
}

void run_prune(const Command& app, SnapshotCommand& o) {
  check_writable(o.output);
  const Snapshot snapshot = open_snapshot(o);
  if (o.prune.recompute) return run_recompute(app, o, snapshot);
  const bool computed = is_stored_recipe(snapshot);
  if (!computed) refuse(app, kComputing, "this option needs --recompute");
  if (!computed && !o.save.with_weights && !o.save.with_tokenizer)
    refuse(app, kOfCheckpoint, "this option needs --with-weights, --with-tokenizer or --recompute");
  choose_checkpoint(o.model, snapshot);
  State state = computed ? computed_state(o.model, snapshot) : snapshot.state();
  PruneOptions options = o.prune;
  options.shift = o.positions == "shift";
  const int64_t gone =
      prune(state, ModelConfig::from_canonical(snapshot.meta().config, o.snapshot), options);
  const StateDigests digests = o.save.write(state, snapshot, o.output, o.model.checkpoint);
  if (o.json) {
    Json j = saved_json(o.output, digests, state.size());
    j["pruned"] = gone;
    out(dump(j) + "\n");
  } else {
    say("pruned {} of {} positions ({}), {} left visible, state {}\n", gone,
        snapshot.tokens().size(), o.positions, visible_positions(state.kv),
        sha256_text(digests.id));
  }
}

// Refuses options of models that would have no effect. A model is loaded only to compute a recipe
// or to be included; a checkpoint may also give only its tokenizer.
void refuse_model_options(const Command& app, const SnapshotCommand& o, const Snapshot& snapshot) {
  if (snapshot.meta().form == SnapshotForm::recipe) return;
  refuse(app, kComputing,
         "this option has no effect, since nothing is computed: " + o.snapshot +
             " has its keys and values");
  if (!o.save.with_weights && !o.save.with_tokenizer) {
    refuse(app, kOfCheckpoint,
           "this option is for --with-weights and --with-tokenizer, since " + o.snapshot +
               " has its keys and values");
  }
}

// Returns the state: computed from a recipe, or as stored.
State state_of(SnapshotCommand& o, const Snapshot& snapshot) {
  if (snapshot.meta().form != SnapshotForm::recipe) {
    const int64_t capacity = o.model.session.capacity;
    if (capacity != 0)
      checked_capacity(ModelConfig::from_canonical(snapshot.meta().config, o.snapshot), capacity);
    return snapshot.state({.session = {.capacity = capacity}, .check = true});
  }
  return computed_state(o.model, snapshot);
}

void run_convert(const Command& app, SnapshotCommand& o) {
  check_writable(o.output);
  const Snapshot snapshot = open_snapshot(o);
  refuse_model_options(app, o, snapshot);
  choose_checkpoint(o.model, snapshot);
  State state = state_of(o, snapshot);
  const KvType from = state.kv.shape().type,
               to = o.model.kv.empty() ? from : parse_kv_type(o.model.kv).value();
  if (to != from) state = with_kv_type(state, to);
  const StateDigests digests = o.save.write(state, snapshot, o.output, o.model.checkpoint);
  if (to != from)
    say("keys and values: {} -> {}, {}\n", kv_type_name(from), kv_type_name(to),
        state.kv.shape().block_bytes() == 0
            ? "which changes no bytes: no layer has attention"
            : "an edit: the tokens do not give this state any more");
  if (o.json) {
    Json j = saved_json(o.output, digests, state.size());
    j["capacity"] = state.kv.capacity();
    j["kv_type"] = kv_type_name(to);
    out(dump(j) + "\n");
  } else {
    say("{}: {} -> {}: {}, state {}\n", printable(o.output), snapshot.file_size(),
        std::filesystem::file_size(o.output), o.save.form, sha256_text(digests.id));
  }
}

Json proved_json(const VerifyReport& report) {
  Json j = {{"blocks", report.blocks},
            {"of", report.of},
            {"by_digests", report.by_digests},
            {"logits", report.logits},
            {"whole", report.whole()}};
  if (report.limit) {
    j["from"] = report.limit->position;
    j["reason"] = report.limit->reason;
  }
  return j;
}

// Throws if the tokens give no part of the state, so that nothing can be verified.
void refuse_unprovable(const Snapshot& snapshot) {
  const std::vector<bool> blocks = replayable_blocks(snapshot);
  if (blocks.empty() || std::ranges::count(blocks, true) > 0) return;
  const auto limit = replay_limit(snapshot.recipe());
  throw Error(ErrorKind::argument, snapshot.path(), "edits",
              "a whole block of 64 positions that the tokens give (stet check proves the bytes)",
              limit ? "none: " + limit->reason : "none");
}

// Returns the exit status: 1 if anything differs.
int run_verify(SnapshotCommand& o) {
  const Snapshot snapshot = open_snapshot(o);
  refuse_unprovable(snapshot);
  choose_checkpoint(o.model, snapshot);
  choose_contract(o.model, snapshot);
  const SessionOptions options = o.model.session_options();
  const auto model = o.model.load_model();
  snapshot.check_compatible(*model, options.compute.contract);
  const double start = seconds();
  const VerifyReport report =
      verify(snapshot, model, options, o.bisect, prefill_progress(snapshot.meta().positions));
  const double took = seconds() - start;
  if (!o.json) {
    out((report ? printable(report.text(), SIZE_MAX)
                : fmt::format("verified: {} tokens replayed in {:.2f} s; {}; state {}",
                              report.tokens, took, report.text(), snapshot.state_name())) +
        "\n");
    return report ? 1 : 0;
  }
  Json j = {{"snapshot", o.snapshot},
            {"tokens", report.tokens},
            {"seconds", took},
            {"compared", report.how()},
            {"prunes", snapshot.meta().prunes.size()},
            {"id", snapshot.state_name()},
            {"equal", !report},
            {"proved", proved_json(report)}};
  if (report) j["difference"] = difference_json(*report);
  out(dump(j) + "\n");
  return report ? 1 : 0;
}

void exit_with(int status) {
  finish_output();
  if (status != 0) throw ExitStatus{status};
}

}  // namespace

void add_prune(Command& app) {
  const auto o = std::make_shared<SnapshotCommand>();
  Command* sub = app.add_subcommand(
      "prune", "Remove positions from a snapshot, without a model unless --recompute is given.");
  add_snapshot(*sub, *o);
  sub->add_output(o->output, "the pruned snapshot")->required();
  sub->add_option("--keep-last", o->prune.keep_last, "number of positions to keep at the end")
      ->required()
      ->type_name("N")
      ->check(integer(0, INT64_MAX));
  sub->add_option("--sinks", o->prune.sinks,
                  "number of positions to keep at the beginning (default: 0)")
      ->type_name("K")
      ->check(integer(0, INT64_MAX));
  sub->add_option("--positions", o->positions,
                  "keep (default): later positions stay; shift: they move up over the gap")
      ->type_name("HOW")
      ->check(one_of({"keep", "shift"}));
  sub->add_flag("--recompute", o->prune.recompute,
                "process the positions that stay again, with a model: another state; for recurrent "
                "layers, which cannot forget");
  o->save.add_to(*sub);
  o->model.add_to(*sub);
  for (const char* fixed : {"--ctx", "--kv"}) sub->remove_option(fixed);  // set by the snapshot
  sub->callback([o, sub] { run_prune(*sub, *o); });
}

void add_convert(Command& app) {
  const auto o = std::make_shared<SnapshotCommand>();
  Command* sub = app.add_subcommand(
      "convert",
      "Convert a snapshot to another form, capacity (--ctx) or type of keys and values (--kv).");
  add_snapshot(*sub, *o);
  sub->add_output(o->output, "the converted snapshot")->required();
  o->save.add_to(*sub);
  o->model.add_to(*sub);
  sub->callback([o, sub] { run_convert(*sub, *o); });
}

void add_verify(Command& app) {
  const auto o = std::make_shared<SnapshotCommand>();
  Command* sub = app.add_subcommand(
      "verify", "Process the tokens of a snapshot again and compare every byte.");
  add_snapshot(*sub, *o);
  sub->add_flag(
      "--bisect", o->bisect,
      "compare digests of each layer of each block: names the first that differs, and needs no "
      "keys and values in the file");
  o->model.add_to(*sub);
  for (const char* fixed : {"--ctx", "--kv"}) sub->remove_option(fixed);  // set by the snapshot
  sub->callback([o] { exit_with(run_verify(*o)); });
}

}  // namespace stet::tool
