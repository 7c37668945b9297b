// stet check: compares snapshots and packed checkpoints with their digests, without a model.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "stet/base/error.hpp"
#include "stet/snapshot/verify.hpp"
#include "tools/command/command.hpp"
#include "tools/store/store.hpp"

namespace stet::tool {
namespace {

struct CheckCommand {
  std::vector<std::string> paths;
  std::optional<std::string> parent;
  int threads = 0;
  bool json = false;
};

std::string count_text(size_t count, const char* thing) {
  return fmt::format("{} {}{}", count, thing, count == 1 ? "" : "s");
}

// Returns what remains unproved, since only a computation could prove it.
std::string unproved(const Snapshot& s) {
  const bool keys = s.meta().kv.block_bytes() > 0;
  const bool arrays = !s.file()->arrays.empty();
  const std::string parts = std::string(keys ? "keys, values" : "") + (keys && arrays ? ", " : "") +
                            (arrays ? "recurrent arrays" : "") + " and logits";
  if (s.meta().form == SnapshotForm::recipe)
    return parts + ", of which a recipe has digests alone (stet verify)";
  if (!s.meta().edits.empty()) {
    const std::vector<bool> blocks = replayable_blocks(s);
    const auto given = static_cast<size_t>(std::ranges::count(blocks, true));
    if (!keys) return parts + ", which an edit concerns";
    if (given == 0) return parts + ", which cannot be: an edit concerns each block of 64 positions";
    return fmt::format(
        "that {} of {} blocks of 64 positions {} those recomputed from its tokens (stet verify); "
        "an edit concerns the rest, which cannot be proved",
        given, blocks.size(), given == 1 ? "equals" : "equal");
  }
  return "that " + parts + " equal those recomputed from its tokens (stet verify)";
}

Json check_snapshot(const std::string& path, const CheckCommand& o) {
  const Snapshot s = open_state(path);
  // Several files may be deltas of one parent, next to others without a parent.
  const SnapshotCheck done = s.meta().form == SnapshotForm::delta
                                 ? open_state_with_parents(path, o.parent).check(o.threads)
                                 : s.check(o.threads);
  return {{"path", path},
          {"sound", true},
          {"form", snapshot_form_name(s.meta().form)},
          {"bytes", s.file_size()},
          {"tokens", s.tokens().size()},
          {"sections", s.sections().size()},
          {"blocks", done.blocks},
          {"files", done.files},
          {"state", digest_text(s.digests().state)},
          {"id", s.state_name()},
          {"not_proved", unproved(s)}};
}

Json check_directory(const std::string& path, const CheckCommand& o) {
  return {{"path", path},
          {"sound", true},
          {"bytes", check_packed(*directory_source(path), o.threads)},
          {"not_proved", "that the weights are those of the checkpoint that was packed"}};
}

Json fault_json(const std::string& path, const Error& e) {
  return {{"path", path},     {"sound", false},         {"file", e.file},
          {"field", e.field}, {"expected", e.expected}, {"found", e.found}};
}

std::string sound_text(const Json& j) {
  std::string text =
      fmt::format("{}: sound: {} bytes", printable(j["path"].get<std::string>(), SIZE_MAX),
                  j["bytes"].get<size_t>());
  if (j.contains("form")) {
    text += fmt::format(" ({}), {}, {}, {}", j["form"].get<std::string>(),
                        count_text(j["tokens"].get<size_t>(), "token"),
                        count_text(j["sections"].get<size_t>(), "section"),
                        count_text(j["blocks"].get<size_t>(), "block"));
    if (j["files"] != 0) text += ", " + count_text(j["files"].get<size_t>(), "file");
    text += ", state " + j["id"].get<std::string>();
  }
  return text + "; not proved: " + j["not_proved"].get<std::string>();
}

// Throws a UsageError for --parent if there is no delta.
void refuse_parent(const CheckCommand& o) {
  if (!o.parent) return;
  for (const std::string& path : o.paths) {
    if (open_state(path).meta().form == SnapshotForm::delta) return;
  }
  usage_error("--parent is for deltas, and no file here is one");
}

void run(const CheckCommand& o) {
  refuse_parent(o);
  bool sound = true;
  for (const std::string& path : o.paths) {
    Json found;
    std::string text;
    try {
      std::error_code ignored;
      found = std::filesystem::is_directory(path, ignored) ? check_directory(path, o)
                                                           : check_snapshot(path, o);
      text = sound_text(found);
    } catch (const Error& e) {
      sound = false;
      found = fault_json(path, e);
      text = printable(e.what(), SIZE_MAX);
    }
    out((o.json ? dump(found) : text) + "\n");
    flush_output();
  }
  finish_output();
  if (!sound) throw ExitStatus{1};
}

}  // namespace

void add_check(Command& app) {
  const auto o = std::make_shared<CheckCommand>();
  Command* sub = app.add_subcommand(
      "check", "Compare a snapshot or packed weights with their digests, without a model.");
  sub->add_option("path", o->paths, "snapshots, or directories with packed weights")
      ->required()
      ->type_name("FILE|DIR ...");
  sub->add_option("--parent", o->parent, "the snapshot that a delta was made from")
      ->type_name("FILE");
  add_threads(*sub, o->threads);
  sub->add_flag("--json", o->json, "one JSON object on each line");
  sub->callback([o] { run(*o); });
}

}  // namespace stet::tool
