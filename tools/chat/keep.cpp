// Saving and loading in a chat, and the warning before unsaved messages are lost.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <stdexcept>

#include "stet/base/error.hpp"
#include "tools/chat/chat.hpp"
#include "tools/chat/terminal.hpp"

namespace stet::tool {
namespace {

std::string canonical(const std::string& path) {
  std::error_code ignored;
  const std::filesystem::path full = std::filesystem::weakly_canonical(path, ignored);
  return full.empty() ? path : full.string();
}

std::string count_text(size_t messages) {
  return fmt::format("{} message{}", messages, messages == 1 ? "" : "s");
}

}  // namespace

SavedStates::Saved SavedStates::content(const Conversation& conversation) {
  return {conversation.session().transcript(), conversation.messages()};
}

void SavedStates::add(const std::string& path, const Conversation& conversation) {
  files_[canonical(path)] = content(conversation);
}

bool SavedStates::has(const std::string& path) const { return files_.contains(canonical(path)); }

bool SavedStates::holds(const Saved& saved, const std::vector<int32_t>& transcript,
                        const Message& message) {
  const auto end = static_cast<size_t>(message.end);
  return std::find(saved.messages.begin(), saved.messages.end(), message) != saved.messages.end() &&
         end <= saved.transcript.size() &&
         std::equal(transcript.begin(), transcript.begin() + message.end, saved.transcript.begin());
}

size_t SavedStates::missing(const Conversation& conversation, const std::string& target,
                            const Conversation* last) const {
  std::map<std::string, Saved> files = files_;
  if (last != nullptr) files[canonical(target)] = content(*last);
  const std::vector<int32_t> transcript = conversation.session().transcript();
  return static_cast<size_t>(std::count_if(
      conversation.messages().begin(), conversation.messages().end(), [&](const Message& m) {
        // A message without tokens yet, such as a system message before the next turn, is a setting
        // and needs no file.
        return m.end > 0 && std::none_of(files.begin(), files.end(), [&](const auto& file) {
                 return holds(file.second, transcript, m);
               });
      }));
}

// `given` is "", "FILE", "--overwrite" or "--overwrite FILE".
void ChatShell::save(const std::string& given) {
  constexpr std::string_view kOverwrite = "--overwrite";
  const bool overwrite = given == kOverwrite || given.starts_with(std::string(kOverwrite) + " ");
  std::string path = overwrite ? given.substr(kOverwrite.size()) : given;
  path.erase(0, path.find_first_not_of(' '));
  if (path == "\"\"") throw std::runtime_error("/save: the name is empty; name a file");
  if (path.empty()) path = options_.save;
  if (path.empty())
    throw std::runtime_error("/save needs a file, since the chat was started without --save");
  if (overwrite)
    targets_.know(path);
  else if (canonical(path) != canonical(options_.save))
    targets_.check(path, "/save", fmt::format("/save --overwrite {} replaces it", printable(path)));
  save_to(path);
}

void ChatShell::save_to(const std::string& wanted) {
  const double start = seconds();
  const std::string& mode_text = options_.save_as.mode;
  const unsigned long mode = mode_text.empty() ? 0600 : std::stoul(mode_text, nullptr, 8);
  const std::optional<Snapshot>& from = branch().from;
  if (from) from->check_keeps_parents(wanted);
  // --replay gives another state, which the files of model and tokenizer in the snapshot need not fit.
  const Snapshot* const included = from && !options_.restore.how.replay ? &*from : nullptr;
  StateDigests d;
  const std::string path =
      targets_.save(wanted, static_cast<unsigned>(mode), [&](const std::string& to) {
        d = options_.save_as.save(current().session(), current().tokenizer(), to, included);
      });
  if (path != wanted) {
    complain(fmt::format("{} was changed by another program: saved to {} instead",
                         printable(wanted), printable(path)));
    if (wanted == options_.save) options_.save = path;
  }
  saved_.add(path, current());
  if (options_.json) return;
  note(fmt::format("saved {} tokens to {} in {:.1f} ms, state {}", current().session().size(),
                   printable(path), (seconds() - start) * 1e3, sha256_text(d.id)));
}

void ChatShell::load(const std::string& path) {
  if (path.empty()) throw std::runtime_error("/load needs a file");
  SaveTargets known = targets_;
  known.know(path);  // its stamp must be taken before it is read
  std::string greeting;
  Branch loaded = resume_chat(options_, path, current().session().shared_model(), &greeting);
  if (const size_t missing = saved_.missing(current()); missing > 0) {
    std::string name;
    for (int i = 1; name.empty() || branches_.contains(name); ++i)
      name = fmt::format("{}-{}", name_, i);
    note(fmt::format("({} not saved yet are kept in branch {})", count_text(missing), name));
    branches_.emplace(name, std::move(branch()));
  }
  branch() = std::move(loaded);
  targets_ = std::move(known);
  saved_.add(path, current());
  note(greeting);
}

// Returns whether the current branch is saved at the end. A conversation without messages is not,
// unless the file holds an earlier state of it.
bool ChatShell::saves_current() const {
  const Conversation& now = branches_.at(name_).conversation;
  return !options_.save.empty() &&
         (now.session().size() > 0 || !now.messages().empty() || saved_.has(options_.save));
}

// Returns a line for each branch with unsaved messages.
std::vector<std::string> ChatShell::unsaved_lines(bool may_stay) const {
  const Conversation& now = branches_.at(name_).conversation;
  const Conversation* last = saves_current() ? &now : nullptr;
  std::vector<std::string> lines;
  for (const auto& [name, branch] : branches_) {
    const size_t missing = saved_.missing(branch.conversation, options_.save, last);
    if (missing == 0) continue;
    const std::string who = branches_.size() == 1
                                ? "this conversation has"
                                : fmt::format("branch {} has", printable(name, 40));
    const std::string there = name == name_ ? "" : fmt::format("/switch {}, ", printable(name, 40));
    lines.push_back(fmt::format("{} {} not saved yet: {}{}{}", who, count_text(missing), there,
                                "/save FILE",
                                may_stay                ? " keeps them"
                                : branches_.size() == 1 ? " or --save FILE would have kept them"
                                                        : " would have kept them"));
  }
  return lines;
}

bool ChatShell::leave(bool may_stay) {
  if (left_) return true;
  const bool again = std::exchange(leaving_, true);
  const std::vector<std::string> lost = unsaved_lines(may_stay);
  for (size_t i = 0; i < lost.size() && !again; ++i) complain(lost[i]);
  if (!lost.empty() && may_stay && !again) {
    note("(/quit or Ctrl-D again leaves without keeping them)");
    return false;
  }
  if (saves_current()) save_to(options_.save);
  return left_ = true;
}

}  // namespace stet::tool
