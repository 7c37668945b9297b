// The settings that /set changes: sampling, limits and output.
#include <fmt/format.h>

#include <charconv>
#include <stdexcept>

#include "stet/base/error.hpp"
#include "tools/chat/chat.hpp"
#include "tools/command/words.hpp"

namespace stet::tool {
namespace {

// The places that settings are read from and written to.
struct Settings {
  GenerationState& state;
  ChatOptions& options;
  SamplingSettings& sampling = state.sampling;
};

struct Setting {
  const char* name;
  const char* range;
  bool for_draws;  // has no effect while greedy
  std::string (*text)(const Settings&);
  // Returns false for a text outside the range. check_generation() tests the rest.
  bool (*read)(Settings&, const std::string&);
};

template <class Number>
bool read_number(const std::string& text, Number* number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return error == std::errc() && end == text.data() + text.size();
}

bool read_switch(const std::string& text, bool* value) {
  *value = text == "on";
  return *value || text == "off";
}

const char* on_off(bool value) { return value ? "on" : "off"; }

bool read_temperature(Settings& p, const std::string& text) {
  double value = 0;
  if (!read_number(text, &value)) return false;
  p.sampling.greedy = value == 0;
  if (value != 0) p.sampling.temperature = value;
  return true;
}

bool read_logit_bias(Settings& p, const std::string& text) {
  const auto biases = parse_logit_bias(text);
  if (biases) p.sampling.logit_bias = logit_bias_of(*biases);
  return biases.has_value();
}

std::string logit_bias_text(const std::vector<TokenBias>& biases) {
  std::string text;
  for (const auto& [id, bias] : biases)
    text += fmt::format("{}{}={}", text.empty() ? "" : ",", id, bias);
  return text.size() > 200 ? text.substr(0, 200) + "..." : text;
}

template <double SamplingSettings::*member>
Setting probability(const char* name, const char* range) {
  return {name, range, true,
          [](const Settings& p) { return fmt::format("{}", p.sampling.*member); },
          [](Settings& p, const std::string& text) {
            return read_number(text, &(p.sampling.*member));
          }};
}

const std::vector<Setting>& settings() {
  static const std::vector<Setting> all = {
      {"temperature", "0 (greedy) or a number in 1e-30..1e30", true,
       [](const Settings& p) { return fmt::format("{}", p.sampling.temperature); },
       read_temperature},
      {"top-k", "an integer in 0..2147483647 (0: all)", true,
       [](const Settings& p) { return fmt::format("{}", p.sampling.top_k); },
       [](Settings& p, const std::string& text) { return read_number(text, &p.sampling.top_k); }},
      probability<&SamplingSettings::top_p>("top-p", "a number in 0..1 (1: all)"),
      probability<&SamplingSettings::min_p>("min-p", "a number in 0..1 (0: all)"),
      probability<&SamplingSettings::typical_p>("typical", "a number above 0, up to 1 (1: all)"),
      {"repetition-penalty", "a number in 1e-30..1e30 (1: none)", false,
       [](const Settings& p) { return fmt::format("{}", p.sampling.repetition_penalty); },
       [](Settings& p, const std::string& text) {
         return read_number(text, &p.sampling.repetition_penalty);
       }},
      {"frequency-penalty", "a number in -2..2 (0: none)", false,
       [](const Settings& p) { return fmt::format("{}", p.sampling.frequency_penalty); },
       [](Settings& p, const std::string& text) {
         return read_number(text, &p.sampling.frequency_penalty);
       }},
      {"presence-penalty", "a number in -2..2 (0: none)", false,
       [](const Settings& p) { return fmt::format("{}", p.sampling.presence_penalty); },
       [](Settings& p, const std::string& text) {
         return read_number(text, &p.sampling.presence_penalty);
       }},
      {"logit-bias", "17=-100,5=2.5 with ids of tokens and numbers in -100..100, or nothing", false,
       [](const Settings& p) { return logit_bias_text(p.sampling.logit_bias); }, read_logit_bias},
      {"seed", "an integer in 0..18446744073709551615", true,
       [](const Settings& p) { return fmt::format("{}", p.sampling.seed); },
       [](Settings& p, const std::string& text) { return read_number(text, &p.sampling.seed); }},
      {"greedy", "on or off", false,
       [](const Settings& p) { return std::string(on_off(p.sampling.greedy)); },
       [](Settings& p, const std::string& text) { return read_switch(text, &p.sampling.greedy); }},
      {"max-tokens", "an integer in 1..9223372036854775807", false,
       [](const Settings& p) { return fmt::format("{}", p.options.generate.max_tokens); },
       [](Settings& p, const std::string& text) {
         return read_number(text, &p.options.generate.max_tokens) &&
                p.options.generate.max_tokens > 0;
       }},
      {"stop", "a text of UTF-8, or nothing", false,
       [](const Settings& p) {
         return printable(fmt::format("{}", fmt::join(p.state.stop_strings, " | ")), 200);
       },
       [](Settings& p, const std::string& text) {
         p.state.stop_strings = text.empty() ? std::vector<std::string>() : std::vector{text};
         return true;
       }},
      {"stats", "on or off", false,
       [](const Settings& p) { return std::string(on_off(p.options.stats)); },
       [](Settings& p, const std::string& text) { return read_switch(text, &p.options.stats); }}};
  return all;
}

// Returns a remark on the effect of a change, or "".
std::string consequence(const Setting& setting, const SamplingSettings& before,
                        const SamplingSettings& after) {
  if (before.greedy != after.greedy) {
    return after.greedy
               ? "greedy: always the best token"
               : fmt::format("not greedy: tokens are drawn at temperature {}", after.temperature);
  }
  if (!setting.for_draws || !after.greedy || std::string_view(setting.name) == "temperature")
    return "";
  return fmt::format("{} has no effect on greedy replies: /set temperature T samples",
                     setting.name);
}

}  // namespace

std::vector<std::string> setting_names() {
  std::vector<std::string> names;
  for (const Setting& setting : settings()) names.push_back(setting.name);
  return names;
}

std::string settings_text(const GenerationState& state, const ChatOptions& options) {
  GenerationState shown = state;
  ChatOptions also = options;
  const Settings all{shown, also};
  std::string text;
  for (const Setting& setting : settings()) {
    const bool idle = setting.for_draws && state.sampling.greedy;
    text += fmt::format("{} {}{}\n", setting.name, setting.text(all),
                        idle ? " (no effect while greedy)" : "");
  }
  return text;
}

std::string change_setting(GenerationState& state, ChatOptions& options, int64_t vocab_size,
                           const std::string& name, const std::string& value) {
  const auto found = std::find_if(settings().begin(), settings().end(),
                                  [&](const Setting& s) { return s.name == name; });
  if (found == settings().end()) {
    throw std::runtime_error(fmt::format("unknown setting {}{} (/set lists them)",
                                         printable(name, 40), did_you_mean(name, setting_names())));
  }
  const auto refuse = [&] {
    throw Error(ErrorKind::argument, "", name, found->range,
                value.empty() ? "nothing" : printable(value, 60));
  };
  GenerationState changed = state;
  ChatOptions also = options;
  Settings all{changed, also};
  if (!found->read(all, value)) refuse();
  try {
    check_generation(changed, vocab_size, INT64_MAX, "");
  } catch (const Error&) {
    refuse();
  }
  std::string said = consequence(*found, state.sampling, changed.sampling);
  state = std::move(changed);
  options = std::move(also);
  return said;
}

}  // namespace stet::tool
