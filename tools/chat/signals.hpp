// The signals that end a chat, or stop a reply, without losing the state.
#pragma once

#include <csignal>

namespace stet::tool {

// While an object of this class lives, SIGHUP, SIGTERM and SIGINT are recorded instead of ending
// the process. Signals that the process was started to ignore (nohup) stay ignored. At most one
// object may exist at a time.
class ChatSignals {
 public:
  // The effect of SIGINT: it stops the reply that is being drawn, or ends the chat as SIGTERM does.
  enum class Interrupt { stops, ends };
  explicit ChatSignals(Interrupt interrupt);
  ~ChatSignals();
  ChatSignals(const ChatSignals&) = delete;
  ChatSignals& operator=(const ChatSignals&) = delete;

  static int ending();  // the signal that asked the chat to end, or 0
  // Returns true after an ending() signal, or a SIGINT since clear_interrupt().
  static bool stopping();
  static void clear_interrupt();
  // Returns a descriptor that is readable after an ending() signal, or -1 without an object.
  static int wake_fd();

 private:
  static constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};
  struct sigaction before_[3];
};

}  // namespace stet::tool
