// C interface: weights by name.
#include "src/c/internal.hpp"
#include "src/c/view.hpp"
#include "stet/model/named_weights.hpp"

using namespace stet::c;

stet_status stet_model_weights(const stet_model* model, char** text, size_t* size,
                               stet_error** error) {
  return guarded(error, [&] {
    const auto to = outputs(text, "text", size, "size");
    std::string lines;
    for (const stet::NamedWeight& weight : stet::named_weights(*at(model, "model").model))
      lines += weight.name + "\n";
    give_text(lines, to);
  });
}

stet_status stet_model_weight(const stet_model* model, const char* name, stet_view** view,
                              stet_weight* weight, stet_error** error) {
  return guarded(error, [&] {
    stet_view*& to = output(view, "view");
    stet_weight& about = checked(weight, "weight");
    const stet::Model& m = *at(model, "model").model;
    const std::string wanted = cstring(name, "name");
    const auto values = stet::load_named_weight(m, wanted);
    stet_weight value{};
    for (const stet::NamedWeight& w : stet::named_weights(m)) {
      if (w.name != wanted) continue;
      value.dimensions = static_cast<int32_t>(w.shape.size());
      std::copy(w.shape.begin(), w.shape.end(), value.shape);
    }
    value.data = values->data();
    to = new stet_view{values};
    give(value, about);
  });
}
