// Reads tokenizer.model, a sentencepiece model (sentencepiece_model.proto). The sentencepiece
// library encodes with it, or SentencePieceBpe in a build without the library. The library trusts
// its input in places: it would follow an index out of range in a damaged character map. So it gets
// a model that is rewritten from the checked contents.
#include "src/text/encoder.hpp"
#include "src/text/sentencepiece.hpp"
#include "stet/base/error.hpp"
#include "stet/base/limits.hpp"
#include "stet/text/utf8.hpp"

#include <fmt/format.h>
#ifdef STET_HAVE_SENTENCEPIECE
#include <sentencepiece_processor.h>
#endif

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <optional>

namespace stet {
namespace {

using Piece = SentencePiece;
using SpmModel = SentencePieceModel;

// Reads the wire format of protocol buffers.
class Wire {
 public:
  Wire(std::string_view bytes, const std::string& file) : bytes_(bytes), file_(file) {}

  // Reads the next field. Returns false at the end.
  bool next() {
    if (at_ == bytes_.size()) return false;
    const uint64_t tag = varint();
    field_ = tag >> 3;
    kind_ = tag & 7;
    switch (kind_) {
      case 0:
        number_ = varint();
        break;
      case 1:
        data_ = take(8);
        break;
      case 2:
        data_ = take(varint());
        break;
      case 5:
        data_ = take(4);
        break;
      default:
        fail("a protocol buffer", fmt::format("wire type {}", kind_));
    }
    return true;
  }

  uint64_t field() const { return field_; }
  uint64_t number() const { return expect(0), number_; }
  std::string_view data() const { return expect(2), data_; }
  float real() const {
    expect(5);
    uint32_t bits = 0;
    for (int i = 3; i >= 0; --i)
      bits = bits << 8 | static_cast<unsigned char>(data_[static_cast<size_t>(i)]);
    return std::bit_cast<float>(bits);
  }

 private:
  void expect(uint64_t kind) const {
    if (kind_ != kind)
      fail(fmt::format("field {} of wire type {}", field_, kind), fmt::format("{}", kind_));
  }

  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return value;
    }
    fail("a number of at most 10 bytes", "more");
  }

  std::string_view take(uint64_t size) {
    if (size > bytes_.size() - at_) {
      fail(fmt::format("{} more bytes", size), fmt::format("{}", bytes_.size() - at_));
    }
    at_ += size;
    return bytes_.substr(at_ - size, size);
  }

  [[noreturn]] void fail(const std::string& expected, const std::string& found) const {
    throw Error(ErrorKind::format, file_, fmt::format("byte {}", at_), expected, found);
  }

  std::string_view bytes_, data_;
  const std::string& file_;
  size_t at_ = 0;
  uint64_t field_ = 0, kind_ = 0, number_ = 0;
};

void read_trainer(Wire wire, SpmModel& model) {
  while (wire.next()) {
    switch (wire.field()) {
      case 3:
        model.model_type = wire.number();
        break;
      case 24:
        model.whitespace_as_suffix = wire.number() != 0;
        break;
      case 35:
        model.byte_fallback = wire.number() != 0;
        break;
      case 41:
        model.bos_id = static_cast<int32_t>(wire.number());
        break;
      case 42:
        model.eos_id = static_cast<int32_t>(wire.number());
        break;
      default:
        break;  // ignored: training settings
    }
  }
}

void read_normalizer(Wire wire, SpmModel& model) {
  while (wire.next()) {
    switch (wire.field()) {
      case 1:
        model.normalizer_name = wire.data();
        break;
      case 2:
        model.character_map = wire.data();
        break;
      case 3:
        model.add_dummy_prefix = wire.number() != 0;
        break;
      case 4:
        model.remove_extra_whitespaces = wire.number() != 0;
        break;
      case 5:
        model.escape_whitespaces = wire.number() != 0;
        break;
      default:
        break;  // ignored: the character map's source
    }
  }
}

SpmModel read_model(std::string_view bytes, const std::string& file) {
  SpmModel model;
  Wire wire(bytes, file);
  while (wire.next()) {
    if (wire.field() == 1) {
      Piece piece;
      Wire inner(wire.data(), file);
      while (inner.next()) {
        if (inner.field() == 1) piece.text = inner.data();
        if (inner.field() == 2) piece.score = inner.real();
        if (inner.field() == 3) piece.type = inner.number();
      }
      model.pieces.push_back(std::move(piece));
    } else if (wire.field() == 2) {
      read_trainer(Wire(wire.data(), file), model);
    } else if (wire.field() == 3) {
      read_normalizer(Wire(wire.data(), file), model);
    }
  }
  return model;
}

uint32_t word_at(std::string_view bytes, size_t at) {
  uint32_t word = 0;
  for (size_t i = 4; i-- > 0;) word = word << 8 | static_cast<unsigned char>(bytes[at + i]);
  return word;
}

// Checks a character map: the size of a double-array trie, the trie, and zero-terminated
// replacements that its leaves point to. The trie (Darts) has 32-bit units in blocks of 256. No
// step from any unit may leave the array.
bool character_map_is_sound(std::string_view map) {
  if (map.empty()) return true;
  if (map.size() < 4) return false;
  const size_t trie_size = word_at(map, 0);
  if (map.size() > kMaxCharacterMap || trie_size == 0 || trie_size % 1024 != 0 ||
      trie_size >= map.size() - 4)
    return false;
  const std::string_view trie = map.substr(4, trie_size), strings = map.substr(4 + trie_size);
  const size_t units = trie_size / 4;
  if (strings.back() != '\0' || !utf8_valid(strings)) return false;
  for (size_t at = 0; at < strings.size(); at = strings.find('\0', at) + 1) {
    if (strings.find('\0', at) - at > kMaxReplacement) return false;
  }
  for (size_t i = 0; i < units; ++i) {
    const uint32_t unit = word_at(trie, i * 4);
    if (unit >> 31) {  // a leaf
      const size_t value = unit & 0x7FFFFFFF;
      if (value >= strings.size() || (strings[value] & 0xC0) == 0x80) return false;
    } else {
      const size_t offset = static_cast<size_t>(unit >> 10) << ((unit & 0x200) >> 6);
      if (((i ^ offset) | 0xFF) >= units) return false;
      // A unit that claims a value must have a leaf there.
      if ((unit & 0x100) && !(word_at(trie, (i ^ offset) * 4) >> 31)) return false;
    }
  }
  return true;
}

void check_model(const SpmModel& model, const std::string& file) {
  const auto fail = [&](const std::string& field, const std::string& expected,
                        const std::string& found, ErrorKind kind = ErrorKind::format) {
    throw Error(kind, file, field, expected, found);
  };
  if (model.pieces.empty()) fail("pieces", "at least one", "none");
  size_t unknowns = 0, bytes = 0;
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    const Piece& piece = model.pieces[i];
    const std::string field = fmt::format("pieces[{}]", i);
    if (piece.text.empty() || piece.text.size() > 4096 || !utf8_valid(piece.text) ||
        piece.text.find('\0') != std::string::npos) {
      fail(field, "1..4096 bytes of UTF-8 without zeros", piece.text);
    }
    if (!std::isfinite(piece.score) || std::abs(piece.score) > 1e9f) {
      fail(field + ".score", "a number within 1e9", fmt::format("{}", piece.score));
    }
    if (piece.type < kNormal || piece.type > kByte)
      fail(field + ".type", "1..6", fmt::format("{}", piece.type));
    unknowns += piece.type == kUnknown;
    if (piece.type != kByte) continue;
    ++bytes;
    if (sentencepiece_byte(piece.text) < 0)
      fail(field, "<0x00>..<0xFF> for a piece of type BYTE", piece.text);
  }
  if (unknowns != 1) fail("pieces", "one piece of type UNKNOWN", fmt::format("{}", unknowns));
  if (bytes != (model.byte_fallback ? 256 : 0)) {
    fail("pieces", fmt::format("{} pieces of type BYTE", model.byte_fallback ? 256 : 0),
         fmt::format("{}", bytes));
  }
  if (model.model_type != 1 && model.model_type != 2) {
    fail("trainer_spec.model_type", "1 (unigram) or 2 (BPE)", fmt::format("{}", model.model_type),
         ErrorKind::unsupported);
  }
  if (model.whitespace_as_suffix) {
    fail("trainer_spec.treat_whitespace_as_suffix", "false", "true", ErrorKind::unsupported);
  }
  if (!model.escape_whitespaces) {
    fail("normalizer_spec.escape_whitespaces", "true", "false", ErrorKind::unsupported);
  }
  if (!character_map_is_sound(model.character_map)) {
    fail("normalizer_spec.precompiled_charsmap",
         "a trie within its bounds, and replacements within limits", "one that leaves them");
  }
}

#ifdef STET_HAVE_SENTENCEPIECE

// Writes the wire format of protocol buffers.
void put_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>((value & 0x7F) | 0x80));
  out.push_back(static_cast<char>(value));
}
void put_number(std::string& out, uint64_t field, uint64_t value) {
  put_varint(out, field << 3);
  put_varint(out, value);
}
void put_data(std::string& out, uint64_t field, std::string_view data) {
  put_varint(out, field << 3 | 2);
  put_varint(out, data.size());
  out += data;
}
void put_real(std::string& out, uint64_t field, float value) {
  put_varint(out, field << 3 | 5);
  const auto bits = std::bit_cast<uint32_t>(value);
  for (int shift = 0; shift < 32; shift += 8)
    out.push_back(static_cast<char>(bits >> shift & 0xFF));
}

std::string write_model(const SpmModel& model) {
  std::string out, part;
  for (const Piece& piece : model.pieces) {
    part.clear();
    put_data(part, 1, piece.text);
    put_real(part, 2, piece.score);
    put_number(part, 3, piece.type);
    put_data(out, 1, part);
  }
  part.clear();
  put_number(part, 3, model.model_type);
  put_number(part, 35, model.byte_fallback);
  put_data(out, 2, part);
  part.clear();
  put_data(part, 1, model.normalizer_name);
  put_data(part, 2, model.character_map);
  put_number(part, 3, model.add_dummy_prefix);
  put_number(part, 4, model.remove_extra_whitespaces);
  put_number(part, 5, model.escape_whitespaces);
  put_data(out, 3, part);
  return out;
}

class LibraryEncoder : public SentencePieceTextEncoder {
 public:
  LibraryEncoder(const SpmModel& model, std::string file) : file_(std::move(file)) {
    const sentencepiece::util::Status status = library_.LoadFromSerializedProto(write_model(model));
    if (!status.ok())
      throw Error(ErrorKind::format, file_, "", "a sentencepiece model", status.ToString());
    for (const Piece& piece : model.pieces) {
      if (piece.type == kControl) controls_.push_back(piece.text);
    }
  }

  void encode(std::string_view text, std::vector<int32_t>& out) const override {
    std::vector<int> ids;
    const sentencepiece::util::Status status = library_.Encode(text, &ids);
    if (!status.ok()) {
      // The library fails where a control piece alone would encode the text.
      const auto control = std::ranges::find_if(
          controls_, [&](const std::string& c) { return text.find(c) != std::string_view::npos; });
      throw Error(ErrorKind::argument, file_, "text", "text to encode",
                  control == controls_.end() ? status.ToString() : "a control piece: " + *control);
    }
    out.insert(out.end(), ids.begin(), ids.end());
  }

 private:
  sentencepiece::SentencePieceProcessor library_;
  std::vector<std::string> controls_;  // texts of control pieces
  std::string file_;
};

#endif

std::unique_ptr<SentencePieceTextEncoder> encoder_of(const SpmModel& model, const std::string& file,
                                                     [[maybe_unused]] SentencePieceBy by) {
#ifdef STET_HAVE_SENTENCEPIECE
  if (by == SentencePieceBy::library) return std::make_unique<LibraryEncoder>(model, file);
#endif
  return sentencepiece_bpe(model, file);
}

class SpmEncoder : public Encoder {
 public:
  SpmEncoder(SpmModel model, std::string file, bool prefix_every_segment, SentencePieceBy by)
      : model_(std::move(model)),
        file_(std::move(file)),
        by_(by),
        every_segment_(prefix_every_segment) {
    // stet adds the space before the text itself, unless remove_extra_whitespaces would remove it.
    own_prefix_ = model_.add_dummy_prefix && !model_.remove_extra_whitespaces;
    if (own_prefix_) model_.add_dummy_prefix = false;
  }

  // Makes reserved tokens control pieces, since text never becomes one.
  void set_added(const std::vector<AddedToken>& added, int32_t) override {
    const auto count = static_cast<int32_t>(model_.pieces.size());
    for (const AddedToken& token : added) {
      if (!token.reserved || token.id >= count) continue;
      uint64_t& type = model_.pieces[static_cast<size_t>(token.id)].type;
      if (type == kNormal || type == kUserDefined || type == kUnused) type = kControl;
    }
    text_ = encoder_of(model_, file_, by_);
    cuts_.emplace(model_);
    model_ = SpmModel();
  }

  void encode(const std::vector<Segment>& segments, std::vector<int32_t>& out) const override {
    std::string prefixed;
    for (const Segment& segment : segments) {
      if (segment.id >= 0) {
        out.push_back(segment.id);
        continue;
      }
      std::string_view text = segment.text;
      if (own_prefix_ && (every_segment_ || segment.first)) {
        prefixed = " ";
        text = prefixed += text;
      }
      do {
        const size_t size = cuts_->part(text, kPart);
        text_->encode(text.substr(0, size), out);
        text.remove_prefix(size);
      } while (!text.empty());
    }
  }

 private:
  static constexpr size_t kPart = size_t{64} << 10;

  std::unique_ptr<SentencePieceTextEncoder> text_;
  std::optional<SentencePieceCuts> cuts_;
  SpmModel model_;  // needed until both are built
  std::string file_;
  SentencePieceBy by_;
  bool every_segment_, own_prefix_;
};

}  // namespace

SentencePieceModel parse_sentencepiece_model(std::string_view bytes, const std::string& file) {
  SpmModel model = read_model(bytes, file);
  check_model(model, file);
  return model;
}

TokenizerParts parse_sentencepiece_tokenizer(std::string_view bytes, const std::string& file,
                                             bool prefix_every_segment, SentencePieceBy by) {
  SpmModel model = parse_sentencepiece_model(bytes, file);
  TokenizerParts parts;
  parts.kind = "sentencepiece";
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    if (parts.vocabulary.add(model.pieces[i].text, static_cast<int32_t>(i))) continue;
    throw Error(ErrorKind::format, file, fmt::format("pieces[{}]", i), "each piece once",
                model.pieces[i].text + " twice");
  }
  // Control and user-defined pieces are found literally in text. Only control pieces are special.
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    const Piece& piece = model.pieces[i];
    parts.table.push_back(std::bit_cast<int32_t>(piece.score));
    parts.table.push_back(static_cast<int32_t>(piece.type));
    if (piece.type != kControl && piece.type != kUserDefined) continue;
    AddedToken token;
    token.id = static_cast<int32_t>(i);
    token.text = piece.text;
    token.special = piece.type == kControl;
    add_token(parts, token, file, fmt::format("pieces[{}]", i));
  }
  const auto control = [&](int32_t id) {
    const bool named = id >= 0 && id < parts.vocabulary.size() &&
                       model.pieces[static_cast<size_t>(id)].type == kControl;
    return named ? id : -1;
  };
  parts.bos = control(model.bos_id);
  parts.eos = control(model.eos_id);
  parts.adds_bos = parts.bos >= 0;
  parts.decoder = TokenDecoder::sentencepiece(model.add_dummy_prefix);
  parts.settings = {{"model_type", model.model_type},
                    {"byte_fallback", model.byte_fallback},
                    {"add_dummy_prefix", model.add_dummy_prefix},
                    {"remove_extra_whitespaces", model.remove_extra_whitespaces},
                    {"prefix_every_segment", prefix_every_segment}};
  for (const char c : model.character_map) parts.table.push_back(c);
  parts.encoder = std::make_unique<SpmEncoder>(std::move(model), file, prefix_every_segment, by);
  return parts;
}

}  // namespace stet
