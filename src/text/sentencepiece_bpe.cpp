// Encodes with a sentencepiece model of type BPE, as the sentencepiece library does. User-defined
// pieces stay whole, and all other text is split into characters. Neighbours are merged while
// together they are a piece: the highest score first, then the leftmost.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "src/text/added_tokens.hpp"
#include "src/text/sentencepiece.hpp"
#include "src/text/vocabulary.hpp"
#include "stet/base/error.hpp"
#include "stet/text/utf8.hpp"

namespace stet {
namespace {

constexpr std::string_view kSpaceMark = "\u2581";

class SentencePieceBpe : public SentencePieceTextEncoder {
 public:
  SentencePieceBpe(const SentencePieceModel& model, std::string file);
  void encode(std::string_view text, std::vector<int32_t>& out) const override;

 private:
  struct Symbol {
    int32_t previous, next;  // -1: none
    int32_t begin, size;     // in the normalized text; size 0: merged
    bool whole;              // a user-defined piece, which is never merged
  };
  struct Pair {
    float score;
    int32_t left, right, size;
    // The heap's top is the greatest.
    bool operator<(const Pair& other) const {
      return score < other.score || (score == other.score && left > other.left);
    }
  };
  // The two texts that an unused piece was merged from, by its id.
  using Halves = std::unordered_map<int32_t, std::pair<std::string_view, std::string_view>>;
  struct Work {
    std::string_view text;  // normalized
    std::vector<Symbol> symbols;
    std::vector<Pair> heap;
    Halves halves;
    bool last_is_unknown = false;
  };

  uint64_t type(int32_t id) const { return types_[static_cast<size_t>(id)]; }
  std::string normalize(std::string_view text) const;
  void add_symbols(Work& work) const;
  void add_pair(Work& work, int32_t left, int32_t right) const;
  void merge(Work& work) const;
  void put(Work& work, std::string_view piece, std::vector<int32_t>& out) const;

  std::string file_;
  Vocabulary pieces_;
  std::vector<uint64_t> types_;  // index: id
  std::vector<float> scores_;
  size_t longest_ = 0;      // size of the longest piece in bytes
  AddedTokenFinder whole_;  // user-defined pieces
  int32_t unknown_ = -1;
  int32_t byte_ids_[256];
  bool byte_fallback_, add_dummy_prefix_, remove_extra_whitespaces_;
};

SentencePieceBpe::SentencePieceBpe(const SentencePieceModel& model, std::string file)
    : file_(std::move(file)),
      byte_fallback_(model.byte_fallback),
      add_dummy_prefix_(model.add_dummy_prefix),
      remove_extra_whitespaces_(model.remove_extra_whitespaces) {
  const auto needs_library = [&](const char* field, const char* expected,
                                 const std::string& found) {
    throw Error(ErrorKind::unsupported, file_, field,
                std::string(expected) + ", or a build with sentencepiece", found);
  };
  if (model.model_type != 2)
    needs_library("trainer_spec.model_type", "2 (BPE)", fmt::format("{}", model.model_type));
  if (!model.character_map.empty())
    needs_library("normalizer_spec.precompiled_charsmap", "none",
                  fmt::format("{} bytes", model.character_map.size()));
  std::fill(std::begin(byte_ids_), std::end(byte_ids_), -1);
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    const SentencePiece& piece = model.pieces[i];
    const auto id = static_cast<int32_t>(i);
    if (!pieces_.add(piece.text, id))
      throw Error(ErrorKind::format, file_, fmt::format("pieces[{}]", i), "each piece once",
                  piece.text + " twice");
    types_.push_back(piece.type);
    scores_.push_back(piece.score);
    longest_ = std::max(longest_, piece.text.size());
    if (piece.type == kUnknown) unknown_ = id;
    if (piece.type == kByte) byte_ids_[sentencepiece_byte(piece.text)] = id;
    if (piece.type == kUserDefined) {
      AddedToken token;
      token.id = id;
      whole_.add(token, piece.text, file_);
    }
  }
  whole_.build();
}

// Escapes spaces. With remove_extra_whitespaces, drops spaces at both ends and reduces runs to one,
// except within user-defined pieces.
std::string SentencePieceBpe::normalize(std::string_view text) const {
  std::vector<Segment> segments;
  whole_.split({text, -1, true, false}, {}, segments);
  std::string out;
  bool after_space = remove_extra_whitespaces_;
  const auto add = [&](std::string_view part) {
    while (after_space && part.starts_with(' ')) part.remove_prefix(1);
    for (const char c : part) {
      if (c == ' ')
        out += kSpaceMark;
      else
        out += c;
    }
    if (!part.empty()) after_space = remove_extra_whitespaces_ && part.ends_with(' ');
  };
  bool begun = false;
  for (const Segment& segment : segments) {
    std::string_view rest = segment.text;
    if (!begun && remove_extra_whitespaces_) {
      if (segment.id < 0) rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
      if (rest.empty() || rest == " ") continue;
    }
    if (!begun && add_dummy_prefix_) out += kSpaceMark;
    begun = true;
    if (segment.id >= 0) {
      add(rest);
    } else {
      for (size_t i = 0; i < rest.size(); ++i) add(rest.substr(i, 1));
    }
  }
  while (remove_extra_whitespaces_ && out.ends_with(kSpaceMark))
    out.resize(out.size() - kSpaceMark.size());
  return out;
}

void SentencePieceBpe::add_symbols(Work& work) const {
  std::vector<Segment> segments;
  whole_.split({work.text, -1, true, false}, {}, segments);
  int32_t begin = 0;
  const auto add = [&](size_t size, bool whole) {
    const auto at = static_cast<int32_t>(work.symbols.size());
    work.symbols.push_back({at - 1, at + 1, begin, static_cast<int32_t>(size), whole});
    begin += static_cast<int32_t>(size);
  };
  for (const Segment& segment : segments) {
    if (segment.id >= 0) {
      add(segment.text.size(), true);
    } else {
      for (size_t at = 0, length; at < segment.text.size(); at += length) {
        length = utf8_at(segment.text, at).length;
        add(length, false);
      }
    }
  }
  work.symbols.back().next = -1;
}

// Pushes a pair of neighbours on the heap, if together they are a piece.
void SentencePieceBpe::add_pair(Work& work, int32_t left, int32_t right) const {
  if (left < 0 || right < 0) return;
  const Symbol& a = work.symbols[static_cast<size_t>(left)];
  const Symbol& b = work.symbols[static_cast<size_t>(right)];
  const auto size = static_cast<size_t>(a.size) + static_cast<size_t>(b.size);
  if (a.whole || b.whole || size > longest_) return;
  const std::string_view both = work.text.substr(static_cast<size_t>(a.begin), size);
  const int32_t id = pieces_.find(both);
  if (id < 0 || (type(id) != kNormal && type(id) != kUserDefined && type(id) != kUnused)) return;
  work.heap.push_back({scores_[static_cast<size_t>(id)], left, right, static_cast<int32_t>(size)});
  std::push_heap(work.heap.begin(), work.heap.end());
  if (type(id) == kUnused) {
    const auto middle = static_cast<size_t>(a.size);
    work.halves[id] = {both.substr(0, middle), both.substr(middle)};
  }
}

void SentencePieceBpe::merge(Work& work) const {
  std::vector<Symbol>& symbols = work.symbols;
  for (size_t i = 1; i < symbols.size(); ++i)
    add_pair(work, static_cast<int32_t>(i - 1), static_cast<int32_t>(i));
  while (!work.heap.empty()) {
    const Pair top = work.heap.front();
    std::pop_heap(work.heap.begin(), work.heap.end());
    work.heap.pop_back();
    Symbol& left = symbols[static_cast<size_t>(top.left)];
    Symbol& right = symbols[static_cast<size_t>(top.right)];
    // One of the two may have been merged with another symbol in the meantime.
    if (left.size == 0 || right.size == 0 || left.size + right.size != top.size) continue;
    left.size = top.size;
    left.next = right.next;
    right.size = 0;
    if (left.next >= 0) symbols[static_cast<size_t>(left.next)].previous = top.left;
    add_pair(work, left.previous, top.left);
    add_pair(work, top.left, left.next);
  }
}

// Appends a symbol's ids. An unused piece gives the ids of its halves. Unknown text gives its
// bytes, or one unknown piece for a whole run.
void SentencePieceBpe::put(Work& work, std::string_view piece, std::vector<int32_t>& out) const {
  const int32_t found = pieces_.find(piece), id = found < 0 ? unknown_ : found;
  if (type(id) == kUnused) {
    if (const auto halves = work.halves.find(id); halves != work.halves.end()) {
      const auto [left, right] = halves->second;
      put(work, left, out);
      return put(work, right, out);
    }
  }
  if (type(id) == kControl)
    throw Error(ErrorKind::argument, file_, "text", "text to encode",
                "a control piece: " + std::string(piece));
  const bool unknown = id == unknown_;
  if (unknown && byte_fallback_) {
    for (const char c : piece) out.push_back(byte_ids_[static_cast<unsigned char>(c)]);
  } else if (!unknown || !work.last_is_unknown) {
    out.push_back(id);
  }
  work.last_is_unknown = unknown;
}

void SentencePieceBpe::encode(std::string_view text, std::vector<int32_t>& out) const {
  const std::string normalized = normalize(text);
  if (normalized.empty()) return;
  if (normalized.size() > INT32_MAX)
    throw Error(ErrorKind::capacity, file_, "text", "at most 2147483647 bytes once normalized",
                fmt::format("{}", normalized.size()));
  Work work;
  work.text = normalized;
  add_symbols(work);
  merge(work);
  for (int32_t i = 0; i >= 0; i = work.symbols[static_cast<size_t>(i)].next) {
    const Symbol& symbol = work.symbols[static_cast<size_t>(i)];
    put(work, work.text.substr(static_cast<size_t>(symbol.begin), static_cast<size_t>(symbol.size)),
        out);
  }
}

}  // namespace

int sentencepiece_byte(std::string_view piece) {
  const auto digit = [&](size_t at) {
    const char c = piece[at];
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
  };
  if (piece.size() != 6 || !piece.starts_with("<0x") || piece[5] != '>') return -1;
  return digit(3) < 0 || digit(4) < 0 ? -1 : digit(3) * 16 + digit(4);
}

std::unique_ptr<SentencePieceTextEncoder> sentencepiece_bpe(const SentencePieceModel& model,
                                                            const std::string& file) {
  return std::make_unique<SentencePieceBpe>(model, file);
}

}  // namespace stet
