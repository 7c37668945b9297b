#include "tools/serve/shared_states.hpp"

#include <algorithm>

#include "stet/base/error.hpp"
#include "stet/base/hmac.hpp"
#include "tools/command/command.hpp"
#include "tools/serve/fields.hpp"

namespace stet::serve {
namespace {

constexpr double kPause = 2;  // seconds before the next attempt after the store was unreachable
constexpr size_t kMostOperation = 3000;

}  // namespace

std::string SharedStates::secret() const {
  const std::string what = "stet handles 1";
  const Sha256 secret = hmac_sha256(key_.writers, std::as_bytes(std::span(what)));
  return {reinterpret_cast<const char*>(secret.bytes.data()), secret.bytes.size()};
}

Store& SharedStates::store_of(const std::string& client) {
  const MutexLock lock(mutex_);
  std::unique_ptr<Store>& store = stores_[together_ ? "" : client];
  if (store == nullptr)
    store = std::make_unique<Store>(backend_, together_ ? key_ : key_.for_tenant(client), options_);
  return *store;
}

template <class Work>
bool SharedStates::attempt(Work work) {
  if (tool::seconds() < not_before_) return false;
  try {
    work();
    return true;
  } catch (const Error& e) {
    ++failures_;
    if (e.kind == ErrorKind::io) not_before_ = tool::seconds() + kPause;
    tool::say("store: {}\n", printable(e.what(), 3000));
    return false;
  }
}

InStore SharedStates::put(const std::string& client, const std::string& handle, Session& session,
                          const Tokenizer* tokenizer, const SharedNote& note) {
  InStore in_store = InStore::no;
  attempt([&] {
    in_store = InStore::perhaps;
    Store& store = store_of(client);
    if (!store.history(handle).empty()) {
      in_store = InStore::found;
      return;
    }
    StorePutOptions how;
    how.tokenizer = tokenizer;
    const std::string operation = tool::dump(note.operation);
    const bool fits = operation.size() <= kMostOperation;
    how.note = tool::dump(
        {{"parent", note.parent}, {"operation", fits ? note.operation : Json::object()}});
    if (!note.parent.empty()) {
      if (const auto parent = store.history(note.parent); !parent.empty())
        how.parent = parent.back().state;
    }
    const Sha256 place = put_session(store, session, how).place;
    store.set_name(handle, std::nullopt, place);
    in_store = InStore::put;
  });
  return in_store;
}

std::optional<SharedState> SharedStates::get(const std::string& client, const std::string& handle,
                                             const std::shared_ptr<const Model>& model,
                                             const RestoreOptions& how) {
  std::optional<SharedState> found;
  attempt([&] {
    Store& store = store_of(client);
    const std::vector<NameEntry> entries = store.history(handle);
    if (entries.empty()) return;
    const StoreSnapshot s = open_snapshot(store, entries.back().state);
    StoreRestoreReport restored;
    Session session = restore_session(store, *s.snapshot, model, how, &restored);
    fetched_ += restored.fetched;
    computed_ += restored.computed;
    const Json note = parse_body(s.record.note);
    found.emplace(SharedState{{note.value("parent", ""), note.value("operation", Json::object())},
                              std::move(session),
                              std::move(restored)});
  });
  return found;
}

bool SharedStates::lacks(const std::string& client, const std::string& handle) {
  bool there = true;
  attempt([&] { there = !store_of(client).history(handle).empty(); });
  return !there;
}

bool SharedStates::remove(const std::string& client, const std::string& handle) {
  return attempt([&] {
    Store& store = store_of(client);
    const std::vector<NameEntry> entries = store.history(handle);
    if (!entries.empty()) store.set_name(handle, entries.back().state, std::nullopt);
  });
}

std::optional<Session> SharedStates::prefix(const std::string& client,
                                            const std::shared_ptr<const Model>& model,
                                            const SessionOptions& options,
                                            std::span<const int32_t> ids, int64_t more_than) {
  std::optional<Session> found;
  attempt([&] { found = fetch_prefix(store_of(client), model, options, ids, more_than); });
  if (found) fetched_ += static_cast<uint64_t>(found->size() / kBlockPositions);
  return found;
}

StoreTraffic SharedStates::traffic() const {
  const MutexLock lock(mutex_);
  StoreTraffic all;
  for (const auto& [client, store] : stores_) {
    const StoreTraffic t = store->traffic();
    all.hits += t.hits;
    all.misses += t.misses;
    all.refused += t.refused;
    all.read_bytes += t.read_bytes;
    all.written_bytes += t.written_bytes;
    all.reads += t.reads;
    all.writes += t.writes;
    all.read_seconds += t.read_seconds;
    all.write_seconds += t.write_seconds;
  }
  return all;
}

}  // namespace stet::serve
