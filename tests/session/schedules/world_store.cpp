// A store: sessions are put into it, and come back whole or as the prefix of other tokens.
#include <fmt/format.h>

#include "stet/store/session.hpp"
#include "tests/session/schedules/world.hpp"

namespace stet::test {

void World::put(Live& live) {
  if (!store_) {
    create_store(directory_ / "store", 0);
    store_.emplace(open_store_backend(directory_ / "store"), StoreKey::random(),
                   StoreOptions{.threads = 1, .fetch = FetchChoice::always});
  }
  say(fmt::format("put_session(store, s{}, {{}});", live.number));
  const StorePutReport report = put_session(*store_, live.session, {});
  if (report.digests.state != shared_.oracle.truth(live.timeline).state)
    culprit_ = &live, fail(fmt::format("s{}: another state was put", live.number));
  Timeline timeline = live.timeline;
  if (timeline.calls()) timeline.call(false);
  stored_.push_back({report.place, std::move(timeline)});
}

void World::fetch(const Step& step) {
  if (stored_.empty()) return;
  if (step.x % 3 == 0) return fetch_prefix(live(step.who));
  const Stored& from = stored_[step.who % stored_.size()];
  say(fmt::format("Session s{} = restore_session(store, the state put as number {});", numbers_,
                  step.who % stored_.size()));
  const StoreSnapshot opened = open_snapshot(*store_, from.place);
  RestoreOptions how{.session = options_};
  if (step.y % 2 == 0 && has_windows()) how.session.window = {true, 0, [](int64_t) {}};
  add(restore_session(*store_, *opened.snapshot, shared_.model, how, nullptr), from.timeline);
}

// The longest prefix of a session's tokens that the store holds is the state of these tokens.
void World::fetch_prefix(const Live& live) {
  std::optional<Session> found =
      stet::fetch_prefix(*store_, shared_.model, options_, live.session.tokens(), 0);
  if (!found) return;
  say(fmt::format("Session s{} = *fetch_prefix(store, m, o, s{}.tokens(), 0);", numbers_,
                  live.number));
  Timeline timeline;
  timeline.append(std::span(live.session.tokens()).first(static_cast<size_t>(found->size())));
  if (found->size() % kBlockPositions != 0) fail("a prefix of other tokens than those of blocks");
  add(std::move(*found), timeline);
}

}  // namespace stet::test
