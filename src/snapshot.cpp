// The snapshot format, version 1. Integers are little-endian, digests are XXH3-128 as two u64, low half first.
//
//   header, 128 bytes
//     0   8  magic: 93 'S' 'T' 'E' 'T' 0D 0A 1A
//     8   4  format version: 1
//    12   4  bytes of this header: 128
//    16   8  required features: bits that a reader must know; none is defined
//    24   8  optional features: bits that a reader may ignore; none is defined
//    32   8  size of the file
//    40   4  number of sections
//    44   4  0
//    48   8  offset of the section table: 128
//    56  16  digest of the section table
//    72  16  state digest (see digests_of)
//    88  24  0
//   112  16  digest of bytes 0 .. 111
//   section table, 64 bytes for each section
//     0   8  name, padded with zero bytes
//     8   8  offset
//    16   8  size
//    24   4  flags: bit 0: a reader that does not know the section must refuse the file
//    28   4  encoding: 0: bytes as they are
//    32  16  digest of the section's bytes; for KV: of the BLOCKS section
//    48  16  0
//   sections, in this order
//     META     JSON: contract, kv type, model config and fingerprints, tokenizer fingerprint, capacity,
//              generation state (sampling, seed, stops, turns, what an open reply holds back)
//     TOKENS   i32 per position
//     VISIBLE  u64 per block: bit t is set when position 64 b + t may be attended to
//     LOGITS   f32 [vocab_size], of the last position
//     BLOCKS   a digest per block of the KV section
//     KV       starts at a multiple of 65536; per 64 positions one block as in memory (see kv_cache.hpp), padded
//              to whole 4096-byte pages; slots of positions that do not exist are zero
//
// Every byte is covered: header by its own digest, table by the header's, sections by the table's, blocks by
// BLOCKS, and gaps between sections must be zero.
#include "stet/snapshot.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "src/json_reader.hpp"
#include "stet/bytes.hpp"
#include "stet/error.hpp"

namespace stet {
namespace {

constexpr char kMagic[] = "\x93STET\r\n\x1a";
constexpr uint64_t kHeaderBytes = 128, kEntryBytes = 64, kKvAlignment = 65536, kMaxSections = 256;
constexpr uint32_t kMustKnow = 1;
const char* const kNames[] = {"META", "TOKENS", "VISIBLE", "LOGITS", "BLOCKS", "KV"};

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& v) {
  return std::as_bytes(std::span(v));
}

void put(ByteWriter& w, const Digest& d) {
  w.u64(d.low);
  w.u64(d.high);
}
Digest get(ByteReader& r, std::string_view field) {
  Digest d;
  d.low = r.u64(field);
  d.high = r.u64(field);
  return d;
}

std::string hex(const std::string& bytes) {
  static const char* digits = "0123456789abcdef";
  std::string out;
  for (const char c : bytes) {
    out += digits[static_cast<unsigned char>(c) >> 4];
    out += digits[static_cast<unsigned char>(c) & 15];
  }
  return out;
}

std::string unhex(const JsonReader& json, const std::string& name) {
  const std::string text = json.string_or(name, "");
  const auto digit = [&](char c) {
    const size_t at = std::string_view("0123456789abcdef").find(c);
    if (at == std::string_view::npos) json.fail(name, "hex digits");
    return static_cast<int>(at);
  };
  if (text.size() % 2 != 0) json.fail(name, "an even number of hex digits");
  std::string out;
  for (size_t i = 0; i < text.size(); i += 2) out += static_cast<char>(digit(text[i]) * 16 + digit(text[i + 1]));
  return out;
}

nlohmann::json generation_json(const GenerationState& g) {
  nlohmann::json turns = nlohmann::json::array();
  for (const Turn& t : g.turns) {
    turns.push_back({{"prompt", t.prompt}, {"reply", t.reply}, {"end", t.end}, {"open", t.open}});
  }
  const SamplingSettings& s = g.sampling;
  return {{"greedy", s.greedy}, {"temperature", s.temperature}, {"top_k", s.top_k}, {"top_p", s.top_p},
          {"min_p", s.min_p}, {"typical_p", s.typical_p}, {"repetition_penalty", s.repetition_penalty},
          {"seed", hex({reinterpret_cast<const char*>(&s.seed), 8})}, {"stop_ids", g.stop_ids},
          {"stop_strings", g.stop_strings}, {"turns", turns}, {"stream", hex(g.stream)}, {"held", hex(g.held)}};
}

GenerationState read_generation(const JsonReader& json, int64_t positions, int64_t vocab) {
  GenerationState g;
  SamplingSettings& s = g.sampling;
  s.greedy = json.boolean("greedy");
  s.temperature = json.number("temperature");
  s.top_k = static_cast<int>(json.integer("top_k", 0, std::numeric_limits<int>::max()));
  s.top_p = json.number("top_p");
  s.min_p = json.number("min_p");
  s.typical_p = json.number("typical_p");
  s.repetition_penalty = json.number("repetition_penalty");
  const std::string seed = unhex(json, "seed");
  if (seed.size() != 8) json.fail("seed", "16 hex digits");
  std::memcpy(&s.seed, seed.data(), 8);
  s.validate(json.file());
  for (int64_t id : json.integers("stop_ids", 0, vocab - 1)) g.stop_ids.push_back(static_cast<int32_t>(id));
  g.stop_strings = json.strings("stop_strings");
  const nlohmann::json& turns = json.json().at("turns");
  if (!turns.is_array()) json.fail("turns", "an array");
  int64_t at = 0;
  for (size_t i = 0; i < turns.size(); ++i) {
    const std::string path = json.path_of("turns") + "[" + std::to_string(i) + "]";
    if (!turns[i].is_object()) json.fail("turns", "an array of objects");
    const JsonReader t(std::make_shared<nlohmann::json>(turns[i]), json.file(), path);
    Turn turn;
    turn.prompt = t.integer("prompt", at, positions);
    turn.reply = t.integer("reply", turn.prompt, positions);
    turn.end = t.integer("end", turn.reply, positions);
    turn.open = t.boolean("open");
    at = turn.end;
    g.turns.push_back(turn);
  }
  g.stream = unhex(json, "stream");
  g.held = unhex(json, "held");
  return g;
}

std::string meta_json(const Session& session, const std::string& tokenizer) {
  nlohmann::json fingerprints = nlohmann::json::array();
  for (const auto& [name, digest] : session.model().fingerprints()) {
    fingerprints.push_back({{"name", name}, {"digest", digest_text(digest)}});
  }
  const KvShape& shape = session.kv().shape();
  const nlohmann::json meta = {
      {"contract", contract_name(session.compute())},
      {"contract_version", kContractVersion},
      {"architecture", session.model().config().architecture},
      {"config", nlohmann::json::parse(session.model().config().canonical())},
      {"fingerprints", fingerprints},
      {"tokenizer", tokenizer},
      {"capacity", session.capacity()},
      {"positions", session.size()},
      {"kv", {{"type", kv_type_name(shape.type)}, {"layers", shape.layers}, {"heads", shape.kv_heads}, {"head_dim", shape.head_dim}}},
      {"generation", generation_json(session.generation())}};
  return meta.dump();
}

int64_t used_blocks(int64_t positions) { return (positions + kBlockPositions - 1) / kBlockPositions; }

std::vector<uint64_t> visibility(const KvCache& kv) {
  std::vector<uint64_t> bits;
  for (int64_t b = 0; b < used_blocks(kv.size()); ++b) bits.push_back(kv.visible(b));
  return bits;
}

std::vector<Digest> block_digests(const Session& session) {
  const KvCache& kv = session.kv();
  std::vector<Digest> digests(static_cast<size_t>(used_blocks(kv.size())));
  run_team(session.compute().threads > 0 ? session.compute().threads : default_threads(), [&](Team team) {
    const Range mine = team.share(digests.size());
    for (size_t b = mine.begin; b < mine.end; ++b) {
      digests[b] = digest_of({kv.block(static_cast<int64_t>(b)), kv.shape().block_bytes()});
    }
  });
  return digests;
}

// The state digest covers, each as its digest: contract and its version, kv type, the model, the generation
// state; then tokens, visibility, logits and blocks.
StateDigests combine(const std::string& contract, int contract_version, KvType type, const std::string& model,
                     const GenerationState& generation, std::span<const int32_t> tokens,
                     std::span<const uint64_t> visible, std::span<const float> logits, std::span<const Digest> blocks) {
  StateDigests d;
  d.tokens = digest_of(std::as_bytes(tokens));
  d.logits = digest_of(std::as_bytes(logits));
  d.kv = digest_of(std::as_bytes(blocks));
  ByteWriter w;
  w.text(contract + " " + std::to_string(contract_version) + " " + kv_type_name(type) + " " + model + " ");
  w.text(generation_json(generation).dump());
  put(w, d.tokens);
  put(w, digest_of(std::as_bytes(visible)));
  put(w, d.logits);
  put(w, d.kv);
  d.state = digest_of(w.data());
  return d;
}

std::string model_digest(const Model& model) { return digest_text(model.fingerprints().back().second); }

struct Parts {
  std::string meta;
  std::vector<uint64_t> visible;
  std::vector<Digest> blocks;
  StateDigests digests;
};

Parts collect(Session& session, const std::string& tokenizer) {
  Parts p;
  const std::span<const float> logits = session.logits();  // may compute: before anything else is looked at
  p.meta = meta_json(session, tokenizer);
  p.visible = visibility(session.kv());
  p.blocks = block_digests(session);
  p.digests = combine(contract_name(session.compute()), kContractVersion, session.kv().shape().type,
                      model_digest(session.model()), session.generation(), session.tokens(), p.visible, logits, p.blocks);
  return p;
}

std::vector<std::byte> header(uint64_t file_size, const std::vector<std::byte>& table, const Digest& state) {
  ByteWriter w;
  w.text({kMagic, 8});
  w.u32(kSnapshotVersion);
  w.u32(kHeaderBytes);
  w.u64(0);
  w.u64(0);
  w.u64(file_size);
  w.u32(static_cast<uint32_t>(table.size() / kEntryBytes));
  w.u32(0);
  w.u64(kHeaderBytes);
  put(w, digest_of(table));
  put(w, state);
  w.zeros(112 - w.size());
  put(w, digest_of(w.data()));
  return w.take();
}

[[noreturn]] void damaged(const std::string& path, const std::string& field, const std::string& expected,
                          const std::string& found) {
  throw Error(ErrorKind::format, path, field, expected, found);
}

void check_digest(const std::string& path, const std::string& field, const Digest& expected,
                  std::span<const std::byte> bytes) {
  const Digest found = digest_of(bytes);
  if (!(found == expected)) damaged(path, field, "digest " + digest_text(expected), digest_text(found));
}

void check_zero(const std::string& path, const std::string& field, std::span<const std::byte> bytes) {
  for (const std::byte b : bytes) {
    if (b != std::byte{0}) damaged(path, field, "zero bytes", std::to_string(static_cast<int>(b)));
  }
}

template <class T>
std::vector<T> read_array(const std::string& path, const Snapshot::Section& s, std::span<const std::byte> file, size_t count) {
  if (s.size != count * sizeof(T)) {
    damaged(path, s.name, std::to_string(count * sizeof(T)) + " bytes", std::to_string(s.size));
  }
  std::vector<T> out(count);
  std::memcpy(out.data(), file.data() + s.offset, s.size);
  return out;
}

}  // namespace

StateDigests digests_of(Session& session) { return collect(session, "").digests; }

uint64_t Snapshot::file_size() const { return file_->bytes().size(); }

StateDigests Snapshot::save(Session& session, const std::string& tokenizer, const std::string& path) {
  const Parts p = collect(session, tokenizer);
  const KvCache& kv = session.kv();
  const uint64_t block_bytes = kv.shape().block_bytes();
  const std::span<const std::byte> contents[] = {
      std::as_bytes(std::span(p.meta)), bytes_of(session.tokens()), bytes_of(p.visible),
      std::as_bytes(session.logits()),  bytes_of(p.blocks),         {}};
  ByteWriter table;
  uint64_t at = kHeaderBytes + kEntryBytes * std::size(kNames);
  std::vector<uint64_t> offsets;
  for (size_t i = 0; i < std::size(kNames); ++i) {
    const bool is_kv = i + 1 == std::size(kNames);
    const uint64_t alignment = is_kv ? kKvAlignment : 64;
    const uint64_t size = is_kv ? block_bytes * p.blocks.size() : contents[i].size();
    at = (at + alignment - 1) / alignment * alignment;
    offsets.push_back(at);
    const std::string name = kNames[i];
    table.text(name);
    table.zeros(8 - name.size());
    table.u64(at);
    table.u64(size);
    table.u32(kMustKnow);
    table.u32(0);
    put(table, is_kv ? p.digests.kv : digest_of(contents[i]));
    table.zeros(16);
    at += size;
  }
  AtomicFile file(path);
  const auto fill = [&](uint64_t to) {
    static const std::byte zeros[4096] = {};
    while (file.written() < to) file.write({zeros, static_cast<size_t>(std::min<uint64_t>(4096, to - file.written()))});
  };
  file.write(header(at, table.data(), p.digests.state));
  file.write(table.data());
  for (size_t i = 0; i < std::size(kNames); ++i) {
    fill(offsets[i]);
    file.write(contents[i]);
  }
  for (size_t b = 0; b < p.blocks.size(); ++b) file.write({kv.block(static_cast<int64_t>(b)), block_bytes});
  file.commit();
  return p.digests;
}

Snapshot Snapshot::open(const std::string& path) {
  Snapshot s;
  s.path_ = path;
  s.file_ = MappedFile::open(path);
  const std::span<const std::byte> file = s.file_->bytes();
  ByteReader r(file, path);
  if (file.size() < 8 || std::memcmp(file.data(), kMagic, 8) != 0) damaged(path, "magic", "a stet snapshot", "another file");
  r.bytes(8, "magic");
  s.version_ = r.u32("version");
  if (s.version_ != kSnapshotVersion) {
    throw Error(ErrorKind::unsupported, path, "format version", std::to_string(kSnapshotVersion), std::to_string(s.version_));
  }
  if (file.size() < kHeaderBytes) damaged(path, "header", "128 bytes", std::to_string(file.size()));
  const uint32_t header_bytes = r.u32("header size");
  const uint64_t required = r.u64("required features");
  r.u64("optional features");
  const uint64_t size = r.u64("file size");
  const uint32_t count = r.u32("sections");
  r.u32("reserved");
  const uint64_t table_at = r.u64("section table");
  const Digest table_digest = get(r, "table digest");
  const Digest state = get(r, "state digest");
  r.bytes(24, "reserved");
  const Digest header_digest = get(r, "header digest");
  check_digest(path, "header", header_digest, file.first(112));
  if (required != 0) {
    throw Error(ErrorKind::unsupported, path, "required features", "none", std::to_string(required));
  }
  if (header_bytes != kHeaderBytes || table_at != kHeaderBytes) damaged(path, "header size", "128", std::to_string(header_bytes));
  if (size != file.size()) damaged(path, "file size", std::to_string(size) + " bytes", std::to_string(file.size()));
  if (count > kMaxSections || file.size() - kHeaderBytes < count * kEntryBytes) {
    damaged(path, "sections", "a table inside the file", std::to_string(count) + " entries");
  }
  const std::span<const std::byte> table = file.subspan(kHeaderBytes, count * kEntryBytes);
  check_digest(path, "section table", table_digest, table);
  ByteReader t(table, path);
  uint64_t end = kHeaderBytes + table.size();
  for (uint32_t i = 0; i < count; ++i) {
    Section section;
    const std::string name = t.text(8, "section name");
    section.name = name.substr(0, name.find('\0'));
    section.offset = t.u64("offset");
    section.size = t.u64("size");
    const uint32_t flags = t.u32("flags"), encoding = t.u32("encoding");
    section.digest = get(t, "digest");
    t.bytes(16, "reserved");
    if (section.offset < end || section.offset > size || section.size > size - section.offset) {
      damaged(path, section.name, "a section after the one before it and inside the file",
              std::to_string(section.offset) + " + " + std::to_string(section.size));
    }
    check_zero(path, "bytes before " + section.name, file.subspan(end, section.offset - end));
    end = section.offset + section.size;
    const bool known = std::find(std::begin(kNames), std::end(kNames), section.name) != std::end(kNames);
    if ((!known && (flags & kMustKnow) != 0) || encoding != 0) {
      throw Error(ErrorKind::unsupported, path, "section " + section.name, "one that this version knows",
                  "flags " + std::to_string(flags) + ", encoding " + std::to_string(encoding));
    }
    if (section.name != "KV") check_digest(path, section.name, section.digest, file.subspan(section.offset, section.size));
    s.sections_.push_back(section);
  }
  if (end != size) damaged(path, "file size", std::to_string(end) + " bytes", std::to_string(size));
  const auto find = [&](const std::string& name) -> const Section& {
    for (const Section& section : s.sections_) {
      if (section.name == name) return section;
    }
    damaged(path, "section " + name, "one", "none");
  };
  const Section& meta = find("META");
  s.read_meta(file.subspan(meta.offset, meta.size));
  const size_t positions = s.positions_;
  const size_t blocks = static_cast<size_t>(used_blocks(static_cast<int64_t>(positions)));
  s.tokens_ = read_array<int32_t>(path, find("TOKENS"), file, positions);
  s.visible_ = read_array<uint64_t>(path, find("VISIBLE"), file, blocks);
  s.logits_ = read_array<float>(path, find("LOGITS"), file, find("LOGITS").size / 4);
  s.blocks_ = read_array<Digest>(path, find("BLOCKS"), file, blocks);
  const Section& kv = find("KV");
  if (kv.size != blocks * s.shape_.block_bytes()) {
    damaged(path, "KV", std::to_string(blocks * s.shape_.block_bytes()) + " bytes", std::to_string(kv.size));
  }
  if (!(kv.digest == find("BLOCKS").digest)) damaged(path, "KV", "the digest of BLOCKS", digest_text(kv.digest));
  s.digests_ = combine(s.contract_, s.contract_version_, s.shape_.type, s.fingerprints_.back().second, s.generation_,
                       s.tokens_, s.visible_, s.logits_, s.blocks_);
  if (!(s.digests_.state == state)) damaged(path, "state", digest_text(state), digest_text(s.digests_.state));
  return s;
}

void Snapshot::read_meta(std::span<const std::byte> bytes) {
  const std::string where = path_ + ": META";
  const JsonReader json = parse_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, where);
  contract_ = json.string("contract");
  contract_version_ = static_cast<int>(json.integer("contract_version", 1, 1 << 20));
  architecture_ = json.string("architecture");
  const JsonReader config = json.required_object("config");
  config_ = config.json().dump();
  tokenizer_ = json.string("tokenizer");
  const JsonReader kv = json.required_object("kv");
  shape_ = {kv.integer("layers", 1, 1024), kv.integer("heads", 1, 1024), kv.integer("head_dim", 2, 1024),
            kv_type_of(kv.string("type"))};
  capacity_ = json.integer("capacity", 1, int64_t{1} << 24);
  const int64_t positions = json.integer("positions", 0, capacity_);
  positions_ = static_cast<size_t>(positions);
  generation_ = read_generation(json.required_object("generation"), positions, config.integer("vocab_size", 1, int64_t{1} << 20));
  if (!json.json().contains("fingerprints") || !json.json().at("fingerprints").is_array()) json.fail("fingerprints", "an array");
  for (const nlohmann::json& entry : json.json().at("fingerprints")) {
    if (!entry.is_object()) json.fail("fingerprints", "an array of objects");
    const JsonReader e(std::make_shared<nlohmann::json>(entry), where, "fingerprints[]");
    fingerprints_.emplace_back(e.string("name"), e.string("digest"));
  }
  if (fingerprints_.empty() || fingerprints_.back().first != "model") json.fail("fingerprints", "\"model\" at their end");
}

void Snapshot::check_compatible(const Model& model, const std::string& tokenizer, const SessionOptions& options) const {
  std::string field, expected, found;
  const auto compare = [&](const std::string& name, const std::string& here, const std::string& there) {
    if (here == there) return;
    for (auto [list, text] : {std::pair{&field, &name}, std::pair{&expected, &there}, std::pair{&found, &here}}) {
      *list += (list->empty() ? "" : ", ") + (text->empty() ? std::string("none") : *text);
    }
  };
  compare("contract", contract_name(options.compute) + " version " + std::to_string(kContractVersion),
          contract_ + " version " + std::to_string(contract_version_));
  compare("architecture", model.config().architecture, architecture_);
  std::string all;
  for (const auto& [name, digest] : model.fingerprints()) {
    std::string there = "none";
    for (const auto& [other, text] : fingerprints_) {
      if (other == name) there = text;
    }
    if (name != "model") compare(name == "config" ? "config" : name + " weights", digest_text(digest), there);
  }
  if (!tokenizer.empty() && !tokenizer_.empty()) compare("tokenizer", tokenizer, tokenizer_);
  if (!field.empty()) throw Error(ErrorKind::mismatch, path_, field, expected, found);
}

Session Snapshot::restore(std::shared_ptr<const Model> model, const std::string& tokenizer,
                          const SessionOptions& options) const {
  check_compatible(*model, tokenizer, options);
  SessionOptions o = options;
  if (o.capacity == 0) o.capacity = capacity_;
  o.kv_type = shape_.type;
  Session session(std::move(model), o);
  if (!(session.kv_.shape() == shape_)) damaged(path_, "META: kv", "the shape of the model's config", "another");
  if (static_cast<int64_t>(logits_.size()) != (tokens_.empty() ? 0 : session.model().config().vocab_size)) {
    damaged(path_, "LOGITS", "one per token of the vocabulary", std::to_string(logits_.size()));
  }
  const int64_t positions = static_cast<int64_t>(tokens_.size());
  for (size_t i = 0; i < tokens_.size(); ++i) {
    if (tokens_[i] < 0 || tokens_[i] >= session.model().config().vocab_size) {
      damaged(path_, "TOKENS[" + std::to_string(i) + "]", "a token of the vocabulary", std::to_string(tokens_[i]));
    }
  }
  session.kv_.prepare(positions);
  const std::byte* kv = file_->bytes().data() + sections_.back().offset;
  for (const Section& section : sections_) {
    if (section.name == "KV") kv = file_->bytes().data() + section.offset;
  }
  const size_t block_bytes = shape_.block_bytes();
  std::vector<char> intact(blocks_.size(), 0);
  run_team(o.compute.threads > 0 ? o.compute.threads : default_threads(), [&](Team team) {
    const Range mine = team.share(blocks_.size());
    for (size_t b = mine.begin; b < mine.end; ++b) {
      std::byte* to = session.kv_.writable(static_cast<int64_t>(b));
      std::memcpy(to, kv + b * block_bytes, block_bytes);
      intact[b] = digest_of({to, block_bytes}) == blocks_[b];
    }
  });
  for (size_t b = 0; b < blocks_.size(); ++b) {
    if (!intact[b]) {
      damaged(path_, "KV block " + std::to_string(b), "digest " + digest_text(blocks_[b]),
              digest_text(digest_of({kv + b * block_bytes, block_bytes})));
    }
    session.kv_.set_visible(static_cast<int64_t>(b), visible_[b]);
  }
  session.kv_.commit(positions);
  session.tokens_ = tokens_;
  session.logits_ = logits_;
  session.generation_ = generation_;
  return session;
}

}  // namespace stet
