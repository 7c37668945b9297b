// C interface: what its files share. Handles, the functions that stop exceptions at the boundary,
// and checks of arguments.
#pragma once

#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "stet/base/error.hpp"
#include "stet/c.h"
#include "stet/chat/conversation.hpp"
#include "stet/generate/generate.hpp"
#include "stet/model/model.hpp"
#include "stet/session/session.hpp"
#include "stet/snapshot/compare.hpp"
#include "stet/snapshot/snapshot.hpp"
#include "stet/text/tokenizer.hpp"

struct stet_model {
  std::shared_ptr<const stet::Model> model;
};

struct stet_tokenizer {
  std::shared_ptr<const stet::Tokenizer> tokenizer;
  std::string fingerprint;
};

// A session that is owned, or a chat's, which must not be freed.
struct stet_session {
  explicit stet_session(stet::Session session) : own(std::move(session)), at(&*own) {}
  explicit stet_session(stet::Session* of_chat) : at(of_chat) {}
  stet_session(const stet_session&) = delete;
  stet_session& operator=(const stet_session&) = delete;

  std::optional<stet::Session> own;
  stet::Session* at;
  mutable std::vector<stet_token_bias> logit_bias;  // lent to the latest caller
};

struct stet_snapshot {
  std::shared_ptr<const void> bytes;  // keeps a snapshot in memory alive
  stet::Snapshot snapshot;
};

namespace stet::c {

// Thrown if a callback returned non-zero and the operation must be undone.
struct Canceled {};

// Returns the status of the exception being handled, and sets the caller's error.
stet_status caught(stet_error** error) noexcept;

// Runs the body of a function of the interface, and turns exceptions into a status.
template <class Body>
stet_status guarded(stet_error** error, Body&& body) noexcept {
  if (error != nullptr) *error = nullptr;
  try {
    body();
    return STET_OK;
  } catch (...) {
    return caught(error);
  }
}

[[noreturn]] void fail(const std::string& field, const std::string& expected,
                       const std::string& found);

// Returns the object that a pointer refers to. Throws if the pointer is NULL.
template <class T>
T& at(T* pointer, const char* name) {
  if (pointer == nullptr) fail(name, "not NULL", "NULL");
  return *pointer;
}

inline const char* cstring(const char* text, const char* name) { return &at(text, name); }

// Returns an output after setting it to zero. Call it before anything else can fail.
template <class T>
T& output(T* pointer, const char* name) {
  return at(pointer, name) = T();
}

// Returns two outputs after setting both to zero, so that both are zero if either pointer is NULL.
template <class T, class U>
std::pair<T&, U&> outputs(T* a, const char* a_name, U* b, const char* b_name) {
  if (a != nullptr) *a = T();
  if (b != nullptr) *b = U();
  return {at(a, a_name), at(b, b_name)};
}

template <class T>
std::span<T> items(T* data, size_t count, const char* name) {
  if (data == nullptr && count > 0) fail(name, "not NULL", "NULL");
  // A larger array does not exist.
  constexpr size_t kMost = std::numeric_limits<std::ptrdiff_t>::max() / sizeof(T);
  if (count > kMost) fail(name, "at most " + std::to_string(kMost), std::to_string(count));
  return {data, count};
}
std::string_view text_of(const char* data, size_t size, const char* name);
inline std::string string_of(const stet_text& text, const char* name) {
  return std::string(text_of(text.data, text.size, name));
}
inline std::string string_or_empty(const char* text) { return text == nullptr ? "" : text; }
inline stet_text view(std::string_view text) {
  return {text.empty() ? "" : text.data(), text.size()};
}
// Returns the text without its NUL characters.
std::string without_nul(const std::string& text);

template <class T>
const T& element(const std::vector<T>& all, size_t index, const char* name) {
  if (index >= all.size())
    fail(name, "an index below " + std::to_string(all.size()), std::to_string(index));
  return all[index];
}

void check_struct_size(size_t size, size_t known, const char* name);
[[noreturn]] void unknown_member(size_t size, size_t known, const char* name);

// Copies a struct of input. Members that an older caller lacks are zero. Throws if a newer caller
// sets members unknown here.
template <class T>
T input(const T* given, const char* name) {
  T all{};
  if (given == nullptr) return all;
  const size_t size = given->struct_size, known = std::min(size, sizeof(T));
  check_struct_size(size, sizeof(T), name);
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  for (size_t i = known; i < size; ++i) {
    if (bytes[i] != 0) unknown_member(size, sizeof(T), name);
  }
  std::memcpy(&all, given, known);
  return all;
}

// Checks a struct of output before the work that fills it.
template <class T>
T& checked(T* given, const char* name) {
  check_struct_size(at(given, name).struct_size, sizeof(T), name);
  return *given;
}
// Fills the members of a struct of output that its caller knows. Members unknown here become zero.
template <class T>
void give(T value, T& to) {
  static_assert(std::is_trivially_copyable_v<T>);
  value.struct_size = to.struct_size;
  const size_t known = std::min(value.struct_size, sizeof(T));
  std::memset(static_cast<void*>(&to), 0, value.struct_size);
  std::memcpy(static_cast<void*>(&to), &value, known);
}

// Throws if `flags` has bits outside `known`.
void check_flags(uint64_t flags, uint64_t known, const char* name);

// Allocates memory that the caller frees with stet_free().
template <class T>
T* new_buffer(size_t count) {
  static_assert(std::is_trivially_copyable_v<T>);
  auto* buffer = static_cast<T*>(std::malloc(count * sizeof(T)));
  if (buffer == nullptr) throw std::bad_alloc();
  return buffer;
}
void give_text(std::string_view text, std::pair<char*&, size_t&> to);
template <class T>
void give_items(std::span<const T> from, std::pair<std::type_identity_t<T>*&, size_t&> to) {
  if (from.empty()) return;
  to.first = new_buffer<T>(from.size());
  std::memcpy(to.first, from.data(), from.size_bytes());
  to.second = from.size();
}

// Convert values of the interface. The first of each pair throws for an invalid value.
int threads_of(int64_t threads);
std::optional<Contract> contract_of(int64_t contract);  // nothing: the default
int32_t contract_value(Contract contract);
std::optional<KvType> kv_type_of(int64_t type);  // nothing: the default
int32_t kv_type_value(KvType type);
int64_t end_of(int64_t end, const char* name);  // -1: unbounded, which is 0 in the interface
// Uses `fallback` if the options name no contract.
SessionOptions session_options(const stet_session_options* options, Contract fallback);
PruneOptions prune_options(const stet_prune_options& options, uint64_t known_flags);
SamplingSettings sampling_of(const stet_sampling* sampling);
Message message_of(const stet_message& message);
stet_message message_value(const Message& message);
stet_digests digests_value(const StateDigests& digests);
PointAt point_of(const char* name, const char* field);
Intervention intervention_of(const stet_intervention& i);

// Calls release(context) when the last owner is destroyed, or at once if this throws.
std::shared_ptr<const void> lent(stet_release_callback release, void* context);
// Returns an owner that keeps two others alive.
std::shared_ptr<const void> both(std::shared_ptr<const void> a, std::shared_ptr<const void> b);
// Returns a source of files whose bytes `keeps_alive` owns.
std::shared_ptr<const FileSource> lent_files(std::span<const stet_file> files,
                                             const std::string& name,
                                             std::shared_ptr<const void> keeps_alive);
// Returns a source that, like its files, also keeps `keeps_alive` alive.
std::shared_ptr<const FileSource> with_owner(std::shared_ptr<const FileSource> source,
                                             std::shared_ptr<const void> keeps_alive);

std::shared_ptr<const Model> load_model(std::shared_ptr<const FileSource> source,
                                        const stet_model_options& options);
stet_model_options model_options(const stet_model_options* options);
stet_tokenizer* new_tokenizer(std::shared_ptr<const Tokenizer> tokenizer);
// Returns null for NULL. Throws a mismatch Error for a tokenizer of another model.
const Tokenizer* optional_tokenizer(const stet_tokenizer* tokenizer, const Session& session);
// Returns the contract under which a snapshot was made.
Contract saved_contract(const Snapshot& snapshot);
stet_difference* new_difference(const std::optional<Difference>& difference);

// The options and the result of a generation or of a chat's reply, with C callbacks adapted.
class Generation {
 public:
  // Callbacks may not change `session`.
  Generation(const stet_generate_options* options, const Session& session);
  Generation(const Generation&) = delete;  // the callbacks point to it
  Generation& operator=(const Generation&) = delete;
  const GenerateOptions& options() const { return options_; }
  const TextSink& sink() const { return sink_; }

 private:
  stet_generate_options given_;
  bool stopped_ = false;
  GenerateOptions options_;
  TextSink sink_;
};
stet_reply* new_reply(Reply reply);
Progress progress_of(stet_progress_callback callback, void* context);

}  // namespace stet::c
