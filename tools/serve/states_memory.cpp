// Decides which states are in memory: evicts them to files, and restores them on use.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "stet/base/error.hpp"
#include "tools/serve/states.hpp"

namespace stet::serve {

uint64_t States::block_bytes() const {
  const ModelConfig& c = model_->config();
  return detail::kv_shape(c, session_.kv_type).block_bytes();
}

namespace {

using ArraySet = std::unordered_set<const RecurrentBuffer*>;

// Returns the recurrent arrays of a session and of its anchors.
ArraySet arrays_of(const Session& session) {
  ArraySet all;
  if (session.recurrent().empty()) return all;
  all.insert(session.recurrent().share().get());
  for (const auto& anchor : session.anchors().all()) all.insert(anchor->arrays.get());
  return all;
}

}  // namespace

uint64_t States::memory_of(const Session& session) const {
  return static_cast<uint64_t>(session.kv().blocks()) * session.kv().shape().block_bytes() +
         arrays_of(session).size() * recurrent_shape(model_->config()).bytes();
}

uint64_t States::shared_with(const std::string& parent, const Session& session) const {
  const NodePtr from = living(parent);
  if (from == nullptr || !at(*from).session) return 0;
  const Session& other = *at(*from).session;
  std::unordered_set<const void*> theirs;
  for (int64_t b = 0; b < other.kv().blocks(); ++b) theirs.insert(&other.kv().block_info(b));
  for (const RecurrentBuffer* arrays : arrays_of(other)) theirs.insert(arrays);
  const KvCache& kv = session.kv();
  uint64_t shared = 0;
  for (int64_t b = 0; b < kv.blocks(); ++b)
    shared += theirs.contains(&kv.block_info(b)) ? kv.shape().block_bytes() : 0;
  for (const RecurrentBuffer* arrays : arrays_of(session))
    shared += theirs.contains(arrays) ? recurrent_shape(model_->config()).bytes() : 0;
  return shared;
}

void States::hold(const Session& session) {
  const KvCache& kv = session.kv();
  for (int64_t b = 0; b < kv.blocks(); ++b) ++blocks_[&kv.block_info(b)];
  for (const RecurrentBuffer* arrays : arrays_of(session)) ++arrays_[arrays];
}

void States::release_blocks(const Session& session) {
  const KvCache& kv = session.kv();
  for (int64_t b = 0; b < kv.blocks(); ++b) {
    const auto found = blocks_.find(&kv.block_info(b));
    if (--found->second == 0) blocks_.erase(found);
  }
  for (const RecurrentBuffer* arrays : arrays_of(session)) {
    const auto found = arrays_.find(arrays);
    if (--found->second == 0) arrays_.erase(found);
  }
}

uint64_t States::bytes_held() const {
  return blocks_.size() * block_bytes() +
         arrays_.size() * recurrent_shape(model_->config()).bytes();
}

void States::put_in(Node& node, Session session) {
  std::optional<Session>& place = at(node).session;
  if (place) release_blocks(*place);
  place.emplace(std::move(session));
  hold(*place);
  resident_.insert(&node);
}

std::optional<Session> States::take_out(Node& node) {
  std::optional<Session>& place = at(node).session;
  if (!place) return std::nullopt;
  release_blocks(*place);
  resident_.erase(&node);
  return std::exchange(place, std::nullopt);
}

uint64_t States::memory_used() const {
  const MutexLock lock(mutex_);
  return bytes_held();
}

// Evicts the least recently used states until the rest is within the budget. States being read or
// written stay, and so do those that neither tokens nor a file would give again.
std::vector<States::Eviction> States::make_room(const Node* keep) {
  std::vector<Eviction> leaving;
  if (bytes_held() <= options_.memory) return leaving;
  std::vector<std::pair<uint64_t, Node*>> idle;
  for (Node* node : resident_) {
    if (node == keep) continue;
    if (in_files() || node->given) idle.emplace_back(at(*node).used, node);
  }
  std::sort(idle.begin(), idle.end());
  for (const auto& [used, node] : idle) {
    if (bytes_held() <= options_.memory) break;
    std::unique_lock io(node->io_, std::try_to_lock);
    if (!io.owns_lock()) continue;
    leaving.push_back({nodes_.at(node->id), std::move(io), take_out(*node), false});
    ++evictions_;
  }
  return leaving;
}

// Chooses states whose tokens are evicted, if a client has too many in memory. With a directory,
// the tokens are in files.
void States::evict_tokens(const std::string& client, const Node* keep,
                          std::vector<Eviction>& leaving) {
  const size_t most = options_.in_memory, now = clients_[client].in_memory;
  if (!in_files() || now <= most) return;
  const size_t wanted = now - most + most / 16;
  std::vector<NodePtr> idle = deletable(client, keep);
  std::unordered_map<const Node*, Eviction*> on_their_way;
  leaving.reserve(leaving.size() + idle.size());  // so that no element moves
  for (Eviction& l : leaving) on_their_way[l.node.get()] = &l;
  size_t count = 0;
  for (const NodePtr& node : idle) {
    if (count == wanted) break;
    if (at(*node).recipe == nullptr) continue;
    if (const auto found = on_their_way.find(node.get()); found != on_their_way.end()) {
      found->second->tokens = true;
    } else {
      std::unique_lock io(node->io_, std::try_to_lock);
      if (!io.owns_lock()) continue;
      leaving.push_back({node, std::move(io), take_out(*node), true});
    }
    ++count;
  }
}

// Writes evicted states to files, if there is a directory. A state that cannot be written stays in
// memory.
void States::write_out(std::vector<Eviction> leaving) {
  if (!in_files()) return;
  for (Eviction& l : leaving) {
    const std::unique_lock io = std::move(l.io);
    Node& node = *l.node;
    try {
      if (l.session) save_blocks(node, *l.session);
      const MutexLock lock(mutex_);
      Node::Changing& c = at(node);
      if (!l.tokens || c.recipe == nullptr || !(c.files.recipe || c.files.blocks)) continue;
      c.recipe = nullptr;
      --clients_[node.client].in_memory;
    } catch (const std::exception& e) {
      tool::say("kept in memory: {}\n", printable(e.what(), 3000));
      const MutexLock lock(mutex_);
      if (l.session && !at(node).removed) put_in(node, std::move(*l.session));
    }
  }
}

std::optional<Session> States::in_memory(Node& node) {
  const MutexLock lock(mutex_);
  touch(node);
  if (!at(node).session) return std::nullopt;
  return at(node).session->fork();
}

Session States::open(const NodePtr& node, const Appender& append, Usage* usage) {
  const auto counted = [&](Session session) {
    if (usage != nullptr) {
      usage->reused += node->positions;
      usage->reason = "the state was in memory";
    }
    return session;
  };
  if (auto session = in_memory(*node)) return counted(std::move(*session));
  std::unique_lock io(node->io_);  // one thread restores the state, others wait
  if (auto session = in_memory(*node)) return counted(std::move(*session));
  {
    const MutexLock lock(mutex_);
    if (at(*node).removed) refuse_unknown(node->client, node->id, "");
  }
  Usage cost;
  std::optional<Session> session = from_file(*node, append, cost);
  if (!session) session.emplace(computed_again(*node, append, cost));
  if (usage == nullptr) {
    count({0, cost.recomputed, 0, ""});
  } else {
    usage->reused += cost.reused;
    usage->recomputed += cost.recomputed;
    usage->reason = cost.reason;
  }
  return put_back(node, std::move(io), std::move(*session), tokens_of(*node));
}

// Puts a state back into memory, with its tokens.
Session States::put_back(const NodePtr& node, std::unique_lock<std::mutex> io, Session session,
                         std::shared_ptr<const State> recipe) {
  std::vector<Eviction> leaving;
  {
    const MutexLock lock(mutex_);
    ++restores_;
    Node::Changing& c = at(*node);
    if (!c.removed) {
      put_in(*node, session.fork());
      if (c.recipe == nullptr && recipe != nullptr) {
        c.recipe = std::move(recipe);
        ++clients_[node->client].in_memory;
      }
      leaving = make_room(node.get());
      evict_tokens(node->client, node.get(), leaving);
    }
  }
  io.unlock();
  write_out(std::move(leaving));
  return session;
}

// Restores a state from its file of keys and values; the caller holds the node's `io`. Returns
// nothing if there is none, or if it is lost or damaged, which is logged.
std::optional<Session> States::from_file(Node& node, const Appender& append, Usage& usage) {
  {
    const MutexLock lock(mutex_);
    if (!at(node).files.blocks) return std::nullopt;
  }
  RestoreOptions how;
  how.session = session_;
  how.tokenizer = tokenizer_.get();
  how.heal = true;
  how.append = append;
  RestoreReport report;
  try {
    const Snapshot snapshot = Snapshot::open(directory_->file(node.id, ".stet"));
    if (snapshot.digests().id != node.digests.id || snapshot.digests().state != node.digests.state)
      throw Error(ErrorKind::mismatch, snapshot.path(), "id", sha256_text(node.digests.id),
                  snapshot.state_name());
    Session session = snapshot.restore(model_, how, &report);
    usage = {report.reused, report.recomputed, 0,
             report.recomputed > 0 ? "a part of the state's file was lost: computed again"
                                   : "the state was in a file"};
    return session;
  } catch (const Error& e) {
    tool::say("{}: {}\n", node.id, printable(e.what(), 3000));
    usage.reason = "a file of the state was lost: computed again from its tokens";
    if (node.given) discard_blocks(node);
    return std::nullopt;
  }
}

// Returns the tokens and settings of a state, from memory or a file, or null.
std::shared_ptr<const State> States::tokens_of(const Node& node) const {
  {
    const MutexLock lock(mutex_);
    if (at(node).recipe != nullptr) return at(node).recipe;
  }
  if (!in_files()) return nullptr;
  for (const char* ending : {".recipe", ".stet"}) {
    if (!directory_->has(node.id, ending)) continue;
    try {
      const Snapshot snapshot = Snapshot::open(directory_->file(node.id, ending));
      if (snapshot.digests().id == node.digests.id)
        return std::make_shared<const State>(snapshot.recipe());
    } catch (const Error& e) {
      tool::say("{}: {}\n", node.id, printable(e.what(), 3000));
    }
  }
  return nullptr;
}

void States::refuse_lost(const Node& node, const std::string& why) const {
  tool::say("{}: lost: {}\n", node.id, printable(why, 3000));
  throw RequestError(410, "state_lost",
                     fmt::format("{}: the file of this state is missing or damaged, and {}",
                                 node.id, printable(why, 300)));
}

// Computes a state from its tokens. The caller holds the node's `io`. Throws unless the result is
// equal bit for bit.
Session States::computed_again(Node& node, const Appender& append, Usage& usage) {
  const std::shared_ptr<const State> recipe = tokens_of(node);
  if (recipe == nullptr) refuse_lost(node, "no file has its tokens");
  if (const auto limit = replay_limit(*recipe))
    refuse_lost(node, "its tokens alone do not give it: " + limit->reason);
  const bool explained = !usage.reason.empty();
  usage = {0, node.positions, 0,
           explained    ? usage.reason
           : in_files() ? "the state was kept as its tokens: computed again"
                        : "the state was evicted from memory: computed again from its tokens"};
  SessionOptions how = session_;
  how.kv_type = node.kv_type;
  Session session = replay(model_, *recipe, how, nullptr, append);
  const StateDigests found = digests_of(session);
  if (found.id != node.digests.id || found.state != node.digests.state)
    refuse_lost(node, "its keys and values were not those of its tokens");
  try {
    if (in_files() && !directory_->has(node.id, ".recipe")) save_recipe(node, session);
  } catch (const std::exception& e) {
    tool::say("{}: not saved: {}\n", node.id, printable(e.what(), 3000));
  }
  return session;
}

namespace {

// Returns the position of the last anchor at or before the first `tokens` tokens. Returns `tokens`
// without recurrent layers, or for null: the anchors of a file are not known.
size_t ending_at_anchor(size_t tokens, const Session* session) {
  if (session == nullptr || session->recurrent().empty()) return tokens;
  return tokens - static_cast<size_t>(session->rewind_cost(static_cast<int64_t>(tokens)));
}

}  // namespace

std::shared_ptr<States::Running> States::running(const std::string& client, const Parent& parent,
                                                 const Session& prompt) {
  auto running = std::make_shared<Running>(client, prompt.fork());
  if (parent.origin == Origin::uploaded || !is_plain(running->session_.state())) return nullptr;
  const MutexLock lock(mutex_);
  std::erase_if(running_, [](const std::weak_ptr<Running>& r) { return r.expired(); });
  running_.push_back(running);
  return running;
}

// Returns a session of a state if it is in memory or a sound file.
std::optional<Session> States::from_memory_or_file(const NodePtr& node, const Appender& append) {
  if (auto session = in_memory(*node)) return session;
  std::unique_lock io(node->io_);
  if (auto session = in_memory(*node)) return session;
  if (is_removed(*node)) return std::nullopt;
  Usage cost;
  std::optional<Session> session = from_file(*node, append, cost);
  if (!session) return std::nullopt;
  count({0, cost.recomputed, 0, ""});
  return put_back(node, std::move(io), std::move(*session), tokens_of(*node));
}

// Finds the longest common beginning among states in memory, states in files, and running prompts.
// States of `lost` are skipped, and those whose keys and values have another type than new ones.
//
// Recurrent layers continue from an anchor alone, so the beginning ends at the last one before the
// first different token.
States::Longest States::longest(const std::string& client, std::span<const int32_t> ids,
                                const std::set<NodePtr>& lost) const {
  Longest best;
  std::pair<bool, uint64_t> rank;  // decides ties: states in memory first, then the older one
  const auto alike = [&](const std::vector<int32_t>& tokens) {
    return std::min(common_prefix(tokens, ids), ids.size() - 1);
  };
  const MutexLock lock(mutex_);
  for (const auto& [id, node] : nodes_) {
    const Node::Changing& c = at(*node);
    const bool may = (node->client == client || options_.share_prefixes) && node->plain &&
                     node->kv_type == session_.kv_type && !c.removed && c.recipe != nullptr &&
                     c.origin != Origin::uploaded && (c.session || c.files.blocks) &&
                     !lost.contains(node);
    if (!may) continue;
    const size_t n = ending_at_anchor(alike(c.recipe->tokens), c.session ? &*c.session : nullptr);
    const std::pair<bool, uint64_t> its{!c.session, c.serial};
    if (n < best.tokens || n == 0 || (n == best.tokens && rank < its)) continue;
    best.node = node;
    best.tokens = n;
    rank = its;
  }
  for (const std::weak_ptr<Running>& weak : running_) {
    const std::shared_ptr<Running> r = weak.lock();
    if (r == nullptr || (r->client_ != client && !options_.share_prefixes)) continue;
    if (r->session_.kv().shape().type != session_.kv_type) continue;
    const size_t n = ending_at_anchor(alike(r->session_.tokens()), &r->session_);
    if (n <= best.tokens) continue;
    best.running.emplace(r->session_.fork());
    best.tokens = n;
  }
  return best;
}

Session States::longest_prefix(const std::string& client, std::span<const int32_t> ids,
                               const Appender& append, Usage& usage) {
  Longest best = longest(client, ids, {});
  if (options_.shared != nullptr) {
    auto fetched = options_.shared->prefix(client, model_, session_, ids.first(ids.size() - 1),
                                           static_cast<int64_t>(best.tokens));
    if (fetched) {
      usage.reused = fetched->size();
      usage.reason = fmt::format("{} tokens came from the store", fetched->size());
      return *std::move(fetched);
    }
  }
  std::optional<Session> session;
  std::string from = "a prompt that is running";
  for (std::set<NodePtr> lost; !session && best.tokens > 0;) {
    if (best.running) {
      session.emplace(*std::move(best.running));
    } else if ((session = from_memory_or_file(best.node, append))) {
      from = best.node->client == client ? best.node->id : "another client's state";
    } else {
      lost.insert(best.node);
      best = longest(client, ids, lost);
    }
  }
  if (!session) {
    usage.reason = "no state of this client begins like this";
    return Session(model_, session_);
  }
  best.tokens = ending_at_anchor(best.tokens, &*session);
  session->rewind(static_cast<int64_t>(best.tokens));
  session->generation() = GenerationState();
  session->chat() = ChatState();
  usage.reused = static_cast<int64_t>(best.tokens);
  usage.reason = fmt::format("{} tokens of {} are the same", best.tokens, from);
  return *std::move(session);
}

}  // namespace stet::serve
