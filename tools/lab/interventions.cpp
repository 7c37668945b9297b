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

// The part of a row that an intervention takes.
struct RowPart {
  int64_t width;  // of one head if the intervention names heads, else of the whole point
  int64_t heads;  // of the point
  int64_t named;  // number of heads that the intervention names; 0: it takes whole rows
};

RowPart part_of(const ModelConfig& config, const Intervention& w) {
  if (is_attention(w.point)) return {1, 0, 0};
  const PointAt at = detail::first_point(config, w);
  const int64_t heads = point_heads(config, at), width = point_width(config, at, 0);
  return {w.heads.empty() ? width : width / std::max<int64_t>(heads, 1), heads,
          std::ssize(w.heads)};
}

// Values as [rows][columns][width of a part]. A single column is for all heads.
struct Values {
  size_t columns = 1;
  std::vector<float> numbers;
};

// Loads the tensor of {"file", "tensor"}, or its "rows": [begin, end]. A relative path starts at
// the directory of the interventions' file.
LoadedTensor load_rows(const JsonReader& from, const TensorSource& source) {
  LoadedTensor t = source.load(from.string("tensor"));
  if (!from.has("rows")) return t;
  const auto rows = from.integers("rows", 0, kMaxPositions);
  const int64_t count = t.shape.empty() ? 0 : t.shape[0];
  if (rows.size() != 2 || rows[0] >= rows[1] || rows[1] > count)
    from.fail("rows", fmt::format("[begin, end) within {} rows", count));
  const auto width = static_cast<std::ptrdiff_t>(t.values.size()) / count;
  t.values = {t.values.begin() + rows[0] * width, t.values.begin() + rows[1] * width};
  t.shape[0] = rows[1] - rows[0];
  return t;
}

// Returns the shapes that a tensor may have, without their first dimension, which counts rows.
std::vector<std::vector<int64_t>> row_shapes(const RowPart& part) {
  if (part.named > 0 && part.named != part.heads)
    return {{part.width}, {part.named, part.width}, {part.heads, part.width}};
  if (part.heads > 0)
    return {{part.width}, {part.heads, part.named > 0 ? part.width : part.width / part.heads}};
  return {{part.width}};
}

// Returns the shape of a row of the tensor. Throws a format Error for one that the part cannot
// have. A tensor of one row may lack the first dimension, but not beside "heads", where it could
// also be rows of several positions. Whole rows may be flattened.
std::vector<int64_t> row_shape_of(const LoadedTensor& t, const RowPart& part,
                                  const std::string& path, const std::string& name) {
  if (t.shape.size() == 1 && part.named == 0 && t.shape[0] % part.width == 0) return {part.width};
  std::string expected;
  for (const std::vector<int64_t>& row : row_shapes(part)) {
    const bool alone = row.size() == 1 || part.named == 0;
    if (alone && t.shape == row) return row;
    if (std::ssize(t.shape) == std::ssize(row) + 1 &&
        std::equal(row.begin(), row.end(), t.shape.begin() + 1))
      return row;
    expected += fmt::format("{}{}[rows, {}]", expected.empty() ? "" : ", ",
                            alone ? shape_text(row) + ", " : "", fmt::join(row, ", "));
  }
  throw Error(ErrorKind::format, path, name, "one of the shapes " + expected, shape_text(t.shape));
}

// Reads "values": numbers, or a tensor. Takes the named heads out of a tensor with all heads.
Values read_values(const JsonReader& json, const std::string& name, const std::string& path,
                   const Intervention& w, const RowPart& part) {
  Values values;
  if (!json.has_object(name)) {
    for (const double x : json.numbers(name)) values.numbers.push_back(static_cast<float>(x));
    return values;
  }
  const auto from = json.object(name);
  check_fields(*from, kFieldsOfFile);
  const std::filesystem::path beside = std::filesystem::path(path).parent_path();
  const TensorSource source((beside / from->string("file")).string());
  LoadedTensor t = load_rows(*from, source);
  if (is_attention(w.point) && t.shape.size() <= 1) return {1, std::move(t.values)};
  const std::vector<int64_t> row = row_shape_of(t, part, source.path(), from->string("tensor"));
  if (part.named == 0 || row.size() == 1) return {1, std::move(t.values)};
  values.columns = w.heads.size();
  const auto width = static_cast<size_t>(part.width), all = static_cast<size_t>(row[0]);
  for (size_t at = 0; at < t.values.size(); at += all * width) {
    for (size_t i = 0; i < w.heads.size(); ++i) {
      const size_t head = all == w.heads.size() ? i : static_cast<size_t>(w.heads[i]);
      const auto begin = t.values.begin() + static_cast<std::ptrdiff_t>(at + head * width);
      values.numbers.insert(values.numbers.end(), begin, begin + part.width);
    }
  }
  return values;
}

Values mean_of(const Values& rows, const RowPart& part, const JsonReader& json) {
  const size_t width = static_cast<size_t>(part.width) * rows.columns;
  if (rows.numbers.empty() || rows.numbers.size() % width != 0)
    json.fail("values", fmt::format("rows of {} numbers", width));
  Values mean{rows.columns, std::vector<float>(width)};
  const float share = 1.0f / static_cast<float>(rows.numbers.size() / width);
  for (size_t i = 0; i < rows.numbers.size(); ++i)
    mean.numbers[i % width] += rows.numbers[i] * share;
  return mean;
}

// Reads the operation into `w`. Returns its values.
Values read_operation(const JsonReader& json, const std::string& path, const ModelConfig& config,
                      Intervention& w) {
  using Op = Intervention::Op;
  const std::string op = json.string("op");
  const RowPart part = part_of(config, w);
  const auto values = [&](const char* name) { return read_values(json, name, path, w, part); };
  if (op == "scale" || op == "clamp") json.number("amount");  // neither has a usual one
  w.amount = static_cast<float>(json.number_or("amount", 1, -1e30, 1e30));
  w.op = op == "add"           ? Op::add
         : op == "scale"       ? Op::scale
         : op == "project_out" ? Op::project_out
         : op == "clamp"       ? Op::clamp
                               : Op::set;
  if (op == "scale") return {};
  if (op == "knock_out") {
    if (w.point != Point::scores) json.fail("op", "knock_out of attn.hook_attn_scores alone");
    return {1, {-std::numeric_limits<float>::infinity()}};
  }
  if (op == "zero") return {1, std::vector<float>(static_cast<size_t>(part.width))};
  if (op == "mean") {
    if (is_attention(w.point))
      json.fail("op", "set, zero, add, scale or knock_out of scores and patterns");
    return mean_of(values("values"), part, json);
  }
  if (op != "clamp") return values("values");
  w.bias = static_cast<float>(json.number_or("bias", 0, -1e30, 1e30));
  w.threshold = static_cast<float>(json.number_or("threshold", 0, -1e30, 1e30));
  Values both = values("encoder");
  const Values decoder = values("decoder");
  both.numbers.insert(both.numbers.end(), decoder.numbers.begin(), decoder.numbers.end());
  return both;
}

// Returns the intervention with these values, or one for each head if each has a column of its own.
std::vector<Intervention> with_values(const Intervention& w, const Values& values,
                                      const RowPart& part) {
  std::vector<Intervention> all;
  const auto width = static_cast<size_t>(part.width);
  for (size_t column = 0; column < values.columns; ++column) {
    std::vector<float> own = values.columns == 1 ? values.numbers : std::vector<float>();
    for (size_t at = column * width; values.columns > 1 && at < values.numbers.size();
         at += values.columns * width)
      own.insert(own.end(), values.numbers.begin() + static_cast<std::ptrdiff_t>(at),
                 values.numbers.begin() + static_cast<std::ptrdiff_t>(at + width));
    all.push_back(w);
    if (values.columns > 1) all.back().heads = {w.heads[column]};
    if (w.op != Intervention::Op::scale)
      all.back().values = std::make_shared<const std::vector<float>>(std::move(own));
  }
  return all;
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

std::vector<Intervention> read_one(const JsonReader& json, const std::string& path,
                                   const ModelConfig& config) {
  check_entry(json);
  Intervention w;
  read_point(json, config, w);
  if (json.has("layers")) w.layers = read_some(json, "layers", config.layers);
  const int64_t heads = point_heads(config, detail::first_point(config, w));
  if (heads == 0 && json.has("heads")) json.fail("heads", "none: the point has no heads");
  w.heads = read_some(json, "heads", heads);
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
  const Values values = read_operation(json, path, config, w);
  return with_values(w, values, part_of(config, w));
}

// Returns the field of a list that the library's error is about.
std::string field_of(const Error& e) {
  constexpr std::string_view kBefore = "intervention: ";
  return e.field.starts_with(kBefore) ? e.field.substr(kBefore.size()) : e.field;
}

}  // namespace

std::vector<Intervention> read_interventions(const std::string& path, const ModelConfig& config) {
  const std::string text = read_text_file(path, size_t{64} << 20);
  const nlohmann::json list = parse_json_value(text, path);  // errors give line and column
  if (!list.is_array())
    throw Error(ErrorKind::format, path, "", "an array of interventions", list.type_name());
  const JsonReader json = parse_json(R"({"interventions": )" + text + "}", path);
  std::vector<Intervention> all;
  for (size_t number = 0; const JsonReader& entry : json.objects("interventions")) {
    for (Intervention& w : read_one(entry, path, config)) {
      try {
        check_intervention(config, w);
      } catch (const Error& e) {
        throw Error(ErrorKind::format, path,
                    fmt::format("interventions[{}].{}", number, field_of(e)), e.expected, e.found);
      }
      all.push_back(std::move(w));
    }
    ++number;
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
