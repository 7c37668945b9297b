// Finds added tokens: tokens recognized literally in the text before anything else happens to it.
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
  bool single_word = false;  // not next to a letter, digit, mark or connector
  bool lstrip = false;       // absorbs the white space before it
  bool rstrip = false;       // absorbs the white space after it
  bool normalized = false;   // searched in normalized text
  bool special = false;
  // Special, or a word of the chat template: encode() can be asked to treat it as ordinary text.
  bool reserved = false;
};

// Part of an input: a token found in it, or text between tokens (id -1).
struct Segment {
  std::string_view text;
  int32_t id;
  bool first;  // begins at the beginning of the input
  bool plain;  // must not produce the id of a reserved token
};

// Finds the leftmost tokens, the longest at each position. Takes linear time whatever the tokens:
// one pass, from the end of the text, through the automaton of the reversed tokens (Aho and
// Corasick 1975).
class AddedTokenFinder {
 public:
  // `file` is named in an error if a single_word token needs Unicode classes that this build lacks.
  void add(const AddedToken& token, const std::string& looked_for, const std::string& file);
  void build();  // called once, after the last add
  bool empty() const { return tokens_.empty(); }

  // Appends the parts of a text segment. Reserved tokens that touch one of the `plain` ranges stay
  // in the text. These ranges are sorted and disjoint. Text that touches one is marked plain.
  void split(const Segment& text, std::span<const TextRange> plain,
             std::vector<Segment>& out) const;

 private:
  struct Node {
    uint32_t parent = 0, depth = 0;
    uint32_t fallback = 0;  // the longest proper suffix of the node's string that is a node
    int32_t token = -1;     // the longest token that is a suffix of the node's string
    unsigned char byte = 0;
  };
  struct Found {
    size_t at;
    int32_t token;
  };
  uint32_t step(uint32_t node, unsigned char byte) const;
  // Returns the longest token at each position, last position first.
  std::vector<Found> find(std::string_view text) const;
  bool stands_alone(std::string_view text, size_t begin, size_t end) const;

  std::vector<AddedToken> tokens_;
  std::vector<size_t> lengths_;                   // lengths of the tokens' texts
  std::vector<Node> nodes_{Node()};               // 0 is the root
  std::unordered_map<uint64_t, uint32_t> edges_;  // node << 8 | byte -> node
  bool last_[256] = {};                           // last bytes of tokens
  std::optional<Pattern> word_;                   // matches one character of a word
};

}  // namespace stet
