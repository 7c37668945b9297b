#include "tools/chat/terminal.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tools/command/command.hpp"

namespace stet::tool {
namespace {

constexpr auto kFirstFrame = std::chrono::milliseconds(500),
               kNextFrame = std::chrono::milliseconds(120);
constexpr int64_t kLongPrompt = 256;  // tokens

bool terminal(int fd) {
  const char* term = std::getenv("TERM");
  return isatty(fd) != 0 && term != nullptr && *term != '\0' && std::strcmp(term, "dumb") != 0;
}

void write_line(const char* colour, const std::string& text) {
  flush_output();
  const bool coloured = colours_on(STDERR_FILENO);
  if (coloured) write_error_style(fmt::format("\033[{}m", colour));
  write_error(text);
  write_error_style(coloured ? "\033[0m\n" : "\n");
}

}  // namespace

bool colours_on(int fd) {
  const char* refused = std::getenv("NO_COLOR");
  return terminal(fd) && (refused == nullptr || *refused == '\0');
}

bool animations_on() { return terminal(STDERR_FILENO); }

void note(const std::string& text) { write_line("2", text); }
void complain(const std::string& text) { write_line("31", text); }

ProgressLine::ProgressLine(std::string what, int64_t total)
    : what_(std::move(what)), total_(total) {
  if (!animations_on()) return;
  stopped_ = false;
  thread_ = std::thread([this] { turn(); });
}

void ProgressLine::turn() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, shown_ ? kNextFrame : kFirstFrame, [this] { return stopped_; }))
    draw();
}

void ProgressLine::draw() {
  const bool dim = colours_on(STDERR_FILENO);
  const std::string text =
      fmt::format("{} {} {} / {} tokens", "|/-\\"[frame_++ % 4], what_, done_, total_);
  if (dim) write_error_style("\033[2m");
  rewrite_line(text);
  if (dim) write_error_style("\033[0m");
  shown_ = true;
}

void ProgressLine::progress(int64_t done) {
  const std::lock_guard lock(mutex_);
  done_ = done;
  if (!stopped_ && (shown_ || total_ >= kLongPrompt)) draw();
}

void ProgressLine::stop() {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(stopped_, true)) return;
  }
  changed_.notify_all();
  thread_.join();
  if (shown_) rewrite_line("");
}

}  // namespace stet::tool
