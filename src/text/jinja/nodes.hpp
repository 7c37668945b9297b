// The parsed template. A chain of operators is one node, so the tree is no deeper than the source
// is nested.
#pragma once

#include "src/text/jinja/context.hpp"

namespace stet::jinja {

class Expression {
 public:
  virtual ~Expression() = default;
  Value evaluate(Context& c) const;

  Position at;

 private:
  virtual Value value(Context& c) const = 0;
};
using ExpressionPtr = std::unique_ptr<Expression>;

enum class Flow { normal, break_loop, continue_loop };

class Statement {
 public:
  virtual ~Statement() = default;
  virtual Flow execute(Context& c) const = 0;

  Position at;
};
using Body = std::vector<std::unique_ptr<Statement>>;
Flow execute(Context& c, const Body& body);

// A target of an assignment: a name, an attribute of a namespace, or several targets.
struct Target {
  Position at;
  std::string name, attribute;
  std::vector<Target> parts;  // if not empty, there is no name

  void assign(Context& c, const Value& value) const;
};

// ---- expressions ----

struct Literal : Expression {
  explicit Literal(Value v) : constant(std::move(v)) {}
  Value value(Context&) const override { return constant; }
  const Value constant;
};

struct Name : Expression {
  explicit Name(std::string n) : name(std::move(n)) {}
  Value value(Context& c) const override;
  const std::string name;
};

struct Sequence : Expression {
  explicit Sequence(Kind k) : kind(k) {}
  Value value(Context& c) const override;
  const Kind kind;  // list or tuple
  std::vector<ExpressionPtr> items;
};

struct DictLiteral : Expression {
  Value value(Context& c) const override;
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> members;
};

// Operands joined by binary operators of one precedence, evaluated from left to right.
struct Arithmetic : Expression {
  Value value(Context& c) const override;
  ExpressionPtr first;
  std::vector<std::pair<char, ExpressionPtr>> rest;
};

struct Unary : Expression {
  Unary(char s, ExpressionPtr e) : sign(s), operand(std::move(e)) {}
  Value value(Context& c) const override;
  const char sign;  // + - or ! for not
  const ExpressionPtr operand;
};

struct Logic : Expression {
  Value value(Context& c) const override;
  bool all = false;  // true: and; false: or
  std::vector<ExpressionPtr> operands;
};

struct Concatenation : Expression {
  Value value(Context& c) const override;
  std::vector<ExpressionPtr> operands;
};

struct Comparison : Expression {
  Value value(Context& c) const override;
  ExpressionPtr first;
  std::vector<std::pair<std::string, ExpressionPtr>> rest;  // with their operators; "not in" is one
};

struct Conditional : Expression {
  Value value(Context& c) const override;
  ExpressionPtr test, then, otherwise;  // the last may be null
};

struct ArgumentList {
  Arguments evaluate(Context& c) const;
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  ExpressionPtr more, more_named;  // *more, **more_named
};

// An operation that follows an operand, such as an index, a call or a filter.
struct Step {
  virtual ~Step() = default;
  virtual Value apply(Context& c, const Value& v) const = 0;
  Position at;
};
using Steps = std::vector<std::unique_ptr<Step>>;
Value apply(Context& c, const Steps& steps, Value v);

struct Chain : Expression {
  Value value(Context& c) const override { return apply(c, steps, base->evaluate(c)); }
  ExpressionPtr base;
  Steps steps;
};

struct AttributeStep : Step {
  Value apply(Context& c, const Value& v) const override { return attribute(c, v, name); }
  std::string name;
};

struct ItemStep : Step {
  Value apply(Context& c, const Value& v) const override { return item(c, v, index->evaluate(c)); }
  ExpressionPtr index;
};

struct SliceStep : Step {
  Value apply(Context& c, const Value& v) const override;
  ExpressionPtr start, stop, step;  // each may be null
};

struct CallStep : Step {
  Value apply(Context& c, const Value& v) const override {
    return call(c, v, arguments.evaluate(c));
  }
  ArgumentList arguments;
};

struct FilterStep : Step {
  Value apply(Context& c, const Value& v) const override;
  std::string name;
  // Null if there is none of that name, which is an error only when executed.
  const Builtin* builtin = nullptr;
  ArgumentList arguments;
};

struct TestStep : Step {
  Value apply(Context& c, const Value& v) const override;
  std::string name;
  const Builtin* builtin = nullptr;
  bool negated = false;
  ArgumentList arguments;
};

// ---- statements ----

struct Data : Statement {
  Flow execute(Context& c) const override;
  Text text;
};

struct Print : Statement {
  Flow execute(Context& c) const override;
  ExpressionPtr expression;
};

struct If : Statement {
  Flow execute(Context& c) const override;
  std::vector<std::pair<ExpressionPtr, Body>> branches;
  Body otherwise;
};

struct For : Statement {
  Flow execute(Context& c) const override;
  // Iterates over a value, with scopes within `parent`.
  Flow run(Context& c, const Value& over, int64_t depth,
           const std::shared_ptr<Frame>& parent) const;

  Target target;
  ExpressionPtr over, test;  // the test may be null
  bool recursive = false;
  Body body, otherwise;
};

struct Set : Statement {
  Flow execute(Context& c) const override;
  Target target;
  ExpressionPtr expression;
};

// {% set name | filters %}…{% endset %}, or without a target {% filter filters %}…{% endfilter %}.
struct CapturedBlock : Statement {
  Flow execute(Context& c) const override;
  std::optional<Target> target;
  Steps filters;
  Body body;
};

struct With : Statement {
  Flow execute(Context& c) const override;
  std::vector<std::pair<Target, ExpressionPtr>> values;
  Body body;
};

// {% generation %}: a body in a scope of its own.
struct ScopedBlock : Statement {
  Flow execute(Context& c) const override;
  Body body;
};

struct MacroDefinition {
  Position at;
  std::string name;
  // Parameters with their defaults, which may be null.
  std::vector<std::pair<std::string, ExpressionPtr>> parameters;
  bool uses_varargs = false, uses_kwargs = false, uses_caller = false;
  Body body;
};

struct MacroStatement : Statement {
  Flow execute(Context& c) const override;
  MacroDefinition macro;
};

// {% call(parameters) function(arguments) %}body{% endcall %}
struct CallBlock : Statement {
  Flow execute(Context& c) const override;
  ExpressionPtr function;
  std::unique_ptr<CallStep> call;
  MacroDefinition caller;
};

struct Jump : Statement {
  explicit Jump(Flow f) : flow(f) {}
  Flow execute(Context&) const override { return flow; }
  const Flow flow;
};

struct Program::Impl {
  std::string name;
  Body body;
};

Body parse_template(std::string_view source, const std::string& name);

}  // namespace stet::jinja
