// Delta debugging: finds the shortest part of a failing schedule that still fails, then its
// simplest actions and smallest numbers.
#pragma once

#include <algorithm>
#include <functional>

#include "tests/session/schedules/steps.hpp"

namespace stet::test {

using Fails = std::function<bool(const Steps&)>;

// Removes parts while the schedule still fails, half of it first and single steps last.
inline Steps fewest_steps(Steps steps, const Fails& fails) {
  for (size_t part = steps.size() / 2; part > 0; part = part == 1 ? 0 : part / 2) {
    for (bool again = true; again;) {
      again = false;
      for (size_t at = 0; at < steps.size();) {
        Steps fewer(steps.begin(), steps.begin() + static_cast<long>(at));
        fewer.insert(fewer.end(),
                     steps.begin() + static_cast<long>(std::min(at + part, steps.size())),
                     steps.end());
        if (fails(fewer)) {
          steps = std::move(fewer);
          again = true;
        } else {
          at += part;
        }
      }
    }
  }
  return steps;
}

// Halves the distance to the smallest failing number, for each number of each step. Replaces
// actions with appends where the schedule still fails.
inline Steps simplest(Steps steps, const Fails& fails) {
  const auto works = [&](size_t i, auto Step::*member, auto value) {
    Steps tried = steps;
    tried[i].*member = value;
    if (!fails(tried)) return false;
    steps = std::move(tried);
    return true;
  };
  for (size_t i = 0; i < steps.size(); ++i) {
    works(i, &Step::action, Action::append);
    for (uint32_t Step::*number : {&Step::who, &Step::x, &Step::y}) {
      if (works(i, number, 0u)) continue;
      for (uint32_t below = 0; steps[i].*number - below > 1;) {
        const uint32_t middle = below + (steps[i].*number - below) / 2;
        if (!works(i, number, middle)) below = middle;
      }
    }
  }
  return steps;
}

inline Steps shrunk(const Steps& steps, const Fails& fails) {
  return simplest(fewest_steps(steps, fails), fails);
}

}  // namespace stet::test
