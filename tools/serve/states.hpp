// The states that clients can name: immutable values in a tree. They are in memory while there is
// room and they are used, else in files or as recipes that are computed again.
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
#include <unordered_set>
#include <vector>

#include "stet/session/session.hpp"
#include "stet/snapshot/snapshot.hpp"
#include "stet/text/tokenizer.hpp"
#include "tools/serve/http.hpp"
#include "tools/serve/mutex.hpp"
#include "tools/serve/shared_states.hpp"
#include "tools/serve/state_directory.hpp"

namespace stet::serve {

std::string random_name();  // returns 32 hex digits

// Returns true if its tokens alone give a state: it has no prunes, no edits and no interventions.
inline bool is_plain(const State& state) {
  return state.prunes.empty() && state.edits.empty() && state.interventions.empty();
}

// Returns the length of the common beginning of two sequences.
inline size_t common_prefix(std::span<const int32_t> a, std::span<const int32_t> b) {
  size_t n = 0;
  while (n < a.size() && n < b.size() && a[n] == b[n]) ++n;
  return n;
}

struct StatesOptions {
  uint64_t memory = uint64_t{2} << 30;  // maximum bytes of KV blocks of idle states
  // Maximum states of a client with tokens in memory. With a directory, others are only in files.
  size_t in_memory = 10000;
  // Maximum states of a client, in memory and in files. The least recently used are deleted. By
  // default as many as in memory, or with a directory any number.
  std::optional<size_t> max_states;
  int64_t ttl = 0;        // seconds after its last use until a state is deleted; 0: never
  std::string directory;  // that keeps the states, or ""
  std::vector<std::string> clients;      // all that have keys; none: requests need no key
  double lock_seconds = 25;              // longest wait for another server's lock on it
  bool durable = false;                  // write a state before a reply names it
  bool share_prefixes = false;           // between clients
  std::shared_ptr<SharedStates> shared;  // shared with other servers, or null
};

// The source of a state. The blocks of an uploaded one are used for no other state until the server
// has verified it.
enum class Origin : uint8_t { computed, uploaded, verified };
const char* origin_name(Origin origin);

// The state from which another one is made, as it was before it was opened. It may be removed or
// verified meanwhile. `id` is "" for a root.
struct Parent {
  std::string id;
  Origin origin = Origin::computed;
};

// A state of a client. Its public members never change once States has it. States guards the
// others.
class Node {
 public:
  // Sets the members that follow from tokens and settings.
  void describe(const State& recipe);

  std::string id, client;
  Json operation;
  int64_t created = 0;
  StateDigests digests;
  bool plain = false;  // is_plain()
  bool given = false;  // its tokens and settings give the same bits again
  KvType kv_type = KvType::f32;
  int64_t positions = 0, messages = 0, transcript = 0;
  bool open = false;
  // Bytes of KV blocks and recurrent arrays, anchors' included, and how many of them were the
  // parent's when the state was made.
  uint64_t bytes = 0, shared_bytes = 0;
  std::string excerpt, role;
  std::string question;  // the beginning of the last message of the user

 private:
  friend class States;

  // The files of the state (StateDirectory).
  struct Files {
    bool described = false, recipe = false, deleted = false;
    bool foreign = false;                // there is a .stet that the server did not write
    std::optional<SnapshotForm> blocks;  // the form of the .stet
    std::string base;                    // id of the state whose .stet a delta needs
    int depth = 0;                       // length of the chain of deltas
  };
  // Guarded by the mutex of States. Reached only through States::at(), which requires it.
  struct Changing {
    std::string parent;
    std::optional<std::string> name;
    bool pinned = false;
    bool removed = false;  // no longer in the tree; the node exists as long as its files
    Origin origin = Origin::computed;
    InStore in_store = InStore::no;
    int64_t claims = 1;                   // add() calls that returned it, less release() calls
    std::optional<Session> session;       // set while keys and values are in memory
    std::shared_ptr<const State> recipe;  // set while tokens are in memory
    Files files;
    std::string lost;  // the reason if no file holds it
    uint64_t used = 0, serial = 0;
    int64_t used_at = 0, touched_at = 0;  // seconds since 1970; touched_at is the file's time
  };
  Changing changing_;
  // Held while this state is computed, read or written. A thread that locks two nodes takes a delta
  // before its base. It takes the mutex of States last, and only briefly.
  std::mutex io_;
};
using NodePtr = std::shared_ptr<Node>;

// The tokens of a request, by the way in which the server got their keys and values.
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

  // Returns a node for the state of a session. Returns the existing one if the client has this
  // state, unless `another` is set. A state that has tokens of an uploaded parent is uploaded.
  NodePtr add(const std::string& client, const Parent& parent, Json operation, Session session,
              Origin origin = Origin::computed, bool another = false, bool share = true);
  // Throws a RequestError (404) if this client has no such state, here or in the store. Its code is
  // state_expired if a limit has deleted the state. A state that another server has removed from
  // the store is removed here, too.
  NodePtr find(const std::string& client, const std::string& id, const std::string& pointer);
  std::vector<NodePtr> list(const std::string& client);  // in the order in which they were made
  // Returns the states, each with its parent in the tree of conversations (tree.hpp). The parent is
  // found by the tokens, or by the operation if these are not in memory. It may be null.
  struct InTree {
    NodePtr node, above;
  };
  std::vector<InTree> conversations(const std::string& client);
  // Removes a state, here and in the store. Its children then become children of its parent.
  // Throws a RequestError (503), and removes nothing, if the store is unreachable.
  void remove(const NodePtr& node);
  // Undoes one call of add(). Removes the state, unless another call has returned it too, or a
  // client has named or pinned it.
  void release(const NodePtr& node);
  void change(const NodePtr& node, std::optional<std::optional<std::string>> name,
              std::optional<bool> pinned);
  void verified(const NodePtr& node);
  // Deletes the states that were not used for --ttl seconds.
  void expire();
  // Throws a RequestError (429) if no state can be added: all others of this client are pinned, and
  // there are as many as may be.
  void check_room(const std::string& client);
  Origin origin(const NodePtr& node) const;
  // Returns a node as the parent of others. Call it before open().
  Parent as_parent(const NodePtr& node) const {
    return {node->id, node->positions == 0 ? Origin::computed : origin(node)};
  }
  NodePtr parent_of(const NodePtr& node) const;  // returns null for a root

  // Returns a session of this state and adds the cost to `usage`. Missing blocks are computed by
  // `append`. Throws a RequestError (404) if the state was removed meanwhile. Throws one (410) if
  // its files are lost and its tokens alone do not give it.
  Session open(const NodePtr& node, const Appender& append, Usage* usage);
  // Returns a session of this state if its keys and values are in memory.
  std::optional<Session> in_memory(Node& node);
  // Returns the session that shares most tokens with `ids`, cut to these. Considers this client's
  // states and running prompts; at least the last token is left to process.
  Session longest_prefix(const std::string& client, std::span<const int32_t> ids,
                         const Appender& append, Usage& usage);
  // A processed prompt whose reply is being drawn. Other prompts may reuse its tokens while the
  // object lives. Returns null if its tokens alone do not give it, or if they are of an uploaded
  // parent.
  class Running;
  std::shared_ptr<Running> running(const std::string& client, const Parent& parent,
                                   const Session& prompt);

  Json json(const NodePtr& node) const;
  // Writes states without files, until the time `until` (tool::seconds()). First come those that
  // tokens do not give, then the tokens of the others, then keys and values. Logs failures and
  // continues. Returns the number of states that no file holds.
  size_t save_all(double until);
  uint64_t memory_used() const;
  uint64_t memory_budget() const { return options_.memory; }
  Json totals() const;  // numbers for the metrics
  void count(const Usage& usage);
  // Returns a name that reveals nothing about the content.
  std::string handle(const std::string& prefix, const std::string& client,
                     const std::string& content) const;
  // Returns the id of the future state after a reply whose operation names this "response".
  std::string response_id(const std::string& client, const std::string& name) const;

 private:
  // A state being evicted: its keys and values, and its tokens if `tokens` is set.
  struct Eviction {
    NodePtr node;
    std::unique_lock<std::mutex> io;
    std::optional<Session> session;
    bool tokens = false;
  };
  struct Client {
    std::unordered_set<Node*> states;  // all but removed ones
    size_t in_memory = 0;              // states with tokens in memory
  };

  Node::Changing& at(Node& node) const STET_REQUIRES(mutex_) { return node.changing_; }
  const Node::Changing& at(const Node& node) const STET_REQUIRES(mutex_) { return node.changing_; }

  // states.cpp
  NodePtr node_of(const std::string& client, const std::string& parent, Json operation,
                  Session& session, Origin origin) const;
  std::string excerpt_of(const State& state) const;
  bool differs(const Node& node, const Node& other) const STET_REQUIRES(mutex_);
  NodePtr place(Node& node, bool another) STET_REQUIRES(mutex_);
  std::string id_of(const std::string& client, const Sha256& digest, const Json& operation,
                    int number) const;
  void insert(const NodePtr& node) STET_REQUIRES(mutex_);
  void admit(const NodePtr& node, const Session& session, std::vector<Eviction>& leaving)
      STET_REQUIRES(mutex_);
  NodePtr enter(const NodePtr& node, const Session& session, bool another,
                std::vector<Eviction>& leaving);
  void touch(Node& node) STET_REQUIRES(mutex_);
  NodePtr living(const std::string& id) const STET_REQUIRES(mutex_);
  NodePtr find_here(const std::string& client, const std::string& id);
  InStore in_store(const NodePtr& node) const;
  NodePtr find_shared(const std::string& client, const std::string& id);
  [[noreturn]] void refuse_unknown(const std::string& client, const std::string& id,
                                   const std::string& pointer) const STET_REQUIRES(mutex_);
  bool withdraw(Node& node, bool unless_claimed, std::vector<NodePtr>& children);
  bool take_away(const NodePtr& node, bool unless_claimed);
  void share(const NodePtr& node, const std::string& parent, Session& session);

  // states_memory.cpp
  uint64_t block_bytes() const;
  uint64_t memory_of(const Session& session) const;
  uint64_t shared_with(const std::string& parent, const Session& session) const
      STET_REQUIRES(mutex_);
  uint64_t bytes_held() const STET_REQUIRES(mutex_);
  void hold(const Session& session) STET_REQUIRES(mutex_);
  void release_blocks(const Session& session) STET_REQUIRES(mutex_);
  void put_in(Node& node, Session session) STET_REQUIRES(mutex_);
  std::optional<Session> take_out(Node& node) STET_REQUIRES(mutex_);
  std::vector<Eviction> make_room(const Node* keep) STET_REQUIRES(mutex_);
  void evict_tokens(const std::string& client, const Node* keep, std::vector<Eviction>& leaving)
      STET_REQUIRES(mutex_);
  void write_out(std::vector<Eviction> leaving);
  Session put_back(const NodePtr& node, std::unique_lock<std::mutex> io, Session session,
                   std::shared_ptr<const State> recipe);
  std::optional<Session> from_file(Node& node, const Appender& append, Usage& usage);
  Session computed_again(Node& node, const Appender& append, Usage& usage);
  std::shared_ptr<const State> tokens_of(const Node& node) const;
  [[noreturn]] void refuse_lost(const Node& node, const std::string& why) const;
  std::optional<Session> from_memory_or_file(const NodePtr& node, const Appender& append);
  // The state or running prompt that shares most tokens with a new prompt.
  struct Longest {
    NodePtr node;
    std::optional<Session> running;
    size_t tokens = 0;
  };
  Longest longest(const std::string& client, std::span<const int32_t> ids,
                  const std::set<NodePtr>& lost) const;

  // states_limits.cpp
  std::optional<size_t> most_states() const;
  std::vector<NodePtr> deletable(const std::string& client, const Node* keep) STET_REQUIRES(mutex_);
  std::vector<NodePtr> surplus(const std::string& client, const Node* keep) STET_REQUIRES(mutex_);
  void check_count(const std::string& client) STET_REQUIRES(mutex_);
  void remove_expired(const std::vector<NodePtr>& nodes);

  // states_files.cpp
  bool in_files() const { return directory_ != nullptr; }
  void describe_in_file(Node& node, bool pending = false);
  bool describe_once(Node& node, bool pending);
  void save_recipe(Node& node, Session& session);
  void save_blocks(Node& node, Session& session);
  void write_blocks(Node& node, Session& session);
  void keep(Node& node, Session& session);
  NodePtr base_for(const Node& node) const STET_REQUIRES(mutex_);
  void release_base(const std::string& id);
  void discard_blocks(Node& node);
  void delete_files(const NodePtr& node);
  bool is_removed(const Node& node) const;
  bool has_blocks(const Node& node) const;
  std::optional<Session> resident(const Node& node) const;
  bool save_truth(Node& node);
  bool save_tokens(Node& node);
  void save_all_blocks(const std::vector<NodePtr>& all, double until);

  // states_load.cpp
  struct Loading;
  void load();
  NodePtr read_node(Loading& loading, const StateDirectory::Described& described);
  bool read_files(Loading& loading, Node& node, bool with_tokens);
  NodePtr recover(Loading& loading, const std::string& id);
  bool find_client(Node& node, const std::set<std::string>& clients) const;
  std::vector<std::optional<size_t>> possible_beginnings(const Node& node) const;
  void load_gone(const Loading& loading);
  void order(std::vector<NodePtr> loaded);

  const std::shared_ptr<const Model> model_;
  const std::shared_ptr<const Tokenizer> tokenizer_;
  const SessionOptions session_;
  const StatesOptions options_;
  const std::unique_ptr<StateDirectory> directory_;  // may be null
  const std::string secret_;

  mutable Mutex mutex_;
  // A removed state stays here until its files are removed: a request for the same state waits.
  std::unordered_map<std::string, NodePtr> nodes_ STET_GUARDED_BY(mutex_);
  std::unordered_map<std::string, std::unordered_set<Node*>> children_ STET_GUARDED_BY(mutex_);
  std::map<std::string, Client> clients_ STET_GUARDED_BY(mutex_);
  std::unordered_set<Node*> resident_ STET_GUARDED_BY(mutex_);  // keys and values are in memory
  // The number of states in memory that use each block.
  std::unordered_map<const KvBlock*, int64_t> blocks_ STET_GUARDED_BY(mutex_);
  // Recurrent arrays of states and anchors in memory, and how many hold them.
  std::unordered_map<const RecurrentBuffer*, int64_t> arrays_ STET_GUARDED_BY(mutex_);
  std::vector<std::weak_ptr<Running>> running_ STET_GUARDED_BY(mutex_);
  std::unordered_map<std::string, int> needed_ STET_GUARDED_BY(mutex_);  // deltas on each state
  // The clients of expired states, in two generations, and the parents of removed states.
  std::unordered_map<std::string, std::string> expired_ STET_GUARDED_BY(mutex_), expired_before_
      STET_GUARDED_BY(mutex_);
  std::unordered_map<std::string, std::string> parents_ STET_GUARDED_BY(mutex_);
  // Number of changes to the list. A page that knows it need not fetch the list again.
  uint64_t changes_ STET_GUARDED_BY(mutex_) = 0;
  uint64_t clock_ STET_GUARDED_BY(mutex_) = 0, serial_ STET_GUARDED_BY(mutex_) = 0;
  int64_t next_expiry_ STET_GUARDED_BY(mutex_) = 0;
  Usage totals_ STET_GUARDED_BY(mutex_);
  uint64_t evictions_ STET_GUARDED_BY(mutex_) = 0, restores_ STET_GUARDED_BY(mutex_) = 0;
};

class States::Running {
 public:
  Running(std::string client, Session session)
      : client_(std::move(client)), session_(std::move(session)) {}

 private:
  friend class States;
  std::string client_;
  Session session_;  // only forked, under the mutex of States
};

}  // namespace stet::serve
