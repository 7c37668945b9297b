// Tokens that are found in text as they are written, before anything else looks at it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "src/text/pattern.hpp"
#include "stet/text/tokenizer.hpp"

namespace stet {

struct AddedToken {
  int32_t id = -1;
  std::string text;
  bool single_word = false;  // only where no letter, digit, mark or connector touches it
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // and after it
  bool normalized = false;   // looked for in normalized text
  bool special = false;
  // Ordinary text to an encode() that is told so: special, or a word of the chat template.
  bool reserved = false;
};

// Part of an input: a token found in it, or text between tokens (id -1).
struct Segment {
  std::string_view text;
  int32_t id;
  bool first;  // begins where the input begins
  bool plain;  // no id of a reserved token may come out of it
};

// Finds a set of tokens: of those that begin leftmost, the longest. The time is linear in the text,
// whatever the tokens: one pass from its end to its beginning through the automaton of the tokens
// read backwards (Aho and Corasick 1975).
class AddedTokenFinder {
 public:
  // `file` is named when a single_word token needs Unicode classes that this build lacks.
  void add(const AddedToken& token, const std::string& looked_for, const std::string& file);
  void build();  // once, after the last one
  bool empty() const { return tokens_.empty(); }

  // Appends the parts of a text segment. Reserved tokens are left in the text where they would
  // touch one of the `plain` ranges, which are in order and disjoint; text that touches one is
  // plain.
  void split(const Segment& text, std::span<const TextRange> plain,
             std::vector<Segment>& out) const;

 private:
  struct Node {
    uint32_t parent = 0, depth = 0;
    uint32_t fallback = 0;  // the longest proper suffix of the node's string that is a node
    int32_t token = -1;     // the longest token that is a suffix of it
    unsigned char byte = 0;
  };
  struct Found {
    size_t at;
    int32_t token;
  };
  uint32_t step(uint32_t node, unsigned char byte) const;
  // Returns the longest at each place, the last place first.
  std::vector<Found> find(std::string_view text) const;
  bool stands_alone(std::string_view text, size_t begin, size_t end) const;

  std::vector<AddedToken> tokens_;
  std::vector<size_t> lengths_;                   // of what is looked for
  std::vector<Node> nodes_{Node()};               // 0 is the root
  std::unordered_map<uint64_t, uint32_t> edges_;  // node << 8 | byte -> node
  bool last_[256] = {};                           // bytes that some token ends with
  std::optional<Pattern> word_;                   // one character of a word
};

}  // namespace stet
