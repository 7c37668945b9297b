// Text to token ids and back, as Hugging Face transformers does it for the same checkpoint.
//
// Three kinds of vocabulary file:
//   tokenizer.json   model BPE, byte-level (GPT-2, Llama 3) or with byte fallback (Gemma, Llama 2);
//                    uncommon patterns need PCRE2, Unicode normal forms need utf8proc.
//   tokenizer.model  a sentencepiece model, by the sentencepiece library or, without it, by code of
//                    ours that gives the same ids.
//   vocab.json and merges.txt   byte-level BPE of the classes of GPT-2 and Qwen2.
// Where a directory has several, tokenizer.json is taken (as transformers does). Optional files:
// tokenizer_config.json, added_tokens.json and special_tokens_map.json give bos, eos,
// add_bos_token, add_eos_token and added tokens. The chat template is chat_template.jinja's, else
// the config's, else chat_template.json's; additional_chat_templates/ has others by their names.
//
// Input that is not UTF-8 is read as if each maximal ill-formed subsequence were U+FFFD (the WHATWG
// rule, which Python's errors="replace" follows too).
//
// Sources: GPT-2's byte-to-character table and BPE (Radford et al. 2019; Sennrich et al. 2016); the
// `tokenizers` library for the meaning of each field of tokenizer.json; sentencepiece_model.proto
// for tokenizer.model.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "stet/api.h"
#include "stet/files/file_source.hpp"

namespace stet {

// Bytes begin .. end-1 of a text.
struct TextRange {
  size_t begin = 0, end = 0;
};

// Immutable; any number of threads may use one at once.
class STET_API Tokenizer {
 public:
  // A file by name ("tokenizer.json") and its bytes.
  using Files = std::vector<std::pair<std::string, std::string>>;

  // Whether tokens are put around the text. `automatic`: what the checkpoint asks for (its
  // post-processor and add_bos_token, add_eos_token), which is transformers'
  // add_special_tokens=True, but a text that begins with the bos token, as a rendered chat template
  // does, gets no second one. `on`: what the checkpoint asks for, with a bos first even where it
  // does not ask for one, and whatever the text begins with. `off`: nothing but the text's own
  // tokens.
  enum class Bos { automatic, on, off };

  // Reads the tokenizer of a checkpoint directory. Throws Error: io (no vocabulary file,
  // unreadable), format (says file, field, expected, found), unsupported (a part that this build
  // does not know, by name).
  static std::shared_ptr<const Tokenizer> load(const std::string& directory);
  // The same from wherever the files are.
  static std::shared_ptr<const Tokenizer> load(const FileSource& source);
  // Names of the files that load() reads; none of tokenizer.json and tokenizer.model where there is
  // no tokenizer.
  static std::vector<std::string> files_of(const FileSource& source);

  // The same from bytes, as files() gives them; `where` prefixes file names in errors ("DIR/",
  // "s.stet: TOKENIZER: ").
  static std::shared_ptr<const Tokenizer> load_from_files(Files files,
                                                          const std::string& where = "");

  // What load_from_files needs to build this tokenizer again.
  const Files& files() const;
  // Throws an io Error where one of them is not the own file of the source it was loaded from
  // (FileSource::check_own).
  void check_own_files() const;

  // The token ids of a text. Added tokens found in it ("<start_of_turn>") become their ids. With
  // special_in_text false, those that could pass for the checkpoint's own marks stay ordinary text,
  // and no id of them can come out of it: the special tokens, and the tokens that the chat template
  // writes (white space aside), which some checkpoints do not call special. That is how text of
  // unknown origin should be encoded. Time grows with the length as n log n at most, also for one
  // long word. Throws Error: argument (Bos::on without a bos token), capacity (a pattern ran into
  // PCRE2's limits, a word has 2 GiB).
  std::vector<int32_t> encode(std::string_view text, Bos bos = Bos::automatic,
                              bool special_in_text = true) const;
  // The same where parts of the text alone are of unknown origin, as in a rendered chat template:
  // nothing that touches one of the `plain` ranges becomes a mark. Words go across the edges of
  // ranges as if there were none. `continued`: the text goes on from another, so that no space is
  // put before it. Throws Error: argument for ranges that overlap, are out of order, or beyond the
  // text.
  std::vector<int32_t> encode(std::string_view text, Bos bos, std::span<const TextRange> plain,
                              bool continued = false) const;

  // The text of ids, valid UTF-8, as transformers' decode(ids, skip_special_tokens=skip_special,
  // clean_up_tokenization_spaces=False). Bytes that form no character become U+FFFD; with byte
  // fallback a run of byte tokens that is not UTF-8 as a whole becomes one U+FFFD per byte. Throws
  // Error: argument for an id outside 0..size()-1.
  std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;

  // One more than the highest id, added tokens included. A model may have more rows than that.
  int32_t size() const;

  std::optional<int32_t> bos() const;
  std::optional<int32_t> eos() const;
  // The id of a token by its text as the vocabulary writes it ("\u0120the", "\u2581the", "<bos>").
  std::optional<int32_t> find_id(std::string_view piece) const;
  // The inverse; "" for an id that the vocabulary leaves out. Throws Error: argument for an id out
  // of range.
  std::string piece(int32_t id) const;
  // The bytes that a token stands for in the middle of a text, whether or not they are whole
  // characters; "" for an id that the vocabulary leaves out. Throws Error: argument for an id out
  // of range.
  std::string bytes(int32_t id) const;
  // Left out by skip_special. False for ids out of range.
  bool is_special(int32_t id) const;

  // The Jinja source, or "". With `name`, that of the templates of this name which
  // tokenizer_config.json lists ("tool_use"), or "".
  std::string_view chat_template(std::string_view name = "") const;
  // The named special tokens of tokenizer_config.json and their texts, as chat templates see them:
  // bos_token, eos_token, unk_token, sep_token, pad_token, cls_token, mask_token, further ones of
  // extra_special_tokens; and once for each of its tokens, additional_special_tokens. Without that
  // file: bos_token and eos_token of the vocabulary.
  const std::vector<std::pair<std::string, std::string>>& special_tokens() const;

  // "xxh3:" and 32 hex digits, XXH3-128 over everything that decides ids and text. Each part is
  // hashed as its length (8 bytes, little-endian) and its bytes, in this order: the kind ("bpe" or
  // "sentencepiece"); per id its piece; the merges, or the scores and types of pieces and the bytes
  // of the character map, as little-endian 32-bit words; per added token, by id: id, flags, text;
  // the settings as JSON with sorted keys and no spaces; the chat template. Whitespace, key order
  // and unused fields of the files do not change it.
  std::string fingerprint() const;

  ~Tokenizer();
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);

 private:
  friend class TextStream;
  std::unique_ptr<Impl> impl_;
};

// Text of tokens as they come. What push() and finish() return, put together, equals decode() of
// all the ids, and each of them is valid UTF-8: bytes of an unfinished character wait for the next
// token. (With byte fallback a whole run of byte tokens waits, because decode() judges it as a
// whole.) The tokenizer must outlive the stream.
class STET_API TextStream {
 public:
  TextStream(const Tokenizer& tokenizer, bool skip_special);

  // The text that this id completes, often "". Throws Error: argument for an id out of range;
  // nothing changes then.
  std::string push(int32_t id);
  // What is left at the end; the stream then starts anew.
  std::string finish();

  // Bytes that wait for more: of an unfinished character, or spaces that may yet be stripped.
  std::string pending() const;

  // Everything the stream remembers between tokens, to be kept in a snapshot, and its inverse.
  // restore throws Error: format, and changes nothing, when the bytes are not what state() gave for
  // a tokenizer with the same decoder.
  std::string state() const;
  void restore(std::string_view state);

 private:
  struct Stage {
    std::string held;    // bytes that wait
    uint32_t count = 0;  // tokens or characters seen, as the stage needs
  };
  friend class TokenDecoder;
  const Tokenizer* tokenizer_;
  bool skip_special_;
  std::vector<Stage> stages_;
};

}  // namespace stet
