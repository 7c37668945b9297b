#include "src/text/jinja/context.hpp"

namespace stet::jinja {

void fail_at(ErrorKind kind, const std::string& name, Position at, const std::string& expected,
             const std::string& found) {
  throw Error(kind, name,
              "line " + std::to_string(at.line) + " column " + std::to_string(at.column), expected,
              found);
}

Context::Context(const std::string& n, const Variables& v, const RenderOptions& o)
    : name(n), variables(v), options(o), steps_left_(o.limits.steps) {
  frame = make<Frame>(0, nullptr);
}

Context::~Context() {
  for (const std::shared_ptr<Object>& object : kept_) object->clear();
}

void Context::expect_memory(size_t bytes) {
  const size_t limit = options.limits.memory;
  if (bytes > limit || memory_.used > limit - bytes) {
    fail(ErrorKind::capacity, "at most " + std::to_string(limit) + " bytes of values", "more");
  }
}

void Context::count(Object& object, size_t bytes) {
  step();
  expect_memory(bytes);
  object.memory = &memory_;
  object.size = bytes;
  memory_.used += bytes;
}

Value Context::string(Text text) {
  const size_t bytes = text.bytes.size() + text.marks.size() * sizeof(Mark);
  copy(bytes);
  return {Kind::string, make<String>(bytes, std::move(text))};
}

Value Context::list(std::vector<Value> items, Kind kind, const char* type) {
  const size_t bytes = items.size() * sizeof(Value);
  copy(bytes);
  return {kind, make<List>(bytes, std::move(items), type)};
}

Value Context::dict(Members members) {
  const size_t bytes = members.all().size() * Members::kBytes;
  step(1 + members.all().size());
  return {Kind::dict, make<Dict>(bytes, std::move(members))};
}

Value Context::iterator(Iterator::Next next) {
  // Counts a level of recursion, since iterators may draw from one another in long chains.
  Iterator::Next guarded = [next = std::move(next)](Context& context, Value& item) {
    const Level level(context);
    return next(context, item);
  };
  return {Kind::iterator, make<Iterator>(64, std::move(guarded))};
}

Value Context::undefined(const std::string& message, bool unsafe) {
  return {Kind::undefined, make<Undefined>(message.size(), message, unsafe)};
}

void Builder::repeat(std::string_view bytes, int64_t count) {
  if (count <= 0 || bytes.empty()) return;
  const auto times = static_cast<size_t>(count);
  if (times > SIZE_MAX / 2 / bytes.size()) context_.expect_memory(SIZE_MAX);
  grow(times * bytes.size());
  for (size_t i = 0; i < times; ++i) text.bytes += bytes;
}

void Context::write(const Text& text) {
  const size_t bytes = text.bytes.size();
  copy(bytes);
  expect_memory(bytes);
  if (bytes > options.limits.output || output_->bytes.size() > options.limits.output - bytes) {
    fail(ErrorKind::capacity,
         "at most " + std::to_string(options.limits.output) + " bytes of output", "more");
  }
  append(*output_, text);
  memory_.used += bytes;
}

}  // namespace stet::jinja
