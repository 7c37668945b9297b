// Bundled and fixture checkpoints, the tensors that other programs computed for them, and
// byte-for-byte comparison of sessions.
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
#include "tests/support/all_ways.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/files.hpp"

namespace stet::test {

// Return the path of a file in tests/data, or in assets.
std::string data_path(const std::string& name);
std::string asset_path(const std::string& name);

// Returns the model of a directory. Models are immutable, so each is loaded once per process.
// Contracts q8 and q4 round the weights; other contracts use them unchanged.
std::shared_ptr<const Model> model(const std::string& directory, Contract contract = Contract::f32);

// A safetensors file of expected numbers, converted to float32 or integers.
class Golden {
 public:
  explicit Golden(const std::string& path);

  // Throw std::runtime_error if the file lacks the name or its type does not fit.
  const TensorView& view(const std::string& name) const;
  std::vector<float> floats(const std::string& name) const;
  std::vector<int32_t> ids(const std::string& name) const;
  const std::vector<TensorView>& all() const { return tensors_.tensors(); }
  bool has(const std::string& name) const { return tensors_.find(name) != nullptr; }

 private:
  std::vector<std::byte> bytes_;
  SafeTensors tensors_;
};

// ThreadSanitizer does not watch loads and stores of 32 and 64 bytes, so it sees races in the
// portable kernels only.
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

// Appends `ids` in one call. Returns the logits of all positions, [T][vocab].
std::vector<float> all_logits(Session& session, std::span<const int32_t> ids);

int32_t argmax(std::span<const float> x);

bool same_bytes(std::span<const float> a, std::span<const float> b);

// Returns the bytes of all keys and values, block after block.
std::vector<std::byte> kv_bytes(const KvCache& kv);

// A checkpoint and the contract under which its bits are tested.
struct Subject {
  std::string name, directory;
  Contract contract = Contract::f32;
};
void PrintTo(const Subject& s, std::ostream* out);

std::vector<Subject> subjects();

// Returns subjects(), and some of them again under other contracts as "NAME@bf16". q8 and q4 take
// those with float32 and float16 weights.
std::vector<Subject> subjects_and_contracts();

// Returns the name of a subject in a form that GoogleTest accepts.
std::string subject_name(const testing::TestParamInfo<Subject>& info);

// Returns n reproducible pseudo-random ids of a model's vocabulary.
std::vector<int32_t> random_tokens(const Model& m, size_t n, uint32_t seed = 1);

// Returns n ids; the i-th is offset + (first + i * step) % modulus.
std::vector<int32_t> stepped_ids(int64_t n, int64_t step, int64_t modulus, int64_t first = 0,
                                 int64_t offset = 0);

// Compares the tokens, last logits, keys and values of two sessions byte for byte. Names the first
// difference.
testing::AssertionResult same_state(Session& a, Session& b);

}  // namespace stet::test
