#include "tools/line_editor.hpp"

#include <unistd.h>

#include <algorithm>
#include <iostream>

#ifdef STET_HAVE_LIBEDIT
#include <histedit.h>
#include <sys/stat.h>

#include <clocale>
#include <csignal>
#include <cstring>
#endif

namespace stet::tool {

#ifdef STET_HAVE_LIBEDIT

struct LineEditor::Impl {
  EditLine* editor = nullptr;
  History* history = nullptr;
  HistEvent event{};
  std::string file, prompt;
  Completer completer;
  bool given_up = false;

  Impl(Completer c, std::string history_file) : file(std::move(history_file)), completer(std::move(c)) {
    std::setlocale(LC_CTYPE, "");
    if (std::strcmp(std::setlocale(LC_CTYPE, nullptr), "C") == 0) std::setlocale(LC_CTYPE, "C.UTF-8");
    editor = el_init("stet", stdin, stdout, stderr);
    history = history_init();
    ::history(history, &event, H_SETSIZE, 1000);
    ::history(history, &event, H_SETUNIQUE, 1);
    if (!file.empty()) ::history(history, &event, H_LOAD, file.c_str());
    el_set(editor, EL_CLIENTDATA, this);
    el_set(editor, EL_PROMPT_ESC, &Impl::show_prompt, '\1');
    el_set(editor, EL_EDITOR, "emacs");
    el_set(editor, EL_HIST, ::history, history);
    el_set(editor, EL_ADDFN, "stet-complete", "complete the word", &Impl::complete);
    el_set(editor, EL_ADDFN, "stet-give-up", "give the line up", &Impl::give_up);
    el_set(editor, EL_ADDFN, "stet-stop", "suspend the process", &Impl::stop);
    el_source(editor, nullptr);  // the user's ~/.editrc
    // These keys are read as characters, so that no signal comes in the middle of an edit.
    el_set(editor, EL_SETTY, "-d", "-isig", nullptr);
    el_set(editor, EL_BIND, "^I", "stet-complete", nullptr);
    el_set(editor, EL_BIND, "^C", "stet-give-up", nullptr);
    el_set(editor, EL_BIND, "^Z", "stet-stop", nullptr);
    el_set(editor, EL_BIND, "^R", "em-inc-search-prev", nullptr);
  }
  ~Impl() {
    history_end(history);
    el_end(editor);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  static Impl& of(EditLine* editor) {
    Impl* self = nullptr;
    el_get(editor, EL_CLIENTDATA, &self);
    return *self;
  }
  static char* show_prompt(EditLine* editor) { return of(editor).prompt.data(); }

  static unsigned char give_up(EditLine* editor, int) {
    of(editor).given_up = true;
    std::fputs("^C\n", stdout);
    return CC_EOF;
  }

  static unsigned char stop(EditLine* editor, int) {
    el_set(editor, EL_PREP_TERM, 0);
    raise(SIGTSTP);
    el_set(editor, EL_PREP_TERM, 1);
    return CC_REDISPLAY;
  }

  // Inserts what all candidates agree on, or shows them.
  static unsigned char complete(EditLine* editor, int) {
    const LineInfo* info = el_line(editor);
    const std::string line(info->buffer, info->cursor);
    const std::string word = line.substr(line.find_last_of(' ') + 1);
    const std::vector<std::string> candidates = of(editor).completer(line);
    if (candidates.empty()) return CC_REFRESH_BEEP;
    std::string common = candidates[0];
    for (const std::string& candidate : candidates) {
      common.erase(std::mismatch(common.begin(), common.end(), candidate.begin(), candidate.end()).first, common.end());
    }
    if (candidates.size() == 1 && !common.ends_with('/')) common += ' ';
    if (common.size() > word.size()) {
      el_insertstr(editor, common.substr(word.size()).c_str());
      return CC_REFRESH;
    }
    std::fputc('\n', stdout);
    for (const std::string& candidate : candidates) std::fprintf(stdout, "%s  ", candidate.c_str());
    std::fputc('\n', stdout);
    return CC_REDISPLAY;
  }

  std::optional<std::string> read(const std::string& with_prompt) {
    prompt = with_prompt;
    given_up = false;
    int count = 0;
    el_set(editor, EL_PREP_TERM, 1);  // before the prompt shows: keys typed at once are edited, too
    const char* line = el_gets(editor, &count);
    if (given_up) {
      el_reset(editor);
      return "";
    }
    if (line == nullptr || count <= 0) return std::nullopt;
    std::string text(line, static_cast<size_t>(count));
    if (text.ends_with('\n')) text.pop_back();
    if (text.find_first_not_of(" \t") == std::string::npos) return text;
    ::history(history, &event, H_ENTER, text.c_str());
    if (!file.empty()) {
      const mode_t mask = umask(077);  // what is said to a model is nobody else's
      ::history(history, &event, H_SAVE, file.c_str());
      umask(mask);
    }
    return text;
  }
};

LineEditor::LineEditor(Completer completer, const std::string& history) {
  if (isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0) impl_ = std::make_unique<Impl>(std::move(completer), history);
}

#else

struct LineEditor::Impl {
  std::optional<std::string> read(const std::string&) { return std::nullopt; }
};
LineEditor::LineEditor(Completer, const std::string&) {}

#endif

LineEditor::~LineEditor() = default;

bool LineEditor::interactive() const { return isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0; }

std::optional<std::string> LineEditor::read(const std::string& prompt) {
  if (impl_ != nullptr) return impl_->read(prompt);
  if (interactive()) std::cout << prompt << std::flush;
  std::string line;
  if (!std::getline(std::cin, line)) return std::nullopt;
  return line;
}

}  // namespace stet::tool
