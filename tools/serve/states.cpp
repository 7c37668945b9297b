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

std::string shortened(const std::string& text) {
  constexpr size_t kMost = 120;
  if (text.size() <= kMost) return text;
  size_t end = kMost;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return text.substr(0, end) + "…";
}

// Returns a state without keys, values and logits, which can be computed from the rest.
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
      options_(options),
      directory_(options.directory.empty()
                     ? nullptr
                     : std::make_unique<StateDirectory>(options.directory, options.lock_seconds)),
      secret_(options.shared != nullptr ? options.shared->secret()
              : directory_ != nullptr   ? directory_->secret()
                                        : random_secret()) {
  if (in_files()) load();
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

// Returns the id of a node. It is made from the state, or for a response from the name that was
// reserved before. States that differ in the text sent for the last reply get two ids. They may
// differ by held-back text, or by a beginning that came with the request. `number` distinguishes
// equal states.
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

void Node::describe(const State& recipe) {
  const std::vector<Turn>& turns = recipe.generation.turns;
  plain = is_plain(recipe);
  given = !replay_limit(recipe);
  positions = recipe.size();
  messages = static_cast<int64_t>(recipe.chat.messages.size());
  transcript = recipe.transcript_size();
  role = messages == 0 ? "" : recipe.chat.messages.back().role;
  const auto asked = std::find_if(recipe.chat.messages.rbegin(), recipe.chat.messages.rend(),
                                  [](const Message& m) { return m.role == "user"; });
  question = asked == recipe.chat.messages.rend() ? "" : shortened(asked->content);
  open = !turns.empty() && turns.back().open && turns.back().end > turns.back().reply;
}

// Returns the beginning of the last message, or else the end of the text.
std::string States::excerpt_of(const State& state) const {
  constexpr size_t kMostTokens = 32;
  if (!state.chat.messages.empty()) return shortened(state.chat.messages.back().content);
  if (tokenizer_ == nullptr) return "";
  const size_t n = std::min(state.tokens.size(), kMostTokens);
  return shortened(tokenizer_->decode(std::span(state.tokens).last(n), true));
}

NodePtr States::node_of(const std::string& client, const std::string& parent, Json operation,
                        Session& session, Origin origin) const {
  auto node = std::make_shared<Node>();
  node->digests = digests_of(session);
  const State& state = session.state();
  auto recipe = std::make_shared<const State>(recipe_of(state));
  node->client = client;
  node->operation = std::move(operation);
  node->created = static_cast<int64_t>(std::time(nullptr));
  node->describe(*recipe);
  node->excerpt = excerpt_of(state);
  node->kv_type = state.kv.shape().type;
  node->bytes = memory_of(session);
  const MutexLock lock(mutex_);
  Node::Changing& c = at(*node);
  c.parent = parent;
  c.origin = origin;
  c.recipe = std::move(recipe);
  return node;
}

// Returns true if `other` has other bits than a node whose bits the server may not have computed.
// Their ids are equal, because ids are made from tokens.
bool States::differs(const Node& node, const Node& other) const {
  const Node::Changing& c = at(node);
  const bool doubtful = c.removed ? c.files.blocks.has_value() : c.origin == Origin::uploaded;
  return doubtful && node.digests.state != other.digests.state;
}

// Gives a node its id. Returns an existing node of that id, unless another one is wanted. An upload
// with other bits than those of its tokens keeps its id, and the computed state gets the next one.
NodePtr States::place(Node& node, bool another) {
  const bool reserved = node.operation.contains("response");
  for (int n = 0;; ++n) {
    node.id = id_of(node.client, node.digests.id, node.operation, n);
    const auto there = nodes_.find(node.id);
    if (there == nodes_.end()) return nullptr;
    if (!another && (reserved || !differs(*there->second, node))) return there->second;
  }
}

NodePtr States::living(const std::string& id) const {
  const auto found = nodes_.find(id);
  return found == nodes_.end() || at(*found->second).removed ? nullptr : found->second;
}

void States::touch(Node& node) {
  at(node).used = ++clock_;
  at(node).used_at = static_cast<int64_t>(std::time(nullptr));
}

// Inserts a node. If its parent was removed meanwhile, the parent's parent takes its place.
void States::insert(const NodePtr& node) {
  Node::Changing& c = at(*node);
  for (auto gone = parents_.find(c.parent); gone != parents_.end() && living(c.parent) == nullptr;
       gone = parents_.find(c.parent))
    c.parent = gone->second;
  c.serial = ++serial_;
  ++changes_;
  touch(*node);
  nodes_[node->id] = node;
  children_[c.parent].insert(node.get());
  Client& client = clients_[node->client];
  client.states.insert(node.get());
  client.in_memory += c.recipe != nullptr ? 1 : 0;
  parents_.erase(node->id);
  expired_.erase(node->id);
  expired_before_.erase(node->id);
}

void States::admit(const NodePtr& node, const Session& session, std::vector<Eviction>& leaving) {
  check_count(node->client);
  insert(node);
  node->shared_bytes = shared_with(at(*node).parent, session);
  put_in(*node, session.fork());
  leaving = make_room(node.get());
  evict_tokens(node->client, node.get(), leaving);
}

// Puts a new node into the tree. The caller holds its `io`. Returns the existing node, if any. A
// state that is made again takes over the files of the removed one.
NodePtr States::enter(const NodePtr& node, const Session& session, bool another,
                      std::vector<Eviction>& leaving) {
  for (;;) {
    NodePtr there;
    {
      const MutexLock lock(mutex_);
      there = place(*node, another);
      if (there == nullptr) {
        admit(node, session, leaving);
        return nullptr;
      }
      touch(*there);
      ++at(*there).claims;
    }
    // The thread that made it may still be writing its files, or removing them.
    const std::lock_guard io(there->io_);
    const MutexLock lock(mutex_);
    if (!at(*there).removed) return there;
    const auto found = nodes_.find(there->id);
    if (found == nodes_.end() || found->second != there) continue;
    at(*node).files = at(*there).files;
    nodes_.erase(found);
    admit(node, session, leaving);
    return nullptr;
  }
}

NodePtr States::add(const std::string& client, const Parent& parent, Json operation,
                    Session session, Origin origin, bool another, bool shared) {
  expire();
  if (parent.origin == Origin::uploaded && session.size() > 0) origin = Origin::uploaded;
  const NodePtr node = node_of(client, parent.id, std::move(operation), session, origin);
  std::unique_lock io(node->io_);
  std::vector<Eviction> leaving;
  if (const NodePtr there = enter(node, session, another, leaving)) {
    const bool same = there->digests.state == node->digests.state;
    if (same && origin != Origin::uploaded && this->origin(there) == Origin::uploaded)
      verified(there);
    // Another server may have removed it from the store meanwhile.
    if (same && shared && in_store(there) != InStore::no) share(there, parent.id, session);
    return there;
  }
  std::exception_ptr error;
  try {
    if (shared && !another && origin == Origin::computed) share(node, parent.id, session);
    keep(*node, session);
  } catch (const std::exception& e) {
    tool::say("{}: not saved: {}\n", node->id, printable(e.what(), 3000));
    error = std::current_exception();
  }
  io.unlock();
  write_out(std::move(leaving));
  if (error != nullptr) {
    take_away(node, false);
    std::rethrow_exception(error);
  }
  std::vector<NodePtr> forgotten;
  {
    const MutexLock lock(mutex_);
    forgotten = surplus(client, node.get());
  }
  remove_expired(forgotten);
  return node;
}

void States::share(const NodePtr& node, const std::string& parent, Session& session) {
  if (options_.shared == nullptr) return;
  const InStore now = options_.shared->put(node->client, node->id, session, tokenizer_.get(),
                                           {parent, node->operation});
  const MutexLock lock(mutex_);
  InStore& known = at(*node).in_store;
  if (now != InStore::found || known != InStore::put) known = now;
}

Json States::json(const NodePtr& node) const {
  const MutexLock lock(mutex_);
  const Node& n = *node;
  const Node::Changing& c = at(n);
  // The parent may be known only to another server.
  const bool known = living(c.parent) != nullptr || options_.shared != nullptr;
  Json j = {{"id", n.id},
            {"object", "state"},
            {"digest", n.digests.id == Sha256() ? Json(nullptr) : Json(sha256_text(n.digests.id))},
            {"parent", c.parent.empty() || !known ? Json(nullptr) : Json(c.parent)},
            {"operation", n.operation},
            {"created", n.created},
            {"name", c.name ? Json(*c.name) : Json(nullptr)},
            {"pinned", c.pinned},
            {"origin", origin_name(c.origin)},
            {"tokens", n.transcript},
            {"positions", n.positions},
            {"bytes", n.bytes},
            {"shared_bytes", n.shared_bytes},
            {"resident", c.session.has_value()},
            {"open", n.open},
            {"excerpt", n.excerpt},
            {"question", n.question.empty() ? Json(nullptr) : Json(n.question)},
            {"role", n.role.empty() ? Json(nullptr) : Json(n.role)},
            {"messages", n.messages}};
  if (!c.lost.empty()) j["lost"] = true;
  return j;
}

void States::count(const Usage& usage) {
  const MutexLock lock(mutex_);
  totals_.reused += usage.reused;
  totals_.recomputed += usage.recomputed;
  totals_.fresh += usage.fresh;
}

Json States::totals() const {
  const MutexLock lock(mutex_);
  int64_t mapped = 0;
  size_t states = 0;
  for (const auto& [name, client] : clients_) states += client.states.size();
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
  return {{"states", states},
          {"store", shared},
          {"changes", changes_},
          {"reused", totals_.reused},
          {"recomputed", totals_.recomputed},
          {"new", totals_.fresh},
          {"evictions", evictions_},
          {"restores", restores_},
          {"blocks_memory", static_cast<int64_t>(blocks_.size()) - mapped},
          {"blocks_mapped", mapped}};
}

}  // namespace stet::serve
