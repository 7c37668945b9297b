// C interface: chat templates.
#include "src/c/internal.hpp"
#include "stet/chat/template.hpp"

struct stet_chat_template {
  stet::ChatTemplate chat_template;
};

using namespace stet::c;

namespace {

std::pair<stet_range*, size_t> new_ranges(const std::vector<stet::TextRange>& ranges) {
  std::vector<stet_range> all;
  for (const stet::TextRange& range : ranges) all.push_back({range.begin, range.end});
  std::pair<stet_range*, size_t> made = {nullptr, 0};
  give_items<stet_range>(all, {made.first, made.second});
  return made;
}

}  // namespace

stet_status stet_chat_template_new(const stet_tokenizer* tokenizer, const char* source, size_t size,
                                   stet_chat_template** chat_template, stet_error** error) {
  return guarded(error, [&] {
    stet_chat_template*& to = output(chat_template, "chat_template");
    const stet::Tokenizer& t = *at(tokenizer, "tokenizer").tokenizer;
    const std::string_view text = text_of(source, size, "source");
    to = new stet_chat_template{source == nullptr ? stet::ChatTemplate(t)
                                                  : stet::ChatTemplate(text, "source", t)};
  });
}

void stet_chat_template_free(stet_chat_template* chat_template) { delete chat_template; }

stet_status stet_chat_template_render(const stet_chat_template* chat_template, const char* messages,
                                      size_t size, const stet_render_options* options, char** out,
                                      size_t* out_size, stet_range** plain, size_t* plain_count,
                                      stet_error** error) {
  return guarded(error, [&] {
    if (plain != nullptr) *plain = nullptr;
    if (plain_count != nullptr) *plain_count = 0;
    const auto to = outputs(out, "out", out_size, "out_size");
    if ((plain == nullptr) != (plain_count == nullptr))
      fail("plain", "", "plain and plain_count belong together: pass both or neither");
    const stet::ChatTemplate& t = at(chat_template, "chat_template").chat_template;
    const stet_render_options o = input(options, "options");
    check_flags(o.flags, STET_RENDER_GENERATION_PROMPT, "options");
    const std::string variables = string_of(o.variables, "variables");
    const stet::jinja::Text text =
        t.render(stet::jinja::Value::from_json(text_of(messages, size, "messages"), "messages"),
                 (o.flags & STET_RENDER_GENERATION_PROMPT) != 0,
                 stet::jinja::Value::from_json(variables.empty() ? "{}" : variables, "variables"),
                 static_cast<double>(o.now));
    std::pair<stet_range*, size_t> ranges = {nullptr, 0};
    if (plain != nullptr) ranges = new_ranges(stet::plain_ranges(text));
    std::unique_ptr<stet_range, void (*)(void*)> kept(ranges.first, std::free);
    give_text(text.bytes, to);
    if (plain == nullptr) return;
    *plain = kept.release();
    *plain_count = ranges.second;
  });
}
