#include "src/store/redis.hpp"

#include "stet/base/error.hpp"

#ifdef STET_HAVE_HIREDIS
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstring>
#include <functional>
#include <mutex>

#include "src/store/block_memory.hpp"
#include "src/store/redis_connections.hpp"
#include "src/store/redis_record.hpp"
#include "src/store/text.hpp"
#include "stet/base/memory.hpp"
#include "stet/store/record.hpp"

namespace stet {
namespace {

static_assert(kRedisHead == kRecordFront);
constexpr int kMostConnections = 4;  // for one reader
constexpr int64_t kBlockTtl = 7 * 24 * 3600;
constexpr size_t kMostIdle = size_t{256} << 20;  // bytes of unused buffers kept for later blocks
constexpr double kMarkSeconds = 1;               // timeout of commands that may fail
constexpr auto kAskAgain = std::chrono::hours(1);

// Sets the expiry of all chunks of a record to ARGV[1] seconds; if that is "", stores the time
// ARGV[2] instead, unless the server is full. Returns 1 if all chunks exist. KEYS are the first
// chunk and, for a state, the key of its time. While a slot moves, a server that lacks one of them
// says so.
constexpr char kTouch[] = R"(local base = KEYS[1]:sub(1, -2)
local front = redis.call('GETRANGE', KEYS[1], 80, 95)
if #front ~= 16 then return 0 end
local payload, encoding, offset = struct.unpack('<I8I4I4', front)
for i = 0, math.ceil((offset + payload) / ARGV[3]) - 1 do
  if redis.call('EXISTS', base .. i) == 0 then return 0 end
  if ARGV[1] ~= '' then redis.call('EXPIRE', base .. i, ARGV[1]) end
end
if ARGV[1] == '' then
  local set = redis.pcall('SET', KEYS[2], ARGV[2])
  if set.err and not (set.err:find('OOM') or set.err:find('MISCONF')) then return set end
end
return 1)";

// Removes the chunks of a record unless it was used since ARGV[1]. A block's last use follows from
// its remaining time to live, with ARGV[2] the full one and ARGV[3] the current time. Returns 1 if
// it removed a chunk.
constexpr char kRemove[] = R"(local base = KEYS[1]:sub(1, -2)
local used
if ARGV[2] ~= '' then
  used = tonumber(ARGV[3]) - (tonumber(ARGV[2]) - redis.call('TTL', KEYS[1]))
else
  used = tonumber(redis.call('GET', KEYS[2]) or '0') or 0
end
if used >= tonumber(ARGV[1]) then return 0 end
local i = 0
while redis.call('DEL', base .. i) == 1 do i = i + 1 end
if KEYS[2] then redis.call('DEL', KEYS[2]) end
return i > 0 and 1 or 0)";

// Compare-and-set: expects ARGV[2] if ARGV[1] is 1, and sets ARGV[4] if ARGV[3] is 1. A retry
// succeeds if the first try did. Records contain nonces, so no two are equal.
constexpr char kReplace[] = R"(local found = redis.call('GET', KEYS[1])
local expected, next = ARGV[1] == '1' and ARGV[2], ARGV[3] == '1' and ARGV[4]
if found ~= expected and found ~= next then return 0 end
if ARGV[3] == '1' then redis.call('SET', KEYS[1], ARGV[4]) else redis.call('DEL', KEYS[1]) end
return 1)";

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

class RedisStore : public StoreBackend {
 public:
  RedisStore(const StoreUrl& url, StoreClock clock, StoreTimeouts patience)
      : url_(url), patience_(patience), servers_(url, patience), clock_(std::move(clock)) {}

  void check_server() { servers_.check(); }

  void create() {
    const std::string text = fmt::format("stet store 1 ttl {}", kBlockTtl);
    const RedisReply reply = servers_.one({{"SET", store_key(), text, "NX"}}, patience_.write);
    if (reply->type == REDIS_REPLY_NIL)
      throw Error(ErrorKind::argument, url(), "store", "", "the server has a store already");
  }

  void open() {
    const RedisReply reply = servers_.one({{"GET", store_key()}}, patience_.read);
    if (reply->type == REDIS_REPLY_NIL)
      throw Error(ErrorKind::io, url(), "store", "",
                  "there is no store; stet store init makes one");
    constexpr std::string_view kFront = "stet store 1 ttl ";
    const std::string text(string_of(reply));
    const char* const end = text.data() + text.size();
    if (!text.starts_with(kFront) ||
        std::from_chars(text.data() + kFront.size(), end, ttl_).ptr != end || ttl_ < 1)
      throw Error(ErrorKind::unsupported, url(), store_key(), "stet store 1 ttl SECONDS",
                  printable(text, 60));
  }

  const std::string& url() const override { return servers_.url(); }

  // Asks the server for its time occasionally, and adds the time that the local clock has advanced
  // since.
  int64_t now() override {
    if (clock_) return clock_();
    const auto here = std::chrono::steady_clock::now();
    const std::lock_guard lock(clock_mutex_);
    if (server_seconds_ == 0 || here - asked_ > kAskAgain) {
      RedisCommand ask{{"EVAL", "return redis.call('TIME')", "1", store_key()}};
      ask.key = 3;
      const RedisReply r = servers_.one(ask, patience_.read);
      const bool told = r->type == REDIS_REPLY_ARRAY && r->elements == 2 &&
                        r->element[0]->type == REDIS_REPLY_STRING;
      server_seconds_ = told ? std::atoll(r->element[0]->str) : 0;
      if (server_seconds_ < 1)
        throw Error(ErrorKind::format, url(), "TIME", "seconds since 1970", "another answer");
      asked_ = here;
    }
    return server_seconds_ +
           std::chrono::duration_cast<std::chrono::seconds>(here - asked_).count();
  }

  std::vector<std::optional<StoredBytes>> read(RecordClass record_class,
                                               std::span<const Sha256> names) override {
    std::vector<std::optional<StoredBytes>> found(names.size());
    receive(record_class, names, nullptr,
            [&](size_t i, std::optional<StoredBytes> record) { found[i] = std::move(record); });
    return found;
  }
  void read_blocks(std::span<const Sha256> names, const std::atomic<bool>& stop,
                   const TakeBlock& take) override {
    receive(RecordClass::blocks, names, &stop, take);
  }
  // Leaves one processor to the other end of the connection: the system, and a server that may run
  // on this machine.
  int readers(int threads) const override { return std::clamp(threads - 1, 1, kMostConnections); }

  std::vector<bool> touch(RecordClass record_class, std::span<const Sha256> names) override {
    std::vector<RedisCommand> commands;
    for (const Sha256& name : names) commands.push_back(touching(record_class, name));
    std::vector<bool> there;
    for (const RedisReply& r : servers_.run(commands, patience_.write))
      there.push_back(integer_of(r) == 1);
    return there;
  }

  size_t write(RecordClass record_class, std::span<const NewRecord> records) override {
    for (size_t i = 0; i < records.size(); ++i) {
      if (write_record(record_class, records[i])) continue;
      if (record_class == RecordClass::blocks) return i;
      throw_full("state");
    }
    return records.size();
  }

  void list(RecordClass record_class, const std::function<void(const RecordInfo&)>& each) override {
    const std::string front = shelf_key(record_class) + "{", end = "}:0";
    servers_.scan(front, end, [&](const std::vector<std::string>& keys) {
      std::vector<RedisCommand> commands;
      std::vector<Sha256> names;
      for (const std::string& key : keys) {
        const auto name = key.size() == front.size() + 64 + end.size()
                              ? hash_of_hex(key.substr(front.size(), 64))
                              : std::nullopt;
        if (!name) continue;
        names.push_back(*name);
        commands.push_back({{"GETRANGE", key, "0", std::to_string(kRecordFront - 1)}});
        commands.push_back(record_class == RecordClass::blocks
                               ? RedisCommand{{"TTL", key}}
                               : RedisCommand{{"GET", record_key(record_class, *name) + ":used"}});
      }
      const std::vector<RedisReply> replies = servers_.run(commands, patience_.write);
      for (size_t i = 0; i < names.size(); ++i) {
        const RedisReply& used = replies[2 * i + 1];
        const int64_t when = record_class == RecordClass::blocks
                                 ? now() - (ttl_ - integer_of(used))
                                 : std::atoll(std::string(string_of(used)).c_str());
        each({names[i], claimed_bytes(std::as_bytes(std::span(string_of(replies[2 * i])))), when});
      }
    });
  }

  bool remove(RecordClass record_class, const Sha256& name, int64_t unused_since) override {
    const bool block = record_class == RecordClass::blocks;
    const RedisCommand c = script(
        kRemove, record_class, name,
        {std::to_string(unused_since), block ? std::to_string(ttl_) : "", std::to_string(now())});
    return integer_of(servers_.one(c, patience_.write)) == 1;
  }

  std::vector<std::string> names() override {
    const std::string front = url_.prefix + ":n:";
    std::vector<std::string> found;
    servers_.scan(front, "", [&](const std::vector<std::string>& keys) {
      for (const std::string& key : keys) {
        if (is_store_name(key.substr(front.size()))) found.push_back(key.substr(front.size()));
      }
    });
    std::sort(found.begin(), found.end());
    found.erase(std::unique(found.begin(), found.end()), found.end());
    return found;
  }

  std::optional<std::vector<std::byte>> read_name(const std::string& name) override {
    const RedisReply r = servers_.one({{"GET", name_key(name)}}, patience_.write);
    if (r->type != REDIS_REPLY_STRING) return std::nullopt;
    const auto bytes = std::as_bytes(std::span(string_of(r)));
    return std::vector<std::byte>(bytes.begin(), bytes.end());
  }

  // If the answer to a first try was lost, the retry finds `next` and writes it again.
  bool replace_name(const std::string& name, const std::optional<std::vector<std::byte>>& expected,
                    const std::optional<std::vector<std::byte>>& next) override {
    RedisCommand c{{"EVAL", kReplace, "1", name_key(name), expected ? "1" : "0",
                    expected ? text_of(*expected) : "", next ? "1" : "0",
                    next ? text_of(*next) : ""}};
    c.key = 3;
    const RedisReply reply = std::move(servers_.run_acknowledged(name_key(name), {&c, 1})[0]);
    if (is_full(reply)) throw_full("name " + name);
    return integer_of(reply) == 1;
  }

  void lease(const std::string& holder, std::span<const Sha256> states, int64_t until) override {
    std::string text;
    for (const Sha256& id : states) text += hex_of_hash(id);
    const std::string seconds = std::to_string(std::max<int64_t>(1, until - now()));
    const RedisReply reply =
        servers_.one({{"SETEX", lease_key(holder), seconds, text}}, patience_.write);
    if (is_full(reply)) throw_full("lease");
  }

  void release(const std::string& holder) override {
    servers_.one({{"DEL", lease_key(holder)}}, patience_.read);
  }

  std::vector<Sha256> leased() override {
    std::vector<Sha256> states;
    servers_.scan(lease_key(""), "", [&](const std::vector<std::string>& keys) {
      std::vector<RedisCommand> commands;
      for (const std::string& key : keys) commands.push_back({{"GET", key}});
      for (const RedisReply& r : servers_.run(commands, patience_.write)) {
        const std::string text(string_of(r));
        for (size_t i = 0; i + 64 <= text.size(); i += 64) {
          if (const auto id = hash_of_hex(text.substr(i, 64))) states.push_back(*id);
        }
      }
    });
    return states;
  }

  void tidy(int64_t) override {}

  std::vector<std::pair<std::string, std::string>> about() override {
    return {{"store", url()},
            {"servers", std::to_string(servers_.masters(patience_.read).size())},
            {"replicated", servers_.is_replicated() ? "yes" : "no"},
            {"block_ttl", std::to_string(ttl_)}};
  }

 private:
  [[noreturn]] void throw_full(const std::string& field) const {
    throw Error(ErrorKind::io, url(), field, "", "the memory of the server is full (maxmemory)");
  }
  std::string store_key() const { return url_.prefix + ":store"; }
  std::string shelf_key(RecordClass record_class) const {
    return url_.prefix + (record_class == RecordClass::blocks ? ":b:" : ":s:");
  }
  std::string record_key(RecordClass record_class, const Sha256& name) const {
    return shelf_key(record_class) + "{" + hex_of_hash(name) + "}";
  }
  std::string chunk_key(RecordClass record_class, const Sha256& name, size_t chunk) const {
    return record_key(record_class, name) + ":" + std::to_string(chunk);
  }
  std::string name_key(const std::string& name) const { return url_.prefix + ":n:" + name; }
  std::string lease_key(const std::string& holder) const { return url_.prefix + ":l:" + holder; }

  RedisCommand touching(RecordClass record_class, const Sha256& name) {
    return script(kTouch, record_class, name,
                  {record_class == RecordClass::blocks ? std::to_string(ttl_) : "",
                   record_class == RecordClass::blocks ? "" : std::to_string(now()),
                   std::to_string(kRedisChunk)});
  }
  RedisCommand script(const char* text, RecordClass record_class, const Sha256& name,
                      const std::vector<std::string>& arguments) const {
    RedisCommand c{{"EVAL", text, "1", chunk_key(record_class, name, 0)}};
    c.key = 3;
    if (record_class == RecordClass::states) {
      c.words[2] = "2";
      c.words.push_back(record_key(record_class, name) + ":used");
    }
    c.words.insert(c.words.end(), arguments.begin(), arguments.end());
    return c;
  }

  void mark_used(RecordClass record_class, std::span<const Sha256> names,
                 const std::vector<bool>& found) {
    if (inspects()) return;
    try {
      std::vector<RedisCommand> commands;
      for (size_t i = 0; i < names.size(); ++i) {
        if (found[i]) commands.push_back(touching(record_class, names[i]));
      }
      servers_.run(commands, kMarkSeconds);
    } catch (const Error&) {
      // Marking as used may fail; the records read are valid anyway.
    }
  }

  // Receives records in place. The first chunk contains their number. Requests as many chunks as
  // the previous record had, and the missing ones in a second round. Each record is taken while the
  // server sends the next.
  void receive(RecordClass record_class, std::span<const Sha256> names,
               const std::atomic<bool>* stop, const TakeBlock& take) {
    std::atomic<size_t>& usual = usual_chunks_[record_class == RecordClass::blocks ? 0 : 1];
    std::vector<bool> found(names.size());
    std::vector<IncomingRecord> all;
    for (size_t i = 0; i < names.size(); ++i) {
      all.emplace_back(memory_, [&, i](std::optional<StoredBytes> record) {
        found[i] = record.has_value();
        if (record && !record->bytes.empty()) usual = chunks_of(record->bytes.size());
        take(i, std::move(record));
      });
    }
    const size_t asked = usual;
    std::vector<Chunk> chunks;
    for (size_t i = 0; i < names.size(); ++i) {
      for (size_t n = 0; n < asked; ++n)
        chunks.push_back({&all[i], chunk_key(record_class, names[i], n), n});
    }
    receive(chunks, stop);
    chunks.clear();
    for (size_t i = 0; i < names.size(); ++i) {
      for (size_t n = 0; n < all[i].chunks(); ++n) {
        if (all[i].is_missing(n))
          chunks.push_back({&all[i], chunk_key(record_class, names[i], n), n});
      }
    }
    receive(chunks, stop);
    for (IncomingRecord& record : all) record.end();
    mark_used(record_class, names, found);
  }

  struct Chunk {
    IncomingRecord* of;
    std::string key;
    size_t n;
  };
  void receive(std::span<const Chunk> chunks, const std::atomic<bool>* stop) {
    std::vector<RedisCommand> commands;
    for (const Chunk& c : chunks) {
      commands.push_back({{"GET", c.key}});
      commands.back().place = [&c](size_t size, auto head) { return c.of->place(c.n, size, head); };
      commands.back().placed = [&c] { c.of->set_received(c.n); };
    }
    const std::vector<RedisReply> replies = servers_.run(commands, patience_.read, stop);
    for (size_t i = 0; i < chunks.size(); ++i) {
      if (replies[i]->type == REDIS_REPLY_NIL) chunks[i].of->set_missing(chunks[i].n);
    }
  }

  // Writes a record's first chunk last, so that a killed writer leaves no record. Chunks of two
  // writers of one payload fit together, since only the front in the first chunk differs. Returns
  // false if the server is full.
  bool write_record(RecordClass record_class, const NewRecord& record) {
    std::vector<std::byte> edge(record.front.begin(), record.front.end());
    const size_t head = std::min(kRedisChunk - edge.size(), record.payload.size());
    edge.insert(edge.end(), record.payload.begin(),
                record.payload.begin() + static_cast<std::ptrdiff_t>(head));
    std::vector<RedisCommand> commands;
    for (size_t at = head, n = 1; at < record.payload.size(); at += kRedisChunk, ++n) {
      const size_t size = std::min(kRedisChunk, record.payload.size() - at);
      commands.push_back(setting(record_class, chunk_key(record_class, record.name, n),
                                 record.payload.subspan(at, size)));
    }
    const std::string first = chunk_key(record_class, record.name, 0);
    if (record_class == RecordClass::states)
      commands.push_back(
          {{"SET", record_key(record_class, record.name) + ":used", std::to_string(now())}});
    commands.push_back(setting(record_class, first, edge));
    const std::vector<RedisReply> replies = record_class == RecordClass::states
                                                ? servers_.run_acknowledged(first, commands)
                                                : servers_.run(commands, patience_.write);
    return std::ranges::none_of(replies, is_full);
  }

  RedisCommand setting(RecordClass record_class, const std::string& key,
                       std::span<const std::byte> value) const {
    RedisCommand c;
    c.words = record_class == RecordClass::blocks
                  ? std::vector<std::string>{"SETEX", key, std::to_string(ttl_)}
                  : std::vector<std::string>{"SET", key};
    c.last = value;
    c.with_last = true;
    return c;
  }

  const StoreUrl url_;
  const StoreTimeouts patience_;
  RedisConnections servers_;
  StoreClock clock_;
  std::mutex clock_mutex_;
  int64_t server_seconds_ = 0;  // time of its last answer; 0: never asked
  std::chrono::steady_clock::time_point asked_;
  int64_t ttl_ = kBlockTtl;
  BlockMemory memory_{kMostIdle};
  std::atomic<size_t> usual_chunks_[2] = {1, 1};  // chunks of the latest block and the latest state
};

}  // namespace

void create_redis_store(const StoreUrl& url) {
  RedisStore store(url, nullptr, {});
  store.check_server();
  store.create();
}

std::unique_ptr<StoreBackend> open_redis_store(const StoreUrl& url, StoreClock clock,
                                               StoreTimeouts patience) {
  auto store = std::make_unique<RedisStore>(url, std::move(clock), patience);
  store->check_server();
  store->open();
  return store;
}

}  // namespace stet

#else

namespace stet {

void create_redis_store(const StoreUrl&) {
  throw Error(ErrorKind::unsupported, "", "store", "",
              "redis:// is not available: this stet was built without hiredis; use dir:PATH");
}
std::unique_ptr<StoreBackend> open_redis_store(const StoreUrl& url, StoreClock, StoreTimeouts) {
  create_redis_store(url);
  return nullptr;
}

}  // namespace stet
#endif
