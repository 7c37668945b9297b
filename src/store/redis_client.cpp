#ifdef STET_HAVE_HIREDIS
#include "src/store/redis_client.hpp"

#include <fmt/format.h>
#include <sys/time.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstring>
#include <system_error>
#include <thread>
#include <utility>

#include "src/store/clock.hpp"
#include "src/store/redis_values.hpp"
#include "stet/base/error.hpp"

namespace stet {
namespace {

constexpr unsigned kSlots = 16384;
constexpr size_t kMostReplyBytes = size_t{64} << 20;  // unread bytes of one connection
constexpr int kMostElements = 1 << 20;
constexpr size_t kMostNodes = 4096;
constexpr size_t kPipelineBytes = size_t{16} << 20;  // bytes sent before reading replies
// Values requested before the first of them arrives. A server copies each one; a few stay in its
// caches and need no more memory from the system.
constexpr size_t kPipelineValues = 4;
constexpr auto kRetryAfter = std::chrono::milliseconds(50);

timeval timeout_until(double until) {
  const double left = std::max(0.001, until - seconds_now());
  return {static_cast<time_t>(left), static_cast<suseconds_t>((left - std::floor(left)) * 1e6)};
}

// Refuses arrays with too many elements, since hiredis would allocate them at once.
redisReplyObjectFunctions limited_functions(const redisReplyObjectFunctions& usual) {
  static void* (*create)(const redisReadTask*, int) = usual.createArray;
  redisReplyObjectFunctions limited = usual;
  limited.createArray = [](const redisReadTask* task, int elements) -> void* {
    return elements > kMostElements ? nullptr : create(task, elements);
  };
  return limited;
}

std::string_view text_of_reply(const redisReply* r) {
  const bool text = r != nullptr && (r->type == REDIS_REPLY_STRING ||
                                     r->type == REDIS_REPLY_STATUS || r->type == REDIS_REPLY_ERROR);
  return text ? std::string_view(r->str, static_cast<size_t>(r->len)) : std::string_view();
}

bool is_error(const redisReply* r, std::string_view front) {
  return r->type == REDIS_REPLY_ERROR && text_of_reply(r).starts_with(front);
}

void append_command(redisContext* c, const RedisCommand& command) {
  std::vector<const char*> words;
  std::vector<size_t> sizes;
  for (const std::string& word : command.words) {
    words.push_back(word.data());
    sizes.push_back(word.size());
  }
  if (command.with_last) {
    words.push_back(reinterpret_cast<const char*>(command.last.data()));
    sizes.push_back(command.last.size());
  }
  ::redisAppendCommandArgv(c, static_cast<int>(words.size()), words.data(), sizes.data());
}

bool send_all(redisContext* c, double until) {
  int sent = 0;
  while (sent == 0) {
    if (seconds_now() > until || ::redisBufferWrite(c, &sent) != REDIS_OK) return false;
  }
  return true;
}

// Returns the next reply, or null if the connection failed or the time is over.
RedisReply next_reply(redisContext* c, double until, const std::atomic<bool>* stop = nullptr) {
  if (!send_all(c, until)) return nullptr;
  for (void* reply = nullptr;;) {
    if (::redisGetReplyFromReader(c, &reply) != REDIS_OK) return nullptr;
    if (reply != nullptr) return RedisReply(static_cast<redisReply*>(reply));
    if (seconds_now() > until || c->reader->len - c->reader->pos > kMostReplyBytes) return nullptr;
    if (!wait_for_bytes(c->fd, until, stop)) return nullptr;
    ::redisSetTimeout(c, timeout_until(until));
    if (::redisBufferRead(c) != REDIS_OK) return nullptr;
  }
}

}  // namespace

unsigned redis_slot(const std::string& key) {
  std::string_view tag = key;
  const size_t open = key.find('{'),
               close = open == std::string::npos ? open : key.find('}', open + 1);
  if (close != std::string::npos && close > open + 1) tag = tag.substr(open + 1, close - open - 1);
  unsigned crc = 0;
  for (const char c : tag) {
    crc ^= static_cast<unsigned>(static_cast<unsigned char>(c)) << 8;
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 0x8000) != 0 ? crc << 1 ^ 0x1021 : crc << 1;
  }
  return (crc & 0xffff) % kSlots;
}

// A command with its reply, and its node if the slots do not determine it.
struct RedisClient::Pending {
  const RedisCommand* command;
  RedisReply reply;
  std::string node;
  bool asking = false;

  bool is_placed() const {
    return command->placed &&
           (reply->type == REDIS_REPLY_INTEGER || reply->type == REDIS_REPLY_STRING);
  }
};

void RedisClient::unreachable(const std::string& why) const {
  throw Error(ErrorKind::io, "redis://" + seed(), "", "", "no answer in time: " + printable(why));
}

RedisClient::Connection& RedisClient::connected(const std::string& node, double until) {
  Connection& c = connections_[node];
  if (c != nullptr) return c;
  const size_t colon = node.rfind(':');
  int port = 0;
  std::from_chars(node.data() + colon + 1, node.data() + node.size(), port);
  c.reset(::redisConnectWithTimeout(node.substr(0, colon).c_str(), port, timeout_until(until)));
  if (c == nullptr || c->err != 0) {
    fault_ = node + ": " + (c == nullptr ? "no memory" : c->errstr);
    c = nullptr;
    return c;
  }
  ::redisSetTimeout(c.get(), timeout_until(until));
  static redisReplyObjectFunctions limited = limited_functions(*c->reader->fn);
  c->reader->fn = &limited;
  if (url_.password.empty()) return c;
  RedisCommand login{{"AUTH"}};
  if (!url_.user.empty()) login.words.push_back(url_.user);
  login.words.push_back(url_.password);
  append_command(c.get(), login);
  const RedisReply reply = next_reply(c.get(), until);
  if (reply == nullptr || reply->type == REDIS_REPLY_ERROR) {
    fault_ = node + ": " +
             (reply == nullptr ? "no answer to AUTH" : std::string(text_of_reply(reply.get())));
    c = nullptr;
  }
  return c;
}

// Parses [[first, last, [host, port, ...], replicas ...] ...].
bool RedisClient::read_slots(const redisReply& slots) {
  if (slots.type != REDIS_REPLY_ARRAY || slots.elements == 0) return false;
  std::vector<std::string> nodes(kSlots), others;
  const auto node_at = [&](const redisReply* n) -> std::string {
    if (n->type != REDIS_REPLY_ARRAY || n->elements < 2 ||
        n->element[1]->type != REDIS_REPLY_INTEGER)
      return "";
    const std::string host(text_of_reply(n->element[0]));
    const long long port = n->element[1]->integer;
    if (port < 1 || port > 65535 || host.size() > 255) return "";
    return (host.empty() ? url_.host : host) + ":" + std::to_string(port);
  };
  for (size_t i = 0; i < slots.elements; ++i) {
    const redisReply* r = slots.element[i];
    if (r->type != REDIS_REPLY_ARRAY || r->elements < 3 ||
        r->element[0]->type != REDIS_REPLY_INTEGER || r->element[1]->type != REDIS_REPLY_INTEGER)
      return false;
    const long long first = r->element[0]->integer, last = r->element[1]->integer;
    if (first < 0 || last >= static_cast<long long>(kSlots) || first > last) return false;
    for (size_t n = 2; n < r->elements && others.size() < kMostNodes; ++n) {
      if (const std::string node = node_at(r->element[n]); !node.empty()) others.push_back(node);
    }
    const std::string master = node_at(r->element[2]);
    std::fill(nodes.begin() + first, nodes.begin() + last + 1, master);
  }
  slots_ = std::move(nodes);
  others_ = std::move(others);
  return true;
}

bool RedisClient::learn_from(const std::string& node, double until) {
  Connection& c = connected(node, std::min(until, seconds_now() + 1));
  if (c == nullptr) return false;
  append_command(c.get(), {{"CLUSTER", "SLOTS"}});
  const RedisReply reply = next_reply(c.get(), until);
  if (reply == nullptr) {
    c = nullptr;
    return false;
  }
  if (reply->type == REDIS_REPLY_ERROR) {
    known_ = is_error(reply.get(), "ERR");  // no cluster, or no such command
    if (!known_) fault_ = node + ": " + std::string(text_of_reply(reply.get()));
    return known_;
  }
  known_ = read_slots(*reply);
  return known_;
}

void RedisClient::learn_slots(double until) {
  std::vector<std::string> nodes = {seed()};
  nodes.insert(nodes.end(), others_.begin(), others_.end());
  for (const std::string& node : nodes) {
    if (seconds_now() < until && learn_from(node, until)) return;
  }
}

std::string RedisClient::node_of(const RedisCommand& command) const {
  if (!command.node.empty()) return command.node;
  if (slots_.empty() || command.key >= command.words.size()) return seed();
  const std::string& node = slots_[redis_slot(command.words[command.key])];
  return node.empty() ? seed() : node;
}

// Reads the reply to a command, straight to its place if hiredis has nothing buffered.
RedisReply RedisClient::answer(redisContext* c, RedisValues& values, const Pending& p, bool direct,
                               double until) {
  if (direct) return values.next(*p.command);
  RedisReply asked = p.asking ? next_reply(c, until, stop_) : nullptr;
  if (p.asking && asked == nullptr) return nullptr;
  RedisReply reply = next_reply(c, until, stop_);
  if (reply == nullptr || !p.command->place || reply->type != REDIS_REPLY_STRING) return reply;
  const auto bytes = std::as_bytes(std::span(reply->str, static_cast<size_t>(reply->len)));
  const auto to = p.command->place(bytes.size(), bytes.first(std::min(bytes.size(), kRedisHead)));
  if (to.size() == bytes.size()) std::copy(bytes.begin(), bytes.end(), to.begin());
  return reply;
}

// Sends some commands, or all if they are small, and returns how many. Failures show when replies
// are read.
size_t RedisClient::send(const std::string& node, std::span<Pending* const> pending, double until) {
  Connection& c = connected(node, until);
  if (c == nullptr) return 0;
  ::redisSetTimeout(c.get(), timeout_until(until));
  size_t count = 0, bytes = 0, values = 0;
  for (; count < pending.size() && (bytes < kPipelineBytes || count == 0); ++count) {
    values += pending[count]->command->place ? 1 : 0;
    if (values > kPipelineValues) break;
    if (pending[count]->asking) append_command(c.get(), {{"ASKING"}});
    append_command(c.get(), *pending[count]->command);
    bytes += pending[count]->command->last.size();
  }
  send_all(c.get(), until);
  return count;
}

// Reads the replies to the first `sent` commands. For each value placed, one more is requested.
// Returns how many were answered; 0 means that the connection failed.
size_t RedisClient::receive(const std::string& node, std::span<Pending* const> all, size_t sent,
                            double& until) {
  Connection& c = connections_[node];
  const bool direct =
      c->err == 0 && c->reader->pos == c->reader->len &&
      std::ranges::all_of(all, [](const Pending* p) { return p->command->place && !p->asking; });
  RedisValues values(c.get(), until, stop_);
  for (size_t i = 0; i < sent; ++i) {
    all[i]->reply = answer(c.get(), values, *all[i], direct, until);
    if (direct && all[i]->reply != nullptr && sent < all.size()) {
      append_command(c.get(), *all[sent++]->command);
      send_all(c.get(), until);
    }
    if (all[i]->reply != nullptr && (i + 1 < sent || values.is_done())) {
      if (all[i]->is_placed()) {
        all[i]->command->placed();
        until = std::max(until, seconds_now() + seconds_);
      }
      continue;
    }
    all[i]->reply = nullptr;
    fault_ = node + ": " + (c->err == 0 ? values.fault() : c->errstr);
    c = nullptr;
    known_ = false;
    ++failures_;
    return 0;
  }
  return sent;
}

// Sends to all nodes before reading the first reply. Commands without a reply must be sent again.
void RedisClient::exchange(std::map<std::string, std::vector<Pending*>>& by_node, double& until) {
  std::map<std::string, size_t> sent;
  for (auto& [node, pending] : by_node) sent[node] = send(node, pending, until);
  for (auto& [node, pending] : by_node) {
    std::span<Pending* const> left = pending;
    size_t count = sent[node];
    while (count > 0 && (count = receive(node, left, count, until)) > 0) {
      left = left.subspan(count);
      count = left.empty() ? 0 : send(node, left, until);
    }
  }
}

// Returns whether the reply asks to try again, there or at another node.
bool RedisClient::follow(Pending& p) {
  const redisReply* r = p.reply.get();
  if (r->type != REDIS_REPLY_ERROR) return false;
  const std::string text(text_of_reply(r));
  p.asking = text.starts_with("ASK ");
  if (p.asking || text.starts_with("MOVED ")) {
    const size_t at = text.rfind(' ');
    std::string node = text.substr(at + 1);
    if (node.starts_with(":")) node = url_.host + node;
    if (node.find(':') == std::string::npos || node.size() > 300) return false;
    p.node = node;
    known_ = known_ && p.asking;
  } else if (!text.starts_with("TRYAGAIN") && !text.starts_with("CLUSTERDOWN") &&
             !text.starts_with("LOADING") && !text.starts_with("READONLY") &&
             !text.starts_with("MASTERDOWN")) {
    return false;
  } else {
    known_ = false;
    std::this_thread::sleep_for(kRetryAfter);
  }
  fault_ = text;
  p.reply = nullptr;
  return true;
}

std::vector<RedisReply> RedisClient::run(std::span<const RedisCommand> commands, double seconds,
                                         const std::atomic<bool>* stop) {
  double until = seconds_now() + seconds;
  stop_ = stop;
  seconds_ = seconds;
  std::vector<Pending> all(commands.size());
  for (size_t i = 0; i < commands.size(); ++i) all[i].command = &commands[i];
  for (bool first = true;; first = false) {
    if (!known_) learn_slots(until);
    std::map<std::string, std::vector<Pending*>> by_node;
    for (Pending& p : all) {
      if (p.reply == nullptr)
        by_node[p.node.empty() ? node_of(*p.command) : std::exchange(p.node, "")].push_back(&p);
    }
    exchange(by_node, until);
    bool done = true;
    for (Pending& p : all) done = p.reply != nullptr && !follow(p) && done;
    if (done) break;
    if (seconds_now() > until || is_stopped()) unreachable(fault_.empty() ? "none" : fault_);
    if (!first) std::this_thread::sleep_for(kRetryAfter);
  }
  std::vector<RedisReply> replies;
  for (Pending& p : all) replies.push_back(std::move(p.reply));
  return replies;
}

RedisReply RedisClient::run(const RedisCommand& command, double seconds) {
  return std::move(run(std::span(&command, 1), seconds)[0]);
}

std::vector<std::string> RedisClient::masters(double seconds) {
  if (!known_) learn_slots(seconds_now() + seconds);
  if (!known_) unreachable(fault_);
  if (slots_.empty()) return {seed()};
  std::vector<std::string> all = slots_;
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  std::erase(all, "");
  return all;
}

std::optional<int64_t> RedisClient::wait(const std::string& key, double seconds) {
  const auto found = connections_.find(node_of_key(key));
  if (found == connections_.end() || found->second == nullptr) return std::nullopt;
  const std::string limit = std::to_string(static_cast<int64_t>(seconds * 1000));
  append_command(found->second.get(), {{"WAIT", "1", limit}});
  const RedisReply r = next_reply(found->second.get(), seconds_now() + seconds + 1);
  if (r != nullptr) return r->type == REDIS_REPLY_INTEGER ? r->integer : 0;
  found->second = nullptr;
  known_ = false;
  ++failures_;
  return std::nullopt;
}

}  // namespace stet
#endif
