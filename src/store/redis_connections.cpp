#ifdef STET_HAVE_HIREDIS
#include "src/store/redis_connections.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <optional>
#include <utility>

#include "stet/base/error.hpp"

namespace stet {
namespace {

constexpr int kMostRewrites = 5;  // retries after failed connections

// Returns the value of a line "NAME:VALUE" of INFO.
std::string info_field(std::string_view info, const std::string& name) {
  const size_t at = info.find("\n" + name + ":");
  if (at == std::string_view::npos) return "";
  const size_t from = at + name.size() + 2;
  return std::string(info.substr(from, info.find('\r', from) - from));
}

// Returns the pattern of SCAN that matches this text alone.
std::string literal_pattern(const std::string& text) {
  std::string pattern;
  for (const char c : text) {
    if (std::string_view("*?[]\\").find(c) != std::string_view::npos) pattern += '\\';
    pattern += c;
  }
  return pattern;
}

}  // namespace

std::string_view string_of(const RedisReply& r) {
  return r->type == REDIS_REPLY_STRING || r->type == REDIS_REPLY_STATUS ||
                 r->type == REDIS_REPLY_ERROR
             ? std::string_view(r->str, static_cast<size_t>(r->len))
             : std::string_view();
}

int64_t integer_of(const RedisReply& r) { return r->type == REDIS_REPLY_INTEGER ? r->integer : 0; }

bool is_full(const RedisReply& r) {
  return r->type == REDIS_REPLY_ERROR &&
         (string_of(r).starts_with("OOM") || string_of(r).starts_with("MISCONF") ||
          string_of(r).find("-OOM") != std::string_view::npos);
}

RedisConnections::RedisConnections(const StoreUrl& url, StoreTimeouts patience)
    : url_(url),
      patience_(patience),
      text_(fmt::format("redis://{}:{}/{}", url.host, url.port, url.prefix)) {}

void RedisConnections::check() {
  with_client([&](RedisClient& client) {
    for (const std::string& node : client.masters(patience_.read)) {
      RedisCommand ask{{"INFO", "memory"}};
      ask.node = node;
      const RedisReply reply = checked(client.run(ask, patience_.read));
      check_policy(node, string_of(reply));
      ask.words[1] = "replication";
      const RedisReply replicas = checked(client.run(ask, patience_.read));
      replicated_ =
          replicated_ || std::atoi(info_field(string_of(replicas), "connected_slaves").c_str()) > 0;
    }
  });
}

std::vector<std::string> RedisConnections::masters(double seconds) {
  std::vector<std::string> nodes;
  with_client([&](RedisClient& c) { nodes = c.masters(seconds); });
  return nodes;
}

// Lends an idle client to `work`. A client that failed is discarded.
void RedisConnections::with_client(const std::function<void(RedisClient&)>& work) {
  std::unique_ptr<RedisClient> client;
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      client = std::move(idle_.back());
      idle_.pop_back();
    }
  }
  if (client == nullptr) client = std::make_unique<RedisClient>(url_);
  work(*client);
  const std::lock_guard lock(mutex_);
  idle_.push_back(std::move(client));
}

// Throws for errors of the server, except those that callers handle: full memory, and a key with a
// value that no store wrote.
RedisReply RedisConnections::checked(RedisReply reply) const {
  if (reply->type == REDIS_REPLY_ERROR && !is_full(reply) &&
      string_of(reply).find("WRONGTYPE") == std::string_view::npos)
    throw Error(ErrorKind::io, text_, "", "",
                "the server refused a command: " + printable(std::string(string_of(reply))));
  return reply;
}

std::vector<RedisReply> RedisConnections::run(std::span<const RedisCommand> commands,
                                              double seconds, const std::atomic<bool>* stop) {
  std::vector<RedisReply> replies;
  if (commands.empty()) return replies;
  with_client([&](RedisClient& client) { replies = client.run(commands, seconds, stop); });
  for (RedisReply& r : replies) r = checked(std::move(r));
  return replies;
}

RedisReply RedisConnections::one(const RedisCommand& command, double seconds) {
  return std::move(run({&command, 1}, seconds)[0]);
}

void RedisConnections::check_policy(const std::string& node, std::string_view info) const {
  const std::string limit = info_field(info, "maxmemory"),
                    policy = info_field(info, "maxmemory_policy");
  if (limit.empty() || limit == "0" || policy.starts_with("volatile-")) return;
  throw Error(ErrorKind::unsupported, text_, node + " maxmemory-policy",
              "volatile-lru or another volatile one: it evicts blocks, which can be computed again",
              printable(policy) + (policy == "noeviction"
                                       ? ", under which states cannot be stored once it is full"
                                       : ", which would evict states and names"));
}

std::vector<RedisReply> RedisConnections::run_acknowledged(const std::string& key,
                                                           std::span<const RedisCommand> commands) {
  std::vector<RedisReply> replies;
  for (int tries = 0; tries < kMostRewrites; ++tries) {
    bool held = false;
    with_client([&](RedisClient& client) {
      const uint64_t before = client.failures();
      replies = client.run(commands, patience_.write);
      held = client.failures() == before && (!replicated_ || is_held(client, key));
    });
    if (!held) continue;
    for (RedisReply& r : replies) r = checked(std::move(r));
    return replies;
  }
  throw Error(ErrorKind::io, text_, "", "", "every connection was lost during the write");
}

bool RedisConnections::is_held(RedisClient& client, const std::string& key) const {
  RedisCommand ask{{"INFO", "replication"}};
  ask.node = client.node_of_key(key);
  const uint64_t before = client.failures();
  const RedisReply info = client.run(ask, patience_.read);
  if (client.failures() != before) return false;
  const bool alone = std::atoi(info_field(string_of(info), "connected_slaves").c_str()) == 0;
  // The field exists if the server requires replicas for writing. A replica lost after the write
  // must then be waited for.
  if (alone && info_field(string_of(info), "min_slaves_good_slaves").empty()) return true;
  const std::optional<int64_t> replicas = client.wait(key, patience_.read);
  if (!replicas || *replicas >= 1) return replicas.has_value();
  throw Error(ErrorKind::io, text_, "replicas", "", "no replica confirmed the write in time");
}

void RedisConnections::scan(const std::string& front, const std::string& end,
                            const std::function<void(const std::vector<std::string>&)>& each) {
  const std::string pattern = literal_pattern(front) + "*" + literal_pattern(end);
  for (const std::string& node : masters(patience_.write)) {
    std::string cursor = "0";
    do {
      RedisCommand c{{"SCAN", cursor, "MATCH", pattern, "COUNT", "1000"}};
      c.node = node;
      const RedisReply r = one(c, patience_.write);
      if (r->type != REDIS_REPLY_ARRAY || r->elements != 2 ||
          r->element[0]->type != REDIS_REPLY_STRING || r->element[1]->type != REDIS_REPLY_ARRAY)
        throw Error(ErrorKind::format, text_, "SCAN", "a cursor and keys", "another answer");
      cursor.assign(r->element[0]->str, static_cast<size_t>(r->element[0]->len));
      std::vector<std::string> keys;
      for (size_t i = 0; i < r->element[1]->elements; ++i) {
        const redisReply* key = r->element[1]->element[i];
        if (key->type == REDIS_REPLY_STRING)
          keys.emplace_back(key->str, static_cast<size_t>(key->len));
      }
      each(keys);
    } while (cursor != "0");
  }
}

}  // namespace stet
#endif
