#include "stet/generate/score.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>

#include "stet/base/error.hpp"
#include "stet/sampling/log_probabilities.hpp"

namespace stet {
namespace {

constexpr size_t kNone = SIZE_MAX;
constexpr size_t kLeastShared = 32;  // a shared stretch of fewer tokens is not computed separately
constexpr size_t kLeastNeeded = 64;  // the same, in needed rows

// Tokens shared by the requests [first, last) in sorted order, following those of stretch `parent`.
struct Stretch {
  size_t parent, first, last;
  size_t begin, end;  // range of their ids in each request
  std::vector<size_t> children = {};
};

// Sorts the requests by the tokens to process, all but the last of each, and splits them into
// shared stretches. A parent comes before its children.
class Plan {
 public:
  Plan(std::span<const ScoreRequest> requests) : requests_(requests) {
    for (size_t i = 0; i < requests.size(); ++i) {
      if (requests[i].ids.size() > std::max<size_t>(1, requests[i].begin)) order_.push_back(i);
    }
    std::ranges::stable_sort(order_, [&](size_t a, size_t b) {
      return std::ranges::lexicographical_compare(processed(a), processed(b));
    });
    std::vector<Part> parts;
    if (!order_.empty()) parts.push_back({0, order_.size(), 0, kNone});
    while (!parts.empty()) {
      const Part part = parts.back();
      parts.pop_back();
      split(part, parts);
    }
  }

  const std::vector<Stretch>& stretches() const { return stretches_; }
  size_t request(size_t place) const { return order_[place]; }
  // Returns how many tokens of a request go through the model.
  size_t length(size_t request) const { return requests_[request].ids.size() - 1; }

 private:
  // Requests whose tokens from `from` on belong to no stretch yet.
  struct Part {
    size_t first, last, from, parent;
  };

  std::span<const int32_t> processed(size_t request) const {
    return std::span(requests_[request].ids).first(length(request));
  }
  // Returns the length of the common prefix. In sorted order, all requests share what the first and
  // the last share.
  size_t common(const Part& part) const {
    const auto a = processed(order_[part.first]), b = processed(order_[part.last - 1]);
    return static_cast<size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
  }
  size_t add(const Part& part, size_t end) {
    stretches_.push_back({part.parent, part.first, part.last, part.from, end});
    if (part.parent != kNone) stretches_[part.parent].children.push_back(stretches_.size() - 1);
    return stretches_.size() - 1;
  }
  void split(Part part, std::vector<Part>& parts) {
    const size_t end = common(part);
    size_t next = part.first;
    while (next < part.last && length(order_[next]) == end) ++next;
    if (next == part.last || end - part.from >= kLeastShared) {
      part.parent = add(part, end);
      part.from = end;
    } else if (next > part.first) {
      add({part.first, next, part.from, part.parent}, end);
    }
    std::vector<Part> found;
    while (next < part.last) {
      const size_t begin = next;
      const int32_t id = requests_[order_[begin]].ids[end];
      while (next < part.last && requests_[order_[next]].ids[end] == id) ++next;
      found.push_back({begin, next, part.from, part.parent});
    }
    parts.insert(parts.end(), found.rbegin(), found.rend());
  }

  std::span<const ScoreRequest> requests_;
  std::vector<size_t> order_;
  std::vector<Stretch> stretches_;
};

// Scores tokens from rows of hidden states, as many at a time as the head takes.
class Scorer {
 public:
  Scorer(const Session& before, std::span<const ScoreRequest> requests, const Plan& plan,
         std::vector<Score>& scores)
      : model_(before.model()),
        compute_(before.compute()),
        requests_(requests),
        plan_(plan),
        scores_(scores),
        lease_(model_, detail::kHeadRows, detail::threads_of(compute_)) {}

  // Returns the first token of the stretch whose row is needed, or the stretch's end.
  size_t first_row(const Stretch& s) const {
    size_t first = s.end;
    for (size_t i = s.first; i < s.last; ++i) {
      const size_t begin = requests_[plan_.request(i)].begin;
      first = std::min(first, begin == 0 ? 0 : begin - 1);
    }
    return std::max(first, s.begin);
  }
  // Adds the hidden row after token `at` of a stretch.
  void add(const Stretch& s, size_t at, const float* hidden) {
    Workspace& w = *lease_;
    std::memcpy(w.last.row(rows_.size()), hidden, w.last.width * sizeof(float));
    rows_.push_back(row_of(s, at));
    if (rows_.size() == std::min(w.logits.count, w.last.count)) flush();
  }
  void flush() {
    if (rows_.empty()) return;
    Workspace& w = *lease_;
    w.ids.assign(rows_.size(), 0);
    w.spans.clear();
    const Pass pass = detail::make_pass(compute_, w, nullptr);
    const Rows logits = w.logits.rows(0, rows_.size());
    const auto work = [&](Team t) {
      model_.head(t, pass, w.last.rows(0, rows_.size()), logits);
      t.each(rows_.size(), [&](size_t i) { rows_[i].score({logits.row(i), logits.width}); });
    };
    for (int tries = 0;; ++tries) {
      if (tries > detail::kMaxRestarts) detail::throw_file_keeps_changing();
      const uint64_t weights = model_.weights_version();
      run_interruptible(detail::pass_team(compute_, model_, rows_.size()), std::ref(work));
      if (model_.weights_intact_since(weights)) break;
    }
    for (const Row& row : rows_) keep(row);
    rows_.clear();
  }
  // Scores the tokens after token `at` from logits that exist already.
  void add_logits(const Stretch& s, size_t at, std::span<const float> logits) {
    flush();
    Row row = row_of(s, at);
    row.score(logits);
    keep(row);
  }

 private:
  struct Row {
    std::vector<size_t> requests;
    std::vector<int32_t> ids;  // next id of each request
    std::vector<double> log_probabilities;
    int32_t best = 0;

    void score(std::span<const float> logits) {
      best = stet::log_probabilities(logits, ids, log_probabilities);
    }
  };

  Row row_of(const Stretch& s, size_t at) const {
    Row row;
    for (size_t i = s.first; i < s.last; ++i) {
      const ScoreRequest& r = requests_[plan_.request(i)];
      if (at + 1 < r.begin) continue;
      row.requests.push_back(plan_.request(i));
      row.ids.push_back(r.ids[at + 1]);
    }
    row.log_probabilities.resize(row.ids.size());
    return row;
  }
  void keep(const Row& row) {
    for (size_t i = 0; i < row.ids.size(); ++i)
      scores_[row.requests[i]].tokens.push_back({row.ids[i], row.best, row.log_probabilities[i]});
  }

  const Model& model_;
  const ComputeOptions compute_;
  std::span<const ScoreRequest> requests_;
  const Plan& plan_;
  std::vector<Score>& scores_;
  detail::WorkspaceLease lease_;
  std::vector<Row> rows_;
};

class Scoring {
 public:
  Scoring(const Session& before, std::span<const ScoreRequest> requests,
          const ScoreOptions& options)
      : given_(before),
        requests_(requests),
        options_(options),
        plan_(requests),
        before_(std::make_shared<Session>(before.fork())),
        scores_(requests.size()),
        scorer_(before, requests, plan_, scores_) {}

  std::vector<Score> run() {
    score_first_tokens();
    const std::vector<Stretch>& all = plan_.stretches();
    for (size_t i = all.size(); i-- > 0;) {
      if (all[i].parent == kNone) ready_.push_back({i, before_});
    }
    while (!ready_.empty()) run_batch();
    return std::move(scores_);
  }

 private:
  struct Ready {
    size_t stretch;
    std::shared_ptr<Session> behind;
  };

  // Scores first tokens by the logits of `before`, and finishes requests that need nothing more.
  void score_first_tokens() {
    for (size_t i = 0; i < requests_.size(); ++i) {
      const ScoreRequest& r = requests_[i];
      if (r.begin == 0 && !r.ids.empty()) {
        TokenScore token{r.ids[0]};
        token.best =
            log_probabilities(before_->logits(), {&token.id, 1}, {&token.log_probability, 1});
        scores_[i].tokens.push_back(token);
      }
      if (r.ids.size() <= std::max<size_t>(1, r.begin)) finish(i);
    }
  }
  // A stretch being processed. Its tokens below `done` have been processed.
  struct ActiveStretch {
    size_t index;
    const Stretch* stretch;
    std::shared_ptr<Session> session;
    size_t first, done;  // first: the first token whose row is needed
  };

  void run_batch() {
    const size_t count = std::min(options_.batch, ready_.size());
    std::vector<ActiveStretch> some;
    size_t rows = 0, needed = 0;
    for (size_t i = 0; i < count; ++i) {
      const Stretch& s = plan_.stretches()[ready_.back().stretch];
      some.push_back({ready_.back().stretch, &s,
                      std::make_shared<Session>(ready_.back().behind->fork()), scorer_.first_row(s),
                      s.begin});
      ready_.pop_back();
      rows += s.end - s.begin;
      needed += s.end - some.back().first;
    }
    // Rows are copied if they are watched. If most rows are not needed, the tokens before the first
    // needed one are therefore processed first, without watching.
    if (needed >= kLeastNeeded && rows >= 4 * needed) {
      append_to(some, [](const ActiveStretch& g) { return std::min(g.first + 1, g.stretch->end); });
      for (const ActiveStretch& g : some) {
        if (g.done < g.stretch->end) scorer_.add_logits(*g.stretch, g.first, g.session->logits());
      }
    }
    append_to(some, [](const ActiveStretch& g) { return g.stretch->end; });
    for (const ActiveStretch& g : some) end_stretch(g.index, g.session);
  }
  // Appends tokens to every session, up to the index that `end` returns.
  template <class End>
  void append_to(std::vector<ActiveStretch>& some, End end) {
    std::vector<Watch> watches(some.size());
    std::vector<BatchEntry> batch;
    for (size_t i = 0; i < some.size(); ++i) {
      ActiveStretch& g = some[i];
      const size_t to = end(g);
      if (to == g.done) continue;
      if (std::max(g.first, g.done) + 1 < to)
        watches[i] = watch(*g.stretch, g.session->size(), g.done, to);
      const std::span<const int32_t> ids = requests_[plan_.request(g.stretch->first)].ids;
      batch.push_back({g.session.get(), ids.subspan(g.done, to - g.done),
                       watches[i].sink ? &watches[i] : nullptr});
      g.done = to;
    }
    append(batch);
    scorer_.flush();
  }
  // Passes the needed rows of tokens [from, to) to the head. The last row is excluded, since its
  // logits exist anyway.
  Watch watch(const Stretch& s, int64_t base, size_t from, size_t to) {
    return {{{Point::ln_final, 0}},
            [this, &s, base, from, to, first = scorer_.first_row(s)](const PointAt&,
                                                                     int64_t position, Rows rows) {
              const size_t at = from + static_cast<size_t>(position - base);
              for (size_t i = 0; i < rows.count; ++i) {
                if (at + i >= first && at + i + 1 < to) scorer_.add(s, at + i, rows.row(i));
              }
            }};
  }
  void end_stretch(size_t index, const std::shared_ptr<Session>& session) {
    const Stretch& s = plan_.stretches()[index];
    if (scorer_.first_row(s) < s.end) scorer_.add_logits(s, s.end - 1, session->logits());
    for (size_t i = s.first; i < s.last && plan_.length(plan_.request(i)) == s.end; ++i)
      finish(plan_.request(i));
    for (auto child = s.children.rbegin(); child != s.children.rend(); ++child)
      ready_.push_back({*child, session});
  }
  void finish(size_t request) {
    Score& score = scores_[request];
    for (const TokenScore& token : score.tokens) {
      score.sum += token.log_probability;
      score.greedy = score.greedy && token.id == token.best;
    }
    const Session::ReadOnly lent(given_, "score");
    if (options_.done) options_.done(request, score);
  }

  const Session& given_;
  std::span<const ScoreRequest> requests_;
  const ScoreOptions& options_;
  Plan plan_;
  std::shared_ptr<Session> before_;
  std::vector<Score> scores_;
  Scorer scorer_;
  std::vector<Ready> ready_;
};

void check(const Session& before, std::span<const ScoreRequest> requests,
           const ScoreOptions& options) {
  if (options.batch == 0) throw Error(ErrorKind::argument, "", "batch", "at least 1", "0");
  const int64_t vocab = before.model().config().vocab_size;
  for (size_t i = 0; i < requests.size(); ++i) {
    const ScoreRequest& r = requests[i];
    const auto fail = [&](ErrorKind kind, const std::string& field, const std::string& expected,
                          const std::string& found) {
      throw Error(kind, "", "requests[" + std::to_string(i) + "]: " + field, expected, found);
    };
    for (size_t k = 0; k < r.ids.size(); ++k) {
      if (r.ids[k] < 0 || r.ids[k] >= vocab)
        fail(ErrorKind::argument, "ids[" + std::to_string(k) + "]",
             "a token id in 0.." + std::to_string(vocab - 1), std::to_string(r.ids[k]));
    }
    if (r.begin > r.ids.size())
      fail(ErrorKind::argument, "begin", "at most the " + std::to_string(r.ids.size()) + " ids",
           std::to_string(r.begin));
    if (r.begin == 0 && before.size() == 0 && !r.ids.empty())
      fail(ErrorKind::argument, "begin", "at least 1, because no token precedes the first", "0");
    const int64_t size = before.size() + static_cast<int64_t>(r.ids.size()) - 1;
    if (size > before.capacity())
      fail(ErrorKind::capacity, "ids",
           "at most " + std::to_string(before.capacity() - before.size() + 1) + " tokens",
           std::to_string(r.ids.size()));
  }
}

}  // namespace

std::vector<Score> score(const Session& before, std::span<const ScoreRequest> requests,
                         const ScoreOptions& options) {
  check(before, requests, options);
  return Scoring(before, requests, options).run();
}

ScoreRequest encode_pair(const Tokenizer& tokenizer, std::string_view context,
                         std::string_view continuation, Tokenizer::Bos bos, bool special_in_text) {
  const size_t text = context.find_last_not_of(" \t\n\v\f\r");
  const size_t end = text == std::string_view::npos ? 0 : text + 1;
  const std::string whole = std::string(context) + std::string(continuation);
  ScoreRequest request;
  request.ids = tokenizer.encode(whole, bos, special_in_text);
  request.begin = std::min(request.ids.size(),
                           tokenizer.encode(context.substr(0, end), bos, special_in_text).size());
  return request;
}

}  // namespace stet
