// C interface: a session's interventions, and points by name.
#include "src/c/internal.hpp"

namespace stet::c {
namespace {

// Returns a struct that points into `w`.
stet_intervention intervention_value(const Intervention& w) {
  stet_intervention value{};
  value.point = point_info(w.point).name;
  value.layers = w.layers.empty() ? nullptr : w.layers.data();
  value.layer_count = w.layers.size();
  value.heads = w.heads.empty() ? nullptr : w.heads.data();
  value.head_count = w.heads.size();
  value.begin =
      w.ended < 0 ? w.begin : 0;  // ended after a shift: `begin` has no valid number, so 0
  value.end = w.end < 0 ? 0 : w.end;
  value.key_begin = w.key_begin;
  value.key_end = w.key_end < 0 ? 0 : w.key_end;
  value.op = static_cast<int32_t>(w.op);
  value.amount = w.amount;
  value.bias = w.bias;
  value.threshold = w.threshold;
  if (w.values != nullptr && !w.values->empty()) {
    value.values = w.values->data();
    value.value_count = w.values->size();
  }
  return value;
}

// Returns the point with this name. A name without its layer stands for the first that has it.
PointAt point_called(const ModelConfig& config, const std::string& name) {
  std::optional<PointAt> found;
  if (const std::optional<Point> point = parse_point(name)) {
    found = PointAt{*point, 0};
    while (found->layer + 1 < config.layers && !has_point(config, *found)) ++found->layer;
  }
  if (const auto place = parse_point_at(name)) {
    const int64_t layers = point_info(place->point).of_layer ? config.layers : 1;
    if (place->layer >= 0 && place->layer < layers) found = *place;
  }
  if (!found || !has_point(config, found->point))
    fail("point", "the name of a point of family " + config.family, name);
  const bool recurrent = config.layer(found->layer).recurrent;
  if (!has_point(config, *found) && (recurrent || is_of_recurrence(found->point)))
    fail("point", recurrent ? "a layer with attention" : "a recurrent layer", name);
  if (!has_point(config, *found))
    fail("point", "a layer with keys and values of its own",
         name + ", which reads those of layer " + std::to_string(config.layer(found->layer).owner));
  return *found;
}

}  // namespace
}  // namespace stet::c

using namespace stet::c;

stet_status stet_session_intervention(const stet_session* session, size_t index,
                                      stet_intervention* intervention, int64_t* attached,
                                      stet_error** error) {
  return guarded(error, [&] {
    if (attached != nullptr) *attached = 0;
    stet_intervention& to = checked(intervention, "intervention");
    const stet::Session& s = *at(session, "session").at;
    const stet::Intervention& w = element(s.interventions(), index, "index");
    give(intervention_value(w), to);
    if (attached != nullptr) *attached = w.at;
  });
}

stet_status stet_session_detach(stet_session* session, size_t index, int64_t position,
                                stet_error** error) {
  return guarded(error, [&] { at(session, "session").at->detach(index, position); });
}

stet_status stet_model_point(const stet_model* model, const char* point, stet_point_info* info,
                             stet_error** error) {
  return guarded(error, [&] {
    stet_point_info& to = checked(info, "info");
    const stet::ModelConfig& config = at(model, "model").model->config();
    const stet::PointAt at_point = point_called(config, cstring(point, "point"));
    const stet::Point p = at_point.point;
    stet_point_info value{};
    value.heads = stet::point_heads(config, at_point);
    value.width = stet::point_width(config, at_point, 1);
    value.of_positions = p == stet::Point::scores || p == stet::Point::pattern ? 1 : 0;
    value.can_be_changed = stet::point_info(p).changes ? 1 : 0;
    give(value, to);
  });
}
