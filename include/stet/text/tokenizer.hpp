// Converts text to token ids and back, as Hugging Face transformers does for the same checkpoint.
//
// Supported vocabulary files:
//   tokenizer.json   model BPE, byte-level (GPT-2, Llama 3) or with byte fallback (Gemma, Llama 2);
//                    uncommon patterns need PCRE2, Unicode normal forms need utf8proc.
//   tokenizer.model  a sentencepiece model, by the sentencepiece library or, without it, by stet's
//                    own code, which gives the same ids.
//   vocab.json and merges.txt   byte-level BPE of the classes of GPT-2 and Qwen2.
// If a directory has several, tokenizer.json is used, as in transformers. Optional files
// tokenizer_config.json, added_tokens.json and special_tokens_map.json provide bos, eos,
// add_bos_token, add_eos_token and added tokens. The chat template comes from chat_template.jinja,
// otherwise from the config, otherwise from chat_template.json. additional_chat_templates/ has
// further ones by name.
//
// In input that is not UTF-8, each maximal ill-formed subsequence counts as U+FFFD (the WHATWG
// rule, also that of Python's errors="replace").
//
// Sources: GPT-2's byte-to-character table and BPE (Radford et al. 2019; Sennrich et al. 2016); the
// `tokenizers` library for the fields of tokenizer.json; sentencepiece_model.proto for
// tokenizer.model.
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

// A tokenizer. Immutable: any number of threads may use one at once.
class STET_API Tokenizer {
 public:
  // Files as pairs of name ("tokenizer.json") and content.
  using Files = std::vector<std::pair<std::string, std::string>>;

  // The special tokens that are added around the text.
  //   automatic  as the checkpoint asks (its post-processor and add_bos_token, add_eos_token), like
  //              transformers' add_special_tokens=True; but a text that begins with the bos token,
  //              as a rendered chat template does, gets no second one
  //   on         as the checkpoint asks, but always with a bos first
  //   off        none
  enum class Bos { automatic, on, off };

  // Loads the tokenizer of a checkpoint directory. Throws an io Error if there is no vocabulary
  // file or it is unreadable. Throws a format Error for invalid files, and an unsupported Error
  // that names a part which this build does not support.
  static std::shared_ptr<const Tokenizer> load(const std::string& directory);
  // Loads a tokenizer from any source of files.
  static std::shared_ptr<const Tokenizer> load(const FileSource& source);
  // Returns the names of the files that load() reads. Without a tokenizer, these include neither
  // tokenizer.json nor tokenizer.model.
  static std::vector<std::string> files_of(const FileSource& source);

  // Loads a tokenizer from files() of another. `where` precedes file names in errors ("DIR/",
  // "s.stet: TOKENIZER: ").
  static std::shared_ptr<const Tokenizer> load_from_files(Files files,
                                                          const std::string& where = "");

  // Returns the files from which load_from_files() rebuilds this tokenizer.
  const Files& files() const;
  // Throws an io Error if a file does not belong to the source that it was loaded from
  // (FileSource::check_own).
  void check_own_files() const;

  // Returns the token ids of a text. Added tokens in it ("<start_of_turn>") become their ids.
  //
  // If special_in_text is false, text that looks like the checkpoint's control tokens stays
  // ordinary text. No id of a special token can then result. The same holds for tokens that the
  // chat template writes (white space aside), which some checkpoints do not call special. Use this
  // for untrusted text.
  //
  // Time grows at most as n log n, also for one long word. Throws an argument Error for Bos::on
  // without a bos token. Throws a capacity Error if a pattern exceeds PCRE2's limits or a word has
  // 2 GiB.
  std::vector<int32_t> encode(std::string_view text, Bos bos = Bos::automatic,
                              bool special_in_text = true) const;
  // Encodes a text of which only some ranges are untrusted, as in a rendered chat template. Text
  // that touches one of the `plain` ranges becomes no control token. Range boundaries do not split
  // words. `continued` says that the text continues another, so no space is put before it. Throws
  // an argument Error for ranges that overlap, are unordered, or exceed the text.
  std::vector<int32_t> encode(std::string_view text, Bos bos, std::span<const TextRange> plain,
                              bool continued = false) const;

  // Returns the text of ids as valid UTF-8, like transformers' decode(ids,
  // skip_special_tokens=skip_special, clean_up_tokenization_spaces=False). Bytes that form no
  // character become U+FFFD. With byte fallback, a run of byte tokens that is not valid UTF-8 as a
  // whole becomes one U+FFFD per byte. Throws an argument Error for an id outside 0..size()-1.
  std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;

  // Returns the highest id plus one, including added tokens. A model may have more rows.
  int32_t size() const;

  std::optional<int32_t> bos() const;
  std::optional<int32_t> eos() const;
  // Returns the id of a token as written in the vocabulary ("\u0120the", "\u2581the", "<bos>").
  std::optional<int32_t> find_id(std::string_view piece) const;
  // Returns a token as written in the vocabulary; "" for an unused id. Throws an argument Error for
  // an id out of range.
  std::string piece(int32_t id) const;
  // Returns the bytes of a token within a text, which may be incomplete characters; "" for an
  // unused id. Throws an argument Error for an id out of range.
  std::string bytes(int32_t id) const;
  // Returns true if skip_special leaves the token out. False for ids out of range.
  bool is_special(int32_t id) const;

  // Returns the Jinja source of the chat template, or "". With `name`, returns the template of that
  // name in tokenizer_config.json ("tool_use"), or "".
  std::string_view chat_template(std::string_view name = "") const;
  // Returns where this chat template stands, for errors, or "": its file, followed by the field or
  // key unless the file has nothing else ("tokenizer_config.json: chat_template").
  std::string chat_template_place(std::string_view name = "") const;
  // Returns the named special tokens of tokenizer_config.json, as chat templates see them:
  // bos_token, eos_token, unk_token, sep_token, pad_token, cls_token, mask_token and those in
  // extra_special_tokens. additional_special_tokens occurs once for each of its tokens. Without
  // that file: bos_token and eos_token of the vocabulary.
  const std::vector<std::pair<std::string, std::string>>& special_tokens() const;

  // Returns "xxh3:" and 32 hex digits: XXH3-128 over everything that determines ids and text. Each
  // part is hashed as its length (8 bytes, little-endian) and its bytes, in this order:
  //   the kind ("bpe" or "sentencepiece"); per id its piece
  //   the merges, or the scores and types of pieces and the bytes of the character map, as
  //     little-endian 32-bit words
  //   per added token, by id: id, flags, text
  //   the settings as JSON with sorted keys and no spaces; the chat template
  // Whitespace, key order and unused fields of the files do not change it.
  std::string fingerprint() const;

  ~Tokenizer();
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);

 private:
  friend class TextStream;
  std::unique_ptr<Impl> impl_;
};

// Decodes tokens one by one. The concatenated results of push() and finish() equal decode() of all
// ids. Each result is valid UTF-8: bytes of an unfinished character wait for the next token. With
// byte fallback a whole run of byte tokens waits, because decode() judges it as a whole. The
// tokenizer must outlive the stream.
class STET_API TextStream {
 public:
  TextStream(const Tokenizer& tokenizer, bool skip_special);

  // Returns the text that this id completes, often "". Throws an argument Error, and changes
  // nothing, for an id out of range.
  std::string push(int32_t id);
  // Returns the remaining text. The stream then starts again.
  std::string finish();

  // Returns the bytes that wait for more: of an unfinished character, or spaces that may be
  // stripped.
  std::string pending() const;

  // Save and restore the stream's complete state, for snapshots. restore() throws a format Error,
  // and changes nothing, unless state() of a tokenizer with the same decoder gave these bytes.
  std::string state() const;
  void restore(std::string_view state);

 private:
  struct Stage {
    std::string held;    // waiting bytes
    uint32_t count = 0;  // tokens or characters seen; depends on the stage
  };
  friend class TokenDecoder;
  const Tokenizer* tokenizer_;
  bool skip_special_;
  std::vector<Stage> stages_;
};

}  // namespace stet
