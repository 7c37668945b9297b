#include "tools/serve/states.hpp"

#include <fmt/format.h>
#include <sys/random.h>
#include <sys/stat.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>

#include "stet/base/error.hpp"
#include "stet/base/sha256.hpp"
#include "stet/files/file.hpp"
#include "stet/text/utf8.hpp"
#include "tools/serve/fields.hpp"

namespace stet::serve {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// HMAC-SHA256 (RFC 2104); the key is 32 bytes.
Sha256 hmac(const std::string& key, std::string_view message) {
  std::string inner(64, '\x36'), outer(64, '\x5c');
  for (size_t i = 0; i < key.size(); ++i) {
    inner[i] = static_cast<char>(inner[i] ^ key[i]);
    outer[i] = static_cast<char>(outer[i] ^ key[i]);
  }
  RunningSha256 first, second;
  first.add(bytes_of(inner));
  first.add(bytes_of(message));
  const Sha256 digest = first.result();
  second.add(bytes_of(outer));
  second.add(digest.bytes);
  return second.result();
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
  return {state.origin,     state.tokens, {},          nullptr,
          state.generation, state.prunes, state.edits, state.chat};
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
  return prefix + sha256_text(hmac(secret_, message)).substr(7, 32);
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

// The states that were used longest ago leave, until the rest is within the budget.
void States::make_room(const Node* keep) {
  const ModelConfig& c = model_->config();
  const uint64_t block = KvShape{c.layers, c.kv_heads, c.head_dim, session_.kv_type}.block_bytes();
  while (blocks_.size() * block > options_.memory) {
    Node* oldest = nullptr;
    for (const NodePtr& node : order_) {
      if (node.get() == keep || !node->session || node->pinned) continue;
      if (oldest == nullptr || node->used < oldest->used) oldest = node.get();
    }
    if (oldest == nullptr) return;
    evict(*oldest);
  }
}

// What its tokens do not give must not be lost: it stays, where there is no file for it.
void States::evict(Node& node) {
  const bool replayable = node.session->edits().empty();
  if (!options_.directory.empty()) {
    save_file(node, SnapshotForm::full);
  } else if (!replayable) {
    node.used = ++clock_;
    return;
  } else {
    node.recipe = recipe_of(node.session->state());
  }
  release(node.session->kv());
  node.session.reset();
  ++evictions_;
}

// ---------------------------------------------------------------- the tree

NodePtr States::add(const std::string& client, const std::string& parent, Json operation,
                    Session session, Origin origin, bool another) {
  auto node = std::make_shared<Node>();
  node->digests = digests_of(session);
  const State& state = session.state();
  node->client = client;
  node->parent = parent;
  node->operation = std::move(operation);
  node->created = static_cast<int64_t>(std::time(nullptr));
  node->tokens = state.tokens;
  node->plain = state.prunes.empty() && state.edits.empty();
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

  const std::lock_guard lock(mutex_);
  std::string content = sha256_text(node->digests.id);
  node->id = handle("st_", client, content);
  for (int n = 1; nodes_.contains(node->id); ++n) {
    const NodePtr& there = nodes_[node->id];
    if (!another) {
      there->used = ++clock_;
      if (origin == Origin::computed && there->origin == Origin::uploaded)
        there->origin = Origin::verified;
      return there;
    }
    node->id = handle("st_", client, content + "/" + std::to_string(n));
  }
  size_t count = 0;
  for (const NodePtr& other : order_) count += other->client == client ? 1 : 0;
  if (count >= options_.per_client)
    throw RequestError(
        429, "too_many_states",
        fmt::format("expected at most {} states, found as many: delete some", options_.per_client));
  if (const auto from = nodes_.find(parent); from != nodes_.end() && from->second->session) {
    std::set<const KvBlock*> theirs;
    const KvCache& kv = from->second->session->kv();
    for (int64_t b = 0; b < kv.blocks(); ++b) theirs.insert(&kv.block_info(b));
    for (int64_t b = 0; b < state.kv.blocks(); ++b)
      node->shared_bytes +=
          theirs.contains(&state.kv.block_info(b)) ? state.kv.shape().block_bytes() : 0;
  }
  node->used = ++clock_;
  node->session.emplace(std::move(session));
  hold(node->session->kv());
  if (options_.durable) save_file(*node, node->plain ? SnapshotForm::recipe : SnapshotForm::full);
  nodes_[node->id] = node;
  order_.push_back(node);
  make_room(node.get());
  return node;
}

NodePtr States::find(const std::string& client, const std::string& id, const std::string& pointer) {
  const std::lock_guard lock(mutex_);
  const auto found = nodes_.find(id);
  if (found == nodes_.end() || found->second->client != client)
    throw RequestError(404, "no_such_state",
                       pointer + ": expected a state of this client, found " + printable(id, 60),
                       pointer);
  found->second->used = ++clock_;
  return found->second;
}

std::vector<NodePtr> States::list(const std::string& client) const {
  const std::lock_guard lock(mutex_);
  std::vector<NodePtr> all;
  for (const NodePtr& node : order_) {
    if (node->client == client) all.push_back(node);
  }
  return all;
}

void States::remove(const NodePtr& node) {
  const std::lock_guard lock(mutex_);
  if (node->removed) return;
  node->removed = true;
  if (node->session) release(node->session->kv());
  node->session.reset();
  nodes_.erase(node->id);
  std::erase(order_, node);
  if (options_.directory.empty()) return;
  std::error_code ignored;
  const std::string path = options_.directory + "/" + node->id;
  std::filesystem::remove(path + ".json", ignored);
  std::filesystem::remove(path + ".stet", ignored);
}

void States::change(const NodePtr& node, std::optional<std::optional<std::string>> name,
                    std::optional<bool> pinned) {
  const std::lock_guard lock(mutex_);
  if (name) node->name = *name;
  if (pinned) node->pinned = *pinned;
  if (!node->file.empty()) write_meta(*node);
}

void States::verified(const NodePtr& node) {
  const std::lock_guard lock(mutex_);
  node->origin = Origin::verified;
  if (!node->file.empty()) write_meta(*node);
}

Session States::open(const NodePtr& node, Usage* usage) {
  const std::lock_guard lock(mutex_);
  node->used = ++clock_;
  if (!node->session) {
    node->session.emplace(restore(*node, usage));
    node->recipe.reset();
    hold(node->session->kv());
    ++restores_;
    make_room(node.get());
  } else if (usage != nullptr) {
    usage->reused += static_cast<int64_t>(node->tokens.size());
    usage->reason = "the state was in memory";
  }
  return node->session->fork();
}

Session States::restore(Node& node, Usage* usage) {
  Usage none;
  Usage& u = usage == nullptr ? none : *usage;
  if (node.recipe) {
    u.recomputed += static_cast<int64_t>(node.tokens.size());
    u.reason = "the state had left memory: computed again from its tokens";
    return replay(model_, *node.recipe, session_);
  }
  RestoreOptions how;
  how.session = session_;
  how.tokenizer = tokenizer_.get();
  how.heal = true;
  RestoreReport report;
  Session session = Snapshot::open(node.file).restore(model_, how, &report);
  u.reused += report.reused;
  u.recomputed += report.recomputed;
  u.reason = report.recomputed > 0 ? "the state was kept as its tokens: computed again"
                                   : "the state was in a file";
  return session;
}

Session States::longest_prefix(const std::string& client, std::span<const int32_t> ids,
                               Usage& usage) {
  NodePtr best;
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
  }
  if (best == nullptr) {
    usage.reason = "no state of this client begins like this";
    return Session(model_, session_);
  }
  Session session = open(best, nullptr);
  session.rewind(static_cast<int64_t>(most));
  session.generation() = GenerationState();
  session.chat() = ChatState();
  usage.reused = static_cast<int64_t>(most);
  usage.reason = fmt::format("{} tokens of {} are the same", most,
                             best->client == client ? best->id : "another client's state");
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
  return {{"states", order_.size()},
          {"reused", totals_.reused},
          {"recomputed", totals_.recomputed},
          {"new", totals_.fresh},
          {"evictions", evictions_},
          {"restores", restores_},
          {"blocks_memory", static_cast<int64_t>(blocks_.size()) - mapped},
          {"blocks_mapped", mapped}};
}

// ---------------------------------------------------------------- files

void States::save_file(Node& node, SnapshotForm form) {
  const std::string path = options_.directory + "/" + node.id + ".stet";
  SaveOptions save;
  save.form = form;
  save.tokenizer = tokenizer_.get();
  Session copy = node.session->fork();
  Snapshot::save(copy, path, save);
  node.file = path;
  write_meta(node);
}

void States::write_meta(const Node& n) const {
  const Json meta = {{"id", n.id},           {"client", n.client},
                     {"parent", n.parent},   {"operation", n.operation},
                     {"created", n.created}, {"name", n.name ? Json(*n.name) : Json(nullptr)},
                     {"pinned", n.pinned},   {"origin", origin_name(n.origin)},
                     {"excerpt", n.excerpt}};
  write_file(options_.directory + "/" + n.id + ".json", tool::dump(meta));
}

void States::save_all() {
  const std::lock_guard lock(mutex_);
  if (options_.directory.empty()) return;
  for (const NodePtr& node : order_) {
    if (node->session && node->file.empty()) save_file(*node, SnapshotForm::full);
  }
}

void States::load_directory() {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(options_.directory)) {
    const std::string path = entry.path().string();
    if (path.ends_with(".json")) paths.push_back(path);
  }
  for (const std::string& path : paths) {
    try {
      load_node(path);
    } catch (const std::exception& e) {
      tool::say("left out {}: {}\n", printable(path), printable(e.what()));
    }
  }
  std::sort(order_.begin(), order_.end(), [](const NodePtr& a, const NodePtr& b) {
    return std::tie(a->created, a->transcript, a->id) < std::tie(b->created, b->transcript, b->id);
  });
}

void States::load_node(const std::string& path) {
  const Json meta = parse_body(read_text_file(path, size_t{1} << 20));
  auto node = std::make_shared<Node>();
  node->id = meta.at("id").get<std::string>();
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
  node->file = path.substr(0, path.size() - 5) + ".stet";
  const Snapshot snapshot = Snapshot::open(node->file);
  snapshot.check_compatible(*model_, session_.compute.contract, tokenizer_.get());
  const State recipe = snapshot.recipe();
  node->digests = snapshot.digests();
  node->tokens = recipe.tokens;
  node->plain = recipe.prunes.empty() && recipe.edits.empty();
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
