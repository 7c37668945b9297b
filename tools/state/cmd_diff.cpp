// stet diff: compares two snapshots part by part.
#include <fmt/format.h>

#include <algorithm>

#include "tools/state/difference.hpp"
#include "tools/store/store.hpp"

namespace stet::tool {
namespace {

struct DiffCommand {
  std::string a, b;
  std::optional<std::string> parent_a, parent_b;
  bool json = false;
};

Json number_json(const Difference& d, const std::optional<double>& number,
                 const std::string& text) {
  if (!number) return text;
  // Token ids and counts are integers.
  return d.element < 0 ? Json(static_cast<int64_t>(*number)) : Json(*number);
}

// Returns the snapshot whose tokens the other begins with: "a" or "b". Returns "" if they are of
// equal length or differ earlier.
std::string prefix_of(const Comparison& c, const Snapshot& a, const Snapshot& b) {
  const int64_t in_a = a.meta().positions, in_b = b.meta().positions;
  if (in_a == in_b || c.common_tokens < std::min(in_a, in_b)) return "";
  return in_a < in_b ? "a" : "b";
}

Json side_json(const std::string& path, const Snapshot& s) {
  return {{"path", path},
          {"form", snapshot_form_name(s.meta().form)},
          {"tokens", s.meta().positions},
          {"capacity", s.meta().capacity},
          {"state", digest_text(s.digests().state)},
          {"id", s.state_name()}};
}

Json layers_json(const Comparison& c) {
  const auto deviation = [](const Deviation& d) {
    return Json{{"largest", d.largest}, {"rms", d.rms}};
  };
  Json layers = Json::array();
  for (const Comparison::Layer& layer : c.layers) {
    layers.push_back({{"layer", layers.size()},
                      {"keys", deviation(layer.keys)},
                      {"values", deviation(layer.values)}});
  }
  return layers;
}

Json part_json(const Comparison::Part& part) {
  Json j = {{"part", part.name},
            {"compared", part.compared},
            {"equal", part.difference ? Json(false)
                      : part.compared ? Json(true)
                                      : Json(nullptr)}};
  if (part.difference) j["difference"] = difference_json(*part.difference);
  if (!part.note.empty()) j["note"] = part.note;
  return j;
}

Json comparison_json(const DiffCommand& o, const Comparison& c, const Snapshot& a,
                     const Snapshot& b) {
  const std::string prefix = prefix_of(c, a, b);
  Json j = {{"a", side_json(o.a, a)},
            {"b", side_json(o.b, b)},
            {"equal", c.equal()},
            {"common_tokens", c.common_tokens},
            {"equal_positions", c.equal_positions},
            {"prefix", prefix.empty() ? Json(nullptr) : Json(prefix)}};
  if (const Comparison::Part* first = c.first_difference())
    j["difference"] = difference_json(*first->difference);
  j["parts"] = Json::array();
  for (const Comparison::Part& part : c.parts) j["parts"].push_back(part_json(part));
  j["layers"] = layers_json(c);
  const auto optional = [](const std::optional<double>& x) { return x ? Json(*x) : Json(nullptr); };
  j["kl_nats"] = {{"a_from_b", optional(c.a_from_b)}, {"b_from_a", optional(c.b_from_a)}};
  return j;
}

std::string detail(const Comparison::Part& part) {
  if (!part.difference) return part.note;
  const Difference& d = *part.difference;
  return fmt::format("{}: {} in a, {} in b{}{}", d.where(), d.expected, d.found,
                     part.note.empty() ? "" : "; ", part.note);
}

void print_part(const Comparison::Part& part) {
  const char* verdict = part.difference ? "different" : part.compared ? "equal" : "not compared";
  std::string line =
      fmt::format("{:<16}  {:<12}  {}", part.name, verdict, printable(detail(part), SIZE_MAX));
  line.erase(line.find_last_not_of(' ') + 1);
  out(line + "\n");
}

void print_layers(const Comparison& c) {
  const auto apart = [](const Comparison::Layer& l) {
    return l.keys.largest > 0 || l.values.largest > 0;
  };
  if (std::none_of(c.layers.begin(), c.layers.end(), apart)) return;
  out(fmt::format("\n{:<7}  {:>12}  {:>12}  {:>12}  {:>12}\n", "layer", "K largest", "K rms",
                  "V largest", "V rms"));
  for (size_t i = 0; i < c.layers.size(); ++i) {
    const auto& [k, v] = c.layers[i];
    out(fmt::format("{:<7}  {:>12.4g}  {:>12.4g}  {:>12.4g}  {:>12.4g}\n", i, k.largest, k.rms,
                    v.largest, v.rms));
  }
}

// Returns "equal: state ..." or "different: tokens, logits", and the common beginning.
std::string verdict(const Comparison& c, const Snapshot& a, const Snapshot& b) {
  std::vector<std::string> different, skipped;
  for (const Comparison::Part& part : c.parts) {
    if (part.difference)
      different.push_back(part.name);
    else if (!part.compared)
      skipped.push_back(part.name);
  }
  const std::string rest =
      skipped.empty() ? "" : fmt::format(" (not compared: {})", fmt::join(skipped, ", "));
  if (different.empty()) return "equal: state " + a.state_name() + rest + "\n";
  std::string text;
  const std::string prefix = prefix_of(c, a, b);
  if (!prefix.empty())
    text = fmt::format("{} is a prefix of {}: ", prefix, prefix == "a" ? "b" : "a");
  text += fmt::format("{} common tokens", c.common_tokens);
  if (a.meta().kv.block_bytes() > 0)
    text += fmt::format("; keys and values of the first {} positions are equal", c.equal_positions);
  text += '\n';
  return text + fmt::format("different: {}{}\n", fmt::join(different, ", "), rest);
}

void print_comparison(const DiffCommand& o, const Comparison& c, const Snapshot& a,
                      const Snapshot& b) {
  for (const auto& [name, path, s] : {std::tuple("a", &o.a, &a), std::tuple("b", &o.b, &b)}) {
    out(fmt::format("{}  {}: {}, {} tokens, capacity {}\n", name, printable(*path, SIZE_MAX),
                    snapshot_form_name(s->meta().form), s->meta().positions, s->meta().capacity));
  }
  for (const Comparison::Part& part : c.parts) print_part(part);
  print_layers(c);
  if (c.a_from_b && (*c.a_from_b != 0 || *c.b_from_a != 0)) {
    out(fmt::format("\nnext token: KL(a || b) = {:.6g} nats, KL(b || a) = {:.6g} nats\n",
                    *c.a_from_b, *c.b_from_a));
  }
  out(verdict(c, a, b));
}

// Opens a snapshot. Throws a UsageError for a parent if it is no delta.
Snapshot open_side(const std::string& path, const std::optional<std::string>& parent,
                   const char* option) {
  Snapshot s = open_state(path);
  if (!parent) return s;
  if (s.meta().form != SnapshotForm::delta)
    usage_error(fmt::format("{} is for deltas, and {} holds all of its state", option, path));
  s.find_parents(parent);
  return s;
}

void run(const DiffCommand& o) {
  const Snapshot a = open_side(o.a, o.parent_a, "--parent"),
                 b = open_side(o.b, o.parent_b, "--other-parent");
  const Comparison c = compare(a, b);
  if (o.json)
    out(dump(comparison_json(o, c, a, b)) + "\n");
  else
    print_comparison(o, c, a, b);
  finish_output();
  if (!c.equal()) throw ExitStatus{1};
}

}  // namespace

Json difference_json(const Difference& d) {
  const auto index = [](int64_t x) { return x < 0 ? Json(nullptr) : Json(x); };
  return {{"what", d.what},
          {"position", index(d.position)},
          {"layer", index(d.layer)},
          {"head", index(d.head)},
          {"element", index(d.element)},
          {"expected", number_json(d, d.expected_number, d.expected)},
          {"found", number_json(d, d.found_number, d.found)}};
}

void add_diff(Command& app) {
  const auto o = std::make_shared<DiffCommand>();
  Command* sub = app.add_subcommand(
      "diff",
      "Compare two snapshots part by part, and show where they first differ and by how much.");
  sub->add_option("a", o->a, "a snapshot")->required()->type_name("FILE");
  sub->add_option("b", o->b, "the snapshot to compare it with")->required()->type_name("FILE");
  sub->add_option("--parent", o->parent_a, "the snapshot that a, a delta, was made from")
      ->type_name("FILE");
  sub->add_option("--other-parent", o->parent_b, "the snapshot that b, a delta, was made from")
      ->type_name("FILE");
  sub->add_flag("--json", o->json, "print a JSON object");
  sub->callback([o] { run(*o); });
}

}  // namespace stet::tool
