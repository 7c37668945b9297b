#include "tools/store/store.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <list>
#include <map>

#include "stet/base/error.hpp"
#include "tools/command/command.hpp"

namespace stet::tool {
namespace {

constexpr char kInStore[] = "store:";
constexpr int64_t kLeaseSeconds = 24 * 3600;

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// A state that this process has opened or put. It is a possible parent of later ones.
struct KnownState {
  Sha256 place;
  std::vector<int32_t> transcript;
  Store::Lease lease;  // protects it from collection while this process may continue it
};

struct StoreUse {
  std::string url = environment("STET_STORE"), key, fetch = "costs", compress = "costs";
  std::unique_ptr<Store> store;
  std::list<StoreSnapshot> opened;  // keeps the bytes of open snapshots alive
  std::vector<KnownState> known;
  std::map<std::string, std::optional<Sha256>> names;  // the last known state of each name
};

StoreUse& use() {
  static StoreUse all;
  return all;
}

std::string reference_of(const std::string& path) { return path.substr(sizeof kInStore - 1); }

std::optional<Sha256> meaning(const std::string& name) {
  const std::vector<NameEntry> entries = the_store().history(name);
  return entries.empty() ? std::nullopt : std::optional(entries.back().state);
}

// Returns a lease, or an empty one if the store is read-only.
Store::Lease leased(const Sha256& place) {
  try {
    return the_store().lease({&place, 1}, kLeaseSeconds);
  } catch (const Error& e) {
    if (e.kind == ErrorKind::io) return {};
    throw;
  }
}

void know(const Sha256& place, std::vector<int32_t> transcript) {
  use().known.push_back({place, std::move(transcript), leased(place)});
}

// Returns the known state that shares most tokens with the beginning of `transcript`.
Sha256 parent_of(const std::vector<int32_t>& transcript, const Sha256& itself) {
  Sha256 parent;
  size_t longest = 0;
  for (const KnownState& k : use().known) {
    const bool front = k.transcript.size() <= transcript.size() &&
                       std::equal(k.transcript.begin(), k.transcript.end(), transcript.begin());
    if (!front || k.place == itself || k.transcript.size() < longest) continue;
    parent = k.place;
    longest = k.transcript.size();
  }
  return parent;
}

}  // namespace

void add_store_options(Command& app) {
  app.add_option(
         "--store", use().url,
         "the store of store:NAME: dir:PATH or redis://HOST[:PORT][/PREFIX] (default: STET_STORE)")
      ->type_name("URL")
      ->group("Store");
  app.add_option("--store-key", use().key,
                 "the writers' key (default: STET_STORE_KEY, or ~/.config/stet/store.key)")
      ->type_name("FILE")
      ->group("Store");
  app.add_option("--store-fetch", use().fetch,
                 "always: fetch every block; costs (default): compute a block if that is faster")
      ->type_name("WHICH")
      ->check(one_of({"costs", "always"}))
      ->group("Store");
  app.add_option("--store-compress", use().compress,
                 "compress blocks: always, never, or costs (default): if the connection is slow")
      ->type_name("WHICH")
      ->check(one_of({"costs", "always", "never"}))
      ->group("Store");
}

void refuse_idle_store_options(Command& app, bool always) {
  app.after_parsing([&app, always] {
    const bool idle = !always && !app.has_argument(kInStore);
    for (const char* option : {"--store", "--store-key", "--store-fetch", "--store-compress"}) {
      if (app.count(option) == 0) continue;
      if (idle) usage_error(std::string(option) + " requires a state in the store, as store:NAME");
      if (use().url.empty()) usage_error(std::string(option) + " requires --store or STET_STORE");
    }
  });
}

std::string store_url() { return use().url; }

std::string store_key_path() {
  if (!use().key.empty()) return use().key;
  if (const std::string path = environment("STET_STORE_KEY"); !path.empty()) return path;
  const std::string config = environment("XDG_CONFIG_HOME");
  return (config.empty() ? environment("HOME") + "/.config" : config) + "/stet/store.key";
}

std::unique_ptr<Store> open_store(const std::string& url) {
  return std::make_unique<Store>(open_store_backend(url), StoreKey::load(store_key_path()),
                                 store_options());
}

StoreOptions store_options() {
  StoreOptions o;
  if (use().fetch == "always") o.fetch = FetchChoice::always;
  if (use().compress != "costs")
    o.encoding = use().compress == "always" ? StoreEncoding::always : StoreEncoding::never;
  return o;
}

Store& the_store() {
  StoreUse& u = use();
  if (u.url.empty())
    throw Error(ErrorKind::argument, "", "--store", "dir:PATH or redis://HOST (or STET_STORE)",
                "none");
  if (u.store == nullptr) u.store = open_store(u.url);
  return *u.store;
}

bool is_in_store(const std::string& path) { return path.starts_with(kInStore); }

Snapshot open_stored(const std::string& path) {
  Store& store = the_store();
  const std::string reference = reference_of(path);
  const Sha256 place = store.resolve(reference);
  StoreSnapshot& s = use().opened.emplace_back(open_snapshot(store, place));
  const Snapshot named = Snapshot::parse(s.record.snapshot, path);
  know(place, named.recipe().transcript());
  use().names[reference] = place;  // harmless if the reference is an id
  return named;
}

Session restore_stored(const Snapshot& snapshot, const std::shared_ptr<const Model>& model,
                       const RestoreOptions& how, RestoreReport* report) {
  StoreRestoreReport r;
  const std::list<StoreSnapshot>& opened = use().opened;
  const auto at = std::ranges::find_if(opened, [&](const StoreSnapshot& s) {
    return s.snapshot->digests().id == snapshot.digests().id;
  });
  Session session = restore_session(the_store(), snapshot, model, how, &r,
                                    at == opened.end() ? nullptr : &at->record);
  if (report != nullptr) *report = r.restored;
  say("{}: {}\n", printable(snapshot.path()), printable(r.text(), 3000));
  return session;
}

void check_storable(const std::string& path) {
  const std::string name = reference_of(path);
  Store& store = the_store();
  if (!name.empty() && !use().names.contains(name)) use().names[name] = meaning(name);
  store.names();  // throws if the store cannot be reached
}

StateDigests store_session(Session& session, const Tokenizer* tokenizer, const std::string& path) {
  check_storable(path);
  const std::string name = reference_of(path);
  std::vector<int32_t> transcript = session.transcript();
  StorePutOptions how;
  how.tokenizer = tokenizer;
  how.parent = parent_of(transcript, the_store().place(digests_of(session).id));
  const StorePutReport put = put_session(the_store(), session, how);
  know(put.place, std::move(transcript));
  if (name.empty()) return put.digests;
  std::optional<Sha256>& before = use().names[name];
  the_store().set_name(name, before, put.place);
  before = put.place;
  return put.digests;
}

Snapshot open_state(const std::string& path) {
  return is_in_store(path) ? open_stored(path) : Snapshot::open(path);
}

void require_delta(const Snapshot& snapshot, const std::optional<std::string>& parent) {
  if (parent && snapshot.meta().form != SnapshotForm::delta)
    usage_error("--parent: this option is for deltas, and " + printable(snapshot.path()) +
                " is none");
}

Snapshot open_state_with_parents(const std::string& path,
                                 const std::optional<std::string>& parent) {
  if (!is_in_store(path)) {
    if (parent) require_delta(Snapshot::open(path), parent);
    return Snapshot::open_with_parents(path, parent);
  }
  if (parent) usage_error("--parent is for files, and " + printable(path) + " is in a store");
  return open_stored(path);
}

}  // namespace stet::tool
