// Batches: either all sessions advance, or none does.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tests/session/schedules/world.hpp"

namespace stet::test {
namespace {

// One call: the tokens that each entry owns, and the call as text.
struct Call {
  std::list<std::vector<int32_t>> ids, drafts;
  std::vector<BatchEntry> entries;
  std::vector<std::string> texts;

  void add(Session& session, int number, std::vector<int32_t> tokens) {
    texts.push_back(fmt::format("{{&s{}, ids{}}}", number, ids.size()));
    ids.push_back(std::move(tokens));
    entries.push_back({&session, ids.back()});
  }
  // Adds a draft to the last entry.
  void draft(std::vector<int32_t> tokens) {
    texts.back() = fmt::format("{}, nullptr, std::span<const int32_t>(draft{})}}",
                               texts.back().substr(0, texts.back().size() - 1), drafts.size());
    drafts.push_back(std::move(tokens));
    entries.back().draft = drafts.back();
  }
  std::string text() const {
    std::string all;
    size_t i = 0;
    for (const std::vector<int32_t>& tokens : ids)
      all += fmt::format("const std::vector<int32_t> ids{}{{{}}}; ", i++, fmt::join(tokens, ", "));
    i = 0;
    for (const std::vector<int32_t>& tokens : drafts)
      all +=
          fmt::format("const std::vector<int32_t> draft{}{{{}}}; ", i++, fmt::join(tokens, ", "));
    return all +
           fmt::format("const BatchEntry batch[] = {{{}}}; append(batch);", fmt::join(texts, ", "));
  }
};

}  // namespace

void World::batch(const Step& step) {
  Call call;
  std::vector<Live*> taken;
  for (Live& l : live_) {
    std::vector<int32_t> ids =
        draw_tokens(l, step.x + static_cast<uint32_t>(taken.size()) * 3, step.y);
    if (ids.empty() || (step.who >> taken.size()) % 4 == 3) continue;
    const int64_t end = l.session.size() + static_cast<int64_t>(ids.size());
    call.add(l.session, l.number, std::move(ids));
    if ((step.who >> taken.size()) % 4 == 1)
      call.draft({token_of(*shared_.model, 0, end), token_of(*shared_.model, step.y % 2, end + 1)});
    taken.push_back(&l);
  }
  if (taken.empty()) return;
  say("{ " + call.text() + " }");
  stet::append(call.entries);
  auto ids = call.ids.begin();
  for (Live* l : taken) {
    l->timeline.append(*ids++);
    l->looked_at = false;
  }
}

void World::batch_refused(const Step& step) {
  Call call;
  for (Live& l : live_) {
    std::vector<int32_t> ids = draw_tokens(l, step.x % 4, 0);
    if (!ids.empty()) call.add(l.session, l.number, std::move(ids));
    l.looked_at = false;
  }
  Live& wrong = live(step.who);
  switch (step.x % 4) {
    case 0:
      call.add(wrong.session, wrong.number, {0}), call.add(wrong.session, wrong.number, {0});
      break;  // an entry occurs twice
    case 1:
      call.add(wrong.session, wrong.number, {-1});
      break;
    case 2:
      call.add(wrong.session, wrong.number,
               std::vector<int32_t>(static_cast<size_t>(shared_.options.capacity) + 1));
      break;
    default:
      call.add(wrong.session, wrong.number, {});
  }
  expect_error(call.text(), [&] { stet::append(call.entries); });
}

}  // namespace stet::test
