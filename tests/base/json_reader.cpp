#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "src/base/json_value.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/files.hpp"

namespace stet::test::json_reader_tests {
namespace {

stet::JsonReader parse(const std::string& text) { return stet::parse_json(text, "config.json"); }

std::string refusal(const std::string& text) {
  const std::string error = error_of([&] { parse(text); });
  const std::string prefix = "format: config.json: ";
  return error.rfind(prefix, 0) == 0 ? error.substr(prefix.size()) : "?? " + error;
}

// Returns the error that `read` gives for the object `text`.
template <typename Read>
std::string refused(const std::string& text, const Read& read) {
  const stet::JsonReader object = parse(text);
  const std::string error = error_of([&] { (void)read(object); });
  const std::string prefix = "format: config.json: ";
  return error.rfind(prefix, 0) == 0 ? error.substr(prefix.size()) : "?? " + error;
}

TEST(ParseJson, TellsWhereTextIsNotJson) {
  EXPECT_EQ(refusal(""), "line 1, column 1: expected valid JSON, found the end of the text");
  EXPECT_EQ(refusal("{\"a\": [1, 2"),
            "line 1, column 12: expected valid JSON, found the end of the text");
  EXPECT_EQ(refusal("{\n  \"a\": tru\n}"),
            "line 2, column 11: expected valid JSON, found '\"a\": tru<U+000A>': invalid literal");
  EXPECT_EQ(refusal("{} x"),
            "line 1, column 4: expected valid JSON, found '{} x': invalid literal; expected end of "
            "input");
  EXPECT_EQ(refusal("{\"a\":1,}"),
            "line 1, column 8: expected valid JSON, found '1,}': unexpected '}'; expected string "
            "literal");
  EXPECT_EQ(refusal("{\"a\":\"\xff\"}").substr(0, 44),
            "line 1, column 7: expected valid JSON, found");
  EXPECT_EQ(refusal("{\"a\":NaN}"),
            "line 1, column 6: expected valid JSON, found '\"a\":N': invalid literal");
  EXPECT_EQ(refusal("{\"a\":1} // comment").substr(0, 44),
            "line 1, column 9: expected valid JSON, found");
  EXPECT_EQ(
      refusal("{\"" + std::string(5000, 'k') + "\n"),
      "line 1, column 5003: expected valid JSON, found '" + std::string(32, 'k') +
          "<U+000A>': invalid string: control character U+000A (LF) must be escaped to \\u000A or "
          "\\n; expected string literal");
}

TEST(ParseJson, ReadsThePythonNumbers) {
  const nlohmann::json j = stet::parse_python_json_value(
      R"({"NaN": [NaN, Infinity, -Infinity, 0e7, 0.00e007, -0.00e007], "s": "a\"NaN\\", "x": [1, NaN]})",
      "f");
  EXPECT_TRUE(std::isnan(j["NaN"][0].get<double>()));
  EXPECT_EQ(j["NaN"][1], std::numeric_limits<double>::infinity());
  EXPECT_EQ(j["NaN"][2], -std::numeric_limits<double>::infinity());
  for (int i = 3; i < 6; ++i) EXPECT_EQ(j["NaN"][i], 0.0);
  EXPECT_EQ(j["s"], "a\"NaN\\");
  EXPECT_TRUE(std::isnan(j["x"][1].get<double>()));
  EXPECT_EQ(error_of([] {
              stet::parse_python_json_value("{\"a\": NaN,\n \"b\": Infinit}", "f");
            }).substr(0, 52),
            "format: f: line 2, column 7: expected valid JSON, fo");
  for (const char* text : {"NaNs", "nan", "+Infinity", "Infinity1", "--Infinity", "[NaN NaN]"})
    EXPECT_NE(error_of([&] { stet::parse_python_json_value(text, "f"); }), kNoError) << text;
}

TEST(ParseJson, RefusesInvalidJsonThatTheLibraryAccepts) {
  EXPECT_EQ(refusal("{\"a\": 1e999}"),
            "line 1, column 11: expected a number that fits a double, found '1e999'");
  EXPECT_EQ(refusal("{\"a\":{\"b\":1,\"b\":2}}"),
            "a.b: expected each key once, found a second value");
  EXPECT_EQ(refusal("{\"a\":1,\"a\":1}"), "a: expected each key once, found a second value");
  EXPECT_EQ(refusal("{\"x\":[0,{\"c\":{\"d\":[],\"d\":[]}}]}"),
            "x.1.c.d: expected each key once, found a second value");
  EXPECT_EQ(refusal("[1]"), "expected a JSON object, found an array");
  EXPECT_EQ(refusal("\"t\\n\""), "expected a JSON object, found \"t\\n\"");
}

TEST(ParseJson, LimitsDepth) {
  const auto nested = [](size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_EQ(stet::parse_json_value(nested(64), "f").dump(), nested(64));
  EXPECT_EQ(error_of([&] { stet::parse_json_value(nested(65), "f"); }),
            "format: f: expected JSON at most 64 levels deep, found more levels");
  EXPECT_EQ(error_of([&] { stet::parse_json_value(std::string(10'000'000, '['), "f"); }),
            "format: f: expected JSON at most 64 levels deep, found more levels");
}

TEST(ParseJson, BuildsTheValue) {
  const std::string text =
      R"({"a":[1,-2,2.5,true,false,null,"s"],"b":{"c":{},"d":[[],[{"e":[3]}]]},"u":18446744073709551615})";
  EXPECT_EQ(stet::parse_json_value(text, "f"), nlohmann::json::parse(text));
  EXPECT_EQ(stet::parse_json_value("\xef\xbb\xbf \"\\ud83d\\ude00\"", "f"), "\U0001F600");
}

TEST(ParseJson, KeepsTheOrderOfTheText) {
  const std::string text = R"({"b":[{"z":1,"a":{}}],"a":{"y":[],"x":"s"}})";
  EXPECT_EQ(stet::parse_ordered_json(text, "f").dump(), text);
  const auto refused = [](const std::string& t) {
    return error_of([&] { stet::parse_ordered_json(t, "f"); });
  };
  EXPECT_EQ(refused(R"({"b":[0,{"z":{"d":1,"c":2,"d":3}}]})"),
            "format: f: b.1.z.d: expected each key once, found a second value");
  EXPECT_EQ(refused(R"({"b":1,"b":1})"),
            "format: f: b: expected each key once, found a second value");
  EXPECT_EQ(refused("{\n \"b\":}"),
            "format: f: line 2, column 6: expected valid JSON, found '\"b\":}': unexpected '}'; "
            "expected '[', '{', or a literal");
}

// The parser of ordered values in the JSON library compares each member with all earlier ones,
// which would take minutes here.
TEST(ParseJson, ManyMembersAreParsedInTheirOrder) {
  std::string text = "{";
  for (int i = 300'000; i > 0; --i) text += fmt::format("\"{}\":0,", i);
  text.back() = '}';
  const nlohmann::ordered_json parsed = stet::parse_ordered_json(text, "f");
  EXPECT_EQ(parsed.size(), 300'000u);
  EXPECT_EQ(parsed.dump(), text);
}

TEST(ParseJson, DamageIsAnErrorOrAnotherValue) {
  const std::string text =
      R"({"text_config":{"num_hidden_layers":26,"eps":1e-06,"list":[1,[2,"x\u00e9"]]},"f":false})";
  size_t errors = 0, values = 0;
  const auto try_parse = [&](const std::string& damaged) {
    try {
      parse(damaged);
      ++values;
    } catch (const stet::Error& error) {
      EXPECT_EQ(error.kind, stet::ErrorKind::format);
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
      ++errors;
    }
  };
  for (size_t size = 0; size < text.size(); ++size) try_parse(text.substr(0, size));
  EXPECT_EQ(errors, text.size());  // no proper prefix of an object is an object
  for (size_t bit = 0; bit < 8 * text.size(); ++bit) {
    std::string damaged = text;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    try_parse(damaged);
  }
  std::mt19937 random(1);
  for (int i = 0; i < 20'000; ++i) {
    std::string damaged = text;
    for (int j = 0; j < 3; ++j)
      damaged[random() % text.size()] = "{}[]\",:0e-.\\\0\xc3x"[random() % 16];
    try_parse(damaged);
  }
  EXPECT_EQ(errors + values, 9 * text.size() + 20'000);
  EXPECT_GT(values, 100u);
}

TEST(JsonReader, ReadsFields) {
  const stet::JsonReader object = parse(
      R"({"i":5,"f":1000000.0,"n":-3,"x":2.5,"b":true,"s":"t","nil":null,"o":{"i":6},"one":7,"many":[1,2],
          "names":["p","q"],"empty":[]})");
  EXPECT_EQ(object.integer("i", 0, 5), 5);
  EXPECT_EQ(object.integer("f", 0, 1 << 20), 1'000'000);
  EXPECT_EQ(object.integer("n", -3, 0), -3);
  EXPECT_EQ(object.integer_or("absent", -1, 0, 5), -1);
  EXPECT_EQ(object.integer_or("nil", -1, 0, 5), -1);
  EXPECT_EQ(object.number("x"), 2.5);
  EXPECT_EQ(object.number("i"), 5.0);
  EXPECT_EQ(object.number_or("nil", 0.5), 0.5);
  EXPECT_EQ(object.number_or("x", 0.5, 0, 3), 2.5);
  EXPECT_TRUE(object.boolean("b"));
  EXPECT_TRUE(object.boolean_or("nil", true));
  EXPECT_EQ(object.string("s"), "t");
  EXPECT_EQ(object.string_or("absent", "u"), "u");
  EXPECT_TRUE(object.has("i"));
  EXPECT_FALSE(object.has("nil"));
  EXPECT_FALSE(object.has("absent"));
  EXPECT_EQ(object.required_object("o").integer("i", 0, 9), 6);
  EXPECT_FALSE(object.object("nil").has_value());
  EXPECT_EQ(object.object("o")->path_of("i"), "o.i");
  EXPECT_EQ(object.object("o")->keys(), std::vector<std::string>{"i"});
  EXPECT_EQ(object.integers("many", 1, 2), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(object.integers("empty", 1, 2), std::vector<int64_t>{});
  EXPECT_EQ(object.integers("absent", 1, 2), std::vector<int64_t>{});
  EXPECT_EQ(object.integer_or_integers("one", 0, 9), std::vector<int64_t>{7});
  EXPECT_EQ(object.integer_or_integers("many", 0, 9), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(object.integer_or_integers("nil", 0, 9), std::vector<int64_t>{});
  EXPECT_EQ(object.strings("names"), (std::vector<std::string>{"p", "q"}));
}

TEST(JsonReader, ObjectsOutliveTheReaderTheyCameFrom) {
  const stet::JsonReader inner =
      parse(R"({"o":{"p":{"i":6}}})").required_object("o").required_object("p");
  EXPECT_EQ(inner.integer("i", 0, 9), 6);
  EXPECT_EQ(inner.path_of("i"), "o.p.i");
}

TEST(JsonReader, NamesFieldExpectedAndFound) {
  const std::string text =
      R"({"layers":1099511627776,"huge":18446744073709551615,"half":0.5,"far":1e300,"neg":-1,"s":"8","b":1,
          "list":[1,"x",3],"names":["a",1],"o":{"heads":0},"t":true})";
  const auto integer = [](const char* name) {
    return [name](const stet::JsonReader& o) { return o.integer(name, 1, 1024); };
  };
  EXPECT_EQ(refused(text, integer("layers")),
            "layers: expected an integer in 1..1024, found 1099511627776");
  EXPECT_EQ(refused(text, integer("huge")),
            "huge: expected an integer in 1..1024, found 18446744073709551615");
  EXPECT_EQ(refused(text, integer("half")), "half: expected an integer in 1..1024, found 0.5");
  EXPECT_EQ(refused(text, integer("far")), "far: expected an integer in 1..1024, found 1e+300");
  EXPECT_EQ(refused(text, integer("neg")), "neg: expected an integer in 1..1024, found -1");
  EXPECT_EQ(refused(text, integer("s")), "s: expected an integer in 1..1024, found \"8\"");
  EXPECT_EQ(refused(text, integer("t")), "t: expected an integer in 1..1024, found true");
  EXPECT_EQ(refused(text, integer("o")), "o: expected an integer in 1..1024, found an object");
  EXPECT_EQ(refused(text, integer("absent")),
            "absent: expected an integer in 1..1024, found nothing");
  EXPECT_EQ(refused(text, [](const auto& o) { return o.integer_or("neg", 5, 0, 9); }),
            "neg: expected an integer in 0..9, found -1");
  EXPECT_EQ(
      refused(text, [](const auto& o) { return o.required_object("o").integer("heads", 1, 8); }),
      "o.heads: expected an integer in 1..8, found 0");
  EXPECT_EQ(refused(text, [](const auto& o) { return o.number("s"); }),
            "s: expected a number, found \"8\"");
  EXPECT_EQ(refused(text, [](const auto& o) { return o.number("neg", 0); }),
            "neg: expected a number of at least 0.0, found -1");
  EXPECT_EQ(refused(text, [](const auto& o) { return o.number("far", 0, 1.5); }),
            "far: expected a number in 0.0..1.5, found 1e+300");
  EXPECT_EQ(refused(text, [](const auto& o) { return o.number("far", -DBL_MAX, 1.5); }),
            "far: expected a number of at most 1.5, found 1e+300");
  EXPECT_EQ(refused(text, [](const auto& o) { return o.boolean("b"); }),
            "b: expected true or false, found 1");
  EXPECT_EQ(refused(text, [](const auto& o) { return o.string("b"); }),
            "b: expected a string, found 1");
  EXPECT_EQ(refused(text, [](const auto& o) { return o.string_or("list", ""); }),
            "list: expected a string, found an array");
  EXPECT_EQ(refused(text, [](const auto& o) { return o.object("s"); }),
            "s: expected an object, found \"8\"");
  EXPECT_EQ(refused(text, [](const auto& o) { return o.required_object("p"); }),
            "p: expected an object, found nothing");
  EXPECT_EQ(refused(text, [](const auto& o) { return o.integers("list", 0, 9); }),
            "list[1]: expected an integer in 0..9, found \"x\"");
  EXPECT_EQ(refused(text, [](const auto& o) { return o.integers("b", 0, 9); }),
            "b: expected an array of integers, found 1");
  EXPECT_EQ(refused(text, [](const auto& o) { return o.integer_or_integers("s", 0, 9); }),
            "s: expected an integer in 0..9, found \"8\"");
  EXPECT_EQ(refused(text, [](const auto& o) { return o.strings("names"); }),
            "names[1]: expected a string, found 1");
  EXPECT_EQ(refused(text, [](const auto& o) { return o.strings("s"); }),
            "s: expected an array of strings, found \"8\"");
}

TEST(JsonReader, IntegersAreExactAtTheLimits) {
  const stet::JsonReader o = parse(
      R"({"max":9223372036854775807,"min":-9223372036854775808,"over":9223372036854775808,"exact":9007199254740992.0,
          "inexact":9007199254740994.0})");
  constexpr int64_t kMin = std::numeric_limits<int64_t>::min(),
                    kMax = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(o.integer("max", kMin, kMax), kMax);
  EXPECT_EQ(o.integer("min", kMin, kMax), kMin);
  EXPECT_EQ(o.integer("exact", kMin, kMax), int64_t{1} << 53);
  EXPECT_NE(error_of([&] { o.integer("over", kMin, kMax); }), "no error");
  EXPECT_NE(error_of([&] { o.integer("inexact", kMin, kMax); }), "no error");
}

}  // namespace
}  // namespace stet::test::json_reader_tests
