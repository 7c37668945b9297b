#include "src/store/payloads.hpp"

#include <algorithm>

#include "src/snapshot/kv_blocks.hpp"
#include "stet/base/bytes.hpp"
#include "stet/base/error.hpp"
#include "stet/base/limits.hpp"
#include "stet/base/memory.hpp"

namespace stet {
namespace {

constexpr uint32_t kMostNote = 4096;
constexpr size_t kElement = 4;  // also for 2-byte elements: every other plane then has exponents
constexpr int kLevel = 1;
constexpr uint64_t kMostExpanded = kMaxBlockBytes + (uint64_t{64} << 20);  // block and logits

Sha256 read_hash(ByteReader& r, const char* field) {
  Sha256 hash;
  const auto bytes = r.bytes(hash.bytes.size(), field);
  std::copy(bytes.begin(), bytes.end(), hash.bytes.begin());
  return hash;
}

void check_count(const ByteReader& r, uint64_t count, size_t each, const char* field) {
  if (count <= r.remaining() / each) return;
  throw Error(ErrorKind::format, r.file(), field, "at most " + std::to_string(r.remaining() / each),
              std::to_string(count));
}

}  // namespace

std::vector<std::byte> encode_block(std::span<const std::byte> bytes) {
  if (bytes.empty() || bytes.size() % kElement != 0) return {};
  ByteWriter w;
  w.u64(bytes.size());
  w.bytes(compress_shuffled(bytes, kElement, kLevel, NoisePlanes::as_they_are));
  return w.size() < bytes.size() ? w.take() : std::vector<std::byte>();
}

StoredBytes decode_block(std::span<const std::byte> payload, const std::string& where) {
  ByteReader r(payload, where);
  const uint64_t size = r.u64("expanded bytes");
  const std::span<const std::byte> planes = r.bytes(r.remaining(), "planes");
  const uint64_t most = std::min(kMostExpanded, planes.size() * kMaxDeflateRatio);
  if (size == 0 || size > most || size % kElement != 0)
    throw Error(ErrorKind::format, where, "expanded bytes",
                "a multiple of 4 in 4.." + std::to_string(most), std::to_string(size));
  auto memory = std::make_shared<Memory>(static_cast<size_t>(size), false);
  const std::span<std::byte> bytes(memory->data(), static_cast<size_t>(size));
  expand_shuffled(planes, kElement, bytes, where, "planes");
  return {bytes, memory};
}

std::vector<std::byte> encode_state_payload(const StateRecord& state) {
  if (state.note.size() > kMostNote)
    throw Error(ErrorKind::argument, "", "note", "at most " + std::to_string(kMostNote) + " bytes",
                std::to_string(state.note.size()));
  ByteWriter w;
  w.bytes(state.parent.bytes);
  w.u64(static_cast<uint64_t>(state.created));
  w.u32(static_cast<uint32_t>(state.note.size()));
  w.text(state.note);
  w.u32(static_cast<uint32_t>(state.blocks.size()));
  for (const Sha256& block : state.blocks) w.bytes(block.bytes);
  w.u64(state.snapshot.size());
  w.bytes(state.snapshot);
  return w.take();
}

StateRecord decode_state_payload(std::span<const std::byte> payload, const std::string& where) {
  ByteReader r(payload, where);
  StateRecord state;
  state.parent = read_hash(r, "parent");
  state.created = static_cast<int64_t>(r.u64("created"));
  const uint32_t note = r.u32("note");
  check_count(r, note, 1, "note");
  state.note = r.text(std::min(note, kMostNote + 1), "note");
  if (note > kMostNote)
    throw Error(ErrorKind::format, where, "note", "at most " + std::to_string(kMostNote) + " bytes",
                std::to_string(note));
  const uint32_t blocks = r.u32("blocks");
  check_count(r, blocks, 32, "blocks");
  for (uint32_t i = 0; i < blocks; ++i) state.blocks.push_back(read_hash(r, "block"));
  const uint64_t size = r.u64("snapshot");
  const auto snapshot = r.bytes(size, "snapshot");
  state.snapshot.assign(snapshot.begin(), snapshot.end());
  r.end("snapshot");
  return state;
}

std::vector<std::byte> encode_name_payload(const std::string& name,
                                           std::span<const NameEntry> entries) {
  ByteWriter w;
  w.u32(static_cast<uint32_t>(name.size()));
  w.text(name);
  w.u32(static_cast<uint32_t>(entries.size()));
  for (const NameEntry& e : entries) {
    w.bytes(e.state.bytes);
    w.u64(static_cast<uint64_t>(e.set));
  }
  return w.take();
}

std::vector<NameEntry> decode_name_payload(std::span<const std::byte> payload,
                                           const std::string& name, const std::string& where) {
  ByteReader r(payload, where);
  const uint32_t size = r.u32("name");
  check_count(r, size, 1, "name");
  if (r.text(size, "name") != name)
    throw Error(ErrorKind::mismatch, where, "name", name, "another");
  const uint32_t count = r.u32("entries");
  check_count(r, count, 40, "entries");
  std::vector<NameEntry> entries;
  for (uint32_t i = 0; i < count; ++i) {
    const Sha256 state = read_hash(r, "state");
    entries.push_back({state, static_cast<int64_t>(r.u64("set"))});
  }
  r.end("entries");
  return entries;
}

}  // namespace stet
