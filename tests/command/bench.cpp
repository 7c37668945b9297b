// stet bench: its measurements, tables and refusals.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/command/json_lines.hpp"
#include "tests/support/models.hpp"
#include "tests/support/run_command.hpp"

namespace stet::test::bench_tests {
namespace {

using Json = nlohmann::json;

const std::string kTiny = data_path("models/gemma3-tiny");

TEST(BenchCommand, Measures) {
  const Json j =
      Json::parse(succeed({"bench", "-m", kTiny, "-p", "8", "-n", "2", "--repeat", "1", "--batch",
                           "2,3", "--rows", "2,4", "--speculate", "1,0", "--json"})
                      .out);
  ASSERT_EQ(j["batch"].size(), 2u);
  EXPECT_EQ(j["batch"][1]["sessions"], 3);
  for (const Json& b : j["batch"])
    EXPECT_GT(b["tokens_per_s"].get<double>() * b["of_one_session"].get<double>(), 0);
  for (const Json& r : j["rows"]) {
    EXPECT_GT(r["of_one_row"].get<double>(), 0);
    EXPECT_GE(r["bound"].get<double>(), 1);
  }
  for (const Json& r : j["speculation"]["rates"]) EXPECT_GT(r["of_plain"].get<double>(), 0);
  EXPECT_EQ(j["speculation"]["rates"].size(), 2u);
  EXPECT_EQ(j["prefill"]["tokens"], 8);
  EXPECT_EQ(j["decode"]["tokens"], 2);
  EXPECT_EQ(j["state"]["positions"], 10);
  for (const auto& [part, name] :
       {std::pair{"prefill", "tokens_per_s"}, std::pair{"decode", "weights_gb_per_s"},
        std::pair{"state", "save_s"}}) {
    EXPECT_GT(j[part][name].get<double>(), 0) << part;
  }
}

TEST(BenchCommand, MeasuresTheModelAlone) {
  const Json j = Json::parse(succeed({"bench", "-m", kTiny, "--no-probes", "-p", "8", "-n", "2",
                                      "--repeat", "1", "--json"})
                                 .out);
  EXPECT_FALSE(j.contains("read_gb_per_s"));
  EXPECT_FALSE(j["prefill"].contains("share_of_peak"));
  EXPECT_GT(j["prefill"]["tokens_per_s"].get<double>(), 0);
  EXPECT_GT(j["first_token_s"].get<double>(), 0);
  EXPECT_GT(j["state"]["restored_token_s"].get<double>(), 0);
  EXPECT_GT(j["peak_bytes"].get<double>(), 1e6);
  EXPECT_LT(j["peak_bytes"].get<double>(), 1e9) << "the probes' buffer";
  failure({"bench", "-m", kTiny, "--no-probes", "--machine"}, 2);
}

TEST(BenchCommand, RefusesRowsThatNoPassHas) {
  const Args few = {"bench", "-m", kTiny, "--no-probes", "-p", "8", "-n", "2", "--repeat", "1"};
  EXPECT_EQ(failure(few + Args{"--rows", "4,16", "--chunk", "8"}, 2),
            "--rows: expected at most the chunk of 8, found 16 (stet --help)");
  EXPECT_EQ(failure(few + Args{"--rows", "4", "--threads", "1,2"}, 2),
            "--rows is not in the table of several --threads: add --json (stet --help)");
#ifdef STET_HAVE_BLAS
  EXPECT_EQ(
      failure(few + Args{"--speculate", "0.5", "--gemm", "blas"}, 2),
      "--speculate has no drafts under f32-blas, where the rows of a pass depend on each other "
      "(stet --help)");
#endif
  const std::string recurrent = data_path("models/qwen35-tiny");
  succeed({"bench", "-m", recurrent, "--no-probes", "-p", "10", "-n", "2", "--repeat", "1",
           "--rows", "64"});
}

TEST(BenchCommand, PrintsATableByThreads) {
  const Args few = {"bench", "-m", kTiny,      "--no-probes", "-p",        "8",
                    "-n",    "2",  "--repeat", "1",           "--threads", "1,3"};
  const Json j = Json::parse(succeed(few + Args{"--json"}).out);
  ASSERT_EQ(j["by_threads"].size(), 2u);
  EXPECT_FALSE(j.contains("threads"));
  for (const auto& [row, threads] : {std::pair{0, 1}, std::pair{1, 3}}) {
    EXPECT_EQ(j["by_threads"][row]["threads"], threads);
    EXPECT_GT(j["by_threads"][row]["prefill"]["tokens_per_s"].get<double>(), 0);
    EXPECT_GT(j["by_threads"][row]["decode"]["tokens_per_s"].get<double>(), 0);
  }
  const std::string table = succeed(few).out;
  EXPECT_NE(table.find("\n threads     prefill  of peak      decode  of memory\n       1 "),
            std::string::npos)
      << table;
  EXPECT_NE(table.find("\n       3 "), std::string::npos) << table;
  failure(few + Args{"--turns"}, 2);
}

TEST(BenchCommand, TakesTurns) {
  const Args turns = {"bench", "-m", kTiny, "--turns", "-p", "8", "--repeat", "1"};
  const auto lines =
      json_lines(succeed(turns, "prefill\ndecode 2\ndecode 3\nstate\nprefill\nstate\n").out);
  ASSERT_EQ(lines.size(), 7u);
  for (const char* name : {"load_s", "first_token_s"})
    EXPECT_GT(lines[0][name].get<double>(), 0) << name;
  for (const char* name : {"isa", "contract"})
    EXPECT_NE(lines[0][name].get<std::string>(), "") << name;
  for (const size_t i : {1, 2, 3, 5}) EXPECT_GT(lines[i]["s"].get<double>(), 0) << i;
  EXPECT_EQ(lines[4]["positions"], 8 + 2 + 3);
  EXPECT_EQ(lines[6]["positions"], 8) << "in place of what was there";
  for (const char* name : {"peak_bytes", "bytes", "save_s", "restore_s", "restored_token_s"})
    EXPECT_GT(lines[4][name].get<double>(), 0) << name;
}

TEST(BenchCommand, RefusesAWrongTurn) {
  for (const char* wrong : {"", "Prefill", "decode", "decode 0", "decode -1", "decode 1 ",
                            "decode 1048577", "decode 99999999999999999999"}) {
    const Outcome o = run_stet({"bench", "-m", kTiny, "--turns", "-p", "8"},
                               std::string("prefill\n") + wrong + "\nprefill\n");
    EXPECT_EQ(o.status, 1) << wrong;
    EXPECT_EQ(json_lines(o.out).size(), 2u) << wrong;
    EXPECT_EQ(
        o.err,
        std::string("stet: standard input: line 2: expected prefill, decode N or state, found \"") +
            wrong + "\"\n");
  }
  for (const Args& other : {Args{"--machine"}, Args{"--snapshot"}, Args{"--batch", "2"}})
    failure(Args{"bench", "--turns"} + other, 2);
}

}  // namespace
}  // namespace stet::test::bench_tests
