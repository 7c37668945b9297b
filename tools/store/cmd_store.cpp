// stet store: operations on a store.
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <map>
#include <set>

#include "stet/base/error.hpp"
#include "stet/store/copy.hpp"
#include "tools/command/command.hpp"
#include "tools/command/words.hpp"
#include "tools/store/store.hpp"

namespace stet::tool {
namespace {

struct StoreCommand {
  std::string action;
  std::vector<std::string> words;  // the arguments after the action
  std::string output, to, budget, name;
  int64_t grace = 14 * 24 * 3600;
  bool dry_run = false, remove = false, json = false;
  ModelOptions model;
  RestoreFileOptions restore;
};

std::string hex(const Sha256& place, size_t digits = 64) {
  return sha256_text(place).substr(7, digits);
}

std::string time_text(int64_t seconds) {
  const std::time_t t = static_cast<std::time_t>(seconds);
  std::tm parts = {};
  char text[32] = "";
  if (::gmtime_r(&t, &parts) != nullptr)
    std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &parts);
  return text;
}

uint64_t size_of_text(const std::string& text) {
  const size_t digits = text.find_first_not_of("0123456789");
  const std::string number = text.substr(0, digits),
                    unit = digits == std::string::npos ? "" : text.substr(digits);
  const std::map<std::string, int> shifts = {{"", 0},    {"K", 10},  {"KB", 10},
                                             {"M", 20},  {"MB", 20}, {"G", 30},
                                             {"GB", 30}, {"T", 40},  {"TB", 40}};
  if (number.empty() || number.size() > 9 || !shifts.contains(unit))
    usage_error("--budget", "bytes, as 500M or 20G", printable(text, 40));
  return std::stoull(number) << shifts.at(unit);
}

// Throws a UsageError unless there are `least` to `most` arguments.
void require_words(const StoreCommand& o, size_t least, size_t most, const std::string& usage) {
  if (o.words.size() < least || o.words.size() > most)
    usage_error("store " + o.action, usage, std::to_string(o.words.size()) + " arguments");
}

std::string counted(uint64_t n, const std::string& what) {
  return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s");
}

std::string reference(const std::string& word) { return is_in_store(word) ? word.substr(6) : word; }

// ---------------------------------------------------------------- init

void run_init(const StoreCommand& o) {
  require_words(o, 0, 1, "stet store init [URL]");
  const std::string url = o.words.empty() ? store_url() : o.words[0];
  create_store(url, o.budget.empty() ? 0 : size_of_text(o.budget));
  const std::string key = store_key_path();
  std::error_code ignored;
  const bool made = !std::filesystem::exists(key, ignored);
  if (made) {
    std::filesystem::create_directories(std::filesystem::path(key).parent_path(), ignored);
    StoreKey::random().save(key);
  }
  const std::string name = open_store(url)->url();  // the URL without a password
  say("{}: a new store; writers' key: {} ({})\n", printable(name), printable(key),
      made ? "new: copy it to every machine that is to use the store" : "as it was there");
}

// ---------------------------------------------------------------- put, get, push, pull

void run_put(StoreCommand& o) {
  require_words(o, 1, 1, "stet store put FILE [--name NAME]");
  o.restore.take(o.model);
  const std::string target = "store:" + o.name;
  check_writable(target);
  const Snapshot snapshot = o.restore.open(o.words[0]);
  follow(o.model, snapshot, o.restore.how.replay);
  if (o.model.weights != nullptr)
    throw Error(ErrorKind::argument, o.words[0], "WEIGHTS", "",
                "a store keeps no weights; name the checkpoint with -m, or keep the file");
  const auto tokenizer = tokenizer_of(snapshot, o.model);
  Session session = restore_session(snapshot, o.model, o.restore.how, tokenizer.get());
  const StateDigests digests = store_session(session, tokenizer.get(), target);
  report_healed(session);
  out(hex(the_store().place(digests.id)) + "\n");
}

void run_get(StoreCommand& o) {
  require_words(o, 1, 1, "stet store get REFERENCE -o FILE");
  if (o.output.empty()) usage_error("store get needs --output FILE");
  check_writable(o.output);
  o.restore.take(o.model);
  const Snapshot snapshot = open_stored("store:" + reference(o.words[0]));
  follow(o.model, snapshot, o.restore.how.replay);
  const auto tokenizer = tokenizer_of(snapshot, o.model);
  Session session = restore_session(snapshot, o.model, o.restore.how, tokenizer.get());
  const StateDigests digests = SaveFileOptions().save(session, tokenizer, o.output);
  say("{}: {} tokens, state {}\n", printable(o.output), session.size(), sha256_text(digests.id));
}

// Sets the name in the other store to `place`. Throws a mismatch Error if the name there leads to a
// state that `place` does not continue.
void advance_name(Store& from, Store& to, const std::string& name, const Sha256& place) {
  const std::vector<NameEntry> there = to.history(name);
  const std::optional<Sha256> before =
      there.empty() ? std::nullopt : std::optional(there.back().state);
  for (Sha256 at = place; before && at != *before;) {
    const auto record = from.find_state(at);
    if (!record || record->parent == Sha256()) {
      throw Error(ErrorKind::mismatch, to.url(), "name " + name,
                  "a state that " + hex(place, 16) + " continues", hex(*before, 16));
    }
    at = record->parent;
  }
  to.set_name(name, before, place);
}

void run_copy(const StoreCommand& o, Store& from, Store& to) {
  require_words(o, 1, 1, "stet store " + o.action + " REFERENCE --to URL");
  const std::string what = reference(o.words[0]);
  const Sha256 place = from.resolve(what);
  const StoreCopy copied = copy_state(from, to, place);
  if (std::ranges::count(from.names(), what) > 0) advance_name(from, to, what, place);
  say("{} to {}: {} and {} copied{}{}\n", hex(place, 16), printable(to.url()),
      counted(copied.states, "state"), counted(copied.blocks, "block"),
      copied.missing_blocks == 0 ? ""
                                 : ", " + counted(copied.missing_blocks, "block") +
                                       " to be computed where they are needed",
      copied.whole_history ? "" : "; its earliest ancestors are not there any more");
}

// ---------------------------------------------------------------- names, log, tree

struct Described {
  StateRecord record;
  SnapshotMeta meta;
  std::string excerpt;
};

Described describe(Store& store, const Sha256& place) {
  StoreSnapshot s = open_snapshot(store, place);
  Described d{std::move(s.record), s.snapshot->meta(), ""};
  for (auto m = d.meta.chat.messages.rbegin(); m != d.meta.chat.messages.rend(); ++m) {
    if (m->content.empty()) continue;
    d.excerpt = m->role + ": " + printable(m->content, 60);
    break;
  }
  return d;
}

std::string line_of(const Sha256& place, const Described& d) {
  return fmt::format("{}  {}  {} tokens, {} messages{}{}", hex(place, 12),
                     time_text(d.record.created), d.meta.positions, d.meta.chat.messages.size(),
                     d.excerpt.empty() ? "" : "  ", d.excerpt);
}

Json json_of(const Sha256& place, const Described& d) {
  return {{"state", hex(place)},
          {"parent", d.record.parent == Sha256() ? Json(nullptr) : Json(hex(d.record.parent))},
          {"created", d.record.created},
          {"tokens", d.meta.positions},
          {"messages", d.meta.chat.messages.size()},
          {"blocks", d.record.blocks.size()},
          {"last_message", d.excerpt}};
}

// Records that cannot be read are reported, and the others are listed.
class Unreadable {
 public:
  // Calls `read`. Returns false, and prints why, if it throws for a record. Throws if the store
  // cannot be reached.
  template <class Read>
  bool passes(Read read) {
    try {
      read();
      return true;
    } catch (const Error& e) {
      if (e.kind == ErrorKind::io) throw;
      say("{}\n", printable(e.what(), 3000));
      any_ = true;
      return false;
    }
  }
  // Ends the command with status 1 if there was one.
  void finish() const {
    finish_output();
    if (any_) throw ExitStatus{1};
  }

 private:
  bool any_ = false;
};

std::map<Sha256, std::vector<std::string>> names_by_state(Store& store, Unreadable& unreadable) {
  std::map<Sha256, std::vector<std::string>> found;
  for (const std::string& name : store.names()) {
    unreadable.passes([&] {
      const auto entries = store.history(name);
      if (!entries.empty()) found[entries.back().state].push_back(name);
    });
  }
  return found;
}

std::string name_marks(const std::map<Sha256, std::vector<std::string>>& names,
                       const Sha256& place) {
  const auto found = names.find(place);
  return found == names.end() ? "" : fmt::format("  ({})", fmt::join(found->second, ", "));
}

void run_log(const StoreCommand& o) {
  require_words(o, 1, 1, "stet store log REFERENCE");
  Store& store = the_store();
  Unreadable unreadable;
  const auto names = names_by_state(store, unreadable);
  for (Sha256 at = store.resolve(reference(o.words[0])); at != Sha256() && out("");) {
    if (!store.find_state(at)) {
      say("{} and what was before it are not in the store any more\n", hex(at, 12));
      break;
    }
    const Described d = describe(store, at);
    out((o.json ? dump(json_of(at, d)) : line_of(at, d) + name_marks(names, at)) + "\n");
    at = d.record.parent;
  }
  unreadable.finish();
}

void remove_name(Store& store, const std::string& name) {
  std::vector<NameEntry> entries;
  Unreadable unreadable;
  if (!unreadable.passes([&] { entries = store.history(name); })) return store.remove_name(name);
  store.set_name(name, entries.empty() ? store.resolve(name) : entries.back().state, std::nullopt);
}

void list_names(Store& store, const std::vector<std::string>& names, bool whole, bool json) {
  Unreadable unreadable;
  for (const std::string& name : names) {
    std::vector<NameEntry> entries;
    unreadable.passes([&] { entries = store.history(name); });
    std::reverse(entries.begin(), entries.end());
    if (!whole && !entries.empty()) entries.resize(1);
    for (const NameEntry& e : entries) {
      out(json ? dump({{"name", name}, {"state", hex(e.state)}, {"set", e.set}}) + "\n"
               : fmt::format("{}  {}  {}\n", hex(e.state, 12), time_text(e.set), name));
    }
  }
  unreadable.finish();
}

void run_names(const StoreCommand& o) {
  require_words(o, 0, 2, "stet store names [NAME [REFERENCE]]");
  Store& store = the_store();
  if (o.remove) {
    require_words(o, 1, 1, "stet store names NAME --remove");
    return remove_name(store, o.words[0]);
  }
  if (o.words.size() == 2) {
    const auto entries = store.history(o.words[0]);
    return store.set_name(o.words[0],
                          entries.empty() ? std::nullopt : std::optional(entries.back().state),
                          store.resolve(reference(o.words[1])));
  }
  const bool one = o.words.size() == 1;
  if (one) store.resolve(o.words[0]);
  list_names(store, one ? o.words : store.names(), one, o.json);
}

// Prints each state below the state that it was made from.
void run_tree(const StoreCommand& o) {
  require_words(o, 0, 0, "stet store tree");
  Store& store = the_store();
  Unreadable unreadable;
  const auto names = names_by_state(store, unreadable);
  std::map<Sha256, Described> all;
  std::map<Sha256, std::vector<Sha256>> children;
  for (const RecordInfo& e : store.states())
    unreadable.passes([&] { all.emplace(e.name, describe(store, e.name)); });
  for (const auto& [place, d] : all)
    children[all.contains(d.record.parent) ? d.record.parent : Sha256()].push_back(place);
  std::vector<std::pair<Sha256, size_t>> next;
  const auto push = [&](const Sha256& parent, size_t depth) {
    std::vector<Sha256>& some = children[parent];
    std::sort(some.begin(), some.end(), [&](const Sha256& a, const Sha256& b) {
      return all.at(a).record.created > all.at(b).record.created;
    });
    for (const Sha256& child : some) next.emplace_back(child, depth);
  };
  push(Sha256(), 0);
  while (!next.empty() && out("")) {
    const auto [place, depth] = next.back();
    next.pop_back();
    const Described& d = all.at(place);
    out((o.json ? dump(json_of(place, d))
                : std::string(depth * 2, ' ') + line_of(place, d) + name_marks(names, place)) +
        "\n");
    push(place, depth + 1);
  }
  unreadable.finish();
}

// ---------------------------------------------------------------- gc, check, stats

void run_gc(const StoreCommand& o) {
  require_words(o, 0, 0, "stet store gc [--grace SECONDS] [--dry-run]");
  GcOptions options;
  options.grace = o.grace;
  options.dry_run = o.dry_run;
  const GcReport r = the_store().gc(options);
  for (const std::string& reason : r.refused) say("{}\n", printable(reason, 3000));
  if (o.json) {
    out(dump({{"states", r.states},
              {"blocks", r.blocks},
              {"bytes", r.bytes},
              {"kept_states", r.kept_states},
              {"kept_blocks", r.kept_blocks}}) +
        "\n");
  } else {
    say("{}: {} and {}, {}; kept: {} and {}\n", o.dry_run ? "to be removed" : "removed",
        counted(r.states, "state"), counted(r.blocks, "block"),
        bytes_text(static_cast<double>(r.bytes)), counted(r.kept_states, "state"),
        counted(r.kept_blocks, "block"));
  }
  if (r.refused.empty()) return;
  finish_output();
  throw Error(
      ErrorKind::format, the_store().url(), "states", "",
      "nothing can be removed, because a state that cannot be read may need it; restore its "
      "file, or remove the names that lead to it (stet store names NAME --remove)");
}

// Checks every record, and that every state matches its id. Returns the number of faults. A server
// salts the names of its states, so a name is not compared with the id: the seal vouches for it.
size_t check_records(Store& store, size_t& states, size_t& blocks) {
  size_t faults = 0;
  const auto fault = [&](const std::string& what) {
    out(printable(what, 3000) + "\n");
    ++faults;
  };
  std::set<Sha256> there;
  for (const RecordInfo& e : store.states()) {
    ++states;
    there.insert(e.name);
    try {
      const StoreSnapshot s = open_snapshot(store, e.name);
      s.snapshot->check();
    } catch (const Error& error) {
      fault(error.what());
    }
  }
  std::vector<Sha256> names;
  store.backend().list(RecordClass::blocks, [&](const RecordInfo& e) { names.push_back(e.name); });
  constexpr size_t kAtOnce = 32;
  for (size_t i = 0; i < names.size(); i += kAtOnce) {
    const auto some = std::span(names).subspan(i, std::min(kAtOnce, names.size() - i));
    for (const StoredBlock& b : store.blocks_at(some)) {
      blocks += b.found() ? 1 : 0;
      if (!b.refused.empty()) fault(b.refused);
    }
  }
  for (const std::string& name : store.names()) {
    try {
      for (const NameEntry& entry : store.history(name)) {
        if (!there.contains(entry.state) && !store.find_state(entry.state))
          fault(store.url() + " name " + name + ": expected a state, found none of " +
                hex(entry.state, 16));
      }
    } catch (const Error& error) {
      fault(error.what());
    }
  }
  return faults;
}

void run_check(const StoreCommand& o) {
  require_words(o, 0, 0, "stet store check");
  size_t states = 0, blocks = 0;
  const size_t faults = check_records(the_store(), states, blocks);
  if (o.json)
    out(dump({{"states", states}, {"blocks", blocks}, {"faults", faults}}) + "\n");
  else
    say("{}, {}, {}\n", counted(states, "state"), counted(blocks, "sound block"),
        counted(faults, "fault"));
  finish_output();
  if (faults > 0) throw ExitStatus{1};
}

void run_stats(const StoreCommand& o) {
  require_words(o, 0, 0, "stet store stats");
  Store& store = the_store();
  Json j = Json::object();
  for (const auto& [name, value] : store.backend().about()) j[name] = value;
  for (const auto& [record_class, what] :
       {std::pair{RecordClass::states, "states"}, {RecordClass::blocks, "blocks"}}) {
    uint64_t count = 0, bytes = 0;
    store.backend().list(record_class, [&](const RecordInfo& e) {
      ++count;
      bytes += e.bytes;
    });
    j[what] = count;
    j[std::string(what) + "_bytes"] = bytes;
  }
  j["names"] = store.names().size();
  if (o.json) {
    out(dump(j) + "\n");
    return;
  }
  for (const auto& [name, value] : j.items())
    out(fmt::format("{:<14} {}\n", name,
                    value.is_string() ? printable(value.get<std::string>()) : value.dump()));
}

void run(StoreCommand& o) {
  constexpr std::string_view kInspect = "log tree gc check";
  if (kInspect.find(o.action) != std::string_view::npos) the_store().backend().inspect();
  if (o.action == "init") return run_init(o);
  if (o.action == "put") return run_put(o);
  if (o.action == "get") return run_get(o);
  if (o.action == "log") return run_log(o);
  if (o.action == "names") return run_names(o);
  if (o.action == "tree") return run_tree(o);
  if (o.action == "gc") return run_gc(o);
  if (o.action == "check") return run_check(o);
  if (o.action == "stats") return run_stats(o);
  if (o.to.empty()) usage_error("store push and pull need --to URL, the other store");
  const std::unique_ptr<Store> other = open_store(o.to);
  o.action == "push" ? run_copy(o, the_store(), *other) : run_copy(o, *other, the_store());
}

// An option that only some actions have.
struct ActionOption {
  std::string_view actions;  // "push or pull"
  const char* name;
  Option* option;
};

// Throws a UsageError for an option of another action, which this one would ignore.
void check_options(const StoreCommand& o, const std::vector<ActionOption>& options) {
  for (const ActionOption& given : options) {
    if (given.option->count() > 0 && given.actions.find(o.action) == std::string_view::npos)
      usage_error(given.name, fmt::format("stet store {}", given.actions),
                  "stet store " + o.action);
  }
}

}  // namespace

void add_store(Command& app) {
  const auto o = std::make_shared<StoreCommand>();
  Command* sub = app.add_subcommand(
      "store", "Keep states in a store, from which other processes and machines continue.");
  sub->add_option(
         "action", o->action,
         "init [URL], put FILE, get REF, log REF, names [NAME [REF]], tree, push REF, pull "
         "REF, gc, check, stats")
      ->required()
      ->type_name("ACTION")
      ->check(one_of(
          {"init", "put", "get", "log", "names", "tree", "push", "pull", "gc", "check", "stats"}));
  sub->add_option("words", o->words,
                  "arguments of the action; REF is a name or the first digits of an id")
      ->type_name("WORD ...");
  Option* output = sub->add_output(o->output, "get: the snapshot to write");
  std::vector<ActionOption> options;
  const auto of = [&](const char* actions, const char* name, Option* option) {
    options.push_back({actions, name, option});
  };
  of("get", "--output", output);
  of("put", "--name",
     sub->add_option("--name", o->name, "put: the name of the state")
         ->type_name("NAME")
         ->check(named()));
  of("push or pull", "--to",
     sub->add_option("--to,--from", o->to, "push, pull: the other store")->type_name("URL"));
  of("init", "--budget",
     sub->add_option("--budget", o->budget, "init: maximum bytes of blocks in a directory, as 20G")
         ->type_name("BYTES")
         ->check(named()));
  of("gc", "--grace",
     sub->add_option("--grace", o->grace,
                     "gc: keep everything used in the last SECONDS (default: 14 days)")
         ->type_name("SECONDS")
         ->check(integer(0, uint64_t{1} << 40)));
  of("gc", "--dry-run", sub->add_flag("--dry-run", o->dry_run, "gc: list what would be deleted"));
  of("names", "--remove",
     sub->add_flag("--remove", o->remove, "names: remove this name, with its history"));
  sub->add_flag("--json", o->json, "print JSON");
  o->restore.add_to(*sub);
  o->model.add_to(*sub);
  sub->callback([o, options] {
    check_options(*o, options);
    run(*o);
  });
}

}  // namespace stet::tool
