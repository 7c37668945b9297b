// Parses tokens to nodes by the grammar of jinja2's parser. Each method calls the one for the next
// higher precedence.
#include <algorithm>
#include <charconv>

#include "src/text/jinja/lexer.hpp"
#include "src/text/jinja/nodes.hpp"

namespace stet::jinja {
namespace {

constexpr size_t kSourceLimit = size_t{1} << 19;
constexpr int kDepthLimit = 200;

using Type = Token::Type;
using Words = std::initializer_list<std::string_view>;

bool is_one_of(const Token& token, Type type, Words words) {
  return token.type == type && std::ranges::find(words, token.text) != words.end();
}

class Parser {
 public:
  Parser(std::vector<Token> tokens, const std::string& name)
      : tokens_(std::move(tokens)), name_(name) {}

  Body run() { return statements({}); }

 private:
  // ---- tokens ----

  const Token& now() const { return tokens_[at_]; }
  const Token& look() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  const Token& next() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }

  [[noreturn]] void fail(const std::string& expected) const { fail(now(), expected); }
  [[noreturn]] void fail(const Token& token, const std::string& expected) const {
    static constexpr const char* kNames[] = {
        "text", "{{", "}}", "{%", "%}", "", "a string", "", "", "", "the end of the template"};
    const std::string kind = kNames[static_cast<size_t>(token.type)];
    fail_at(ErrorKind::format, name_, token.at, expected, kind.empty() ? token.text : kind);
  }
  bool skip_name(std::string_view text) { return now().is_name(text) && (++at_, true); }
  bool skip_sign(std::string_view text) { return now().is_sign(text) && (++at_, true); }
  void expect_sign(std::string_view text) {
    if (!skip_sign(text)) fail(std::string(text));
  }
  void expect_name(std::string_view text) {
    if (!skip_name(text)) fail(std::string(text));
  }
  std::string name() {
    if (now().type != Type::name) fail("a name");
    return next().text;
  }
  void end_tag() {
    if (now().type != Type::block_end) fail("%} at the end of this tag");
    ++at_;
  }

  template <class T>
  std::unique_ptr<T> placed(std::unique_ptr<T> node, Position at) const {
    node->at = at;
    return node;
  }

  // One more level of nesting, until the end of the block.
  class Level {
   public:
    explicit Level(Parser& parser) : parser_(parser) {
      if (++parser.depth_ <= kDepthLimit) return;
      fail_at(ErrorKind::capacity, parser.name_, parser.now().at,
              "at most " + std::to_string(kDepthLimit) + " levels of nesting", "more");
    }
    ~Level() { --parser_.depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    Parser& parser_;
  };

  // ---- statements ----

  // Parses statements up to a tag named in `ends`, whose name is then the next token. With no
  // `ends`, parses to the end of the template.
  Body statements(Words ends) {
    const Level level(*this);
    Body body;
    while (true) {
      const Token& token = now();
      if (token.type == Type::end) {
        if (ends.size() > 0) fail(words(ends));
        return body;
      }
      ++at_;
      if (token.type == Type::data) {
        auto data = placed(std::make_unique<Data>(), token.at);
        data->text = plain(token.text);
        body.push_back(std::move(data));
      } else if (token.type == Type::variable_begin) {
        body.push_back(print(tuple({})));
        if (now().type != Type::variable_end) fail("}} at the end of this expression");
        ++at_;
      } else {
        if (is_one_of(now(), Type::name, ends)) return body;
        statement(body, ends);
        end_tag();
      }
    }
  }

  static std::string words(Words all) {
    std::string text;
    for (const std::string_view word : all)
      text += (text.empty() ? "{% " : " or {% ") + std::string(word) + " %}";
    return text;
  }

  // Parses the body of a tag whose head ends here, up to the name of its end tag.
  Body block(Words ends) {
    skip_sign(":");
    end_tag();
    return statements(ends);
  }
  Body whole_block(std::string_view end) {
    Body body = block({end});
    ++at_;
    return body;
  }

  std::unique_ptr<Statement> print(ExpressionPtr e) const {
    auto node = placed(std::make_unique<Print>(), e->at);
    node->expression = std::move(e);
    return node;
  }

  void statement(Body& body, Words ends) {
    if (now().type != Type::name) fail("the name of a tag");
    const Token tag = next();
    if (tag.text == "print") {
      for (bool more = now().type != Type::block_end; more; more = skip_sign(","))
        body.push_back(print(expression()));
      return;
    }
    std::unique_ptr<Statement> node;
    if (tag.text == "if")
      node = if_statement();
    else if (tag.text == "for")
      node = for_statement();
    else if (tag.text == "set")
      node = set_statement();
    else if (tag.text == "macro")
      node = macro_statement(tag);
    else if (tag.text == "call")
      node = call_block(tag);
    else if (tag.text == "filter")
      node = filter_block();
    else if (tag.text == "with")
      node = with_statement();
    else if (tag.text == "generation")
      node = generation();
    else if (tag.text == "break" || tag.text == "continue")
      node = jump(tag);
    else if (is_one_of(tag, Type::name,
                       {"include", "import", "from", "extends", "block", "autoescape"})) {
      fail_at(ErrorKind::unsupported, name_, tag.at,
              "a template of one file, without inheritance or escaping", tag.text);
    } else {
      fail(tag, ends.size() > 0 ? "a tag of Jinja, or " + words(ends) : "a tag of Jinja");
    }
    body.push_back(placed(std::move(node), tag.at));
  }

  std::unique_ptr<Statement> if_statement() {
    auto node = std::make_unique<If>();
    while (true) {
      ExpressionPtr test = tuple({}, false);
      node->branches.emplace_back(std::move(test), block({"elif", "else", "endif"}));
      const std::string& end = next().text;
      if (end == "elif") continue;
      if (end == "else") node->otherwise = whole_block("endif");
      return node;
    }
  }

  std::unique_ptr<Statement> for_statement() {
    auto node = std::make_unique<For>();
    node->target = target({"in"}, false);
    expect_name("in");
    node->over = tuple({"recursive"}, false);
    if (skip_name("if")) node->test = expression();
    node->recursive = skip_name("recursive");
    ++loops_;
    node->body = block({"endfor", "else"});
    --loops_;
    if (next().text == "else") node->otherwise = whole_block("endfor");
    return node;
  }

  std::unique_ptr<Statement> jump(const Token& tag) const {
    if (loops_ == 0) fail(tag, "a loop around " + tag.text);
    return std::make_unique<Jump>(tag.text == "break" ? Flow::break_loop : Flow::continue_loop);
  }

  std::unique_ptr<Statement> set_statement() {
    Target to = target({}, true);
    if (skip_sign("=")) {
      auto node = std::make_unique<Set>();
      node->target = std::move(to);
      node->expression = tuple({});
      return node;
    }
    auto node = std::make_unique<CapturedBlock>();
    node->target = std::move(to);
    while (skip_sign("|")) node->filters.push_back(filter());
    node->body = whole_block("endset");
    return node;
  }

  std::unique_ptr<Statement> filter_block() {
    auto node = std::make_unique<CapturedBlock>();
    do node->filters.push_back(filter());
    while (skip_sign("|"));
    node->body = whole_block("endfilter");
    return node;
  }

  std::unique_ptr<Statement> with_statement() {
    auto node = std::make_unique<With>();
    while (now().type != Type::block_end) {
      if (!node->values.empty()) expect_sign(",");
      Target to = target({}, false);
      expect_sign("=");
      node->values.emplace_back(std::move(to), expression());
    }
    node->body = whole_block("endwith");
    return node;
  }

  std::unique_ptr<Statement> generation() {
    auto node = std::make_unique<ScopedBlock>();
    const int loops = std::exchange(loops_, 0);
    node->body = whole_block("endgeneration");
    loops_ = loops;
    return node;
  }

  void signature(MacroDefinition& macro) {
    expect_sign("(");
    while (!now().is_sign(")")) {
      if (!macro.parameters.empty()) expect_sign(",");
      const Token parameter = now();
      std::string title = name();
      ExpressionPtr otherwise = skip_sign("=") ? expression() : nullptr;
      if (otherwise == nullptr && !macro.parameters.empty() &&
          macro.parameters.back().second != nullptr) {
        fail(parameter, "a default, as the parameter before has one");
      }
      macro.parameters.emplace_back(std::move(title), std::move(otherwise));
    }
    ++at_;
  }

  // Parses a macro's body, to which loops around the macro do not apply.
  void macro_body(MacroDefinition& macro, std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    macros_.push_back(&macro);
    macro.body = whole_block(end);
    macros_.pop_back();
    loops_ = loops;
  }

  std::unique_ptr<Statement> macro_statement(const Token& tag) {
    auto node = std::make_unique<MacroStatement>();
    node->macro.at = tag.at;
    node->macro.name = name();
    signature(node->macro);
    macro_body(node->macro, "endmacro");
    return node;
  }

  std::unique_ptr<Statement> call_block(const Token& tag) {
    auto node = std::make_unique<CallBlock>();
    node->caller.at = tag.at;
    node->caller.name = "caller";
    if (now().is_sign("(")) signature(node->caller);
    const Token start = now();
    ExpressionPtr called = expression();
    auto* chain = dynamic_cast<Chain*>(called.get());
    auto* step = chain != nullptr ? dynamic_cast<CallStep*>(chain->steps.back().get()) : nullptr;
    if (step == nullptr) fail(start, "a call");
    chain->steps.back().release();
    chain->steps.pop_back();
    node->call.reset(step);
    node->function = std::move(called);
    macro_body(node->caller, "endcall");
    return node;
  }

  // ---- targets ----

  // Parses a target, with `spaces` also attributes of namespaces. A tuple ends before one of
  // `ends`.
  Target target(Words ends, bool spaces) {
    const Level level(*this);
    const Token start = now();
    Target first = single_target(spaces);
    if (!now().is_sign(",")) return first;
    Target all;
    all.at = start.at;
    all.parts.push_back(std::move(first));
    while (skip_sign(",")) {
      if (at_tuple_end(ends)) break;
      all.parts.push_back(single_target(spaces));
    }
    return all;
  }

  Target single_target(bool spaces) {
    if (skip_sign("(")) {
      Target inner = target({}, spaces);
      expect_sign(")");
      return inner;
    }
    Target one;
    one.at = now().at;
    if (is_one_of(now(), Type::name, {"true", "false", "none", "True", "False", "None", "loop"}))
      fail("a name that can be assigned to");
    one.name = name();
    if (spaces && skip_sign(".")) one.attribute = name();
    return one;
  }

  // ---- expressions ----

  bool at_tuple_end(Words ends) const {
    return now().type == Type::variable_end || now().type == Type::block_end ||
           now().is_sign(")") || now().is_sign("=") || is_one_of(now(), Type::name, ends);
  }

  // Parses one expression, or a tuple of several separated by commas.
  ExpressionPtr tuple(Words ends, bool conditional = true, bool parentheses = false) {
    const Token start = now();
    auto all = placed(std::make_unique<Sequence>(Kind::tuple), start.at);
    bool comma = false;
    while (!at_tuple_end(ends)) {
      all->items.push_back(conditional ? expression() : logic_or());
      if (!now().is_sign(",")) break;
      comma = true;
      ++at_;
    }
    if (comma || (all->items.empty() && parentheses)) return all;
    if (all->items.empty()) fail(start, "an expression");
    return std::move(all->items[0]);
  }

  ExpressionPtr expression() {
    const Level level(*this);
    const Token start = now();
    ExpressionPtr e = logic_or();
    for (int more = 0; skip_name("if"); ++more) {
      if (more == kDepthLimit) fail("fewer conditions");
      auto node = placed(std::make_unique<Conditional>(), start.at);
      node->then = std::move(e);
      node->test = logic_or();
      if (skip_name("else")) node->otherwise = expression();
      e = std::move(node);
    }
    return e;
  }

  // Parses operands joined by one word. A single operand is returned as it is.
  template <class Operand>
  ExpressionPtr logic(std::string_view word, bool all, Operand operand) {
    const Token start = now();
    ExpressionPtr first = operand();
    if (!now().is_name(word)) return first;
    auto node = placed(std::make_unique<Logic>(), start.at);
    node->all = all;
    node->operands.push_back(std::move(first));
    while (skip_name(word)) node->operands.push_back(operand());
    return node;
  }
  ExpressionPtr logic_or() {
    return logic("or", false, [this] { return logic_and(); });
  }
  ExpressionPtr logic_and() {
    return logic("and", true, [this] { return logic_not(); });
  }

  ExpressionPtr logic_not() {
    const Token start = now();
    if (!skip_name("not")) return comparison();
    const Level level(*this);
    return placed(std::make_unique<Unary>('!', logic_not()), start.at);
  }

  ExpressionPtr comparison() {
    const Token start = now();
    ExpressionPtr first = sum();
    std::unique_ptr<Comparison> node;
    while (true) {
      std::string op;
      if (is_one_of(now(), Type::sign, {"==", "!=", "<", "<=", ">", ">="}))
        op = next().text;
      else if (skip_name("in"))
        op = "in";
      else if (now().is_name("not") && look().is_name("in")) {
        at_ += 2;
        op = "not in";
      } else {
        break;
      }
      if (node == nullptr) {
        node = placed(std::make_unique<Comparison>(), start.at);
        node->first = std::move(first);
      }
      node->rest.emplace_back(std::move(op), sum());
    }
    return node != nullptr ? ExpressionPtr(std::move(node)) : std::move(first);
  }

  template <class Operand>
  ExpressionPtr arithmetic(Words signs, Operand operand) {
    const Token start = now();
    ExpressionPtr first = operand();
    if (!is_one_of(now(), Type::sign, signs)) return first;
    auto node = placed(std::make_unique<Arithmetic>(), start.at);
    node->first = std::move(first);
    while (is_one_of(now(), Type::sign, signs)) {
      const std::string sign = next().text;
      node->rest.emplace_back(sign == "//" ? 'f' : sign == "**" ? 'p' : sign[0], operand());
    }
    return node;
  }
  ExpressionPtr sum() {
    return arithmetic({"+", "-"}, [this] { return concatenation(); });
  }
  ExpressionPtr product() {
    return arithmetic({"*", "/", "//", "%"}, [this] { return power(); });
  }
  ExpressionPtr power() {
    return arithmetic({"**"}, [this] { return unary(true); });
  }

  ExpressionPtr concatenation() {
    const Token start = now();
    ExpressionPtr first = product();
    if (!now().is_sign("~")) return first;
    auto node = placed(std::make_unique<Concatenation>(), start.at);
    node->operands.push_back(std::move(first));
    while (skip_sign("~")) node->operands.push_back(product());
    return node;
  }

  // Filters and tests bind looser than a preceding sign; attributes and calls bind tighter.
  ExpressionPtr unary(bool filters) {
    const Token start = now();
    ExpressionPtr e;
    if (is_one_of(start, Type::sign, {"+", "-"})) {
      const Level level(*this);
      ++at_;
      e = placed(std::make_unique<Unary>(start.text[0], unary(false)), start.at);
    } else {
      e = primary();
    }
    Steps steps;
    postfix(steps);
    while (filters) {
      if (skip_sign("|"))
        steps.push_back(filter());
      else if (now().is_name("is"))
        steps.push_back(test());
      else if (now().is_sign("("))
        steps.push_back(call_step());
      else
        break;
    }
    return chained(std::move(e), std::move(steps), start.at);
  }

  ExpressionPtr chained(ExpressionPtr base, Steps steps, Position at) const {
    if (steps.empty()) return base;
    auto node = placed(std::make_unique<Chain>(), at);
    node->base = std::move(base);
    node->steps = std::move(steps);
    return node;
  }

  ExpressionPtr literal(Value v, Position at) const {
    return placed(std::make_unique<Literal>(std::move(v)), at);
  }

  ExpressionPtr primary() {
    const Token token = now();
    switch (token.type) {
      case Type::name:
        ++at_;
        return named(token);
      case Type::string: {
        std::string text;
        while (now().type == Type::string) text += next().text;
        return literal(Value::string(text), token.at);
      }
      case Type::integer:
        ++at_;
        return literal(Value::integer(integer(token)), token.at);
      case Type::number:
        ++at_;
        return literal(Value::number(*parse_float(token.text)), token.at);
      default:
        break;
    }
    if (skip_sign("(")) {
      ExpressionPtr inner = tuple({}, true, true);
      expect_sign(")");
      return inner;
    }
    if (now().is_sign("[")) return list();
    if (now().is_sign("{")) return dict();
    fail("an expression");
  }

  ExpressionPtr named(const Token& token) {
    const std::string& word = token.text;
    if (word == "true" || word == "True") return literal(Value::boolean(true), token.at);
    if (word == "false" || word == "False") return literal(Value::boolean(false), token.at);
    if (word == "none" || word == "None") return literal(Value(), token.at);
    for (MacroDefinition* macro : macros_) {
      macro->uses_caller = macro->uses_caller || word == "caller";
      macro->uses_kwargs = macro->uses_kwargs || word == "kwargs";
      macro->uses_varargs = macro->uses_varargs || word == "varargs";
    }
    return placed(std::make_unique<Name>(word), token.at);
  }

  int64_t integer(const Token& token) const {
    const std::string& text = token.text;
    const char kind = text.size() > 1 ? static_cast<char>(text[1] | 0x20) : '\0';
    const int base = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 10;
    int64_t value = 0;
    const char* const first = text.data() + (base == 10 ? 0 : 2);
    if (std::from_chars(first, text.data() + text.size(), value, base).ec != std::errc())
      fail(token, "an integer of 64 bits");
    return value;
  }

  ExpressionPtr list() {
    auto node = placed(std::make_unique<Sequence>(Kind::list), next().at);
    while (!now().is_sign("]")) {
      node->items.push_back(expression());
      if (!skip_sign(",")) break;
    }
    expect_sign("]");
    return node;
  }

  ExpressionPtr dict() {
    auto node = placed(std::make_unique<DictLiteral>(), next().at);
    while (!now().is_sign("}")) {
      ExpressionPtr key = expression();
      expect_sign(":");
      node->members.emplace_back(std::move(key), expression());
      if (!skip_sign(",")) break;
    }
    expect_sign("}");
    return node;
  }

  // ---- postfix operators ----

  void postfix(Steps& steps) {
    while (true) {
      if (now().is_sign("."))
        steps.push_back(dotted());
      else if (now().is_sign("["))
        steps.push_back(subscript());
      else if (now().is_sign("("))
        steps.push_back(call_step());
      else
        return;
    }
  }

  std::unique_ptr<Step> dotted() {
    const Position at = next().at;
    if (now().type == Type::integer) {
      auto step = placed(std::make_unique<ItemStep>(), at);
      step->index = primary();
      return step;
    }
    if (now().type != Type::name) fail("a name or a number after the dot");
    auto step = placed(std::make_unique<AttributeStep>(), at);
    step->name = next().text;
    return step;
  }

  std::unique_ptr<Step> subscript() {
    const Position at = next().at;
    ExpressionPtr first;
    if (!now().is_sign(":")) {
      first = expression();
      if (now().is_sign(",")) {  // a tuple as a key
        auto items = placed(std::make_unique<Sequence>(Kind::tuple), at);
        items->items.push_back(std::move(first));
        while (skip_sign(",")) items->items.push_back(expression());
        first = std::move(items);
      }
    }
    if (!now().is_sign(":")) {
      expect_sign("]");
      auto step = placed(std::make_unique<ItemStep>(), at);
      step->index = std::move(first);
      return step;
    }
    auto step = placed(std::make_unique<SliceStep>(), at);
    step->start = std::move(first);
    for (ExpressionPtr* bound : {&step->stop, &step->step}) {
      if (skip_sign(":") && !now().is_sign(":") && !now().is_sign("]")) *bound = expression();
    }
    expect_sign("]");
    return step;
  }

  std::unique_ptr<Step> call_step() {
    auto step = placed(std::make_unique<CallStep>(), now().at);
    step->arguments = arguments();
    return step;
  }

  ArgumentList arguments() {
    ArgumentList all;
    expect_sign("(");
    while (!now().is_sign(")")) {
      const Token start = now();
      if (skip_sign("*")) {
        if (all.more != nullptr || all.more_named != nullptr) fail(start, "one * before **");
        all.more = expression();
      } else if (skip_sign("**")) {
        if (all.more_named != nullptr) fail(start, "** once");
        all.more_named = expression();
      } else if (start.type == Type::name && look().is_sign("=")) {
        if (all.more_named != nullptr) fail(start, "** behind all arguments");
        at_ += 2;
        all.named.emplace_back(start.text, expression());
      } else {
        if (all.more != nullptr || all.more_named != nullptr || !all.named.empty())
          fail(start, "arguments by position before the others");
        all.positional.push_back(expression());
      }
      if (!skip_sign(",")) break;
    }
    expect_sign(")");
    return all;
  }

  std::string dotted_name() {
    std::string text = name();
    while (skip_sign(".")) text += "." + name();
    return text;
  }

  std::unique_ptr<Step> filter() {
    auto step = placed(std::make_unique<FilterStep>(), now().at);
    step->name = dotted_name();
    step->builtin = find_filter(step->name);
    if (now().is_sign("(")) step->arguments = arguments();
    return step;
  }

  // Parses a test after `is`: a name, and one operand without parentheses, or arguments in
  // parentheses.
  std::unique_ptr<Step> test() {
    auto step = placed(std::make_unique<TestStep>(), next().at);
    step->negated = skip_name("not");
    step->name = dotted_name();
    step->builtin = find_test(step->name);
    const Type type = now().type;
    const bool operand =
        type == Type::string || type == Type::integer || type == Type::number ||
        now().is_sign("[") || now().is_sign("{") ||
        (type == Type::name && !is_one_of(now(), Type::name, {"else", "or", "and"}));
    if (now().is_sign("(")) {
      step->arguments = arguments();
    } else if (operand) {
      if (now().is_name("is")) fail("one test after another with `and`");
      const Token start = now();
      ExpressionPtr base = primary();
      Steps steps;
      postfix(steps);
      step->arguments.positional.push_back(chained(std::move(base), std::move(steps), start.at));
    }
    return step;
  }

  const std::vector<Token> tokens_;
  const std::string& name_;
  size_t at_ = 0;
  int depth_ = 0;
  int loops_ = 0;                         // depth of loops in the current macro
  std::vector<MacroDefinition*> macros_;  // the enclosing macros
};

}  // namespace

Body parse_template(std::string_view source, const std::string& name) {
  if (source.size() > kSourceLimit) {
    throw Error(ErrorKind::capacity, name, "",
                "a template of at most " + std::to_string(kSourceLimit) + " bytes",
                std::to_string(source.size()));
  }
  if (!utf8_valid(source)) throw Error(ErrorKind::format, name, "", "UTF-8", "other bytes");
  return Parser(tokenize(source, name), name).run();
}

}  // namespace stet::jinja
