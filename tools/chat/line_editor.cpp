#include "tools/chat/line_editor.hpp"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "tools/prompt/text_input.hpp"

#ifdef STET_HAVE_LIBEDIT
#include <histedit.h>
#include <sys/stat.h>

#include <clocale>
#include <csignal>
#include <cstring>
#include <cwchar>

#include "stet/base/error.hpp"
#endif

namespace stet::tool {
namespace {

bool on_terminal() { return isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0; }

}  // namespace

// Reads bytes of standard input until `wake_fd` is readable.
class LineEditor::Input {
 public:
  explicit Input(int wake_fd) : wake_fd_(wake_fd) {}

  // Returns false at the end of input, and when `wake_fd` is readable.
  bool next(char* byte) {
    if (at_ == size_ && !fill()) return false;
    *byte = buffer_[at_++];
    return true;
  }
  // Returns false if there is no further line. A pipe may have any encoding of TextDecoder.
  bool next_line(std::string* line) {
    const bool piped = isatty(STDIN_FILENO) == 0;
    for (char byte; !take_line(line); piped ? decoder_.add(byte, &text_) : text_.push_back(byte)) {
      if (next(&byte)) continue;
      if (piped) decoder_.end(&text_);
      *line = std::exchange(text_, "");
      return !line->empty();
    }
    if (piped && line->ends_with('\r')) line->pop_back();
    return true;
  }

 private:
  bool fill() {
    pollfd files[] = {{STDIN_FILENO, POLLIN, 0}, {wake_fd_, POLLIN, 0}};
    at_ = size_ = 0;
    for (;;) {
      if (::poll(files, 2, -1) < 0 && errno != EINTR) return false;
      if (files[1].revents != 0) return false;
      if (files[0].revents == 0) continue;
      const ssize_t count = ::read(STDIN_FILENO, buffer_, sizeof buffer_);
      if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      size_ = count > 0 ? static_cast<size_t>(count) : 0;
      return size_ > 0;
    }
  }

  // Moves a complete line out of text_. Only its last character can be the end of a line.
  bool take_line(std::string* line) {
    if (!text_.ends_with('\n')) return false;
    text_.pop_back();
    *line = std::exchange(text_, "");
    return true;
  }

  int wake_fd_;
  TextDecoder decoder_{"standard input"};
  std::string text_;
  size_t at_ = 0, size_ = 0;  // number of bytes used, and number read into buffer_
  char buffer_[4096];
};

#ifdef STET_HAVE_LIBEDIT

struct LineEditor::Impl {
  EditLine* editor = nullptr;
  History* history = nullptr;
  HistEvent event{};
  std::string file, prompt;
  Completer completer;
  Input& input;
  bool given_up = false;

  Impl(Completer c, std::string history_file, Input& in)
      : file(std::move(history_file)), completer(std::move(c)), input(in) {
    std::setlocale(LC_CTYPE, "");
    if (std::strcmp(std::setlocale(LC_CTYPE, nullptr), "C") == 0)
      std::setlocale(LC_CTYPE, "C.UTF-8");
    editor = el_init("stet", stdin, stdout, stderr);
    history = history_init();
    ::history(history, &event, H_SETSIZE, 1000);
    ::history(history, &event, H_SETUNIQUE, 1);
    if (!file.empty()) ::history(history, &event, H_LOAD, file.c_str());
    el_set(editor, EL_CLIENTDATA, this);
    el_set(editor, EL_PROMPT_ESC, &Impl::show_prompt, '\1');
    el_set(editor, EL_EDITOR, "emacs");
    el_set(editor, EL_HIST, ::history, history);
    // The wide functions keep these names by pointer. el_set would copy and never free them.
    el_wset(editor, EL_ADDFN, L"stet-complete", L"complete the word", &Impl::complete);
    el_wset(editor, EL_ADDFN, L"stet-give-up", L"give the line up", &Impl::give_up);
    el_wset(editor, EL_ADDFN, L"stet-stop", L"suspend the process", &Impl::stop);
    el_wset(editor, EL_ADDFN, L"stet-paste", L"insert a pasted text", &Impl::paste);
    el_wset(editor, EL_GETCFN, &Impl::next_character);
    el_source(editor, nullptr);  // the user's ~/.editrc
    // Ctrl-C and Ctrl-Z are read as characters, so that no signal interrupts an edit.
    el_set(editor, EL_SETTY, "-d", "-isig", nullptr);
    el_set(editor, EL_BIND, "^I", "stet-complete", nullptr);
    el_set(editor, EL_BIND, "^C", "stet-give-up", nullptr);
    el_set(editor, EL_BIND, "^Z", "stet-stop", nullptr);
    el_set(editor, EL_BIND, "^R", "em-inc-search-prev", nullptr);
    el_set(editor, EL_BIND, "\\e[200~", "stet-paste", nullptr);
    mark_pastes(true);
  }
  ~Impl() {
    mark_pastes(false);
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

  // Turns the marks around pasted text ("bracketed paste") on or off, if the terminal has them.
  static void mark_pastes(bool on) {
    const char* term = std::getenv("TERM");
    if (term == nullptr || std::strcmp(term, "dumb") == 0) return;
    std::fputs(on ? "\033[?2004h" : "\033[?2004l", stdout);
    std::fflush(stdout);
  }

  static int next_character(EditLine* editor, wchar_t* character) {
    std::mbstate_t state{};
    for (char byte; of(editor).input.next(&byte);) {
      const size_t size = std::mbrtowc(character, &byte, 1, &state);
      if (size <= 1) return 1;
      if (size == static_cast<size_t>(-1)) state = {};  // skip bytes that are no character
    }
    return 0;
  }

  // Reads a pasted text up to the closing mark. The terminal sends Enter at the ends of its lines.
  static unsigned char paste(EditLine* editor, int) {
    constexpr std::wstring_view kEnd = L"\033[201~";
    std::wstring text;
    bool after_return = false;
    for (wchar_t c; !text.ends_with(kEnd);) {
      if (el_wgetc(editor, &c) != 1) return CC_EOF;
      if (c != L'\0' && !(c == L'\n' && after_return)) text += c == L'\r' ? L'\n' : c;
      after_return = c == L'\r';
    }
    text.resize(text.size() - kEnd.size());
    if (text.ends_with(L'\n')) text.pop_back();
    const LineInfo* line = el_line(editor);
    // A block of lines is always a message; a single line may be a command.
    if (line->buffer == line->lastchar && text.starts_with(L'/') &&
        text.find(L'\n') != std::wstring::npos)
      text.insert(0, L"/");
    return el_winsertstr(editor, text.c_str()) == 0 ? CC_REFRESH : CC_ERROR;
  }

  static unsigned char give_up(EditLine* editor, int) {
    of(editor).given_up = true;
    std::fputs("^C\n", stdout);
    return CC_EOF;
  }

  static unsigned char stop(EditLine* editor, int) {
    el_set(editor, EL_PREP_TERM, 0);
    mark_pastes(false);
    raise(SIGTSTP);
    mark_pastes(true);
    el_set(editor, EL_PREP_TERM, 1);
    return CC_REDISPLAY;
  }

  // Inserts the common beginning of all candidates, or lists them.
  static unsigned char complete(EditLine* editor, int) {
    const LineInfo* info = el_line(editor);
    const std::string line(info->buffer, info->cursor);
    const std::string word = line.substr(line.find_last_of(' ') + 1);
    const std::vector<std::string> candidates = of(editor).completer(line);
    if (candidates.empty()) return CC_REFRESH_BEEP;
    std::string common = candidates[0];
    for (const std::string& candidate : candidates) {
      common.erase(
          std::mismatch(common.begin(), common.end(), candidate.begin(), candidate.end()).first,
          common.end());
    }
    if (candidates.size() == 1 && !common.ends_with('/')) common += ' ';
    if (common.size() > word.size()) {
      el_insertstr(editor, common.substr(word.size()).c_str());
      return CC_REFRESH;
    }
    std::fputc('\n', stdout);
    for (const std::string& candidate : candidates)
      std::fprintf(stdout, "%s  ", printable(candidate).c_str());
    std::fputc('\n', stdout);
    return CC_REDISPLAY;
  }

  Got read(const std::string& with_prompt, std::string* text) {
    prompt = with_prompt;
    given_up = false;
    int count = 0;
    el_set(editor, EL_PREP_TERM, 1);  // before the prompt, so that early keys can be edited, too
    const char* line = el_gets(editor, &count);
    if (given_up) {
      el_reset(editor);
      return Got::given_up;
    }
    if (line == nullptr || count <= 0) return Got::end;
    text->assign(line, static_cast<size_t>(count));
    if (text->ends_with('\n')) text->pop_back();
    if (text->find_first_not_of(" \t\n") != std::string::npos) remember(*text);
    return Got::line;
  }

  void remember(const std::string& text) {
    ::history(history, &event, H_ENTER, text.c_str());
    if (file.empty()) return;
    const mode_t mask = umask(077);  // the history is readable only by its owner
    ::history(history, &event, H_SAVE, file.c_str());
    umask(mask);
  }
};

LineEditor::LineEditor(Completer completer, const std::string& history, int wake_fd)
    : input_(std::make_unique<Input>(wake_fd)) {
  if (on_terminal()) impl_ = std::make_unique<Impl>(std::move(completer), history, *input_);
}

#else

struct LineEditor::Impl {
  Got read(const std::string&, std::string*) { return Got::end; }
};
LineEditor::LineEditor(Completer, const std::string&, int wake_fd)
    : input_(std::make_unique<Input>(wake_fd)) {}

#endif

LineEditor::~LineEditor() = default;

LineEditor::Got LineEditor::read(const std::string& prompt, std::string* line) {
  if (impl_ != nullptr) return impl_->read(prompt, line);
  if (on_terminal()) {
    std::fputs(prompt.c_str(), stdout);
    std::fflush(stdout);
  }
  return input_->next_line(line) ? Got::line : Got::end;
}

}  // namespace stet::tool
