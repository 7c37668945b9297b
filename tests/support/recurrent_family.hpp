// A small decoder with recurrent layers whose arrays hold whole numbers. It exists for tests of
// states: its recurrences are simple, depend on every token before, and cannot be mistaken for
// each other.
#pragma once

#include <memory>

#include "stet/model/model.hpp"
#include "tests/support/models.hpp"

namespace stet::test {

// Registers the family and returns a model of it with four layers. Layers 0 and 2 are recurrent.
// Layer 1 sees a window of 40 positions, and layer 3 all.
std::shared_ptr<const Model> recurrent_model();
// Returns the checkpoint directory of that model.
std::string recurrent_model_directory();
// Writes checkpoints of other families whose layers are all recurrent.
std::vector<Subject> subjects_without_attention();
// Returns the number of tokens that models of this family have processed.
int64_t recurrent_test_rows();

}  // namespace stet::test
