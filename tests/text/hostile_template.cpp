// Malicious templates: rendering ends with a result or an error, within the promised time and
// memory.
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "stet/base/error.hpp"
#include "stet/text/jinja.hpp"
#include "tests/support/process_cost.hpp"

namespace stet::test::hostile_template_tests {

using namespace stet::jinja;

namespace {

std::string times(const std::string& text, size_t count) {
  std::string out;
  for (size_t i = 0; i < count; ++i) out += text;
  return out;
}

// Repeats text `count` times with the number of the repetition in place of #.
std::string numbered(const std::string& text, size_t count) {
  std::string out;
  for (size_t i = 0; i < count; ++i) {
    for (const char c : text) out += c == '#' ? std::to_string(i) : std::string(1, c);
  }
  return out;
}

struct Bomb {
  const char* name;
  std::string source;
};

std::vector<Bomb> bombs() {
  const std::string loop = "{% for i in range(99999) %}", end = "{% endfor %}",
                    deep =
                        "{% set ns = namespace(t=(1,)) %}{% for i in range(60) %}{% set ns.t = "
                        "(ns.t, ns.t) %}{% endfor %}";
  const std::string wide = "{% set l = (range(99999)|list) * 20 %}",
                    text = "{% set s = 'x' * 9999999 %}";
  std::vector<Bomb> all = {
      {"unique of long strings",
       text + "{% for i in range(999) %}{{ [s ~ 1, s ~ 2, s ~ 3]|unique|list|length }}" + end},
      {"unique of many", wide + loop + "{{ l|unique|list|length }}" + end},
      {"unique of deep tuples", deep + "{{ [ns.t, ns.t]|unique|list }}"},
      {"a dict of a dict", "{% set d = dict(range(99999)|map('list')|list|batch(2)) %}" + loop +
                               "{% set d = dict(d, a=1) %}" + end},
      {"copies of a dict", "{% set ns = namespace(d={}) %}" + loop +
                               "{% set ns.d = dict(ns.d, **{'k' ~ i: 1}) %}" + end},
      {"a dict of deep keys", deep + loop + "{% set d = {ns.t: 1} %}" + end},
      {"a dict of long keys", text + loop + "{% set d = {s ~ i: 1} %}{{ d[s] }}" + end},
      {"get of long keys",
       text + "{% set d = dict([[s, 1]]) %}" + loop + "{{ d.get(s) }}{{ s in d }}" + end},
      {"many names", numbered("{% set a# = 1 %}", 25'000) + loop + "{{ a24999 }}{{ zz }}" + end},
      {"long names", "{% set " + std::string(200'000, 'a') + " = 1 %}" + loop + "{{ " +
                         std::string(200'000, 'a') + " }}" + end},
      {"attributes of a namespace", "{% set ns = namespace() %}" +
                                        numbered("{% set ns.a# = 1 %}", 20'000) + loop +
                                        "{{ ns.zz }}" + end},
      {"arguments of a macro", "{% macro m(" + numbered("a#=1,", 20'000) + "z=1) %}{% endmacro %}" +
                                   loop + "{{ m() }}" + end},
      {"named arguments", "{% macro m(" + numbered("a#,", 20'000) +
                              "z) %}{% endmacro %}{% for i in range(99) %}{{ m(" +
                              numbered("a#=1,", 20'000) + "z=1) }}" + end},
      {"kwargs", "{% macro m() %}{{ kwargs|length }}{% endmacro %}" + loop + "{{ m(" +
                     numbered("a#=1,", 20'000) + "z=1) }}" + end},
      {"sorting long strings", text + "{{ [s ~ 1, s ~ 2, s ~ 3, s ~ 4]|sort|length }}" + loop +
                                   "{{ [s, s ~ 1]|sort|length }}" + end},
      {"sorting many", wide + loop + "{{ l|sort|length }}" + end},
      {"groupby", wide + loop + "{{ l|map('string')|groupby('0')|length }}" + end},
      {"equality of deep values",
       deep + "{{ ns.t == (ns.t, 1) }}{{ ns.t in [ns.t, 1] }}{{ ns.t < ns.t }}"},
      {"equality of long lists", wide + loop + "{{ l == l ~ 1 }}" + end},
      {"joining", wide + loop + "{{ l|join(',')|length }}" + end},
      {"slices of strings", text + loop + "{{ s[1:] |length }}" + end},
      {"reversed strings", text + loop + "{{ s[::-1]|length }}{{ s|reverse }}" + end},
      {"replacing", text + loop + "{{ s|replace('x', 'yy')|length }}" + end},
      {"splitting", text + loop + "{{ s.split('x')|length }}" + end},
      {"searching", "{% set s = 'a' * 999999 %}{% set t = 'a' * 499999 ~ 'b' %}" + loop +
                        "{{ t in s }}{{ s.find(t) }}{{ s.count(t) }}" + end},
      {"stripping", text + loop + "{{ s.strip('x') }}{{ s.lstrip('yx') }}" + end},
      {"case",
       text + loop + "{{ s|upper|length }}{{ s|title|length }}{{ s.casefold()|length }}" + end},
      {"words", "{% set s = 'a ' * 999999 %}" + loop +
                    "{{ s|wordcount }}{{ s|wordwrap(1)|length }}{{ s.split()|length }}" + end},
      {"indent", "{% set s = 'a\n' * 999999 %}" + loop +
                     "{{ s|indent(9)|length }}{{ s.splitlines()|length }}" + end},
      {"format",
       text + loop + "{{ '%s%s%s'|format(s, s, s)|length }}{{ '{0}{0}'.format(s)|length }}" + end},
      {"padding", loop + "{{ 'x'|center(1000000)|length }}{{ '%1000000d' % 1 }}" + end},
      {"precision", loop + "{{ '%.1000f' % 1e300 }}{{ '{:.1000f}'.format(1e300) }}" + end},
      {"json", wide + loop + "{{ l|tojson|length }}{{ l|tojson(indent=4)|length }}" + end},
      {"json of deep values", deep + "{{ ns.t|tojson }}"},
      {"text of deep values", deep + "{{ ns.t }}"},
      {"powers", loop + "{{ 3 ** 39 }}{{ 9.9 ** i }}" + end},
      {"escaping",
       "{% set s = '<' * 9999999 %}" + loop + "{{ s|e|length }}{{ s|urlencode|length }}" + end},
      {"time", loop + "{{ strftime_now('%A %B %c %x %X' * 100) }}" + end},
      {"strings of a loop", "{% set ns = namespace(s='') %}" + loop +
                                "{% set ns.s = ns.s ~ 'xxxxxxxxxx' %}" + end + "{{ ns.s|length }}"},
      {"lists of a loop",
       "{% set ns = namespace(l=[]) %}" + loop + "{% set ns.l = ns.l + [i] %}" + end},
      {"captured text", text + loop + "{% set t %}{{ s }}{% endset %}" + end},
      {"filters of filters", "{% set ns = namespace(l=[1]) %}" + loop +
                                 "{% set ns.l = ns.l|map('abs')|select %}" + end +
                                 "{{ ns.l|list }}"},
      {"recursion of loops", "{% for x in [1, 2] recursive %}{{ loop([1, 2]) }}{% endfor %}"},
      {"macros that call twice", "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}"},
  };
  // Checks the cost of parsing for the largest template allowed.
  const auto fill = [](const std::string& unit) {
    return times(unit, ((size_t{1} << 19) - 100) / unit.size());
  };
  for (const char* unit :
       {"{{a}}", "{{1}}", "{{''}}", "{%if a%}{%endif%}", "{%set a=1%}", "{#x#}", "{{a.b.c|d(e)}}",
        "{%macro a()%}{%endmacro%}", "{{[]}}", "{{{}}}", "{%raw%}x{%endraw%}", "{{a if b else c}}",
        "{%for a in b%}{%endfor%}", "{{-a-}}\n  ", "x{", "{% raw %}{%"}) {
    all.push_back({unit, fill(unit)});
  }
  for (const auto& [open, unit, close] :
       std::vector<std::array<std::string, 3>>{{"{{[", "1,", "1]}}"},
                                               {"{{a", "+a", "}}"},
                                               {"{{a", ".a", "}}"},
                                               {"{{a", "|a", "}}"},
                                               {"{{f(", "a=1,", "b=1)}}"},
                                               {"{{{", "1:1,", "1:1}}}"},
                                               {"{{'", "\\n", "'}}"},
                                               {"{{a", "<a", "}}"},
                                               {"{{", "'a' ", "}}"},
                                               {"{{a", "()", "}}"},
                                               {"{{a", "[1]", "}}"},
                                               {"{{(", "a,", ")}}"},
                                               {"{{a", " and a", "}}"},
                                               {"{{a", "~a", "}}"},
                                               {"{{", "not ", "a}}"},
                                               {"{{", "(", "a}}"},
                                               {"{{", "-", "1}}"},
                                               {"{% raw %}", "{% ", "{% endraw %}"},
                                               {"", "{% raw %}{% ", "{% endraw"},
                                               {"{#", "{#", "#}"}}) {
    all.push_back({"a long one",
                   open +
                       fill(unit).substr(0, fill(unit).size() / 3 * 3 / unit.size() * unit.size()) +
                       close});
  }
  return all;
}

TEST(HostileTemplate, EndsInTimeAndInMemory) {
  for (const Bomb& bomb : bombs()) {
    const std::string what = std::string(bomb.name) + ": " + bomb.source.substr(0, 60);
    const test::ProcessCost spent = test::cost_of([&] {
      try {
        Program::parse(bomb.source, "t").render({});
      } catch (const Error& e) {
        if (std::string_view(e.what()).find('\n') != std::string_view::npos)
          throw std::runtime_error("more than a line");
      }
    });
    EXPECT_EQ(spent.status, 0) << what;
#ifndef STET_SANITIZED
    EXPECT_LE(spent.seconds, 10) << what;
    EXPECT_LE(spent.memory, (size_t{64} << 20) + 4 * bomb.source.size()) << what;
#endif
    if (spent.seconds > 2 || spent.memory > (size_t{48} << 20))
      std::printf("%6.2f s %5zu MB  %s\n", spent.seconds, spent.memory >> 20, what.c_str());
  }
}

TEST(HostileTemplate, VariablesTakeMemoryInProportion) {
  for (const char* unit : {"1,", "[],", "{},", "\"\",", "{\"\":0},"}) {
    const std::string text =
        "[" + times(unit, (size_t{8} << 20) / std::string_view(unit).size()) + "0]";
    std::string said = "nothing";
    const auto read = [&] {
      try {
        Value::from_json(text, "FILE");
      } catch (const Error& e) {
        said = e.what();
      }
    };
    const test::ProcessCost spent = test::cost_of(read);
    EXPECT_EQ(spent.status, 0);
#ifndef STET_SANITIZED
    EXPECT_LE(spent.memory, (size_t{64} << 20) + 4 * text.size()) << unit;
#endif
    read();
    EXPECT_EQ(said, "FILE: expected JSON whose values take at most " +
                        std::to_string((size_t{24} << 20) + 3 * text.size()) + " bytes, found more")
        << unit;
  }
}

}  // namespace
}  // namespace stet::test::hostile_template_tests
