// Collects garbage by mark and sweep. Everything reachable from names and leases is marked. Other
// records are deleted unless they were used within the grace time. Writers mark what they name as
// used first, and the sweep checks that again under the lock for removing. The ancestors and blocks
// of a state that cannot be read are unknown: nothing is then swept.
#include <algorithm>
#include <set>

#include "src/store/text.hpp"
#include "stet/base/error.hpp"
#include "stet/store/store.hpp"

namespace stet {

struct Store::Marks {
  std::set<Sha256> states, blocks;
};

Store::Marks Store::mark(std::vector<std::string>& refused) {
  std::vector<std::pair<Sha256, std::string>> next;  // with the name that leads there
  for (const Sha256& state : backend_->leased()) next.emplace_back(state, "a lease");
  for (const std::string& name : names()) {
    // An unreadable name throws, so that the states it may refer to are not lost.
    for (const NameEntry& e : history(name)) next.emplace_back(e.state, "name " + name);
  }
  Marks marks;
  while (!next.empty()) {
    const auto [at, from] = next.back();
    next.pop_back();
    if (at == Sha256() || !marks.states.insert(at).second) continue;
    try {
      const std::optional<StateRecord> record = find_state(at);
      if (!record) continue;
      marks.blocks.insert(record->blocks.begin(), record->blocks.end());
      next.emplace_back(record->parent, from);
    } catch (const Error& e) {
      if (e.kind == ErrorKind::io) throw;  // an unreachable record may exist
      refused.push_back(std::string(e.what()) + " (" + from + " leads to it)");
    }
  }
  return marks;
}

GcReport Store::gc(const GcOptions& options) {
  GcReport report;
  const int64_t before = backend_->now() - options.grace;
  const Marks marks = mark(report.refused);
  if (options.between) options.between();
  const auto sweep = [&](RecordClass record_class, const std::set<Sha256>& marked,
                         uint64_t& removed, uint64_t& kept) {
    std::vector<RecordInfo> idle;
    backend_->list(record_class, [&](const RecordInfo& e) {
      if (marked.contains(e.name) || e.used >= before || !report.refused.empty())
        ++kept;
      else
        idle.push_back(e);
    });
    for (const RecordInfo& e : idle) {
      if (options.dry_run || backend_->remove(record_class, e.name, before)) {
        ++removed;
        report.bytes += e.bytes;
      } else {
        ++kept;
      }
    }
  };
  sweep(RecordClass::states, marks.states, report.states, report.kept_states);
  sweep(RecordClass::blocks, marks.blocks, report.blocks, report.kept_blocks);
  if (!options.dry_run) backend_->tidy(before);
  return report;
}

}  // namespace stet
