#include "stet/store/store.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <utility>

#include "src/store/clock.hpp"
#include "src/store/payloads.hpp"
#include "src/store/text.hpp"
#include "stet/base/error.hpp"
#include "stet/snapshot/snapshot.hpp"
#include "stet/threads/team.hpp"

namespace stet {
namespace {

constexpr size_t kBlocksAtOnce = 32;   // blocks sealed and written together
constexpr size_t kReadAtOnce = 32;     // records in one of several requests
constexpr uint64_t kSmall = 1 << 16;   // bytes of a reply that still measures latency
constexpr size_t kMostEntries = 1000;  // entries in a name's history
constexpr size_t kMostTries = 64;      // tries to set a name that others set, too

Sha256 identity_of_name(const std::string& name) {
  const std::string text = "stet name 1\n" + name;
  return sha256_of(std::as_bytes(std::span(text)));
}

std::string where_of(const std::string& url, const char* record_class, const Sha256& place) {
  return url + " " + record_class + " " + hex_of_hash(place).substr(0, 16);
}

[[noreturn]] void not_there(const std::string& url, const std::string& what) {
  throw Error(ErrorKind::io, url, what, "", "no such state is in the store");
}

void check_store_name(const std::string& name) {
  if (is_store_name(name)) return;
  throw Error(
      ErrorKind::argument, "", "name",
      "1 to 128 of a-z A-Z 0-9 . _ -, not all hexadecimal digits, without \".tmp-\", the first a "
      "letter, digit or _",
      printable(name, 60));
}

// Returns whether a file is this record of a block, whichever writer sealed it. A directory need
// not write it again then.
bool is_file_of(const MappedFile* file, const StoreKey& key, const Record& record) {
  if (file == nullptr || file->bytes().size() != kBlockFront + record.payload.size() ||
      file->bytes().data() + kBlockFront != record.payload.data())
    return false;
  try {
    return open_record(key, record.kind, record.name, file->bytes(), file->path()).encoding ==
           record.encoding;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

bool is_store_name(const std::string& name) {
  const auto is_one_of = [](char c, std::string_view set) {
    return set.find(c) != std::string_view::npos;
  };
  constexpr std::string_view
      kHex = "0123456789abcdef",
      kAll = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
  if (name.empty() || name.size() > 128 || name[0] == '.' || name[0] == '-') return false;
  // AtomicFile names its temporary files like that.
  if (name.find(".tmp-") != std::string::npos) return false;
  return std::ranges::all_of(name, [&](char c) { return is_one_of(c, kAll); }) &&
         !(name.size() >= 6 &&
           std::ranges::all_of(name, [&](char c) { return is_one_of(c, kHex); }));
}

Store::Store(std::shared_ptr<StoreBackend> backend, const StoreKey& key,
             const StoreOptions& options)
    : backend_(std::move(backend)),
      key_(key),
      threads_(options.threads > 0 ? options.threads : default_threads()),
      fetch_(options.fetch),
      encoding_(options.encoding),
      clock_(options.clock ? options.clock
                           : [] { return static_cast<int64_t>(std::time(nullptr)); }) {}

Store::~Store() = default;

Store::Lease::~Lease() {
  if (backend_ == nullptr) return;
  try {
    backend_->release(holder_);
  } catch (const Error&) {
    // The lease expires by itself.
  }
}

void Store::count(const StoreTraffic& more) {
  const std::lock_guard lock(mutex_);
  traffic_.hits += more.hits;
  traffic_.misses += more.misses;
  traffic_.refused += more.refused;
  traffic_.read_bytes += more.read_bytes;
  traffic_.written_bytes += more.written_bytes;
  traffic_.reads += more.reads;
  traffic_.writes += more.writes;
  traffic_.read_seconds += more.read_seconds;
  traffic_.write_seconds += more.write_seconds;
}

StoreTraffic Store::traffic() const {
  const std::lock_guard lock(mutex_);
  return traffic_;
}

// ---------------------------------------------------------------- blocks

// Returns the blocks in the form to write: compressed if that saves time (FetchPolicy) and makes
// them shorter.
std::vector<std::vector<std::byte>> Store::encoded(
    std::span<const std::span<const std::byte>> all) {
  std::vector<std::vector<std::byte>> packed(all.size());
  const bool pays = encoding_ == StoreEncoding::always ||
                    (encoding_ == StoreEncoding::by_costs && meter().policy().worth_encoding());
  if (!pays || !have_zlib()) return packed;
  run_each(threads_, all.size(), [&](size_t i) {
    const double start = seconds_now();
    packed[i] = encode_block(all[i]);
    const size_t after = packed[i].empty() ? all[i].size() : packed[i].size();
    meter().learn([&](FetchPolicy& p) { p.encoded(all[i].size(), after, seconds_now() - start); });
  });
  return packed;
}

size_t Store::write_blocks(std::span<const NewBlock* const> blocks) {
  std::vector<std::span<const std::byte>> bytes(blocks.size());
  std::vector<std::vector<std::byte>> fronts(blocks.size());
  std::vector<NewRecord> records(blocks.size());
  for (size_t i = 0; i < blocks.size(); ++i) bytes[i] = blocks[i]->bytes();
  const std::vector<std::vector<std::byte>> packed = encoded(bytes);
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (!packed[i].empty()) bytes[i] = packed[i];
  }
  run_each(threads_, blocks.size(), [&](size_t i) {
    const Record record{blocks[i]->kind, place(blocks[i]->identity), packed[i].empty() ? 0u : 1u,
                        bytes[i]};
    const std::shared_ptr<const MappedFile>& file = blocks[i]->mapping;
    if (is_file_of(file.get(), key_, record)) {
      records[i] = {record.name, file->bytes().first(kBlockFront), bytes[i], file};
      return;
    }
    fronts[i] = seal_record(key_, record);
    records[i] = {record.name, fronts[i], bytes[i]};
  });
  const double start = seconds_now();
  const size_t kept = backend_->write(RecordClass::blocks, records);
  StoreTraffic t;
  for (size_t i = 0; i < kept; ++i) t.written_bytes += kBlockFront + bytes[i].size();
  t.write_seconds = seconds_now() - start;
  t.writes = 1;
  count(t);
  meter().learn([&](FetchPolicy& p) { p.written(t.written_bytes, t.write_seconds); });
  return kept;
}

Store::PutReport Store::put_blocks(std::span<const NewBlock> blocks) {
  std::vector<Sha256> places;
  for (const NewBlock& b : blocks) places.push_back(place(b.identity));
  std::vector<bool> there = backend_->touch(RecordClass::blocks, places);
  {
    const std::lock_guard lock(mutex_);
    for (size_t i = 0; i < places.size(); ++i)
      there[i] = refused_.erase(places[i]) == 0 && there[i];
  }
  std::vector<const NewBlock*> missing;
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (!there[i]) missing.push_back(&blocks[i]);
  }
  PutReport report{0, blocks.size() - missing.size()};
  for (size_t i = 0; i < missing.size(); i += kBlocksAtOnce) {
    const size_t n = std::min(kBlocksAtOnce, missing.size() - i);
    const size_t kept = write_blocks(std::span(missing).subspan(i, n));
    report.written += kept;
    if (kept < n) break;
  }
  return report;
}

StoredBlock Store::checked(RecordKind kind, const Sha256& name, const StoredBytes& found) {
  const std::string where = where_of(url(), record_kind_name(kind), name);
  StoredBlock b;
  b.kind = kind;
  b.carried = found.bytes.size();
  try {
    const Record r = open_record(key_, kind, name, found.bytes, where);
    if (r.encoding > 1)
      throw Error(ErrorKind::unsupported, where, "encoding", "0 or 1", std::to_string(r.encoding));
    if (r.encoding == 0) {
      b.bytes = r.payload, b.owner = found.owner, b.mapping = found.mapping;
      return b;
    }
    const double start = seconds_now();
    const StoredBytes expanded = decode_block(r.payload, where);
    b.bytes = expanded.bytes, b.owner = expanded.owner;
    meter().learn([&](FetchPolicy& p) { p.decoded(b.bytes.size(), seconds_now() - start); });
  } catch (const Error& e) {
    b.refused = e.what();
  }
  return b;
}

std::vector<bool> Store::has_blocks(std::span<const Sha256> identities) {
  std::vector<Sha256> places;
  for (const Sha256& id : identities) places.push_back(place(id));
  return backend_->touch(RecordClass::blocks, places);
}

std::vector<StoredBlock> Store::blocks(std::span<const Sha256> identities) {
  std::vector<Sha256> places;
  for (const Sha256& id : identities) places.push_back(place(id));
  return read_blocks(places, Accept::blocks);
}

std::vector<StoredBlock> Store::blocks_at(std::span<const Sha256> places) {
  return read_blocks(places, Accept::blocks_and_anchors);
}

// Reads by several requests. Each record is checked while others arrive.
std::vector<StoredBlock> Store::read_blocks(std::span<const Sha256> places, Accept accept) {
  std::vector<StoredBlock> all(places.size());
  const std::atomic<bool> stop{false};
  const int readers = backend_->readers(threads_);
  const size_t requests = std::max((places.size() + kReadAtOnce - 1) / kReadAtOnce,
                                   std::min(places.size(), static_cast<size_t>(readers)));
  run_each(readers, requests, [&](size_t i) {
    const Range mine = part_of(places.size(), requests, i);
    std::ranges::move(request(places.subspan(mine.begin, mine.size()), stop, accept),
                      all.begin() + static_cast<std::ptrdiff_t>(mine.begin));
  });
  return all;
}

std::vector<StoredBlock> Store::request(std::span<const Sha256> places,
                                        const std::atomic<bool>& stop, Accept accept) {
  StoreTraffic t;
  t.reads = 1;
  const double start = seconds_now();
  std::vector<StoredBlock> all(places.size());
  backend_->read_blocks(places, stop, [&](size_t i, const std::optional<StoredBytes>& found) {
    if (!found) return;
    const bool anchor = accept == Accept::blocks_and_anchors && claims_anchor(found->bytes);
    all[i] = checked(anchor ? RecordKind::anchor : RecordKind::block, places[i], *found);
  });
  t.read_seconds = seconds_now() - start;
  for (const StoredBlock& b : all) {
    ++(b.found() ? t.hits : b.refused.empty() ? t.misses : t.refused);
    t.read_bytes += b.carried;
  }
  if (t.refused > 0) {
    const std::lock_guard lock(mutex_);
    for (size_t i = 0; i < all.size(); ++i) {
      if (!all[i].refused.empty()) refused_.insert(places[i]);
    }
  }
  count(t);
  return all;
}

// ---------------------------------------------------------------- states

Sha256 Store::put_state(const Sha256& id, const StateRecord& state) {
  const Sha256 name = place(id);
  if (is_undamaged_state(name)) return name;
  const std::vector<std::byte> payload = encode_state_payload(state);
  const std::vector<std::byte> front = seal_record(key_, {RecordKind::state, name, 0, payload});
  const NewRecord record{name, front, payload};
  backend_->write(RecordClass::states, {&record, 1});
  return name;
}

bool Store::is_undamaged_state(const Sha256& name) {
  try {
    return find_state(name).has_value();
  } catch (const Error& e) {
    if (e.kind != ErrorKind::format) throw;  // perhaps other writers': not ours to replace
    return false;
  }
}

bool Store::has_state(const Sha256& name) {
  return backend_->touch(RecordClass::states, {&name, 1})[0];
}

StateRecord Store::state(const Sha256& name) {
  std::optional<StateRecord> found = find_state(name);
  if (!found) not_there(url(), hex_of_hash(name).substr(0, 16));
  return *std::move(found);
}

std::optional<StateRecord> Store::find_state(const Sha256& name) {
  const double start = seconds_now();
  const std::optional<StoredBytes> found = backend_->read(RecordClass::states, {&name, 1})[0];
  if (!found) return std::nullopt;
  if (found->bytes.size() <= kSmall)
    meter().learn([&](FetchPolicy& p) { p.answered(seconds_now() - start); });
  const std::string where = where_of(url(), "state", name);
  return decode_state_payload(
      open_record(key_, RecordKind::state, name, found->bytes, where).payload, where);
}

std::vector<RecordInfo> Store::states() {
  std::vector<RecordInfo> all;
  backend_->list(RecordClass::states, [&](const RecordInfo& e) { all.push_back(e); });
  std::sort(all.begin(), all.end(),
            [](const RecordInfo& a, const RecordInfo& b) { return a.name < b.name; });
  return all;
}

Sha256 Store::resolve(const std::string& reference) {
  if (is_store_name(reference)) {
    const std::vector<NameEntry> entries = history(reference);
    if (entries.empty()) not_there(url(), printable(reference, 130));
    return entries.back().state;
  }
  if (const auto whole = hash_of_hex(reference)) return *whole;
  const std::string hex = reference.starts_with("sha256:") ? reference.substr(7) : reference;
  std::optional<Sha256> found;
  if (hex.size() < 6) check_store_name(reference);
  for (const RecordInfo& e : states()) {
    if (!hex_of_hash(e.name).starts_with(hex)) continue;
    if (found)
      throw Error(ErrorKind::argument, url(), reference, "",
                  "several states begin with these digits; give more of them");
    found = e.name;
  }
  if (!found) not_there(url(), printable(reference, 130));
  return *found;
}

// ---------------------------------------------------------------- names

std::vector<std::byte> Store::sealed_name(const std::string& name,
                                          std::span<const NameEntry> entries) const {
  const std::vector<std::byte> payload = encode_name_payload(name, entries);
  std::vector<std::byte> bytes =
      seal_record(key_, {RecordKind::name, identity_of_name(name), 0, payload});
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  return bytes;
}

std::vector<NameEntry> Store::opened_name(const std::string& name,
                                          std::span<const std::byte> bytes) const {
  const std::string where = url() + " name " + name;
  try {
    const Record r = open_record(key_, RecordKind::name, identity_of_name(name), bytes, where);
    return decode_name_payload(r.payload, name, where);
  } catch (const Error& e) {
    if (e.kind == ErrorKind::unsupported) throw;  // a later version can read it
    throw Error(e.kind, e.file, e.field, e.expected,
                e.found + (e.field == "HMAC" ? "; if the key is the right one, " : "; ") +
                    "stet store names " + name + " --remove removes the name");
  }
}

std::vector<NameEntry> Store::history(const std::string& name) {
  check_store_name(name);
  const auto bytes = backend_->read_name(name);
  return bytes ? opened_name(name, *bytes) : std::vector<NameEntry>();
}

// Marks a state and its ancestors as used, stopping at `known`, which is held already.
void Store::refresh(Sha256 name, const std::optional<Sha256>& known) {
  for (size_t n = 0; name != Sha256() && name != known; ++n) {
    if (!has_state(name)) {
      if (n == 0) not_there(url(), hex_of_hash(name).substr(0, 16));
      return;  // the ancestors were not kept
    }
    const StateRecord record = state(name);
    backend_->touch(RecordClass::blocks, record.blocks);
    name = record.parent;
  }
}

void Store::set_name(const std::string& name, const std::optional<Sha256>& expected,
                     const std::optional<Sha256>& next) {
  check_store_name(name);
  if (next) refresh(*next, expected);
  for (size_t tries = 0; tries < kMostTries; ++tries) {
    const auto before = backend_->read_name(name);
    std::vector<NameEntry> entries = before ? opened_name(name, *before) : std::vector<NameEntry>();
    const std::optional<Sha256> found =
        entries.empty() ? std::nullopt : std::optional(entries.back().state);
    if (found != expected) {
      const auto text = [](const std::optional<Sha256>& s) {
        return s ? "state " + hex_of_hash(*s).substr(0, 16) : std::string("no state");
      };
      throw Error(ErrorKind::mismatch, url(), "name " + name, text(expected),
                  text(found) + ", which another writer has set in the meantime");
    }
    if (next && found == next) return;
    if (next) entries.push_back({*next, now()});
    const size_t drop = entries.size() > kMostEntries ? entries.size() - kMostEntries : 0;
    std::optional<std::vector<std::byte>> after;
    if (next) after = sealed_name(name, std::span(entries).subspan(drop));
    if (backend_->replace_name(name, before, after)) return;
  }
  throw Error(ErrorKind::io, url(), "name " + name, "", "other writers keep setting it; try again");
}

void Store::remove_name(const std::string& name) {
  check_store_name(name);
  for (size_t tries = 0; tries < kMostTries; ++tries) {
    const auto before = backend_->read_name(name);
    if (!before) not_there(url(), printable(name, 130));
    if (backend_->replace_name(name, before, std::nullopt)) return;
  }
  throw Error(ErrorKind::io, url(), "name " + name, "", "other writers keep setting it; try again");
}

Store::Lease Store::lease(std::span<const Sha256> states, int64_t seconds) {
  const StoreKey random = StoreKey::random();
  Sha256 holder;
  holder.bytes = random.writers;
  backend_->lease(hex_of_hash(holder), states, backend_->now() + seconds);
  Lease lease{backend_, hex_of_hash(holder)};
  // A garbage collection that began earlier has not seen the lease.
  for (const Sha256& state : states) refresh(state, std::nullopt);
  return lease;
}

}  // namespace stet
