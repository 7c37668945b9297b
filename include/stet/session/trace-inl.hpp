// Implements trace.hpp.
#pragma once

namespace stet {

STET_INL void Trace::process(const Session& before,
                             std::span<const std::span<const int32_t>> prompts) {
  if (before.callbacks() > 0)
    throw Error(ErrorKind::argument, "", "callbacks", "none: they cannot be traced",
                std::to_string(before.callbacks()));
  if (prompts.empty()) throw Error(ErrorKind::argument, "", "prompts", "at least one", "none");
  const auto layers = static_cast<size_t>(before.model().config().layers);
  for (size_t i = 0; i < prompts.size(); ++i) {
    const std::string name = prompts.size() == 1 ? "" : "prompts[" + std::to_string(i) + "]: ";
    if (prompts[i].empty())
      throw Error(ErrorKind::argument, "", name + "ids", "at least one token", "none");
    prompts_.push_back(
        {before.fork(), before.recurrent(), std::vector<std::vector<float>>(layers)});
  }
  // Runs begin as early as the prompts, and see the windows before that.
  for (Prompt& p : prompts_) p.session.keep_window_of(first_);
  std::vector<Watch> watches(prompts.size());
  std::vector<BatchEntry> batch;
  for (size_t i = 0; i < prompts.size(); ++i) {
    for (size_t l = 0; l < layers; ++l)
      watches[i].points.push_back({Point::resid_post, static_cast<int64_t>(l)});
    watches[i].sink = [this, i, count = prompts[i].size()](const PointAt& at, int64_t, Rows rows) {
      std::vector<float>& to = prompts_[i].residual[static_cast<size_t>(at.layer)];
      to.reserve(count * rows.width);
      for (size_t r = 0; r < rows.count; ++r)
        to.insert(to.end(), rows.row(r), rows.row(r) + rows.width);
    };
    batch.push_back({&prompts_[i].session, prompts[i], &watches[i]});
  }
  append(batch);
  for (Prompt& p : prompts_) p.session.state();  // checks all blocks
}

// Returns the first layer that an intervention changes, or layers() for a point after the last
// layer.
STET_INL size_t Trace::layer_of(const Intervention& w) const {
  if (w.point == Point::ln_final) return layers();
  if (!point_info(w.point).of_layer || w.layers.empty()) return 0;
  return static_cast<size_t>(*std::min_element(w.layers.begin(), w.layers.end()));
}

STET_INL Trace::Job Trace::job_of(const TraceRun& run, const std::string& name) {
  const auto fail = [&](const std::string& field, const std::string& expected, int64_t found) {
    throw Error(ErrorKind::argument, "", name + field, expected, std::to_string(found));
  };
  if (run.prompt >= prompts_.size())
    fail("prompt", "one below " + std::to_string(prompts_.size()),
         static_cast<int64_t>(run.prompt));
  Prompt& prompt = prompts_[run.prompt];
  const int64_t size = prompt.session.size();
  Job job{&prompt, {}, run.positions, layers(), size};
  for (const int64_t p : run.positions) {
    if (p < first_ || p >= size)
      fail("positions", "positions in " + std::to_string(first_) + ".." + std::to_string(size - 1),
           p);
  }
  if (job.positions.empty()) job.positions = {size - 1};
  std::sort(job.positions.begin(), job.positions.end());
  job.positions.erase(std::unique(job.positions.begin(), job.positions.end()), job.positions.end());
  State before;
  before.tokens.resize(static_cast<size_t>(first_));
  before.prunes = prompt.session.prunes();
  for (size_t i = 0; i < run.changes.size(); ++i) {
    const std::string place =
        name.starts_with("runs") ? name + "changes[" + std::to_string(i) + "]: " : name;
    try {
      attach(before, model().config(), run.changes[i]);
    } catch (const Error& e) {
      throw Error(e.kind, e.file, place + e.field, e.expected, e.found);
    }
    job.layer = std::min(job.layer, layer_of(run.changes[i]));
    job.first = std::min(job.first, std::max(run.changes[i].begin, first_));
  }
  job.first = std::min(job.first, job.positions.front());
  if (!model().begins_at_layers()) job.layer = 0;
  // Recurrent arrays are known only before the prompt, so all layers run from there on.
  if (!prompt.before.empty()) job.layer = 0, job.first = first_;
  job.changes = std::move(before.interventions);
  return job;
}

STET_INL void Trace::run(std::span<const Intervention> changes, const Sink& sink) {
  std::vector<Job> jobs;
  for (size_t i = 0; i < changes.size(); ++i)
    jobs.push_back(job_of({{changes[i]}}, "changes[" + std::to_string(i) + "]: "));
  run_jobs(jobs,
           [&](size_t index, int64_t, std::span<const float> logits) { sink(index, logits); });
}

STET_INL void Trace::run(std::span<const TraceRun> runs, const RunSink& sink) {
  std::vector<Job> jobs;
  for (size_t i = 0; i < runs.size(); ++i)
    jobs.push_back(job_of(runs[i], "runs[" + std::to_string(i) + "]: "));
  run_jobs(jobs, sink);
}

STET_INL void Trace::run_jobs(const std::vector<Job>& jobs, const RunSink& sink) {
  std::vector<size_t> order(jobs.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return jobs[a].layer < jobs[b].layer; });
  for (size_t at = 0, next = 0; at < order.size(); at = next) {
    const size_t layer = jobs[order[at]].layer;
    while (next < order.size() && jobs[order[next]].layer == layer) ++next;
    run_layer(layer, std::span(order).subspan(at, next - at), jobs, sink);
  }
}

// Starts a job. Blocks before its first position are shared; those that lack layers are in memory,
// and no window of the job reaches them. Later blocks are private and will be overwritten from its
// first layer on.
STET_INL Trace::Run Trace::begin(size_t index, const Job& job) {
  Run r{index, &job, job.first, KvCache(job.prompt->session.kv()), job.prompt->before};
  KvWriter writer(r.kv);
  for (int64_t b = 0; b < r.kv.blocks(); ++b) {
    if (b >= job.first / kBlockPositions)
      writer.own(b);
    else if (r.kv.block_info(b).holds_all())
      writer.load(b);
  }
  return r;
}

// Runs as many jobs at a time as fill a pass.
STET_INL void Trace::run_layer(size_t layer, std::span<const size_t> order,
                               const std::vector<Job>& jobs, const RunSink& sink) {
  const auto most = static_cast<size_t>(compute().chunk);
  const detail::WorkspaceLease lease(model(), most, detail::threads_of(compute()));
  std::vector<Run> runs;
  size_t rows = 0;
  for (auto next = order.begin(); next != order.end() || !runs.empty();) {
    for (; next != order.end() && rows < most; ++next) {
      runs.push_back(begin(*next, jobs[*next]));
      rows += static_cast<size_t>(runs.back().size() - runs.back().next);
    }
    run_pass(layer, runs, *lease, sink);
    std::erase_if(runs, [](const Run& r) { return r.next == r.size(); });
    rows = 0;
    for (const Run& r : runs) rows += static_cast<size_t>(r.size() - r.next);
  }
}

STET_INL void Trace::run_pass(size_t layer, std::vector<Run>& runs, Workspace& w,
                              const RunSink& sink) {
  const auto most = static_cast<size_t>(compute().chunk);
  std::vector<Run*> some;
  std::vector<Wanted> wanted;
  w.ids.clear();
  w.spans.clear();
  for (Run& r : runs) {
    const size_t count = std::min(static_cast<size_t>(r.size() - r.next), most - w.ids.size());
    if (count == 0) break;
    w.spans.push_back(
        {&r.kv, r.next, w.ids.size(), count, r.recurrent.numbers().data(), r.recurrent.next()});
    for (const int64_t p : r.job->positions) {
      if (p >= r.next && p < r.next + static_cast<int64_t>(count))
        wanted.push_back({r.index, w.ids.size() + static_cast<size_t>(p - r.next), p});
    }
    const auto ids = r.job->prompt->session.tokens().begin() + r.next;
    w.ids.insert(w.ids.end(), ids, ids + static_cast<std::ptrdiff_t>(count));
    some.push_back(&r);
  }
  const Hooks hooks = hooks_of(some, w);
  Pass pass = detail::make_pass(compute(), w, &hooks);
  pass.first_layer = layer;
  for (int tries = 0;; ++tries) {
    if (tries > detail::kMaxRestarts) detail::throw_file_keeps_changing();
    const uint64_t weights = model().weights_version();
    forward(layer, some, w, pass);
    if (model().weights_intact_since(weights)) break;
  }
  for (size_t i = 0; i < some.size(); ++i) {
    some[i]->next += static_cast<int64_t>(w.spans[i].count);
    some[i]->recurrent.commit_pass();
  }
  hand_out(wanted, pass, w, sink);
}

STET_INL void Trace::hand_out(std::span<const Wanted> wanted, const Pass& pass, Workspace& w,
                              const RunSink& sink) const {
  for (size_t at = 0; at < wanted.size(); at += w.logits.count) {
    const size_t count = std::min(w.logits.count, wanted.size() - at);
    for (size_t i = 0; i < count; ++i)
      std::memcpy(w.last.row(i), pass.out.row(wanted[at + i].row), pass.out.width * sizeof(float));
    const auto head = [&](Team t) {
      model().head(t, pass, w.last.rows(0, count), w.logits.rows(0, count));
    };
    run_interruptible(detail::pass_team(compute(), model(), count), std::ref(head));
    for (size_t i = 0; i < count; ++i)
      sink(wanted[at + i].index, wanted[at + i].position, {w.logits.row(i), w.logits.width});
  }
}

STET_INL void Trace::forward(size_t layer, std::span<Run* const> runs, const Workspace& w,
                             const Pass& pass) const {
  for (size_t i = 0; layer > 0 && i < runs.size(); ++i) {
    const Span& span = w.spans[i];
    const std::vector<float>& residual = runs[i]->job->prompt->residual[layer - 1];
    for (size_t r = 0; r < span.count; ++r) {
      const size_t at = static_cast<size_t>(span.first - first_) + r;
      std::memcpy(pass.x.row(span.row + r), residual.data() + at * pass.x.width,
                  pass.x.width * sizeof(float));
    }
  }
  const auto work = [&](Team t) { model().forward(t, pass); };
  forget_routers(pass);
  run_interruptible(detail::pass_team(compute(), model(), pass.x.count), std::ref(work));
  check_routers(pass);
}

STET_INL Hooks Trace::hooks_of(std::span<Run* const> runs, const Workspace& w) const {
  Hooks hooks(model().config());
  for (size_t i = 0; i < runs.size(); ++i) {
    const Span& span = w.spans[i];
    const Session& session = runs[i]->job->prompt->session;
    for (const Intervention& x : session.interventions()) {
      const Reach reach = reach_of(session.prunes(), x);
      if (reach.end < 0 || reach.end > span.first)
        hooks.change({&x, span.row, span.count, span.first, reach.from, reach.end});
    }
    for (const Intervention& x : runs[i]->job->changes)
      hooks.change({&x, span.row, span.count, span.first, std::max(x.begin, first_), x.end});
  }
  return hooks;
}

}  // namespace stet
