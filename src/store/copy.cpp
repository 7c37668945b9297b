#include "stet/store/copy.hpp"

#include "stet/base/error.hpp"

namespace stet {
namespace {

constexpr size_t kCopiedAtOnce = 32;

void copy_blocks(Store& from, Store& to, const std::vector<Sha256>& places, StoreCopy& report) {
  const std::vector<bool> there = to.backend().touch(RecordClass::blocks, places);
  std::vector<Sha256> wanted;
  for (size_t i = 0; i < places.size(); ++i) {
    if (!there[i]) wanted.push_back(places[i]);
  }
  for (size_t begin = 0; begin < wanted.size(); begin += kCopiedAtOnce) {
    const auto some =
        std::span(wanted).subspan(begin, std::min(kCopiedAtOnce, wanted.size() - begin));
    const std::vector<StoredBlock> found = from.blocks_at(some);
    std::vector<Store::NewBlock> blocks;
    for (size_t i = 0; i < some.size(); ++i) {
      if (!found[i].found())
        ++report.missing_blocks;
      else
        blocks.push_back(
            {some[i], [&found, i] { return found[i].bytes; }, found[i].mapping, found[i].kind});
    }
    report.blocks += to.put_blocks(blocks).written;
  }
}

}  // namespace

StoreCopy copy_state(Store& from, Store& to, const Sha256& place) {
  for (const Store* store : {&from, &to}) {
    if (store->place(place) != place)
      throw Error(ErrorKind::argument, store->url(), "key", "",
                  "a tenant's key cannot copy states; use the store's own");
  }
  StoreCopy report;
  std::vector<std::pair<Sha256, StateRecord>> line;  // latest first
  for (Sha256 at = place; at != Sha256() && (line.empty() || !to.has_state(at));) {
    std::optional<StateRecord> record =
        line.empty() ? std::optional(from.state(at)) : from.find_state(at);
    report.whole_history = record.has_value();
    if (!record) break;
    const Sha256 parent = record->parent;
    line.emplace_back(at, *std::move(record));
    at = parent;
  }
  for (; !line.empty(); line.pop_back()) {
    const auto& [at, record] = line.back();
    const bool there = to.has_state(at);
    copy_blocks(from, to, record.blocks, report);
    to.put_state(at, record);
    report.states += there ? 0 : 1;
  }
  return report;
}

}  // namespace stet
