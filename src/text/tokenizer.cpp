// Implements Tokenizer: combines its files, and adds the ids around a text.
#include "stet/text/tokenizer.hpp"
#include "stet/base/limits.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "src/text/encoder.hpp"
#include "src/text/tokenizer_config.hpp"
#include "src/text/tokenizer_files.hpp"
#include "stet/base/digest.hpp"
#include "stet/base/error.hpp"
#include "stet/text/utf8.hpp"

namespace stet {

void add_token(TokenizerParts& parts, const AddedToken& token, const std::string& file,
               const std::string& field) {
  const auto fail = [&](const std::string& expected, const std::string& found) {
    throw Error(ErrorKind::format, file, field, expected, found);
  };
  if (token.text.empty() || token.text.size() > 4096) {
    fail("a token of 1..4096 bytes", fmt::format("{}", token.text.size()));
  }
  if (!utf8_valid(token.text)) fail("UTF-8", token.text);
  const int32_t known = parts.vocabulary.find(token.text);
  if (known >= 0 && known != token.id) {
    fail(fmt::format("id {} of {} as in the vocabulary", known, token.text),
         fmt::format("{}", token.id));
  }
  const auto limit = static_cast<int64_t>(parts.vocabulary.count() * 2 + 4096);
  if (token.id >= limit)
    fail(fmt::format("an id in 0..{}", limit - 1), fmt::format("{}", token.id));
  if (known < 0 && !parts.vocabulary.add(token.text, token.id)) {
    fail("an id of its own",
         fmt::format("{}, that of {}", token.id, parts.vocabulary.piece(token.id)));
  }
  if (!parts.added_index.try_emplace(token.id, parts.added.size()).second)
    fail("each added token once", token.text + " twice");
  parts.added.push_back(token);
  parts.added_bytes += token.text.size();
  if (parts.added.size() > kMaxAddedTokens || parts.added_bytes > kMaxAddedBytes) {
    fail(fmt::format("at most {} added tokens of {} bytes", kMaxAddedTokens, kMaxAddedBytes),
         "more");
  }
}

struct Tokenizer::Impl {
  Files files;
  std::optional<Error> foreign;  // reason not to put them into a snapshot
  Vocabulary vocabulary;
  std::vector<bool> special;  // index: id
  AddedTokenFinder finder;    // searches tokens in the raw text
  std::unique_ptr<Encoder> encoder;
  TokenDecoder decoder;
  std::vector<int32_t> before, after;
  std::optional<int32_t> bos, eos;
  std::string chat_template, fingerprint;
  std::map<std::string, std::string, std::less<>> named_templates, template_places;
  std::vector<std::pair<std::string, std::string>> special_tokens;

  // Throws an argument Error for an id outside the vocabulary.
  void check(int32_t id) const {
    if (id >= 0 && id < vocabulary.size()) return;
    throw Error(ErrorKind::argument, "", "token id", fmt::format("0..{}", vocabulary.size() - 1),
                fmt::format("{}", id));
  }
};

namespace {

// Reserves tokens that appear in a chat template, except white space. So user text cannot open a
// turn, even if the checkpoint does not call the token special.
void mark_reserved(const std::string& templates, std::vector<AddedToken>& added) {
  for (AddedToken& token : added) {
    const bool visible = token.text.find_first_not_of(" \t\r\n") != std::string::npos;
    token.reserved = token.special || (visible && templates.find(token.text) != std::string::npos);
  }
}

std::optional<int32_t> named_token(const TokenizerConfig& config, const std::string& text,
                                   const char* field, int32_t otherwise,
                                   const Vocabulary& vocabulary) {
  if (text.empty())
    return config.present || otherwise < 0 ? std::nullopt : std::optional(otherwise);
  const int32_t id = vocabulary.find(text);
  if (id < 0) throw Error(ErrorKind::format, config.file, field, "a token of the vocabulary", text);
  return id;
}

// Sets bos and eos. The config's add_bos_token and add_eos_token override the vocabulary file.
void apply_bos_and_eos(const TokenizerConfig& config, const TokenizerParts& parts,
                       Tokenizer::Impl& impl) {
  impl.before = parts.before;
  impl.after = parts.after;
  std::optional<bool> add_bos = config.add_bos;
  if (!add_bos && parts.adds_bos) {
    const std::string& name = config.tokenizer_class;
    add_bos = !config.present || name.starts_with("Llama") || name.starts_with("Gemma");
  }
  const bool has_bos = impl.bos && !impl.before.empty() && impl.before.front() == *impl.bos;
  const bool has_eos = impl.eos && !impl.after.empty() && impl.after.back() == *impl.eos;
  if (add_bos && impl.bos && *add_bos != has_bos) {
    if (has_bos)
      impl.before.erase(impl.before.begin());
    else
      impl.before.insert(impl.before.begin(), *impl.bos);
  }
  if (config.add_eos && impl.eos && *config.add_eos != has_eos) {
    if (has_eos)
      impl.after.pop_back();
    else
      impl.after.push_back(*impl.eos);
  }
}

void put_le(std::string& out, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out.push_back(static_cast<char>(value >> (8 * i) & 0xFF));
}

std::string fingerprint_of(const TokenizerParts& parts, const Tokenizer::Impl& impl) {
  std::string all;
  const auto put = [&](std::string_view part) {
    put_le(all, part.size(), 8);
    all += part;
  };
  put(parts.kind);
  for (int32_t id = 0; id < impl.vocabulary.size(); ++id) put(impl.vocabulary.piece(id));
  std::string table;
  for (const int32_t word : parts.table) put_le(table, static_cast<uint32_t>(word), 4);
  put(table);
  std::vector<const AddedToken*> added;
  for (const AddedToken& token : parts.added) added.push_back(&token);
  std::sort(added.begin(), added.end(), [](const auto* a, const auto* b) { return a->id < b->id; });
  for (const AddedToken* token : added) {
    std::string line;
    put_le(line, static_cast<uint32_t>(token->id), 4);
    for (const bool flag :
         {token->single_word, token->lstrip, token->rstrip, token->normalized, token->special}) {
      line.push_back(flag ? 1 : 0);
    }
    put(line + token->text);
  }
  nlohmann::json settings = parts.settings;
  settings["before"] = impl.before;
  settings["after"] = impl.after;
  settings["bos"] = impl.bos.value_or(-1);
  settings["eos"] = impl.eos.value_or(-1);
  put(settings.dump());
  put(impl.chat_template);
  return digest_text(digest_of(std::as_bytes(std::span(all))));
}

}  // namespace

std::shared_ptr<const Tokenizer> Tokenizer::load(const FileSource& source) {
  Files files = read_tokenizer_files(source);
  if (files.empty() || !is_vocabulary_file(files.front().first)) throw_no_vocabulary(source);
  std::shared_ptr<const Tokenizer> tokenizer =
      load_from_files(std::move(files), source.path_of(""));
  try {
    for (const std::string& name : files_of(source)) source.check_own(name);
  } catch (const Error& e) {
    tokenizer->impl_->foreign = e;
  }
  return tokenizer;
}

void Tokenizer::check_own_files() const {
  if (impl_->foreign) throw *impl_->foreign;
}

std::shared_ptr<const Tokenizer> Tokenizer::load_from_files(Files files, const std::string& where) {
  const std::string whole = where.ends_with(": ") ? where.substr(0, where.size() - 2) : where;
  auto impl = std::make_unique<Impl>();
  TokenizerConfig config = read_tokenizer_config(files, where);
  TokenizerParts parts;
  if (const std::string* bytes = find_file(files, "tokenizer.json")) {
    parts = parse_bpe_tokenizer(*bytes, where + "tokenizer.json");
  } else if (const std::string* model = find_file(files, "tokenizer.model")) {
    parts = parse_sentencepiece_tokenizer(*model, where + "tokenizer.model",
                                          config.legacy.value_or(true));
  } else if (find_file(files, "vocab.json") && find_file(files, "merges.txt")) {
    parts = parse_bpe_tokenizer(tokenizer_json_of_merges(files, where, config),
                                where + "vocab.json and merges.txt");
  } else if (const std::string* fault = find_file(files, kTokenizerFault)) {
    throw_tokenizer_fault(*fault, where + kTokenizerFault);
  } else {
    throw Error(ErrorKind::io, whole, "", "tokenizer.json or tokenizer.model", "neither");
  }
  add_config_tokens(config, parts);
  std::string templates = config.chat_template;
  for (const auto& [name, source] : config.named_templates) templates += source;
  if (templates.size() > kMaxTemplates) {
    throw Error(ErrorKind::format, config.template_places[""], "",
                fmt::format("at most {} bytes", kMaxTemplates),
                fmt::format("{}", templates.size()));
  }
  mark_reserved(templates, parts.added);

  impl->bos = named_token(config, config.bos, "bos_token", parts.bos, parts.vocabulary);
  impl->eos = named_token(config, config.eos, "eos_token", parts.eos, parts.vocabulary);
  apply_bos_and_eos(config, parts, *impl);
  if (std::max(impl->before.size(), impl->after.size()) > kMaxSurrounding) {
    throw Error(ErrorKind::format, whole, "post_processor",
                fmt::format("at most {} tokens around a text", kMaxSurrounding), "more");
  }
  impl->special.assign(static_cast<size_t>(parts.vocabulary.size()), false);
  for (const AddedToken& token : parts.added) {
    if (token.special) impl->special[static_cast<size_t>(token.id)] = true;
    if (!token.normalized || parts.kind != "bpe") impl->finder.add(token, token.text, whole);
  }
  impl->finder.build();
  parts.encoder->set_added(parts.added, parts.vocabulary.size());
  impl->vocabulary = std::move(parts.vocabulary);
  impl->chat_template = std::move(config.chat_template);
  impl->template_places = std::move(config.template_places);
  impl->named_templates = std::move(config.named_templates);
  impl->special_tokens = std::move(config.special);
  if (!config.present && impl->special_tokens.empty()) {
    if (impl->bos)
      impl->special_tokens.emplace_back("bos_token", impl->vocabulary.piece(*impl->bos));
    if (impl->eos)
      impl->special_tokens.emplace_back("eos_token", impl->vocabulary.piece(*impl->eos));
  }
  impl->fingerprint = fingerprint_of(parts, *impl);
  impl->encoder = std::move(parts.encoder);
  impl->decoder = std::move(parts.decoder);
  impl->files = std::move(files);
  return std::make_shared<const Tokenizer>(std::move(impl));
}

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

const Tokenizer::Files& Tokenizer::files() const { return impl_->files; }
int32_t Tokenizer::size() const { return impl_->vocabulary.size(); }
std::optional<int32_t> Tokenizer::bos() const { return impl_->bos; }
std::optional<int32_t> Tokenizer::eos() const { return impl_->eos; }
std::string_view Tokenizer::chat_template(std::string_view name) const {
  if (name.empty()) return impl_->chat_template;
  const auto found = impl_->named_templates.find(name);
  return found == impl_->named_templates.end() ? std::string_view() : found->second;
}
std::string Tokenizer::chat_template_place(std::string_view name) const {
  const auto found = impl_->template_places.find(name);
  return found == impl_->template_places.end() ? "" : found->second;
}
const std::vector<std::pair<std::string, std::string>>& Tokenizer::special_tokens() const {
  return impl_->special_tokens;
}
std::string Tokenizer::fingerprint() const { return impl_->fingerprint; }

std::optional<int32_t> Tokenizer::find_id(std::string_view piece) const {
  const int32_t id = impl_->vocabulary.find(piece);
  return id < 0 ? std::nullopt : std::optional(id);
}

std::string Tokenizer::piece(int32_t id) const {
  impl_->check(id);
  return std::string(impl_->vocabulary.piece(id));
}

std::string Tokenizer::bytes(int32_t id) const {
  impl_->check(id);
  return impl_->vocabulary.has(id) ? impl_->decoder.bytes_of(impl_->vocabulary.piece(id)) : "";
}

bool Tokenizer::is_special(int32_t id) const {
  return id >= 0 && id < size() && impl_->special[static_cast<size_t>(id)];
}

namespace {

// Replaces invalid UTF-8 in each range separately, so that no range absorbs bytes of its neighbour.
std::string replace_invalid(std::string_view text, std::vector<TextRange>& plain) {
  std::string replaced;
  size_t done = 0;
  const auto take = [&](size_t end) {
    replaced += utf8_lossy(text.substr(done, end - done));
    done = end;
    return replaced.size();
  };
  for (TextRange& range : plain) {
    const size_t begin = take(range.begin);
    range = {begin, take(range.end)};
  }
  take(text.size());
  return replaced;
}

}  // namespace

std::vector<int32_t> Tokenizer::encode(std::string_view text, Bos bos, bool special_in_text) const {
  const TextRange whole{0, text.size()};
  return encode(text, bos, std::span(&whole, special_in_text ? 0 : 1));
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, Bos bos,
                                       std::span<const TextRange> plain_text,
                                       bool continued) const {
  std::vector<TextRange> plain(plain_text.begin(), plain_text.end());
  size_t end = 0;
  for (const TextRange& range : plain) {
    if (range.begin < end || range.end < range.begin || range.end > text.size()) {
      throw Error(ErrorKind::argument, "", "plain", "ranges of the text, in order",
                  range_text(static_cast<int64_t>(range.begin), static_cast<int64_t>(range.end)));
    }
    end = range.end;
  }
  std::string replaced;
  if (!utf8_valid(text)) {
    replaced = replace_invalid(text, plain);
    text = replaced;
  }
  std::vector<int32_t> ids;
  if (bos != Bos::off) {
    ids = impl_->before;
    if (bos == Bos::on) {
      if (!impl_->bos)
        throw Error(ErrorKind::argument, "", "bos", "",
                    "the tokenizer has no bos token; leave it out");
      if (ids.empty() || ids.front() != *impl_->bos) ids.insert(ids.begin(), *impl_->bos);
    }
  }
  std::vector<Segment> segments;
  impl_->finder.split({text, -1, !continued, false}, plain, segments);
  const size_t own = ids.size();  // index of the text's first id
  impl_->encoder->encode(segments, ids);
  const bool twice = bos == Bos::automatic && impl_->bos && own > 0 && own < ids.size() &&
                     ids[own - 1] == *impl_->bos && ids[own] == *impl_->bos;
  if (twice) ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(own));
  if (bos != Bos::off) ids.insert(ids.end(), impl_->after.begin(), impl_->after.end());
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  TextStream stream(*this, skip_special);
  std::string text;
  for (const int32_t id : ids) text += stream.push(id);
  return text += stream.finish();
}

TextStream::TextStream(const Tokenizer& tokenizer, bool skip_special)
    : tokenizer_(&tokenizer),
      skip_special_(skip_special),
      stages_(tokenizer.impl_->decoder.begin()) {}

std::string TextStream::push(int32_t id) {
  const Tokenizer::Impl& impl = *tokenizer_->impl_;
  impl.check(id);
  std::string text;
  if (!impl.vocabulary.has(id) || (skip_special_ && tokenizer_->is_special(id))) return text;
  impl.decoder.push(impl.vocabulary.piece(id), stages_, text);
  return text;
}

std::string TextStream::finish() {
  std::string text;
  tokenizer_->impl_->decoder.finish(stages_, text);
  return text;
}

std::string TextStream::pending() const {
  std::string bytes;
  for (const Stage& stage : stages_) bytes += stage.held;
  return bytes;
}

// Returns for each stage: count (4 bytes), length of held (4 bytes), held. Little-endian.
std::string TextStream::state() const {
  std::string out;
  for (const Stage& stage : stages_) {
    put_le(out, stage.count, 4);
    put_le(out, stage.held.size(), 4);
    out += stage.held;
  }
  return out;
}

void TextStream::restore(std::string_view state) {
  std::vector<Stage> stages(stages_.size());
  const auto fail = [](const char* found) {
    throw Error(ErrorKind::format, "", "text stream", "the state of one with this decoder", found);
  };
  const auto take = [&](size_t size) {
    if (state.size() < size) fail("too few bytes");
    const std::string_view part = state.substr(0, size);
    state.remove_prefix(size);
    return part;
  };
  const auto number = [&] {
    uint32_t value = 0;
    const std::string_view bytes = take(4);
    for (size_t i = 4; i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
    return value;
  };
  for (Stage& stage : stages) {
    stage.count = number();
    stage.held = take(number());
  }
  if (!state.empty()) fail("too many bytes");
  stages_ = std::move(stages);
}

}  // namespace stet
