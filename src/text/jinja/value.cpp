#include "src/text/jinja/value.hpp"

#include <algorithm>
#include <cmath>
#include <compare>

#include "src/text/jinja/context.hpp"

namespace stet::jinja {

void release(Object* object) noexcept {
  thread_local Object* going = nullptr;
  thread_local bool busy = false;
  object->next = going;
  going = object;
  if (busy) return;
  busy = true;
  while (going != nullptr) {
    Object* const first = going;
    going = first->next;
    delete first;
  }
  busy = false;
}

Value Value::boolean(bool value) {
  Value v;
  v.kind_ = Kind::boolean;
  v.boolean_ = value;
  return v;
}

Value Value::integer(int64_t value) {
  Value v;
  v.kind_ = Kind::integer;
  v.integer_ = value;
  return v;
}

Value Value::number(double value) {
  Value v;
  v.kind_ = Kind::number;
  v.number_ = value;
  return v;
}

Value Value::string(std::string_view bytes, int origin) {
  Text text;
  append(text, utf8_lossy(bytes), origin);
  return {Kind::string, new_object<String>(std::move(text))};
}

Value Value::list(std::vector<Value> items) {
  return {Kind::list, new_object<List>(std::move(items))};
}

Value Value::dict(std::vector<std::pair<std::string, Value>> members) {
  Members m;
  for (const auto& [key, value] : members) m.set(string(key), value);
  return {Kind::dict, new_object<Dict>(std::move(m))};
}

Value Value::marked(int origin) const {
  if (is(Kind::string)) return string(text_of(*this).bytes, origin);
  if (is(Kind::list)) {
    std::vector<Value> copies;
    for (const Value& item : items_of(*this)) copies.push_back(item.marked(origin));
    return list(std::move(copies));
  }
  if (!is(Kind::dict)) return *this;
  Members copies;
  for (const auto& [key, value] : members_of(*this).all())
    copies.set(key.marked(origin), value.marked(origin));
  return {Kind::dict, new_object<Dict>(std::move(copies))};
}

std::vector<Value> Value::items() const {
  return is(Kind::list) ? items_of(*this) : std::vector<Value>();
}

std::vector<std::pair<std::string, Value>> Value::members() const {
  std::vector<std::pair<std::string, Value>> all;
  if (!is(Kind::dict)) return all;
  for (const auto& [key, value] : members_of(*this).all()) {
    if (is_string(key)) all.emplace_back(text_of(key).bytes, value);
  }
  return all;
}

const Value* Frame::find(const std::string& name) const {
  for (const auto& [key, value] : names) {
    if (key == name) return &value;
  }
  return nullptr;
}

void Frame::set(const std::string& name, const Value& value) {
  for (auto& [key, old] : names) {
    if (key == name) {
      old = value;
      return;
    }
  }
  names.emplace_back(name, value);
}

namespace {

constexpr size_t kIndexed = 16;  // number of members that justifies an index

int rank_of(const Value& v) {
  return v.is(Kind::none) ? 0 : is_number(v) ? 1 : is_string(v) ? 2 : v.is(Kind::tuple) ? 3 : 4;
}

std::strong_ordering order_of_numbers(const Value& a, const Value& b) {
  const auto x = as_index(a), y = as_index(b);
  if (x && y) return *x <=> *y;
  const auto wide = [](const Value& v) {
    return as_index(v) ? static_cast<long double>(*as_index(v)) : as_double(v);
  };
  const long double p = wide(a), q = wide(b);
  if (std::isnan(p) || std::isnan(q)) return std::isnan(q) <=> std::isnan(p);
  return p < q   ? std::strong_ordering::less
         : p > q ? std::strong_ordering::greater
                 : std::strong_ordering::equal;
}

// Orders hashable values; values that are the same key compare equal.
std::strong_ordering key_order(const Value& a, const Value& b) {
  const int rank = rank_of(a);
  if (rank != rank_of(b)) return rank <=> rank_of(b);
  switch (rank) {
    case 0:
      return std::strong_ordering::equal;
    case 1:
      return order_of_numbers(a, b);
    case 2:
      return text_of(a).bytes.compare(text_of(b).bytes) <=> 0;
    case 3: {
      const auto &x = items_of(a), &y = items_of(b);
      for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
        if (const auto order = key_order(x[i], y[i]); order != 0) return order;
      }
      return x.size() <=> y.size();
    }
    default:
      return std::compare_three_way()(a.object(), b.object());
  }
}

}  // namespace

bool Members::Less::operator()(const Value& a, const Value& b) const { return key_order(a, b) < 0; }

std::optional<size_t> Members::index_of(const Value& key) const {
  if (members_.size() >= kIndexed) {
    const auto found = index_.find(key);
    return found == index_.end() ? std::nullopt : std::optional(found->second);
  }
  for (size_t i = 0; i < members_.size(); ++i) {
    if (key_order(members_[i].first, key) == 0) return i;
  }
  return std::nullopt;
}

const Value* Members::find(const Value& key) const {
  const auto index = index_of(key);
  return index ? &members_[*index].second : nullptr;
}

void Members::set(const Value& key, const Value& value) {
  if (const auto index = index_of(key)) {
    members_[*index].second = value;
    return;
  }
  members_.emplace_back(key, value);
  if (members_.size() < kIndexed) return;
  for (size_t i = index_.size(); i < members_.size(); ++i) index_.emplace(members_[i].first, i);
}

}  // namespace stet::jinja
