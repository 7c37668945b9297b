// C interface: keeps the rows of captured points.
#pragma once

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>

#include "src/c/internal.hpp"

struct stet_capture {
  struct Rows {
    size_t count = 0, width = 0;
    std::vector<float> data;
  };
  std::vector<Rows> points;
};

namespace stet::c {

// Appends rows from a sink to `to`. Rows of scores and patterns get a column for each of
// `positions`.
inline void keep_rows(stet_capture::Rows& to, const PointAt& at, const ModelConfig& c,
                      int64_t positions, Rows rows) {
  const bool wide = at.point == Point::scores || at.point == Point::pattern;
  const size_t heads = wide ? static_cast<size_t>(c.heads) : 1, from = rows.width / heads;
  to.width = static_cast<size_t>(point_width(c, at, positions));
  const float masked = at.point == Point::scores ? -std::numeric_limits<float>::infinity() : 0.0f;
  const size_t begin = to.count * to.width;
  to.data.resize(begin + rows.count * to.width, masked);
  for (size_t i = 0; i < rows.count * heads; ++i)
    std::copy_n(rows.row(i / heads) + i % heads * from, from,
                to.data.data() + begin + i * (to.width / heads));
  to.count += rows.count;
}

// A capture in progress: the points to watch and the rows kept so far. It cannot be moved, since
// the watch's sink points to it.
class CaptureBuilder {
 public:
  // Prepares to capture the points `names` while `count` tokens are appended. With `logits`, the
  // logits follow as one more entry. hook_state is captured at `state_positions`.
  CaptureBuilder(const Session& s, size_t count, std::span<const char* const> names, bool logits,
                 std::span<const int64_t> state_positions = {})
      : config_(s.model().config()), positions_(s.size() + static_cast<int64_t>(count)) {
    for (const char* name : names) watch_.points.push_back(point_of(name, "points"));
    watch_.state_positions.assign(state_positions.begin(), state_positions.end());
    capture_->points.resize(names.size() + (logits ? 1 : 0));
    watch_.sink = [this](const PointAt& at, int64_t, Rows rows) { keep(at, rows); };
  }
  CaptureBuilder(const CaptureBuilder&) = delete;
  CaptureBuilder& operator=(const CaptureBuilder&) = delete;

  const Watch& watch() const { return watch_; }
  void keep_logits(Rows rows) {
    stet_capture::Rows& to = capture_->points.back();
    to.width = rows.width;
    to.count += rows.count;
    for (size_t i = 0; i < rows.count; ++i)
      to.data.insert(to.data.end(), rows.row(i), rows.row(i) + rows.width);
  }
  // Cuts rows of scores and patterns to `positions` columns if fewer tokens were appended than
  // announced.
  void end_at(int64_t positions) {
    for (size_t i = 0; i < watch_.points.size(); ++i) {
      const Point point = watch_.points[i].point;
      if (point != Point::scores && point != Point::pattern) continue;
      cut_columns(capture_->points[i], static_cast<size_t>(config_.heads),
                  static_cast<size_t>(positions));
    }
  }
  stet_capture* release() { return capture_.release(); }

 private:
  static void cut_columns(stet_capture::Rows& rows, size_t heads, size_t to) {
    const size_t from = rows.width / heads;
    if (to >= from) return;
    for (size_t i = 0; i < rows.count * heads; ++i)
      std::memmove(rows.data.data() + i * to, rows.data.data() + i * from, to * sizeof(float));
    rows.width = heads * to;
    rows.data.resize(rows.count * rows.width);
  }
  void keep(const PointAt& at, Rows rows) {
    for (size_t i = 0; i < watch_.points.size(); ++i) {
      if (watch_.points[i] == at) keep_rows(capture_->points[i], at, config_, positions_, rows);
    }
  }

  const ModelConfig& config_;
  int64_t positions_;
  Watch watch_;
  std::unique_ptr<stet_capture> capture_ = std::make_unique<stet_capture>();
};

}  // namespace stet::c
