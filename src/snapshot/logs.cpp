#include "src/snapshot/logs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "stet/base/error.hpp"
#include "stet/base/limits.hpp"
#include "stet/session/edit.hpp"
#include "stet/session/intervention.hpp"

namespace stet {

std::string hex_text(std::span<const std::byte> bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(bytes.size() * 2);
  for (const std::byte b : bytes) {
    text += kDigits[std::to_integer<int>(b) >> 4];
    text += kDigits[std::to_integer<int>(b) & 15];
  }
  return text;
}

bool parse_hex(std::string_view text, std::span<std::byte> bytes) {
  const auto digit = [](char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
  };
  for (size_t i = 0; i < bytes.size(); ++i) {
    const int high = digit(text[2 * i]), low = digit(text[2 * i + 1]);
    if (high < 0 || low < 0) return false;
    bytes[i] = static_cast<std::byte>(high << 4 | low);
  }
  return true;
}

// ------------------------------------------------------------------ prunes

namespace {

constexpr size_t kPruneBytes = 32;  // size of an entry in PRUNES

// Checks that the positions of each prune existed after the previous one. They may be beyond the
// capacity, since a state can be restored with a smaller one. Checks that the tokens
// listed as removed are as many as its shift removed, and are within the vocabulary.
void check_prunes(const std::vector<Prune>& prunes, int64_t vocab, int64_t positions,
                  const std::string& file) {
  int64_t before = 0;
  for (size_t i = 0; i < prunes.size(); ++i) {
    const Prune& p = prunes[i];
    const auto check = [&](const char* field, int64_t x, int64_t min, int64_t max) {
      if (x >= min && x <= max) return;
      throw Error(ErrorKind::format, file, fmt::format("prunes[{}].{}", i, field),
                  fmt::format("{}..{}", min, max), std::to_string(x));
    };
    check("at", p.at, before, kMaxPositions);
    check("end", p.end, 0, p.at);
    check("begin", p.begin, 0, p.end);
    const int64_t removed = p.shift ? p.end - p.begin : 0;
    check("removed", static_cast<int64_t>(p.removed.size()), removed, removed);
    for (const int32_t id : p.removed) check("removed", id, 0, vocab - 1);
    before = p.left();
  }
  if (before > positions)
    throw Error(ErrorKind::format, file, "prunes",
                fmt::format("at most {} positions left", positions), std::to_string(before));
}

}  // namespace

std::vector<Prune> decode_prunes(std::span<const std::byte> log, std::span<const std::byte> removed,
                                 const SnapshotMeta& m, int64_t vocab, const std::string& file) {
  for (const auto& [name, found, most] :
       {std::tuple("PRUNES", log.size(), kMaxPrunes * kPruneBytes),
        std::tuple("REMOVED", removed.size(), kMaxRemoved * 4)}) {
    if (found > most)
      throw Error(ErrorKind::format, file, name, fmt::format("at most {} bytes", most),
                  std::to_string(found));
  }
  std::vector<Prune> prunes;
  prunes.reserve(log.size() / kPruneBytes);
  ByteReader r(log, file), ids(removed, file);
  const auto position = [&](const char* field) {
    return static_cast<int64_t>(std::min<uint64_t>(r.u64(field), kMaxPositions + 1));
  };
  while (r.remaining() > 0) {
    Prune p{position("PRUNES: at"), position("PRUNES: begin"), position("PRUNES: end"), false, {}};
    const uint32_t kind = r.u32("PRUNES: positions");
    r.u32("PRUNES: reserved");
    if (kind > 1)
      throw Error(ErrorKind::format, file, "PRUNES: positions", "0 or 1", std::to_string(kind));
    p.shift = kind == 1;
    const int64_t count = p.shift && p.end > p.begin ? p.end - p.begin : 0;
    const std::span<const std::byte> bytes =
        ids.bytes(static_cast<uint64_t>(count) * sizeof(int32_t), "REMOVED");
    p.removed.resize(static_cast<size_t>(count));
    if (count > 0) std::memcpy(p.removed.data(), bytes.data(), bytes.size());
    prunes.push_back(std::move(p));
  }
  ids.end("REMOVED");
  check_prunes(prunes, vocab, m.positions, file);
  return prunes;
}

void encode_prunes(const std::vector<Prune>& prunes,
                   const std::function<void(std::string_view)>& piece) {
  std::string text = "[";
  for (size_t i = 0; i < prunes.size(); ++i) {
    const Prune& p = prunes[i];
    text += fmt::format(R"({}{{"at":{},"begin":{},"end":{},"positions":"{}","removed":[)",
                        i == 0 ? "" : ",", p.at, p.begin, p.end, p.shift ? "shift" : "keep");
    for (size_t k = 0; k < p.removed.size(); ++k) {
      text += (k == 0 ? "" : ",") + std::to_string(p.removed[k]);
      if (text.size() > 4096) piece(std::exchange(text, ""));
    }
    text += "]}";
  }
  piece(text + "]");
}

void encode_prunes(const std::vector<Prune>& prunes, ByteWriter& log, ByteWriter& removed) {
  for (const Prune& p : prunes) {
    for (const int64_t x : {p.at, p.begin, p.end}) log.u64(static_cast<uint64_t>(x));
    log.u32(p.shift ? 1 : 0);
    log.u32(0);
    removed.bytes(std::as_bytes(std::span(p.removed)));
  }
}

// ------------------------------------------------------------------- edits

namespace {

constexpr KvEdit::What kEdits[] = {KvEdit::What::key,     KvEdit::What::value,
                                   KvEdit::What::kv_type, KvEdit::What::callback,
                                   KvEdit::What::splice,  KvEdit::What::arrays};
constexpr const char* kHows[] = {"set", "scale", "copy"};  // indexed by KvEdit::How

}  // namespace

nlohmann::json edits_json(const std::vector<KvEdit>& edits) {
  nlohmann::json list = nlohmann::json::array();
  for (const KvEdit& e : edits) {
    list.push_back({{"what", kv_edit_name(e.what)},
                    {"at", e.at},
                    {"prunes", e.prunes},
                    {"position", e.position},
                    {"layer", e.layer},
                    {"head", e.head}});
    if (e.end >= 0) list.back()["end"] = e.end;
    if (e.how != KvEdit::How::set) list.back()["how"] = kHows[static_cast<int>(e.how)];
    if (!e.source.empty()) list.back()["source"] = e.source;
  }
  return list;
}

std::vector<KvEdit> decode_edits(const JsonReader& json, const SnapshotMeta& m) {
  std::vector<KvEdit> edits;
  if (!json.has("edits")) return edits;
  for (const JsonReader& entry : json.objects("edits")) {
    KvEdit e;
    const std::string what = entry.string("what");
    const auto found = std::find_if(std::begin(kEdits), std::end(kEdits),
                                    [&](KvEdit::What w) { return what == kv_edit_name(w); });
    if (found == std::end(kEdits))
      entry.fail("what", "key, value, kv type, callback, splice or arrays");
    e.what = *found;
    e.at = entry.integer("at", 0, kMaxPositions);
    e.prunes = entry.integer("prunes", 0, static_cast<int64_t>(m.prunes.size()));
    e.position = entry.integer("position", -1, kMaxPositions - 1);
    e.layer = entry.integer("layer", -1, m.kv.layers - 1);
    int64_t heads = e.what == KvEdit::What::arrays ? 2 : 0;
    for (int64_t l = 0; l < m.kv.layers; ++l) heads = std::max(heads, m.kv.layer(l).kv_heads);
    e.head = entry.integer("head", -1, heads - 1);
    e.end = entry.integer_or("end", -1, -1, kMaxPositions);
    const std::string how = entry.string_or("how", kHows[0]);
    const auto known = std::find(std::begin(kHows), std::end(kHows), how);
    if (known == std::end(kHows)) entry.fail("how", "set, scale or copy");
    e.how = static_cast<KvEdit::How>(known - std::begin(kHows));
    e.source = entry.string_or("source", "");
    if (e.source.size() > kMaxEditSource)
      throw Error(ErrorKind::format, json.file(), entry.path_of("source"),
                  fmt::format("at most {} bytes", kMaxEditSource), std::to_string(e.source.size()));
    const bool ranged = e.what != KvEdit::What::kv_type;
    if (ranged ? e.position < 0 || (e.end >= 0 && e.end <= e.position)
               : e.position >= 0 || e.end >= 0)
      entry.fail("position", ranged ? "a position, before end" : "-1: all");
    edits.push_back(std::move(e));
  }
  return edits;
}

std::string encode_edits(const std::vector<KvEdit>& edits) { return edits_json(edits).dump(); }

// ----------------------------------------------------------- interventions

namespace {

std::string hex_of(std::span<const float> values) { return hex_text(std::as_bytes(values)); }

std::vector<float> floats_of(const JsonReader& entry, const std::string& name) {
  const std::string text = entry.string(name);
  std::vector<float> values(text.size() / 8);
  if (text.size() % 8 != 0 || !parse_hex(text, std::as_writable_bytes(std::span(values))))
    entry.fail(name, "float32 in hexadecimal");
  return values;
}

constexpr Intervention::Op kOps[] = {Intervention::Op::set, Intervention::Op::add,
                                     Intervention::Op::scale, Intervention::Op::project_out,
                                     Intervention::Op::clamp};

}  // namespace

nlohmann::json interventions_json(const std::vector<Intervention>& all) {
  const auto bits = [](float x) { return hex_of({&x, 1}); };
  nlohmann::json list = nlohmann::json::array();
  for (const Intervention& w : all) {
    list.push_back({{"point", point_info(w.point).name},
                    {"layers", w.layers},
                    {"heads", w.heads},
                    {"begin", w.begin},
                    {"end", w.end},
                    {"op", intervention_op_name(w.op)},
                    {"amount", bits(w.amount)},
                    {"bias", bits(w.bias)},
                    {"threshold", bits(w.threshold)},
                    {"values", w.values ? hex_of(*w.values) : ""},
                    {"at", w.at},
                    {"prunes", w.prunes}});
    if (w.ended >= 0) list.back()["ended"] = w.ended;
    if (w.key_begin != 0) list.back()["key_begin"] = w.key_begin;
    if (w.key_end >= 0) list.back()["key_end"] = w.key_end;
  }
  return list;
}

namespace {

Intervention read_intervention(const JsonReader& entry, const SnapshotMeta& m) {
  Intervention w;
  const auto point = parse_point(entry.string("point"));
  if (!point) entry.fail("point", "the name of a point");
  w.point = *point;
  const auto indices = [&](const char* name) {
    std::vector<int64_t> all;
    for (const int64_t i : entry.integers(name, 0, kMaxSize)) all.push_back(i);
    return all;
  };
  w.layers = indices("layers");
  w.heads = indices("heads");
  w.begin = entry.integer("begin", 0, kMaxPositions);
  w.end = entry.integer("end", -1, kMaxPositions);
  w.key_begin = entry.integer_or("key_begin", 0, 0, kMaxPositions);
  w.key_end = entry.integer_or("key_end", -1, -1, kMaxPositions);
  const std::string op = entry.string("op");
  const auto found = std::find_if(std::begin(kOps), std::end(kOps),
                                  [&](auto o) { return op == intervention_op_name(o); });
  if (found == std::end(kOps)) entry.fail("op", "the name of an operation");
  w.op = *found;
  for (const auto& [name, to] : {std::pair("amount", &w.amount), std::pair("bias", &w.bias),
                                 std::pair("threshold", &w.threshold)}) {
    const std::vector<float> value = floats_of(entry, name);
    if (value.size() != 1) entry.fail(name, "one float32 in hexadecimal");
    *to = value[0];
  }
  if (std::vector<float> values = floats_of(entry, "values"); !values.empty())
    w.values = std::make_shared<const std::vector<float>>(std::move(values));
  w.at = entry.integer("at", 0, kMaxPositions);
  w.prunes = entry.integer("prunes", 0, static_cast<int64_t>(m.prunes.size()));
  w.ended = entry.integer_or("ended", -1, w.prunes + 1, static_cast<int64_t>(m.prunes.size()));
  return w;
}

}  // namespace

std::vector<Intervention> decode_interventions(const JsonReader& json, const SnapshotMeta& m,
                                               const ModelConfig& config) {
  std::vector<Intervention> all;
  if (!json.has("interventions")) return all;
  for (const JsonReader& entry : json.objects("interventions")) {
    all.push_back(read_intervention(entry, m));
    const Intervention& w = all.back();
    try {
      check_intervention(config, w);
    } catch (const Error& e) {
      throw Error(ErrorKind::format, json.file(), entry.path_of("values"), e.expected, e.found);
    }
    const size_t k = static_cast<size_t>(w.prunes);
    const int64_t least = k == 0 ? 0 : m.prunes[k - 1].left(),
                  most = k == m.prunes.size() ? m.positions : m.prunes[k].at;
    const bool in_order =
        all.size() < 2 ||
        std::pair(all[all.size() - 2].prunes, all[all.size() - 2].at) <= std::pair(w.prunes, w.at);
    if (w.at < least || w.at > most || !in_order) entry.fail("at", "a position in their order");
  }
  return all;
}

std::string encode_interventions(const std::vector<Intervention>& all) {
  return interventions_json(all).dump();
}

}  // namespace stet
