// Intercepts this program's calls that change files or send to a socket, so that a test can end
// them at the nth. From then on nothing reaches the disk or the network, as if the program had been
// killed, until it is revived. The data of the fatal write is cut in half. Nothing is fsynced, and
// a dead program does not wait.
#pragma once

namespace stet::test {

// The state of one thread. No other thread may use files meanwhile.
struct Death {
  long left = -1;  // calls until death; -1: never
  bool dead = false;
};
extern Death death;

inline void die_after(long calls) { death = {calls, false}; }
// Resets the state. Returns true if the program had died.
inline bool revive() {
  const bool dead = death.dead;
  death = {};
  return dead;
}

}  // namespace stet::test
