// Decompression of request bodies.
#include <fmt/format.h>

#include <algorithm>

#ifdef STET_HAVE_ZLIB
#include <zlib.h>
#endif

#include "tools/serve/request_reader.hpp"

namespace stet::serve {

#ifdef STET_HAVE_ZLIB
namespace {

struct Inflate {
  Inflate() { ready = ::inflateInit2(&stream, 15 + 32) == Z_OK; }  // takes zlib or gzip format
  ~Inflate() { ::inflateEnd(&stream); }
  z_stream stream{};
  bool ready = false;
};

// Appends to a text of at most `most` bytes, whose memory is taken from `room` first.
void append(std::string& text, std::string_view piece, size_t most, const TakeRoom& room) {
  constexpr size_t kFirst = 65536;
  if (text.size() + piece.size() > text.capacity()) {
    const size_t held = text.size() == 0 ? 0 : text.capacity(),
                 size = std::min(most, std::max(2 * held, kFirst));
    room(held + size);  // both are in use while the text moves
    text.reserve(size);
    room(text.capacity());
  }
  text += piece;
}

}  // namespace

std::string decoded_body(std::string body, std::string_view encoding, size_t most,
                         const TakeRoom& room) {
  if (encoding.empty() || encoding == "identity") return body;
  if (encoding != "gzip" && encoding != "x-gzip" && encoding != "deflate")
    throw RequestError(415, "unsupported_encoding",
                       "Content-Encoding " + printable(std::string(encoding), 40) +
                           " is not supported by this server; send gzip or deflate");
  Inflate inflate;
  if (!inflate.ready) throw std::bad_alloc();
  inflate.stream.next_in = reinterpret_cast<Bytef*>(body.data());
  inflate.stream.avail_in = static_cast<uInt>(body.size());
  std::string text;
  char piece[65536];
  for (int status = Z_OK; status != Z_STREAM_END;) {
    inflate.stream.next_out = reinterpret_cast<Bytef*>(piece);
    inflate.stream.avail_out = sizeof piece;
    status = ::inflate(&inflate.stream, Z_NO_FLUSH);
    const size_t n = sizeof piece - inflate.stream.avail_out;
    const bool bad = status != Z_OK && status != Z_STREAM_END;
    if (bad || (n == 0 && status != Z_STREAM_END))
      throw RequestError(400, "bad_request", "the body does not follow its Content-Encoding");
    if (n > most - text.size())
      throw RequestError(413, "body_too_large",
                         fmt::format("the uncompressed body has more than {} bytes", most));
    append(text, {piece, n}, most, room);
  }
  if (inflate.stream.avail_in > 0)
    throw RequestError(400, "bad_request", "there are bytes after the end of the compressed body");
  return text;
}
#else
std::string decoded_body(std::string body, std::string_view encoding, size_t, const TakeRoom&) {
  if (encoding.empty() || encoding == "identity") return body;
  throw RequestError(415, "unsupported_encoding",
                     "Content-Encoding " + printable(std::string(encoding), 40) +
                         " is not supported by this server; send the body without");
}
#endif

}  // namespace stet::serve
