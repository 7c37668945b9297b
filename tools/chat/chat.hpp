// The parts of `stet chat`: one turn, the shell, the record of saved messages, and scripted
// conversations.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "stet/chat/conversation.hpp"
#include "tools/chat/save_targets.hpp"
#include "tools/command/command.hpp"
#include "tools/prompt/speculate_option.hpp"

namespace stet::tool {

struct ChatOptions {
  ModelOptions model;
  SamplingOptions sampling;
  GenerateOptions generate{512, false};
  SpeculateOption speculate;
  SaveFileOptions save_as;
  RestoreFileOptions restore;
  std::optional<std::string> system;  // "" removes the system message
  std::string script, resume, save, template_file, tools_file;
  std::vector<std::string> variables;  // each NAME=JSON
  std::optional<Json> tools;           // the functions in tools_file
  bool special_in_user_text = false, autosave = false, stats = false, json = false;
  bool overwrite = false;  // --save may replace a file that --resume has not read
};

// One reply, the prompt before it, and their times.
struct TurnReport {
  PromptReport prompt;
  std::vector<int32_t> prompt_ids;  // the tokens processed before the reply
  Reply reply;
  double prefill_s = 0, first_token_s = 0, decode_s = 0;
  bool speculated = false;

  Json json() const;
  std::string text() const;  // one line
};

// Takes one turn: appends the messages `said`, if any, and replies, or (go_on) continues a reply
// that was stopped. `show` gets the text of the reply, `progress` the number of prompt tokens
// processed. Ends early once ChatSignals::stopping(); throws Interrupted if the reply has not
// started by then.
enum class Then { reply, go_on };
TurnReport take_turn(Conversation& conversation, const std::vector<Message>& said, Then then,
                     const GenerateOptions& options,
                     const std::function<void(std::string_view)>& show,
                     const Progress& progress = nullptr);

// Return the settings that /set changes, and their names. Names and values are as typed.
std::vector<std::string> setting_names();
std::string settings_text(const GenerationState& state, const ChatOptions& options);  // a line each
// Changes one setting. Throws an Error with its name and range. Returns a remark on the change, or
// "".
std::string change_setting(GenerationState& state, ChatOptions& options, int64_t vocab_size,
                           const std::string& name, const std::string& value);

// Return the texts of /state and /messages.
std::string state_text(Session& session, const ModelOptions& model);
std::string messages_text(const std::vector<Message>& messages);
// Computes the state of a session again. Throws a mismatch Error if it differs.
std::string verify_live_state(Session& session, const Progress& progress);

// Records which messages of a chat are saved in which files.
class SavedStates {
 public:
  // Records that the file at `path` holds this conversation.
  void add(const std::string& path, const Conversation& conversation);
  bool has(const std::string& path) const;
  // Returns the number of messages of a conversation that no file holds. If `target` will be
  // written with `last`, that counts instead of its present content.
  size_t missing(const Conversation& conversation, const std::string& target = "",
                 const Conversation* last = nullptr) const;

 private:
  struct Saved {
    std::vector<int32_t> transcript;
    std::vector<Message> messages;
  };
  static bool holds(const Saved& saved, const std::vector<int32_t>& transcript,
                    const Message& message);
  static Saved content(const Conversation& conversation);

  std::map<std::string, Saved> files_;  // key: canonical path
};

// A conversation of a chat, and the snapshot that it was resumed from, if there is one.
struct Branch {
  Conversation conversation;
  std::optional<Snapshot> from = std::nullopt;

  Branch fork() const { return {conversation.fork(), from}; }
};

// Named conversations that branch from one another, and the commands on them.
class ChatShell {
 public:
  // `targets` knows the files of --resume and --save as they were before anything was read.
  ChatShell(Branch first, ChatOptions& options, SaveTargets targets);

  // Returns true if input and output are a terminal.
  static bool interactive();
  // Takes a message, or a command that begins with '/' ("//" begins a message). Returns false after
  // /quit. Throws an exception if a command fails; everything is then as it was before.
  bool input(const std::string& line);
  // Takes the results of a reply's tool calls, and draws the reply to them.
  void send_results(const std::vector<Message>& results);
  std::vector<std::string> complete(const std::string& line) const;
  // Reads standard input until its end, /quit, or a signal that ends the chat. Returns false if a
  // command failed and no user at a terminal could correct it.
  bool run();
  // Saves the current branch to --save. Names on stderr the messages that no file holds. If some
  // are named for the first time and `may_stay` is set, returns false, and the chat continues. Does
  // nothing once the chat was left.
  bool leave(bool may_stay);

  Conversation& current() { return branch().conversation; }
  const std::optional<TurnReport>& last() const { return last_; }  // null after clear_last()
  void clear_last() { last_.reset(); }
  bool quiet = false;  // do not print replies

 private:
  struct Command;
  Branch& branch() { return branches_.at(name_); }
  static const std::vector<Command>& commands();
  bool command(const std::string& line);
  bool try_input(const std::string& text);
  bool try_leave();
  bool converse(const std::vector<Message>& said, Then then);
  void report_end();
  std::string prompt_text() const;
  std::string greeting() const;

  void help(const std::string& about);
  void tell(const std::string& text);
  static const Command& find_command(const std::string& word);
  void save(const std::string& given);
  void save_to(const std::string& path);
  void load(const std::string& path);
  bool saves_current() const;
  std::vector<std::string> unsaved_lines(bool may_stay) const;
  void fork(const std::string& name);
  void switch_to(const std::string& name);
  void list_branches();
  void rewind(const std::string& turns);
  void edit(const std::string& rest);
  void prune(const std::string& rest);
  void system(const std::string& text);
  void set(const std::string& rest);
  void verify();

  ChatOptions& options_;
  std::map<std::string, Branch> branches_;
  std::string name_ = "main";
  SavedStates saved_;
  SaveTargets targets_;
  std::optional<TurnReport> last_;
  bool colour_;
  bool leaving_ = false, left_ = false;  // leave() was called since the last input; it saved
  bool failed_ = false;                  // a command failed without a user to correct it
};

// Return the branch to begin with, according to the options. resume_chat() sets `greeting` to a line
// for stderr. `loaded` is the model if it is loaded already, as for /load, else null.
Branch open_chat(ChatOptions& options);
Branch resume_chat(ChatOptions& options, const std::string& path,
                   const std::shared_ptr<const Model>& loaded, std::string* greeting);

// Runs options.script. Returns false if a reply was not as expected.
bool run_chat_script(ChatShell& shell, const ChatOptions& options);

}  // namespace stet::tool
