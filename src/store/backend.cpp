#include "stet/store/backend.hpp"

#include <cctype>
#include <charconv>
#include <utility>

#include "src/store/directory.hpp"
#include "src/store/redis.hpp"
#include "src/store/text.hpp"
#include "stet/base/error.hpp"

namespace stet {
namespace {

// Removes from `text` everything up to and including the first `mark`, and returns the text before
// the mark. Without a mark, returns and removes all of the text.
std::string cut_before(std::string& text, char mark) {
  const size_t at = text.find(mark);
  const std::string front = text.substr(0, at);
  text = at == std::string::npos ? "" : text.substr(at + 1);
  return front;
}

// Returns true for "redis:" and "rediss:" in any case. With a typing error behind it, such a URL
// may hold a password and must not pass for a directory.
bool is_redis_scheme(const std::string& url) {
  std::string scheme = url.substr(0, url.find(':'));
  for (char& c : scheme) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return scheme.size() < url.size() && (scheme == "redis" || scheme == "rediss");
}

}  // namespace

StoreBackend::~StoreBackend() = default;

void StoreBackend::read_blocks(std::span<const Sha256> names, const std::atomic<bool>&,
                               const TakeBlock& take) {
  std::vector<std::optional<StoredBytes>> found = read(RecordClass::blocks, names);
  for (size_t i = 0; i < found.size(); ++i) take(i, std::move(found[i]));
}

StoreUrl parse_store_url(const std::string& url) {
  StoreUrl u;
  const auto fail = [](const std::string& expected, const std::string& found) {
    throw Error(ErrorKind::argument, "", "store", expected, printable(without_login(found), 100));
  };
  if (url.empty()) fail("dir:PATH or redis://HOST[:PORT][/PREFIX]", "nothing");
  if (!url.starts_with("redis://")) {
    u.path = url.starts_with("dir:") ? url.substr(4) : url;
    if (u.path.empty() || u.path.find("://") != std::string::npos || is_redis_scheme(url))
      fail("dir:PATH or redis://HOST[:PORT][/PREFIX]", url);
    return u;
  }
  u.kind = StoreUrl::Kind::redis;
  std::string rest = url.substr(8), host = cut_before(rest, '/');
  u.prefix = rest.empty() ? "stet" : rest;
  if (const size_t at = host.rfind('@'); at != std::string::npos) {
    std::string login = host.substr(0, at);
    host = host.substr(at + 1);
    u.user = cut_before(login, ':');
    u.password = login;
  }
  u.host = cut_before(host, ':');
  if (u.host.empty()) fail("redis://HOST[:PORT][/PREFIX]", "no host");
  if (host.empty()) return u;
  const auto [end, error] = std::from_chars(host.data(), host.data() + host.size(), u.port);
  if (error != std::errc() || end != host.data() + host.size() || u.port < 1 || u.port > 65535)
    fail("a port in 1..65535", rest.find('@') == std::string::npos ? host : url);  // not a password
  return u;
}

void create_store(const std::string& url, uint64_t budget) {
  const StoreUrl u = parse_store_url(url);
  if (u.kind == StoreUrl::Kind::directory) return create_directory_store(u.path, budget);
  if (budget > 0)
    throw Error(ErrorKind::argument, without_login(url), "budget", "",
                "a server has a budget of its own (maxmemory)");
  create_redis_store(u);
}

std::unique_ptr<StoreBackend> open_store_backend(const std::string& url, StoreClock clock,
                                                 StoreTimeouts patience) {
  const StoreUrl u = parse_store_url(url);
  if (u.kind == StoreUrl::Kind::directory) return open_directory_store(u.path, std::move(clock));
  return open_redis_store(u, std::move(clock), patience);
}

}  // namespace stet
