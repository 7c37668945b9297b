#include "tools/chat/signals.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace stet::tool {
namespace {

volatile std::sig_atomic_t ending_signal = 0, interrupted = 0, interrupt_ends = 0;
int wake_pipe[2] = {-1, -1};  // [0] is read, [1] is written

void note_signal(int signal) {
  if (signal == SIGINT && interrupt_ends == 0) {
    interrupted = 1;
    return;
  }
  const int error = errno;
  ending_signal = signal;
  (void)!::write(wake_pipe[1], "", 1);  // if the pipe is full, it is readable already
  errno = error;
}

}  // namespace

ChatSignals::ChatSignals(Interrupt interrupt) {
  if (::pipe2(wake_pipe, O_CLOEXEC | O_NONBLOCK) != 0)
    throw std::system_error(errno, std::generic_category(), "pipe");
  ending_signal = 0;
  interrupted = 0;
  interrupt_ends = interrupt == Interrupt::ends ? 1 : 0;
  struct sigaction action = {};
  action.sa_handler = note_signal;
  action.sa_flags = SA_RESTART;
  for (size_t i = 0; i < std::size(kSignals); ++i) {
    ::sigaction(kSignals[i], nullptr, &before_[i]);
    if (before_[i].sa_handler != SIG_IGN) ::sigaction(kSignals[i], &action, nullptr);
  }
}

ChatSignals::~ChatSignals() {
  for (size_t i = 0; i < std::size(kSignals); ++i) ::sigaction(kSignals[i], &before_[i], nullptr);
  for (int& fd : wake_pipe) {
    ::close(fd);
    fd = -1;
  }
}

int ChatSignals::ending() { return ending_signal; }
bool ChatSignals::stopping() { return ending_signal != 0 || interrupted != 0; }
void ChatSignals::clear_interrupt() { interrupted = 0; }
int ChatSignals::wake_fd() { return wake_pipe[0]; }

}  // namespace stet::tool
