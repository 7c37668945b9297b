// Whether a snapshot can be restored with a model, a tokenizer and a contract; if not, all that
// differs.
#include <nlohmann/json.hpp>

#include "stet/base/error.hpp"
#include "stet/snapshot/snapshot.hpp"

namespace stet {
namespace {

// What differs between a snapshot and what it is to be restored with: parallel lists, for one line.
class Differences {
 public:
  void compare(const std::string& name, const std::string& there, const std::string& here) {
    if (there == here) return;
    add(field_, name);
    add(expected_, there);
    add(found_, here);
  }
  void check(const std::string& path) const {
    if (!field_.empty()) throw Error(ErrorKind::mismatch, path, field_, expected_, found_);
  }

 private:
  static void add(std::string& list, const std::string& entry) {
    list += (list.empty() ? "" : ", ") + (entry.empty() ? std::string("none") : entry);
  }
  std::string field_, expected_, found_;
};

void compare_config(Differences& differences, const std::string& there, const std::string& here) {
  const nlohmann::json a = nlohmann::json::parse(there), b = nlohmann::json::parse(here);
  const auto value = [](const nlohmann::json& j, const std::string& key) {
    return j.contains(key) ? printable(j.at(key).dump(), 40) : std::string("none");
  };
  std::vector<std::string> keys;
  for (const auto& [key, unused] : a.items()) keys.push_back(key);
  for (const auto& [key, unused] : b.items()) {
    if (!a.contains(key)) keys.push_back(key);
  }
  for (const std::string& key : keys)
    differences.compare(printable(key, 40), value(a, key), value(b, key));
}

// Weights that differ are named by group, with one digest over the whole model; a single group with
// its own.
void compare_weights(Differences& differences, const SnapshotMeta& meta, const Model& model) {
  std::string groups;
  const auto digest_there = [&](const std::string& name) {
    for (const auto& [there, digest] : meta.fingerprints) {
      if (there == name) return digest;
    }
    return std::string("none");
  };
  size_t count = 0;
  std::string name, here;
  for (const auto& [group, digest] : model.fingerprints()) {
    if (group == "config" || group == "model" || digest_there(group) == digest) continue;
    groups += (count++ == 0 ? "" : "+") + group;
    name = group;
    here = digest;
  }
  if (count == 1)
    differences.compare(groups + " weights", digest_there(name), here);
  else
    differences.compare((count == 0 ? "model" : groups + " weights"), digest_there("model"),
                        model.fingerprint());
}

}  // namespace

void Snapshot::check_compatible(const Model& model, Contract contract,
                                const Tokenizer* tokenizer) const {
  const auto contract_text = [](const std::string& name, int version) {
    return name + " version " + std::to_string(version);
  };
  Differences differences;
  differences.compare("contract", contract_text(meta_.contract, meta_.contract_version),
                      contract_text(contract_name(model, contract), kContractVersion));
  differences.compare("architecture", meta_.architecture, model.config().architecture);
  if (meta_.architecture == model.config().architecture) {
    compare_config(differences, meta_.config, model.config().canonical());
  }
  compare_weights(differences, meta_, model);
  if (tokenizer != nullptr && !meta_.tokenizer.empty())
    differences.compare("tokenizer", meta_.tokenizer, tokenizer->fingerprint());
  differences.check(path_);
}

}  // namespace stet
