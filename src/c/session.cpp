// C interface: sessions and batches.
#include <algorithm>

#include "src/c/internal.hpp"
#include "stet/kv/kv_cache.hpp"
#include "stet/session/lens.hpp"
#include "stet/session/published_arrays.hpp"

namespace stet::c {
namespace {

// Returns the contract that a model's weights were loaded for.
Contract default_contract(const Model& model) { return model.contract(); }

LogitSink logit_sink(const stet_watch& watch) {
  if (watch.on_logits == nullptr) return nullptr;
  return [&watch](int64_t first, Rows rows) {
    for (size_t i = 0; i < rows.count; ++i) {
      const int64_t position = first + static_cast<int64_t>(i);
      if (watch.on_logits(watch.context, position, rows.row(i), rows.width) != 0) throw Canceled();
    }
  };
}

HiddenSink hidden_sink(const stet_watch& watch) {
  if (watch.on_hidden == nullptr) return nullptr;
  return [&watch](size_t index, int64_t first, Rows rows) {
    for (size_t i = 0; i < rows.count; ++i) {
      const int64_t position = first + static_cast<int64_t>(i);
      if (watch.on_hidden(watch.context, index, position, rows.row(i), rows.width) != 0)
        throw Canceled();
    }
  };
}

// Returns the watch of the points that the caller asks for; empty without a callback.
Watch points_watch(const stet_watch& w) {
  Watch watch;
  if (w.on_point == nullptr) {
    if (w.point_count > 0 || w.state_position_count > 0)
      fail("on_point", "a function that receives the points", "NULL");
    return watch;
  }
  for (const char* name : items(w.points, w.point_count, "points"))
    watch.points.push_back(point_of(name, "points"));
  const auto positions = items(w.state_positions, w.state_position_count, "state_positions");
  watch.state_positions.assign(positions.begin(), positions.end());
  watch.sink = [&w, points = watch.points](const PointAt& at, int64_t first, Rows rows) {
    const auto index =
        static_cast<size_t>(std::find(points.begin(), points.end(), at) - points.begin());
    for (size_t i = 0; i < rows.count; ++i) {
      const int64_t position = first + static_cast<int64_t>(i);
      if (w.on_point(w.context, index, position, rows.row(i), rows.width) != 0) throw Canceled();
    }
  };
  return watch;
}

stet_session_info info_of(const Session& s) {
  stet_session_info i{};
  i.size = s.size();
  i.capacity = s.capacity();
  i.floor = s.prunes().empty() ? 0 : s.prunes().back().left();
  i.visible = visible_positions(s.kv());
  i.drawn = s.transcript_size();
  i.threads = s.compute().threads;
  i.chunk = s.compute().chunk;
  i.isa = s.compute().isa.c_str();
  i.contract_name = contract_name(s.model(), s.compute().contract);
  i.contract = contract_value(s.compute().contract);
  i.kv_type = kv_type_value(s.kv().shape().type);
  i.stop_ids = s.generation().stop_ids.size();
  i.stop_strings = s.generation().stop_strings.size();
  i.turns = s.generation().turns.size();
  i.messages = s.chat().messages.size();
  i.prunes = s.prunes().size();
  i.edits = s.edits().size();
  i.interventions = s.interventions().size();
  for (const std::vector<RecurrentArray>& layer : s.recurrent().shape().layers)
    i.recurrent_arrays += layer.size();
  i.anchors = s.anchors().size();
  return i;
}

PublishedArray array_at(const Session& s, size_t index) {
  return element(published_arrays(s.model().config()), index, "index");
}

void check_count(const PublishedArray& array, size_t count) {
  if (count != array.count())
    fail("x", std::to_string(array.count()) + " numbers", std::to_string(count));
}

stet_recurrent_array array_value(const PublishedArray& array) {
  stet_recurrent_array a{};
  a.layer = array.layer;
  a.name = array.name == "state" ? "state" : "conv";
  std::ranges::copy(array.dims, a.shape);
  a.dimensions = static_cast<int32_t>(array.dims.size());
  a.count = array.count();
  return a;
}

void check_index(const char* field, int64_t i, int64_t count) {
  if (i < 0 || i >= count) fail(field, "0.." + std::to_string(count - 1), std::to_string(i));
}

// Reads one row. If the mapped file of its block has changed, the session heals and it is read again.
void read_stored(Session& session, bool key, int64_t layer, int64_t head, int64_t position,
                 std::span<float> x) {
  const KvShape& shape = session.kv().shape();
  check_index("layer", layer, shape.layers);
  check_owns(shape, "layer", layer);
  check_index("head", head, shape.layer(layer).kv_heads);
  check_index("position", position, session.size());
  const size_t dim = stet::detail::row_dim(shape, key, layer);
  if (x.size() != dim) fail("x", std::to_string(dim) + " numbers", std::to_string(x.size()));
  if (!session.kv().block_info(position / kBlockPositions).holds_all())
    session.recall(position, position + 1);
  for (int tries = 0;; ++tries) {
    try {
      const stet::KvCache& kv = tries == 0 ? session.kv() : session.state().kv;
      const std::byte* block = kv.block(position / kBlockPositions);
      read_row(shape, key, block + shape.offset(key, layer, head), position % kBlockPositions, x);
      if (kv.pass_is_valid()) return;
    } catch (const stet::DamagedBlock&) {
      if (tries == stet::detail::kMaxRestarts) throw;
    }
    if (tries == stet::detail::kMaxRestarts) stet::detail::throw_file_keeps_changing();
  }
}

}  // namespace

Progress progress_of(stet_progress_callback callback, void* context) {
  if (callback == nullptr) return nullptr;
  return [=](int64_t done) {
    if (callback(context, done) != 0) throw Canceled();
  };
}

}  // namespace stet::c

using namespace stet::c;

stet_status stet_session_new(const stet_model* model, const stet_session_options* options,
                             stet_session** session, stet_error** error) {
  return guarded(error, [&] {
    stet_session*& to = output(session, "session");
    const std::shared_ptr<const stet::Model>& m = at(model, "model").model;
    to = new stet_session(stet::Session(m, session_options(options, default_contract(*m))));
  });
}

void stet_session_free(stet_session* session) {
  if (session != nullptr && session->own) delete session;
}

stet_status stet_session_fork(const stet_session* session, stet_session** fork,
                              stet_error** error) {
  return guarded(error, [&] {
    stet_session*& to = output(fork, "fork");
    to = new stet_session(at(session, "session").at->fork());
  });
}

stet_status stet_session_get_info(const stet_session* session, stet_session_info* info,
                                  stet_error** error) {
  return guarded(error, [&] {
    stet_session_info& to = checked(info, "info");
    give(info_of(*at(session, "session").at), to);
  });
}

stet_status stet_session_set_compute(stet_session* session, const stet_session_options* options,
                                     stet_error** error) {
  return guarded(error, [&] {
    stet::Session& s = *at(session, "session").at;
    const stet_session_options given = input(&at(options, "options"), "options");
    const std::pair<const char*, int64_t> fixed[] = {{"capacity", given.capacity},
                                                     {"kv_type", given.kv_type},
                                                     {"window_only", given.window_only},
                                                     {"recompute", given.recompute},
                                                     {"checkpoint_every", given.checkpoint_every},
                                                     {"anchor_bytes", given.anchor_bytes}};
    for (const auto& [name, value] : fixed)
      if (value != 0) fail(name, "0, since it cannot change", std::to_string(value));
    s.set_compute(session_options(options, s.compute().contract).compute);
  });
}

stet_status stet_session_append(stet_session* session, const int32_t* ids, size_t count,
                                stet_error** error) {
  return guarded(error, [&] { at(session, "session").at->append(items(ids, count, "ids")); });
}

stet_status stet_session_append_watched(stet_session* session, const int32_t* ids, size_t count,
                                        const stet_watch* watch, stet_error** error) {
  return guarded(error, [&] {
    const stet_watch w = input(watch, "watch");
    const stet::Watch points = points_watch(w);
    at(session, "session")
        .at->append(items(ids, count, "ids"), logit_sink(w), hidden_sink(w),
                    progress_of(w.on_progress, w.context),
                    points.points.empty() ? nullptr : &points);
  });
}

stet_status stet_session_attach(stet_session* session, const stet_intervention* intervention,
                                stet_error** error) {
  return guarded(error, [&] {
    const stet_intervention i = input(&at(intervention, "intervention"), "intervention");
    at(session, "session").at->attach(intervention_of(i));
  });
}

stet_status stet_session_lens(const stet_session* session, const float* residual, size_t rows,
                              float** logits, size_t* count, stet_error** error) {
  return guarded(error, [&] {
    const auto to = outputs(logits, "logits", count, "count");
    const stet::Session& s = *at(session, "session").at;
    const auto width = static_cast<size_t>(s.model().config().hidden_size);
    const size_t widest =
        std::max(width, static_cast<size_t>(s.model().config().vocab_size)) * sizeof(float);
    const size_t most = std::numeric_limits<std::ptrdiff_t>::max() / widest;
    if (rows > most) fail("rows", "at most " + std::to_string(most), std::to_string(rows));
    const auto given = items(residual, rows * width, "residual");
    std::vector<float> copy(given.begin(), given.end());
    const std::vector<float> all = stet::lens_logits(s, {copy.data(), width, width, rows});
    give_items(std::span<const float>(all), to);
  });
}

stet_status stet_session_tokens(const stet_session* session, const int32_t** ids, size_t* count,
                                stet_error** error) {
  return guarded(error, [&] {
    const auto to = outputs(ids, "ids", count, "count");
    const std::vector<int32_t>& tokens = at(session, "session").at->tokens();
    if (tokens.empty()) return;
    to.first = tokens.data();
    to.second = tokens.size();
  });
}

stet_status stet_session_transcript(const stet_session* session, int32_t** ids, size_t* count,
                                    stet_error** error) {
  return guarded(error, [&] {
    const auto to = outputs(ids, "ids", count, "count");
    give_items<int32_t>(at(session, "session").at->transcript(), to);
  });
}

stet_status stet_session_logits(stet_session* session, const float** logits, size_t* count,
                                stet_error** error) {
  return guarded(error, [&] {
    const auto to = outputs(logits, "logits", count, "count");
    const std::span<const float> found = at(session, "session").at->logits();
    if (found.empty()) return;
    to.first = found.data();
    to.second = found.size();
  });
}

stet_status stet_session_rewind(stet_session* session, int64_t size, stet_error** error) {
  return guarded(error, [&] {
    stet::Session& s = *at(session, "session").at;
    try {
      s.rewind(size);
    } catch (const stet::Error& e) {
      // the field of a call from a callback is the function
      if (e.field != "rewind" || e.expected.starts_with("a call after ")) throw;
      throw stet::Error(e.kind, e.file, "size", e.expected, e.found);
    }
  });
}

stet_status stet_session_rewind_cost(const stet_session* session, int64_t size, int64_t* tokens,
                                     stet_error** error) {
  return guarded(error, [&] {
    int64_t& to = output(tokens, "tokens");
    const stet::Session& s = *at(session, "session").at;
    if (size < 0 || size > s.size())
      throw stet::Error(stet::ErrorKind::argument, "", "size",
                        "a position in 0.." + std::to_string(s.size()), std::to_string(size));
    to = s.rewind_cost(size);
  });
}

stet_status stet_session_prune(stet_session* session, const stet_prune_options* options,
                               int64_t* pruned, stet_error** error) {
  return guarded(error, [&] {
    int64_t& to = output(pruned, "pruned");
    stet::Session& s = *at(session, "session").at;
    const stet_prune_options given = input(&at(options, "options"), "options");
    to = s.prune(prune_options(given, STET_PRUNE_SHIFT | STET_PRUNE_RECOMPUTE));
  });
}

stet_status stet_session_prune_range(stet_session* session, int64_t begin, int64_t end,
                                     int32_t shift, stet_error** error) {
  return guarded(error, [&] {
    stet::Session& s = *at(session, "session").at;
    if (begin < 0 || end < begin || end > s.size())
      fail("begin", stet::some_positions(s.size()), stet::range_text(begin, end));
    s.prune_range(begin, end, shift != 0);
  });
}

// ---------------------------------------------------------------- keys and values

stet_status stet_session_get_key(const stet_session* session, int64_t layer, int64_t head,
                                 int64_t position, float* x, size_t count, stet_error** error) {
  return guarded(error, [&] {
    read_stored(*at(session, "session").at, true, layer, head, position, items(x, count, "x"));
  });
}

stet_status stet_session_get_value(const stet_session* session, int64_t layer, int64_t head,
                                   int64_t position, float* x, size_t count, stet_error** error) {
  return guarded(error, [&] {
    read_stored(*at(session, "session").at, false, layer, head, position, items(x, count, "x"));
  });
}

stet_status stet_session_set_key(stet_session* session, int64_t layer, int64_t head,
                                 int64_t position, const float* x, size_t count,
                                 stet_error** error) {
  return guarded(error, [&] {
    at(session, "session").at->set_key(layer, head, position, items(x, count, "x"));
  });
}

stet_status stet_session_set_value(stet_session* session, int64_t layer, int64_t head,
                                   int64_t position, const float* x, size_t count,
                                   stet_error** error) {
  return guarded(error, [&] {
    at(session, "session").at->set_value(layer, head, position, items(x, count, "x"));
  });
}

// ---------------------------------------------------------------- recurrent arrays and anchors

stet_status stet_session_recurrent_array(const stet_session* session, size_t index,
                                         stet_recurrent_array* array, stet_error** error) {
  return guarded(error, [&] {
    stet_recurrent_array& to = checked(array, "array");
    give(array_value(array_at(*at(session, "session").at, index)), to);
  });
}

stet_status stet_session_get_recurrent(const stet_session* session, size_t index, float* x,
                                       size_t count, stet_error** error) {
  return guarded(error, [&] {
    const stet::Session& s = *at(session, "session").at;
    const stet::PublishedArray array = array_at(s, index);
    const std::span<float> to = items(x, count, "x");
    check_count(array, count);
    array.publish(s.recurrent().array(array.layer, static_cast<size_t>(array.index)), to);
  });
}

stet_status stet_session_set_recurrent(stet_session* session, size_t index, const float* x,
                                       size_t count, stet_error** error) {
  return guarded(error, [&] {
    stet::Session& s = *at(session, "session").at;
    const stet::PublishedArray array = array_at(s, index);
    const std::span<const float> given = items(x, count, "x");
    check_count(array, count);
    std::vector<float> stored(count);
    array.store(given, stored);
    s.set_array(array.layer, array.index, stored);
  });
}

stet_status stet_session_anchor(const stet_session* session, size_t index, stet_anchor* anchor,
                                stet_error** error) {
  return guarded(error, [&] {
    stet_anchor& to = checked(anchor, "anchor");
    const stet::Session& s = *at(session, "session").at;
    const stet::Anchor& found = *element(s.anchors().all(), index, "index");
    stet_anchor a{};
    a.position = found.position;
    a.bytes = s.recurrent().shape().bytes();
    a.replayable = found.by_content ? 0 : 1;
    give(a, to);
  });
}

stet_status stet_session_keep_anchor(stet_session* session, stet_error** error) {
  return guarded(error, [&] { at(session, "session").at->keep_anchor(); });
}

// ---------------------------------------------------------------- digests and healing

stet_status stet_session_get_digests(stet_session* session, stet_digests* digests,
                                     stet_error** error) {
  return guarded(error, [&] {
    stet_digests& to = checked(digests, "digests");
    give(digests_value(stet::digests_of(*at(session, "session").at)), to);
  });
}

stet_status stet_session_block_identities(stet_session* session, stet_block_identity** blocks,
                                          size_t* count, stet_error** error) {
  return guarded(error, [&] {
    const auto to = outputs(blocks, "blocks", count, "count");
    std::vector<stet_block_identity> all;
    for (const stet::BlockIdentity& block : at(session, "session").at->block_identities()) {
      stet_block_identity b{};
      std::memcpy(b.id, block.id.bytes.data(), sizeof b.id);
      b.replayable = block.replayable ? 1 : 0;
      all.push_back(b);
    }
    give_items<stet_block_identity>(all, to);
  });
}

stet_status stet_session_take_healed(stet_session* session, char** text, size_t* size,
                                     stet_error** error) {
  return guarded(error, [&] {
    const auto to = outputs(text, "text", size, "size");
    std::string lines;
    for (const stet::HealedBlocks& healed : at(session, "session").at->take_healed())
      lines += healed.text() + "\n";
    give_text(lines, to);
  });
}

// ---------------------------------------------------------------- batches

stet_status stet_batch_append(const stet_batch_entry* entries, size_t count, stet_error** error) {
  return guarded(error, [&] {
    std::vector<stet::BatchEntry> batch;
    for (const stet_batch_entry& entry : items(entries, count, "entries")) {
      batch.push_back(
          {at(entry.session, "entries.session").at, items(entry.ids, entry.count, "entries.ids")});
    }
    stet::append(batch);
  });
}
