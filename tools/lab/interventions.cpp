#include "tools/lab/interventions.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>

#include "src/base/json_value.hpp"
#include "stet/base/error.hpp"
#include "stet/base/json_reader.hpp"
#include "tools/lab/tensor_file.hpp"

namespace stet::tool {
namespace {

// Only the last star is ever moved: one before it took as little as it could, so a later star can
// take the rest.
bool fits(std::string_view pattern, std::string_view text) {
  size_t p = 0, t = 0, star = pattern.size(), taken = 0;  // the last star, and the end of its text
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++, taken = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++p, ++t;
    } else if (star < pattern.size()) {
      p = star + 1, t = ++taken;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

// The fields of an entry, and those that only some operations have.
constexpr const char* kFields[] = {"point", "layers", "heads", "positions", "from", "keys", "op"};
constexpr const char* kFieldsOfFile[] = {"file", "tensor", "rows"};  // of "values"
constexpr const char* kFieldsOfOps[] = {"values",  "amount", "encoder",
                                        "decoder", "bias",   "threshold"};

// Returns the fields that the entry's operation has besides kFields.
std::vector<std::string> fields_of_op(const JsonReader& json) {
  const std::string op = json.string("op");
  if (op == "set" || op == "replace" || op == "mean" || op == "project_out") return {"values"};
  if (op == "zero" || op == "knock_out") return {};
  if (op == "add") return {"values", "amount"};
  if (op == "scale") return {"amount"};
  if (op == "clamp") return {"encoder", "decoder", "bias", "threshold", "amount"};
  json.fail("op", "set, replace, zero, mean, add, scale, project_out, clamp or knock_out");
}

// Throws a format Error for a field that is not in `known`.
void check_fields(const JsonReader& json, std::span<const char* const> known) {
  for (const std::string& name : json.keys()) {
    if (std::ranges::find(known, name) == known.end())
      throw Error(ErrorKind::format, json.file(), json.path_of(printable(name, 60)),
                  fmt::format("one of {}", fmt::join(known, ", ")), "an unknown field");
  }
}

// Throws a format Error for an unknown field and for one that does not fit the others.
void check_entry(const JsonReader& json) {
  std::vector<const char*> known(std::begin(kFields), std::end(kFields));
  known.insert(known.end(), std::begin(kFieldsOfOps), std::end(kFieldsOfOps));
  check_fields(json, known);
  const std::vector<std::string> some = fields_of_op(json);
  for (const char* name : kFieldsOfOps) {
    if (json.has(name) && std::ranges::find(some, name) == some.end())
      json.fail(name, "no such field beside op " + json.string("op"));
  }
  if (json.has("positions") && json.has("from")) json.fail("from", "positions or from, not both");
}

// Reads a list of layers or heads. An empty list would stand for all.
std::vector<int64_t> read_some(const JsonReader& json, const char* name, int64_t count) {
  std::vector<int64_t> some = json.integers(name, 0, count - 1);
  if (json.has(name) && some.empty())
    json.fail(name, "at least one number; leave the field out for all");
  return some;
}

// Reads "values": numbers, or {"file", "tensor"} with optional "rows": [begin, end]. A relative
// path starts at the directory of the interventions' file.
std::vector<float> read_values(const JsonReader& json, const std::string& name,
                               const std::string& path) {
  if (json.has_object(name)) {
    const auto from = json.object(name);
    check_fields(*from, kFieldsOfFile);
    const std::filesystem::path file = from->string("file");
    const TensorSource source(file.is_absolute()
                                  ? file.string()
                                  : (std::filesystem::path(path).parent_path() / file).string());
    LoadedTensor t = source.load(from->string("tensor"));
    if (!from->has("rows")) return t.values;
    const auto rows = from->integers("rows", 0, kMaxPositions);
    const int64_t count = t.shape.empty() ? 0 : t.shape[0];
    if (rows.size() != 2 || rows[0] >= rows[1] || rows[1] > count)
      from->fail("rows", fmt::format("[begin, end) within {} rows", count));
    const auto width = static_cast<std::ptrdiff_t>(t.values.size()) / count;
    return {t.values.begin() + rows[0] * width, t.values.begin() + rows[1] * width};
  }
  std::vector<float> values;
  for (const double x : json.numbers(name)) values.push_back(static_cast<float>(x));
  return values;
}

std::vector<float> mean_of(const std::vector<float>& rows, size_t width, const JsonReader& json) {
  if (width == 0 || rows.size() % width != 0 || rows.empty())
    json.fail("values", fmt::format("rows of {} numbers", width));
  std::vector<float> mean(width);
  const float share = 1.0f / static_cast<float>(rows.size() / width);
  for (size_t i = 0; i < rows.size(); ++i) mean[i % width] += rows[i] * share;
  return mean;
}

void read_operation(const JsonReader& json, const std::string& path, const ModelConfig& config,
                    Intervention& w) {
  using Op = Intervention::Op;
  const std::string op = json.string("op");
  const PointAt at = detail::first_point(config, w);
  const int64_t heads = point_heads(config, at);
  const auto width = is_attention(w.point)
                         ? 1
                         : static_cast<size_t>(point_width(config, at, 0) /
                                               (w.heads.empty() ? 1 : std::max<int64_t>(heads, 1)));
  const auto values = [&] {
    return std::make_shared<const std::vector<float>>(read_values(json, "values", path));
  };
  w.amount = static_cast<float>(json.number_or("amount", 1, -1e30, 1e30));
  if (op == "knock_out") {
    if (w.point != Point::scores) json.fail("op", "knock_out of attn.hook_attn_scores alone");
    w.op = Op::set;
    w.values =
        std::make_shared<const std::vector<float>>(1, -std::numeric_limits<float>::infinity());
  } else if (op == "set" || op == "replace") {
    w.op = Op::set;
    w.values = values();
  } else if (op == "zero" || op == "mean") {
    if (op == "mean" && is_attention(w.point))
      json.fail("op", "set, zero, add, scale or knock_out of scores and patterns");
    w.op = Op::set;
    w.values = std::make_shared<const std::vector<float>>(
        op == "zero" ? std::vector<float>(width)
                     : mean_of(read_values(json, "values", path), width, json));
  } else if (op == "add") {
    w.op = Op::add;
    w.values = values();
  } else if (op == "scale") {
    w.op = Op::scale;
  } else if (op == "project_out") {
    w.op = Op::project_out;
    w.values = values();
  } else {  // clamp
    w.op = Op::clamp;
    std::vector<float> both = read_values(json, "encoder", path);
    const std::vector<float> decoder = read_values(json, "decoder", path);
    both.insert(both.end(), decoder.begin(), decoder.end());
    w.values = std::make_shared<const std::vector<float>>(std::move(both));
    w.bias = static_cast<float>(json.number_or("bias", 0, -1e30, 1e30));
    w.threshold = static_cast<float>(json.number_or("threshold", 0, -1e30, 1e30));
  }
}

// Reads the point and its layer.
void read_point(const JsonReader& json, const ModelConfig& config, Intervention& w) {
  const std::string name = json.string("point");
  if (const auto at = parse_point_at(name)) {
    w.point = at->point;
    if (point_info(w.point).of_layer) w.layers = {at->layer};
  } else if (const auto point = parse_point(name)) {
    w.point = *point;
  } else {
    json.fail("point", "the name of a point");
  }
  if (!has_point(config, w.point)) json.fail("point", "one of family " + config.family);
  if (w.layers.empty()) return;
  if (w.layers[0] >= config.layers)
    json.fail("point", fmt::format("a layer in 0..{}", config.layers - 1));
  if (json.has("layers")) json.fail("layers", "none beside the point of one layer, " + name);
}

Intervention read_one(const JsonReader& json, const std::string& path, const ModelConfig& config) {
  check_entry(json);
  Intervention w;
  read_point(json, config, w);
  if (json.has("layers")) w.layers = read_some(json, "layers", config.layers);
  w.heads = read_some(json, "heads", std::max(config.heads, config.recurrence.heads));
  if (json.has("positions")) {
    const auto positions = json.integers("positions", 0, kMaxPositions);
    if (positions.size() != 2) json.fail("positions", "[begin, end]");
    w.begin = positions[0];
    w.end = positions[1];
  } else {
    w.begin = json.integer_or("from", 0, 0, kMaxPositions);
  }
  if (json.has("keys")) {
    const auto keys = json.integers("keys", 0, kMaxPositions);
    if (keys.size() != 2) json.fail("keys", "[begin, end]");
    w.key_begin = keys[0];
    w.key_end = keys[1];
  }
  read_operation(json, path, config, w);
  return w;
}

}  // namespace

std::vector<Intervention> read_interventions(const std::string& path, const ModelConfig& config) {
  const std::string text = read_text_file(path, size_t{64} << 20);
  const nlohmann::json list = parse_json_value(text, path);  // errors give line and column
  if (!list.is_array())
    throw Error(ErrorKind::format, path, "", "an array of interventions", list.type_name());
  const JsonReader json = parse_json(R"({"interventions": )" + text + "}", path);
  std::vector<Intervention> all;
  for (const JsonReader& entry : json.objects("interventions")) {
    all.push_back(read_one(entry, path, config));
    try {
      check_intervention(config, all.back());
    } catch (const Error& e) {
      throw Error(ErrorKind::format, path, fmt::format("[{}]: {}", all.size() - 1, e.field),
                  e.expected, e.found);
    }
  }
  return all;
}

std::vector<PointAt> match_points(const std::string& patterns, const ModelConfig& config) {
  std::vector<PointAt> found;
  for (size_t at = 0; at <= patterns.size();) {
    const size_t end = std::min(patterns.find(',', at), patterns.size());
    const std::string pattern = patterns.substr(at, end - at);
    at = end + 1;
    const size_t before = found.size();
    bool any = false;
    for (const PointAt& p : points_of(config)) {
      // A pattern must end with the name of a state, whose rows are too large to be asked for by
      // accident.
      if (p.point == Point::state && !pattern.ends_with(point_info(p.point).name)) continue;
      if (!fits(pattern, point_name(p))) continue;
      any = true;
      if (std::find(found.begin(), found.begin() + static_cast<std::ptrdiff_t>(before), p) ==
          found.begin() + static_cast<std::ptrdiff_t>(before))
        found.push_back(p);
    }
    if (!any)
      throw Error(ErrorKind::argument, "", "--points",
                  "names of points of family " + config.family + " (docs/lab.md)",
                  printable(pattern));
  }
  return found;
}

void InterventionOption::add_to(Command& app) {
  app.add_option("--intervene", file, "changes of activations, as JSON (docs/lab.md)")
      ->type_name("FILE")
      ->check(named())
      ->group("Interventions");
}

void InterventionOption::attach_to(Session& session) const {
  if (file.empty()) return;
  for (Intervention& w : read_interventions(file, session.model().config())) {
    try {
      session.attach(std::move(w));
    } catch (const Error& e) {
      throw Error(e.kind, file, e.field, e.expected, e.found);
    }
  }
}

}  // namespace stet::tool
