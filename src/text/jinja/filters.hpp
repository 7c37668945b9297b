// Declarations shared by the two files of filters.
#pragma once

#include "src/text/jinja/context.hpp"

namespace stet::jinja {

// The argument `attribute` of filters, applied to an item. It is a path such as "a.b" or a number;
// none means the item itself.
class AttributeOf {
 public:
  AttributeOf(Context& context, const Value& attribute,
              std::optional<Value> otherwise = std::nullopt);
  Value operator()(const Value& item) const;

 private:
  Context& context_;
  std::vector<Value> parts_;
  std::optional<Value> otherwise_;  // replaces undefined results
};

const Builtin* find_text_filter(const std::string& name);

}  // namespace stet::jinja
