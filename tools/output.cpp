// Standard output, and texts for it.
#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <system_error>

#include "stet/error.hpp"
#include "tools/command.hpp"

namespace stet::tool {
namespace {

int output_error = 0;  // errno of the first failure

}  // namespace

bool out(std::string_view text) {
  if (output_error == 0 && std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) output_error = errno;
  return output_error == 0;
}

void flush_output() {
  if (output_error == 0 && std::fflush(stdout) != 0) output_error = errno;
}

void finish_output() {
  flush_output();
  if (output_error == 0) return;
  throw Error(ErrorKind::io, "standard output", "", "to be writable", std::generic_category().message(output_error));
}

std::string dump(const Json& json, int indent) { return json.dump(indent, ' ', false, Json::error_handler_t::replace); }

Json digests_json(const StateDigests& d) {
  return {{"tokens", digest_text(d.tokens)}, {"logits", digest_text(d.logits)}, {"kv", digest_text(d.kv)},
          {"state", digest_text(d.state)}};
}

std::string bytes_text(double bytes) {
  const char* const units[] = {"bytes", "KB", "MB", "GB", "TB"};
  size_t unit = 0;
  for (; bytes >= 1000 && unit < 4; ++unit) bytes /= 1000;
  return fmt::format("{:.{}f} {}", bytes, unit == 0 ? 0 : 1, units[unit]);
}

}  // namespace stet::tool
