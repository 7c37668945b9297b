// stet edit: sets keys and values of a state to zero, scales, replaces or copies them, or joins two
// states. Reports how far the result is from the keys and values of its tokens.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "stet/base/error.hpp"
#include "stet/session/splice.hpp"
#include "stet/snapshot/compare.hpp"
#include "tools/command/command.hpp"
#include "tools/lab/lab.hpp"
#include "tools/lab/tensor_file.hpp"
#include "tools/store/store.hpp"

namespace stet::tool {
namespace {

struct EditCommand {
  std::string snapshot, output, layers, heads, positions, set, tensor, copy, splice, take;
  std::optional<std::string> parent, other_parent;
  std::optional<double> scale;
  std::optional<int64_t> from_position, at, resume;
  bool zero = false, keys = false, values = false, json = false;
  ModelOptions model;
  SaveFileOptions save;
};

struct Stretch {
  int64_t begin, end;
};

// Parses "3..9" (3 to 9), "3" (only 3) or "" (all of `size`).
Stretch stretch_of(const std::string& text, const char* option, int64_t size) {
  if (text.empty()) return {0, size};
  Stretch s{};
  const size_t dots = text.find("..");
  const auto read = [](std::string_view t, int64_t& to) {
    const auto [end, error] = std::from_chars(t.data(), t.data() + t.size(), to);
    return error == std::errc() && end == t.data() + t.size();
  };
  const std::string_view first = std::string_view(text).substr(0, dots),
                         last = dots == std::string::npos ? first
                                                          : std::string_view(text).substr(dots + 2);
  int64_t end = -1;
  if (!read(first, s.begin) || !read(last, end) || s.begin < 0 || end < s.begin || end >= size)
    usage_error(option, fmt::format("A..B, positions A to B of 0..{}", size - 1), text);
  s.end = end + 1;
  return s;
}

KvRange range_of(const EditCommand& o, int64_t size) {
  const Stretch s = stretch_of(o.positions, "--positions", size);
  const bool both = o.keys == o.values;
  return {parse_list(o.layers, "--layers"),
          parse_list(o.heads, "--heads"),
          s.begin,
          s.end,
          both || o.keys,
          both || o.values};
}

State opened_state(const EditCommand& o, const Snapshot& snapshot,
                   const std::shared_ptr<const Model>& model) {
  return snapshot.meta().form == SnapshotForm::recipe ? state_of_recipe(snapshot, model, o.model)
                                                      : snapshot.state();
}

// Opens the other state, of --copy or --splice.
State open_other(const EditCommand& o, const std::string& path,
                 const std::shared_ptr<const Model>& model) {
  const Snapshot snapshot =
      with_other_parent([&] { return open_state_with_parents(path, o.other_parent); });
  snapshot.check_compatible(*model, o.model.session_options().compute.contract);
  return opened_state(o, snapshot, model);
}

State spliced(const EditCommand& o, const State& state, const std::shared_ptr<const Model>& model) {
  const State other = open_other(o, o.splice, model);
  const Stretch take = stretch_of(o.take, "--take", other.size());
  const int64_t at = o.at.value_or(0), resume = o.resume.value_or(at);
  if (at > state.size())
    usage_error("--at", fmt::format("0..{}", state.size()), std::to_string(at));
  if (resume < at || resume > state.size())
    usage_error("--resume-at", fmt::format("{}..{}", at, state.size()), std::to_string(resume));
  std::vector<Cut> cuts;
  if (at > 0) cuts.push_back({&state, 0, at});
  cuts.push_back({&other, take.begin, take.end});
  if (resume < state.size()) cuts.push_back({&state, resume, state.size()});
  State joined = splice(model->config(), cuts);
  joined.generation.sampling = state.generation.sampling;
  joined.generation.stop_ids = state.generation.stop_ids;
  joined.generation.stop_strings = state.generation.stop_strings;
  return joined;
}

// Throws an Error of the library again, with the option in place of the library's argument.
[[noreturn]] void name_option(const Error& e) {
  for (const auto& [field, option] : {std::pair{"factor", "--scale"},
                                      {"layers", "--layers"},
                                      {"heads", "--heads"},
                                      {"from position", "--from-position"},
                                      {"values", "--set"}}) {
    if (e.kind == ErrorKind::argument && e.file.empty() && e.field == field)
      throw Error(e.kind, "", option, e.expected, e.found);
  }
  throw;
}

// Returns the numbers of --set. Throws a format Error for a tensor that is neither [head_dim] nor
// [positions, heads, head_dim]. What else is wrong with its size or the range, set_kv() finds.
std::vector<float> tensor_of(const EditCommand& o, const KvShape& shape, const KvRange& range) {
  const TensorSource source(o.set);
  LoadedTensor t = source.load(o.tensor);
  int64_t layer = range.layers.empty() ? 0 : range.layers[0];
  while (range.layers.empty() && layer + 1 < shape.layers && !shape.owns(layer)) ++layer;
  if (layer < 0 || layer >= shape.layers || !shape.owns(layer)) return t.values;
  const KvLayer l = shape.layer(layer);
  const int64_t heads = range.heads.empty() ? l.kv_heads : std::ssize(range.heads);
  const std::vector<int64_t> row = {range.keys ? l.key_dim : l.value_dim},
                             all = {range.end - range.begin, heads, row[0]};
  if (t.shape != row && t.shape != all)
    throw Error(ErrorKind::format, o.set, o.tensor, shape_text(row) + " or " + shape_text(all),
                shape_text(t.shape));
  return t.values;
}

State edited(const EditCommand& o, State state, const std::shared_ptr<const Model>& model) {
  const KvRange range = range_of(o, state.size());
  if (o.zero) zero_kv(state, range);
  if (o.scale) scale_kv(state, range, static_cast<float>(*o.scale));
  if (!o.set.empty()) set_kv(state, range, tensor_of(o, state.kv.shape(), range));
  if (!o.copy.empty())
    copy_kv(state, model->config(), range, open_other(o, o.copy, model),
            o.from_position.value_or(range.begin));
  return state;
}

State changed(const EditCommand& o, State state, const std::shared_ptr<const Model>& model) {
  if (!o.splice.empty()) return spliced(o, state, model);
  try {
    return edited(o, std::move(state), model);
  } catch (const Error& e) {
    name_option(e);
  }
}

// The logits that the last token gives over the changed keys and values.
using Logits = std::shared_ptr<std::vector<float>>;

// Computes them from the state without its marks of edits.
Logits attention_logits(State unmarked, const std::shared_ptr<const Model>& model,
                        const SessionOptions& options) {
  unmarked.logits.reset();
  return Session(model, std::move(unmarked), options).state().logits;
}

// Computes them where there are recurrent layers. An edit leaves the recurrent arrays as they are,
// so those before the last token come from the state before the edit. Returns null if tokens do not
// give them.
Logits recurrent_logits(const State& before, State unmarked,
                        const std::shared_ptr<const Model>& model, SessionOptions options) {
  options.anchor_bytes = Anchors::kDefaultBytes;
  const int32_t last = unmarked.tokens.back();
  Session arrays(model, before, options);
  try {
    arrays.rewind(arrays.size() - 1);
  } catch (const Error& e) {
    if (e.kind != ErrorKind::argument) throw;
    return nullptr;
  }
  arrays.keep_anchor();
  unmarked.anchors = arrays.anchors();
  Session session(model, std::move(unmarked), options);
  session.rewind(session.size() - 1);
  session.append({&last, 1});
  return session.state().logits;
}

// Returns them; null if they cannot be computed. A state whose log has no edit is assumed to have
// consistent logits, so they must be computed here, even below a prune.
Logits logits_of_change(const State& before, const State& changed,
                        const std::shared_ptr<const Model>& model, const SessionOptions& options) {
  if (changed.tokens.empty()) return changed.logits;
  State unmarked = changed;
  unmarked.edits.clear();
  unmarked.kept.clear();
  return unmarked.recurrent.empty() ? attention_logits(std::move(unmarked), model, options)
                                    : recurrent_logits(before, std::move(unmarked), model, options);
}

// Replaces the logits from before the change, which are kept if there are no others.
State with_logits(State state, Logits logits) {
  if (logits == nullptr || state.tokens.empty()) return state;
  state.logits = std::move(logits);
  state.kept.truncate(state.size() - 1);
  return state;
}

double worst(const Comparison& c, bool keys) {
  double most = 0;
  for (const Comparison::Layer& l : c.layers)
    most = std::max(most, keys ? l.keys.largest : l.values.largest);
  return most;
}

int32_t likeliest(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// Returns the sentence about the next token. `known` is false if the change's logits are not.
std::string next_text(double kl, int32_t said, int32_t true_one, bool known) {
  if (!known)
    return "next token: unknown, as the tokens do not give the recurrent arrays before the last "
           "one; the logits stay those from before the change";
  return fmt::format(
      "next token: KL {:.4g} nats, likeliest {}{}", kl, said,
      said == true_one ? ", as it would be" : fmt::format(" instead of {}", true_one));
}

void report(const EditCommand& o, const StateDigests& digests, Session& session, Session& truth,
            bool known) {
  const Comparison c = compare(truth.state(), session.state());
  const double kl = c.a_from_b.value_or(0);
  const int32_t said = likeliest(session.logits()), true_one = likeliest(truth.logits());
  if (o.json) {
    Json j = {{"path", o.output},
              {"id", sha256_text(digests.id)},
              {"tokens", session.size()},
              {"edits", session.edits().size()},
              {"equal_positions", c.equal_positions},
              {"key_difference", worst(c, true)},
              {"value_difference", worst(c, false)},
              {"kl", known ? Json(kl) : Json(nullptr)},
              {"best", known ? Json(said) : Json(nullptr)},
              {"true_best", true_one}};
    out(dump(j) + "\n");
    return;
  }
  const size_t edits = session.edits().size();
  say("{}: {} tokens, {} edit{}, state {}\n", printable(o.output), session.size(), edits,
      edits == 1 ? "" : "s", sha256_text(digests.id));
  out(fmt::format(
      "beside the same tokens computed again: the first {} positions are equal; keys "
      "differ by {:.4g} at most, values by {:.4g};\n{}\n",
      c.equal_positions, worst(c, true), worst(c, false), next_text(kl, said, true_one, known)));
}

void run(EditCommand& o) {
  if (!o.set.empty() && o.tensor.empty()) usage_error("--set needs --tensor NAME");
  check_writable(o.output);
  if (o.other_parent && o.copy.empty() && o.splice.empty())
    usage_error("--other-parent is for the snapshot of --copy or --splice");
  const Snapshot snapshot = open_state_with_parents(o.snapshot, o.parent);
  if (snapshot.meta().form == SnapshotForm::delta) snapshot.check_may_overwrite(o.output);
  choose_checkpoint(o.model, snapshot);
  choose_contract(o.model, snapshot);
  const SessionOptions options = o.model.session_options();
  const auto model = o.model.load_model();
  snapshot.check_compatible(*model, options.compute.contract);
  const State before = opened_state(o, snapshot, model);
  State state = changed(o, before, model);
  SessionOptions as = options;
  as.kv_type = state.kv.shape().type;
  as.capacity = std::min(state.kv.capacity(), model->config().max_positions);
  const Logits logits = logits_of_change(before, state, model, as);
  Session session(model, with_logits(std::move(state), logits), as);
  Session truth = truth_of(model, session.state(), as, prefill_progress(session.size()));
  const StateDigests digests =
      o.save.write(session.state(), snapshot, o.output, o.model.checkpoint);
  report(o, digests, session, truth, logits != nullptr || session.size() == 0);
}

}  // namespace

void add_edit(Command& app) {
  const auto o = std::make_shared<EditCommand>();
  Command* sub = app.add_subcommand(
      "edit", "Change keys and values of a state, and report how far it is from the original.");
  sub->add_option("snapshot", o->snapshot, "a snapshot")->required()->type_name("FILE");
  sub->add_option("-o,--output", o->output, "the snapshot to write")->required()->type_name("FILE");
  sub->add_option("--parent", o->parent, "the snapshot that a delta was made from")
      ->type_name("FILE");
  sub->add_option("--other-parent", o->other_parent,
                  "with --copy or --splice: the snapshot that their delta was made from")
      ->type_name("FILE");
  SourceOptions what;
  const auto change = [&](Option* option) { return what.add(option)->group("Changes"); };
  change(sub->add_flag("--zero", o->zero, "set the range to zeros"));
  change(sub->add_option("--scale", o->scale, "multiply the range by this")->type_name("X"));
  Option* set = change(
      sub->add_option("--set", o->set,
                      "set the range to a tensor: [head_dim], or [positions, heads, head_dim]")
          ->type_name("SAFETENSORS"));
  Option* copy = change(
      sub->add_option("--copy", o->copy, "copy the range from another state")->type_name("FILE"));
  Option* splice =
      change(sub->add_option("--splice", o->splice,
                             "insert positions of another state before --at; later ones move up")
                 ->type_name("FILE"));
  const auto more = [&](Option* option, const char* type, const char* group) {
    return option->type_name(type)->group(group);
  };
  more(sub->add_option("--layers", o->layers, "layers of the range (default: all)"), "LIST",
       "Range");
  more(sub->add_option("--heads", o->heads, "heads of the range (default: all)"), "LIST", "Range");
  more(
      sub->add_option("--positions", o->positions, "positions of the range, A to B (default: all)"),
      "A..B", "Range");
  sub->add_flag("--keys", o->keys, "change only keys")->group("Range");
  sub->add_flag("--values", o->values, "change only values")->group("Range");
  more(sub->add_option("--tensor", o->tensor, "with --set: the tensor's name"), "NAME", "Range")
      ->needs(set);
  more(sub->add_option("--from-position", o->from_position,
                       "with --copy: the first position in the other state (default: the same)"),
       "N", "Range")
      ->check(integer(0, kMaxPositions))
      ->needs(copy);
  more(sub->add_option("--take", o->take,
                       "with --splice: the other state's positions (default: all)"),
       "A..B", "Splice")
      ->needs(splice);
  more(sub->add_option("--at", o->at,
                       "with --splice: where to insert them (default: 0, the beginning)"),
       "N", "Splice")
      ->check(integer(0, kMaxPositions))
      ->needs(splice);
  more(sub->add_option("--resume-at", o->resume,
                       "with --splice: this state's position that follows them (default: --at)"),
       "N", "Splice")
      ->check(integer(0, kMaxPositions))
      ->needs(splice);
  sub->add_flag("--json", o->json, "print JSON")->group("Output");
  o->save.add_to(*sub);
  o->model.add_to(*sub);
  for (const char* kept : {"--kv", "--ctx"}) sub->remove_option(kept);  // an edit changes neither
  sub->callback([o, what] {
    what.require("--zero, --scale, --set, --copy or --splice");
    if (!o->splice.empty() &&
        (!o->layers.empty() || !o->heads.empty() || !o->positions.empty() || o->keys || o->values))
      usage_error("--splice inserts whole positions (--take); leave layers, heads and keys out");
    run(*o);
  });
}

}  // namespace stet::tool
