// stet export and import: a state's tensors, out of its snapshot and back into one.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "stet/base/error.hpp"
#include "stet/session/edit.hpp"
#include "stet/session/published_arrays.hpp"
#include "tools/command/command.hpp"
#include "tools/lab/tensor_file.hpp"
#include "tools/store/store.hpp"

namespace stet::tool {
namespace {

struct ExportCommand {
  std::string snapshot, tensors, output;
  std::optional<std::string> parent;
  ModelOptions model;
  SaveFileOptions save;
};

Snapshot open_snapshot(const ExportCommand& o) {
  if (is_in_store(o.snapshot))
    usage_error("snapshot",
                "a file (stet convert " + printable(o.snapshot) + " -o FILE writes one)",
                printable(o.snapshot));
  const Snapshot snapshot = open_state(o.snapshot);
  require_delta(snapshot, o.parent);
  return snapshot.meta().form == SnapshotForm::delta ? open_state_with_parents(o.snapshot, o.parent)
                                                     : snapshot;
}

std::string tensor_name(int64_t layer, bool key) {
  return fmt::format("blocks.{}.{}", layer, key ? "k" : "v");
}

// Returns the values of a layer, or its keys after norm and rotation:
// [positions][kv_heads][head_dim].
std::vector<float> layer_of(const State& state, int64_t layer, bool key) {
  const int64_t heads = state.kv.shape().layer(layer).kv_heads;
  std::vector<float> all;
  for (int64_t p = 0; p < state.size(); ++p) {
    for (int64_t h = 0; h < heads; ++h) {
      const std::vector<float> x =
          key ? read_key(state, layer, h, p) : read_value(state, layer, h, p);
      all.insert(all.end(), x.begin(), x.end());
    }
  }
  return all;
}

// Returns name and shape of a layer's keys or values. Layers that read another's have none.
NamedShape shape_of_layer(const State& state, int64_t layer, bool key) {
  const KvLayer l = state.kv.shape().layer(layer);
  return {tensor_name(layer, key),
          DType::f32,
          {state.size(), l.kv_heads, key ? l.key_dim : l.value_dim}};
}

// The tensor of an array of a recurrent layer.
NamedShape shape_of_array(const PublishedArray& a) {
  return {fmt::format("layers.{}.{}", a.layer, a.name), DType::f32, a.dims};
}

// Sets the recurrent arrays that differ from the state. Returns their number.
size_t set_arrays(State& state, const TensorSource& from, const ModelConfig& config) {
  size_t changed = 0;
  for (const PublishedArray& a : published_arrays(config)) {
    const NamedShape tensor = shape_of_array(a);
    if (from.tensors().find(tensor.name) == nullptr) continue;
    const LoadedTensor t = from.load(tensor.name);
    if (t.shape != a.dims)
      throw Error(ErrorKind::format, from.path(), tensor.name, shape_text(a.dims),
                  shape_text(t.shape));
    std::vector<float> x(a.count());
    a.store(t.values, x);
    const std::span<const float> before =
        state.recurrent.array(a.layer, static_cast<size_t>(a.index));
    if (std::memcmp(before.data(), x.data(), before.size_bytes()) == 0) continue;
    set_array(state, a.layer, a.index, x);
    ++changed;
  }
  return changed;
}

std::vector<int32_t> visibility_of(const State& state) {
  std::vector<int32_t> all;
  for (int64_t p = 0; p < state.size(); ++p)
    all.push_back(state.kv.visible(p / kBlockPositions) >> (p % kBlockPositions) & 1);
  return all;
}

std::span<const float> exported_logits(const State& state) {
  return state.logits == nullptr ? std::span<const float>() : *state.logits;
}

void run_export(ExportCommand& o) {
  const Snapshot snapshot = open_snapshot(o);
  const State state = snapshot.state();
  const KvShape& shape = state.kv.shape();
  const std::span<const float> logits = exported_logits(state);
  std::vector<NamedShape> shapes = {{"tokens", DType::i32, {state.size()}},
                                    {"visible", DType::i32, {state.size()}},
                                    {"logits", DType::f32, {std::ssize(logits)}}};
  for (int64_t l = 0; l < shape.layers; ++l) {
    for (const bool key : {true, false}) {
      if (shape.owns(l)) shapes.push_back(shape_of_layer(state, l, key));
    }
  }
  const std::vector<PublishedArray> arrays =
      published_arrays(ModelConfig::from_canonical(snapshot.meta().config, snapshot.path()));
  for (const PublishedArray& a : arrays) shapes.push_back(shape_of_array(a));
  const auto file = make_tensor_file(o.output, shapes,
                                     {{"contract", state.origin.contract},
                                      {"model", state.origin.model},
                                      {"kv_type", kv_type_name(shape.type)},
                                      {"id", snapshot.state_name()},
                                      {"edits", std::to_string(state.edits.size())}});
  const std::vector<int32_t> visible = visibility_of(state);
  file->write(0, 0, std::as_bytes(std::span(state.tokens)));
  file->write(1, 0, std::as_bytes(std::span(visible)));
  if (!logits.empty()) file->write(2, 0, std::as_bytes(logits));
  size_t tensor = 3;
  for (int64_t l = 0; l < shape.layers; ++l) {
    for (const bool key : {true, false}) {
      if (!shape.owns(l)) continue;
      const std::vector<float> x = layer_of(state, l, key);
      file->write(tensor++, 0, std::as_bytes(std::span(x)));
    }
  }
  for (const PublishedArray& a : arrays) {
    std::vector<float> x(a.count());
    a.publish(state.recurrent.array(a.layer, static_cast<size_t>(a.index)), x);
    file->write(tensor++, 0, std::as_bytes(std::span(x)));
  }
  file->commit();
  const int64_t layers = (static_cast<int64_t>(shapes.size() - arrays.size()) - 3) / 2;
  say("{} positions of {} layers{} in {}\n", state.size(), layers,
      arrays.empty() ? "" : fmt::format(" and {} recurrent arrays", arrays.size()),
      printable(o.output));
}

// Sets vectors that differ from the state. Returns their number.
size_t set_layer(State& state, const TensorSource& from, int64_t layer, bool key) {
  const KvShape& shape = state.kv.shape();
  const std::string name = tensor_name(layer, key);
  if (from.tensors().find(name) == nullptr) return 0;
  check_owns(shape, from.path() + ": " + name, layer);
  const LoadedTensor t = from.load(name);
  const std::vector<int64_t> expected = shape_of_layer(state, layer, key).shape;
  if (t.shape != expected)
    throw Error(ErrorKind::format, from.path(), name, shape_text(expected), shape_text(t.shape));
  size_t changed = 0;
  const int64_t heads = expected[1];
  const auto n = static_cast<size_t>(expected[2]);
  for (int64_t p = 0; p < state.size(); ++p) {
    for (int64_t h = 0; h < heads; ++h) {
      const std::span<const float> x =
          std::span(t.values).subspan(static_cast<size_t>(p * heads + h) * n, n);
      const std::vector<float> before =
          key ? read_key(state, layer, h, p) : read_value(state, layer, h, p);
      if (std::memcmp(before.data(), x.data(), n * sizeof(float)) == 0) continue;
      try {
        if (key)
          set_key(state, layer, h, p, x);
        else
          set_value(state, layer, h, p, x);
      } catch (const Error& e) {
        throw Error(e.kind, from.path(), name + ": " + e.field, e.expected, e.found);
      }
      ++changed;
    }
  }
  return changed;
}

// Throws a mismatch Error if the file has other values for a tensor that cannot be changed.
void check_unchanged(const ExportCommand& o, const TensorSource& from, const char* name,
                     std::span<const std::byte> ours) {
  const TensorView* const t = from.tensors().find(name);
  if (t != nullptr && !std::ranges::equal(ours, t->bytes))
    throw Error(ErrorKind::mismatch, o.tensors, name, "those of " + o.snapshot, "others");
}

void run_import(ExportCommand& o) {
  check_writable(o.output);
  const Snapshot snapshot = open_snapshot(o);
  if (snapshot.meta().form == SnapshotForm::delta) snapshot.check_may_overwrite(o.output);
  State state = snapshot.state();
  const TensorSource from(o.tensors);
  check_unchanged(o, from, "tokens", std::as_bytes(std::span(state.tokens)));
  const std::vector<int32_t> visible = visibility_of(state);
  check_unchanged(o, from, "visible", std::as_bytes(std::span(visible)));
  check_unchanged(o, from, "logits", std::as_bytes(exported_logits(state)));
  size_t changed = 0;
  for (int64_t l = 0; l < state.kv.shape().layers; ++l)
    changed += set_layer(state, from, l, true) + set_layer(state, from, l, false);
  const size_t arrays =
      set_arrays(state, from, ModelConfig::from_canonical(snapshot.meta().config, snapshot.path()));
  choose_checkpoint(o.model, snapshot);
  o.save.write(state, snapshot, o.output, o.model.checkpoint);
  say("{} keys and values{} were set, {} edit{} in {}\n", changed,
      arrays == 0 ? "" : fmt::format(" and {} recurrent arrays", arrays), state.edits.size(),
      state.edits.size() == 1 ? "" : "s", printable(o.output));
}

void add_common(Command& sub, ExportCommand& o, const char* output) {
  sub.add_option("snapshot", o.snapshot, "a snapshot")->required()->type_name("FILE");
  sub.add_option("-o,--output", o.output, output)->required()->type_name("FILE");
  sub.add_option("--parent", o.parent, "the snapshot that a delta was made from")
      ->type_name("FILE");
}

}  // namespace

void add_export(Command& app) {
  const auto o = std::make_shared<ExportCommand>();
  Command* sub = app.add_subcommand(
      "export", "Write keys, values, recurrent arrays, tokens and logits of a state as tensors.");
  add_common(*sub, *o, "a .safetensors file, or DIR/ for .npy files");
  sub->callback([o] { end_on_signals([&] { run_export(*o); }); });
}

void add_import(Command& app) {
  const auto o = std::make_shared<ExportCommand>();
  Command* sub = app.add_subcommand(
      "import",
      "Make a state with the keys and values of a file; changed ones are recorded as edits.");
  add_common(*sub, *o, "the snapshot to write");
  sub->add_option("tensors", o->tensors, "a file of `stet export`, changed")
      ->required()
      ->type_name("SAFETENSORS");
  o->save.add_to(*sub);
  o->model.checkpoint.add_to(*sub);
  sub->callback([o] { run_import(*o); });
}

}  // namespace stet::tool
