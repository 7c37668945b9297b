// Uses a possibly malicious snapshot file in every way that needs only the file, a model and an
// output folder. Each way may refuse with an Error of one line; any other failure is a finding.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "stet/generate/generate.hpp"
#include "stet/model/config.hpp"
#include "stet/snapshot/compare.hpp"
#include "stet/snapshot/snapshot.hpp"
#include "stet/snapshot/verify.hpp"

namespace stet::test {

// Pairs of a way's name and its Error or "".
using Uses = std::vector<std::pair<std::string, std::string>>;

inline Uses use_in_every_way(const std::string& path, const std::string& output,
                             const std::shared_ptr<const Model>& model,
                             const std::optional<std::string>& parent = std::nullopt) {
  Uses uses;
  const auto use = [&](const std::string& name, const std::function<void()>& way) {
    uses.emplace_back(name, "");
    try {
      way();
    } catch (const Error& e) {
      uses.back().second = e.what();
    }
  };
  SessionOptions one;
  one.compute.threads = 1;
  const auto open = [&] { return Snapshot::open_with_parents(path, parent); };
  const auto write = [&](const State& state, const SaveOptions& form) {
    Snapshot::save(state, open(), output, form);
  };
  const auto pruned = [&](bool shift) {
    const Snapshot s = open();
    State state = s.state();
    prune(state, ModelConfig::from_canonical(s.meta().config, path),
          {.keep_last = state.size() / 2, .sinks = 1, .shift = shift});
    return state;
  };
  use("open", [&] { Snapshot::open(path); });
  use("check", [&] { open().check(1); });
  use("diff", [&] { compare(open(), open()); });
  use("convert", [&] { write(open().state(), {.threads = 1}); });
  if (have_zlib())
    use("compress", [&] { write(open().state({.map = false}), {.compress = 1, .threads = 1}); });
  use("convert --kv", [&] { write(with_kv_type(open().state(), KvType::bf16), {.threads = 1}); });
  use("recipe", [&] { write(open().state(), {.form = SnapshotForm::recipe, .threads = 1}); });
  use("prune", [&] { write(pruned(false), {.threads = 1}); });
  use("prune --positions shift", [&] { write(pruned(true), {.threads = 1}); });
  use("transcript", [&] { open().recipe().transcript(); });
  use("verify", [&] { verify(open(), model, one, false); });
  use("verify --bisect", [&] { verify(open(), model, one, true); });
  for (RestoreOptions how : {RestoreOptions{}, RestoreOptions{.map = false},
                             RestoreOptions{.heal = true}, RestoreOptions{.replay = true}}) {
    how.session = one;
    use("resume", [&] {
      Session session = open().restore(model, how);
      if (session.size() > 0) session.append(std::vector<int32_t>{0});
      session.rewind(std::max(session.state().floor() + 1, session.size() / 2));
      session.logits();
    });
  }
  return uses;
}

}  // namespace stet::test
