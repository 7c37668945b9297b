#include "tools/serve/states.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "stet/base/error.hpp"
#include "stet/base/hmac.hpp"
#include "tools/serve/fields.hpp"

namespace stet::serve {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string excerpt_of(const std::string& text) {
  constexpr size_t kMost = 120;
  if (text.size() <= kMost) return text;
  size_t end = kMost;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return text.substr(0, end) + "…";
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
  if (options_.shared != nullptr)
    secret_ = options_.shared->secret();
  else if (options_.directory.empty())
    secret_ = random_secret();
  else
    open_directory();
}

std::string States::handle(const std::string& prefix, const std::string& client,
                           const std::string& content) const {
  std::string message = client;
  message += '\0';
  message += content;
  return prefix + sha256_text(hmac_sha256(bytes_of(secret_), bytes_of(message))).substr(7, 32);
}

std::string States::response_id(const std::string& client, const std::string& name) const {
  return handle("st_", client, "response " + name);
}

// Made of what the state is, but for a response, which was told before that was known. Two ways to
// one state are two ids where they differ in what was told of its last reply: the end that the
// state holds back, or a beginning that came with the request. `number`: of those that are alike, 0
// the first.
std::string States::id_of(const std::string& client, const Sha256& digest, const Json& operation,
                          int number) const {
  if (operation.contains("response"))
    return response_id(client, operation["response"].get<std::string>());
  std::string content = sha256_text(digest);
  if (operation.contains("told")) content += " told";
  if (operation.contains("prefilled")) content += " prefilled " + operation["prefilled"].dump();
  if (number > 0) content += "/" + std::to_string(number);
  return handle("st_", client, content);
}

// What can be told of it without its keys and values.
void Node::describe(const State& state) {
  const std::vector<Turn>& turns = state.generation.turns;
  tokens = state.tokens;
  if (shifted_out(state.prunes) > 0) unshifted = state.transcript();
  plain = state.prunes.empty() && state.edits.empty() && state.interventions.empty();
  messages = static_cast<int64_t>(state.chat.messages.size());
  transcript = state.transcript_size();
  role = messages == 0 ? "" : state.chat.messages.back().role;
  const auto asked = std::find_if(state.chat.messages.rbegin(), state.chat.messages.rend(),
                                  [](const Message& m) { return m.role == "user"; });
  question = asked == state.chat.messages.rend() ? "" : excerpt_of(asked->content);
  open = !turns.empty() && turns.back().open && turns.back().end > turns.back().reply;
}

NodePtr States::node_of(const std::string& client, const std::string& parent, Json operation,
                        Session& session, Origin origin) const {
  auto node = std::make_shared<Node>();
  node->digests = digests_of(session);
  const State& state = session.state();
  node->client = client;
  node->parent = parent;
  node->operation = std::move(operation);
  node->created = static_cast<int64_t>(std::time(nullptr));
  node->describe(state);
  node->origin = origin;
  if (!state.chat.messages.empty()) {
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
  for (int n = 0;; ++n) {
    node.id = id_of(node.client, node.digests.id, node.operation, n);
    const auto there = nodes_.find(node.id);
    if (there == nodes_.end()) return nullptr;
    if (!another) return there->second;
  }
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
  if (!found || id_of(client, digests_of(found->session).id, found->note.operation, 0) != id)
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
          {"question", n.question.empty() ? Json(nullptr) : Json(n.question)},
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

}  // namespace stet::serve
