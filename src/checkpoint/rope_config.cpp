// Reads rotary positions from config.json, with the precedence of transformers
// (PreTrainedConfig.convert_rope_params_to_dict).
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "src/base/json_value.hpp"
#include "stet/base/error.hpp"
#include "stet/kernels/math.hpp"
#include "stet/kernels/numbers.hpp"
#include "stet/model/family.hpp"

namespace stet {
namespace {

using FieldNames = std::vector<std::string>;

bool has_name(const FieldNames& names, const std::string& name) {
  return std::ranges::find(names, name) != names.end();
}

// Fields of published configs that change nothing, either with any value or with this one.
struct WithoutEffect {
  const char* name;
  const char* value;  // as JSON; null: any value
};
constexpr WithoutEffect kWithoutEffect[] = {
    {"finetuned", nullptr},      // YaRN's authors: the checkpoint was trained on long texts
    {"mrope_section", nullptr},  // Qwen: axes of images; a text's three positions are equal
    {"mrope_interleaved", nullptr},
    {"rope_interleaved", "false"},   // nanotron: dimension i pairs with i + half
    {"partial_rotary_factor", "1"},  // all of a head is rotated
    {"partial_rotary_factor", "1.0"}};

bool has_effect(const JsonReader& object, const std::string& name) {
  if (!object.has(name)) return false;
  const std::string value = json_of(object).at(name).dump();
  return std::ranges::none_of(kWithoutEffect, [&](const WithoutEffect& w) {
    return name == w.name && (w.value == nullptr || value == w.value);
  });
}

std::string joined_names(const FieldNames& names) {
  return fmt::format("{}", fmt::join(names, ", "));
}

[[noreturn]] void refuse_field(const JsonReader& object, const std::string& name,
                               const std::string& expected) {
  throw Error(ErrorKind::unsupported, object.file(), object.path_of(name), expected,
              printable(json_of(object).at(name).dump(-1, ' ', false,
                                                      nlohmann::json::error_handler_t::replace),
                        60));
}

struct RopeType {
  Rope::Scaling scaling;
  FieldNames fields;  // allowed in addition to the fields of every type
};

RopeType rope_type_of(const JsonReader& json, const std::string& name) {
  const char* const original = "original_max_position_embeddings";
  if (name == "default") return {Rope::Scaling::none, {original}};
  if (name == "linear") return {Rope::Scaling::linear, {"factor", original}};
  if (name == "llama3")
    return {Rope::Scaling::llama3, {"factor", "low_freq_factor", "high_freq_factor", original}};
  if (name == "yarn")
    return {Rope::Scaling::yarn,
            {"factor", "attention_factor", "beta_fast", "beta_slow", "truncate", "mscale",
             "mscale_all_dim", original}};
  if (name == "longrope" || name == "su")
    return {Rope::Scaling::longrope,
            {"factor", "attention_factor", "short_factor", "long_factor", original}};
  if (name == "proportional")
    return {Rope::Scaling::proportional, {"factor", "partial_rotary_factor"}};
  throw Error(ErrorKind::unsupported, json.file(),
              json.path_of(json.has("rope_type") ? "rope_type" : "type"),
              "default, linear, llama3, yarn, longrope or proportional", name);
}

// The objects that hold the rotary fields of one kind of layer.
class RopePlaces {
 public:
  RopePlaces(const JsonReader& top, const std::string& layer_type, const char* otherwise)
      : top_(top) {
    // transformers takes a null rope_scaling as none, and a null rope_parameters as the default.
    if (otherwise != nullptr && !top.has_object("rope_parameters") && !top.names("rope_scaling")) {
      objects_.push_back(parse_json(otherwise, top.file()));
      return;
    }
    const auto scaling = filled("rope_scaling"), parameters = filled("rope_parameters");
    const bool by_type =
        parameters && !layer_type.empty() &&
        (parameters->has_object("full_attention") || parameters->has_object("sliding_attention"));
    // If layers differ, rope_scaling is for those with full attention.
    if (scaling && layer_type != "sliding_attention") objects_.push_back(*scaling);
    if (!parameters || (scaling && layer_type.empty())) return;
    if (!by_type) {
      objects_.push_back(*parameters);
      return;
    }
    for (const std::string& name : parameters->keys()) {
      if (name != "full_attention" && name != "sliding_attention" && has_effect(*parameters, name))
        refuse_field(*parameters, name, "full_attention and sliding_attention alone");
    }
    if (const auto object = parameters->object(layer_type)) objects_.push_back(*object);
  }

  const JsonReader& top() const { return top_; }
  const std::vector<JsonReader>& objects() const { return objects_; }
  // Returns the first object that has the field. If none has it, returns the first object, so that
  // an error about the missing field names it.
  const JsonReader& with(const std::string& name) const {
    const auto found =
        std::ranges::find_if(objects_, [&](const JsonReader& o) { return o.has(name); });
    return found != objects_.end() ? *found : objects_.empty() ? top_ : objects_.front();
  }
  bool has(const std::string& name) const {
    return std::ranges::any_of(objects_, [&](const JsonReader& o) { return o.has(name); });
  }
  double number(const char* name, double min, double max) const {
    return with(name).number(name, min, max);
  }
  double number_or(const char* name, double fallback, double min, double max) const {
    return has(name) ? number(name, min, max) : fallback;
  }

 private:
  std::optional<JsonReader> filled(const char* name) const {
    auto object = top_.object(name);
    if (object && object->keys().empty()) object.reset();
    return object;
  }

  const JsonReader& top_;
  std::vector<JsonReader> objects_;
};

double read_theta(const RopePlaces& places, const RopeFields& fields, double default_theta) {
  constexpr double kLeast = 1, kMost = 1e12;
  if (places.has("rope_theta")) return places.number("rope_theta", kLeast, kMost);
  for (const std::string& name : fields.theta) {
    if (places.top().has(name)) return places.top().number(name, kLeast, kMost);
  }
  return default_theta;
}

// Returns the number of positions in the original training. The top-level field (Phi-3) takes
// precedence over the one among the rotary settings.
double read_original_positions(const RopePlaces& places, double least) {
  const char* const name = "original_max_position_embeddings";
  if (places.top().has(name)) return places.top().number(name, least, 1e9);
  if (places.has(name)) return places.number(name, least, 1e9);
  return places.top().number("max_position_embeddings", least, 1e9);
}

double yarn_magnitude(double factor, double scale) {
  return factor > 1 ? 0.1 * scale * math::log(factor) + 1 : 1;
}

void read_yarn(const RopePlaces& places, Rope* rope) {
  rope->original_positions = read_original_positions(places, 1);
  rope->beta_fast = places.number_or("beta_fast", 32, 1e-3, 1e6);
  rope->beta_slow = places.number_or("beta_slow", 1, 1e-3, 1e6);
  rope->truncate = places.with("truncate").boolean_or("truncate", true);
  if (rope->beta_fast <= rope->beta_slow)
    places.with("beta_fast").fail("beta_fast", "a number above beta_slow");
  const double scale = places.number_or("mscale", 0, 0, 1e3),
               all = places.number_or("mscale_all_dim", 0, 0, 1e3);
  if ((scale == 0) != (all == 0)) {
    const char* const alone = scale != 0 ? "mscale" : "mscale_all_dim";
    refuse_field(places.with(alone), alone, "mscale and mscale_all_dim, or neither");
  }
  // Stored explicitly, so that a config that states the factor and one that leaves it out are the
  // same model.
  rope->attention_factor =
      places.has("attention_factor") ? places.number("attention_factor", 1e-3, 1e3)
      : scale != 0 ? yarn_magnitude(rope->factor, scale) / yarn_magnitude(rope->factor, all)
                   : yarn_magnitude(rope->factor, 1);
}

void read_longrope(const RopePlaces& places, Rope* rope) {
  const JsonReader& top = places.top();
  const char* const original = "original_max_position_embeddings";
  if (!top.has(original) && !places.has(original))
    places.with(original).fail(original, "a number in 2.0..1000000000.0");
  rope->original_positions = read_original_positions(places, 2);
  const double positions = top.number_or("max_position_embeddings", 2048, 1, 1e9),
               stretched = positions / rope->original_positions;
  rope->factor = top.has(original) ? stretched : places.number_or("factor", stretched, 1e-6, 1e6);
  rope->is_long = positions > rope->original_positions;
  rope->attention_factor =
      places.has("attention_factor") ? places.number("attention_factor", 1e-3, 1e3)
      : rope->factor > 1             ? 1 / inverse_square_root(1 + math::log(rope->factor) /
                                                                       math::log(rope->original_positions))
                                     : 1;
  for (const auto& [name, to] : {std::pair("short_factor", &rope->short_factors),
                                 std::pair("long_factor", &rope->long_factors)}) {
    *to = places.with(name).numbers(name);
    const auto in_range = [](double f) { return f >= 1e-3 && f <= 1e6; };
    if (to->empty() || !std::ranges::all_of(*to, in_range))
      places.with(name).fail(name, "numbers in 0.001..1e6");
    for (double& f : *to) f = static_cast<double>(static_cast<float>(f));  // used as float32
  }
}

void read_scaling(const RopePlaces& places, Rope* rope) {
  if (rope->scaling == Rope::Scaling::none) return;
  if (rope->scaling == Rope::Scaling::longrope) return read_longrope(places, rope);
  if (rope->scaling == Rope::Scaling::proportional) {
    rope->factor = places.number_or("factor", 1, 1e-6, 1e6);
    rope->part = places.number_or("partial_rotary_factor", 1, 0, 1);
    return;
  }
  rope->factor = places.number("factor", 1e-6, 1e6);
  if (rope->scaling == Rope::Scaling::linear) return;
  if (rope->scaling == Rope::Scaling::yarn) return read_yarn(places, rope);
  rope->low_freq_factor = places.number("low_freq_factor", 1e-6, 1e6);
  rope->high_freq_factor = places.number("high_freq_factor", 1e-6, 1e6);
  rope->original_positions = read_original_positions(places, 1);
  if (rope->high_freq_factor <= rope->low_freq_factor)
    places.with("high_freq_factor").fail("high_freq_factor", "a number above low_freq_factor");
}

// Refuses fields that are not read: with an ignored field the model would rotate differently than
// it was published.
void refuse_unknown(const RopePlaces& places, const std::string& type, const RopeType& read,
                    const RopeFields& fields) {
  FieldNames known = {"rope_type", "type", "rope_theta"};
  known.insert(known.end(), read.fields.begin(), read.fields.end());
  if (has_name(fields.others, "partial_rotary_factor")) known.push_back("partial_rotary_factor");
  for (const JsonReader& object : places.objects()) {
    for (const std::string& name : object.keys()) {
      if (!has_name(known, name) && has_effect(object, name))
        refuse_field(object, name,
                     "only these fields of the type " + type + ": " + joined_names(known));
    }
  }
  FieldNames at_top = {"rope_scaling", "rope_parameters"};
  at_top.insert(at_top.end(), fields.theta.begin(), fields.theta.end());
  at_top.insert(at_top.end(), fields.others.begin(), fields.others.end());
  for (const std::string& name : places.top().keys()) {
    const bool rotary =
        name.starts_with("rope_") || name.starts_with("rotary_") || name == "partial_rotary_factor";
    if (rotary && !has_name(at_top, name) && has_effect(places.top(), name))
      refuse_field(places.top(), name, "only these rotary fields: " + joined_names(at_top));
  }
}

std::optional<std::string> stated_type(const JsonReader& object) {
  for (const char* const name : {"rope_type", "type"})
    if (object.has(name)) return object.string(name);
  return std::nullopt;
}

// Returns the type that the objects state. Throws if they state two, because the numbers of one
// object would scale in the way of the other.
std::string read_type(const RopePlaces& places) {
  std::optional<std::string> first;
  for (const JsonReader& object : places.objects()) {
    const auto type = stated_type(object);
    if (!type) continue;
    const RopeType read = rope_type_of(object, *type);
    if (!first) first = type;
    if (read.scaling != rope_type_of(object, *first).scaling)
      refuse_field(object, object.has("rope_type") ? "rope_type" : "type",
                   *first + ", the type of rope_scaling, or no rope_scaling");
  }
  return first.value_or("default");
}

}  // namespace

Rope read_rope(const JsonReader& json, const std::string& layer_type, double default_theta,
               const RopeFields& fields) {
  const RopePlaces places(json, layer_type, fields.otherwise);
  Rope rope;
  rope.theta = read_theta(places, fields, default_theta);
  const std::string type = read_type(places);
  const RopeType read = rope_type_of(json, type);
  rope.scaling = read.scaling;
  read_scaling(places, &rope);
  refuse_unknown(places, type, read, fields);
  return rope;
}

void read_rotary_part(const JsonReader& json, double part, ModelConfig* c) {
  std::optional<JsonReader> object = json.object("rope_scaling");
  if (!object || object->keys().empty()) object = json.object("rope_parameters");
  const char* const name = "partial_rotary_factor";
  const JsonReader& place = object && object->has(name) ? *object : json;
  part = place.number_or(name, part, 0, 1);
  const auto turned = static_cast<int64_t>(static_cast<double>(c->head_dim) * part);
  if (turned < 2 || turned % 2 != 0)
    place.fail(name, "an even number of head_dim " + std::to_string(c->head_dim) + " dimensions");
  c->rotary_dim = turned == c->head_dim ? 0 : turned;
}

}  // namespace stet
