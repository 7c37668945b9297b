// Reads the bytes of a connection in pieces whose size the first byte chooses. The result must be
// the same as in one piece, and any refusal must be a client error.
#include <string>
#include <string_view>
#include <vector>

#include "tests/fuzz/fuzz.hpp"
#include "tools/serve/request_reader.hpp"

using namespace stet;
using serve::RequestReader;

namespace {

struct Frames {
  std::vector<std::string> requests;
  int status = 0;  // status of the refusal, or 0
  bool operator==(const Frames&) const = default;
};

class Connection {
 public:
  void take(std::string_view bytes) {
    in_ += bytes;
    try {
      while (frames.status == 0 && step()) {
      }
    } catch (const serve::RequestError& e) {
      fuzz::must((e.status >= 400 && e.status < 500) || e.status == 501,
                 "what is sent is no error of the server");
      frames.status = e.status;
    }
  }
  Frames frames;

 private:
  bool step() {
    constexpr size_t kMostHead = 2048, kMostBody = 1000;
    if (!reader_) reader_.emplace(kMostHead);
    if (!has_head_ && !(has_head_ = reader_->read_head(in_))) return false;
    if (reader_->head().has_body() && !reader_->read_body(in_, kMostBody)) return false;
    const serve::Address address = serve::parse_target(reader_->head().target);
    frames.requests.push_back(reader_->head().method + " " + address.path + " " +
                              serve::decoded_body(reader_->take_body(),
                                                  reader_->head().field("content-encoding"),
                                                  kMostBody, [](size_t) {}));
    ++fuzz::tally.accepted;
    reader_.reset();
    has_head_ = false;
    return true;
  }

  std::string in_;
  std::optional<RequestReader> reader_;
  bool has_head_ = false;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view input = fuzz::text_of(data + 1, size - 1);
  Connection whole, pieces;
  whole.take(input);
  const size_t step = size_t{1} + data[0] % 64;
  for (size_t at = 0; at < input.size(); at += step) pieces.take(input.substr(at, step));
  fuzz::must(whole.frames.requests == pieces.frames.requests, "pieces are the same requests");
  fuzz::must((whole.frames.status == 0) == (pieces.frames.status == 0), "and refused alike");
  return 0;
}
