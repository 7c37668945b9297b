// stet prune, convert, verify: what is done with a snapshot beside resuming it.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "stet/base/error.hpp"
#include "stet/snapshot/verify.hpp"
#include "tools/difference.hpp"
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

// Options that would do nothing are a wrong command line.
void refuse(const Command& app, const std::vector<std::string>& names, const std::string& reason) {
  for (const std::string& name : names) {
    if (app.count(name) > 0) throw UsageError(name + ": " + reason);
  }
}

Snapshot open_snapshot(const Command& app, const SnapshotCommand& o) {
  const Snapshot snapshot = open_state(o.snapshot);
  if (snapshot.meta().form == SnapshotForm::delta)
    return open_state_with_parents(o.snapshot, o.parent);
  refuse(app, {"--parent"}, "of no use: " + o.snapshot + " is no delta");
  return snapshot;
}

Json saved_json(const std::string& path, const StateDigests& digests, int64_t positions) {
  return {{"snapshot", path},
          {"positions", positions},
          {"bytes", std::filesystem::file_size(path)},
          {"digests", digests_json(digests)}};
}

void run_prune(const Command& app, SnapshotCommand& o) {
  check_writable(o.output);
  const Snapshot snapshot = open_snapshot(app, o);
  if (!o.save.with_weights && !o.save.with_tokenizer)
    refuse(app, {"--model"}, "of no use without --with-weights or --with-tokenizer");
  choose_checkpoint(o.model, snapshot);
  State state = snapshot.state();
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

const std::vector<std::string> kComputing = {"--compute", "--gemm",  "--threads", "--team",
                                             "--isa",     "--chunk", "--check",   "--no-mmap"};

// A model is loaded to compute a recipe, or to be put into the snapshot; a checkpoint may bring its
// tokenizer alone.
void refuse_model_options(const Command& app, const SnapshotCommand& o, const Snapshot& snapshot) {
  if (snapshot.meta().form == SnapshotForm::recipe) return;
  refuse(app, kComputing,
         "of no use: nothing is computed, since " + o.snapshot + " has its keys and values");
  if (!o.save.with_weights && !o.save.with_tokenizer) {
    refuse(app, {"--model"},
           "of no use: " + o.snapshot +
               " has its keys and values (for --with-weights or --with-tokenizer)");
  }
}

// Computed again from a recipe, or as it is in the file.
State state_of(SnapshotCommand& o, const Snapshot& snapshot) {
  if (snapshot.meta().form != SnapshotForm::recipe) {
    const int64_t capacity = o.model.session.capacity;
    if (capacity != 0)
      checked_capacity(ModelConfig::from_canonical(snapshot.meta().config, o.snapshot), capacity);
    return snapshot.state({.session = {.capacity = capacity}, .check = true});
  }
  choose_contract(o.model, snapshot);
  ModelOptions model = o.model;
  model.kv = "";  // of the recipe; another type is made of the state
  Session session = restore_session(snapshot, model, {}, nullptr);
  return session.state();
}

void run_convert(const Command& app, SnapshotCommand& o) {
  check_writable(o.output);
  const Snapshot snapshot = open_snapshot(app, o);
  refuse_model_options(app, o, snapshot);
  choose_checkpoint(o.model, snapshot);
  State state = state_of(o, snapshot);
  const KvType from = state.kv.shape().type,
               to = o.model.kv.empty() ? from : parse_kv_type(o.model.kv).value();
  if (to != from) state = with_kv_type(state, to);
  const StateDigests digests = o.save.write(state, snapshot, o.output, o.model.checkpoint);
  if (to != from)
    say("keys and values: {} -> {}, an edit: the tokens do not give this state any more\n",
        kv_type_name(from), kv_type_name(to));
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

// 1 when something differs.
int report(const std::optional<Difference>& difference, bool json, const std::string& good,
           Json j) {
  j["equal"] = !difference.has_value();
  if (difference) j["difference"] = difference_json(*difference);
  if (json)
    out(dump(j) + "\n");
  else
    out((difference ? "different: " + printable(difference->text(), SIZE_MAX) : good) + "\n");
  return difference ? 1 : 0;
}

// What was compared of a state that its tokens give up to a position; nothing where they give all
// of it.
Json proved_json(const Snapshot& snapshot) {
  const auto limit = snapshot.meta().edits.empty() ? std::nullopt : replay_limit(snapshot.recipe());
  if (!limit) return nullptr;
  const std::vector<bool> blocks = replayable_blocks(snapshot);
  if (std::count(blocks.begin(), blocks.end(), true) == 0) {
    throw Error(ErrorKind::argument, snapshot.path(), "edits",
                "a block that the tokens give (stet check proves the bytes of all)",
                "none: " + limit->reason);
  }
  return {{"blocks", std::count(blocks.begin(), blocks.end(), true)},
          {"of", blocks.size()},
          {"from", limit->position},
          {"reason", limit->reason}};
}

std::string verified_text(const Snapshot& snapshot, double seconds, const std::string& how,
                          const Json& proved) {
  const std::string what =
      proved.is_null() ? "keys, values and logits are equal"
                       : fmt::format("{} of {} blocks are what the tokens give, and equal",
                                     proved["blocks"].get<size_t>(), proved["of"].get<size_t>());
  const std::string rest = proved.is_null() ? ""
                                            : fmt::format("; not proved, from position {} on: {}",
                                                          proved["from"].get<int64_t>(),
                                                          proved["reason"].get<std::string>());
  return fmt::format("verified: {} tokens replayed in {:.2f} s; {}, {}{}; state {}",
                     snapshot.meta().positions, seconds, what, how, rest, snapshot.state_name());
}

int run_verify(const Command& app, SnapshotCommand& o) {
  const Snapshot snapshot = open_snapshot(app, o);
  const Json proved = proved_json(snapshot);
  choose_checkpoint(o.model, snapshot);
  choose_contract(o.model, snapshot);
  const SessionOptions options = o.model.session_options();
  const auto model = o.model.load_model();
  snapshot.check_compatible(*model, options.compute.contract);
  const double start = seconds();
  const bool digests =
      o.bisect || snapshot.meta().form == SnapshotForm::recipe || !proved.is_null();
  const auto difference =
      verify(snapshot, model, options, o.bisect, prefill_progress(snapshot.meta().positions));
  const std::string how = options.compute.contract == Contract::f32_blas
                              ? fmt::format("within {} (BLAS)", kBlasTolerance)
                          : digests ? "by digests of every layer of every block"
                                    : "byte for byte";
  Json j = {{"snapshot", o.snapshot},
            {"tokens", snapshot.meta().positions},
            {"seconds", seconds() - start},
            {"compared", how},
            {"prunes", snapshot.meta().prunes.size()},
            {"id", snapshot.state_name()}};
  if (!proved.is_null()) j["proved"] = proved;
  return report(difference, o.json, verified_text(snapshot, seconds() - start, how, proved), j);
}

void exit_with(int status) {
  finish_output();
  if (status != 0) throw ExitStatus{status};
}

}  // namespace

void add_prune(Command& app) {
  const auto o = std::make_shared<SnapshotCommand>();
  Command* sub = app.add_subcommand("prune", "Take positions out of a snapshot: needs no model.");
  add_snapshot(*sub, *o);
  sub->add_output(o->output, "the pruned snapshot")->required();
  sub->add_option("--keep-last", o->prune.keep_last, "positions kept at the end")
      ->required()
      ->type_name("N")
      ->check(integer(0, INT64_MAX));
  sub->add_option("--sinks", o->prune.sinks, "positions kept at the beginning (default: 0)")
      ->type_name("K")
      ->check(integer(0, INT64_MAX));
  sub->add_option("--positions", o->positions,
                  "keep: the gap is masked (default); shift: later positions move up")
      ->type_name("HOW")
      ->check(one_of({"keep", "shift"}));
  o->save.add_to(*sub);
  o->model.checkpoint.add_to(*sub);
  sub->callback([o, sub] { run_prune(*sub, *o); });
}

void add_convert(Command& app) {
  const auto o = std::make_shared<SnapshotCommand>();
  Command* sub = app.add_subcommand("convert",
                                    "The same state in another form, with another capacity "
                                    "(--ctx), or rounded to another type (--kv).");
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
  for (const char* fixed : {"--ctx", "--kv"})
    sub->remove_option(fixed);  // as the snapshot has them
  sub->callback([o, sub] { exit_with(run_verify(*sub, *o)); });
}

}  // namespace stet::tool
