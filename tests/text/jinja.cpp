// The Jinja engine: tables of jinja2's output (tests/text/jinja_cases.py), positions of errors,
// marks, limits.
#include "stet/text/jinja.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "src/text/jinja/text.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/files.hpp"
#include "tests/support/heap.hpp"

namespace stet::test::jinja_tests {
namespace {

using namespace stet::jinja;
using nlohmann::ordered_json;
using stet::Error;
using stet::ErrorKind;

#ifdef STET_HAVE_UTF8PROC
constexpr bool kHaveTables = true;
#else
constexpr bool kHaveTables = false;
#endif

const std::string kTables = STET_ROOT "/tests/data/jinja/";

Variables variables_of(const ordered_json& json, int origin = 7) {
  Variables variables;
  for (const auto& [name, value] : json.items())
    variables.emplace_back(name, Value::from_json(value.dump(), "test").marked(origin));
  return variables;
}

std::string rendered(const std::string& source, const std::string& variables = "{}",
                     const RenderOptions& options = {}) {
  return Program::parse(source, "t")
      .render(variables_of(ordered_json::parse(variables)), options)
      .bytes;
}

// Returns "kind: text" of the Error.
std::string error_in(const std::string& source, const std::string& variables = "{}",
                     const RenderOptions& options = {}) {
  return error_of([&] { rendered(source, variables, options); });
}

void expect_marks_in_order(const Text& text) {
  size_t last_end = 0;
  int last_origin = kUnmarked;
  for (const Mark& mark : text.marks) {
    EXPECT_LT(mark.begin, mark.end);
    EXPECT_GE(mark.begin, last_end);
    EXPECT_LE(mark.end, text.bytes.size());
    EXPECT_FALSE(mark.begin == last_end && mark.origin == last_origin) << "two marks that are one";
    last_end = mark.end;
    last_origin = mark.origin;
  }
}

class JinjaTable : public testing::TestWithParam<const char*> {};

TEST_P(JinjaTable, EveryTemplateRendersAsJinja2RendersIt) {
  if (!kHaveTables) GTEST_SKIP() << "built without utf8proc";
  std::ifstream in(kTables + GetParam());
  size_t count = 0;
  for (std::string line; std::getline(in, line); ++count) {
    const ordered_json entry = ordered_json::parse(line);
    std::string source = entry[0];
    if (source.starts_with("@")) source = read_text(kTables + source.substr(1));
    ordered_json result;
    try {
      const Text text = Program::parse(source, "t").render(variables_of(entry[1]));
      expect_marks_in_order(text);
      result = text.bytes;
    } catch (const Refused& refusal) {
      result = {{"refused", refusal.found}};
    } catch (const Error& e) {
      result = nullptr;
      EXPECT_TRUE(e.field.starts_with("line ")) << e.what();
      EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos);
    }
    EXPECT_EQ(result.dump(), entry[2].dump()) << entry[0].dump() << "\n" << entry[1].dump();
  }
  EXPECT_GT(count, 100u);
}

INSTANTIATE_TEST_SUITE_P(Jinja2, JinjaTable, testing::Values("language.jsonl", "chat.jsonl"));

TEST(JinjaErrors, NameTheirPlace) {
  EXPECT_EQ(error_in("a\n  {% if x %}"),
            "format: t: line 2 column 13: expected {% elif %} or {% else %} or {% endif %}, found "
            "the end of the template");
  EXPECT_EQ(error_in("a\n\u00E9\u00E9{{ 1 + }}"),
            "format: t: line 2 column 10: expected an expression, found }}");
  EXPECT_EQ(error_in("{% for x in y %}\n{% endif %}"),
            "format: t: line 2 column 4: expected a tag of Jinja, or {% endfor %} or {% else %}, "
            "found endif");
  EXPECT_EQ(error_in("{{ (1 }}"), "format: t: line 1 column 7: expected ), found }");
  EXPECT_EQ(
      error_in("\n\n {{ 'abc }}"),
      "format: t: line 3 column 5: expected the end of this string, found the end of the template");
  EXPECT_EQ(
      error_in("{{ [1, 2"),
      "format: t: line 1 column 4: expected the end of this [, found the end of the template");
  EXPECT_EQ(error_in("\n{{ a"),
            "format: t: line 2 column 1: expected }} at the end of this tag, found the end of the "
            "template");
  EXPECT_EQ(error_in("x{# y"),
            "format: t: line 1 column 2: expected #} at the end of a comment, found the end of the "
            "template");
  EXPECT_EQ(error_in("{% raw %}x"),
            "format: t: line 1 column 1: expected {% endraw %}, found the end of the template");
  EXPECT_EQ(error_in("{{ 1 @ 2 }}"), "format: t: line 1 column 6: expected an expression, found @");
  EXPECT_EQ(error_in("{% foo %}"),
            "format: t: line 1 column 4: expected a tag of Jinja, found foo");
  EXPECT_EQ(
      error_in("{{ 9223372036854775808 }}"),
      "format: t: line 1 column 4: expected an integer of 64 bits, found 9223372036854775808");
  EXPECT_EQ(error_in("\xFF"), "format: t: expected UTF-8, found other bytes");
  EXPECT_EQ(error_in("\n {{ a.b }}"),
            "format: t: line 2 column 6: expected a defined value, found 'a' is undefined");
  EXPECT_EQ(error_in("{{ d.a.b.c }}", R"({"d": {"a": {}}})"),
            "format: t: line 1 column 9: expected a defined value, found 'dict object' has no "
            "attribute 'b'");
  EXPECT_EQ(error_in("{{ 1 }}{{ 1 + 'a' }}"),
            "format: t: line 1 column 11: expected operands that + takes, found int and str");
  EXPECT_EQ(error_in("{{ [].append(1) }}"),
            "format: t: line 1 column 13: expected what the sandbox allows, found access to "
            "attribute 'append' of 'list' object is unsafe");
  EXPECT_EQ(error_in("{% macro m() %}\n{{ x.y }}{% endmacro %}\n\n{{ m() }}"),
            "format: t: line 2 column 5: expected a defined value, found 'x' is undefined");
  EXPECT_EQ(error_in("a\r\nb\r{{ nope() }}"),
            "format: t: line 3 column 8: expected a defined value, found 'nope' is undefined");
}

TEST(JinjaErrors, MissingPartsAreNamed) {
  EXPECT_EQ(error_in("{% include 'a' %}"),
            "unsupported: t: line 1 column 4: expected a template of one file, without inheritance "
            "or escaping, found include");
  EXPECT_EQ(
      error_in("{{ x|urlize }}", R"({"x": 1})"),
      "unsupported: t: line 1 column 6: expected a filter that this engine has, found urlize");
  EXPECT_EQ(error_in("{{ '\\N{BULLET}' }}"),
            "unsupported: t: line 1 column 5: expected characters by their codes, found one by its "
            "name: \\N");
}

TEST(JinjaErrors, IntegersDoNotOverflow) {
  const std::string expected = ": expected an integer of 64 bits, found a larger one";
  for (const char* source :
       {"{{ 9223372036854775807 + 1 }}", "{{ -9223372036854775807 - 2 }}",
        "{{ 4611686018427387904 * 2 }}", "{{ 10 ** 19 }}", "{{ -(-9223372036854775807 - 1) }}",
        "{{ (-9223372036854775807 - 1) // -1 }}", "{{ (-9223372036854775807 - 1)|abs }}"}) {
    EXPECT_TRUE(error_in(source).ends_with(expected)) << source << ": " << error_in(source);
  }
  EXPECT_EQ(rendered("{{ (-9223372036854775807 - 1) % -1 }} {{ -9223372036854775807 - 1 }}"),
            "0 -9223372036854775808");
  EXPECT_TRUE(error_in("{{ '9223372036854775808'|int }}").starts_with("format: t: line 1"));
  EXPECT_TRUE(error_in("{{ 1e300|int }}").starts_with("format: t: line 1"));
}

TEST(JinjaErrors, ARefusalIsTheMessageAsItIs) {
  try {
    rendered("\n{{ raise_exception('a\nb \u00E9') }}");
    FAIL();
  } catch (const Refused& e) {
    EXPECT_EQ(e.found, "a\nb \u00E9");
    EXPECT_EQ(e.field, "line 2 column 19");
    EXPECT_EQ(e.kind, ErrorKind::format);
  }
}

TEST(JinjaValues, Json) {
  EXPECT_EQ(
      rendered("{{ x }}",
               R"({"x": {"b": [1, -2, 1.0, 1e3, true, null, "\u00e9\ud83d\ude00"], "a": {}}})"),
      "{'b': [1, -2, 1.0, 1000.0, True, None, '\u00E9\U0001F600'], 'a': {}}");
  const auto error = [](const std::string& json) {
    try {
      Value::from_json(json, "f");
      return std::string("no error");
    } catch (const Error& e) {
      return std::string(e.what());
    }
  };
  EXPECT_EQ(error("[1,\n x]"), "f: line 2 column 2: expected valid JSON, found '1,<U+000A> x'");
  EXPECT_EQ(error("[1"), "f: line 1 column 3: expected valid JSON, found the end of the text");
  EXPECT_EQ(error("9223372036854775808"),
            "f: expected integers of 64 bits, found 9223372036854775808");
  EXPECT_EQ(error("-9223372036854775809"),
            "f: expected integers of 64 bits, found -9223372036854775809");
  EXPECT_EQ(error(std::string(101, '[') + std::string(101, ']')),
            "f: expected JSON at most 100 levels deep, found more levels");
  EXPECT_EQ(error(std::string(100, '[') + std::string(100, ']')), "no error");
  EXPECT_EQ(Value::from_json(R"({"a": 1, "b": 2, "a": 3})", "f").members()[0].second.as_integer(),
            3);
}

TEST(JinjaTime, FormatsLocalTime) {
  ASSERT_EQ(setenv("TZ", "UTC-2", 1), 0);  // two hours east
  tzset();
  const auto now = [](const std::string& format) {
    return rendered("{{ strftime_now('" + format + "') }}", "{}", {{}, 1700000000.25});
  };
  EXPECT_EQ(now("%Y-%m-%d %H:%M:%S"), "2023-11-15 00:13:20");
  EXPECT_EQ(now("%d %b %Y|%A %B %j|%y %I %p|%f|%%|%z%Z|"),
            "15 Nov 2023|Wednesday November 319|23 12 AM|250000|%||");
  EXPECT_EQ(now("%-d %e"), "15 15");
  EXPECT_EQ(now("plain \u00E9"), "plain \u00E9");
  unsetenv("TZ");
  tzset();
}

// ---- marks ----

Text text_of_template(const std::string& source, const Variables& variables) {
  return Program::parse(source, "t").render(variables);
}

TEST(JinjaMarks, StayWithTheirBytes) {
  const Variables v = {{"a", Value::string("<a>", 1)},
                       {"b", Value::string(" bb ", 2)},
                       {"n", Value::integer(5)},
                       {"l", Value::list({Value::string("x", 1), Value::string("y", 2)})}};
  const auto marks = [&](const std::string& source) { return text_of_template(source, v).marks; };
  using Marks = std::vector<Mark>;
  EXPECT_EQ(marks("<a>{{ n }}"), Marks());
  EXPECT_EQ(marks("<{{ a }}{{ b }}>"), (Marks{{1, 4, 1}, {4, 8, 2}}));
  EXPECT_EQ(marks("{{ a }}{{ a }}"), (Marks{{0, 6, 1}}));
  EXPECT_EQ(marks("{{ '<' + a + '>' + b|trim }}"), (Marks{{1, 4, 1}, {5, 7, 2}}));
  EXPECT_EQ(marks("{{ a[1:] ~ b[::-1] }}"), (Marks{{0, 2, 1}, {2, 6, 2}}));
  EXPECT_EQ(marks("{{ l|join('+') }}"), (Marks{{0, 1, 1}, {2, 3, 2}}));
  EXPECT_EQ(marks("{{ 'a-b'|replace('-', a) }}{{ a|replace('a', 'zz') }}"),
            (Marks{{1, 4, 1}, {5, 6, 1}, {8, 9, 1}}));
  EXPECT_EQ(marks("{{ a|upper }}{{ b|title }}"), (Marks{{0, 3, 1}, {3, 7, 2}}));
  EXPECT_EQ(marks("{{ l|tojson }}"), (Marks{{2, 3, 1}, {7, 8, 2}}));  // ["x", "y"]
  EXPECT_EQ(marks("{{ l }}"), (Marks{{2, 3, 1}, {7, 8, 2}}));
  EXPECT_EQ(marks("{{ '%s|%5s' % (a, 'q') }}{{ '{:>5}'.format(a) }}"),
            (Marks{{0, 3, 1}, {11, 14, 1}}));
  EXPECT_EQ(marks("{{ (a ~ '\n' ~ a)|indent(2) }}"), (Marks{{0, 3, 1}, {6, 9, 1}}));
  EXPECT_EQ(marks("{{ a.split('a')|join('-') }}"), (Marks{{0, 1, 1}, {2, 3, 1}}));
  EXPECT_EQ(marks("{% set q %}.{{ a }}{% endset %}{{ q * 2 }}"), (Marks{{1, 4, 1}, {5, 8, 1}}));
  EXPECT_EQ(marks("{% macro m(x) %}[{{ x }}{{ caller() }}]{% endmacro %}{% call m(a) %}{{ b }}{% "
                  "endcall %}"),
            (Marks{{1, 4, 1}, {4, 8, 2}}));
  EXPECT_EQ(marks("{% filter upper %}q{{ a }}{% endfilter %}"), (Marks{{1, 4, 1}}));
}

// Characters that only an input contains. Wherever one appears in the output, it carries its
// input's mark.
TEST(JinjaMarks, NoneIsLostInRandomTemplates) {
  const std::vector<std::string> operations = {"|trim",
                                               "|string",
                                               "|replace('\u4E00', '\u4E00\u4E00')",
                                               "|replace('x', v1)",
                                               "|indent(3, true)",
                                               "|center(40)",
                                               "|truncate(9, true, '.', 0)",
                                               "|truncate(12, false, v0, 0)",
                                               "[1:]",
                                               "[::-1]",
                                               "[:-1]",
                                               "[::2]",
                                               "[0]",
                                               ".strip('x')",
                                               ".split(' ')|join(v1)",
                                               ".split()|last",
                                               ".rsplit(' ', 1)[0]",
                                               ".splitlines()|join",
                                               "|list|join('-')",
                                               "|reverse",
                                               " ~ v2",
                                               " + v0",
                                               "|tojson",
                                               "|wordcount ~ v1",
                                               "|batch(3)|map('join')|join",
                                               ".partition(' ')[2]",
                                               "*2",
                                               "|list|sort|join",
                                               "|list|unique|join(v2)",
                                               "|first",
                                               "|last",
                                               "|upper",
                                               "|lower",
                                               "|title",
                                               "|capitalize",
                                               ".swapcase()",
                                               ".zfill(30)",
                                               ".ljust(20, '.')",
                                               ".replace(' ', v1, 2)",
                                               ".removeprefix('x')",
                                               ".expandtabs()",
                                               "|e",
                                               "|format(v1)",
                                               ".format(v2)",
                                               "|default(v1)",
                                               "|safe"};
  const std::vector<std::string> forms = {
      "{{ E }}",
      "{% set a %}<{{ E }}>{% endset %}{{ a }}",
      "{% for c in (E) %}{{ c }}-{% endfor %}",
      "{% macro m(x) %}{{ x }}{{ caller() }}{% endmacro %}{% call m(E) %}{{ v1 }}{% endcall %}",
      "{% filter indent %}{{ E }}\n{{ v2 }}{% endfilter %}",
      "{{ [E, {'k': E}] }}",
      "{{ {E: E}|tojson(indent=1) }}",
      "{{ '%s and %r' % (E, E) }}",
      "{{ '{} {!r:>30}'.format(E, E) }}",
      "{{ [E, v1]|join(v2) }}",
      "{% set ns = namespace(v='') %}{% for i in [1, 2] %}{% set ns.v = ns.v ~ (E) %}{% endfor "
      "%}{{ ns.v }}",
      "{{ {'a': E}|dictsort }}",
      "{{ [{'a': E}]|groupby('a') }}",
      "{{ (E)|urlencode|string }}"};
  std::mt19937 random(5);
  const auto pick = [&](const auto& all) { return all[random() % all.size()]; };
  // Letters of scripts without case, one range of code points for each origin.
  const auto input = [&](int origin) {
    std::string text;
    for (int i = 0; i < 12; ++i) {
      if (random() % 3 == 0)
        text += pick(std::vector<std::string>{" ", "x", "%s", "{}", "\n", "\t", "\""});
      stet::utf8_append(text, 0x4E00 + static_cast<uint32_t>(origin) * 0x100 + random() % 0x100);
    }
    return Value::string(text, origin);
  };
  size_t seen = 0;
  for (int round = 0; round < 4000; ++round) {
    Variables variables;
    for (int origin = 0; origin < 3; ++origin)
      variables.emplace_back("v" + std::to_string(origin), input(origin));
    std::string expression = "v" + std::to_string(random() % 3);
    for (size_t i = random() % 4; i > 0; --i)
      expression = "(" + expression + pick(operations) + ")";
    std::string source = pick(forms);
    for (size_t at = 0; (at = source.find('E', at)) != std::string::npos; at += expression.size())
      source.replace(at, 1, expression);
    Text text;
    try {
      text = text_of_template(source, variables);
    } catch (const Error&) {
      continue;  // the operation does not take this type
    }
    expect_marks_in_order(text);
    each_character(text, [&](uint32_t code, std::string_view, int origin) {
      if (code < 0x4E00 || code >= 0x5100) return;
      const bool own = code == 0x4E00 && source.find("\u4E00") != std::string::npos;
      const bool right = origin == static_cast<int>((code - 0x4E00) / 0x100) || own;
      EXPECT_TRUE(right) << source << " gives " << text.bytes << " with U+" << std::hex << code;
      ++seen;
    });
  }
  EXPECT_GT(seen, 20000u);
}

// ---- limits ----

constexpr uint64_t kBytesOfAStep = 1024;

class JinjaBounded : public testing::TestWithParam<const char*> {};

// A step pays for a fixed number of bytes, so the steps bound the bytes that a rendering moves.
TEST_P(JinjaBounded, EndsWithAnErrorAfterWorkThatItsLimitsAllow) {
  RenderOptions options;
  options.limits.steps = 2'000'000;
  options.limits.memory = size_t{32} << 20;
  options.limits.output = size_t{8} << 20;
  heap::bytes = 0;
  const std::string error = error_in(GetParam(), R"({"s": "abcdefghij", "l": [1, 2, 3]})", options);
  EXPECT_TRUE(error.starts_with("capacity: ")) << error;
  EXPECT_LT(heap::bytes, kBytesOfAStep * options.limits.steps);
}

INSTANTIATE_TEST_SUITE_P(
    Limits, JinjaBounded,
    testing::Values(
        "{% for i in range(10**9) %}x{% endfor %}", "{{ 'x' * 10**9 }}", "{{ [1] * 10**9 }}",
        "{{ 'x' * (2**62) }}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% macro m(n) %}{{ m(n) }}{{ m(n) }}{% endmacro %}{{ m(1) }}",
        "{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% "
        "endfor %}",
        "{% set ns = namespace(l=[]) %}{% for i in range(99999) %}{% set ns.l = [ns.l] %}{% endfor "
        "%}{{ ns.l }}",
        "{% set ns = namespace(l=()) %}{% for i in range(99999) %}{% set ns.l = (ns.l,) %}{% "
        "endfor %}{{ {ns.l: 1} }}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] %}{% "
        "endfor %}{{ ns.l|tojson }}",
        "{% set ns = namespace(l=l) %}{% for i in range(99999) %}{% set ns.l = ns.l|map('int') "
        "%}{% endfor %}{{ ns.l|list }}",
        "{% set ns = namespace() %}{% set ns.me = ns %}{{ ns }}",
        "{% set ns = namespace() %}{% set ns.l = [ns] %}{{ ns }}",
        "{% for i in range(99999) %}{{ s * 1000 }}{% endfor %}",
        "{{ s|replace('', s * 9999)|replace('', s * 9999) }}",
        "{{ (s * 99999)|replace('a', s * 99999) }}", "{{ ((s * 999) ~ ',') * 99999 }}",
        "{{ s|center(10**9) }}", "{{ s|indent(10**9) }}", "{{ l|batch(10**9, 1)|list }}",
        "{{ l|slice(10**9)|list }}", "{{ ((s * 9999)|list * 99)|join(s * 999) }}",
        "{{ [l, l, l]|tojson(indent=10**9) }}",
        "{% for x in l recursive %}{{ loop(l) }}{% endfor %}",
        "{% set ns = namespace(c=0) %}{% for i in range(99999) %}{% set ns.c = cycler(ns.c) %}{% "
        "endfor %}"
        "{% macro m(c) %}{{ m(c.current) }}{% endmacro %}{{ m(ns.c) }}"));

TEST(JinjaLimits, NestingOfTheSource) {
  const auto nested = [](const std::string& open, const std::string& inner,
                         const std::string& close, int n) {
    std::string all;
    for (int i = 0; i < n; ++i) all += open;
    all += inner;
    for (int i = 0; i < n; ++i) all += close;
    return all;
  };
  const std::vector<std::array<std::string, 5>> forms = {
      {"{{ ", "(", "1", ")", " }}"},
      {"{{ ", "[", "1", "]", " }}"},
      {"{{ ", "-", "1", "", " }}"},
      {"{{ ", "not ", "1", "", " }}"},
      {"{{ ", "f(", "1", ")", " }}"},
      {"{{ ", "{1: ", "1", "}", " }}"},
      {"{{ ", "a[", "1", "]", " }}"},
      {"{{ ", "1 if 1 else ", "1", "", " }}"},
      {"", "{% if 1 %}", "", "{% endif %}", ""},
      {"{% for ", "(", "a", ",)", " in b %}{% endfor %}"},
      {"{{ 1 is eq ", "[", "1", "]", " }}"},
      {"{{ ", "1|d(", "1", ")", " }}"}};
  for (const auto& [before, open, inner, close, after] : forms) {
    const std::string error = error_in(before + nested(open, inner, close, 20'000) + after);
    EXPECT_TRUE(error.starts_with("capacity: t: line 1 column ")) << open << ": " << error;
    EXPECT_NE(error.find("expected at most 200 levels of nesting, found more"), std::string::npos)
        << error;
  }
  EXPECT_EQ(rendered("{{ " + nested("(", "1", ")", 190) + " }}"), "1");
}

TEST(JinjaLimits, LongChainsAreNotDeep) {
  const auto many = [](const std::string& part, int n) {
    std::string all;
    for (int i = 0; i < n; ++i) all += part;
    return all;
  };
  EXPECT_EQ(rendered("{{ 1" + many(" + 1", 30'000) + " }}"), "30001");
  EXPECT_EQ(rendered("{{ 'a'" + many(" ~ 'a'", 1'000) + " }}"), many("a", 1'001));
  EXPECT_EQ(rendered("{{ 'a'" + many("|upper", 30'000) + " }}"), "A");
  EXPECT_EQ(rendered("{{ true" + many(" and true", 30'000) + " }}"), "True");
  EXPECT_EQ(
      rendered("{% if false %}" + many("{% elif false %}", 30'000) + "{% else %}x{% endif %}"),
      "x");
  EXPECT_EQ(rendered("{{ 1" + many(" == 1", 30'000) + " }}"), "True");
}

// Releasing a long chain of values does not nest calls.
TEST(JinjaLimits, LongChainsOfValuesAreReleased) {
  EXPECT_EQ(rendered("{% set ns = namespace(l=[]) %}{% for i in range(20000) %}{% set ns.l = "
                     "[ns.l] %}{% endfor %}{{ ns.l|length }}"),
            "1");
  EXPECT_EQ(rendered("{% set ns = namespace(c=none) %}{% for i in range(20000) %}{% set n = "
                     "namespace(p=ns.c) %}{% set ns.c = n %}{% endfor %}ok"),
            "ok");
  EXPECT_EQ(rendered("{% set ns = namespace(l=[1]) %}{% for i in range(20000) %}{% for j in [ns.l] "
                     "%}{% set ns.l = loop %}{% endfor %}{% endfor %}ok"),
            "ok");
  EXPECT_EQ(rendered("{% set ns = namespace(m=none) %}{% for i in range(20000) %}{% set p = ns.m "
                     "%}{% macro m() %}{{ p }}{% endmacro %}{% set ns.m = m %}{% endfor %}ok"),
            "ok");
}

TEST(JinjaLimits, CountsAreExactAtTheirEdges) {
  RenderOptions options;
  options.limits.output = 10;
  EXPECT_EQ(rendered("0123456789", "{}", options), "0123456789");
  EXPECT_EQ(error_in("0123456789{{ 1 }}", "{}", options),
            "capacity: t: line 1 column 14: expected at most 10 bytes of output, found more");
  options = {};
  options.limits.memory = 100'000;
  EXPECT_EQ(rendered("{% for i in range(10000) %}{% set x = 'a' * 1000 %}{% endfor %}{{ 1 }}", "{}",
                     options),
            "1");  // released values count no more
}

TEST(JinjaProgram, ManyThreadsRenderOneProgram) {
  const Program program = Program::parse(
      "{% macro m(x) %}{{ x|upper }}{% endmacro %}{% for i in l %}{{ m(i) }}{{ loop.index }}{% "
      "endfor %}",
      "t");
  const Variables variables = variables_of(ordered_json::parse(R"({"l": ["a", "b", "c"]})"));
  std::vector<std::thread> threads;
  std::vector<std::string> results(4);
  for (size_t t = 0; t < results.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) results[t] += program.render(variables).bytes;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& result : results) EXPECT_EQ(result.substr(0, 12), "A1B2C3A1B2C3");
  EXPECT_EQ(results[0], results[3]);
  EXPECT_EQ(results[0].size(), 1200u);
}

}  // namespace
}  // namespace stet::test::jinja_tests
