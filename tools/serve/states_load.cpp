// Reads a state directory when the server starts.
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <set>
#include <tuple>

#include "stet/base/error.hpp"
#include "stet/files/file.hpp"
#include "tools/serve/fields.hpp"
#include "tools/serve/states.hpp"

namespace stet::serve {
namespace {

constexpr size_t kMostListed = 10;  // names in a line of the log

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size() && i < kMostListed; ++i)
    text += (i == 0 ? "" : ", ") + printable(names[i], 80);
  return names.size() <= kMostListed
             ? text
             : text + fmt::format(" and {} more", names.size() - kMostListed);
}

// Returns the id of the state whose file is the base of a delta.
std::string base_of(const Snapshot& snapshot) {
  const std::string& file = snapshot.meta().parent_file;
  if (snapshot.meta().form != SnapshotForm::delta || !file.ends_with(".stet")) return "";
  const std::string id = file.substr(0, file.size() - 5);
  return is_state_id(id) ? id : "";
}

// Returns the number of sets of recurrent arrays in a file: the last one, and those of anchors
// before it.
size_t array_sets(const SnapshotFile& file) {
  return 1 +
         static_cast<size_t>(std::ranges::count_if(file.anchors, [&](const AnchorEntry& anchor) {
           return anchor.position < file.meta.positions;
         }));
}

Origin origin_of_name(const std::string& name) {
  return name == "uploaded"   ? Origin::uploaded
         : name == "verified" ? Origin::verified
                              : Origin::computed;
}

}  // namespace

struct States::Loading {
  std::vector<std::string> gone;            // ids of deleted states
  std::map<std::string, size_t> in_memory;  // states of each client
  std::vector<std::string> left_out;        // ids with reasons
  std::set<std::string> clients;            // those that may own a state
  std::vector<std::string> recovered;       // ids
};

void States::load() {
  directory_->sweep();
  const StateDirectory::Content content = directory_->content();
  if (!content.strange.empty())
    tool::say("{}: ignored, because no state of this server describes them: {}\n",
              printable(directory_->path()), listed(content.strange));
  Loading loading;
  loading.gone = content.gone;
  std::vector<StateDirectory::Described> described = content.described;
  std::sort(described.begin(), described.end(),
            [](const auto& a, const auto& b) { return a.touched > b.touched; });
  std::vector<NodePtr> loaded;
  std::vector<std::string> undescribed = content.undescribed;
  for (const StateDirectory::Described& d : described) {
    try {
      if (NodePtr node = read_node(loading, d)) loaded.push_back(std::move(node));
    } catch (const Error& e) {
      loading.left_out.push_back(fmt::format("{} ({})", d.id, printable(e.what(), 300)));
    } catch (const std::exception& e) {  // the description is damaged
      tool::say("{}: {}\n", printable(directory_->file(d.id, ".json")), printable(e.what(), 300));
      undescribed.push_back(d.id);
    }
  }
  loading.clients.insert(options_.clients.begin(), options_.clients.end());
  if (options_.clients.empty()) loading.clients.insert("");
  for (const NodePtr& node : loaded) loading.clients.insert(node->client);
  for (const std::string& id : undescribed) {
    if (NodePtr node = recover(loading, id)) loaded.push_back(std::move(node));
  }
  if (!loading.recovered.empty())
    tool::say("{}: recovered from their tokens, without names and parents: {}\n",
              printable(directory_->path()), listed(loading.recovered));
  if (!loading.left_out.empty())
    tool::say("{}: left out: {}\n", printable(directory_->path()), listed(loading.left_out));
  order(std::move(loaded));
  load_gone(loading);
  std::vector<NodePtr> surplus_of_all;
  {
    const MutexLock lock(mutex_);
    for (const std::string& line : directory_->expired()) {
      const size_t space = line.find(' ');
      if (space != std::string::npos && living(line.substr(0, space)) == nullptr)
        expired_[line.substr(0, space)] = line.substr(space + 1);
    }
    std::vector<std::string> clients;
    for (const auto& [client, states] : clients_) clients.push_back(client);
    for (const std::string& client : clients) {
      for (NodePtr& node : surplus(client, nullptr)) surplus_of_all.push_back(std::move(node));
    }
  }
  remove_expired(surplus_of_all);
  expire();
}

// Reads a description and its files. Returns null for a state that was deleted, or that no client
// has got.
NodePtr States::read_node(Loading& loading, const StateDirectory::Described& described) {
  const std::string path = directory_->file(described.id, ".json");
  const Json meta = parse_body(read_text_file(path, size_t{1} << 20));
  if (meta.at("id").get<std::string>() != described.id)
    throw Error(ErrorKind::format, path, "id", "the name of the file", "another");
  if (meta.contains("removed")) {  // written by an older version
    directory_->rename(described.id, ".json", ".gone");
    loading.gone.push_back(described.id);
    return nullptr;
  }
  auto node = std::make_shared<Node>();
  node->id = described.id;
  node->client = meta.at("client").get<std::string>();
  node->operation = meta.at("operation");
  node->created = meta.at("created").get<int64_t>();
  node->excerpt = meta.at("excerpt").get<std::string>();
  {
    const MutexLock lock(mutex_);
    Node::Changing& c = at(*node);
    c.parent = meta.at("parent").get<std::string>();
    if (meta.at("name").is_string()) c.name = meta.at("name").get<std::string>();
    c.pinned = meta.at("pinned").get<bool>();
    c.origin = origin_of_name(meta.at("origin").get<std::string>());
    c.files.described = true;
    c.files.foreign = meta.contains("strange");
    c.used_at = c.touched_at = described.touched;
  }
  size_t& in_memory = loading.in_memory[node->client];
  if (!read_files(loading, *node, in_memory < options_.in_memory)) {
    if (meta.contains("pending")) {
      directory_->remove(node->id, ".json");
      return nullptr;
    }
    tool::say("{}: lost: no file has its tokens\n", node->id);
    const MutexLock lock(mutex_);
    at(*node).lost = "no file has its tokens";
    return node;
  }
  ++in_memory;
  return node;
}

// Sets a node from the files of a state. Returns false if none can be read. Throws a mismatch Error
// if they are of another model.
bool States::read_files(Loading&, Node& node, bool with_tokens) {
  const MutexLock lock(mutex_);
  Node::Changing& c = at(node);
  c.files.recipe = directory_->has(node.id, ".recipe");
  for (const char* ending : {".stet", ".recipe"}) {
    const bool blocks = ending == std::string_view(".stet");
    if ((blocks && c.files.foreign) || !directory_->has(node.id, ending)) continue;
    try {
      const Snapshot snapshot = Snapshot::open(directory_->file(node.id, ending));
      const SnapshotMeta& meta = snapshot.meta();
      if (blocks && meta.form == SnapshotForm::recipe) c.files.recipe = true;
      if (blocks && meta.form != SnapshotForm::recipe) c.files.blocks = meta.form;
      if (blocks) c.files.base = base_of(snapshot);
      if (!c.files.base.empty() && blocks) ++needed_[c.files.base];
      snapshot.check_compatible(*model_, session_.compute.contract, tokenizer_.get());
      auto recipe = std::make_shared<const State>(snapshot.recipe());
      node.digests = snapshot.digests();
      node.describe(*recipe);
      node.kv_type = meta.kv.type;
      node.bytes = static_cast<uint64_t>(blocks_of(meta.positions)) * meta.kv.block_bytes() +
                   array_sets(*snapshot.file()) * recurrent_shape(model_->config()).bytes();
      if (with_tokens) c.recipe = std::move(recipe);
      return true;
    } catch (const Error& e) {
      if (e.kind == ErrorKind::mismatch) throw;
      tool::say("{}: {}\n", node.id, printable(e.what(), 3000));
    }
  }
  return false;
}

// Returns a state whose description is lost or damaged, from its other files. Returns null if they
// cannot be read, or if its client is not known. Without a description, keys and values may be a
// user's download; with a damaged one, they may be of an upload, which is not trusted.
NodePtr States::recover(Loading& loading, const std::string& id) {
  const bool damaged = directory_->has(id, ".json");
  auto node = std::make_shared<Node>();
  node->id = id;
  node->operation = {{"name", "recovered"}};
  node->created = static_cast<int64_t>(std::time(nullptr));
  {
    const MutexLock lock(mutex_);
    Node::Changing& c = at(*node);
    c.files.foreign = !damaged && directory_->has(id, ".stet");
    c.origin = damaged && directory_->has(id, ".stet") ? Origin::uploaded : Origin::computed;
    c.used_at = node->created;
  }
  try {
    if (!read_files(loading, *node, true)) throw Error(ErrorKind::format, "", "", "tokens", "none");
    if (!find_client(*node, loading.clients))
      throw Error(ErrorKind::format, "", "client", "one whose name gives this id", "none");
    {
      const MutexLock lock(mutex_);
      node->excerpt = excerpt_of(*at(*node).recipe);
    }
    const std::lock_guard io(node->io_);
    describe_in_file(*node);
  } catch (const std::exception& e) {
    loading.left_out.push_back(fmt::format("{} ({})", id, printable(e.what(), 300)));
    return nullptr;
  }
  loading.recovered.push_back(id);
  return node;
}

// Finds the client of a state by its id. The id is made from the client's name, and from the text
// that was sent for the last reply, which the state does not hold. The id of a response is not made
// from its state: it belongs to the only client, if there is one.
bool States::find_client(Node& node, const std::set<std::string>& clients) const {
  constexpr int kMostEqual = 8;
  std::vector<Json> operations;
  for (const std::optional<size_t>& prefilled : possible_beginnings(node)) {
    for (const bool told : {false, true}) {
      Json operation = node.operation;
      if (told) operation["told"] = true;
      if (prefilled) operation["prefilled"] = *prefilled;
      operations.push_back(std::move(operation));
    }
  }
  for (const std::string& client : clients) {
    for (int i = 0; i < kMostEqual; ++i) {
      for (const Json& operation : operations) {
        if (id_of(client, node.digests.id, operation, i) != node.id) continue;
        node.client = client;
        node.operation = operation;
        return true;
      }
    }
  }
  if (clients.size() != 1) return false;
  node.client = *clients.begin();
  return true;
}

// Returns the numbers of bytes that a request may have given of a state's last reply, or none.
std::vector<std::optional<size_t>> States::possible_beginnings(const Node& node) const {
  constexpr size_t kLongest = size_t{64} << 10;
  std::vector<std::optional<size_t>> all = {std::nullopt};
  const MutexLock lock(mutex_);
  const std::vector<Message>& messages = at(node).recipe->chat.messages;
  if (messages.empty() || messages.back().role != "assistant") return all;
  for (size_t n = 0; n <= std::min(messages.back().content.size(), kLongest); ++n)
    all.emplace_back(n);
  return all;
}

// Builds the tree in the order of creation. A state in a cycle becomes a root.
void States::order(std::vector<NodePtr> loaded) {
  const MutexLock lock(mutex_);
  uint64_t used = loaded.size();
  for (const NodePtr& node : loaded) at(*node).used = used--;  // `loaded` begins with the latest
  clock_ = loaded.size();
  std::sort(loaded.begin(), loaded.end(), [](const NodePtr& a, const NodePtr& b) {
    return std::tie(a->created, a->transcript, a->id) < std::tie(b->created, b->transcript, b->id);
  });
  for (const NodePtr& node : loaded) nodes_[node->id] = node;
  for (const NodePtr& node : loaded) {
    Node::Changing& c = at(*node);
    NodePtr above = living(c.parent);
    for (size_t steps = 0; above != nullptr && steps < loaded.size(); ++steps) {
      if (above == node) c.parent = "";
      above = above == node ? nullptr : living(at(*above).parent);
    }
    c.serial = ++serial_;
    children_[c.parent].insert(node.get());
    Client& client = clients_[node->client];
    client.states.insert(node.get());
    client.in_memory += c.recipe != nullptr ? 1 : 0;
  }
  for (const NodePtr& node : loaded) {
    NodePtr base = living(at(*node).files.base);
    for (int& depth = at(*node).files.depth; base != nullptr && depth < 256; ++depth)
      base = living(at(*base).files.base);
  }
}

// Removes the files of deleted states, except those that deltas need.
void States::load_gone(const Loading& loading) {
  std::map<std::string, NodePtr> found;
  for (const std::string& id : loading.gone) {
    const MutexLock lock(mutex_);
    if (living(id) != nullptr) {
      directory_->remove(id, ".gone");  // the state was made again
      continue;
    }
    auto node = std::make_shared<Node>();
    node->id = id;
    Node::Changing& c = at(*node);
    c.removed = c.files.deleted = true;
    c.files.recipe = directory_->has(id, ".recipe");
    try {
      const Json meta = parse_body(read_text_file(directory_->file(id, ".gone"), size_t{1} << 20));
      c.files.foreign = meta.contains("strange");
      if (!c.files.foreign && directory_->has(id, ".stet")) {
        const Snapshot snapshot = Snapshot::open(directory_->file(id, ".stet"));
        node->digests = snapshot.digests();
        if (snapshot.meta().form != SnapshotForm::recipe) c.files.blocks = snapshot.meta().form;
        c.files.base = base_of(snapshot);
        if (!c.files.base.empty()) ++needed_[c.files.base];
      }
    } catch (const std::exception& e) {
      tool::say("{}: {}\n", id, printable(e.what(), 3000));
    }
    nodes_[id] = node;
    found[id] = node;
  }
  for (const auto& [id, node] : found) {
    {
      const MutexLock lock(mutex_);
      if (needed_.contains(id)) continue;
    }
    try {
      const std::lock_guard io(node->io_);
      delete_files(node);
    } catch (const std::exception& e) {
      tool::say("{}: not removed: {}\n", id, printable(e.what(), 3000));
    }
  }
}

}  // namespace stet::serve
