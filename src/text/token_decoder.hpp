// The decoder of tokenizer.json: from pieces to text, one piece at a time. A row of stages, each of
// which hands pieces, or parts of the one piece that everything is fused to, on to the next.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "stet/text/tokenizer.hpp"

namespace stet {

class JsonNode;

class TokenDecoder {
 public:
  // No decoder: pieces with a space between.
  TokenDecoder() : stages_{{.kind = Kind::join}} {}
  // ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace, BPEDecoder, Sequence. Throws Error:
  // unsupported for others, and for stages after Fuse or ByteLevel that look at single pieces.
  static TokenDecoder parse(const JsonNode& node);
  // That of a sentencepiece model: spaces for U+2581, bytes, and no space for the one put before
  // the text.
  static TokenDecoder sentencepiece(bool strip_first_space);

  using State = std::vector<TextStream::Stage>;
  State begin() const { return State(stages_.size()); }
  void push(std::string_view piece, State& state, std::string& out) const {
    feed(0, piece, state, out);
  }
  void finish(State& state, std::string& out) const;
  // The bytes that a piece stands for in the middle of a text, whether or not they are characters.
  std::string bytes_of(std::string_view piece) const;

 private:
  enum class Kind {
    join,
    byte_level,
    replace,
    byte_fallback,
    strip,
    strip_fused,
    metaspace,
    suffix
  };
  struct Stage {
    Kind kind;
    std::string from{}, to{};      // replace; strip, metaspace, suffix: what `from` is
    uint32_t start = 0, stop = 0;  // strip
    bool drop_first = false;       // metaspace
  };

  struct None {};
  explicit TokenDecoder(None) {}
  void add(const JsonNode& node);
  void feed(size_t at, std::string_view piece, State& state, std::string& out) const;
  void feed_bytes(size_t at, std::string_view piece, State& state, std::string& out) const;
  void flush_fallback(size_t at, State& state, std::string& out) const;
  void feed_strip(size_t at, std::string_view part, State& state, std::string& out) const;

  std::vector<Stage> stages_;
  bool fused_ = false;
  double growth_ = 1;  // by all Replace, at the most
};

}  // namespace stet
