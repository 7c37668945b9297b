// States in files: snapshots that are deltas of one another, and what is said of each beside it.
#include <sys/random.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "stet/base/error.hpp"
#include "stet/files/file.hpp"
#include "tools/serve/fields.hpp"
#include "tools/serve/states.hpp"

namespace stet::serve {
namespace {

void write_file(const std::string& path, std::string_view bytes) {
  AtomicFile file(path, 0600);
  file.write(std::as_bytes(std::span(bytes.data(), bytes.size())));
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

}  // namespace

std::string random_secret() {
  std::string secret(32, '\0');
  if (::getrandom(secret.data(), secret.size(), 0) != static_cast<ssize_t>(secret.size()))
    throw Error(ErrorKind::io, "", "random bytes", "32 of the system", "fewer");
  return secret;
}

std::string random_name() {
  const std::string secret = random_secret();
  return sha256_text(sha256_of(std::as_bytes(std::span(secret)))).substr(7, 32);
}

void States::open_directory() {
  std::error_code error;
  std::filesystem::create_directories(options_.directory, error);
  ::chmod(options_.directory.c_str(), 0700);
  secret_ = kept_secret(options_.directory);
  load_directory();
}

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
    const bool whole = node->saved && *node->saved != SnapshotForm::recipe;
    if (node->session && !whole) save(*node, node->session->fork(), SnapshotForm::delta);
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
  node->describe(recipe);
  node->bytes = static_cast<uint64_t>(blocks_of(snapshot.meta().positions)) *
                snapshot.meta().kv.block_bytes();
  nodes_[node->id] = node;
  order_.push_back(node);
}

}  // namespace stet::serve
