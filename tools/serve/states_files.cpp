// States in files: descriptions, tokens, and keys and values as deltas of one another.
#include <algorithm>
#include <ctime>

#include "stet/base/error.hpp"
#include "tools/serve/states.hpp"

namespace stet::serve {

bool States::is_removed(const Node& node) const {
  const MutexLock lock(mutex_);
  return at(node).removed;
}

// Writes the description of a state. The caller holds the node's `io`, as for every function that
// writes or removes its files. `pending`: the described file does not exist yet.
void States::describe_in_file(Node& node, bool pending) {
  // A parent that is removed meanwhile has the state described again only if it was described.
  while (!describe_once(node, pending)) {
  }
}

// Returns false if the state got another parent meanwhile.
bool States::describe_once(Node& node, bool pending) {
  const bool in_the_way = directory_->has(node.id, ".stet");
  Json meta;
  std::string parent;
  int64_t used_at = 0;
  {
    const MutexLock lock(mutex_);
    Node::Changing& c = at(node);
    if (c.removed) return true;
    parent = c.parent;
    const bool first = !c.files.described && !c.files.deleted;
    if (first && in_the_way && !c.files.blocks) c.files.foreign = true;
    used_at = c.used_at;
    meta = {{"id", node.id},           {"client", node.client},
            {"parent", c.parent},      {"operation", node.operation},
            {"created", node.created}, {"name", c.name ? Json(*c.name) : Json(nullptr)},
            {"pinned", c.pinned},      {"origin", origin_name(c.origin)},
            {"excerpt", node.excerpt}};
    if (pending) meta["pending"] = true;
    if (c.files.foreign) meta["strange"] = true;
  }
  directory_->write(node.id, ".json", tool::dump(meta));
  bool gone = false, same = false;
  {
    const MutexLock lock(mutex_);
    Node::Changing& c = at(node);
    same = c.removed || c.parent == parent;
    c.files.described = true;
    gone = std::exchange(c.files.deleted, false);
    c.touched_at = used_at;
  }
  directory_->touch(node.id, used_at);
  if (gone) directory_->remove(node.id, ".gone");
  return same;
}

// Writes the tokens and settings of a state.
void States::save_recipe(Node& node, Session& session) {
  if (is_removed(node)) return;
  SaveOptions options;
  options.form = SnapshotForm::recipe;
  options.tokenizer = tokenizer_.get();
  options.threads = 1;  // the others are for computation
  Snapshot::save(session, directory_->place_of(node.id, ".recipe"), options);
  {
    const MutexLock lock(mutex_);
    at(node).files.recipe = true;
    if (at(node).files.described) return;
  }
  describe_in_file(node);
}

std::string random_name() {
  const std::string secret = random_secret();
  return sha256_text(sha256_of(std::as_bytes(std::span(secret)))).substr(7, 32);
}

// Returns the base for a delta: the state of this client, with keys and values in a file, that
// shares most tokens. Returns null if none shares a whole block.
NodePtr States::base_for(const Node& node) const {
  constexpr int kDeepest = 8;
  const auto client = clients_.find(node.client);
  if (client == clients_.end() || at(node).recipe == nullptr) return nullptr;
  const std::vector<int32_t>& tokens = at(node).recipe->tokens;
  const Node* best = nullptr;
  size_t most = static_cast<size_t>(kBlockPositions) - 1;
  for (const Node* other : client->second.states) {
    const Node::Changing& c = at(*other);
    const bool may = other != &node && c.recipe != nullptr && c.files.blocks &&
                     c.files.depth < kDeepest && other->kv_type == node.kv_type;
    if (!may) continue;
    const size_t n = common_prefix(c.recipe->tokens, tokens);
    if (n < most || (n == most && (best == nullptr || c.serial > at(*best).serial))) continue;
    best = other;
    most = n;
  }
  return best == nullptr ? nullptr : nodes_.at(best->id);
}

// Writes the keys and values of a state, unless a file has them. Its description and tokens must be
// written first.
void States::save_blocks(Node& node, Session& session) {
  Node::Files files;
  {
    const MutexLock lock(mutex_);
    files = at(node).files;
    if (at(node).removed) return;
  }
  if (files.blocks) {
    if (!files.described) describe_in_file(node);
    return;
  }
  if (node.given && !directory_->has(node.id, ".recipe")) save_recipe(node, session);
  const bool first = !files.described && !node.given;
  if (first) describe_in_file(node, true);
  {
    const MutexLock lock(mutex_);
    files = at(node).files;
  }
  if (files.foreign)
    throw Error(ErrorKind::io, directory_->file(node.id, ".stet"), "",
                "a file that this server has written", "another one, which is in the way");
  write_blocks(node, session);
  if (first) describe_in_file(node);
}

// Writes a delta if there is a base with a sound file, else a full snapshot.
void States::write_blocks(Node& node, Session& session) {
  const std::string path = directory_->place_of(node.id, ".stet");
  SaveOptions options;
  options.tokenizer = tokenizer_.get();
  options.threads = 1;  // the others are for computation
  NodePtr base;
  {
    const MutexLock lock(mutex_);
    base = base_for(node);
    if (base != nullptr) ++needed_[base->id];
  }
  if (base != nullptr) {
    try {
      const Snapshot parent = Snapshot::open(directory_->file(base->id, ".stet"));
      options.form = SnapshotForm::delta;
      options.parent = &parent;
      Snapshot::save(session, path, options);
    } catch (const std::exception&) {
      release_base(base->id);
      base = nullptr;
    }
  }
  if (base == nullptr) {
    options.form = SnapshotForm::full;
    options.parent = nullptr;
    Snapshot::save(session, path, options);
  }
  const MutexLock lock(mutex_);
  Node::Files& files = at(node).files;
  files.blocks = options.form;
  files.base = base == nullptr ? "" : base->id;
  files.depth = base == nullptr ? 0 : at(*base).files.depth + 1;
}

// Writes a new state if the server is durable. Always replaces the description of a removed state
// of the same id.
void States::keep(Node& node, Session& session) {
  if (!in_files()) return;
  bool stale = false, whole = false;
  {
    const MutexLock lock(mutex_);
    stale = at(node).files.described;
    whole = !node.given || at(node).origin == Origin::uploaded;
  }
  if (options_.durable) whole ? save_blocks(node, session) : save_recipe(node, session);
  if (stale) describe_in_file(node);
}

// Records that one delta less needs the file of this state. Removes the file if the state was
// removed and no other delta needs it.
void States::release_base(const std::string& id) {
  NodePtr gone;
  {
    const MutexLock lock(mutex_);
    const auto needed = needed_.find(id);
    if (needed == needed_.end() || --needed->second > 0) return;
    needed_.erase(needed);
    const auto found = nodes_.find(id);
    if (found == nodes_.end() || !at(*found->second).files.deleted) return;
    gone = found->second;
  }
  const std::lock_guard io(gone->io_);
  delete_files(gone);
}

// Records that the file of keys and values is lost or damaged. It is written again when the state
// is evicted or the server ends.
void States::discard_blocks(Node& node) {
  std::string base;
  {
    const MutexLock lock(mutex_);
    Node::Files& files = at(node).files;
    files.blocks.reset();
    files.depth = 0;
    base = std::exchange(files.base, "");
  }
  if (!base.empty()) release_base(base);
}

// Removes the files of a removed state. The caller holds its `io`. Keys and values stay while a
// delta needs them.
void States::delete_files(const NodePtr& node) {
  const std::string& id = node->id;
  Node::Files files;
  {
    const MutexLock lock(mutex_);
    const auto found = nodes_.find(id);
    if (found == nodes_.end() || found->second != node || !at(*node).removed) return;
    files = at(*node).files;
  }
  if (files.described) directory_->rename(id, ".json", ".gone");  // this commits the deletion
  if (files.recipe) directory_->remove(id, ".recipe");
  bool needed = false;
  {
    const MutexLock lock(mutex_);
    Node::Changing& c = at(*node);
    c.files.deleted = files.deleted || files.described;
    c.files.described = c.files.recipe = false;
    needed = files.blocks && needed_.contains(id);
    if (needed) c.recipe = nullptr;
  }
  if (!needed) {
    if (!files.foreign && (files.described || files.deleted)) directory_->remove(id, ".stet");
    directory_->remove(id, ".gone");
    const MutexLock lock(mutex_);
    nodes_.erase(id);
  }
  if (files.described || files.deleted || files.recipe || files.blocks) directory_->sync();
  if (!needed && !files.base.empty()) release_base(files.base);
}

// ---------------------------------------------------------------- at the end of the server

std::optional<Session> States::resident(const Node& node) const {
  const MutexLock lock(mutex_);
  if (!at(node).session) return std::nullopt;
  return at(node).session->fork();
}

// Returns true if a file of its keys and values exists. Does not read it.
bool States::has_blocks(const Node& node) const {
  {
    const MutexLock lock(mutex_);
    if (!at(node).files.blocks) return false;
  }
  return directory_->has(node.id, ".stet");
}

// Writes a state that cannot be computed again, with keys and values. Returns false if that failed.
bool States::save_truth(Node& node) {
  if (is_removed(node) || has_blocks(node)) return true;
  std::optional<Session> session = resident(node);
  if (!session) return false;
  discard_blocks(node);
  save_blocks(node, *session);
  return true;
}

// Writes the tokens of a state that can be computed from them.
bool States::save_tokens(Node& node) {
  {
    const MutexLock lock(mutex_);
    if (at(node).removed) return true;
    // An older version kept them in the file of keys and values.
    if (at(node).files.recipe && directory_->has(node.id, ".stet")) return true;
  }
  if (directory_->has(node.id, ".recipe")) return true;
  std::optional<Session> session = resident(node);
  if (!session && has_blocks(node)) return true;
  Usage cost;
  if (!session) session.emplace(computed_again(node, nullptr, cost));
  save_recipe(node, *session);
  return true;
}

size_t States::save_all(double until) {
  if (!in_files()) return 0;
  std::vector<std::pair<uint64_t, NodePtr>> used;
  std::vector<NodePtr> truths, given;
  {
    const MutexLock lock(mutex_);
    for (const auto& [id, node] : nodes_) {
      if (!at(*node).removed && at(*node).lost.empty()) used.emplace_back(at(*node).used, node);
    }
    std::sort(used.rbegin(), used.rend());
    for (const auto& [when, node] : used)
      (node->given && at(*node).origin != Origin::uploaded ? given : truths).push_back(node);
  }
  size_t lost = 0;
  const auto attempt = [&](Node& node, bool (States::*save)(Node&)) {
    try {
      if ((this->*save)(node)) return true;
      tool::say("{}: lost: its file is gone\n", node.id);
    } catch (const std::exception& e) {
      tool::say("{}: not saved: {}\n", node.id, printable(e.what(), 3000));
    }
    return false;
  };
  for (const NodePtr& node : truths) {
    const std::lock_guard io(node->io_);
    const bool saved = attempt(*node, &States::save_truth) ||
                       (node->given && attempt(*node, &States::save_tokens));
    lost += saved ? 0 : 1;
  }
  for (const NodePtr& node : given) {
    const std::lock_guard io(node->io_);
    lost += attempt(*node, &States::save_tokens) ? 0 : 1;
  }
  save_all_blocks(given, until);
  return lost;
}

// Writes keys and values of states whose tokens are in files, the most recently used first. Sets
// the times of files to the last use of each state.
void States::save_all_blocks(const std::vector<NodePtr>& all, double until) {
  size_t late = 0;
  for (const NodePtr& node : all) {
    const std::lock_guard io(node->io_);
    std::optional<Session> session = resident(*node);
    if (session && !has_blocks(*node)) {
      discard_blocks(*node);
      if (tool::seconds() > until) {
        ++late;
        continue;
      }
      try {
        save_blocks(*node, *session);
      } catch (const std::exception& e) {
        tool::say("{}: kept as its tokens: {}\n", node->id, printable(e.what(), 3000));
      }
    }
    int64_t used_at = 0;
    {
      const MutexLock lock(mutex_);
      used_at = at(*node).used_at;
    }
    directory_->touch(node->id, used_at);
  }
  if (late > 0)
    tool::say("{} states are kept as their tokens: no time was left for their keys and values\n",
              late);
}

}  // namespace stet::serve
