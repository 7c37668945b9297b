// Colours, notes on stderr, and the progress of long prompts.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

namespace stet::tool {

// Returns true if text for this descriptor is to be coloured: a terminal that is not dumb, without
// NO_COLOR in the environment.
bool colours_on(int fd);
// Returns true if lines on stderr can be overwritten.
bool animations_on();

// Writes a line to stderr. Does nothing if stderr is closed or full.
void note(const std::string& text);
// Writes an error to stderr as note() does, in another colour.
void complain(const std::string& text);

// Shows a line with a spinner and a count while tokens are processed. It appears after a moment, or
// at once for a long prompt with progress. Does nothing without animations_on(). Must not be moved.
class ProgressLine {
 public:
  // Shows "WHAT done / TOTAL tokens", such as "reading 512 / 4096 tokens".
  ProgressLine(std::string what, int64_t total);
  ~ProgressLine() { stop(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void progress(int64_t done);
  void stop();  // removes the line, after which the caller may write

 private:
  void turn();
  void draw();

  const std::string what_;
  const int64_t total_;
  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  int64_t done_ = 0;
  int frame_ = 0;
  bool shown_ = false, stopped_ = true;
  std::thread thread_;
};

}  // namespace stet::tool
