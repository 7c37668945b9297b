// Splits byte strings into requests as the server does, without a socket. Standard input has
// strings, each preceded by its length in 4 bytes. Standard output gets a line of JSON for each:
// the requests, and whether the rest is refused or the beginning of another request.
#include <cstdint>
#include <cstdio>
#include <string>

#include "tools/serve/request_reader.hpp"

using namespace stet::serve;

namespace {

bool read(std::string& bytes) {
  uint8_t length[4];
  if (std::fread(length, 1, 4, stdin) != 4) return false;
  bytes.resize(static_cast<size_t>(length[0]) | static_cast<size_t>(length[1]) << 8 |
               static_cast<size_t>(length[2]) << 16 | static_cast<size_t>(length[3]) << 24);
  return std::fread(bytes.data(), 1, bytes.size(), stdin) == bytes.size();
}

std::string hex(const std::string& bytes) {
  std::string text;
  char two[3];
  for (const char c : bytes) {
    std::snprintf(two, sizeof two, "%02x", static_cast<unsigned char>(c));
    text += two;
  }
  return text;
}

Json frames(std::string in) {
  Json requests = Json::array();
  try {
    for (;;) {
      RequestReader reader(16384);
      if (!reader.read_head(in)) break;
      parse_target(reader.head().target);
      if (reader.head().has_body() && !reader.read_body(in, 1 << 20)) break;
      requests.push_back(
          {reader.head().method, hex(reader.head().target), hex(reader.take_body())});
      if (!reader.head().keep_alive) return {{"requests", requests}, {"refused", true}};
    }
  } catch (const RequestError&) {
    return {{"requests", requests}, {"refused", true}};
  }
  return {{"requests", requests}, {"refused", false}};
}

}  // namespace

int main() {
  std::string bytes;
  while (read(bytes)) std::printf("%s\n", frames(bytes).dump().c_str());
}
