// Reads one HTTP/1.1 request from the bytes of a connection. Bytes that two programs could read as
// different requests are refused (RFC 9112, sections 2.2, 5, 6 and 11.2). Boost.Beast parses after
// checks of our own.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "tools/serve/http.hpp"

namespace stet::serve {

struct Head {
  std::string method, target;
  bool http11 = true;
  HeaderList fields;  // names in lower case
  bool keep_alive = false, chunked = false, expects_continue = false;
  std::optional<uint64_t> length;  // the Content-Length

  bool has_body() const { return chunked || length.value_or(0) > 0; }
  std::string field(std::string_view name) const;  // returns "" if absent
};

// Removes parsed bytes from the front of `in`. A RequestError ends the connection.
class RequestReader {
 public:
  explicit RequestReader(size_t head_bytes);
  ~RequestReader();

  bool read_head(std::string& in);               // returns true once the head is whole
  bool read_body(std::string& in, size_t most);  // returns true once the body is whole

  const Head& head() const;
  size_t body_bytes() const;
  std::string take_body();

 private:
  struct Parser;
  void check_bytes(std::string_view in);

  const size_t head_bytes_;
  size_t checked_ = 0;
  bool skipped_ = false;  // an empty line before the request was skipped
  std::unique_ptr<Parser> parser_;
};

// The path of an address and its ?name=value pairs. %XX is decoded.
struct Address {
  std::string path;
  std::map<std::string, std::string> query;
};
Address parse_target(std::string_view target);

// Returns the first byte and the number of bytes of a Range within `size`. Returns nothing if all
// is to be sent: no range, several, or none in bytes. Throws a RequestError (416) for a range
// outside.
std::optional<std::pair<size_t, size_t>> parse_range(std::string_view range, size_t size);

// Called before memory is taken, with all the bytes that a body then has. May throw.
using TakeRoom = std::function<void(size_t bytes)>;
// Returns a body decoded by its Content-Encoding. Throws a RequestError (413) beyond `most` bytes.
std::string decoded_body(std::string body, std::string_view encoding, size_t most,
                         const TakeRoom& room);

}  // namespace stet::serve
