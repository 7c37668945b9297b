// Deletes states beyond --max-states and those older than --ttl. Without these options, states in a
// directory are never deleted.
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <tuple>

#include "stet/base/error.hpp"
#include "tools/serve/states.hpp"

namespace stet::serve {
namespace {

constexpr size_t kMostForgotten = 50000;  // expired ids in each of two generations

}  // namespace

std::optional<size_t> States::most_states() const {
  if (options_.max_states) return options_.max_states;
  return in_files() ? std::nullopt : std::optional(options_.in_memory);
}

// Returns the states of a client in the order in which they may be deleted. Pinned ones are left
// out, and named ones come last. States with children come before leaves, since children have their
// tokens. Among equals, the least recently used comes first.
std::vector<NodePtr> States::deletable(const std::string& client, const Node* keep) {
  std::vector<std::tuple<bool, bool, uint64_t, NodePtr>> all;
  for (Node* node : clients_[client].states) {
    const Node::Changing& c = at(*node);
    if (node == keep || c.pinned) continue;
    all.emplace_back(c.name.has_value(), !children_.contains(node->id), c.used,
                     nodes_.at(node->id));
  }
  std::sort(all.begin(), all.end());
  std::vector<NodePtr> nodes;
  for (auto& [named, leaf, used, node] : all) nodes.push_back(std::move(node));
  return nodes;
}

// Returns the states of a client to delete, if it has too many. It returns a few more than
// necessary, so that not every new state has to search all others.
std::vector<NodePtr> States::surplus(const std::string& client, const Node* keep) {
  const std::optional<size_t> most = most_states();
  const size_t now = clients_[client].states.size();
  if (!most || now <= *most) return {};
  std::vector<NodePtr> nodes = deletable(client, keep);
  nodes.resize(std::min(nodes.size(), now - *most + *most / 64));
  return nodes;
}

// Throws if there is no room for a new state because all others are pinned.
void States::check_count(const std::string& client) {
  const std::optional<size_t> most = most_states();
  if (!most || clients_[client].states.size() < *most || !deletable(client, nullptr).empty())
    return;
  throw RequestError(
      429, "too_many_states",
      fmt::format("all {} states of this client are pinned: unpin or delete some", *most));
}

void States::check_room(const std::string& client) {
  const MutexLock lock(mutex_);
  check_count(client);
}

// Removes states and records their ids as expired. Logs a state whose files cannot be removed: it
// is there again after a restart.
void States::remove_expired(const std::vector<NodePtr>& nodes) {
  for (const NodePtr& node : nodes) {
    try {
      {
        const MutexLock lock(mutex_);
        if (at(*node).removed || at(*node).pinned) continue;
        if (expired_.size() >= kMostForgotten) expired_before_ = std::exchange(expired_, {});
        expired_[node->id] = node->client;
      }
      if (in_files()) directory_->add_expired(node->id + " " + node->client);
      take_away(node, false);
    } catch (const std::exception& e) {
      tool::say("{}: not removed: {}\n", node->id, printable(e.what(), 3000));
    }
  }
}

void States::expire() {
  if (options_.ttl == 0) return;
  const auto now = static_cast<int64_t>(std::time(nullptr));
  std::vector<NodePtr> old;
  {
    const MutexLock lock(mutex_);
    if (now < next_expiry_) return;
    next_expiry_ = now + options_.ttl;
    for (const auto& [id, node] : nodes_) {
      const Node::Changing& c = at(*node);
      if (c.removed || c.pinned) continue;
      if (now - c.used_at > options_.ttl)
        old.push_back(node);
      else
        next_expiry_ = std::min(next_expiry_, c.used_at + options_.ttl + 1);
    }
  }
  remove_expired(old);
}

}  // namespace stet::serve
