// C interface: tokenizers.
#include "src/c/internal.hpp"
#include "stet/checkpoint/gguf.hpp"
#include "stet/generate/score.hpp"

struct stet_text_stream {
  std::shared_ptr<const stet::Tokenizer> tokenizer;
  stet::TextStream stream;
  std::string text;  // the text last returned
};

namespace stet::c {

stet_tokenizer* new_tokenizer(std::shared_ptr<const Tokenizer> tokenizer) {
  std::string fingerprint = tokenizer->fingerprint();
  return new stet_tokenizer{std::move(tokenizer), std::move(fingerprint)};
}

const Tokenizer* optional_tokenizer(const stet_tokenizer* tokenizer, const Session& session) {
  if (tokenizer == nullptr) return nullptr;
  check_tokenizer(session.model(), *tokenizer->tokenizer);
  return tokenizer->tokenizer.get();
}

namespace {

Tokenizer::Bos bos_of(const stet_encode_options& o) {
  const bool on = (o.flags & STET_ENCODE_BOS) != 0, off = (o.flags & STET_ENCODE_NO_BOS) != 0;
  if (on && off)
    fail("options.flags", "", "STET_ENCODE_BOS and STET_ENCODE_NO_BOS exclude each other");
  return on ? Tokenizer::Bos::on : off ? Tokenizer::Bos::off : Tokenizer::Bos::automatic;
}

std::vector<int32_t> encode(const Tokenizer& tokenizer, std::string_view text,
                            const stet_encode_options& o) {
  check_flags(o.flags,
              STET_ENCODE_BOS | STET_ENCODE_NO_BOS | STET_ENCODE_PLAIN | STET_ENCODE_CONTINUED,
              "options");
  const Tokenizer::Bos bos = bos_of(o);
  const bool all_plain = (o.flags & STET_ENCODE_PLAIN) != 0,
             continued = (o.flags & STET_ENCODE_CONTINUED) != 0;
  if (all_plain && o.plain_count > 0)
    fail("options.plain", "", "STET_ENCODE_PLAIN makes all text plain: pass no ranges with it");
  if (o.plain_count == 0 && !continued) return tokenizer.encode(text, bos, !all_plain);
  std::vector<TextRange> plain;
  if (all_plain && !text.empty()) plain.push_back({0, text.size()});
  for (const stet_range& range : items(o.plain, o.plain_count, "options.plain"))
    plain.push_back({range.begin, range.end});
  return tokenizer.encode(text, bos, plain, continued);
}

}  // namespace
}  // namespace stet::c

using namespace stet::c;

stet_status stet_tokenizer_load(const char* directory, stet_tokenizer** tokenizer,
                                stet_error** error) {
  return guarded(error, [&] {
    stet_tokenizer*& to = output(tokenizer, "tokenizer");
    to = new_tokenizer(stet::Tokenizer::load(std::string(cstring(directory, "directory"))));
  });
}

stet_status stet_tokenizer_load_pre(const char* file, const char* pre_tokenizer,
                                    stet_tokenizer** tokenizer, stet_error** error) {
  return guarded(error, [&] {
    stet_tokenizer*& to = output(tokenizer, "tokenizer");
    const std::string path = cstring(file, "file"), pre = cstring(pre_tokenizer, "pre_tokenizer");
    if (pre.empty()) fail("pre_tokenizer", "the name of a pre-tokenizer", "an empty text");
    to = new_tokenizer(stet::Tokenizer::load(*stet::checkpoint_source(path, true, pre)));
  });
}

stet_status stet_tokenizer_load_files(const stet_file* files, size_t count, const char* name,
                                      stet_tokenizer** tokenizer, stet_error** error) {
  return guarded(error, [&] {
    stet_tokenizer*& to = output(tokenizer, "tokenizer");
    const auto source = lent_files(items(files, count, "files"), cstring(name, "name"), nullptr);
    to = new_tokenizer(stet::Tokenizer::load(*source));
  });
}

void stet_tokenizer_free(stet_tokenizer* tokenizer) { delete tokenizer; }

stet_status stet_tokenizer_get_info(const stet_tokenizer* tokenizer, stet_tokenizer_info* info,
                                    stet_error** error) {
  return guarded(error, [&] {
    stet_tokenizer_info& to = checked(info, "info");
    const stet_tokenizer& t = at(tokenizer, "tokenizer");
    stet_tokenizer_info i{};
    i.fingerprint = t.fingerprint.c_str();
    i.size = t.tokenizer->size();
    i.bos = t.tokenizer->bos().value_or(-1);
    i.eos = t.tokenizer->eos().value_or(-1);
    i.special_count = t.tokenizer->special_tokens().size();
    give(i, to);
  });
}

stet_status stet_tokenizer_encode(const stet_tokenizer* tokenizer, const char* text, size_t size,
                                  const stet_encode_options* options, int32_t** ids, size_t* count,
                                  stet_error** error) {
  return guarded(error, [&] {
    const auto to = outputs(ids, "ids", count, "count");
    const stet::Tokenizer& t = *at(tokenizer, "tokenizer").tokenizer;
    const std::vector<int32_t> found =
        encode(t, text_of(text, size, "text"), input(options, "options"));
    give_items<int32_t>(found, to);
  });
}

stet_status stet_tokenizer_encode_pair(const stet_tokenizer* tokenizer, const char* context,
                                       size_t context_size, const char* continuation,
                                       size_t continuation_size, const stet_encode_options* options,
                                       int32_t** ids, size_t* count, size_t* begin,
                                       stet_error** error) {
  return guarded(error, [&] {
    const auto to = outputs(ids, "ids", count, "count");
    size_t& from = output(begin, "begin");
    const stet_encode_options o = input(options, "options");
    check_flags(o.flags, STET_ENCODE_BOS | STET_ENCODE_NO_BOS | STET_ENCODE_PLAIN, "options");
    if (o.plain_count > 0) fail("options.plain", "none", std::to_string(o.plain_count));
    const stet::ScoreRequest pair = stet::encode_pair(
        *at(tokenizer, "tokenizer").tokenizer, text_of(context, context_size, "context"),
        text_of(continuation, continuation_size, "continuation"), bos_of(o),
        (o.flags & STET_ENCODE_PLAIN) == 0);
    give_items<int32_t>(pair.ids, to);
    from = pair.begin;
  });
}

stet_status stet_tokenizer_decode(const stet_tokenizer* tokenizer, const int32_t* ids, size_t count,
                                  int32_t skip_special, char** out, size_t* out_size,
                                  stet_error** error) {
  return guarded(error, [&] {
    const auto to = outputs(out, "out", out_size, "out_size");
    const stet::Tokenizer& t = *at(tokenizer, "tokenizer").tokenizer;
    give_text(t.decode(items(ids, count, "ids"), skip_special != 0), to);
  });
}

stet_status stet_tokenizer_id(const stet_tokenizer* tokenizer, const char* piece, size_t size,
                              int32_t* id, stet_error** error) {
  return guarded(error, [&] {
    int32_t& to = output(id, "id");
    const stet::Tokenizer& t = *at(tokenizer, "tokenizer").tokenizer;
    to = t.find_id(text_of(piece, size, "piece")).value_or(-1);
  });
}

stet_status stet_tokenizer_piece(const stet_tokenizer* tokenizer, int32_t id, char** out,
                                 size_t* out_size, stet_error** error) {
  return guarded(error, [&] {
    const auto to = outputs(out, "out", out_size, "out_size");
    give_text(at(tokenizer, "tokenizer").tokenizer->piece(id), to);
  });
}

stet_status stet_tokenizer_is_special(const stet_tokenizer* tokenizer, int32_t id, int32_t* special,
                                      stet_error** error) {
  return guarded(error, [&] {
    int32_t& to = output(special, "special");
    to = at(tokenizer, "tokenizer").tokenizer->is_special(id) ? 1 : 0;
  });
}

stet_status stet_tokenizer_special_token(const stet_tokenizer* tokenizer, size_t index,
                                         stet_text* name, stet_text* text, stet_error** error) {
  return guarded(error, [&] {
    const auto to = outputs(name, "name", text, "text");
    const auto& found =
        element(at(tokenizer, "tokenizer").tokenizer->special_tokens(), index, "index");
    to.first = view(found.first);
    to.second = view(found.second);
  });
}

stet_status stet_tokenizer_chat_template(const stet_tokenizer* tokenizer, const char* name,
                                         stet_text* source, stet_error** error) {
  return guarded(error, [&] {
    stet_text& to = output(source, "source");
    to = view(at(tokenizer, "tokenizer").tokenizer->chat_template(string_or_empty(name)));
  });
}

// ---------------------------------------------------------------- text streams

stet_status stet_text_stream_new(const stet_tokenizer* tokenizer, int32_t skip_special,
                                 stet_text_stream** stream, stet_error** error) {
  return guarded(error, [&] {
    stet_text_stream*& to = output(stream, "stream");
    const std::shared_ptr<const stet::Tokenizer>& t = at(tokenizer, "tokenizer").tokenizer;
    to = new stet_text_stream{t, stet::TextStream(*t, skip_special != 0), ""};
  });
}

void stet_text_stream_free(stet_text_stream* stream) { delete stream; }

stet_status stet_text_stream_push(stet_text_stream* stream, int32_t id, stet_text* text,
                                  stet_error** error) {
  return guarded(error, [&] {
    stet_text& to = output(text, "text");
    stet_text_stream& s = at(stream, "stream");
    s.text = s.stream.push(id);
    to = view(s.text);
  });
}

stet_status stet_text_stream_finish(stet_text_stream* stream, stet_text* text, stet_error** error) {
  return guarded(error, [&] {
    stet_text& to = output(text, "text");
    stet_text_stream& s = at(stream, "stream");
    s.text = s.stream.finish();
    to = view(s.text);
  });
}

stet_status stet_text_stream_save(const stet_text_stream* stream, char** state, size_t* size,
                                  stet_error** error) {
  return guarded(error, [&] {
    const auto to = outputs(state, "state", size, "size");
    give_text(at(stream, "stream").stream.state(), to);
  });
}

stet_status stet_text_stream_restore(stet_text_stream* stream, const char* state, size_t size,
                                     stet_error** error) {
  return guarded(error,
                 [&] { at(stream, "stream").stream.restore(text_of(state, size, "state")); });
}
