// What the two files of filters share.
#pragma once

#include "src/text/jinja/context.hpp"

namespace stet::jinja {

// The argument `attribute` of filters: "a.b" or a number, followed from an item; none gives the
// item itself.
class AttributeOf {
 public:
  AttributeOf(Context& context, const Value& attribute,
              std::optional<Value> otherwise = std::nullopt);
  Value operator()(const Value& item) const;

 private:
  Context& context_;
  std::vector<Value> parts_;
  std::optional<Value> otherwise_;  // in place of what is undefined
};

const Builtin* find_text_filter(const std::string& name);

}  // namespace stet::jinja
