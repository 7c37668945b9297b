// Standard output, and texts for it.
#include <fmt/format.h>

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <stdexcept>
#include <system_error>

#include "stet/base/error.hpp"
#include "stet/text/utf8.hpp"
#include "tools/command/command.hpp"

namespace stet::tool {
namespace {

int output_error = 0;  // errno of the first failure
bool raw_output = false;

}  // namespace

bool out_style(std::string_view sequence) {
  if (output_error == 0 &&
      std::fwrite(sequence.data(), 1, sequence.size(), stdout) != sequence.size())
    output_error = errno;
  return output_error == 0;
}

bool out(std::string_view text) { return out_style(for_terminal(text)); }

bool out_text(std::string_view text) {
  static const bool terminal = isatty(STDOUT_FILENO) != 0;
  return terminal && !raw_output ? out(text) : out_style(text);
}

void add_raw_output(Command& app) {
  raw_output = false;
  app.add_flag("--raw-output", raw_output,
               "write control characters of the text unescaped to a terminal")
      ->group("Output");
}

void flush_output() {
  if (output_error == 0 && std::fflush(stdout) != 0) output_error = errno;
}

void finish_output() {
  flush_output();
  if (output_error == 0) return;
  if (output_error == EPIPE) throw ExitStatus{1};  // no error to report, as in `| head`
  throw std::runtime_error("cannot write to standard output: " +
                           std::generic_category().message(output_error));
}

// Writes JSON. Also escapes control characters above ASCII, which could drive a terminal. They
// occur only in strings, whose value stays the same.
std::string dump(const Json& json, int indent) {
  const std::string text = json.dump(indent, ' ', false, Json::error_handler_t::replace);
  std::string escaped;
  escaped.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const size_t from = i;
    while (i < text.size() && text[i] >= 0 && text[i] < '\x7F') ++i;
    escaped.append(text, from, i - from);
    if (i == text.size()) break;
    const Utf8 c = utf8_at(text, i);
    if (c.code > 0x20 && is_control(c.code))
      escaped += fmt::format("\\u{:04x}", c.code);
    else
      escaped += std::string_view(text).substr(i, c.length);
    i += c.length;
  }
  return escaped;
}

Json digests_json(const StateDigests& d) {
  return {{"tokens", digest_text(d.tokens)},
          {"logits", digest_text(d.logits)},
          {"kv", digest_text(d.kv)},
          {"state", digest_text(d.state)},
          {"id", sha256_text(d.id)}};
}

Json logit_bias_json(const std::vector<TokenBias>& biases) {
  Json json = Json::object();
  auto& members = json.get_ref<Json::object_t&>();
  for (const auto& [id, bias] : biases) members.emplace_back(std::to_string(id), bias);
  return json;
}

std::string does_not_fit(int64_t tokens, int64_t used, int64_t capacity) {
  return fmt::format("{} tokens do not fit: {} of {} positions are used (--ctx sets the number)",
                     tokens, used, capacity);
}

std::string bytes_text(double bytes) {
  const char* const units[] = {"bytes", "KB", "MB", "GB", "TB"};
  size_t unit = 0;
  for (; bytes >= 1000 && unit < 4; ++unit) bytes /= 1000;
  return fmt::format("{:.{}f} {}", bytes, unit == 0 ? 0 : 1, units[unit]);
}

}  // namespace stet::tool
