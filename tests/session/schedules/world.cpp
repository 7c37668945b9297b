#include "tests/session/schedules/world.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>
#include <algorithm>
#include <functional>

#include "stet/session/splice.hpp"
#include "stet/snapshot/verify.hpp"
#include "tests/support/recurrent_family.hpp"

namespace stet::test {
namespace {

constexpr int64_t kCapacity = 260;
constexpr size_t kMostSessions = 4;

std::string list_of(std::span<const int32_t> ids) {
  return fmt::format("std::vector<int32_t>{{{}}}", fmt::join(ids, ", "));
}

std::string contract_code(Contract contract) {
  return std::string("Contract::") + contract_name(contract);
}

std::string compute_code(const std::string& target, const ComputeOptions& c) {
  const std::string contract =
      c.contract == Contract::f32
          ? ""
          : fmt::format(" {}.contract = {};", target, contract_code(c.contract));
  return fmt::format("{0}.threads = {1}; {0}.isa = \"{2}\"; {0}.chunk = {3};{4}", target, c.threads,
                     c.isa, c.chunk, contract);
}

std::string load_code(const Subject& s) {
  if (s.contract != Contract::q8 && s.contract != Contract::q4)
    return fmt::format("Model::load(\"{}\")", s.directory);
  return fmt::format("Model::load(directory_source(\"{}\"), 0, {})", s.directory,
                     contract_code(s.contract));
}

SessionOptions options_for(const Model& m, Contract contract, KvType kv_type) {
  SessionOptions o = options(1, STET_DEFAULT_ISA, 512, contract);
  o.kv_type = kv_type;
  o.capacity = std::min(kCapacity, m.config().max_positions);
  return o;
}

}  // namespace

Subjects::Subjects(const Subject& s, KvType kv_type, Names& all_names)
    : subject(s),
      model(test::model(s.directory, s.contract)),
      options(options_for(*model, s.contract, kv_type)),
      oracle(model, options, all_names),
      names(all_names) {}

World::World(Subjects& shared, PlantedFault planted, int64_t anchor_bytes)
    : shared_(shared), planted_(planted), options_(shared.options) {
  options_.anchor_bytes = anchor_bytes;
  live_.push_back({Session(shared.model, options_), {}, numbers_++});
}

std::string World::run(const Steps& steps) {
  try {
    for (size_t i = 0; i < steps.size() && failure_.empty(); ++i) take(steps[i]);
    compare_all();
  } catch (const std::exception& e) {
    fail(std::string("an exception: ") + e.what());
  }
  return failure_;
}

std::string World::program() const {
  const std::string last = culprit_ == nullptr
                               ? ""
                               : fmt::format(
                                     "  // s{0} ought to be:\n  Session plain(m, o);\n{1}  return "
                                     "digests_of(s{0}).state == digests_of(plain).state ? 0 : 1;\n",
                                     culprit_->number, culprit_->timeline.text());
  return fmt::format(
      "#include <filesystem>\n#include <fstream>\n#include <thread>\n#include "
      "\"stet/session/splice.hpp\"\n#include \"stet/snapshot/snapshot.hpp\"\nusing namespace "
      "stet;\n\n"
      "void put(const char* file, long at, char byte) {{ std::fstream f(file, std::ios::in | "
      "std::ios::out | std::ios::binary); f.seekp(at); f.put(byte); }}\n\n"
      "int main() {{\n  const auto m = {};\n  SessionOptions o;\n  o.capacity = {};\n  o.kv_type = "
      "KvType::{};\n  o.anchor_bytes = {};\n  {}\n"
      "  Session s0(m, o);\n{}{}}}\n",
      load_code(shared_.subject), shared_.options.capacity, kv_type_name(shared_.options.kv_type),
      options_.anchor_bytes, compute_code("o.compute", shared_.options.compute), said_, last);
}

void World::fail(const std::string& what) {
  if (failure_.empty()) failure_ = what;
}

World::Live& World::live(uint32_t who) {
  auto it = live_.begin();
  std::advance(it, who % live_.size());
  return *it;
}

bool World::sound(int file) const {
  for (; file >= 0; file = files_[static_cast<size_t>(file)].parent) {
    if (!files_[static_cast<size_t>(file)].sound) return false;
  }
  return true;
}

bool World::heals(int file) const {
  for (; file >= 0; file = files_[static_cast<size_t>(file)].parent) {
    if (!files_[static_cast<size_t>(file)].heals) return false;
  }
  return true;
}

void World::add(Session session, const Timeline& timeline) {
  live_.push_back({std::move(session), timeline, numbers_++, false});
  if (live_.size() > kMostSessions) {
    compare(live_.front());
    if (failure_.empty()) live_.pop_front();
  }
}

void World::compare(Live& live) {
  if (live.session.size() != live.timeline.size()) {
    culprit_ = &live;
    return fail(fmt::format("s{} has {} positions, not {}", live.number, live.session.size(),
                            live.timeline.size()));
  }
  if (live.looked_at) return;
  Truth found = truth_of(live.session);
  const Truth& expected = shared_.oracle.truth(live.timeline);
  live.looked_at = true;
  const bool whole = is_whole(live.session);
  if (!whole) found.kv = expected.kv;
  const bool anchors = shared_.names.anchors_agree(live.session.state());
  if (found == expected && anchors &&
      (!whole || shared_.names.blocks_agree(live.session.kv(), found.blocks)))
    return prove(live);
  culprit_ = &live;
  fail(fmt::format("s{}: other {}", live.number,
                   found.tokens != expected.tokens   ? "tokens"
                   : found.kv != expected.kv         ? "keys and values"
                   : found.arrays != expected.arrays ? "recurrent arrays"
                   : found.logits != expected.logits ? "logits"
                   : found.state != expected.state   ? "state"
                   : found == expected && !anchors   ? "arrays of an anchor of the same name"
                   : found == expected               ? "bytes of a block of the same identity"
                                                     : "identities"));
}

// Verifies a session as far as its tokens reproduce it.
void World::prove(Live& live) {
  if (live.session.size() % 3 == 1) return;  // verifying takes a replay
  const VerifyReport report = verify(live.session);
  if (report) fail(fmt::format("s{}: verify: {}", live.number, report.text()));
  if (!live.timeline.edited() && !report.whole())
    fail(fmt::format("s{}: verify proves less than all: {}", live.number, report.text()));
}

void World::compare_all() {
  for (Live& l : live_) {
    l.looked_at = false;
    if (failure_.empty()) compare(l);
  }
}

// One step in three is compared later, so that some blocks stay unread in their file.
void World::take(const Step& step) {
  Live& l = live(step.who);
  switch (step.action) {
    case Action::append:
      append(l, step);
      break;
    case Action::append_refused:
      append_refused(l, step);
      break;
    case Action::rewind:
      rewind(l, step);
      break;
    case Action::fork:
      fork(l);
      break;
    case Action::prune:
      prune(l, step);
      break;
    case Action::attach:
      attach(l, step);
      break;
    case Action::callback:
      callback(l, step);
      break;
    case Action::edit:
      edit(l, step);
      break;
    case Action::round:
      round(l, step);
      break;
    case Action::splice:
      splice(l, step);
      break;
    case Action::windows:
      windows(l);
      break;
    case Action::batch:
      batch(step);
      break;
    case Action::batch_refused:
      batch_refused(step);
      break;
    case Action::logits:
      say(fmt::format("s{}.logits();", l.number)), l.session.logits();
      break;
    case Action::set_compute:
      set_compute(l, step);
      break;
    case Action::save:
      save(l, step);
      break;
    case Action::restore:
      restore(step);
      break;
    case Action::restore_by_threads:
      restore_by_threads(step);
      break;
    case Action::convert:
      convert(step);
      break;
    case Action::keep_anchor:
      keep_anchor(l, step);
      break;
    case Action::set_array:
      set_array(l, step);
      break;
    case Action::change_state:
      change_state(l, step);
      break;
    case Action::prune_anew:
      prune_anew(l, step);
      break;
    case Action::put:
      put(l);
      break;
    case Action::fetch:
      fetch(step);
      break;
    default:
      harm(step);
  }
  for (Live& each : live_) {
    if (!failure_.empty()) break;
    each.looked_at = each.looked_at && each.session.size() == each.timeline.size();
    if (!each.looked_at && step.y % 3 != 0) compare(each);
  }
}

std::vector<int32_t> World::draw_tokens(const Live& live, uint32_t length, uint32_t text) const {
  static constexpr int64_t kLengths[] = {1, 2, 7, 31, 63, 64, 65, 100};
  const int64_t room = shared_.options.capacity - live.session.size();
  std::vector<int32_t> ids(
      static_cast<size_t>(std::min(kLengths[length % std::size(kLengths)], room)));
  for (size_t i = 0; i < ids.size(); ++i) {
    ids[i] = token_of(*shared_.model, text % 4 == 3 ? 1 : 0,
                      live.session.size() + static_cast<int64_t>(i));
  }
  return ids;
}

// Appends the first token with a draft of those after it, in which one may be wrong, and then the
// others one by one. The draft goes beyond them, so that other steps meet drafted rows.
void World::append_drafted(Live& live, const std::vector<int32_t>& ids, const Step& step) {
  const std::vector<int32_t> first(ids.begin(), ids.begin() + 1);
  std::vector<int32_t> draft(ids.begin() + 1, ids.end());
  for (int i = 0; i < 3; ++i) {
    draft.push_back(token_of(*shared_.model, step.y % 2,
                             live.session.size() + static_cast<int64_t>(ids.size()) + i));
  }
  if (step.x % 3 == 0) draft[step.y % draft.size()] ^= 1;
  say(
      fmt::format("{{ const {}, draft{}; const BatchEntry e{{&s{}, first, nullptr, draft}}; "
                  "append({{&e, 1}}); }}",
                  "std::vector<int32_t> first" + list_of(first).substr(20),
                  list_of(draft).substr(20), live.number));
  const BatchEntry entry{&live.session, first, nullptr, draft};
  stet::append({&entry, 1});
  for (size_t i = 1; i < ids.size(); ++i) {
    say(fmt::format("s{}.append({});", live.number, list_of({&ids[i], 1})));
    live.session.append({&ids[i], 1});
  }
}

void World::append(Live& live, const Step& step) {
  const std::vector<int32_t> ids = draw_tokens(live, step.x, step.y);
  if ((step.y % 4 == 1 || step.y % 4 == 2) && !ids.empty() && ids.size() <= 7) {
    live.looked_at = false;
    append_drafted(live, ids, step);
    return live.timeline.append(ids);
  }
  say(fmt::format("s{}.append({});", live.number, list_of(ids)));
  live.looked_at = live.looked_at && ids.empty();
  live.session.append(ids);
  live.timeline.append(ids);
}

void World::expect_error(const std::string& call, const std::function<void()>& act,
                         const std::string& part) {
  say("try { " + call + " return 2; } catch (const Error&) {}");
  try {
    act();
    fail("no error: " + call);
  } catch (const Error& e) {
    if (std::string(e.what()).find(part) == std::string::npos)
      fail("another error than '" + part + "': " + e.what());
  }
}

void World::append_refused(Live& live, const Step& step) {
  std::vector<int32_t> ids = draw_tokens(live, step.x, step.y);
  if (step.x % 2 == 0 || ids.empty())
    ids.resize(static_cast<size_t>(shared_.options.capacity - live.session.size() + 1));
  else
    ids.back() = static_cast<int32_t>(shared_.model->config().vocab_size);
  live.looked_at = false;
  expect_error(fmt::format("s{}.append({});", live.number, list_of(ids)),
               [&] { live.session.append(ids); });
}

// Returns the number of tokens that a rewind of a session with recurrent layers must process again.
// Returns nothing if it depends on more than the anchors.
std::optional<int64_t> World::expected_cost(const Live& live, int64_t to) const {
  const Anchor* const here = live.session.anchors().find(to);
  if (to == live.timeline.size() || (here != nullptr && is_whole(live.session))) return 0;
  if (live.timeline.edited() || !is_whole(live.session)) return std::nullopt;
  int64_t nearest = 0;
  for (const auto& a : live.session.anchors().all())
    nearest = a->position <= to ? std::max(nearest, a->position) : nearest;
  return to - nearest;
}

// Rewinds, and compares the tokens that are processed again with those that were announced. Returns
// false if recurrent arrays cannot be computed again over an edit; nothing has changed then.
bool World::rewind_as_announced(Live& live, int64_t to) {
  Session& s = live.session;
  const int64_t cost = s.rewind_cost(to), size = s.size();
  const std::optional<int64_t> expected = recurrent() ? expected_cost(live, to) : std::nullopt;
  if (expected && cost != *expected)
    fail(fmt::format("rewind_cost({}) is {}, not {}", to, cost, *expected));
  s.take_healed();
  const int64_t before = recurrent_test_rows();
  try {
    s.rewind(to);
    say(fmt::format("s{}.rewind({});", live.number, to));
  } catch (const Error& e) {
    say(fmt::format("try {{ s{}.rewind({}); return 2; }} catch (const Error&) {{}}", live.number,
                    to));
    if (!recurrent() || !live.timeline.edited() || expected) throw;
    if (std::string(e.what()).find("a position with an anchor") == std::string::npos) throw;
    if (s.size() != size) fail("a refused rewind changed the session");
    return false;
  }
  if (s.take_healed().empty() && recurrent_test_rows() - before > cost)
    fail(fmt::format("rewind({}) processed {} tokens, not {}", to, recurrent_test_rows() - before,
                     cost));
  return true;
}

void World::rewind(Live& live, const Step& step) {
  const int64_t size = live.timeline.size(), floor = live.timeline.floor();
  if (floor > size) return;
  const int64_t back[] = {1, 2, 64, size % 64, size / 2, static_cast<int64_t>(step.y) % (size + 1)};
  const int64_t to = std::clamp(size - back[step.x % std::size(back)], floor, size);
  live.looked_at = false;
  if (!rewind_as_announced(live, to)) return;
  const bool keeps_one = planted_ == PlantedFault::rewind_to_a_border_keeps_a_token &&
                         to % kBlockPositions == 0 && to < size;
  live.timeline.rewind(to + keeps_one);
  if (to == 0 || to == size || !live.timeline.may_lack_logits()) return;
  try {
    live.session.logits();
  } catch (const Error&) {  // the error says that it needs one more token
    append(live, {Action::append, 0, 0, 0});
  }
}

void World::fork(const Live& live) {
  say(fmt::format("Session s{} = s{}.fork();", numbers_, live.number));
  add(live.session.fork(), live.timeline);
}

void World::prune(Live& live, const Step& step) {
  const int64_t size = live.timeline.size();
  PruneOptions o{static_cast<int64_t>(step.x % 100), static_cast<int64_t>(step.y % 20),
                 step.x % 2 == 0};
  o.shift = o.shift && !shared_.model->config().ropes.empty();
  const std::string call =
      fmt::format("s{}.prune({{{}, {}, {}}});", live.number, o.keep_last, o.sinks, o.shift);
  const int64_t begin = std::min(o.sinks, size),
                end = std::max(begin, size - std::min(o.keep_last, size));
  live.looked_at = false;
  if (recurrent())
    return expect_error(
        call, [&] { live.session.prune(o); }, "--recompute");
  say(call);
  if (live.session.prune(o) != end - begin) fail("prune took out another number of positions");
  live.timeline.prune(begin, end, o.shift);
}

// Processes again the tokens that stay. The state is that of these tokens alone.
void World::prune_anew(Live& live, const Step& step) {
  const int64_t size = live.timeline.size();
  const PruneOptions o{static_cast<int64_t>(step.x % 100), static_cast<int64_t>(step.y % 20), false,
                       true};
  const int64_t begin = std::min(o.sinks, size), end = size - std::min(o.keep_last, size);
  if (begin >= end) return;
  const std::string call =
      fmt::format("s{}.prune({{{}, {}, false, true}});", live.number, o.keep_last, o.sinks);
  live.looked_at = false;
  if (live.timeline.intervenes_after(begin))
    return expect_error(
        call, [&] { live.session.prune(o); }, "no interventions");
  const std::vector<int32_t> stay(live.session.tokens().begin() + end, live.session.tokens().end());
  try {
    if (live.session.prune(o) != end - begin) fail("prune took out another number of positions");
  } catch (const Error& e) {
    say("try { " + call + " return 2; } catch (const Error&) {}");
    if (!live.timeline.edited()) throw;
    if (std::string(e.what()).find("a position with an anchor") == std::string::npos) throw;
    return;
  }
  say(call);
  live.timeline.rewind(begin);
  live.timeline.append(stay);
}

void World::keep_anchor(Live& live, const Step& step) {
  if (step.x % 2 == 0) {
    say(fmt::format("s{}.keep_anchor();", live.number));
    return live.session.keep_anchor();
  }
  const int64_t size = live.session.size(), first = size + step.y % 150,
                second = size + 1 + step.x % 90;
  say(fmt::format("s{}.anchor_at({{{}, {}}});", live.number, first, second));
  live.session.anchor_at({first, second});
}

void World::set_array(Live& live, const Step& step) {
  if (live.session.size() == 0 || live.session.edits().size() >= 3) return;
  say(fmt::format("s{0} = Session(m, with_array(s{0}.state(), {1}), o);", live.number, step.x));
  live.looked_at = false;
  live.session = Session(shared_.model, with_array(live.session.state(), step.x), options_);
  if (live.timeline.calls()) live.timeline.call(false);
  live.timeline.set_array(step.x);
}

void World::change_state(Live& live, const Step& step) {
  if (shared_.model->config().recurrence.heads == 0) return;
  if (live.session.interventions().size() >= 3) return;
  say(fmt::format("s{0}.attach(state_change_of(model, {1}, s{0}.size()));", live.number, step.x));
  live.looked_at = false;
  live.session.attach(state_change_of(*shared_.model, step.x, live.session.size()));
  live.timeline.change_state(step.x);
}

void World::attach(Live& live, const Step& step) {
  const uint32_t which = step.x % kChanges;
  if (live.session.interventions().size() >= 3) return;  // they multiply the oracle's work
  say(fmt::format("s{}.attach(change_of(model, {}));", live.number, which));
  live.looked_at = false;
  live.session.attach(change_of(*shared_.model, which));
  live.timeline.attach(which);
}

void World::callback(Live& live, const Step&) {
  const bool on = !live.timeline.calls();
  say(fmt::format("s{}.{};", live.number,
                  on ? "attach(callback_of(model))" : "detach_callbacks()"));
  live.looked_at = false;
  if (on)
    live.session.attach(callback_of(*shared_.model));
  else
    live.session.detach_callbacks();
  live.timeline.call(on);
}

// Every other step copies from another session.
void World::edit(Live& to, const Step& step) {
  const int64_t size = to.session.size();
  if (size == 0 || to.session.edits().size() >= 3) return;
  Timeline::Edit e;
  e.range.begin = static_cast<int64_t>(step.x) % size;
  e.range.end = std::min(size, e.range.begin + 1 + static_cast<int64_t>(step.y % 70));
  const ModelConfig& c = shared_.model->config();
  if (to.session.kv().shape().block_bytes() == 0)
    return expect_error(
        "scale_kv", [&] { to.session.scale_kv(e.range, 0.5f); }, "without any");
  if (step.x % 3 != 0)
    e.range.layers = {recurrent() ? layer_of(c, false, step.x) : static_cast<int64_t>(step.x) % 2};
  e.factor = step.y % 5 == 0 ? -0.25f : 0.5f;
  const Live& from = live(step.who + 1);
  bool hidden = true;  // no position of the range is visible
  for (int64_t p = e.range.begin; p < e.range.end; ++p)
    hidden = hidden && (to.session.kv().visible(p / 64) >> (p % 64) & 1) == 0;
  if (hidden) return;
  if (step.y % 2 == 0 && !from.timeline.edited() && from.session.prunes().empty() &&
      from.session.size() >= e.range.end) {
    e.factor = 0;
    e.source = std::make_shared<const Timeline>(from.timeline);
    const std::string call = fmt::format("s{}.copy_kv({{{{{}}}, {{}}, {}, {}}}, s{}, {});",
                                         to.number, fmt::join(e.range.layers, ", "), e.range.begin,
                                         e.range.end, from.number, e.range.begin);
    if (recurrent()) {
      to.looked_at = false;
      return expect_error(
          call, [&] { to.session.copy_kv(e.range, from.session, e.range.begin); },
          "states without recurrent layers");
    }
    say(call);
    to.session.copy_kv(e.range, from.session, e.range.begin);
  } else {
    if (recurrent() && step.y % 7 == 0) {
      e.range.layers = {layer_of(c, true, step.x)};
      return expect_error(
          "scale_kv", [&] { to.session.scale_kv(e.range, e.factor); }, "which is recurrent");
    }
    say(fmt::format("s{}.scale_kv({{{{{}}}, {{}}, {}, {}}}, {});", to.number,
                    fmt::join(e.range.layers, ", "), e.range.begin, e.range.end, e.factor));
    to.session.scale_kv(e.range, e.factor);
  }
  to.looked_at = false;
  to.timeline.edit(e);
}

bool World::has_windows() const {
  return std::ranges::any_of(shared_.model->config().window, [](int64_t w) { return w > 0; }) &&
         is_replayable(contract_name(shared_.subject.contract));
}

// Makes a session of the same state that keeps only windows. Callbacks are not part of the state.
void World::windows(Live& live) {
  if (!has_windows()) return;
  SessionOptions o = options_;
  o.window = {true, 0, [](int64_t) {}};
  say(fmt::format(
      "{{ SessionOptions w = o; w.window = {{true, 0, [](int64_t) {{}}}}; s{0} = Session(m, "
      "s{0}.state(), w); }}",
      live.number));
  live.looked_at = false;
  live.session = Session(shared_.model, live.session.state(), o);
  if (live.timeline.calls()) live.timeline.call(false);
}

void World::round(Live& live, const Step& step) {
  const KvType to = kKvTypes[step.x % std::size(kKvTypes)];
  if (to == live.session.kv().shape().type || live.session.size() == 0) return;
  say(fmt::format("s{0} = Session(m, with_kv_type(s{0}.state(), KvType::{1}), o);", live.number,
                  kv_type_name(to)));
  live.looked_at = false;
  live.session = Session(shared_.model, with_kv_type(live.session.state(), to), options_);
  if (live.timeline.calls()) live.timeline.call(false);
  live.timeline.round(to);
}

void World::splice(Live& a, const Step& step) {
  Live& b = live(step.who + 1);
  const auto usable = [](Live& l) {
    return !l.timeline.is_joined() && l.session.prunes().empty() && l.session.size() > 0 &&
           is_whole(l.session);
  };
  if (!usable(a) || !usable(b) || a.session.kv().shape().type != b.session.kv().shape().type)
    return;
  const int64_t a_end = 1 + step.x % a.session.size();
  const bool moves = step.y % 2 == 0 && !shared_.model->config().ropes.empty();
  const int64_t begin = moves ? step.y % b.session.size() : a_end;
  const int64_t end = std::min(b.session.size(), begin + shared_.options.capacity - a_end);
  if (begin >= end) return;
  if (!recurrent())
    say(fmt::format(
        "const Cut cuts{0}[] = {{{{&s{1}.state(), 0, {2}}}, {{&s{3}.state(), {4}, {5}}}}}; Session "
        "s{0}(m, splice(m->config(), cuts{0}), o); s{0}.logits();",
        numbers_, a.number, a_end, b.number, begin, end));
  const Cut cuts[] = {{&a.session.state(), 0, a_end}, {&b.session.state(), begin, end}};
  if (recurrent())
    return expect_error(
        "splice", [&] { stet::splice(shared_.model->config(), cuts); },
        "states without recurrent layers");
  Session joined(shared_.model, stet::splice(shared_.model->config(), cuts), options_);
  joined.logits();
  add(std::move(joined), Timeline::joined(a.timeline, a_end, b.timeline, begin, end));
}

void World::set_compute(Live& live, const Step& step) {
  ComputeOptions c = shared_.options.compute;
  size_t sets = 0;
  while (kernel_names()[sets] != nullptr) ++sets;
  // The portable kernels are slow, so one step in four uses them.
  c.isa = step.x % 4 == 0 ? kernel_names()[step.y % sets] : STET_DEFAULT_ISA;
  static constexpr int kThreads[] = {1, 1, 2, 3};
  static constexpr int64_t kChunks[] = {7, 63, 64, 65, 512};
  c.threads = kThreads[step.x / 4 % std::size(kThreads)];
  c.chunk = c.threads > 1 ? 64 : kChunks[step.y % std::size(kChunks)];
  say(fmt::format("{{ ComputeOptions c; {} s{}.set_compute(c); }}", compute_code("c", c),
                  live.number));
  live.session.set_compute(c);
}

}  // namespace stet::test
