// Records of a store and their payloads. The first byte says which; a record is sealed again, so
// that what stands behind the HMAC is reached, too.
#include "src/store/payloads.hpp"
#include "stet/store/record.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace stet;

namespace {

void read_record(std::span<const std::byte> bytes) {
  const StoreKey key;
  const Record r = open_record(key, RecordKind::state, Sha256(), bytes, "record");
  fuzz::must(r.payload.size() < bytes.size(), "a payload within the record");
}

void read_sealed(std::span<const std::byte> payload) {
  const StoreKey key;
  std::vector<std::byte> bytes = seal_record(key, {RecordKind::state, Sha256(), 0, payload});
  bytes.insert(bytes.end(), payload.begin(), payload.end());
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
    if (data[0] % 3 == 0) read_record(bytes);
    if (data[0] % 3 == 1) read_sealed(bytes);
    if (data[0] % 3 == 2) read_name(bytes);
  });
}
