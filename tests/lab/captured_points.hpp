// Captures all points of a pass.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "stet/session/session.hpp"

namespace stet::test {

using Captured = std::map<std::string, std::vector<float>>;

// Captures rows, one position after the other. Rows with a column for each position are filled up
// for the positions that are not visible: scores with -inf, weights with zero.
inline Watch watch_into(const ModelConfig& c, const std::vector<PointAt>& points, Captured& to,
                        int64_t positions) {
  return {points, [&c, &to, positions](const PointAt& at, int64_t, Rows r) {
            const bool wide = at.point == Point::scores || at.point == Point::pattern;
            const size_t heads = wide ? static_cast<size_t>(c.heads) : 1, from = r.width / heads,
                         full = wide ? static_cast<size_t>(positions) : from;
            for (size_t i = 0; i < r.count * heads; ++i) {
              std::vector<float> row(full, at.point == Point::scores ? -INFINITY : 0.0f);
              std::copy_n(r.row(i / heads) + i % heads * from, from, row.begin());
              to[point_name(at)].insert(to[point_name(at)].end(), row.begin(), row.end());
            }
          }};
}

inline Captured capture(Session& s, std::span<const int32_t> ids) {
  Captured all;
  const ModelConfig& c = s.model().config();
  const Watch watch = watch_into(c, points_of(c), all, s.size() + static_cast<int64_t>(ids.size()));
  s.append(ids, nullptr, nullptr, nullptr, &watch);
  return all;
}

}  // namespace stet::test
