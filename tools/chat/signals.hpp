// The signals that end a chat, or stop what it is doing, in good order.
#pragma once

#include <csignal>

namespace stet::tool {

// While an object of this class lives, SIGHUP, SIGTERM and SIGINT are noted instead of ending the
// process; those that the process was started to ignore (nohup) stay ignored. There is at most one
// object at a time.
class ChatSignals {
 public:
  // What SIGINT asks for: to stop the reply that is being drawn, or to end the chat as SIGTERM
  // does.
  enum class Interrupt { stops, ends };
  explicit ChatSignals(Interrupt interrupt);
  ~ChatSignals();
  ChatSignals(const ChatSignals&) = delete;
  ChatSignals& operator=(const ChatSignals&) = delete;

  static int ending();  // the signal that asked the chat to end; 0: none
  // Whether work under way is to stop, for ending() or for a SIGINT since clear_interrupt().
  static bool stopping();
  static void clear_interrupt();
  // A descriptor that is readable once there is an ending() signal; -1 without an object.
  static int wake_fd();

 private:
  static constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};
  struct sigaction before_[3];
};

}  // namespace stet::tool
