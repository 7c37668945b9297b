#include "tools/serve/request_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/basic_parser.hpp>
#include <charconv>
#include <cstring>

namespace stet::serve {
namespace {

namespace http = boost::beast::http;
using boost::beast::string_view;
using boost::system::error_code;

constexpr size_t kMostFields = 100;
constexpr size_t kMostChunkHead = 1024;

[[noreturn]] void refuse_head(const std::string& expected, const std::string& found) {
  throw RequestError(400, "bad_request", "expected " + expected + ", found " + found);
}

std::string lower(std::string_view text) {
  std::string s(text);
  for (char& c : s) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  return s;
}

// Fields that may occur only once: they decide the end of a request, its origin, or its encoding.
constexpr std::string_view kOnce[] = {
    "host",          "content-length", "transfer-encoding", "expect",           "origin",
    "authorization", "range",          "content-type",      "content-encoding", "x-api-key"};

}  // namespace

std::string Head::field(std::string_view name) const {
  for (const auto& [known, value] : fields) {
    if (known == name) return value;
  }
  return "";
}

struct RequestReader::Parser final : http::basic_parser<true> {
  Head head;
  std::string body;
  size_t most = 0;
  bool in_head = true, too_large = false;

  void on_request_impl(http::verb, string_view method, string_view target, int version,
                       error_code&) override {
    head.method = std::string(method);
    head.target = std::string(target);
    head.http11 = version == 11;
  }
  void on_response_impl(int, string_view, int, error_code&) override {}
  // Refuses trailers, which arrive too late to be checked.
  void on_field_impl(http::field, string_view name, string_view value, error_code& e) override {
    if (!in_head || head.fields.size() == kMostFields) {
      e = http::error::bad_field;
      return;
    }
    head.fields.emplace_back(lower({name.data(), name.size()}), std::string(value));
  }
  void on_header_impl(error_code&) override { in_head = false; }
  void on_body_init_impl(const boost::optional<uint64_t>&, error_code&) override {}
  size_t on_body_impl(string_view bytes, error_code& e) override { return take(bytes, e); }
  void on_chunk_header_impl(uint64_t, string_view extensions, error_code& e) override {
    if (!extensions.empty()) e = http::error::bad_chunk_extension;
  }
  size_t on_chunk_body_impl(uint64_t, string_view bytes, error_code& e) override {
    return take(bytes, e);
  }
  void on_finish_impl(error_code&) override {}

  size_t take(string_view bytes, error_code& e) {
    too_large = bytes.size() > most - body.size();
    if (too_large) {
      e = http::error::body_limit;
      return 0;
    }
    body.append(bytes.data(), bytes.size());
    return bytes.size();
  }
};

RequestReader::RequestReader(size_t head_bytes)
    : head_bytes_(head_bytes), parser_(std::make_unique<Parser>()) {
  parser_->header_limit(static_cast<uint32_t>(head_bytes));
  parser_->body_limit(UINT64_MAX);  // Parser::most limits it instead
  parser_->eager(false);
}

RequestReader::~RequestReader() = default;
const Head& RequestReader::head() const { return parser_->head; }
size_t RequestReader::body_bytes() const { return parser_->body.size(); }
std::string RequestReader::take_body() { return std::move(parser_->body); }

// Checks bytes as they arrive, so that a malformed head is refused at once.
void RequestReader::check_bytes(std::string_view in) {
  for (; checked_ < in.size(); ++checked_) {
    const auto c = static_cast<unsigned char>(in[checked_]);
    const char before = checked_ == 0 ? '\0' : in[checked_ - 1];
    if ((c == '\n') != (before == '\r') || (c < 0x20 && c != '\r' && c != '\n' && c != '\t') ||
        c == 0x7f)
      refuse_head("lines of text that end with CR LF", fmt::format("the byte 0x{:02x}", c));
    if ((c == ' ' || c == '\t') && before == '\n')
      refuse_head("a field in one line", "a folded one");
  }
}

namespace {

// Returns true if a LF has no CR before it. Some programs accept that as the end of a chunk's line,
// others wait for CR LF.
bool has_bare_line_end(std::string_view text) {
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\n' && (i == 0 || text[i - 1] != '\r')) return true;
  }
  return false;
}

void check_method(const std::string& method) {
  constexpr std::string_view kMethods[] = {"GET",   "HEAD",   "POST",   "PUT",
                                           "PATCH", "DELETE", "OPTIONS"};
  if (std::find(std::begin(kMethods), std::end(kMethods), method) == std::end(kMethods))
    throw RequestError(501, "unknown_method", "unknown method " + printable(method, 20));
}

void check_once(const Head& head) {
  for (const std::string_view name : kOnce) {
    const auto n = std::count_if(head.fields.begin(), head.fields.end(),
                                 [&](const auto& field) { return field.first == name; });
    if (n > 1) refuse_head(fmt::format("one {}", name), fmt::format("{}", n));
    // HTTP/1.0 health checks may come without a Host.
    const bool may_lack = name != "host" || (!head.http11 && head.target == "/health");
    if (n == 0 && !may_lack) throw RequestError(400, "bad_request", "the Host field is missing");
  }
}

// Reads the framing. It must be given in exactly one way, which every program reads alike.
void read_framing(Head& head) {
  const std::string length = head.field("content-length"), coding = head.field("transfer-encoding");
  const auto has = [&](std::string_view name) {
    return std::any_of(head.fields.begin(), head.fields.end(),
                       [&](const auto& field) { return field.first == name; });
  };
  if (has("transfer-encoding")) {
    if (lower(coding) != "chunked" || !head.http11)
      refuse_head("no Transfer-Encoding but chunked", printable(coding, 40));
    if (has("content-length"))
      throw RequestError(400, "bad_request", "send Transfer-Encoding or Content-Length, not both");
    head.chunked = true;
  }
  if (has("content-length")) {
    uint64_t n = 0;
    const auto [end, error] = std::from_chars(length.data(), length.data() + length.size(), n);
    if (error != std::errc() || end != length.data() + length.size())
      refuse_head("a number of bytes in Content-Length", printable(length, 40));
    head.length = n;
  }
  if (head.has_body() &&
      (head.method == "GET" || head.method == "HEAD" || head.method == "OPTIONS"))
    throw RequestError(400, "bad_request", head.method + " takes no body");
  if (const std::string expect = lower(head.field("expect")); !expect.empty()) {
    if (expect != "100-continue")
      throw RequestError(
          417, "bad_request",
          "Expect: " + printable(expect, 40) + " is not supported; only 100-continue is");
    head.expects_continue = head.http11 && head.has_body();
  }
}

}  // namespace

bool RequestReader::read_head(std::string& in) {
  if (!skipped_ && in.size() >= 2) {
    skipped_ = true;
    if (in.starts_with("\r\n")) in.erase(0, 2), checked_ = 0;
  }
  const size_t from = checked_ < 3 ? 0 : checked_ - 3;
  const size_t end = in.find("\r\n\r\n", from);
  check_bytes(std::string_view(in).substr(0, end == std::string::npos ? in.size() : end + 4));
  if ((end == std::string::npos ? in.size() : end) > head_bytes_)
    throw RequestError(431, "bad_request",
                       fmt::format("the head has more than {} bytes", head_bytes_));
  if (end == std::string::npos) return false;
  error_code error;
  const size_t used = parser_->put(boost::asio::const_buffer(in.data(), end + 4), error);
  if (error || !parser_->is_header_done() || used != end + 4)
    refuse_head("an HTTP request", error ? error.message() : "something else");
  in.erase(0, used);
  Head& head = parser_->head;
  check_method(head.method);
  check_once(head);
  read_framing(head);
  head.keep_alive = parser_->keep_alive();
  return true;
}

bool RequestReader::read_body(std::string& in, size_t most) {
  parser_->most = most;
  size_t at = 0;
  while (!parser_->is_done() && at < in.size()) {
    error_code error;
    at += parser_->put(boost::asio::const_buffer(in.data() + at, in.size() - at), error);
    if (error == http::error::need_more && in.size() - at <= kMostChunkHead &&
        !has_bare_line_end(std::string_view(in).substr(at)))
      break;
    if (parser_->too_large)
      throw RequestError(413, "body_too_large",
                         fmt::format("the body has more than {} bytes", most));
    if (error) refuse_head("a body that follows its fields", error.message());
  }
  in.erase(0, at);
  return parser_->is_done();
}

namespace {

std::string decoded(std::string_view text, bool plus) {
  std::string s;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned byte = static_cast<unsigned char>(text[i]);
    if (text[i] == '%') {
      const auto [end, error] = i + 2 < text.size()
                                    ? std::from_chars(&text[i + 1], &text[i + 1] + 2, byte, 16)
                                    : std::from_chars_result{nullptr, std::errc::invalid_argument};
      if (error != std::errc() || end != &text[i + 1] + 2)
        refuse_head("an address with % and two digits", printable(std::string(text), 60));
      i += 2;
    } else if (plus && text[i] == '+') {
      byte = ' ';
    }
    s += static_cast<char>(byte);
  }
  return s;
}

}  // namespace

Address parse_target(std::string_view target) {
  for (const char c : target) {
    if (c <= 0x20 || c == 0x7f || c == '#')
      refuse_head("an address of visible ASCII", printable(std::string(target), 60));
  }
  if (target.empty() || (target[0] != '/' && target != "*"))
    refuse_head("a path of this server", printable(std::string(target), 60));
  Address address;
  const size_t mark = std::min(target.find('?'), target.size());
  address.path = decoded(target.substr(0, mark), false);
  std::string_view query = target.substr(std::min(mark + 1, target.size()));
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(pair.size() + 1, query.size()));
    const size_t equals = std::min(pair.find('='), pair.size());
    if (!pair.empty())
      address.query[decoded(pair.substr(0, equals), true)] =
          decoded(pair.substr(std::min(equals + 1, pair.size())), true);
  }
  return address;
}

std::optional<std::pair<size_t, size_t>> parse_range(std::string_view range, size_t size) {
  constexpr std::string_view kUnit = "bytes=";
  if (!range.starts_with(kUnit) || range.find(',') != std::string_view::npos) return std::nullopt;
  range.remove_prefix(kUnit.size());
  const size_t dash = range.find('-');
  if (dash == std::string_view::npos) return std::nullopt;
  const auto number = [](std::string_view digits) -> std::optional<size_t> {
    size_t n = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), n);
    if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
    return n;
  };
  const auto first = number(range.substr(0, dash)), last = number(range.substr(dash + 1));
  if ((!first && dash != 0) || (!last && dash + 1 != range.size()) || (!first && !last))
    return std::nullopt;
  if (first && last && *last < *first) return std::nullopt;
  if (first ? *first >= size : *last == 0 || size == 0)
    throw RequestError(416, "no_such_range",
                       fmt::format("the range is outside the {} bytes of this answer", size));
  if (!first) return std::pair{size - std::min(*last, size), std::min(*last, size)};
  const size_t end = std::min(last.value_or(size - 1), size - 1);
  return std::pair{*first, end - *first + 1};
}

}  // namespace stet::serve
