#include "src/text/token_decoder.hpp"

#include <algorithm>

#include "src/text/byte_alphabet.hpp"
#include "src/text/tokenizer_json.hpp"
#include "stet/base/error.hpp"
#include "stet/base/limits.hpp"
#include "stet/text/utf8.hpp"

namespace stet {
namespace {

constexpr uint32_t kPastStart = UINT32_MAX;

void replace_in(std::string& text, std::string_view from, std::string_view to) {
  size_t found = text.find(from), done = 0;
  if (found == std::string::npos) return;
  std::string out;
  for (; found != std::string::npos; found = text.find(from, done)) {
    out.append(text, done, found - done).append(to);
    done = found + from.size();
  }
  text = out.append(text, done);
}

// Returns the byte of "<0xE2>", or -1.
int byte_of(std::string_view piece) {
  if (piece.size() != 6 || !piece.starts_with("<0x") || piece[5] != '>') return -1;
  const auto digit = [](char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -1;
  };
  const int high = digit(piece[3]), low = digit(piece[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

// Returns a piece without up to `start` and `stop` repetitions of the character at its ends.
std::string_view strip_piece(std::string_view piece, std::string_view character, uint32_t start,
                             uint32_t stop) {
  for (; start > 0 && piece.starts_with(character); --start) piece.remove_prefix(character.size());
  for (; stop > 0 && piece.ends_with(character); --stop) piece.remove_suffix(character.size());
  return piece;
}

}  // namespace

TokenDecoder TokenDecoder::parse(const JsonNode& node) {
  TokenDecoder decoder{None()};
  decoder.add(node);
  return decoder;
}

TokenDecoder TokenDecoder::sentencepiece(bool strip_first_space) {
  TokenDecoder decoder{None()};
  decoder.stages_ = {{.kind = Kind::replace, .from = "\u2581", .to = " "},
                     {.kind = Kind::byte_fallback}};
  if (strip_first_space)
    decoder.stages_.push_back({.kind = Kind::strip_fused, .from = " ", .start = 1});
  return decoder;
}

void TokenDecoder::add(const JsonNode& node) {
  const JsonNode type_node = node.at("type");
  const std::string type = type_node.string();
  if (stages_.size() == kMaxSteps) node.fail("at most " + std::to_string(kMaxSteps) + " decoders");
  const auto needs_pieces = [&] {
    if (fused_) type_node.unsupported("after Fuse or ByteLevel: Strip or nothing");
  };
  if (type == "Sequence") {
    for (const JsonNode& part : node.at("decoders").elements()) add(part);
  } else if (type == "ByteLevel") {
    needs_pieces();
    fused_ = true;
    stages_.push_back({.kind = Kind::byte_level});
  } else if (type == "Fuse") {
    fused_ = true;
  } else if (type == "ByteFallback") {
    needs_pieces();
    stages_.push_back({.kind = Kind::byte_fallback});
  } else if (type == "Replace") {
    needs_pieces();
    const JsonNode pattern = node.at("pattern");
    const std::optional<JsonNode> from = pattern.find("String");
    if (!from) pattern.unsupported("{\"String\": ...}");
    if (from->string().empty()) from->fail("a string that is not empty");
    const std::string to = node.at("content").string();
    growth_ *=
        std::max(1.0, static_cast<double>(to.size()) / static_cast<double>(from->string().size()));
    if (growth_ > static_cast<double>(kMaxDecoderGrowth)) {
      node.fail("decoders that make a text at most " + std::to_string(kMaxDecoderGrowth) +
                " times as long");
    }
    stages_.push_back({.kind = Kind::replace, .from = from->string(), .to = to});
  } else if (type == "Strip") {
    std::string character;
    utf8_append(character, node.at("content").character());
    stages_.push_back({.kind = fused_ ? Kind::strip_fused : Kind::strip,
                       .from = character,
                       .start = static_cast<uint32_t>(node.at("start").integer(0, 255)),
                       .stop = static_cast<uint32_t>(node.at("stop").integer(0, 255))});
  } else if (type == "Metaspace") {
    needs_pieces();
    std::string character;
    utf8_append(character, node.at("replacement").character());
    const std::string scheme = node.string_or(
        "prepend_scheme", node.boolean_or("add_prefix_space", true) ? "always" : "never");
    stages_.push_back(
        {.kind = Kind::metaspace, .from = character, .drop_first = scheme != "never"});
  } else if (type == "BPEDecoder") {
    needs_pieces();
    stages_.push_back({.kind = Kind::suffix, .from = node.string_or("suffix", "</w>")});
  } else {
    type_node.unsupported(
        "a decoder of Sequence, ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace, "
        "BPEDecoder");
  }
}

void TokenDecoder::feed(size_t at, std::string_view piece, State& state, std::string& out) const {
  if (at == stages_.size()) {
    out += piece;
    return;
  }
  const Stage& stage = stages_[at];
  TextStream::Stage& memory = state[at];
  const auto pass = [&](std::string_view text) { feed(at + 1, text, state, out); };
  std::string changed;
  switch (stage.kind) {
    case Kind::join:
      if (memory.count++ > 0) pass(" ");
      memory.count = 1;
      pass(piece);
      break;
    case Kind::byte_level:
      feed_bytes(at, piece, state, out);
      break;
    case Kind::replace:
      changed = piece;
      replace_in(changed, stage.from, stage.to);
      pass(changed);
      break;
    case Kind::byte_fallback:
      if (const int byte = byte_of(piece); byte >= 0) {
        memory.held.push_back(static_cast<char>(byte));
      } else {
        flush_fallback(at, state, out);
        pass(piece);
      }
      break;
    case Kind::strip:
      pass(strip_piece(piece, stage.from, stage.start, stage.stop));
      break;
    case Kind::strip_fused:
      feed_strip(at, piece, state, out);
      break;
    case Kind::metaspace:
      changed = piece;
      replace_in(changed, stage.from, memory.count == 0 && stage.drop_first ? "" : " ");
      memory.count = 1;
      pass(changed);
      break;
    case Kind::suffix:  // only the last piece loses its suffix without getting a space
      if (memory.count > 0) {
        replace_in(memory.held, stage.from, " ");
        pass(memory.held);
      }
      memory.count = 1;
      memory.held = piece;
      break;
  }
}

std::string TokenDecoder::bytes_of(std::string_view piece) const {
  for (const Stage& stage : stages_) {
    const int byte = stage.kind == Kind::byte_fallback ? byte_of(piece) : -1;
    if (byte >= 0) return std::string(1, static_cast<char>(byte));
    if (stage.kind != Kind::byte_level) continue;
    if (const std::optional<std::string> bytes = bytes_of_piece(piece)) return *bytes;
  }
  State state = begin();
  std::string text;
  push("x", state, text);  // so that no space counts as the first of the text
  push(piece, state, text);
  finish(state, text);
  return text.starts_with('x') ? text.substr(1) : text;
}

// Collects bytes of pieces. Emits them as text once they form a character or can no longer form
// one.
void TokenDecoder::feed_bytes(size_t at, std::string_view piece, State& state,
                              std::string& out) const {
  std::string& held = state[at].held;
  const std::optional<std::string> bytes = bytes_of_piece(piece);
  held += bytes ? std::string_view(*bytes) : piece;
  std::string text;
  size_t done = 0;
  while (done < held.size()) {
    const Utf8 c = utf8_at(held, done);
    if (c.cut) break;
    text += c.valid ? std::string_view(held).substr(done, c.length) : kReplacement;
    done += c.length;
  }
  held.erase(0, done);
  if (!text.empty()) feed(at + 1, text, state, out);
}

// Ends a run of byte tokens. It becomes text if it is UTF-8; otherwise each byte becomes U+FFFD.
void TokenDecoder::flush_fallback(size_t at, State& state, std::string& out) const {
  std::string held;
  std::swap(held, state[at].held);
  if (held.empty()) return;
  if (utf8_valid(held)) return feed(at + 1, held, state, out);
  for (size_t i = 0; i < held.size(); ++i) feed(at + 1, kReplacement, state, out);
}

// Strips the whole text, of which this is a part. Holds back characters that may turn out to be the
// last ones.
void TokenDecoder::feed_strip(size_t at, std::string_view part, State& state,
                              std::string& out) const {
  const Stage& stage = stages_[at];
  TextStream::Stage& memory = state[at];
  while (memory.count < stage.start && part.starts_with(stage.from)) {
    part.remove_prefix(stage.from.size());
    ++memory.count;
  }
  if (part.empty()) return;
  memory.count = kPastStart;
  memory.held += part;
  size_t kept = memory.held.size();
  for (uint32_t i = 0;
       i < stage.stop && std::string_view(memory.held).substr(0, kept).ends_with(stage.from); ++i) {
    kept -= stage.from.size();
  }
  const std::string text = memory.held.substr(0, kept);
  memory.held.erase(0, kept);
  if (!text.empty()) feed(at + 1, text, state, out);
}

void TokenDecoder::finish(State& state, std::string& out) const {
  for (size_t at = 0; at < stages_.size(); ++at) {
    TextStream::Stage& memory = state[at];
    switch (stages_[at].kind) {
      case Kind::byte_level:
        if (!memory.held.empty()) feed(at + 1, utf8_lossy(memory.held), state, out);
        break;
      case Kind::byte_fallback:
        flush_fallback(at, state, out);
        break;
      case Kind::suffix:
        replace_in(memory.held, stages_[at].from, "");
        feed(at + 1, memory.held, state, out);
        break;
      default:
        break;  // strip: the characters still held are to be dropped
    }
  }
  state = begin();
}

}  // namespace stet
