// A schedule is a list of steps. Each step is meaningful after any others, so that any part of a
// schedule is a schedule.
#pragma once

#include <cstdint>
#include <iterator>
#include <random>
#include <vector>

namespace stet::test {

enum class Action {
  append,
  append_refused,
  rewind,
  fork,
  prune,
  attach,
  callback,
  edit,
  round,
  splice,
  windows,
  batch,
  batch_refused,
  logits,
  set_compute,
  save,
  restore,
  restore_by_threads,
  convert,
  damage,
  cut_off,
  touch,
  overwrite,
  replace,
  // Only for models with recurrent layers:
  keep_anchor,
  set_array,
  change_state,
  prune_anew,
  damage_arrays,
  put,
  fetch,
};

// The numbers select among the objects that exist when the step runs: session `who` modulo the
// number of sessions, and so on.
struct Step {
  Action action = Action::append;
  uint32_t who = 0, x = 0, y = 0;
};
using Steps = std::vector<Step>;

// Draws random steps. Appends, rewinds, saves and restores are the most frequent.
inline Steps draw_steps(uint32_t seed, size_t count, bool recurrent = false) {
  static constexpr Action kActions[] = {Action::append,        Action::append,
                                        Action::append,        Action::append_refused,
                                        Action::rewind,        Action::rewind,
                                        Action::fork,          Action::prune,
                                        Action::attach,        Action::callback,
                                        Action::edit,          Action::edit,
                                        Action::round,         Action::splice,
                                        Action::windows,       Action::batch,
                                        Action::batch_refused, Action::logits,
                                        Action::set_compute,   Action::save,
                                        Action::save,          Action::restore,
                                        Action::restore,       Action::restore_by_threads,
                                        Action::convert,       Action::damage,
                                        Action::cut_off,       Action::touch,
                                        Action::overwrite,     Action::replace,
                                        Action::keep_anchor,   Action::keep_anchor,
                                        Action::keep_anchor,   Action::rewind,
                                        Action::rewind,        Action::fork,
                                        Action::set_array,     Action::prune_anew,
                                        Action::damage_arrays, Action::put,
                                        Action::fetch,         Action::change_state,
                                        Action::change_state};
  constexpr size_t kOfRecurrence = 13;  // the last ones are drawn for recurrent layers only
  const size_t actions = std::size(kActions) - (recurrent ? 0 : kOfRecurrence);
  std::mt19937 random(seed);
  Steps steps(count);
  for (Step& s : steps) {
    s.action = kActions[random() % actions];
    s.who = random() % 64, s.x = random() % 4096, s.y = random() % 4096;
  }
  return steps;
}

}  // namespace stet::test
