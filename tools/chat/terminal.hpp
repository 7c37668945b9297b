// What a chat shows beside its text: colours, notes on stderr, and how far a long prompt is.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

namespace stet::tool {

// Whether text written to this descriptor is coloured: a terminal that is not dumb, and no NO_COLOR
// in the environment.
bool colours_on(int fd);
// Whether lines on stderr may be written over.
bool animations_on();

// A line on stderr beside the conversation. Where stderr is gone or full, nothing happens.
void note(const std::string& text);
// The same for what could not be done.
void complain(const std::string& text);

// While tokens are processed, a line on the terminal that turns and counts them; it appears after a
// moment, or with the first progress of a prompt that is long. Without animations_on() it does
// nothing. Not to be moved.
class ProgressLine {
 public:
  // "what done / total tokens", say "reading 512 / 4096 tokens".
  ProgressLine(std::string what, int64_t total);
  ~ProgressLine() { stop(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void progress(int64_t done);
  void stop();  // takes the line away; the terminal is the caller's again

 private:
  void turn();
  void draw();

  const std::string what_;
  const int64_t total_;
  std::mutex mutex_;  // guards all that follows
  std::condition_variable changed_;
  int64_t done_ = 0;
  int frame_ = 0;
  bool shown_ = false, stopped_ = true;
  std::thread thread_;
};

}  // namespace stet::tool
