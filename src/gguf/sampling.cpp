#include "src/gguf/sampling.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "stet/base/error.hpp"

namespace stet {
namespace {

using Json = nlohmann::ordered_json;

struct SamplingKey {
  const char *key, *field;
  double least, most;  // range in generation_config.json
};
constexpr double kMostTopK = 2147483647;
constexpr SamplingKey kKeys[] = {
    {"general.sampling.temp", "temperature", 0, 1e6},
    {"general.sampling.top_k", "top_k", 0, kMostTopK},
    {"general.sampling.top_p", "top_p", 0, 1},
    {"general.sampling.min_p", "min_p", 0, 1},
    {"general.sampling.penalty_repeat", "repetition_penalty", 1e-6, 1e6}};

bool is_integer(const SamplingKey& s) { return s.most == kMostTopK; }

// Returns a key's value. As in llama.cpp, a temperature or a top_k below 0 counts as 0.
double value_of(const Gguf& keys, const SamplingKey& s) {
  double value = *keys.number(s.key);
  if (s.least == 0 && s.most > 1) value = std::max(value, 0.0);
  const bool whole = !is_integer(s) || value == static_cast<double>(static_cast<int64_t>(value));
  if (!(value >= s.least && value <= s.most) || !whole)
    keys.fail(
        s.key,
        fmt::format("{} in {}..{}", is_integer(s) ? "an integer" : "a number", s.least, s.most),
        fmt::format("{}", value));
  return value;
}

// Notes the keys of sampling methods that stet does not have (Mirostat, XTC, an order of samplers)
// where parse_generation_config() finds them. Returns whether there are any.
bool note_ignored(const Gguf& keys, Json& config) {
  Json ignored = Json::array();
  for (const std::string& key : keys.keys("general.sampling.")) {
    if (std::none_of(std::begin(kKeys), std::end(kKeys),
                     [&](const SamplingKey& s) { return key == s.key; }))
      ignored.push_back(key);
  }
  if (ignored.empty()) return false;
  Json& notes = config["stet"];
  if (!notes.is_object()) notes = Json::object();
  notes["ignored"] = ignored;
  return true;
}

}  // namespace

void add_sampling_keys(const GenerationConfig& g, GgufKeys& keys) {
  if (!g.sample) return;
  const auto number = [&](const char* name, double value, double absent) {
    if (value != absent) keys.f32(std::string("general.sampling.") + name, value);
  };
  keys.f32("general.sampling.temp", g.temperature);
  if (g.top_k != 0)
    keys.i32("general.sampling.top_k", std::min(g.top_k, static_cast<int64_t>(kMostTopK)));
  number("top_p", g.top_p, 1);
  number("min_p", g.min_p, 0);
  number("penalty_repeat", g.repetition_penalty, 1);
}

bool take_sampling_keys(const Gguf& keys, Json& config) {
  bool any = false, changed = note_ignored(keys, config);
  for (const SamplingKey& s : kKeys) {
    if (!keys.has(s.key)) continue;
    any = true;
    const double value = value_of(keys, s);
    const auto found = config.find(s.field);
    if (found != config.end() && found->is_number() &&
        static_cast<float>(found->get<double>()) == static_cast<float>(value))
      continue;
    changed = true;
    if (is_integer(s))
      config[s.field] = static_cast<int64_t>(value);
    else  // shortest decimal of the float32, as published
      config[s.field] = Json::parse(fmt::format("{}", static_cast<float>(value)));
  }
  if (!any) return changed;
  const auto temperature = config.find("temperature");
  const Json draws = temperature == config.end() || *temperature != 0;
  if (config.value("do_sample", Json()) == draws) return changed;
  config["do_sample"] = draws;
  return true;
}

}  // namespace stet
