// The states that clients can name: immutable values in a tree, in memory while there is room and
// somebody uses them, else in files or as recipes that are computed again.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "stet/session/session.hpp"
#include "stet/snapshot/snapshot.hpp"
#include "stet/text/tokenizer.hpp"
#include "tools/serve/http.hpp"
#include "tools/serve/shared.hpp"

namespace stet::serve {

std::string random_secret();  // 32 bytes
std::string random_name();    // 32 hex digits

// How many tokens two begin with alike.
inline size_t common_prefix(std::span<const int32_t> a, std::span<const int32_t> b) {
  size_t n = 0;
  while (n < a.size() && n < b.size() && a[n] == b[n]) ++n;
  return n;
}

struct StatesOptions {
  uint64_t memory = uint64_t{2} << 30;   // bytes of KV blocks that idle states may hold together
  size_t per_client = 10000;             // states
  std::string directory;                 // where they are kept; "": nowhere
  bool durable = false;                  // before anybody is told of them
  bool share_prefixes = false;           // between clients
  std::shared_ptr<SharedStates> shared;  // with other servers; null: with none
};

// Where a state comes from. An uploaded one serves nothing but itself until it was computed again.
enum class Origin : uint8_t { computed, uploaded, verified };
const char* origin_name(Origin origin);

// One state of one client. What never changes is read without a lock; the rest is States' to guard.
// Whoever computes, reads or writes this state holds `io` for as long; the lock of States is held
// for moments only, and taken after it.
struct Node {
  void describe(const State& state);
  // All its tokens, those that a prune has shifted out among them.
  std::span<const int32_t> transcript_ids() const { return unshifted.empty() ? tokens : unshifted; }

  std::string id, client, parent;
  Json operation;
  int64_t created = 0;
  StateDigests digests;
  std::vector<int32_t> tokens;
  std::vector<int32_t> unshifted;  // its transcript, where a prune has shifted tokens out
  bool plain = false;              // its tokens alone gave it: no prunes, no edits
  int64_t messages = 0, transcript = 0;
  bool open = false;
  uint64_t bytes = 0, shared_bytes = 0;
  std::string excerpt, role;
  std::string question;  // the beginning of the last message of the user

  std::optional<std::string> name;
  bool pinned = false, removed = false;
  Origin origin = Origin::computed;
  std::optional<Session> session;     // while it is in memory
  std::optional<State> recipe;        // while it is neither there nor in a file
  std::optional<SnapshotForm> saved;  // the form of its file, where it has one
  std::string base;                   // the state whose file a delta needs
  int depth = 0;                      // how many files that are, one behind the other
  uint64_t used = 0;
  std::mutex io;
};
using NodePtr = std::shared_ptr<Node>;

// What became of the tokens of a request.
struct Usage {
  int64_t reused = 0, recomputed = 0, fresh = 0;
  std::string reason;
  Json json() const;
  int64_t prompt() const { return reused + recomputed + fresh; }
};

class States {
 public:
  States(std::shared_ptr<const Model> model, std::shared_ptr<const Tokenizer> tokenizer,
         const SessionOptions& session, const StatesOptions& options);

  // The state of a session as a node; the one that is there, where that client has this state
  // already, unless it is `another`.
  NodePtr add(const std::string& client, const std::string& parent, Json operation, Session session,
              Origin origin = Origin::computed, bool another = false, bool share = true);
  // Throws a RequestError (404) for what this client does not have, here or in the store.
  NodePtr find(const std::string& client, const std::string& id, const std::string& pointer);
  std::vector<NodePtr> list(const std::string& client) const;
  void remove(const NodePtr& node);
  void change(const NodePtr& node, std::optional<std::optional<std::string>> name,
              std::optional<bool> pinned);
  void verified(const NodePtr& node);

  // A session of this state; `usage` takes in what that cost. What has to be computed goes by
  // `append`.
  Session open(const NodePtr& node, const Appender& append, Usage* usage);
  // An empty session, or the one of this client's states, and of the prompts that it has running,
  // that shares most tokens with `ids`, cut to those (at most all but the last one).
  Session longest_prefix(const std::string& client, std::span<const int32_t> ids,
                         const Appender& append, Usage& usage);
  // A prompt that was processed and whose reply is being drawn: its tokens are known as long as the
  // answer lives.
  class Running;
  std::shared_ptr<Running> running(const std::string& client, const Session& prompt);

  Json json(const NodePtr& node) const;
  // Writes what is in no file yet.
  void save_all();
  uint64_t memory_used() const;
  uint64_t memory_budget() const { return options_.memory; }
  Json totals() const;  // of Usage, for the metrics
  void count(const Usage& usage);
  // A name that tells nothing of what it stands for.
  std::string handle(const std::string& prefix, const std::string& client,
                     const std::string& content) const;
  // The id of the state after a reply whose operation names this "response": it is known before.
  std::string response_id(const std::string& client, const std::string& name) const;

 private:
  // A state on its way out of memory.
  struct Leaving {
    NodePtr node;
    std::unique_lock<std::mutex> io;
    Session session;
  };

  NodePtr node_of(const std::string& client, const std::string& parent, Json operation,
                  Session& session, Origin origin) const;
  NodePtr place(Node& node, bool another);
  std::string id_of(const std::string& client, const Sha256& digest, const Json& operation,
                    int number) const;
  void check_count(const std::string& client) const;
  uint64_t shared_with(const std::string& parent, const KvCache& kv) const;
  Session restore(const Node& node, const Appender& append, Usage& usage);
  NodePtr find_here(const std::string& client, const std::string& id);
  NodePtr find_shared(const std::string& client, const std::string& id);

  void hold(const KvCache& kv);
  void release(const KvCache& kv);
  std::vector<Leaving> make_room(const Node* keep);
  void write_out(std::vector<Leaving> leaving);
  void withdraw(Node& node);

  void open_directory();
  std::string path_of(const std::string& id) const { return options_.directory + "/" + id; }
  void save(Node& node, Session session, SnapshotForm form);
  NodePtr base_for(const Node& node) const;
  void unneed(std::string id);
  void forget_files(const Node& node);
  void write_meta(const Node& node) const;
  void load_directory();
  void load_node(const std::string& path);

  const std::shared_ptr<const Model> model_;
  const std::shared_ptr<const Tokenizer> tokenizer_;
  const SessionOptions session_;
  const StatesOptions options_;
  std::string secret_;

  mutable std::mutex mutex_;
  std::map<std::string, NodePtr> nodes_;
  std::vector<NodePtr> order_;                          // as they were made
  std::unordered_map<const KvBlock*, int64_t> blocks_;  // held by states in memory, and by how many
  std::vector<std::weak_ptr<Running>> running_;
  std::map<std::string, int> needed_;           // files, by how many deltas
  std::map<std::string, std::string> orphans_;  // needed files of states that are gone; their bases
  uint64_t clock_ = 0;
  Usage totals_;
  uint64_t evictions_ = 0, restores_ = 0;
};

class States::Running {
 public:
  Running(std::string client, Session session)
      : client_(std::move(client)), session_(std::move(session)) {}

 private:
  friend class States;
  std::string client_;
  Session session_;  // States' lock is held for it
};

}  // namespace stet::serve
