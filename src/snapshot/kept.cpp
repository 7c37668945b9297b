#include "src/snapshot/kept.hpp"

#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "src/base/digest_bytes.hpp"
#include "src/snapshot/file.hpp"
#include "src/snapshot/meta.hpp"
#include "stet/base/bytes.hpp"

namespace stet {
namespace {

constexpr uint64_t kEnd = UINT64_MAX;

}  // namespace

std::vector<std::byte> encode_kept(const SnapshotContents& contents) {
  RewindLogits kept = contents.kept;
  kept.truncate(contents.meta.positions - 1);  // LOGITS holds the last row
  if (kept.rows().empty()) return {};
  ByteWriter w;
  put(w, contents.digests.state);
  for (const RewindLogits::Row& row : kept.rows()) {
    w.u64(static_cast<uint64_t>(row.position));
    w.u32(row.hidden);
    w.u32(static_cast<uint32_t>(row.values->size()));
  }
  w.u64(kEnd);
  for (const RewindLogits::Row& row : kept.rows()) w.bytes(std::as_bytes(std::span(*row.values)));
  return w.take();
}

RewindLogits decode_kept(const SnapshotFile& file) {
  const std::string section = file.path + ": KEPT";
  ByteReader r(file.content("KEPT"), section);
  if (!(get(r, "state") == file.digests.state)) return {};
  const auto vocab = static_cast<uint64_t>(file.meta.vocab_size),
             hidden = static_cast<uint64_t>(file.meta.hidden_size);
  std::vector<RewindLogits::Row> rows;
  for (uint64_t at = r.u64("position"); at != kEnd; at = r.u64("position")) {
    const auto positions = static_cast<uint64_t>(file.meta.positions);
    if (at >= positions || (!rows.empty() && std::cmp_less_equal(at, rows.back().position)))
      snapshot_damaged(section, "position", "ascending ones below " + std::to_string(positions),
                       std::to_string(at));
    const uint32_t kind = r.u32("kind"), numbers = r.u32("numbers");
    if (kind > 1) snapshot_damaged(section, "kind", "0 or 1", std::to_string(kind));
    if (numbers != (kind == 1 ? hidden : vocab))
      snapshot_damaged(section, "numbers", std::to_string(kind == 1 ? hidden : vocab),
                       std::to_string(numbers));
    rows.push_back({static_cast<int64_t>(at), kind == 1, nullptr});
  }
  RewindLogits kept;
  for (RewindLogits::Row& row : rows) {
    const uint64_t count = row.hidden ? hidden : vocab;
    const std::span<const std::byte> values = r.bytes(count * sizeof(float), "values");
    row.values = std::make_shared<std::vector<float>>(count);
    std::memcpy(row.values->data(), values.data(), values.size());
    kept.keep(std::move(row));
  }
  r.end("values");
  return kept;
}

}  // namespace stet
