// Reads a tokenizer.json with a BPE model.
#include <fmt/format.h>

#include <algorithm>

#include "src/text/bpe.hpp"
#include "src/text/byte_alphabet.hpp"
#include "src/text/encoder.hpp"
#include "src/text/normalize.hpp"
#include "src/text/pretokenize.hpp"
#include "src/text/text_budget.hpp"
#include "src/text/tokenizer_json.hpp"
#include "stet/base/error.hpp"
#include "stet/text/utf8.hpp"

namespace stet {
namespace {

class BpeEncoder : public Encoder {
 public:
  BpeEncoder(Normalizer normalizer, PreTokenizer pre_tokenizer, Bpe bpe, std::string file)
      : normalizer_(std::move(normalizer)),
        pre_tokenizer_(std::move(pre_tokenizer)),
        bpe_(std::move(bpe)),
        file_(std::move(file)) {}

  void set_added(const std::vector<AddedToken>& added, int32_t size) override {
    barred_.assign(static_cast<size_t>(size), false);
    TextBudget budget(0);
    for (const AddedToken& token : added) {
      if (token.normalized) finder_.add(token, normalizer_.apply(token.text, budget), file_);
      if (token.reserved) barred_[static_cast<size_t>(token.id)] = true;
    }
    finder_.build();
  }

  void encode(const std::vector<Segment>& segments, std::vector<int32_t>& out) const override {
    size_t size = 0;
    for (const Segment& segment : segments) size += segment.text.size();
    Bpe::Memory memory(size);
    TextBudget budget(size);
    std::deque<std::string> made;  // owns words that differ from the input
    std::vector<Segment> parts;
    for (const Segment& segment : segments) {
      parts.clear();
      if (segment.id >= 0) {
        parts.push_back(segment);
      } else {
        Segment text = segment;
        if (!normalizer_.empty())
          text.text = keep(made, normalizer_.apply(text.text, budget), budget);
        const TextRange whole{0, text.text.size()};
        if (finder_.empty())
          parts.push_back(text);
        else
          finder_.split(text, {&whole, text.plain ? size_t{1} : size_t{0}}, parts);
      }
      for (const Segment& part : parts) {
        if (part.id >= 0) {
          out.push_back(part.id);
          continue;
        }
        for (const Word& word : pre_tokenizer_.split({part.text, part.first}, made, budget)) {
          bpe_.encode(word.text, part.plain ? &barred_ : nullptr, memory, out);
        }
      }
    }
  }

 private:
  static std::string_view keep(std::deque<std::string>& made, std::string text,
                               TextBudget& budget) {
    budget.keep(text.size());
    return made.emplace_back(std::move(text));
  }

  Normalizer normalizer_;
  AddedTokenFinder finder_;  // searches tokens in normalized text
  PreTokenizer pre_tokenizer_;
  Bpe bpe_;
  Bpe::Barred barred_;
  std::string file_;
};

void read_vocabulary(const TokenizerJson& json, const std::string& file, Vocabulary& vocabulary) {
  // Allows some holes. An id far outside would cost memory out of proportion to the file.
  const auto limit = static_cast<int64_t>(json.vocab.size() * 2 + 4096);
  for (const std::pair<std::string, int64_t>& entry : json.vocab) {
    const std::string& piece = entry.first;
    const int64_t id = entry.second;
    const auto fail = [&](const std::string& expected, const std::string& found) {
      throw Error(ErrorKind::format, file, "model.vocab." + printable(piece, 60), expected, found);
    };
    if (id < 0 || id >= limit)
      fail(fmt::format("an id in 0..{}", limit - 1), fmt::format("{}", id));
    if (vocabulary.add(piece, static_cast<int32_t>(id))) continue;
    if (vocabulary.find(piece) >= 0) fail("each piece once", "it twice");
    fail("an id of its own",
         fmt::format("{}, that of {}", id, vocabulary.piece(static_cast<int32_t>(id))));
  }
}

// Reads the merges. A result is both sides joined, without the prefix of symbols inside a word.
MergeTable read_merges(const TokenizerJson& json, const std::string& file,
                       const Vocabulary& vocabulary, const std::string& prefix,
                       std::vector<int32_t>& table) {
  MergeTable merges;
  merges.reserve(json.merges.size());
  std::string_view text = json.merge_text;
  int32_t rank = 0;
  for (const auto& [left_size, right_size] : json.merges) {
    const std::string_view left = text.substr(0, left_size),
                           right = text.substr(left_size, right_size);
    text.remove_prefix(size_t{left_size} + right_size);
    const auto find = [&](std::string_view piece) {
      const int32_t id = vocabulary.find(piece);
      if (id >= 0) return id;
      throw Error(ErrorKind::format, file, fmt::format("model.merges[{}]", rank),
                  "pieces of the vocabulary", std::string(piece));
    };
    const std::string_view tail = right.starts_with(prefix) ? right.substr(prefix.size()) : right;
    const MergeTable::Merge merge{find(left), find(right), find(std::string(left) += tail), rank};
    merges.add(merge);
    table.insert(table.end(), {merge.left, merge.right, merge.result});
    ++rank;
  }
  return merges;
}

// Returns the pieces as bytes. Pieces that spell no bytes are left out, since no text produces
// them.
Vocabulary byte_pieces(const Vocabulary& vocabulary) {
  Vocabulary out;
  for (int32_t id = 0; id < vocabulary.size(); ++id) {
    if (!vocabulary.has(id)) continue;
    if (const std::optional<std::string> bytes = bytes_of_piece(vocabulary.piece(id)))
      out.add(*bytes, id);
  }
  return out;
}

BpeOptions read_options(const JsonNode& model, const Vocabulary& vocabulary) {
  BpeOptions options;
  if (const std::optional<JsonNode> dropout = model.find("dropout")) {
    if (!dropout->json().is_number() || dropout->json().get<double>() != 0) {
      dropout->unsupported("null: no dropout");
    }
  }
  options.byte_fallback = model.boolean_or("byte_fallback", false);
  options.fuse_unk = model.boolean_or("fuse_unk", false);
  options.ignore_merges = model.boolean_or("ignore_merges", false);
  options.prefix = model.string_or("continuing_subword_prefix", "");
  options.suffix = model.string_or("end_of_word_suffix", "");
  const std::string unk = model.string_or("unk_token", "");
  if (!unk.empty()) {
    options.unk = vocabulary.find(unk);
    if (options.unk < 0) model.at("unk_token").fail("a piece of the vocabulary");
  }
  return options;
}

void use_bytes(BpeOptions& options, const JsonNode& model) {
  options.bytes = true;
  const auto convert = [&](std::string& text, const char* field) {
    const std::optional<std::string> bytes = bytes_of_piece(text);
    if (!bytes) model.at(field).unsupported("characters of the byte alphabet");
    text = *bytes;
  };
  convert(options.prefix, "continuing_subword_prefix");
  convert(options.suffix, "end_of_word_suffix");
}

AddedToken read_added_token(const JsonNode& node) {
  AddedToken token;
  token.id = static_cast<int32_t>(node.at("id").integer(0, INT32_MAX - 1));
  token.text = node.at("content").string();
  token.single_word = node.boolean_or("single_word", false);
  token.lstrip = node.boolean_or("lstrip", false);
  token.rstrip = node.boolean_or("rstrip", false);
  token.special = node.boolean_or("special", false);
  token.normalized = node.boolean_or("normalized", !token.special);
  return token;
}

// Reads [token, id] of BertProcessing and RobertaProcessing.
int32_t read_named_id(const JsonNode& node, int32_t size) {
  const std::vector<JsonNode> pair = node.elements();
  if (pair.size() != 2) node.fail("a token and its id");
  return static_cast<int32_t>(pair[1].integer(0, size - 1));
}

// Reads the ids around a single text.
void read_post_processor(const JsonNode& node, TokenizerParts& parts) {
  const JsonNode type_node = node.at("type");
  const std::string type = type_node.string();
  const int32_t size = parts.vocabulary.size();
  if (type == "Sequence") {
    for (const JsonNode& part : node.at("processors").elements()) read_post_processor(part, parts);
  } else if (type == "TemplateProcessing") {
    std::vector<int32_t> before, after;
    bool text = false;
    for (const JsonNode& item : node.at("single").elements()) {
      if (item.find("Sequence")) {
        if (text) item.unsupported("the text once");
        text = true;
        continue;
      }
      const JsonNode name = item.at("SpecialToken").at("id");
      const JsonNode special = node.at("special_tokens").at(name.string());
      for (const JsonNode& id : special.at("ids").elements()) {
        (text ? after : before).push_back(static_cast<int32_t>(id.integer(0, size - 1)));
      }
    }
    if (!text) node.at("single").fail("the text, {\"Sequence\": ...}");
    parts.before.insert(parts.before.begin(), before.begin(), before.end());
    parts.after.insert(parts.after.end(), after.begin(), after.end());
  } else if (type == "BertProcessing" || type == "RobertaProcessing") {
    parts.before.insert(parts.before.begin(), read_named_id(node.at("cls"), size));
    parts.after.push_back(read_named_id(node.at("sep"), size));
  } else if (type != "ByteLevel") {  // ByteLevel only adjusts offsets
    type_node.unsupported(
        "a post-processor of Sequence, TemplateProcessing, BertProcessing, RobertaProcessing, "
        "ByteLevel");
  }
}

}  // namespace

TokenizerParts parse_bpe_tokenizer(std::string_view bytes, const std::string& file) {
  TokenizerJson json = parse_tokenizer_json(bytes, file);
  const JsonNode root(json.document, file, "");
  const JsonNode model = root.at("model");
  const std::string type = model.string_or("type", "BPE");
  if (type != "BPE") model.at("type").unsupported("BPE");
  if (!json.has_vocab) throw Error(ErrorKind::format, file, "model.vocab", "an object", "none");
  if (!json.has_merges) throw Error(ErrorKind::format, file, "model.merges", "an array", "none");

  TokenizerParts parts;
  parts.kind = "bpe";
  read_vocabulary(json, file, parts.vocabulary);
  BpeOptions options = read_options(model, parts.vocabulary);
  MergeTable merges = read_merges(json, file, parts.vocabulary, options.prefix, parts.table);

  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  if (const auto node = root.find("normalizer")) normalizer = Normalizer::parse(*node);
  if (const auto node = root.find("pre_tokenizer")) pre_tokenizer = PreTokenizer::parse(*node);
  if (const auto node = root.find("decoder")) parts.decoder = TokenDecoder::parse(*node);
  if (pre_tokenizer.byte_level()) use_bytes(options, model);
  Vocabulary pieces = options.bytes ? byte_pieces(parts.vocabulary) : parts.vocabulary;
  parts.encoder = std::make_unique<BpeEncoder>(
      std::move(normalizer), std::move(pre_tokenizer),
      Bpe(std::move(pieces), std::move(merges), std::move(options)), file);

  if (const auto added = root.find("added_tokens")) {
    for (const JsonNode& node : added->elements())
      add_token(parts, read_added_token(node), file, node.path());
  }
  if (const auto node = root.find("post_processor")) read_post_processor(*node, parts);

  for (const char* name : {"normalizer", "pre_tokenizer", "decoder"}) {
    if (const auto node = root.find(name)) parts.settings[name] = node->json();
  }
  for (const char* name : {"unk_token", "byte_fallback", "fuse_unk", "ignore_merges",
                           "continuing_subword_prefix", "end_of_word_suffix"}) {
    if (const auto node = model.find(name)) parts.settings["model"][name] = node->json();
  }
  return parts;
}

}  // namespace stet
