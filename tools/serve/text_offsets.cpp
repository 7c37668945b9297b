#include "tools/serve/text_offsets.hpp"

#include <algorithm>

#include "stet/text/utf8.hpp"

namespace stet::serve {
namespace {

// Returns for each byte offset of `starts` the number of characters that end at or before it. The
// text may be ill-formed.
std::vector<size_t> characters_before(const std::string& bytes, const std::vector<size_t>& starts) {
  std::vector<size_t> counts;
  size_t at = 0, count = 0;
  for (const size_t start : starts) {
    while (at < start) {
      const size_t next = at + utf8_at(bytes, at).length;
      if (next > start) break;
      at = next;
      ++count;
    }
    counts.push_back(count);
  }
  return counts;
}

}  // namespace

size_t characters(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

TextOffsets::TextOffsets(const Tokenizer* tokenizer) : tokenizer_(tokenizer) {
  if (tokenizer != nullptr) stream_.emplace(*tokenizer, true);
}

std::vector<size_t> TextOffsets::push(int32_t id) {
  if (!stream_ || id >= tokenizer_->size()) {  // a model may have more rows than the tokenizer
    waiting_.emplace_back();
    return stream_ && !stream_->pending().empty() ? std::vector<size_t>() : settle();
  }
  waiting_.push_back(tokenizer_->is_special(id) ? "" : tokenizer_->bytes(id));
  text_ += stream_->push(id);
  return stream_->pending().empty() ? settle() : std::vector<size_t>();
}

std::vector<size_t> TextOffsets::finish(size_t at) {
  if (stream_) text_ += stream_->finish();
  std::vector<size_t> offsets = settle();
  at_ = at;
  return offsets;
}

// Returns the offsets of tokens that have waited for each other. If their bytes make the text, each
// starts at its bytes. If the decoder escapes bytes that form no character, each token is decoded
// alone.
std::vector<size_t> TextOffsets::settle() {
  std::string bytes, alone;
  std::vector<size_t> starts, starts_alone;
  for (const std::string& token : waiting_) {
    starts.push_back(bytes.size());
    starts_alone.push_back(alone.size());
    bytes += token;
    alone += utf8_lossy(token);
  }
  const bool whole = utf8_lossy(bytes) == text_;
  std::vector<size_t> offsets =
      whole ? characters_before(bytes, starts) : characters_before(alone, starts_alone);
  const size_t count = characters(text_);
  for (size_t& offset : offsets) offset = at_ + std::min(offset, count);
  at_ += count;
  text_.clear();
  waiting_.clear();
  return offsets;
}

}  // namespace stet::serve
