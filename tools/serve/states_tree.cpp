// Finds, names and removes states.
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <deque>

#include "stet/base/error.hpp"
#include "tools/serve/states.hpp"
#include "tools/serve/tree.hpp"

namespace stet::serve {

NodePtr States::find_here(const std::string& client, const std::string& id) {
  NodePtr node;
  bool stale = false;
  {
    const MutexLock lock(mutex_);
    node = living(id);
    if (node == nullptr || node->client != client) return nullptr;
    touch(*node);
    Node::Changing& c = at(*node);
    stale = c.files.described && options_.ttl > 0 && c.used_at - c.touched_at > options_.ttl / 10;
    if (stale) c.touched_at = c.used_at;
  }
  if (stale) directory_->touch(id, static_cast<int64_t>(std::time(nullptr)));
  return node;
}

// Returns a state that another server has made for this client. Only its owner knows the handle.
NodePtr States::find_shared(const std::string& client, const std::string& id) {
  if (options_.shared == nullptr || !id.starts_with("st_")) return nullptr;
  RestoreOptions how;
  how.session = session_;
  how.tokenizer = tokenizer_.get();
  std::optional<SharedState> found = options_.shared->get(client, id, model_, how);
  if (!found || id_of(client, digests_of(found->session).id, found->note.operation, 0) != id)
    return nullptr;
  Usage fetched;
  fetched.recomputed = found->restored.restored.recomputed;
  count(fetched);
  const NodePtr node = add(client, {found->note.parent}, std::move(found->note.operation),
                           std::move(found->session), Origin::computed, false, false);
  const MutexLock lock(mutex_);
  InStore& known = at(*node).in_store;
  known = std::max(known, InStore::found);
  return node;
}

NodePtr States::find(const std::string& client, const std::string& id, const std::string& pointer) {
  expire();
  if (NodePtr node = find_here(client, id)) {
    if (in_store(node) < InStore::found || !options_.shared->lacks(client, id)) return node;
    take_away(node, false);
  }
  if (NodePtr node = find_shared(client, id)) return node;
  const MutexLock lock(mutex_);
  refuse_unknown(client, id, pointer);
}

// Throws the error for a state that a client does not have, or no longer has.
void States::refuse_unknown(const std::string& client, const std::string& id,
                            const std::string& pointer) const {
  const auto forgotten = [&](const auto& ids) {
    const auto found = ids.find(id);
    return found != ids.end() && found->second == client;
  };
  const std::string place = pointer.empty() ? "" : pointer + ": ";
  if (forgotten(expired_) || forgotten(expired_before_))
    throw RequestError(
        404, "state_expired",
        fmt::format("{}the state {} has expired (--max-states, --ttl)", place, printable(id, 60)),
        pointer);
  throw RequestError(404, "no_such_state",
                     fmt::format("{}there is no state {} of this client", place, printable(id, 60)),
                     pointer);
}

std::vector<NodePtr> States::list(const std::string& client) {
  expire();
  std::vector<std::pair<uint64_t, NodePtr>> found;
  {
    const MutexLock lock(mutex_);
    for (Node* node : clients_[client].states)
      found.emplace_back(at(*node).serial, nodes_.at(node->id));
  }
  std::sort(found.begin(), found.end());
  std::vector<NodePtr> all;
  for (auto& [serial, node] : found) all.push_back(std::move(node));
  return all;
}

std::vector<States::InTree> States::conversations(const std::string& client) {
  const std::vector<NodePtr> nodes = list(client);
  std::vector<std::shared_ptr<const State>> recipes;
  std::vector<NodePtr> parents;
  {
    const MutexLock lock(mutex_);
    for (const NodePtr& node : nodes) {
      recipes.push_back(at(*node).recipe);
      parents.push_back(living(at(*node).parent));
    }
  }
  std::deque<std::vector<int32_t>>
      unshifted;  // transcripts from which a prune has shifted tokens out
  std::vector<TreeItem> items;
  for (size_t i = 0; i < nodes.size(); ++i) {
    std::span<const int32_t> transcript;
    if (const State* const state = recipes[i].get())
      transcript = shifted_out(state->prunes) > 0 ? unshifted.emplace_back(state->transcript())
                                                  : std::span<const int32_t>(state->tokens);
    items.push_back(
        {transcript, nodes[i]->id, parents[i] == nullptr ? std::string_view() : parents[i]->id});
  }
  const std::vector<size_t> under = conversation_tree(items);
  std::vector<InTree> all;
  for (size_t i = 0; i < nodes.size(); ++i) {
    const bool known = recipes[i] != nullptr;
    all.push_back({nodes[i], !known                  ? parents[i]
                             : under[i] == kTreeRoot ? nullptr
                                                     : nodes[under[i]]});
  }
  return all;
}

// Takes a node out of the tree and leaves its files. The caller holds its `io`. Its children become
// children of its parent; `children` gets those whose files name another one. Returns false if it
// is out already or a request has a claim.
bool States::withdraw(Node& node, bool unless_claimed, std::vector<NodePtr>& children) {
  constexpr size_t kMostParents = 100000;  // parents of removed states that are remembered
  std::optional<Session> session;          // freed after the lock
  const MutexLock lock(mutex_);
  Node::Changing& c = at(node);
  if (c.removed) return false;
  if (unless_claimed && (--c.claims > 0 || c.name || c.pinned)) return false;
  c.removed = true;
  ++changes_;
  session = take_out(node);
  Client& client = clients_[node.client];
  client.states.erase(&node);
  client.in_memory -= c.recipe != nullptr ? 1 : 0;
  children_[c.parent].erase(&node);
  if (parents_.size() >= kMostParents) parents_.clear();
  parents_[node.id] = c.parent;
  const auto of_it = children_.extract(node.id);
  for (Node* child : of_it.empty() ? std::unordered_set<Node*>() : of_it.mapped()) {
    at(*child).parent = c.parent;
    children_[c.parent].insert(child);
    if (at(*child).files.described) children.push_back(nodes_.at(child->id));
  }
  if (children_[c.parent].empty()) children_.erase(c.parent);
  if (!in_files()) nodes_.erase(node.id);
  return true;
}

// Removes a node and its files. First writes the new parent into its children's files, so that a
// crash loses no place in the tree.
bool States::take_away(const NodePtr& node, bool unless_claimed) {
  std::vector<NodePtr> children;
  {
    const std::lock_guard io(node->io_);
    if (!withdraw(*node, unless_claimed, children)) return false;
  }
  if (!in_files()) return true;
  for (const NodePtr& child : children) {
    const std::lock_guard io(child->io_);
    describe_in_file(*child);
  }
  const std::lock_guard io(node->io_);
  delete_files(node);
  return true;
}

InStore States::in_store(const NodePtr& node) const {
  const MutexLock lock(mutex_);
  return at(*node).in_store;
}

void States::remove(const NodePtr& node) {
  if (in_store(node) != InStore::no && !options_.shared->remove(node->client, node->id))
    throw RequestError(503, "store_unavailable",
                       fmt::format("the state {} is not deleted, because the store is unreachable: "
                                   "try again later",
                                   node->id));
  take_away(node, false);
}

void States::release(const NodePtr& node) {
  if (take_away(node, true) && in_store(node) == InStore::put)
    options_.shared->remove(node->client, node->id);
}

void States::change(const NodePtr& node, std::optional<std::optional<std::string>> name,
                    std::optional<bool> pinned) {
  const std::lock_guard io(node->io_);
  std::optional<std::string> name_before;
  bool pinned_before = false, described = false;
  {
    const MutexLock lock(mutex_);
    Node::Changing& c = at(*node);
    name_before = c.name;
    pinned_before = c.pinned;
    described = c.files.described && !c.removed;
    if (name) c.name = *name;
    if (pinned) c.pinned = *pinned;
    ++changes_;
    touch(*node);
  }
  if (!described) return;
  try {
    describe_in_file(*node);
  } catch (...) {
    const MutexLock lock(mutex_);
    at(*node).name = name_before;
    at(*node).pinned = pinned_before;
    throw;
  }
}

void States::verified(const NodePtr& node) {
  const std::lock_guard io(node->io_);
  {
    const MutexLock lock(mutex_);
    at(*node).origin = Origin::verified;
    ++changes_;
    if (!at(*node).files.described || at(*node).removed) return;
  }
  describe_in_file(*node);
}

Origin States::origin(const NodePtr& node) const {
  const MutexLock lock(mutex_);
  return at(*node).origin;
}

NodePtr States::parent_of(const NodePtr& node) const {
  const MutexLock lock(mutex_);
  return living(at(*node).parent);
}

}  // namespace stet::serve
