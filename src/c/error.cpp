// C interface: turns exceptions into errors.
#include <new>

#include "src/c/internal.hpp"
#include "stet/threads/interrupt.hpp"

namespace stet::c {
namespace {

// Returned if there is no memory for an error. It is never freed.
stet_error kNoMemory = {STET_ERROR_MEMORY, "out of memory", "", "", "", "out of memory"};

stet_status status_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::io:
      return STET_ERROR_IO;
    case ErrorKind::format:
      return STET_ERROR_FORMAT;
    case ErrorKind::unsupported:
      return STET_ERROR_UNSUPPORTED;
    case ErrorKind::mismatch:
      return STET_ERROR_MISMATCH;
    case ErrorKind::capacity:
      return STET_ERROR_CAPACITY;
    case ErrorKind::argument:
      return STET_ERROR_ARGUMENT;
  }
  return STET_ERROR_INTERNAL;
}

// An error together with its texts.
struct OwnedError : stet_error {
  std::string texts[5];
};

stet_error* new_error(stet_status kind, const Error& e) {
  auto error = std::make_unique<OwnedError>();
  const std::string* parts[] = {&e.file, &e.field, &e.expected, &e.found};
  error->texts[0] = without_nul(e.what());
  for (size_t i = 0; i < 4; ++i) error->texts[i + 1] = without_nul(*parts[i]);
  error->kind = kind;
  error->message = error->texts[0].c_str();
  error->file = error->texts[1].c_str();
  error->field = error->texts[2].c_str();
  error->expected = error->texts[3].c_str();
  error->found = error->texts[4].c_str();
  return error.release();
}

// Replaces options of the command in a sentence by the members of this interface.
std::string with_c_members(std::string text) {
  constexpr std::pair<std::string_view, std::string_view> kOptions[] = {
      {"--ctx", "capacity"}, {"--parent", "parent"}, {"--recompute", "recompute"}};
  for (const auto& [option, member] : kOptions) {
    if (const size_t at = text.find(option); at != text.npos)
      text.replace(at, option.size(), member);
  }
  return text;
}

// Returns the error with the names of this interface's members for those of the command's options.
Error with_c_names(const Error& e) {
  constexpr std::pair<std::string_view, std::string_view> kMembers[] = {
      {"ctx", "capacity"},
      {"window-only", "window_only"},
      {"checkpoint-every", "checkpoint_every"},
      {"keep-last", "keep_last"}};
  std::string field = e.field;
  for (const auto& [option, member] : kMembers) {
    if (field == option) field = member;
  }
  // Beside an expected value, `found` may be a text of the caller.
  return {e.kind, e.file, std::move(field), with_c_members(e.expected),
          e.expected.empty() ? with_c_members(e.found) : e.found};
}

// Rethrows the exception being handled, reports it in `error` and returns its status.
stet_status report(stet_error** error) {
  const auto give = [&](stet_status kind, const Error& e) {
    if (error != nullptr) *error = new_error(kind, e);
    return kind;
  };
  try {
    throw;
  } catch (const Error& e) {
    return give(status_of(e.kind), with_c_names(e));
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const Canceled&) {
    return give(STET_ERROR_CANCELED,
                {ErrorKind::argument, "", "callback", "",
                 "the caller cancelled the call: its callback did not return 0"});
  } catch (const Interrupted&) {
    return give(STET_ERROR_CANCELED,
                {ErrorKind::argument, "", "interrupt", "",
                 "the caller cancelled the call: its interrupt function did not return 0"});
  } catch (const std::exception& e) {
    return give(STET_ERROR_INTERNAL,
                {ErrorKind::argument, "", "exception", "", std::string("unexpected: ") + e.what()});
  } catch (...) {
    return give(STET_ERROR_INTERNAL, {ErrorKind::argument, "", "exception", "",
                                      "unexpected, of a type that is not std::exception"});
  }
}

}  // namespace

stet_status caught(stet_error** error) noexcept {
  try {
    return report(error);
  } catch (...) {  // out of memory, perhaps while making the error
    if (error != nullptr) *error = &kNoMemory;
    return STET_ERROR_MEMORY;
  }
}

void fail(const std::string& field, const std::string& expected, const std::string& found) {
  throw Error(ErrorKind::argument, "", field, expected, found);
}

std::string without_nul(const std::string& text) {
  if (text.find('\0') == std::string::npos) return text;
  std::string shown;
  for (const char c : text) {
    if (c == '\0')
      shown += "\\x00";
    else
      shown += c;
  }
  return shown;
}

std::string_view text_of(const char* data, size_t size, const char* name) {
  const std::span<const char> bytes = items(data, size, name);
  return size == 0 ? std::string_view() : std::string_view(bytes.data(), size);
}

void check_struct_size(size_t size, size_t known, const char* name) {
  // No version will exceed this: a larger size means that the struct was not initialised.
  constexpr size_t kLargest = 4096;
  if (size > sizeof(size_t) && size <= kLargest) return;
  fail(std::string(name) + ".struct_size", "the size of the struct, " + std::to_string(known),
       std::to_string(size));
}

void unknown_member(size_t size, size_t known, const char* name) {
  throw Error(ErrorKind::unsupported, "", name, "",
              "the caller's struct of " + std::to_string(size) + " bytes sets members beyond the " +
                  std::to_string(known) + " bytes that this library knows");
}

void check_flags(uint64_t flags, uint64_t known, const char* name) {
  if ((flags & ~known) == 0) return;
  throw Error(ErrorKind::unsupported, "", std::string(name) + ".flags",
              "flags of " + std::to_string(known), std::to_string(flags));
}

void give_text(std::string_view text, std::pair<char*&, size_t&> to) {
  char* buffer = new_buffer<char>(text.size() + 1);
  text.copy(buffer, text.size());
  buffer[text.size()] = '\0';
  to.first = buffer;
  to.second = text.size();
}

}  // namespace stet::c

using namespace stet::c;

uint32_t stet_abi_version(void) { return STET_ABI_VERSION; }

const char* stet_version(void) { return STET_VERSION; }

const char* stet_status_name(stet_status status) {
  static const char* const kNames[] = {"ok",       "io",       "format", "unsupported", "mismatch",
                                       "capacity", "argument", "memory", "canceled",    "internal"};
  const auto index = static_cast<size_t>(status);
  return status < 0 || index >= std::size(kNames) ? "unknown" : kNames[index];
}

void stet_error_free(stet_error* error) {
  if (error != &kNoMemory) delete static_cast<OwnedError*>(error);
}

void stet_free(void* buffer) { std::free(buffer); }

void stet_set_interrupt(stet_interrupt_callback interrupt, void* context) {
  stet::set_interrupt({interrupt, context});
}
