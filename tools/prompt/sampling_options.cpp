// The options for sampling and stopping.
#include <fmt/format.h>
#include <sys/random.h>

#include <charconv>

#include "stet/base/error.hpp"
#include "tools/command/command.hpp"

namespace stet::tool {
namespace {

struct AcceptedRange {
  const char* option;
  const char* text;
  bool (*holds)(double);  // false for nan
};

bool holds_scale(double x) { return x >= 1e-30 && x <= 1e30; }
bool holds_probability(double x) { return x >= 0 && x <= 1; }
bool holds_penalty(double x) { return x >= -2 && x <= 2; }

constexpr AcceptedRange kRanges[] = {
    {"--temperature", "0 (greedy) or a number in 1e-30..1e30",
     [](double x) { return x == 0 || holds_scale(x); }},
    {"--top-k", "an integer in 0..2147483647 (0: all)",
     [](double x) { return x >= 0 && x <= INT32_MAX && x == static_cast<int32_t>(x); }},
    {"--top-p", "a number in 0..1 (1: all)", holds_probability},
    {"--min-p", "a number in 0..1 (0: all)", holds_probability},
    {"--typical", "a number above 0, up to 1 (1: all)", [](double x) { return x > 0 && x <= 1; }},
    {"--repetition-penalty", "a number in 1e-30..1e30 (1: none)", holds_scale},
    {"--frequency-penalty", "a number in -2..2 (0: none)", holds_penalty},
    {"--presence-penalty", "a number in -2..2 (0: none)", holds_penalty},
};

std::string bias_fault(const std::string& text) {
  const auto biases = parse_logit_bias(text);
  if (biases && biases->size() == 1) return "";
  return fmt::format("expected {}, found {}", kLogitBiasRange, text.empty() ? "nothing" : text);
}

}  // namespace

namespace {

Check seed_range() {
  return {[number = integer(0, UINT64_MAX)](std::string& text) {
            if (text == "random" || number.fault(text).empty()) return std::string();
            return fmt::format("expected random, or an integer in 0..{}, found {}", UINT64_MAX,
                               text.empty() ? "nothing" : text);
          },
          ""};
}

}  // namespace

uint64_t random_seed() {
  constexpr uint64_t kSeeds = (uint64_t{1} << 53) - 1'000'000;
  uint64_t bits = kSeeds;
  while (bits >= kSeeds) {  // drawn again, so that all seeds are equally likely
    if (::getrandom(&bits, sizeof bits, 0) != static_cast<ssize_t>(sizeof bits))
      throw Error(ErrorKind::io, "", "random bytes", "8 of the system", "fewer");
    bits >>= 11;
  }
  return bits;
}

Check sampling_range(std::string_view option) {
  const auto* const range =
      std::find_if(std::begin(kRanges), std::end(kRanges),
                   [&](const AcceptedRange& r) { return r.option == option; });
  return {[range](std::string& text) {
            double value = 0;
            const char* const end = text.data() + text.size();
            const auto [stop, error] = std::from_chars(text.data(), end, value);
            const bool good = error == std::errc() && stop == end && range->holds(value);
            return good ? std::string()
                        : fmt::format("expected {}, found {}", range->text,
                                      text.empty() ? "nothing" : text);
          },
          ""};
}

std::optional<std::vector<TokenBias>> parse_logit_bias(std::string_view text) {
  std::vector<TokenBias> biases;
  while (!text.empty()) {
    const std::string_view one = text.substr(0, text.find(','));
    text.remove_prefix(one.size());
    if (!text.empty()) text.remove_prefix(1);
    TokenBias b;
    const char* const end = one.data() + one.size();
    const auto [equals, no_id] = std::from_chars(one.data(), end, b.id);
    if (no_id != std::errc() || b.id < 0 || equals == end || *equals != '=') return std::nullopt;
    const auto [stop, no_number] = std::from_chars(equals + 1, end, b.bias);
    if (no_number != std::errc() || stop != end || !(b.bias >= -100 && b.bias <= 100))
      return std::nullopt;
    biases.push_back(b);
  }
  return biases;
}

void SamplingOptions::add_to(Command& app) {
  const auto number = [&](const char* name, auto& value, const char* help, const char* type) {
    return app.add_option(name, value, help)
        ->check(sampling_range(name))
        ->type_name(type)
        ->group("Sampling");
  };
  for_draws_ = {
      number("--temperature", temperature, "draw with this temperature (0: greedy)", "T"),
      number("--top-k", top_k, "draw from the K likeliest tokens (0: all)", "K"),
      number("--top-p", top_p, "draw from the likeliest tokens that together have this probability",
             "P"),
      number("--min-p", min_p, "draw from tokens at least this likely, relative to the likeliest",
             "P"),
      number("--typical", typical_p,
             "draw from the most typical tokens that together have this probability", "P"),
      app.add_option("--seed", seed, "seed of the draws: 0 .. 2^64-1, or random (default: 0)")
          ->check(seed_range())
          ->type_name("N")
          ->group("Sampling")};
  number("--repetition-penalty", repetition_penalty,
         "divide the logits of tokens that occurred already by this", "X");
  number("--frequency-penalty", frequency_penalty,
         "lower the logit of a token by this for each time that the reply has it", "X");
  number("--presence-penalty", presence_penalty,
         "lower the logits of tokens that the reply has by this", "X");
  app.add_option("--logit-bias", logit_bias,
                 "add to the logits of these tokens: 17=-100,5=2.5 (0: none)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check({bias_fault, ""})
      ->type_name("ID=X")
      ->group("Sampling");
  Option* best =
      app.add_flag("--greedy", greedy, "always take the likeliest token")->group("Sampling");
  app.add_flag("--sample", sample, "draw, with the checkpoint's settings unless others are given")
      ->group("Sampling")
      ->excludes(best);
  app.add_texts("--stop", stop_strings, "end a reply at this text (repeat for more)")
      ->group("Stopping");
  app.add_option("--stop-id", stop_ids, "end a reply at these tokens instead of the checkpoint's")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(integer(0, INT32_MAX))
      ->type_name("IDS")
      ->group("Stopping");
}

std::vector<TokenBias> SamplingOptions::biases() const {
  try {
    return logit_bias_of(*parse_logit_bias(fmt::format("{}", fmt::join(logit_bias, ","))));
  } catch (const Error& e) {
    usage_error("--logit-bias", e.expected, e.found + " of " + e.field);
  }
}

void SamplingOptions::apply(GenerationState& state, int64_t vocab_size) const {
  for (const int32_t id : stop_ids) {
    if (id >= vocab_size)
      usage_error("--stop-id", fmt::format("token ids in 0..{}", vocab_size - 1),
                  std::to_string(id));
  }
  SamplingSettings& s = state.sampling;
  if (temperature || top_k || top_p || min_p || typical_p || sample) s.greedy = false;
  if (temperature && *temperature == 0)
    s.greedy = true;
  else if (temperature)
    s.temperature = *temperature;
  if (top_k) s.top_k = *top_k;
  if (top_p) s.top_p = *top_p;
  if (min_p) s.min_p = *min_p;
  if (typical_p) s.typical_p = *typical_p;
  if (repetition_penalty) s.repetition_penalty = *repetition_penalty;
  if (seed == "random") {
    if (!drawn_seed_) drawn_seed_ = random_seed();
    s.seed = *drawn_seed_;
  } else if (!seed.empty()) {
    s.seed = std::stoull(seed);
  }
  if (frequency_penalty) s.frequency_penalty = *frequency_penalty;
  if (presence_penalty) s.presence_penalty = *presence_penalty;
  if (!logit_bias.empty()) s.logit_bias = biases();
  if (const auto& b = s.logit_bias; !logit_bias.empty() && !b.empty() && b.back().id >= vocab_size)
    usage_error("--logit-bias", fmt::format("token ids in 0..{}", vocab_size - 1),
                std::to_string(b.back().id));
  if (greedy) s.greedy = true;
  if (!stop_strings.empty()) state.stop_strings = stop_strings;
  if (!stop_ids.empty()) state.stop_ids = stop_ids;
}

void SamplingOptions::validate() const {
  if (biases().size() > kMaxLogitBias)
    usage_error("--logit-bias", fmt::format("at most {} tokens", kMaxLogitBias),
                std::to_string(logit_bias.size()));
  if (sample && temperature && *temperature == 0)
    usage_error("--sample", "a temperature above 0", "--temperature 0, which is greedy");
  GenerationState state;
  state.stop_strings = stop_strings;
  try {
    check_generation(state, 0, 0, "");
  } catch (const Error& e) {
    usage_error("--stop", e.expected, e.found);
  }
}

void SamplingOptions::report_seed(const GenerationState& state) const {
  if (state.sampling.greedy || (!seed.empty() && seed != "random")) return;
  say("seed {}{}\n", state.sampling.seed, seed.empty() ? " (--seed random: another)" : "");
}

void SamplingOptions::report_idle(const GenerationState& state) const {
  if (!state.sampling.greedy) return;
  std::string names;
  for (const Option* option : for_draws_) {
    const bool makes_greedy = option->get_name() == "--temperature" && *temperature == 0;
    if (option->count() > 0 && !makes_greedy)
      names += (names.empty() ? "" : ", ") + option->get_name();
  }
  if (!names.empty())
    say("no effect while greedy, where the best token is taken: {} (--temperature T samples)\n",
        names);
}

void report_passed(const GenerateOptions& options, const CheckpointOption& checkpoint,
                   const SamplingOptions& sampling) {
  if (!options.ignore_eos) return;
  std::vector<std::string> names;
  if (!sampling.stop_ids.empty()) names.emplace_back("--stop-id");
  if (!checkpoint.overrides.eos_ids.empty()) names.emplace_back("--eos");
  if (!names.empty())
    say("no effect under --ignore-eos, which continues past these tokens: {}\n",
        fmt::join(names, ", "));
}

}  // namespace stet::tool
