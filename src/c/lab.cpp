// C interface: points, callbacks, captures, traces, views, and operations on keys and values.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>

#include "src/c/capture.hpp"
#include "src/c/view.hpp"
#include "stet/kv/kv_writer.hpp"
#include "stet/session/splice.hpp"
#include "stet/session/trace.hpp"

struct stet_trace {
  stet::Trace trace;
};

namespace stet::c {

PointAt point_of(const char* name, const char* field) {
  const auto at = parse_point_at(cstring(name, field));
  if (!at) fail(field, "the name of a point", name);
  return *at;
}

namespace {

// Throws for a member that the operation does not use, since it would change the state's id. An
// amount of 1 is accepted everywhere: the C++ interface and files have it where none is used.
void check_unused(const stet_intervention& i) {
  const auto refuse = [&](const char* name, const char* expected, float found) {
    fail(name, expected, fmt::format("{}", found));
  };
  const bool clamps = i.op == STET_CLAMP;
  const bool no_amount = i.op == STET_SET || i.op == STET_PROJECT_OUT;
  if (i.bias != 0 && !clamps) refuse("bias", "0, since only STET_CLAMP has one", i.bias);
  if (i.threshold != 0 && !clamps)
    refuse("threshold", "0, since only STET_CLAMP has one", i.threshold);
  if (no_amount && i.amount != 0 && i.amount != 1)
    refuse("amount", "0, since STET_SET and STET_PROJECT_OUT have none", i.amount);
}

// Appends the tokens of a batch and captures the points that `options` gives for each entry.
void capture_batch(std::span<const stet_batch_entry> entries, stet_capture** captures,
                   const std::function<stet_capture_options(size_t)>& options) {
  std::deque<CaptureBuilder> captured;
  std::vector<stet::BatchEntry> batch;
  for (const stet_batch_entry& entry : entries) {
    stet::Session& s = *at(entry.session, "entries.session").at;
    const auto ids = items(entry.ids, entry.count, "entries.ids");
    const stet_capture_options o = options(batch.size());
    captured.emplace_back(s, ids.size(), items(o.points, o.point_count, "points"), false,
                          items(o.state_positions, o.state_position_count, "state_positions"));
    batch.push_back({&s, ids, &captured.back().watch()});
  }
  if (!entries.empty()) output(captures, "captures");
  std::fill_n(captures, entries.size(), nullptr);
  stet::append(batch);
  for (size_t i = 0; i < entries.size(); ++i) captures[i] = captured[i].release();
}

}  // namespace

Intervention intervention_of(const stet_intervention& i) {
  Intervention w;
  const std::string name = cstring(i.point, "point");
  const auto at = parse_point_at(name);
  const auto point = at ? std::optional<Point>(at->point) : parse_point(name);
  if (!point) fail("point", "the name of a point", name);
  w.point = *point;
  if (at && point_info(*point).of_layer) w.layers = {at->layer};
  if (i.layer_count > 0) {
    if (!w.layers.empty())
      fail("layers", "none beside the point of one layer, " + name,
           std::to_string(i.layer_count) + " of them");
    const auto layers = items(i.layers, i.layer_count, "layers");
    w.layers.assign(layers.begin(), layers.end());
  }
  const auto heads = items(i.heads, i.head_count, "heads");
  w.heads.assign(heads.begin(), heads.end());
  w.begin = i.begin;
  w.end = end_of(i.end, "end");
  w.key_begin = i.key_begin;
  w.key_end = end_of(i.key_end, "key_end");
  if (i.op < STET_SET || i.op > STET_CLAMP) fail("op", "0..4", std::to_string(i.op));
  w.op = static_cast<Intervention::Op>(i.op);
  check_unused(i);
  w.amount = i.amount, w.bias = i.bias, w.threshold = i.threshold;
  if (i.value_count > 0) {
    const auto values = items(i.values, i.value_count, "values");
    w.values = std::make_shared<const std::vector<float>>(values.begin(), values.end());
  }
  return w;
}

namespace {

KvRange range_of(const stet_kv_range* given) {
  const stet_kv_range r = input(given, "range");
  const auto layers = items(r.layers, r.layer_count, "range.layers"),
             heads = items(r.heads, r.head_count, "range.heads");
  KvRange range;
  range.layers.assign(layers.begin(), layers.end());
  range.heads.assign(heads.begin(), heads.end());
  range.begin = r.begin;
  range.end = end_of(r.end, "range.end");
  const bool both = r.keys == 0 && r.values == 0;
  range.keys = both || r.keys != 0;
  range.values = both || r.values != 0;
  return range;
}

}  // namespace

}  // namespace stet::c

using namespace stet::c;

stet_status stet_model_points(const stet_model* model, char** text, size_t* size,
                              stet_error** error) {
  return guarded(error, [&] {
    const auto to = outputs(text, "text", size, "size");
    std::string lines;
    for (const stet::PointAt& p : stet::points_of(at(model, "model").model->config()))
      lines += stet::point_name(p) + "\n";
    give_text(lines, to);
  });
}

// ---------------------------------------------------------------- callbacks

stet_status stet_session_attach_callback(stet_session* session, const stet_callback* callback,
                                         stet_error** error) {
  return guarded(error, [&] {
    const stet_callback& given = at(callback, "callback");
    // read first, so that the context is released if another member is refused
    const bool lends = given.struct_size >= offsetof(stet_callback, release) + sizeof given.release;
    const auto context = lends ? lent(given.release, given.context) : nullptr;
    const stet_callback c = input(&given, "callback");
    auto what = std::make_shared<stet::Callback>();
    for (const char* name : items(c.points, c.point_count, "points"))
      what->points.push_back(point_of(name, "points"));
    if (c.change == nullptr) fail("change", "not NULL", "NULL");
    what->change = [c, context, points = what->points](const stet::PointAt& point, int64_t first,
                                                       stet::Rows rows) {
      const auto index = std::find(points.begin(), points.end(), point) - points.begin();
      if (c.change(c.context, static_cast<size_t>(index), first, rows.data, rows.count, rows.width,
                   rows.stride) != 0)
        throw Canceled();
    };
    at(session, "session").at->attach(std::move(what));
  });
}

stet_status stet_session_detach_callbacks(stet_session* session, stet_error** error) {
  return guarded(error, [&] { at(session, "session").at->detach_callbacks(); });
}

// ---------------------------------------------------------------- captures and traces

stet_status stet_session_capture(stet_session* session, const int32_t* ids, size_t count,
                                 const char* const* points, size_t point_count, int32_t logits,
                                 stet_capture** capture, stet_error** error) {
  stet_capture_options options{};
  options.struct_size = sizeof options;
  options.points = points;
  options.point_count = point_count;
  options.logits = logits;
  return stet_session_capture_with(session, ids, count, &options, capture, error);
}

stet_status stet_session_capture_with(stet_session* session, const int32_t* ids, size_t count,
                                      const stet_capture_options* options, stet_capture** capture,
                                      stet_error** error) {
  return guarded(error, [&] {
    stet_capture*& to = output(capture, "capture");
    const stet_capture_options o = input(options, "options");
    stet::Session& s = *at(session, "session").at;
    const auto tokens = items(ids, count, "ids");
    CaptureBuilder captured(s, tokens.size(), items(o.points, o.point_count, "points"),
                            o.logits != 0,
                            items(o.state_positions, o.state_position_count, "state_positions"));
    const stet::LogitSink sink = [&](int64_t, stet::Rows rows) { captured.keep_logits(rows); };
    s.append(tokens, o.logits != 0 ? sink : nullptr, nullptr, progress_of(o.on_progress, o.context),
             &captured.watch());
    to = captured.release();
  });
}

stet_status stet_batch_capture(const stet_batch_entry* entries, size_t count,
                               const char* const* points, size_t point_count,
                               stet_capture** captures, stet_error** error) {
  return guarded(error, [&] {
    stet_capture_options all{};
    all.points = points;
    all.point_count = point_count;
    capture_batch(items(entries, count, "entries"), captures, [&](size_t) { return all; });
  });
}

stet_status stet_batch_capture_with(const stet_batch_entry* entries, size_t count,
                                    const stet_capture_options* const* options,
                                    stet_capture** captures, stet_error** error) {
  return guarded(error, [&] {
    const auto all = items(entries, count, "entries");
    const auto each = items(options, count, "options");
    capture_batch(all, captures, [&](size_t i) {
      const stet_capture_options o = input(&at(each[i], "options"), "options");
      if (o.logits != 0) fail("options.logits", "0 in a batch", std::to_string(o.logits));
      if (o.on_progress != nullptr) fail("options.on_progress", "NULL in a batch", "a function");
      return o;
    });
  });
}

void stet_capture_free(stet_capture* capture) { delete capture; }

stet_status stet_capture_rows(const stet_capture* capture, size_t index, const float** rows,
                              size_t* count, size_t* width, stet_error** error) {
  return guarded(error, [&] {
    const auto to = outputs(rows, "rows", count, "count");
    size_t& columns = output(width, "width");
    const stet_capture::Rows& r = element(at(capture, "capture").points, index, "index");
    to.first = r.data.data();
    to.second = r.count;
    columns = r.width;
  });
}

stet_status stet_trace_new(const stet_session* before, const int32_t* ids, size_t count,
                           stet_trace** trace, stet_error** error) {
  return guarded(error, [&] {
    stet_trace*& to = output(trace, "trace");
    to = new stet_trace{stet::Trace(*at(before, "before").at, items(ids, count, "ids"))};
  });
}

void stet_trace_free(stet_trace* trace) { delete trace; }

stet_status stet_trace_run(stet_trace* trace, const stet_intervention* changes, size_t count,
                           stet_logits_callback on_logits, void* context, stet_error** error) {
  return guarded(error, [&] {
    std::vector<stet::Intervention> all;
    for (const stet_intervention& i : items(changes, count, "changes"))
      all.push_back(intervention_of(input(&i, "changes")));
    if (on_logits == nullptr) fail("on_logits", "not NULL", "NULL");
    at(trace, "trace").trace.run(all, [&](size_t index, std::span<const float> logits) {
      if (on_logits(context, static_cast<int64_t>(index), logits.data(), logits.size()) != 0)
        throw Canceled();
    });
  });
}

stet_status stet_trace_new_prompts(const stet_session* before, const stet_ids* prompts,
                                   size_t count, stet_trace** trace, stet_error** error) {
  return guarded(error, [&] {
    stet_trace*& to = output(trace, "trace");
    std::vector<std::vector<int32_t>> all;
    for (const stet_ids& prompt : items(prompts, count, "prompts")) {
      const auto ids = items(prompt.ids, prompt.count, "prompts.ids");
      all.emplace_back(ids.begin(), ids.end());
    }
    to = new stet_trace{stet::Trace(*at(before, "before").at, all)};
  });
}

stet_status stet_trace_run_all(stet_trace* trace, const stet_traced* runs, size_t count,
                               stet_trace_callback on_logits, void* context, stet_error** error) {
  return guarded(error, [&] {
    std::vector<stet::TraceRun> all;
    for (const stet_traced& r : items(runs, count, "runs")) {
      const auto positions = items(r.positions, r.position_count, "runs.positions");
      all.push_back({{}, r.prompt, {positions.begin(), positions.end()}});
      for (const stet_intervention& i : items(r.changes, r.change_count, "runs.changes"))
        all.back().changes.push_back(intervention_of(input(&i, "runs.changes")));
    }
    if (on_logits == nullptr) fail("on_logits", "not NULL", "NULL");
    at(trace, "trace")
        .trace.run(all, [&](size_t index, int64_t position, std::span<const float> logits) {
          if (on_logits(context, index, position, logits.data(), logits.size()) != 0)
            throw Canceled();
        });
  });
}

// ---------------------------------------------------------------- keys and values

stet_status stet_session_zero_kv(stet_session* session, const stet_kv_range* range,
                                 stet_error** error) {
  return guarded(error, [&] { at(session, "session").at->zero_kv(range_of(range)); });
}

stet_status stet_session_scale_kv(stet_session* session, const stet_kv_range* range, float factor,
                                  stet_error** error) {
  return guarded(error, [&] { at(session, "session").at->scale_kv(range_of(range), factor); });
}

stet_status stet_session_set_kv(stet_session* session, const stet_kv_range* range, const float* x,
                                size_t count, stet_error** error) {
  return guarded(error,
                 [&] { at(session, "session").at->set_kv(range_of(range), items(x, count, "x")); });
}

stet_status stet_session_copy_kv(stet_session* session, const stet_kv_range* range,
                                 const stet_session* from, int64_t position, stet_error** error) {
  return guarded(error, [&] {
    at(session, "session").at->copy_kv(range_of(range), *at(from, "from").at, position);
  });
}

stet_status stet_session_splice(const stet_cut* cuts, size_t count, stet_session** spliced,
                                stet_error** error) {
  return guarded(error, [&] {
    stet_session*& to = output(spliced, "spliced");
    std::vector<stet::Cut> all;
    for (const stet_cut& cut : items(cuts, count, "cuts"))
      all.push_back({&at(cut.from, "cuts.from").at->state(), cut.begin, cut.end});
    if (all.empty()) fail("cuts", "at least one", "none");
    const stet::Session& first = *cuts[0].from->at;
    to = new stet_session(
        stet::Session(first.shared_model(), stet::splice(first.model().config(), all),
                      {0, first.kv().shape().type, first.compute(), first.window()}));
  });
}

// ---------------------------------------------------------------- views

void stet_view_free(stet_view* view) { delete view; }

stet_status stet_session_view_logits(stet_session* session, stet_view** view, const float** data,
                                     size_t* count, stet_error** error) {
  return guarded(error, [&] {
    stet_view*& to = output(view, "view");
    const auto where = outputs(data, "data", count, "count");
    stet::Session& s = *at(session, "session").at;
    s.logits();
    const std::shared_ptr<std::vector<float>> logits = s.state().logits;
    to = new stet_view{logits};
    if (logits == nullptr) return;
    where.first = logits->data();
    where.second = logits->size();
  });
}

stet_status stet_session_view_block(stet_session* session, int64_t index, stet_view** view,
                                    const void** data, size_t* size, stet_error** error) {
  return guarded(error, [&] {
    stet_view*& to = output(view, "view");
    const auto where = outputs(data, "data", size, "size");
    stet::Session& s = *at(session, "session").at;
    if (index < 0 || index >= s.kv().blocks())
      fail("index", "a block below " + std::to_string(s.kv().blocks()), std::to_string(index));
    if (!s.kv().block_info(index).holds_all())
      s.recall(index * stet::kBlockPositions, index * stet::kBlockPositions + 1);
    stet::KvCache own(s.state().kv);  // a writer makes a copy first
    stet::KvWriter writer(own);
    writer.load(index);
    to = new stet_view{writer.share(index)};
    where.first = own.block(index);
    where.second = own.shape().content_bytes();
  });
}
