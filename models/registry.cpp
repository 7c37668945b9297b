// The registry of model families. To add a family, write its header, add it here and add its test.
#include <deque>
#include <mutex>

#include "models/gemma.hpp"
#include "models/gemma2.hpp"
#include "models/gemma3.hpp"
#include "models/gemma3n.hpp"
#include "models/gemma4.hpp"
#include "models/gpt2.hpp"
#include "models/gpt_neox.hpp"
#include "models/gpt_oss.hpp"
#include "models/granite.hpp"
#include "models/granite_hybrid.hpp"
#include "models/granite_moe.hpp"
#include "models/lfm2.hpp"
#include "models/llama.hpp"
#include "models/mistral.hpp"
#include "models/mixtral.hpp"
#include "models/olmo2.hpp"
#include "models/olmo3.hpp"
#include "models/olmoe.hpp"
#include "models/phi3.hpp"
#include "models/qwen2.hpp"
#include "models/qwen3.hpp"
#include "models/qwen3_5.hpp"
#include "models/qwen3_moe.hpp"
#include "models/qwen3_next.hpp"
#include "models/smollm3.hpp"

namespace stet {
namespace {

// Entries never move, because a model being loaded holds a reference to its family.
struct Registry {
  std::mutex mutex;
  std::deque<Family> families = {
      gemma_family(),      gemma2_family(),         gemma3_family(),      gemma3n_family(),
      gemma4_family(),     gpt2_family(),           gpt_neox_family(),    gpt_oss_family(),
      granite_family(),    granite_hybrid_family(), granite_moe_family(), lfm2_family(),
      lfm2_moe_family(),   llama_family(),          mistral_family(),     mixtral_family(),
      olmo2_family(),      olmo3_family(),          olmoe_family(),       phi3_family(),
      qwen2_family(),      qwen3_family(),          qwen3_5_family(),     qwen3_moe_family(),
      qwen3_next_family(), smollm3_family()};
  const size_t published = families.size();  // a program's own families follow
};

Registry& registry() {
  static Registry all;
  return all;
}

bool contains(const std::vector<std::string>& list, const std::string& name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

void refuse_known(const char* field, const std::vector<std::string>& known,
                  const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (contains(known, name))
      throw Error(ErrorKind::argument, "", field, "one that is not known yet", name);
  }
}

void refuse_empty(const char* field, const std::vector<std::string>& names) {
  if (contains(names, "")) throw Error(ErrorKind::argument, "", field, "names", "an empty one");
}

std::string joined(const std::vector<std::string>& names) {
  std::string all;
  for (const std::string& name : names) all += (all.empty() ? "" : " or ") + name;
  return all;
}

// Returns the family that has the model type, or null.
const Family* family_of_type(const std::string& type) {
  for (const Family& family : registry().families)
    if (contains(family.model_types, type)) return &family;
  return nullptr;
}

}  // namespace

void register_family(Family family) {
  if (family.architectures.empty() || family.prefixes.empty() || family.read_config == nullptr ||
      family.load == nullptr) {
    throw Error(ErrorKind::argument, "", "family",
                "an architecture, a prefix, and functions that read and load", "less");
  }
  refuse_empty("architectures", family.architectures);
  refuse_empty("model_types", family.model_types);
  const std::lock_guard lock(registry().mutex);
  for (const Family& known : registry().families) {
    refuse_known("architectures", known.architectures, family.architectures);
    refuse_known("model_types", known.model_types, family.model_types);
  }
  registry().families.push_back(std::move(family));
}

const Family& family_of(const JsonReader& json) {
  const std::vector<std::string> names = json.strings("architectures");
  const std::string type = json.string_or("model_type", "");
  const std::lock_guard lock(registry().mutex);
  std::string known;
  const Family* by_type = family_of_type(type);
  if (names.empty() && by_type != nullptr) return *by_type;
  for (size_t i = 0; i < registry().families.size(); ++i) {
    const Family& family = registry().families[i];
    if (!names.empty() && contains(family.architectures, names[0])) {
      // A program may run its own architecture on the config of a published model.
      if (by_type != nullptr && by_type != &family && i < registry().published)
        throw Error(ErrorKind::unsupported, json.file(), "model_type",
                    joined(family.model_types) + ", or other architectures than " + names[0], type);
      return family;
    }
    for (const std::string& name : family.architectures)
      known += (known.empty() ? "" : ", ") + name;
  }
  throw Error(ErrorKind::unsupported, json.file(), names.empty() ? "model_type" : "architectures",
              "one of " + known, names.empty() ? (type.empty() ? "nothing" : type) : names[0]);
}

}  // namespace stet
