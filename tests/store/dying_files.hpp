// The calls of this program that change files or send to a socket, so that a test can let them end
// at the nth: from then on nothing that the program does reaches the disk or the network, as if it
// had been killed there, until it is revived. What is written to a file or socket at that call is
// cut in half. Nothing is fsynced; whoever is dead waits for nothing.
#pragma once

namespace stet::test {

// Of one thread: nothing else of the program may use files meanwhile.
struct Death {
  long left = -1;  // calls until it comes; -1: it does not
  bool dead = false;
};
extern Death death;

inline void die_after(long calls) { death = {calls, false}; }
// Whether it had died.
inline bool revive() {
  const bool dead = death.dead;
  death = {};
  return dead;
}

}  // namespace stet::test
