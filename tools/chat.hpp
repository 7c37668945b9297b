// What `stet chat` is made of: one turn, the shell that a person types into, and scripted conversations.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "stet/chat.hpp"
#include "tools/command.hpp"

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

// Says `user`, or lets the model reply to what is there, or (both empty) goes on with a reply that was cut. `show` gets the
// text of the reply. Ends early, in good order, on SIGINT: throws Interrupted where that was before the reply.
enum class Then { reply, go_on };
TurnReport take_turn(Conversation& conversation, const std::optional<std::string>& user, Then then, const GenerateOptions& options,
                     const std::function<void(std::string_view)>& show);

// Named conversations that branch from one another, and the commands on them.
class ChatShell {
 public:
  ChatShell(Conversation first, ChatOptions& options);

  // A message, or a command that begins with '/' ('//' begins a message). False when it was /quit. Throws Error for what
  // cannot be done; all is then as it was before.
  bool input(const std::string& line);
  std::vector<std::string> complete(const std::string& line) const;
  // Reads from standard input until it ends or /quit.
  void run();

  Conversation& current() { return branches_.at(name_); }
  const std::optional<TurnReport>& last() const { return last_; }  // since forget_last()
  void forget_last() { last_.reset(); }
  bool quiet = false;  // replies are not shown as they come

 private:
  struct Command;
  static const std::vector<Command>& commands();
  bool command(const std::string& line);
  bool converse(const std::optional<std::string>& user, Then then);
  std::string prompt_text() const;

  void help(const std::string& about);
  void save(const std::string& path);
  void load(const std::string& path);
  void fork(const std::string& name);
  void switch_to(const std::string& name);
  void list_branches();
  void rewind(const std::string& turns);
  void edit(const std::string& rest);
  void prune(const std::string& rest);
  void system(const std::string& text);
  void set(const std::string& rest);
  void show_state();
  void show_messages();
  void verify_state();

  ChatOptions& options_;
  std::map<std::string, Conversation> branches_;
  std::string name_ = "main";
  std::optional<TurnReport> last_;
  bool colour_;
};

// A conversation to begin with, as the options say; `greeting` is for stderr. `again`: the model that is loaded already.
Conversation open_chat(ChatOptions& options, std::string* greeting);
Conversation resume_chat(ChatOptions& options, const std::string& path, const std::shared_ptr<const Model>& loaded, std::string* greeting);

// Runs options.script. False when an expectation did not hold.
bool run_chat_script(ChatShell& shell, const ChatOptions& options);

}  // namespace stet::tool
