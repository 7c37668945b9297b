#include "tests/session/schedules/oracle.hpp"
#include "src/snapshot/identity.hpp"
#include "stet/session/splice.hpp"
#include "tests/support/files.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <algorithm>
#include <tuple>

namespace stet::test {

namespace {

// Returns the first layer that has a point; -1: none.
int64_t first_with(const ModelConfig& c, Point point) {
  for (int64_t l = 0; l < c.layers; ++l) {
    if (has_point(c, PointAt{point, l})) return l;
  }
  return -1;
}

}  // namespace

State with_array(State state, uint32_t which) {
  const RecurrentShape& shape = state.recurrent.shape();
  size_t layer = 0;
  while (shape.layers[layer].empty()) ++layer;
  const size_t index = which % shape.layers[layer].size();
  std::vector<float> x(shape.layers[layer][index].count());
  for (size_t i = 0; i < x.size(); ++i) x[i] = 0.25f * static_cast<float>(i % 7) - 0.5f;
  set_array(state, static_cast<int64_t>(layer), static_cast<int64_t>(index), x);
  return state;
}

int64_t layer_of(const ModelConfig& config, bool recurrent, uint32_t which) {
  std::vector<int64_t> all;
  for (int64_t l = 0; l < config.layers; ++l) {
    const bool is = config.layer(l).recurrent;
    if (recurrent ? is : !is && config.layer(l).owner == l) all.push_back(l);
  }
  return all.empty() ? 0 : all[which % all.size()];
}

Intervention change_of(const Model& m, uint32_t which) {
  static constexpr Point kPoints[kChanges] = {Point::resid_pre, Point::v, Point::mlp_post,
                                              Point::z};
  static constexpr Intervention::Op kOps[kChanges] = {
      Intervention::Op::add, Intervention::Op::scale, Intervention::Op::project_out,
      Intervention::Op::set};
  Intervention w;
  w.point = kPoints[which];
  int64_t layer = first_with(m.config(), w.point);
  for (const Point other : {Point::expert_weights, Point::resid_post}) {
    if (layer < 0) layer = first_with(m.config(), w.point = other);
  }
  w.op = kOps[which];
  w.layers = {layer};
  w.amount = 0.5f;
  if (w.op == Intervention::Op::scale) return w;
  std::vector<float> values(static_cast<size_t>(point_width(m.config(), {w.point, layer}, 0)));
  for (size_t i = 0; i < values.size(); ++i) values[i] = 0.125f * static_cast<float>(i % 5) - 0.25f;
  w.values = std::make_shared<const std::vector<float>>(std::move(values));
  return w;
}

std::pair<int64_t, int64_t> state_change_positions(uint32_t which, int64_t at) {
  const int64_t begin = at + which / 16 % 70;
  return {begin, which % 7 == 0 ? -1 : begin + 1 + which % 3};
}

Intervention state_change_of(const Model& m, uint32_t which, int64_t at) {
  const ModelConfig& c = m.config();
  const bool of_all = which % 2 == 0, rows = which % 5 == 0;
  Intervention w;
  w.point = Point::state;
  w.layers = {layer_of(c, true, which / 3)};
  if (!of_all) w.heads = {c.recurrence.heads - 1};
  std::tie(w.begin, w.end) = state_change_positions(which, at);
  w.op = which % 3 == 0 ? Intervention::Op::scale : Intervention::Op::set;
  w.amount = w.op == Intervention::Op::scale ? 0.25f : 1;
  if (w.op == Intervention::Op::scale) return w;
  const int64_t count = c.recurrence.key_dim * c.recurrence.value_dim *
                        (of_all ? c.recurrence.heads : 1) *
                        (rows && w.end >= 0 ? w.end - w.begin : 1);
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; which % 3 == 1 && i < values.size(); ++i)
    values[i] = 0.0625f * static_cast<float>(i % 11) - 0.25f;
  w.values = std::make_shared<const std::vector<float>>(std::move(values));
  return w;
}

std::shared_ptr<const Callback> callback_of(const Model& m) {
  return std::make_shared<const Callback>(Callback{
      {{Point::resid_pre, m.config().layers - 1}}, [](const PointAt&, int64_t first, Rows rows) {
        for (size_t i = 0; i < rows.count; ++i)
          rows.row(i)[(static_cast<size_t>(first) + i) % 3] += 0.5f;
      }});
}

int64_t Timeline::size() const { return size_; }

int64_t Timeline::floor() const {
  if (stages_.size() == 1 && joint_ != nullptr)
    return size_ - static_cast<int64_t>(stages_.back().tokens.size());
  return stages_.size() == 1 ? 0 : size_ - static_cast<int64_t>(stages_.back().tokens.size()) + 1;
}

Timeline Timeline::joined(const Timeline& a, int64_t a_end, const Timeline& b, int64_t begin,
                          int64_t end) {
  Timeline t;
  t.joint_ = std::make_shared<const Joint>(Joint{a, b, a_end, begin, end});
  t.size_ = a_end + end - begin;
  return t;
}

void Timeline::round(KvType type) {
  Stage::Change c{stages_.back().tokens.size(), Stage::Change::kv_type};
  c.type = type;
  stages_.back().changes.push_back(std::move(c));
}

bool Timeline::may_lack_logits() const {
  return std::ranges::any_of(stages_.back().changes, [&](const Stage::Change& c) {
    return c.kind == Stage::Change::kv_type && c.moved && c.after >= stages_.back().tokens.size();
  });
}

void Timeline::append(std::span<const int32_t> ids) {
  stages_.back().tokens.insert(stages_.back().tokens.end(), ids.begin(), ids.end());
  size_ += static_cast<int64_t>(ids.size());
}

void Timeline::rewind(int64_t size) {
  std::vector<int32_t>& tokens = stages_.back().tokens;
  tokens.resize(tokens.size() - static_cast<size_t>(size_ - size));
  size_ = size;
  // Drops interventions attached at or after this size. Callbacks stay with the session, and edits
  // with their positions. The remaining keys and values stay rounded.
  std::erase_if(stages_.back().changes, [&](Stage::Change& c) {
    if (c.kind == Stage::Change::edit) {
      if (c.what.range.begin >= size) return true;
      c.what.range.end = std::min(c.what.range.end, size);
    }
    if (c.after <= tokens.size()) return false;
    if (c.kind == Stage::Change::arrays) return true;
    c.after = tokens.size();
    c.moved = true;
    return c.intervenes();
  });
}

void Timeline::prune(int64_t begin, int64_t end, bool shift) {
  if (begin == end) return;
  Stage& last = stages_.back();
  last.begin = begin, last.end = end, last.shift = shift;
  stages_.push_back({});
  if (shift) size_ -= end - begin;
}

void Timeline::attach(uint32_t which) {
  stages_.back().changes.push_back(
      {stages_.back().tokens.size(), Stage::Change::intervention, which});
}

void Timeline::change_state(uint32_t which) {
  stages_.back().changes.push_back({stages_.back().tokens.size(), Stage::Change::of_state, which});
}

void Timeline::call(bool on) {
  stages_.back().changes.push_back({stages_.back().tokens.size(),
                                    on ? Stage::Change::callback_on : Stage::Change::callback_off});
}

void Timeline::edit(const Edit& edit) {
  stages_.back().changes.push_back({stages_.back().tokens.size(), Stage::Change::edit, 0, edit});
}

void Timeline::set_array(uint32_t which) {
  stages_.back().changes.push_back({stages_.back().tokens.size(), Stage::Change::arrays, which});
}

bool Timeline::intervenes_after(int64_t position) const {
  return std::ranges::any_of(stages_.back().changes, [&](const Stage::Change& c) {
    const auto at = static_cast<int64_t>(c.after);
    const auto [begin, end] = state_change_positions(c.which, at);
    return (c.intervenes() && at > position) ||
           (c.kind == Stage::Change::of_state && std::max(begin, end) > position);
  });
}

bool Timeline::calls() const {
  bool on = false;
  for (const Stage& s : stages_) {
    for (const Stage::Change& c : s.changes) {
      if (c.kind == Stage::Change::callback_on) on = true;
      if (c.kind == Stage::Change::callback_off) on = false;
    }
  }
  return on;
}

bool Timeline::edited() const {
  if (joint_ != nullptr) return true;
  for (const Stage& s : stages_) {
    for (const Stage::Change& c : s.changes) {
      // Changing the type of an empty state is not an edit.
      const bool of_nothing =
          c.kind == Stage::Change::kv_type && c.after == 0 && &s == stages_.data();
      if (!c.intervenes() && !of_nothing) return true;
    }
  }
  return false;
}

void Timeline::apply(const Model& m, Session& session, const SessionOptions& plain,
                     const Stage::Change& c) {
  if (c.kind == Stage::Change::intervention) session.attach(change_of(m, c.which));
  if (c.kind == Stage::Change::of_state)
    session.attach(state_change_of(m, c.which, session.size()));
  if (c.kind == Stage::Change::callback_on) session.attach(callback_of(m));
  if (c.kind == Stage::Change::callback_off) session.detach_callbacks();
  if (c.kind == Stage::Change::kv_type)
    session = Session(session.shared_model(), with_kv_type(session.state(), c.type), plain);
  if (c.kind == Stage::Change::arrays)
    session = Session(session.shared_model(), with_array(session.state(), c.which), plain);
  if (c.kind != Stage::Change::edit) return;
  if (c.what.source == nullptr) return session.scale_kv(c.what.range, c.what.factor);
  Session source(session.shared_model(), plain);
  c.what.source->replay(m, source);
  session.copy_kv(c.what.range, source, c.what.range.begin);
}

std::string Timeline::text_of(const Stage::Change& c) {
  if (c.kind == Stage::Change::intervention)
    return fmt::format("attach(change_of(model, {}))", c.which);
  if (c.kind == Stage::Change::of_state)
    return fmt::format("attach(state_change_of(model, {}, plain.size()))", c.which);
  if (c.kind == Stage::Change::callback_on) return "attach(callback_of(model))";
  if (c.kind == Stage::Change::callback_off) return "detach_callbacks()";
  if (c.kind == Stage::Change::kv_type)
    return fmt::format("with_kv_type(plain.state(), KvType::{})", kv_type_name(c.type));
  if (c.kind == Stage::Change::arrays) return fmt::format("with_array(plain.state(), {})", c.which);
  const KvRange& r = c.what.range;
  const std::string range =
      fmt::format("{{{{{}}}, {{}}, {}, {}}}", fmt::join(r.layers, ", "), r.begin, r.end);
  return c.what.source == nullptr ? fmt::format("scale_kv({}, {})", range, c.what.factor)
                                  : fmt::format("copy_kv({}, source, {})", range, r.begin);
}

void Timeline::replay(const Model& m, Session& session) const {
  const SessionOptions plain{session.capacity(), session.kv().shape().type, session.compute()};
  if (joint_ != nullptr) {
    Session a(session.shared_model(), plain), b(session.shared_model(), plain);
    joint_->a.replay(m, a);
    joint_->b.replay(m, b);
    const Cut cuts[] = {{&a.state(), 0, joint_->a_end}, {&b.state(), joint_->begin, joint_->end}};
    session = Session(session.shared_model(), splice(m.config(), cuts), plain);
    session.logits();
  }
  for (const Stage& s : stages_) {
    size_t done = 0;
    for (const Stage::Change& c : s.changes) {
      session.append(std::span(s.tokens).subspan(done, c.after - done));
      apply(m, session, plain, c);
      done = c.after;
    }
    session.append(std::span(s.tokens).subspan(done));
    if (s.begin != s.end) session.prune_range(s.begin, s.end, s.shift);
  }
}

std::string Timeline::text() const {
  std::string text;
  if (joint_ != nullptr)
    text = fmt::format("  // the first {} of:\n{}  // and {} .. {} of:\n{}", joint_->a_end,
                       joint_->a.text(), joint_->begin, joint_->end, joint_->b.text());
  for (const Stage& s : stages_) {
    for (const Stage::Change& c : s.changes)
      text += fmt::format("  // after {} of these tokens: plain.{};\n", c.after, text_of(c));
    if (!s.tokens.empty())
      text +=
          fmt::format("  plain.append(std::vector<int32_t>{{{}}});\n", fmt::join(s.tokens, ", "));
    if (s.begin != s.end)
      text += fmt::format("  plain.prune_range({}, {}, {});\n", s.begin, s.end, s.shift);
  }
  return text;
}

std::string Timeline::name() const {
  std::string bytes;
  const auto add = [&](const auto& number) {
    bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
  };
  if (joint_ != nullptr) {
    add(joint_->a_end), add(joint_->begin), add(joint_->end);
    bytes += joint_->a.name() + "|" + joint_->b.name() + "|";
  }
  for (const Stage& s : stages_) {
    add(s.tokens.size()), add(s.begin), add(s.end), add(s.shift);
    bytes.append(reinterpret_cast<const char*>(s.tokens.data()), s.tokens.size() * sizeof(int32_t));
    add(s.changes.size());
    for (const Stage::Change& c : s.changes) {
      add(c.after), add(c.kind), add(c.which), add(c.type);
      if (c.kind != Stage::Change::edit) continue;
      add(c.what.range.begin), add(c.what.range.end), add(c.what.factor);
      for (const int64_t layer : c.what.range.layers) add(layer);
      if (c.what.source != nullptr) bytes += c.what.source->name();
    }
  }
  return bytes;
}

bool is_whole(const Session& session) {
  for (int64_t b = 0; b < session.kv().blocks(); ++b) {
    if (!session.kv().block_info(b).holds_all()) return false;
  }
  return true;
}

Truth truth_of(Session& session) {
  const StateDigests digests = digests_of(session);
  return {session.tokens(),
          digest_of(std::as_bytes(session.logits())),
          is_whole(session) ? digest_of(kv_bytes(session.kv())) : Digest{},
          digest_of(std::as_bytes(session.recurrent().numbers())),
          digests.state,
          digests.id,
          session.block_identities()};
}

bool Names::blocks_agree(const KvCache& kv, const std::vector<BlockIdentity>& blocks) {
  for (size_t b = 0; b < blocks.size(); ++b) {
    const auto i = static_cast<int64_t>(b);
    const Digest bytes = digest_of({kv.block(i), kv.shape().block_bytes()});
    const uint64_t meaning[] = {bytes.low, bytes.high, kv.visible(i),
                                static_cast<uint64_t>(kv.shape().type)};
    if (!is_of(blocks[b].id, digest_of(std::as_bytes(std::span(meaning))))) return false;
  }
  return true;
}

bool Names::anchors_agree(const State& state) {
  if (state.recurrent.empty()) return true;
  std::vector<int64_t> positions;
  std::vector<std::span<const float>> arrays;
  for (const auto& a : state.anchors.all()) {
    if (a->by_content || !is_intact(*a)) continue;
    positions.push_back(a->position);
    arrays.push_back({a->arrays->numbers(), state.recurrent.shape().numbers});
  }
  if (state.edits.empty() && (positions.empty() || positions.back() < state.size())) {
    positions.push_back(state.size());
    arrays.push_back(state.recurrent.numbers());
  }
  const std::vector<Sha256> names = anchor_names(state, state.kv.shape(), positions);
  for (size_t i = 0; i < names.size(); ++i) {
    if (!is_of(names[i], digest_of(std::as_bytes(arrays[i])))) return false;
  }
  return true;
}

namespace {

// Returns a digest of a state and of its logits after two more tokens.
Digest continuation(Session& session, const Truth& truth) {
  const std::vector<int32_t> two = {5, 6};
  Session on = session.fork();
  on.detach_callbacks();  // callbacks are not part of the state
  if (on.size() + 2 <= on.capacity()) on.append(two);
  const Digest logits = digest_of(std::as_bytes(on.logits()));
  const uint64_t all[] = {truth.state.low, truth.state.high, logits.low, logits.high};
  return digest_of(std::as_bytes(std::span(all)));
}

}  // namespace

const Truth& Oracle::truth(const Timeline& timeline) {
  const auto [it, is_new] = known_.try_emplace(timeline.name());
  if (is_new) {
    Session plain(model_, plain_);
    timeline.replay(*model_, plain);
    it->second = truth_of(plain);
    if (!names_.is_of(it->second.id, continuation(plain, it->second)))
      throw std::runtime_error("one id of two states:\n" + timeline.text());
    if (!names_.anchors_agree(plain.state()))
      throw std::runtime_error("one name of two anchors:\n" + timeline.text());
  }
  return it->second;
}

}  // namespace stet::test
