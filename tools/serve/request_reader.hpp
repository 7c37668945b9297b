// One HTTP/1.1 request out of the bytes of a connection. Whatever two programs could take for two
// different requests is refused: RFC 9112, sections 2.2, 5, 6 and 11.2, with Boost.Beast's parser
// behind checks of our own.
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
  std::optional<uint64_t> length;  // Content-Length

  bool has_body() const { return chunked || length.value_or(0) > 0; }
  std::string field(std::string_view name) const;  // "" where there is none
};

// Takes bytes off the front of `in` as they are understood. A RequestError ends the connection.
class RequestReader {
 public:
  explicit RequestReader(size_t head_bytes);
  ~RequestReader();

  bool read_head(std::string& in);               // true once it is whole
  bool read_body(std::string& in, size_t most);  // likewise, after the head

  const Head& head() const;
  size_t body_bytes() const;
  std::string take_body();

 private:
  struct Parser;
  void check_bytes(std::string_view in);

  const size_t head_bytes_;
  size_t checked_ = 0;
  bool skipped_ = false;  // an empty line before the request
  std::unique_ptr<Parser> parser_;
};

// The path of an address and its ?name=value pairs, with %XX decoded.
struct Address {
  std::string path;
  std::map<std::string, std::string> query;
};
Address parse_target(std::string_view target);

// The first and the number of bytes that a Range asks of `size`; nothing where all is to be sent
// (no range, several, none of bytes). Throws a RequestError (416) where there is no such range.
std::optional<std::pair<size_t, size_t>> parse_range(std::string_view range, size_t size);

// What a body with this Content-Encoding says, at most `most` bytes of it.
std::string decoded_body(std::string body, std::string_view encoding, size_t most);

}  // namespace stet::serve
