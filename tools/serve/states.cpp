#include "tools/serve/states.hpp"

#include <fmt/format.h>
#include <sys/random.h>
#include <sys/stat.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>

#include "stet/base/error.hpp"
#include "stet/base/hmac.hpp"
#include "stet/files/file.hpp"
#include "stet/text/utf8.hpp"
#include "tools/serve/fields.hpp"

namespace stet::serve {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string random_secret() {
  std::string secret(32, '\0');
  if (::getrandom(secret.data(), secret.size(), 0) != static_cast<ssize_t>(secret.size()))
    throw Error(ErrorKind::io, "", "random bytes", "32 of the system", "fewer");
  return secret;
}

void write_file(const std::string& path, std::string_view bytes) {
  AtomicFile file(path, 0600);
  file.write(bytes_of(bytes));
  file.commit();
}

// One that was there before, so that handles outlive the server.
std::string kept_secret(const std::string& directory) {
  const std::string path = directory + "/secret";
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored)) {
    std::string secret = read_text_file(path, 64);
    if (secret.size() != 32)
      throw Error(ErrorKind::format, path, "secret", "32 bytes", std::to_string(secret.size()));
    return secret;
  }
  std::string secret = random_secret();
  write_file(path, secret);
  return secret;
}

std::string excerpt_of(const std::string& text) {
  std::string cut = text.substr(0, 120);
  if (text.size() > 120) cut = utf8_lossy(cut) + "…";
  return cut;
}

size_t common_prefix(std::span<const int32_t> a, std::span<const int32_t> b) {
  const size_t n = std::min(a.size(), b.size());
  return static_cast<size_t>(
      std::mismatch(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(n), b.begin()).first -
      a.begin());
}

bool is_open(const GenerationState& g) {
  return !g.turns.empty() && g.turns.back().open && g.turns.back().end > g.turns.back().reply;
}

State recipe_of(const State& state) {
  return {state.origin, state.tokens,        {},        nullptr, state.generation, state.prunes,
          state.edits,  state.interventions, state.chat};
}

}  // namespace

const char* origin_name(Origin origin) {
  return origin == Origin::computed   ? "computed"
         : origin == Origin::uploaded ? "uploaded"
                                      : "verified";
}

Json Usage::json() const {
  return {{"prompt_tokens", prompt()},
          {"reused", reused},
          {"recomputed", recomputed},
          {"new", fresh},
          {"reason", reason}};
}

States::States(std::shared_ptr<const Model> model, std::shared_ptr<const Tokenizer> tokenizer,
               const SessionOptions& session, const StatesOptions& options)
    : model_(std::move(model)),
      tokenizer_(std::move(tokenizer)),
      session_(session),
      options_(options) {
  if (options_.shared != nullptr) {
    secret_ = options_.shared->secret();
    return;
  }
  if (options_.directory.empty()) {
    secret_ = random_secret();
    return;
  }
  std::error_code error;
  std::filesystem::create_directories(options_.directory, error);
  ::chmod(options_.directory.c_str(), 0700);
  secret_ = kept_secret(options_.directory);
  load_directory();
}

std::string States::handle(const std::string& prefix, const std::string& client,
                           const std::string& content) const {
  std::string message = client;
  message += '\0';
  message += content;
  return prefix + sha256_text(hmac_sha256(bytes_of(secret_), bytes_of(message))).substr(7, 32);
}

// ---------------------------------------------------------------- memory

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

// ---------------------------------------------------------------- the tree

NodePtr States::node_of(const std::string& client, const std::string& parent, Json operation,
                        Session& session, Origin origin) const {
  auto node = std::make_shared<Node>();
  node->digests = digests_of(session);
  const State& state = session.state();
  node->client = client;
  node->parent = parent;
  node->operation = std::move(operation);
  node->created = static_cast<int64_t>(std::time(nullptr));
  node->tokens = state.tokens;
  node->plain = state.prunes.empty() && state.edits.empty() && state.interventions.empty();
  node->messages = static_cast<int64_t>(state.chat.messages.size());
  node->transcript = state.transcript_size();
  node->open = is_open(state.generation);
  node->origin = origin;
  if (!state.chat.messages.empty()) {
    node->role = state.chat.messages.back().role;
    node->excerpt = excerpt_of(state.chat.messages.back().content);
  } else if (tokenizer_ != nullptr) {
    const size_t n = std::min<size_t>(state.tokens.size(), 32);
    node->excerpt = excerpt_of(tokenizer_->decode(std::span(state.tokens).last(n), true));
  }
  node->bytes = static_cast<uint64_t>(state.kv.blocks()) * state.kv.shape().block_bytes();
  return node;
}

// Gives a node its id. The node that has it already, unless the state is to be there twice.
NodePtr States::place(Node& node, bool another) {
  const std::string content = sha256_text(node.digests.id);
  node.id = handle("st_", node.client, content);
  for (int n = 1; nodes_.contains(node.id); ++n) {
    if (!another) return nodes_[node.id];
    node.id = handle("st_", node.client, content + "/" + std::to_string(n));
  }
  return nullptr;
}

void States::check_count(const std::string& client) const {
  size_t count = 0;
  for (const NodePtr& other : order_) count += other->client == client ? 1 : 0;
  if (count >= options_.per_client)
    throw RequestError(
        429, "too_many_states",
        fmt::format("expected at most {} states, found as many: delete some", options_.per_client));
}

uint64_t States::shared_with(const std::string& parent, const KvCache& kv) const {
  const auto from = nodes_.find(parent);
  if (from == nodes_.end() || !from->second->session) return 0;
  std::set<const KvBlock*> theirs;
  const KvCache& other = from->second->session->kv();
  for (int64_t b = 0; b < other.blocks(); ++b) theirs.insert(&other.block_info(b));
  uint64_t shared = 0;
  for (int64_t b = 0; b < kv.blocks(); ++b)
    shared += theirs.contains(&kv.block_info(b)) ? kv.shape().block_bytes() : 0;
  return shared;
}

NodePtr States::add(const std::string& client, const std::string& parent, Json operation,
                    Session session, Origin origin, bool another, bool share) {
  const NodePtr node = node_of(client, parent, std::move(operation), session, origin);
  std::unique_lock io(node->io);
  for (;;) {
    std::unique_lock lock(mutex_);
    if (const NodePtr there = place(*node, another)) {
      there->used = ++clock_;
      if (origin == Origin::computed && there->origin == Origin::uploaded)
        there->origin = Origin::verified;
      lock.unlock();
      const std::lock_guard saved(there->io);  // whoever made it may still be writing it
      lock.lock();
      if (there->removed) continue;
      return there;
    }
    check_count(client);
    node->shared_bytes = shared_with(parent, session.kv());
    node->used = ++clock_;
    node->session.emplace(session.fork());
    hold(node->session->kv());
    nodes_[node->id] = node;
    order_.push_back(node);
    std::vector<Leaving> leaving = make_room(node.get());
    lock.unlock();
    write_out(std::move(leaving));
    break;
  }
  if (options_.shared != nullptr && share && !another && origin == Origin::computed)
    options_.shared->put(client, node->id, session, tokenizer_.get(), {parent, node->operation});
  if (!options_.durable) return node;
  try {
    save(*node, std::move(session), node->plain ? SnapshotForm::recipe : SnapshotForm::delta);
  } catch (...) {
    withdraw(*node);
    throw;
  }
  return node;
}

NodePtr States::find_here(const std::string& client, const std::string& id) {
  const std::lock_guard lock(mutex_);
  const auto found = nodes_.find(id);
  if (found == nodes_.end() || found->second->client != client) return nullptr;
  found->second->used = ++clock_;
  return found->second;
}

// What another server has made for this client: a handle proves that it is.
NodePtr States::find_shared(const std::string& client, const std::string& id) {
  if (options_.shared == nullptr || !id.starts_with("st_")) return nullptr;
  RestoreOptions how;
  how.session = session_;
  how.tokenizer = tokenizer_.get();
  std::optional<SharedState> found = options_.shared->get(client, id, model_, how);
  if (!found || handle("st_", client, sha256_text(digests_of(found->session).id)) != id)
    return nullptr;
  Usage fetched;
  fetched.recomputed = found->restored.restored.recomputed;
  count(fetched);
  return add(client, found->note.parent, std::move(found->note.operation),
             std::move(found->session), Origin::computed, false, false);
}

NodePtr States::find(const std::string& client, const std::string& id, const std::string& pointer) {
  if (NodePtr node = find_here(client, id)) return node;
  if (NodePtr node = find_shared(client, id)) return node;
  throw RequestError(404, "no_such_state",
                     pointer + ": expected a state of this client, found " + printable(id, 60),
                     pointer);
}

std::vector<NodePtr> States::list(const std::string& client) const {
  const std::lock_guard lock(mutex_);
  std::vector<NodePtr> all;
  for (const NodePtr& node : order_) {
    if (node->client == client) all.push_back(node);
  }
  return all;
}

// Out of the tree; its files stay.
void States::withdraw(Node& node) {
  const std::lock_guard lock(mutex_);
  if (node.removed) return;
  node.removed = true;
  if (node.session) release(node.session->kv());
  node.session.reset();
  nodes_.erase(node.id);
  std::erase_if(order_, [&](const NodePtr& other) { return other.get() == &node; });
}

void States::remove(const NodePtr& node) {
  const std::lock_guard io(node->io);
  if (node->removed) return;
  withdraw(*node);
  if (options_.shared != nullptr) options_.shared->remove(node->client, node->id);
  if (node->saved) forget_files(*node);
}

void States::change(const NodePtr& node, std::optional<std::optional<std::string>> name,
                    std::optional<bool> pinned) {
  const std::lock_guard io(node->io);
  {
    const std::lock_guard lock(mutex_);
    if (name) node->name = *name;
    if (pinned) node->pinned = *pinned;
  }
  if (node->saved && !node->removed) write_meta(*node);
}

void States::verified(const NodePtr& node) {
  const std::lock_guard io(node->io);
  {
    const std::lock_guard lock(mutex_);
    node->origin = Origin::verified;
  }
  if (node->saved && !node->removed) write_meta(*node);
}

Session States::open(const NodePtr& node, Usage* usage) {
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
  Session session = restore(*node, usage);
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

Session States::restore(const Node& node, Usage* usage) {
  Usage none;
  Usage& u = usage == nullptr ? none : *usage;
  const auto again = [&](const State& recipe, const char* why) {
    u.recomputed += static_cast<int64_t>(node.tokens.size());
    u.reason = why;
    return replay(model_, recipe, session_);
  };
  if (node.recipe)
    return again(*node.recipe, "the state had left memory: computed again from its tokens");
  RestoreOptions how;
  how.session = session_;
  how.tokenizer = tokenizer_.get();
  how.heal = true;
  RestoreReport report;
  const Snapshot snapshot = Snapshot::open(path_of(node.id) + ".stet");
  try {
    Session session = snapshot.restore(model_, how, &report);
    u.reused += report.reused;
    u.recomputed += report.recomputed;
    u.reason = report.recomputed > 0 ? "the state was kept as its tokens: computed again"
                                     : "the state was in a file";
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
                               Usage& usage) {
  NodePtr best;
  std::optional<Session> running;
  size_t most = 0;
  {
    const std::lock_guard lock(mutex_);
    for (const NodePtr& node : order_) {
      const bool may = (node->client == client || options_.share_prefixes) && node->plain &&
                       node->origin != Origin::uploaded && (node->session || !node->recipe);
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
  Session session = running ? std::move(*running) : open(best, nullptr);
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

Json States::json(const NodePtr& node) const {
  const std::lock_guard lock(mutex_);
  const Node& n = *node;
  return {{"id", n.id},
          {"object", "state"},
          {"digest", sha256_text(n.digests.id)},
          {"parent", n.parent.empty() ? Json(nullptr) : Json(n.parent)},
          {"operation", n.operation},
          {"created", n.created},
          {"name", n.name ? Json(*n.name) : Json(nullptr)},
          {"pinned", n.pinned},
          {"origin", origin_name(n.origin)},
          {"tokens", n.transcript},
          {"positions", n.tokens.size()},
          {"bytes", n.bytes},
          {"shared_bytes", n.shared_bytes},
          {"resident", n.session.has_value()},
          {"open", n.open},
          {"excerpt", n.excerpt},
          {"role", n.role.empty() ? Json(nullptr) : Json(n.role)},
          {"messages", n.messages}};
}

void States::count(const Usage& usage) {
  const std::lock_guard lock(mutex_);
  totals_.reused += usage.reused;
  totals_.recomputed += usage.recomputed;
  totals_.fresh += usage.fresh;
}

Json States::totals() const {
  const std::lock_guard lock(mutex_);
  int64_t mapped = 0;
  for (const auto& [block, count] : blocks_) mapped += block->saved() != nullptr ? 1 : 0;
  Json shared = nullptr;
  if (options_.shared != nullptr) {
    const StoreTraffic t = options_.shared->traffic();
    const FetchCosts costs = options_.shared->policy().costs();
    shared = {{"hits", t.hits},
              {"misses", t.misses},
              {"refused", t.refused},
              {"read_bytes", t.read_bytes},
              {"written_bytes", t.written_bytes},
              {"read_seconds", t.read_seconds},
              {"write_seconds", t.write_seconds},
              {"reads", t.reads},
              {"writes", t.writes},
              {"latency", costs.latency_seconds},
              {"bandwidth", 1 / costs.byte_seconds},
              {"token", costs.token_seconds},
              {"fetched", options_.shared->fetched_blocks()},
              {"computed", options_.shared->computed_blocks()},
              {"failures", options_.shared->failures()}};
  }
  return {
      {"states", order_.size()},  {"store", shared},
      {"reused", totals_.reused}, {"recomputed", totals_.recomputed},
      {"new", totals_.fresh},     {"evictions", evictions_},
      {"restores", restores_},    {"blocks_memory", static_cast<int64_t>(blocks_.size()) - mapped},
      {"blocks_mapped", mapped}};
}

// ---------------------------------------------------------------- files

// Whose file a delta can be made over: of this client's states in files with keys and values, the
// one that shares most tokens, if that is a block at least.
NodePtr States::base_for(const Node& node) const {
  constexpr int kDeepest = 8;
  NodePtr best;
  size_t most = static_cast<size_t>(kBlockPositions) - 1;
  for (const NodePtr& other : order_) {
    const bool may = other.get() != &node && other->client == node.client && other->saved &&
                     *other->saved != SnapshotForm::recipe && other->depth < kDeepest;
    if (!may) continue;
    const size_t n = common_prefix(other->tokens, node.tokens);
    if (n <= most) continue;
    best = other;
    most = n;
  }
  return best;
}

// To be called with the node's `io`. As a delta, where there is something that it can be one of.
void States::save(Node& node, Session session, SnapshotForm form) {
  const std::string path = path_of(node.id) + ".stet";
  SaveOptions options;
  options.form = form;
  options.tokenizer = tokenizer_.get();
  options.threads = 1;  // the others compute
  NodePtr base;
  if (form == SnapshotForm::delta) {
    const std::lock_guard lock(mutex_);
    base = base_for(node);
    if (base != nullptr) ++needed_[base->id];
  }
  try {
    std::optional<Snapshot> parent;
    if (base != nullptr) parent = Snapshot::open(path_of(base->id) + ".stet");
    if (form == SnapshotForm::delta && !parent) options.form = SnapshotForm::full;
    options.parent = parent ? &*parent : nullptr;
    Snapshot::save(session, path, options);
  } catch (...) {
    if (base != nullptr) unneed(base->id);
    throw;
  }
  {
    const std::lock_guard lock(mutex_);
    node.saved = options.form;
    node.base = base == nullptr ? "" : base->id;
    node.depth = base == nullptr ? 0 : base->depth + 1;
  }
  if (node.removed)
    forget_files(node);
  else
    write_meta(node);
}

// One delta fewer needs the file of this state. Where that is gone but for its file, so is this.
void States::unneed(std::string id) {
  const std::lock_guard lock(mutex_);
  while (!id.empty() && --needed_[id] == 0) {
    needed_.erase(id);
    const auto orphan = orphans_.find(id);
    if (orphan == orphans_.end()) return;
    std::error_code ignored;
    std::filesystem::remove(path_of(id) + ".json", ignored);
    std::filesystem::remove(path_of(id) + ".stet", ignored);
    id = orphan->second;
    orphans_.erase(orphan);
  }
}

// The snapshot goes last: without its description a file is nobody's, and swept up at the next
// start.
void States::forget_files(const Node& node) {
  {
    const std::lock_guard lock(mutex_);
    if (needed_.contains(node.id)) {
      orphans_[node.id] = node.base;
      write_file(path_of(node.id) + ".json",
                 tool::dump(Json{{"id", node.id}, {"base", node.base}, {"removed", true}}));
      return;
    }
  }
  std::error_code ignored;
  std::filesystem::remove(path_of(node.id) + ".json", ignored);
  std::filesystem::remove(path_of(node.id) + ".stet", ignored);
  if (!node.base.empty()) unneed(node.base);
}

void States::write_meta(const Node& n) const {
  const Json meta = {{"id", n.id},           {"client", n.client},
                     {"parent", n.parent},   {"operation", n.operation},
                     {"created", n.created}, {"name", n.name ? Json(*n.name) : Json(nullptr)},
                     {"pinned", n.pinned},   {"origin", origin_name(n.origin)},
                     {"excerpt", n.excerpt}, {"base", n.base},
                     {"depth", n.depth}};
  write_file(path_of(n.id) + ".json", tool::dump(meta));
}

void States::save_all() {
  if (options_.directory.empty()) return;
  std::vector<NodePtr> all;
  {
    const std::lock_guard lock(mutex_);
    all = order_;
  }
  for (const NodePtr& node : all) {
    const std::lock_guard io(node->io);
    if (node->session && !node->saved) save(*node, node->session->fork(), SnapshotForm::delta);
  }
}

void States::load_directory() {
  std::vector<std::string> paths, files;
  for (const auto& entry : std::filesystem::directory_iterator(options_.directory)) {
    const std::string path = entry.path().string();
    if (path.ends_with(".json")) paths.push_back(path);
    if (path.ends_with(".stet")) files.push_back(path.substr(0, path.size() - 5));
  }
  std::set<std::string> described;
  for (const std::string& path : paths) {
    described.insert(path.substr(0, path.size() - 5));
    try {
      load_node(path);
    } catch (const std::exception& e) {
      tool::say("left out {}: {}\n", printable(path), printable(e.what()));
    }
  }
  std::error_code ignored;
  for (const std::string& file : files) {
    if (!described.contains(file)) std::filesystem::remove(file + ".stet", ignored);
  }
  for (const auto& [id, base] : orphans_) {
    if (!base.empty()) ++needed_[base];
  }
  for (const NodePtr& node : order_) {
    if (!node->base.empty()) ++needed_[node->base];
  }
  for (const auto& [id, base] : std::map(orphans_)) {
    if (orphans_.contains(id) && !needed_.contains(id)) {
      ++needed_[id];
      unneed(id);
    }
  }
  std::sort(order_.begin(), order_.end(), [](const NodePtr& a, const NodePtr& b) {
    return std::tie(a->created, a->transcript, a->id) < std::tie(b->created, b->transcript, b->id);
  });
}

void States::load_node(const std::string& path) {
  const Json meta = parse_body(read_text_file(path, size_t{1} << 20));
  const std::string id = meta.at("id").get<std::string>();
  if (path != path_of(id) + ".json")
    throw Error(ErrorKind::format, path, "id", "the name of the file", printable(id));
  if (meta.contains("removed")) {
    orphans_[id] = meta.at("base").get<std::string>();
    return;
  }
  auto node = std::make_shared<Node>();
  node->id = id;
  node->client = meta.at("client").get<std::string>();
  node->parent = meta.at("parent").get<std::string>();
  node->operation = meta.at("operation");
  node->created = meta.at("created").get<int64_t>();
  if (meta.at("name").is_string()) node->name = meta.at("name").get<std::string>();
  node->pinned = meta.at("pinned").get<bool>();
  const std::string origin = meta.at("origin").get<std::string>();
  node->origin = origin == "uploaded"   ? Origin::uploaded
                 : origin == "verified" ? Origin::verified
                                        : Origin::computed;
  node->excerpt = meta.at("excerpt").get<std::string>();
  node->base = meta.at("base").get<std::string>();
  node->depth = meta.at("depth").get<int>();
  const Snapshot snapshot = Snapshot::open(path_of(id) + ".stet");
  node->saved = snapshot.meta().form;
  snapshot.check_compatible(*model_, session_.compute.contract, tokenizer_.get());
  const State recipe = snapshot.recipe();
  node->digests = snapshot.digests();
  node->tokens = recipe.tokens;
  node->plain = recipe.prunes.empty() && recipe.edits.empty() && recipe.interventions.empty();
  node->transcript = recipe.transcript_size();
  node->messages = static_cast<int64_t>(recipe.chat.messages.size());
  node->role = recipe.chat.messages.empty() ? "" : recipe.chat.messages.back().role;
  node->open = is_open(recipe.generation);
  node->bytes = static_cast<uint64_t>(blocks_of(snapshot.meta().positions)) *
                snapshot.meta().kv.block_bytes();
  nodes_[node->id] = node;
  order_.push_back(node);
}

}  // namespace stet::serve
