// What `stet chat` is made of: one turn, the shell that a person types into, what it keeps in
// files, and scripted conversations.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "stet/chat/conversation.hpp"
#include "tools/chat/save_targets.hpp"
#include "tools/command/command.hpp"

namespace stet::tool {

struct ChatOptions {
  ModelOptions model;
  SamplingOptions sampling;
  GenerateOptions generate{512, false};
  SaveFileOptions save_as;
  RestoreFileOptions restore;
  std::string system, script, resume, save, template_file;
  std::vector<std::string> variables;  // name=JSON
  bool special_in_user_text = false, autosave = false, stats = false, json = false;
  bool overwrite = false;  // of a file that --resume has not read
};

// One reply and how it came about.
struct TurnReport {
  PromptReport prompt;
  std::vector<int32_t> prompt_ids;  // what was processed before the reply
  Reply reply;
  double prefill_s = 0, first_token_s = 0, decode_s = 0;

  Json json() const;
  std::string text() const;  // one line
};

// Says `user`, or lets the model reply to what is there, or (both empty) goes on with a reply that
// was cut. `show` gets the text of the reply, `progress` the tokens of the prompt. Ends early, in
// good order, when ChatSignals::stopping(): throws Interrupted where that was before the reply.
enum class Then { reply, go_on };
TurnReport take_turn(Conversation& conversation, const std::optional<std::string>& user, Then then,
                     const GenerateOptions& options,
                     const std::function<void(std::string_view)>& show,
                     const Progress& progress = nullptr);

// What can be changed with /set. Names and values are as they are typed.
std::vector<std::string> setting_names();
std::string settings_text(const GenerationState& state, const ChatOptions& options);  // a line each
// Changes one setting, or throws an Error that names it and the range it accepts. Returns what else
// is to be said of it, or "".
std::string change_setting(GenerationState& state, ChatOptions& options, int64_t vocab_size,
                           const std::string& name, const std::string& value);

// For /state, /messages and /verify.
std::string state_text(Session& session, const ModelOptions& model);
std::string messages_text(const std::vector<Message>& messages);
// Proves the state of a running session. Throws a mismatch Error where it is not equal.
std::string verify_live_state(Session& session, const Progress& progress);

// What files hold of the conversations of a chat.
class SavedStates {
 public:
  // The file at `path` holds this conversation from now on.
  void add(const std::string& path, const Conversation& conversation);
  // How many messages of a conversation no file holds. `target`: a file that will be written with
  // `last`, so that what it holds does not count.
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

  std::map<std::string, Saved> files_;  // by canonical path
};

// Named conversations that branch from one another, and the commands on them.
class ChatShell {
 public:
  // `targets` knows the files of --resume and --save as they were before anything was read.
  ChatShell(Conversation first, ChatOptions& options, SaveTargets targets);

  // Whether a person at a terminal types.
  static bool interactive();
  // A message, or a command that begins with '/' ('//' begins a message). False when it was /quit.
  // Throws Error for what cannot be done; all is then as it was before.
  bool input(const std::string& line);
  std::vector<std::string> complete(const std::string& line) const;
  // Reads from standard input until it ends, or /quit, or a signal that ends the chat. False where
  // something could not be done that nobody was there to mend.
  bool run();
  // Writes the current branch to its target (--save), and names on stderr what no file holds. False
  // where that was said for the first time to someone who `may_stay`. Nothing happens when the chat
  // was left already.
  bool leave(bool may_stay);

  Conversation& current() { return branches_.at(name_); }
  const std::optional<TurnReport>& last() const { return last_; }  // since clear_last()
  void clear_last() { last_.reset(); }
  bool quiet = false;  // replies are not shown as they come

 private:
  struct Command;
  static const std::vector<Command>& commands();
  bool command(const std::string& line);
  bool try_input(const std::string& text);
  bool try_leave();
  bool converse(const std::optional<std::string>& user, Then then);
  void report_end();
  std::string prompt_text() const;
  std::string greeting() const;

  void help(const std::string& about);
  void save(const std::string& given);
  void save_to(const std::string& path);
  void load(const std::string& path);
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
  std::map<std::string, Conversation> branches_;
  std::string name_ = "main";
  SavedStates saved_;
  SaveTargets targets_;
  std::optional<TurnReport> last_;
  bool colour_;
  bool leaving_ = false, left_ = false;  // leave() was called since the last input; for good
  bool failed_ = false;                  // what run() returns
};

// A conversation to begin with, as the options say; `greeting` is for stderr. `again`: the model
// that is loaded already.
Conversation open_chat(ChatOptions& options, std::string* greeting);
Conversation resume_chat(ChatOptions& options, const std::string& path,
                         const std::shared_ptr<const Model>& loaded, std::string* greeting);

// Runs options.script. False when an expectation did not hold.
bool run_chat_script(ChatShell& shell, const ChatOptions& options);

}  // namespace stet::tool
