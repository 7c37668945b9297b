// Bundled and fixture checkpoints, the tensors that other programs computed for them, and
// comparison of sessions byte for byte.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <iosfwd>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "stet/base/error.hpp"
#include "stet/checkpoint/checkpoint.hpp"
#include "stet/checkpoint/safetensors.hpp"
#include "stet/model/model.hpp"
#include "stet/session/session.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/files.hpp"

namespace stet::test {

// Returns the path of a file of tests/data, or of assets.
std::string data_path(const std::string& name);
std::string asset_path(const std::string& name);

// Returns the model of a directory, loaded once per process: weights are immutable. q8 and q4 round
// them; other contracts take them as they are.
std::shared_ptr<const Model> model(const std::string& directory, Contract contract = Contract::f32);

// A safetensors file of expected numbers, widened to float32 or integers.
class Golden {
 public:
  explicit Golden(const std::string& path);

  // Throw std::runtime_error for a name that the file does not have, or a type that does not fit.
  const TensorView& view(const std::string& name) const;
  std::vector<float> floats(const std::string& name) const;
  std::vector<int32_t> ids(const std::string& name) const;
  const std::vector<TensorView>& all() const { return tensors_.tensors(); }
  bool has(const std::string& name) const { return tensors_.find(name) != nullptr; }

 private:
  std::vector<std::byte> bytes_;
  SafeTensors tensors_;
};

// The thread sanitizer does not watch loads and stores of 32 and 64 bytes: only the portable
// kernels show it races.
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define STET_DEFAULT_ISA "portable"
#endif
#endif
#ifndef STET_DEFAULT_ISA
#define STET_DEFAULT_ISA ""
#endif

SessionOptions options(int threads, const std::string& isa = STET_DEFAULT_ISA, int64_t chunk = 512,
                       Contract contract = Contract::f32);

// Returns the logits of all positions of `ids`, appended in one call: [T][vocab].
std::vector<float> all_logits(Session& session, std::span<const int32_t> ids);

int32_t argmax(std::span<const float> x);

bool same_bytes(std::span<const float> a, std::span<const float> b);

// Returns all bytes of keys and values, block after block.
std::vector<std::byte> kv_bytes(const KvCache& kv);

// A checkpoint that the promise about bits is tested on, and the contract.
struct Subject {
  std::string name, directory;
  Contract contract = Contract::f32;
};
void PrintTo(const Subject& s, std::ostream* out);

std::vector<Subject> subjects();

// Returns the same, and some of them under the other contracts: "NAME@bf16". Those of float32 and
// float16 weights are for q8 and q4.
std::vector<Subject> subjects_and_contracts();

// Returns GoogleTest's name of a subject.
std::string subject_name(const testing::TestParamInfo<Subject>& info);

// Returns a fixed pseudo-random sequence of n ids of a model's vocabulary.
std::vector<int32_t> random_tokens(const Model& m, size_t n, uint32_t seed = 1);

// Returns n ids, of which the i-th is offset + (first + i * step) % modulus.
std::vector<int32_t> stepped_ids(int64_t n, int64_t step, int64_t modulus, int64_t first = 0,
                                 int64_t offset = 0);

// Compares two sessions' tokens, last logits, keys and values byte for byte. Names the first
// difference.
testing::AssertionResult same_state(Session& a, Session& b);

}  // namespace stet::test
