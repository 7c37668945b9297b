// Which states are in memory, which leave it, and how they come back.
#include <fmt/format.h>

#include <algorithm>

#include "stet/base/error.hpp"
#include "tools/serve/states.hpp"

namespace stet::serve {
namespace {

State recipe_of(const State& state) {
  return {state.origin, state.tokens,        {},        nullptr, state.generation, state.prunes,
          state.edits,  state.interventions, state.chat};
}

}  // namespace

void States::hold(const KvCache& kv) {
  for (int64_t b = 0; b < kv.blocks(); ++b) ++blocks_[&kv.block_info(b)];
}

void States::release(const KvCache& kv) {
  for (int64_t b = 0; b < kv.blocks(); ++b) {
    const auto found = blocks_.find(&kv.block_info(b));
    if (--found->second == 0) blocks_.erase(found);
  }
}

uint64_t States::memory_used() const {
  const std::lock_guard lock(mutex_);
  const ModelConfig& c = model_->config();
  return blocks_.size() * KvShape{c.layers, c.kv_heads, c.head_dim, session_.kv_type}.block_bytes();
}

// The states that were used longest ago leave, until the rest is within the budget. What somebody
// is reading or writing stays, and so does what neither its tokens nor a file would give again.
std::vector<States::Leaving> States::make_room(const Node* keep) {
  const ModelConfig& c = model_->config();
  const uint64_t block = KvShape{c.layers, c.kv_heads, c.head_dim, session_.kv_type}.block_bytes();
  std::vector<Leaving> leaving;
  if (blocks_.size() * block <= options_.memory) return leaving;
  std::vector<NodePtr> idle;
  for (const NodePtr& node : order_) {
    if (node.get() == keep || !node->session || node->pinned) continue;
    if (!options_.directory.empty() || node->session->edits().empty()) idle.push_back(node);
  }
  std::sort(idle.begin(), idle.end(),
            [](const NodePtr& a, const NodePtr& b) { return a->used < b->used; });
  for (const NodePtr& node : idle) {
    if (blocks_.size() * block <= options_.memory) break;
    std::unique_lock io(node->io, std::try_to_lock);
    if (!io.owns_lock()) continue;
    if (options_.directory.empty()) node->recipe = recipe_of(node->session->state());
    release(node->session->kv());
    leaving.push_back({node, std::move(io), std::move(*node->session)});
    node->session.reset();
    ++evictions_;
  }
  return leaving;
}

// Into files, where there is a directory. What cannot be written stays in memory.
void States::write_out(std::vector<Leaving> leaving) {
  if (options_.directory.empty()) return;
  for (Leaving& l : leaving) {
    Node& node = *l.node;
    if (node.saved && *node.saved != SnapshotForm::recipe) continue;
    try {
      save(node, l.session.fork(), SnapshotForm::delta);
    } catch (const std::exception& e) {
      tool::say("kept in memory: {}\n", printable(e.what()));
      const std::lock_guard lock(mutex_);
      if (node.removed) continue;
      node.session.emplace(std::move(l.session));
      hold(node.session->kv());
    }
  }
}

Session States::open(const NodePtr& node, const Appender& append, Usage* usage) {
  const auto in_memory = [&]() -> std::optional<Session> {
    const std::lock_guard lock(mutex_);
    node->used = ++clock_;
    if (!node->session) return std::nullopt;
    if (usage != nullptr) {
      usage->reused += static_cast<int64_t>(node->tokens.size());
      usage->reason = "the state was in memory";
    }
    return node->session->fork();
  };
  if (auto session = in_memory()) return std::move(*session);
  std::unique_lock io(node->io);  // one brings it back, the others wait for that
  if (auto session = in_memory()) return std::move(*session);
  Usage cost;
  Session session = restore(*node, append, cost);
  if (usage == nullptr) {
    count({0, cost.recomputed, 0, ""});
  } else {
    usage->reused += cost.reused;
    usage->recomputed += cost.recomputed;
    usage->reason = cost.reason;
  }
  std::vector<Leaving> leaving;
  {
    const std::lock_guard lock(mutex_);
    ++restores_;
    if (!node->removed) {
      node->session.emplace(session.fork());
      node->recipe.reset();
      hold(node->session->kv());
      leaving = make_room(node.get());
    }
  }
  io.unlock();
  write_out(std::move(leaving));
  return session;
}

// By whoever holds the node's `io`.
Session States::restore(const Node& node, const Appender& append, Usage& usage) {
  const auto again = [&](const State& recipe, const char* why) {
    usage = {0, static_cast<int64_t>(node.tokens.size()), 0, why};
    return replay(model_, recipe, session_, nullptr, append);
  };
  if (node.recipe)
    return again(*node.recipe, "the state had left memory: computed again from its tokens");
  RestoreOptions how;
  how.session = session_;
  how.tokenizer = tokenizer_.get();
  how.heal = true;
  how.append = append;
  RestoreReport report;
  const Snapshot snapshot = Snapshot::open(path_of(node.id) + ".stet");
  try {
    Session session = snapshot.restore(model_, how, &report);
    usage = {report.reused, report.recomputed, 0,
             report.recomputed > 0 ? "the state was kept as its tokens: computed again"
                                   : "the state was in a file"};
    return session;
  } catch (const Error&) {
    const State recipe = snapshot.recipe();
    if (snapshot.meta().form != SnapshotForm::delta || replay_limit(recipe)) throw;
    Session session = again(recipe, "a file of the state was lost: computed again from its tokens");
    if (digests_of(session).id != node.digests.id) throw;
    return session;
  }
}

std::shared_ptr<States::Running> States::running(const std::string& client, const Session& prompt) {
  auto running = std::make_shared<Running>(client, prompt.fork());
  const std::lock_guard lock(mutex_);
  std::erase_if(running_, [](const std::weak_ptr<Running>& r) { return r.expired(); });
  running_.push_back(running);
  return running;
}

Session States::longest_prefix(const std::string& client, std::span<const int32_t> ids,
                               const Appender& append, Usage& usage) {
  NodePtr best;
  std::optional<Session> running;
  size_t most = 0;
  {
    const std::lock_guard lock(mutex_);
    for (const NodePtr& node : order_) {
      const bool may = (node->client == client || options_.share_prefixes) && node->plain &&
                       node->origin != Origin::uploaded &&
                       (node->session || (node->saved && *node->saved != SnapshotForm::recipe));
      if (!may) continue;
      const size_t n = std::min(common_prefix(node->tokens, ids), ids.size() - 1);
      if (n > most || (n == most && n > 0 && node->session && !best->session)) {
        best = node;
        most = n;
      }
    }
    for (const std::weak_ptr<Running>& weak : running_) {
      const std::shared_ptr<Running> r = weak.lock();
      if (r == nullptr || (r->client_ != client && !options_.share_prefixes)) continue;
      const size_t n = std::min(common_prefix(r->session_.state().tokens, ids), ids.size() - 1);
      if (n <= most) continue;
      running.emplace(r->session_.fork());
      most = n;
    }
  }
  if (options_.shared != nullptr) {
    auto fetched = options_.shared->prefix(client, model_, session_, ids.first(ids.size() - 1),
                                           static_cast<int64_t>(most));
    if (fetched) {
      usage.reused = fetched->size();
      usage.reason = fmt::format("{} tokens came from the store", fetched->size());
      return *std::move(fetched);
    }
  }
  if (best == nullptr && !running) {
    usage.reason = "no state of this client begins like this";
    return Session(model_, session_);
  }
  Session session = running ? std::move(*running) : open(best, append, nullptr);
  session.rewind(static_cast<int64_t>(most));
  session.generation() = GenerationState();
  session.chat() = ChatState();
  usage.reused = static_cast<int64_t>(most);
  usage.reason = fmt::format("{} tokens of {} are the same", most,
                             running                  ? "a prompt that is running"
                             : best->client == client ? best->id
                                                      : "another client's state");
  return session;
}

}  // namespace stet::serve
