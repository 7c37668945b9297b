// Opens the committed snapshots of every form in tests/data/snapshots and continues them.
#pragma once

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "stet/snapshot/snapshot.hpp"
#include "stet/snapshot/verify.hpp"
#include "stet/text/tokenizer.hpp"

namespace stet::test {

// Returns the sorted names of the snapshots in a directory.
inline std::vector<std::string> snapshots_in(const std::string& directory) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.path().extension() == ".stet") names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Opens a snapshot, checks every byte, restores it mapped and in memory, continues both, and
// verifies it. The model is the checkpoint in the snapshot, or else the one it names. Returns "NAME
// VERSION FORM ID" and the digests of keys, values and logits two tokens later. `root` is the
// repository. Throws Error if anything differs from the original.
inline std::string opened(const std::string& root, const std::string& name) {
  static std::map<std::string, std::shared_ptr<const Model>> models;
  const Snapshot snapshot = Snapshot::open(root + "/tests/data/snapshots/" + name + ".stet");
  snapshot.check();
  const std::string& checkpoint = snapshot.meta().checkpoint;
  std::shared_ptr<const Model> model =
      snapshot.weights() == nullptr ? models[checkpoint] : Model::load(snapshot.weights());
  if (model == nullptr)
    model = models[checkpoint] =
        Model::load(root + (checkpoint.starts_with("pocket") ? "/assets/" : "/tests/data/models/") +
                    checkpoint);
  if (const auto tokenizer = snapshot.tokenizer_files()) {
    for (const std::string& file : Tokenizer::files_of(*tokenizer))
      tokenizer->read(file, size_t{1} << 20);
  }
  std::string text = name + " " + std::to_string(snapshot.version()) + " " +
                     snapshot_form_name(snapshot.meta().form);
  std::string first;
  for (const bool map : {true, false}) {
    Session session = snapshot.restore(model, {.map = map});
    const std::string id = sha256_text(digests_of(session).id);
    session.append(std::vector<int32_t>{3, 4});
    const StateDigests after = digests_of(session);
    const std::string found =
        " " + id + " " + digest_text(after.kv) + " " + digest_text(after.logits);
    if (first.empty()) first = found;
    if (found != first)
      throw Error(ErrorKind::mismatch, snapshot.path(), "restored in memory", first, found);
  }
  if (const auto difference = verify(snapshot, model, {}, false))
    throw Error(ErrorKind::mismatch, snapshot.path(), difference->where(), difference->expected,
                difference->found);
  return text + first;
}

}  // namespace stet::test
