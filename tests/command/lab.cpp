// Analysis subcommands: data sets line by line, labelled tables, ranges, and interventions stored
// in states.
#include <algorithm>
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "stet/checkpoint/safetensors.hpp"
#include "stet/sampling/sampler.hpp"
#include "stet/session/trace.hpp"
#include "stet/snapshot/snapshot.hpp"
#include "tests/command/json_lines.hpp"
#include "tests/support/checkpoint_parts.hpp"
#include "tests/support/models.hpp"
#include "tests/support/run_command.hpp"

namespace stet::test::lab_tests {
namespace {

using Json = nlohmann::json;

const std::string kTiny = data_path("models/gemma3-tiny");  // has no tokenizer

std::string text_of(const std::vector<int32_t>& ids) {
  std::string text;
  for (const int32_t id : ids) text += (text.empty() ? "" : ",") + std::to_string(id);
  return text;
}

struct LabCommand : testing::Test {
  const std::vector<int32_t> ids = stepped_ids(30, 7, 300, 0, 5),
                             other = stepped_ids(30, 11, 300, 3, 5);
  TemporaryDirectory scratch;
};

TEST_F(LabCommand, ScoresAreThoseOfTheLogits) {
  Session s(model(kTiny));
  const std::vector<float> logits = all_logits(s, ids);
  const auto vocab = static_cast<size_t>(s.model().config().vocab_size);
  const Json lines[] = {
      {{"ids", ids}}, {{"ids", ids}, {"begin", 20}, {"id", "two"}}, {{"ids", {9}}}};
  std::string input;
  for (const Json& line : lines) input += line.dump() + "\n";
  const std::vector<Json> found =
      json_lines(succeed({"score", "-m", kTiny, "--jsonl", "--batch", "2"}, input).out);
  ASSERT_EQ(found.size(), 3u);
  double sum = 0;
  for (size_t i = 1; i < ids.size(); ++i) {
    const double expected =
        log_probability(std::span(logits).subspan((i - 1) * vocab, vocab), ids[i]);
    EXPECT_EQ(found[0]["logprobs"][i - 1], expected);
    if (i >= 20) {
      EXPECT_EQ(found[1]["logprobs"][i - 20], expected);
    }
    sum += expected;
  }
  EXPECT_EQ(found[0]["sum"], sum);
  EXPECT_EQ(found[1]["id"], "two");
  EXPECT_FALSE(found[0].contains("id"));
  EXPECT_EQ(found[2]["logprobs"], Json::array());
  const Json alone =
      Json::parse(succeed({"score", "-m", kTiny, "--ids", text_of(ids), "--json"}).out);
  EXPECT_EQ(alone["logprobs"], found[0]["logprobs"]);
  const std::string table = succeed({"score", "-m", kTiny, "--ids", text_of(ids)}).out;
  EXPECT_NE(table.find("over 29 tokens, perplexity"), std::string::npos) << table;
}

// Lines before a faulty one are scored; the error names the faulty line.
TEST_F(LabCommand, ALineThatCannotBeScoredIsNamed) {
  for (const auto& [line, error] : std::vector<std::pair<std::string, std::string>>{
           {R"({"ids": [1, 999]})", "ids[1]: expected a token id in 0..319, found 999"},
           {R"({"ids": [1, 2], "begin": 3})", "begin: expected at most the 2 ids, found 3"},
           {R"({"ids": [1, 2], "begin": -1})", "begin: expected a number of ids, found -1"},
           {R"({"ids": [1], "text": "a"})",
            "expected text; context and continuation; or ids, with or without begin"},
           {R"({"txt": "a"})", "expected text, context, continuation, ids, begin, id, found txt"},
           {"[1, 2]", "expected an object of JSON, found [1, 2]"}}) {
    const Outcome o = run_stet({"score", "-m", kTiny, "--jsonl"},
                               "{\"ids\": [1, 2, 3]}\n" + line + "\n{\"ids\": [4, 5]}\n");
    EXPECT_EQ(o.status, 1);
    EXPECT_EQ(json_lines(o.out).size(), 1u) << line;
    EXPECT_NE(o.err.find("standard input: line 2: "), std::string::npos) << o.err;
    EXPECT_NE(o.err.find(error), std::string::npos) << o.err;
  }
  EXPECT_EQ(run_stet({"score", "-m", kTiny, "--jsonl", "--ids", "1,2"}).status, 2);
  EXPECT_EQ(run_stet({"score", "-m", kTiny}).status, 2);
}

TEST_F(LabCommand, RangesAreInclusive) {
  const Args capture = {"capture",    "-m",         kTiny,
                        "--ids",      text_of(ids), "--points",
                        "hook_embed", "-o",         scratch / "c.safetensors",
                        "--positions"};
  Args some = capture;
  some.push_back("3..5,29");
  succeed(some);
  EXPECT_EQ(Golden(scratch / "c.safetensors").ids("positions"),
            (std::vector<int32_t>{3, 4, 5, 29}));
  for (const char* wrong : {"3..30", "5..4", "30"}) {
    Args bad = capture;
    bad.push_back(wrong);
    const Outcome o = run_stet(bad);
    EXPECT_EQ(o.status, 2);
    EXPECT_NE(o.err.find("positions of 0..29, as 3..9,12"), std::string::npos) << o.err;
  }
}

TEST_F(LabCommand, DataSetsAreCapturedAndMeasured) {
  const std::string input =
      Json({{"ids", ids}, {"id", 7}}).dump() + "\n" + Json({{"ids", other}}).dump() + "\n";
  const Args capture = {"capture", "-m", kTiny,           "--points", "blocks.2.hook_resid_post",
                        "--jsonl", "-o", scratch / "all/"};
  const std::vector<Json> said = json_lines(succeed(capture, input).out);
  ASSERT_EQ(said.size(), 2u);
  EXPECT_EQ(said[0]["id"], 7);
  const auto alone = [&](const std::vector<int32_t>& some) {
    succeed({"capture", "-m", kTiny, "--ids", text_of(some), "--points", "blocks.2.hook_resid_post",
             "-o", scratch / "one.safetensors"});
    return Golden(scratch / "one.safetensors").floats("blocks.2.hook_resid_post");
  };
  EXPECT_EQ(Golden(said[0]["file"]).floats("blocks.2.hook_resid_post"), alone(ids));
  EXPECT_EQ(Golden(scratch / "all/2.safetensors").floats("blocks.2.hook_resid_post"), alone(other));

  const std::vector<Json> measured =
      json_lines(succeed({"measure", "-m", kTiny, "--tokens", "--jsonl"}, input).out);
  ASSERT_EQ(measured.size(), 2u);
  EXPECT_EQ(
      measured[1]["measured"],
      Json::parse(
          succeed({"measure", "-m", kTiny, "--tokens", "--json", "--ids", text_of(other)}).out));
  const Outcome bad =
      run_stet({"measure", "-m", kTiny, "--tokens", "--jsonl"}, input + "{\"ids\": [1, 400]}\n");
  EXPECT_EQ(bad.status, 1);
  EXPECT_EQ(json_lines(bad.out).size(), 2u);
  EXPECT_NE(bad.err.find("standard input: line 3: ids[1]"), std::string::npos) << bad.err;
}

TEST_F(LabCommand, MeasuresWhichExpertTakesWhichToken) {
  const Args experts = {"measure", "-m", data_path("models/qwen3moe-tiny"), "--experts"};
  const auto with = [](Args args, const Args& more) {
    args.insert(args.end(), more.begin(), more.end());
    return args;
  };
  const Json took = Json::parse(succeed(with(experts, {"--ids", "5,6,7", "--json"})).out);
  ASSERT_EQ(took.size(), 9u);  // three layers, of which one is dense
  for (const Json& row : took) {
    EXPECT_EQ(row["experts"].size(), 2u);
    EXPECT_NEAR(row["weights"][0].get<double>() + row["weights"][1].get<double>(), 1, 1e-6);
    EXPECT_NE(row["layer"], 1);
  }
  const std::string one = succeed(with(experts, {"--ids", "5,6,7", "--layer", "2"})).out;
  EXPECT_EQ(std::count(one.begin(), one.end(), '\n'), 4);
  EXPECT_EQ(run_stet(with(experts, {"--ids", "5,6,7", "--layer", "1"})).status, 1);
}

TEST_F(LabCommand, TablesAreLabelled) {
  const std::string lens = succeed({"measure", "-m", kTiny, "--lens", "--ids", text_of(ids)}).out;
  EXPECT_NE(lens.find("columns: the last 12 of 30 positions"), std::string::npos) << lens;
  const std::string few =
      succeed({"measure", "-m", kTiny, "--lens", "--ids", text_of({1, 2, 3})}).out;
  EXPECT_EQ(few.find("columns:"), std::string::npos) << few;
  const Args attribution = {"measure", "-m", kTiny, "--attribution", "--ids", text_of(ids)};
  EXPECT_NE(succeed(attribution).out.find("; the likeliest next token)"), std::string::npos);
  Args target = attribution;
  target.insert(target.end(), {"--target", "17"});
  EXPECT_NE(succeed(target).out.find("the logit of the target, 17 (17; of --target), is"),
            std::string::npos);
}

// The cell of a patched head, and a line of a data set, give the numbers of the same intervention
// attached by hand.
TEST_F(LabCommand, HeadsArePatched) {
  const std::vector<std::string> more = {"--answer", "3",           "--wrong", "4",
                                         "--heads",  "--positions", "4..9,20"};
  Args args = {"patch",       "-m",         kTiny,           "--json",
               "--clean-ids", text_of(ids), "--corrupt-ids", text_of(other)};
  args.insert(args.end(), more.begin(), more.end());
  const Json found = Json::parse(succeed(args).out);
  const auto m = model(kTiny);
  const auto heads = static_cast<size_t>(m->config().heads);
  ASSERT_EQ(found["scores"][2].size(), heads);
  EXPECT_EQ(found["answer"]["id"], 3);
  std::vector<float> z;
  const Watch watch{{{Point::z, 2}}, [&](const PointAt&, int64_t, Rows rows) {
                      for (size_t i = 0; i < rows.count; ++i)
                        z.insert(z.end(), rows.row(i), rows.row(i) + rows.width);
                    }};
  Session clean(m), patched(m);
  clean.append(ids, nullptr, nullptr, nullptr, &watch);
  const size_t width = z.size() / ids.size(), dim = width / heads;
  for (const size_t p : {4, 5, 6, 7, 8, 9, 20}) {
    Intervention w;
    w.point = Point::z, w.layers = {2}, w.heads = {1}, w.op = Intervention::Op::set;
    w.begin = static_cast<int64_t>(p), w.end = w.begin + 1;
    const float* const row = z.data() + p * width + dim;
    w.values = std::make_shared<const std::vector<float>>(row, row + dim);
    patched.attach(w);
  }
  patched.append(other);
  EXPECT_EQ(found["scores"][2][1], double{patched.logits()[3]} - patched.logits()[4]);

  Args lines = {"patch", "-m", kTiny, "--jsonl", "--heads", "--positions", "4..9,20"};
  const Json line = {
      {"clean_ids", ids}, {"corrupt_ids", other}, {"answer", "3"}, {"wrong", "4"}, {"id", 1}};
  const std::vector<Json> said = json_lines(succeed(lines, line.dump() + "\n").out);
  EXPECT_EQ(said.at(0)["scores"], found["scores"]);
  EXPECT_EQ(said.at(0)["id"], 1);
  args.insert(args.end(), {"--point", "hook_resid_pre"});
  EXPECT_NE(run_stet(args).err.find("--heads is for points with heads, and "), std::string::npos);
}

TEST_F(LabCommand, StatesAreSavedUnderInterventionsAndDifferByName) {
  const auto saved = [&](const std::string& name, const std::string& interventions) {
    write_file(scratch / "i.json", interventions);
    succeed({"save", "-m", kTiny, "--ids", text_of(ids), "--intervene", scratch / "i.json", "-o",
             scratch / name});
    return scratch / name;
  };
  const std::string front = R"([{"point": "hook_resid_post", "layers": [3], "from": 4, "op": )";
  const std::string a = saved("a.stet", front + R"("scale", "amount": 0.5}])"),
                    b = saved("b.stet", front + R"("scale", "amount": 0.75}])"),
                    c = saved("c.stet",
                              R"([{"point": "ln_final.hook_normalized", "positions": [3, 6],
                                             "op": "zero"}])");
  succeed({"verify", a, "-m", kTiny});
  const std::string one = run_stet({"diff", a, b}).out, two = run_stet({"diff", a, c}).out;
  EXPECT_NE(
      one.find("interventions[0]: scale at hook_resid_post, layers 3, positions 4.., attached "
               "at 0, amount 0.5 in a, scale at"),
      std::string::npos)
      << one;
  EXPECT_NE(
      two.find("set at ln_final.hook_normalized, positions 3..5, attached at 0, 64 values in b"),
      std::string::npos)
      << two;
}

// An entry with a field that would be ignored is refused, because it asks for another experiment.
TEST_F(LabCommand, FieldsOfInterventionsThatWouldBeIgnoredAreRefused) {
  write_file(scratch / "v.json",
             R"([{"point": "hook_embed", "op": "zero", "from": 2, "values": null}])");
  const Args plain = {"logits", "-m", kTiny, "--ids", "1,2,3", "--digest", "--intervene"};
  const auto run = [&](const std::string& file) {
    Args args = plain;
    args.push_back(file);
    return run_stet(args);
  };
  EXPECT_EQ(run(scratch / "v.json").status, 0);
  const Outcome unnamed = run("");
  EXPECT_EQ(unnamed.status, 2);
  EXPECT_NE(unnamed.err.find("--intervene: expected a name"), std::string::npos) << unnamed.err;
  const std::string resid = R"({"point": "blocks.3.hook_resid_post", )",
                    pattern = R"({"point": "attn.hook_pattern", )";
  for (const auto& [entry, error] : std::vector<std::pair<std::string, std::string>>{
           {resid + R"("op": "zero", "positons": [1, 2]})",
            "interventions[0].positons: expected one of point, layers, heads, positions, from, "
            "keys, op, values, amount, encoder, decoder, bias, threshold, found an unknown field"},
           {resid + R"("op": "scale", "factor": 0.5})", "interventions[0].factor: expected one of"},
           {resid + R"("op": "set", "values": {"file": "a", "tensor": "b", "row": [0, 1]}})",
            "interventions[0].values.row: expected one of file, tensor, rows, found an unknown"},
           {resid + R"("op": "zero", "layers": [0]})",
            "interventions[0].layers: expected none beside the point of one layer"},
           {resid + R"("op": "zero", "positions": [0, 1], "from": 7})",
            "interventions[0].from: expected positions or from, not both"},
           {resid + R"("op": "zero", "values": [1]})",
            "interventions[0].values: expected no such field beside op zero"},
           {resid + R"("op": "scale", "values": [1]})", "[0].values: expected no such field"},
           {resid + R"("op": "zero", "amount": 2})", "[0].amount: expected no such field"},
           {resid + R"("op": "set", "amount": 2, "values": [1]})", "[0].amount: expected no such"},
           {resid + R"("op": "add", "bias": 2, "values": [1]})", "[0].bias: expected no such"},
           {resid + R"("op": "scale"})", "[0].amount: expected a number, found nothing"},
           {resid + R"("op": "add", "values": [1]})",
            "interventions[0].values: expected 64 numbers, found 1"},
           {resid + R"("op": "zero", "heads": [0]})",
            "interventions[0].heads: expected none: the point has no heads"},
           {resid + R"("op": "turn"})", "interventions[0].op: expected set, replace, zero"},
           {pattern + R"("op": "mean", "values": [1]})",
            "[0].op: expected set, zero, add, scale or knock_out of scores and patterns"},
           {pattern + R"("op": "zero", "heads": []})",
            "[0].heads: expected at least one number; leave the field out for all"},
           {pattern + R"("op": "zero", "layers": []})", "[0].layers: expected at least one number"},
           {R"({"point": "hook_conv", "op": "zero"})", "[0].point: expected one of family gemma3"},
           {R"({"point": "blocks.99.attn.hook_k", "op": "zero"})",
            "[0].point: expected a layer in 0.."}}) {
    write_file(scratch / "w.json", "[" + entry + "]");
    const Outcome o = run(scratch / "w.json");
    EXPECT_EQ(o.status, 1) << entry;
    EXPECT_NE(o.err.find(error), std::string::npos) << o.err;
  }
}

// Writes one float32 tensor T of this shape, with numbers from 0 on.
void write_tensor(const std::string& path, const std::vector<int64_t>& shape) {
  std::vector<float> numbers(static_cast<size_t>(*element_count(shape)));
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i % 97) / 97;
  SafeTensorsWriter file(path, {{"T", DType::f32, shape}}, {});
  file.write(std::as_bytes(std::span(numbers)));
  file.commit();
}

// A capture of all heads gives each named head its own rows, also their mean.
TEST_F(LabCommand, HeadsOfAnInterventionAreTakenOutOfACapture) {
  const auto m = model(kTiny);
  const auto heads = static_cast<size_t>(m->config().heads);
  const auto dim = static_cast<size_t>(point_width(m->config(), {Point::z, 2}, 0)) / heads;
  const size_t rows = 5;
  write_tensor(scratch / "t.safetensors", {static_cast<int64_t>(rows), static_cast<int64_t>(heads),
                                           static_cast<int64_t>(dim)});
  const std::vector<float> all = Golden(scratch / "t.safetensors").floats("T");
  const auto logits = [&](const std::string& fields) {
    write_file(scratch / "i.json", R"([{"point": "blocks.2.attn.hook_z", "values": )"
                                   R"({"file": "t.safetensors", "tensor": "T"}, )" +
                                       fields + "}]");
    succeed({"logits", "-m", kTiny, "--ids", text_of(ids), "--intervene", scratch / "i.json", "-o",
             scratch / "l.safetensors"});
    return Golden(scratch / "l.safetensors").floats("logits");
  };
  const auto by_hand = [&](bool mean) {
    Session s(m);
    for (const size_t head : {3, 1}) {
      std::vector<float> own;
      for (size_t row = 0; row < rows; ++row) {
        const auto begin = all.begin() + static_cast<std::ptrdiff_t>((row * heads + head) * dim);
        own.insert(own.end(), begin, begin + static_cast<std::ptrdiff_t>(dim));
      }
      std::vector<float> sum(dim);
      for (size_t i = 0; i < own.size(); ++i) sum[i % dim] += own[i] * (1.0f / rows);
      Intervention w;
      w.point = Point::z, w.layers = {2}, w.heads = {static_cast<int64_t>(head)};
      w.op = Intervention::Op::set, w.begin = 4, w.end = 9;
      w.values = std::make_shared<const std::vector<float>>(mean ? sum : own);
      s.attach(w);
    }
    return all_logits(s, ids);
  };
  EXPECT_EQ(logits(R"("heads": [3, 1], "positions": [4, 9], "op": "set")"), by_hand(false));
  EXPECT_EQ(logits(R"("heads": [3, 1], "positions": [4, 9], "op": "mean")"), by_hand(true));
}

// A tensor of as many numbers in another order is another one.
TEST_F(LabCommand, TensorsOfAnotherShapeAreRefused) {
  const std::string file = scratch / "t.safetensors";
  const auto shape = [&](const std::vector<int64_t>& of) { write_tensor(file, of); };
  const auto of_interventions = [&](const std::string& point) {
    write_file(scratch / "i.json", R"([{"op": "set", "positions": [0, 3], "values": )"
                                   R"({"file": "t.safetensors", "tensor": "T"}, )" +
                                       point + "}]");
    return failure(
        {"logits", "-m", kTiny, "--ids", "1,2,3", "--digest", "--intervene", scratch / "i.json"});
  };
  shape({64, 3});
  EXPECT_EQ(of_interventions(R"("point": "blocks.1.hook_resid_post")"),
            file + ": T: expected one of the shapes [64], [rows, 64], found [64, 3]");
  shape({16, 3, 4});
  EXPECT_EQ(of_interventions(R"("point": "blocks.1.attn.hook_z")"),
            file +
                ": T: expected one of the shapes [64], [rows, 64], [4, 16], [rows, 4, 16], "
                "found [16, 3, 4]");
  EXPECT_EQ(of_interventions(R"("point": "blocks.1.attn.hook_z", "heads": [0, 2])"),
            file +
                ": T: expected one of the shapes [16], [rows, 16], [rows, 2, 16], "
                "[rows, 4, 16], found [16, 3, 4]");
  succeed({"save", "-m", kTiny, "--ids", "1,2,3", "-o", scratch / "s.stet"});
  shape({16, 3});
  EXPECT_EQ(failure({"edit", scratch / "s.stet", "-m", kTiny, "--set", file, "--tensor", "T",
                     "--layers", "0", "--heads", "0", "-o", scratch / "e.stet"}),
            file + ": T: expected [16] or [3, 1, 16], found [16, 3]");
  const std::string lens = scratch / "lens.safetensors";
  SafeTensorsWriter maps(
      lens, {{"lens.0.weight", DType::f32, {4096}}, {"lens.0.bias", DType::f32, {64}}}, {});
  const std::vector<float> zeros(4096 + 64);
  maps.write(std::as_bytes(std::span(zeros)));
  maps.commit();
  EXPECT_EQ(failure({"measure", "-m", kTiny, "--ids", "1,2,3", "--tuned-lens", lens}),
            lens + ": lens.0: expected [64, 64] and [64], found [4096] and [64]");
}

TEST_F(LabCommand, EditsTakeRecipesAndNamedParents) {
  const std::string a = scratch / "a.stet", recipe = scratch / "r.stet", d = scratch / "d.stet",
                    moved = scratch / "sub/d.stet", to = scratch / "e.stet";
  succeed({"save", "-m", kTiny, "--ids", "1,2,3", "-o", a});
  succeed({"convert", a, "-o", recipe, "--form", "recipe"});
  succeed({"edit", recipe, "-m", kTiny, "--zero", "--layers", "1", "-o", to});
  succeed({"edit", a, "-m", kTiny, "--zero", "--layers", "1", "-o", scratch / "f.stet"});
  succeed({"diff", to, scratch / "f.stet"});
  succeed({"convert", a, "-o", d, "--form", "delta", "--against", a});
  std::filesystem::create_directory(scratch / "sub");
  std::filesystem::rename(d, moved);
  const Args zero = {"edit", moved, "-m", kTiny, "--zero", "--layers", "0", "-o", to},
             copy = {"edit", a, "-m", kTiny, "--copy", moved, "--layers", "0", "-o", to};
  const auto ends = [](const Args& args, const std::string& with) {
    const std::string said = failure(args);
    EXPECT_TRUE(said.ends_with(", which is not beside it; name it with " + with + "")) << said;
  };
  ends(zero, "--parent");
  ends(copy, "--other-parent");
  succeed(zero + Args{"--parent", a});
  succeed(copy + Args{"--other-parent", a});
  EXPECT_EQ(failure({"edit", a, "-m", kTiny, "--copy", a, "--other-parent", a, "-o", to}, 2),
            "--other-parent: this option is for deltas, and " + a + " is none (stet --help)");
  EXPECT_EQ(failure(zero + Args{"--parent", a, "--other-parent", a}, 2),
            "--other-parent is for the snapshot of --copy or --splice (stet --help)");
  for (const char* fixed : {"--kv", "--ctx"})
    EXPECT_NE(failure({"edit", a, "-m", kTiny, "--zero", "-o", to, fixed, "8"}, 2)
                  .find(std::string("unknown option ") + fixed),
              std::string::npos);
}

// The logits of an edited state are those that its last token gives over the changed keys, also if
// other layers are recurrent.
TEST_F(LabCommand, EditsOfRecurrentModelsGiveTheLogitsOfTheChange) {
  for (const char* name : {"models/qwen35-tiny", "models/lfm2-tiny", "models/gemma3-tiny"}) {
    const std::string path = data_path(name);
    const auto first = std::span(ids).first(ids.size() - 1);
    Session by_hand(model(path));
    by_hand.append(first);
    by_hand.scale_kv({{}, {}, 0, -1, true, true}, 2.0f);
    by_hand.append({&ids.back(), 1});
    succeed({"save", "-m", path, "--ids", text_of(ids), "-o", scratch / "s.stet"});
    const Json said = Json::parse(succeed({"edit", scratch / "s.stet", "-m", path, "--scale", "2",
                                           "-o", scratch / "t.stet", "--json"})
                                      .out);
    EXPECT_GT(said["kl"].get<double>(), 1e-4) << name;
    const State edited = Snapshot::open(scratch / "t.stet").state();
    EXPECT_TRUE(same_bytes(*edited.logits, by_hand.logits())) << name;
  }
}

TEST_F(LabCommand, PartsOfALogitSumToIt) {
  const std::string some = text_of({ids.begin(), ids.begin() + 9});
  const auto attribution = [&](const std::string& name, const Args& more) {
    Args args = {"measure", "-m", data_path("models/" + name), "--ids", some, "--attribution"};
    args.insert(args.end(), more.begin(), more.end());
    return run_stet(args);
  };
  for (const char* name : {"gpt2-tiny", "pythia-tiny", "gemma2-tiny", "gemma4-dense-tiny",
                           "gemma4-moe-tiny", "gemma4-small-tiny", "llama31-tiny", "qwen35-tiny"}) {
    const Json j = Json::parse(attribution(name, {"--json", "--target", "100"}).out);
    const double logit = j["logit"], sum = j[j.contains("capped_sum") ? "capped_sum" : "sum"];
    EXPECT_NEAR(sum, logit, 1e-4) << name;
    double parts = 0;
    for (const Json& part : j["parts"]) parts += part["logit"].get<double>();
    EXPECT_NEAR(parts, j["sum"], 1e-9) << name;
  }
  const std::string gpt2 = attribution("gpt2-tiny", {}).out,
                    gemma2 = attribution("gemma2-tiny", {}).out,
                    small = attribution("gemma4-small-tiny", {}).out;
  EXPECT_NE(gpt2.find("  bias\n"), std::string::npos) << gpt2;
  EXPECT_NE(gemma2.find(" under the soft cap; the logit of the target"), std::string::npos);
  EXPECT_NE(small.find("  blocks.0.layer_input\n"), std::string::npos) << small;
}

TEST_F(LabCommand, InterventionsArePartsOfALogit) {
  const std::string file = scratch / "change.json";
  for (const char* name : {"gpt2-tiny", "gemma2-tiny", "gemma4-small-tiny", "llama31-tiny"}) {
    for (const char* point :
         {"hook_embed", "blocks.0.hook_resid_pre", "blocks.1.hook_resid_mid",
          "blocks.1.hook_resid_post", "blocks.1.hook_mlp_out", "ln_final.hook_normalized"}) {
      write_file(file,
                 std::string(R"([{"point": ")") + point + R"(", "op": "scale", "amount": 3}])");
      const Json j =
          Json::parse(succeed({"measure", "-m", data_path("models/") + name, "--ids", "5,6,7,8",
                               "--attribution", "--target", "100", "--json", "--intervene", file})
                          .out);
      EXPECT_NEAR(j[j.contains("capped_sum") ? "capped_sum" : "sum"], j["logit"], 1e-4)
          << name << " " << point;
    }
  }
}

// The tokens after a state are preceded by its logits.
TEST_F(LabCommand, ThePredecessorOfTheFirstTokenIsTheState) {
  const std::string state = scratch / "s.stet", rest = text_of({ids.begin() + 3, ids.end()});
  succeed({"save", "-m", kTiny, "--ids", text_of({ids.begin(), ids.begin() + 3}), "-o", state});
  const Args whole = {"-m", kTiny, "--ids", text_of(ids)},
             behind = {"-m", kTiny, "--from", state, "--ids", rest};
  const Args tokens = {"measure", "--tokens", "--json"};
  const Json all = Json::parse(succeed(tokens + whole).out);
  const Json some = Json::parse(succeed(tokens + behind).out);
  EXPECT_EQ(some, Json(all.begin() + 2, all.end()));
  EXPECT_EQ(some[0]["next"], ids[3]);
  const Json scored = Json::parse(succeed(Args{"score", "--json"} + behind).out);
  const double mean = -scored["sum"].get<double>() / static_cast<double>(ids.size() - 3);
  const std::string nll = succeed(Args{"logits", "--nll"} + behind).out;
  EXPECT_NEAR(std::stod(nll.substr(4)), mean, 1e-5) << nll;
  EXPECT_TRUE(nll.ends_with("over 27 tokens\n")) << nll;
}

TEST_F(LabCommand, RowsDoNotDependOnChunks) {
  for (const char* measure : {"--lens", "--experts"}) {
    const Args args = {"measure", measure,     "--json", "-m", data_path("models/olmoe-tiny"),
                       "--ids",   text_of(ids)};
    EXPECT_EQ(succeed(args).out, succeed(args + Args{"--chunk", "7"}).out) << measure;
  }
}

TEST_F(LabCommand, NumbersThatAreNotFiniteAreErrors) {
  const std::string file = scratch / "large.json", state = scratch / "s.stet";
  const std::string one = R"({"point": "blocks.0.hook_resid_post", "op": "scale", "amount": 1e30})";
  write_file(file, "[" + one + ", " + one + "]");
  succeed({"save", "-m", kTiny, "--ids", text_of(ids), "-o", state});
  const Args large = {"-m", kTiny, "--ids", text_of(ids), "--intervene", file};
  for (const Args& args : {Args{"measure", "--tokens"}, Args{"measure", "--lens"},
                           Args{"measure", "--attribution"}, Args{"measure", "--attention"},
                           Args{"measure", "--tokens", "--json"}, Args{"measure", "--kl", state},
                           Args{"score"}, Args{"score", "--json"}, Args{"logits", "--nll"}})
    EXPECT_NE(failure(args + large).find(": expected a finite number, found "), std::string::npos)
        << args[1];
}

TEST_F(LabCommand, AnInterruptedCaptureLeavesNoFile) {
  // The capture would last for hours, so no machine finishes before the signal.
  const std::string endless = scratch / "endless", to = scratch / "to";
  std::filesystem::copy(data_path("models/llama31-tiny"), endless);
  Json config = Json::parse(read_text(endless + "/config.json"));
  config["max_position_embeddings"] = 2'000'000;
  write_file(endless + "/config.json", config.dump());
  std::filesystem::create_directory(to);
  const CommandRun run({"capture", "-m", endless, "--ids", "1,2,3", "-n", "1000000", "--points",
                        "ln_final.hook_scale", "-o", to + "/f.safetensors"},
                       "/dev/null", scratch / "out", scratch / "err");
  while (std::filesystem::is_empty(to)) std::this_thread::yield();  // until it has its file
  run.send(SIGINT);
  EXPECT_EQ(run.wait(), -SIGINT);  // a shell expects this
  EXPECT_TRUE(std::filesystem::is_empty(to));
}

// The head of Gemma 3n joins its streams, of which points show one.
TEST_F(LabCommand, MeasuresOfOneStreamAreRefusedForSeveral) {
  for (const char* measure : {"--lens", "--attribution"}) {
    const Outcome o =
        run_stet({"measure", "-m", data_path("models/gemma3n-tiny"), "--ids", "1,2", measure});
    EXPECT_EQ(o.status, 1);
    EXPECT_EQ(o.err, std::string("stet: ") + measure +
                         ": expected a model with one residual stream, found 3 streams, of which "
                         "points show one\n");
  }
}

// Measures and sweeps of attention leave out recurrent layers, whose entries are null.
TEST_F(LabCommand, LayersWithoutThePointAreLeftOut) {
  const Args prompt = {"-m", data_path("models/qwen35-tiny"), "--ids", "1,2,3", "--json"};
  const auto json = [&](Args args) {
    args.insert(args.end(), prompt.begin(), prompt.end());
    return Json::parse(succeed(args).out);
  };
  const Json maps = json({"measure", "--attention"});
  ASSERT_EQ(maps.size(), 4u);  // heads of layer 3
  EXPECT_EQ(maps[0]["title"], "Layer 3, head 0: who looks where");
  const Json norms = json({"measure", "--norms"})[0]["values"];
  for (size_t l = 0; l < 3; ++l) EXPECT_EQ(norms[l], Json());
  EXPECT_EQ(norms[3].size(), 3u);
  EXPECT_NE(run_stet({"measure", "--attention", "--layer", "0", "-m", prompt[1], "--ids", "1"})
                .err.find("--layer: expected a layer with attention, found 0"),
            std::string::npos);
}

TEST_F(LabCommand, LayersThatDifferArePatched) {
  const auto patch = [&](const std::string& name, const Args& more) {
    Args args = {"patch",       "-m",       data_path("models/" + name),
                 "--clean-ids", "1,2,3",    "--corrupt-ids",
                 "1,5,6",       "--answer", "3",
                 "--wrong",     "4"};
    args.insert(args.end(), more.begin(), more.end());
    return succeed(args).out;
  };
  const Json z = Json::parse(patch("qwen35-tiny", {"--heads", "--json"}));
  for (size_t l = 0; l < 3; ++l) EXPECT_EQ(z["scores"][l], Json());
  EXPECT_EQ(z["scores"][3].size(), 4u);
  const Json conv = Json::parse(patch("qwen35-tiny", {"--point", "hook_conv", "--json"}));
  EXPECT_EQ(conv["scores"][0].size(), 3u);
  EXPECT_EQ(conv["restored"][3], Json());
  // The numbers of kv heads are those of each layer.
  const std::string name = "gemma4-dense-tiny";
  const Json k = Json::parse(patch(name, {"--heads", "--point", "attn.hook_k", "--json"}));
  const auto m = model(data_path("models/" + name));
  int64_t most = 0, least = 99;
  for (int64_t l = 0; l < m->config().layers; ++l) {
    const int64_t heads = m->config().layer(l).kv_heads;
    EXPECT_EQ(k["scores"][static_cast<size_t>(l)].size(), static_cast<size_t>(heads));
    most = std::max(most, heads), least = std::min(least, heads);
  }
  EXPECT_LT(least, most);
  EXPECT_EQ(k["heads"], most);
  const std::string table = patch("qwen35-tiny", {"--heads"});
  EXPECT_EQ(table.find("layer  0"), std::string::npos) << table;
}

TEST_F(LabCommand, APatchThatCanBringNothingBackSaysSo) {
  const Outcome o = succeed({"patch", "-m", kTiny, "--clean-ids", "1,2", "--corrupt-ids", "1,3",
                             "--answer", "3", "--wrong", "3"});
  EXPECT_NE(o.err.find("nothing can come back: both prompts give the same difference between "
                       "answer and wrong, 0.000\n"),
            std::string::npos)
      << o.err;
}

TEST_F(LabCommand, InspectShowsAllOfAnIntervention) {
  write_file(scratch / "i.json", R"([
    {"point": "attn.hook_attn_scores", "keys": [3, 9], "op": "knock_out"},
    {"point": "hook_embed", "op": "clamp", "bias": 0.5, "threshold": 0.25, "amount": 2,
     "encoder": )" + Json(std::vector<float>(64, 0.125f)).dump() +
                                     R"(, "decoder": )" +
                                     Json(std::vector<float>(64, 0.5f)).dump() + "}]");
  succeed({"save", "-m", kTiny, "--ids", "1,2,3", "--intervene", scratch / "i.json", "-o",
           scratch / "s.stet"});
  const Json all =
      Json::parse(succeed({"inspect", scratch / "s.stet", "--json"}).out)["interventions"];
  EXPECT_EQ(all[0]["keys"], Json({3, 9}));
  EXPECT_EQ(all[0]["numbers"], Json::array({"-inf"}));
  EXPECT_EQ(all[1]["bias"], 0.5);
  EXPECT_EQ(all[1]["threshold"], 0.25);
  EXPECT_EQ(all[1]["values"], 128);
  EXPECT_EQ(all[1]["numbers"][64], 0.5);
  const std::string table = succeed({"inspect", scratch / "s.stet"}).out;
  EXPECT_NE(table.find("keys [3,9]  numbers [\"-inf\"]"), std::string::npos) << table;
  EXPECT_NE(table.find("numbers [0.125,0.125,0.125,0.125,\"…\"]  values_sha256 " +
                       all[1]["values_sha256"].get<std::string>()),
            std::string::npos)
      << table;
}

// A convolution over one position keeps no earlier inputs, so these layers have arrays of no
// numbers.
TEST_F(LabCommand, ExportAndImportTakeRecurrentLayersThatKeepNothing) {
  CheckpointParts parts("lfm2-tiny");
  parts.config["conv_L_cache"] = 1;
  for (CheckpointParts::Tensor& t : parts.tensors()) {
    if (!t.spec.name.ends_with(".conv.conv.weight")) continue;
    t.spec.shape = {64, 1, 1};
    t.bytes.resize(t.bytes.size() / 3);
  }
  const std::string lfm2 = parts.write(scratch / "lfm2"), state = scratch / "s.stet",
                    tensors = scratch / "t.safetensors", imported = scratch / "i.stet";
  succeed({"save", "-m", lfm2, "--ids", "3,4,5,6", "-o", state});
  EXPECT_EQ(succeed({"export", state, "-o", tensors}).err,
            "4 positions of 2 layers in " + tensors + "\n");
  const Golden exported(tensors);
  EXPECT_EQ(exported.view("blocks.2.k").shape, (std::vector<int64_t>{4, 2, 16}));
  EXPECT_FALSE(exported.has("layers.0.conv"));
  EXPECT_EQ(succeed({"import", state, tensors, "-m", lfm2, "-o", imported}).err,
            "0 keys and values were set, 0 edits in " + imported + "\n");
  succeed({"diff", state, imported});
}

}  // namespace
}  // namespace stet::test::lab_tests
