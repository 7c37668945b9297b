// The decoder of tokenizer.json, which turns pieces into text one at a time. Each stage passes
// pieces to the next, or parts of the single piece after a Fuse.
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
  // Without a decoder, pieces are joined by spaces.
  TokenDecoder() : stages_{{.kind = Kind::join}} {}
  // Parses ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace, BPEDecoder and Sequence.
  // Throws an unsupported Error for others, and for stages after Fuse or ByteLevel that need single
  // pieces.
  static TokenDecoder parse(const JsonNode& node);
  // Returns the decoder of a sentencepiece model: spaces for U+2581, bytes for byte pieces, and
  // without the space put before the text.
  static TokenDecoder sentencepiece(bool strip_first_space);

  using State = std::vector<TextStream::Stage>;
  State begin() const { return State(stages_.size()); }
  void push(std::string_view piece, State& state, std::string& out) const {
    feed(0, piece, state, out);
  }
  void finish(State& state, std::string& out) const;
  // Returns the bytes of a piece in the middle of a text, even if they are not whole characters.
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
    std::string from{}, to{};      // replace; strip, metaspace, suffix: `from` only
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
  double growth_ = 1;  // upper bound on growth by all Replace
};

}  // namespace stet
