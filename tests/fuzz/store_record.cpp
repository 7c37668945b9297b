// Reads records of a store and their payloads. The first byte chooses the kind. A record is sealed
// again, so that the fuzzer reaches the code behind the HMAC.
#include <algorithm>

#include "src/store/payloads.hpp"
#include "stet/base/hmac.hpp"
#include "stet/store/record.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace stet;

namespace {

void read_record(std::span<const std::byte> bytes) {
  const StoreKey key;
  const Record r = open_record(key, RecordKind::state, Sha256(), bytes, "record");
  fuzz::must(r.payload.size() < bytes.size(), "a payload within the record");
}

// Reads a record with arbitrary fields and a correct HMAC.
void read_forged(std::span<const std::byte> bytes) {
  const StoreKey key;
  constexpr size_t kSealAt = 96;
  std::vector<std::byte> forged(bytes.begin(), bytes.end());
  if (forged.size() < kSealAt + 32) return;
  const Sha256 seal = hmac_sha256(key.writers, std::span(forged).first(kSealAt));
  std::ranges::copy(seal.bytes, forged.begin() + kSealAt);
  read_record(forged);
}

std::vector<std::byte> sealed(const StoreKey& key, const Record& record) {
  std::vector<std::byte> bytes = seal_record(key, record);
  bytes.insert(bytes.end(), record.payload.begin(), record.payload.end());
  return bytes;
}

void read_sealed(std::span<const std::byte> payload) {
  const StoreKey key;
  const std::vector<std::byte> bytes = sealed(key, {RecordKind::state, Sha256(), 0, payload});
  const Record r = open_record(key, RecordKind::state, Sha256(), bytes, "record");
  fuzz::must(std::ranges::equal(r.payload, payload), "the payload that was sealed");
  const StateRecord state = decode_state_payload(r.payload, "record");
  fuzz::must(encode_state_payload(state) == std::vector<std::byte>(payload.begin(), payload.end()),
             "one way to write a state");
}

void read_name(std::span<const std::byte> payload) {
  const std::vector<NameEntry> entries = decode_name_payload(payload, "talk", "name");
  const std::vector<std::byte> again = encode_name_payload("talk", entries);
  fuzz::must(std::ranges::equal(again, payload), "one way to write a name");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const auto bytes = std::as_bytes(std::span(data + 1, size - 1));
  return fuzz::read_and_use([&] {
    const int which = data[0] % 5;
    if (which == 0) read_record(bytes);
    if (which == 1 || which == 3) read_sealed(bytes);
    if (which == 2) read_name(bytes);
    if (which == 4) read_forged(bytes);
  });
}
