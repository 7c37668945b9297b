// Weights of a GGUF file: views where the layout is the published one, converted copies otherwise,
// and their place in snapshots.
#include <gtest/gtest.h>

#include <cstring>

#include "stet/checkpoint/checkpoint.hpp"
#include "stet/checkpoint/gguf.hpp"
#include "stet/checkpoint/overrides.hpp"
#include "stet/checkpoint/packed.hpp"
#include "stet/checkpoint/safetensors.hpp"
#include "stet/snapshot/snapshot.hpp"
#include "tests/support/files.hpp"
#include "tests/support/models.hpp"
#include "tests/support/small_gguf.hpp"

namespace stet::test::gguf_weights_tests {
namespace {

class GgufWeights : public testing::Test {
 protected:
  void SetUp() override { write_small_gguf(scratch / "m.gguf"); }

  static Session session(const std::shared_ptr<const Model>& model) {
    SessionOptions o = options(1);
    o.compute.contract = Contract::ggml;
    Session s(model, o);
    s.append(std::vector<int32_t>{1, 2, 3, 5, 8, 13});
    return s;
  }

  TemporaryDirectory scratch;
};

TEST_F(GgufWeights, LieInTheFile) {
  const auto source = gguf_source(scratch / "m.gguf");
  const Checkpoint checkpoint = Checkpoint::open(*source);
  EXPECT_EQ(checkpoint.source(), scratch / "m.gguf");
  EXPECT_EQ(checkpoint.names().size(), 20u);
  EXPECT_TRUE(checkpoint.has_blocks());
  const std::span<const std::byte> file = checkpoint.files().at(0)->bytes();
  const auto lies_in_file = [&](const TensorView& view) {
    return view.bytes.data() >= file.data() &&
           view.bytes.data() + view.bytes.size() <= file.data() + file.size();
  };
  for (const std::string& name : checkpoint.names()) {
    const TensorView& found = *checkpoint.find(name);
    const OwnedTensor tensor = checkpoint.read(found);
    EXPECT_TRUE(lies_in_file(tensor.view)) << name;
    EXPECT_EQ(tensor.memory.size(), 0u) << name;
    const bool turned = name.ends_with("q_proj.weight") || name.ends_with("k_proj.weight");
    EXPECT_EQ(found.bytes.empty(), turned) << name;  // a view requires the published order
    EXPECT_EQ(tensor.view.paired_heads, !turned                           ? 0u
                                        : name.ends_with("q_proj.weight") ? 2u
                                                                          : 1u)
        << name;
  }
}

// Values and text of config.json come from the same keys, also behind a source that overrides files.
TEST_F(GgufWeights, TheConfigAsValuesEqualsItsText) {
  const auto source = gguf_source(scratch / "m.gguf");
  const auto other = overridden(source, {std::nullopt, {7}});
  for (const FileSource* const files : {source.get(), other.get()}) {
    const std::string text = files->read("config.json", 1 << 20);
    const JsonReader values = files->json("config.json", 1 << 20);
    EXPECT_EQ(values.text(), parse_json(text, "").text());
    EXPECT_EQ(values.file(), scratch / "m.gguf: config.json");
    EXPECT_EQ(read_model_config(values).canonical(), parse_model_config(text, "").canonical());
  }
  const std::string eos = "eos_token_id", generation = "generation_config.json";
  EXPECT_EQ(other->json(generation, 1 << 20).integer_or_integers(eos, 0, 99),
            std::vector<int64_t>{7});
  const std::string all = std::to_string(source->read(generation, 1 << 20).size());
  EXPECT_EQ(error_of([&] { source->json(generation, 1); }, ErrorKind::format),
            scratch / "m.gguf: generation_config.json: expected at most 1 bytes, found " + all);
}

TEST_F(GgufWeights, ASnapshotHoldsTheFileItself) {
  const auto source = gguf_source(scratch / "m.gguf");
  const auto model = Model::load(source, 1, Contract::ggml);
  Session s = session(model);
  SaveOptions save;
  save.weights_files = source.get();
  Snapshot::save(s, scratch / "s.stet", save);
  const Snapshot snapshot = Snapshot::open(scratch / "s.stet");
  const auto weights = snapshot.weights();
  ASSERT_NE(weights, nullptr);
  const auto there = weights->open("model.gguf"), saved = source->open("model.gguf");
  EXPECT_TRUE(std::ranges::equal(there->bytes(), saved->bytes()));
  EXPECT_EQ(contract_of_weights(*weights), Contract::ggml);
  const auto again = Model::load(weights, 1, Contract::ggml);
  EXPECT_EQ(again->fingerprint(), model->fingerprint());
  SessionOptions o = options(1);
  o.compute.contract = Contract::ggml;
  Session back = snapshot.restore(again, {.session = o});
  EXPECT_TRUE(same_state(back, s));
}

// Snapshots store the weights of a GGUF file as blocks in safetensors.
TEST_F(GgufWeights, BlocksInSafetensorsAreTheSameModel) {
  const auto source = gguf_source(scratch / "m.gguf");
  const Checkpoint checkpoint = Checkpoint::open(*source);
  std::vector<std::pair<std::string, std::string>> files = {
      {"config.json", source->read("config.json", 1 << 20)}};
  std::vector<TensorSpec> specs;
  for (const std::string& name : checkpoint.names())
    specs.push_back({name, checkpoint.find(name)->dtype, checkpoint.find(name)->shape});
  SafeTensorsWriter writer(scratch / "model-1.safetensors", specs);
  std::string map;
  for (const TensorSpec& spec : specs) {
    const OwnedTensor tensor = checkpoint.read(*checkpoint.find(spec.name));
    const auto rows = static_cast<size_t>(spec.shape.size() > 1 ? spec.shape[0] : 1);
    for (size_t row = 0; row < rows; ++row)
      writer.write(rows == 1 ? tensor.view.bytes : row_of(tensor.view, row));
    map += (map.empty() ? "\"" : ",\"") + spec.name + "\":\"model-1.safetensors\"";
  }
  writer.commit();
  files.emplace_back("model.safetensors.index.json",
                     R"({"metadata":{"blocks":"ggml"},"weight_map":{)" + map + "}}");
  const std::vector<std::byte> shard = read_file(scratch / "model-1.safetensors", 1 << 20);
  files.emplace_back("model-1.safetensors",
                     std::string(reinterpret_cast<const char*>(shard.data()), shard.size()));
  const auto plain = memory_source(files, "memory");
  EXPECT_EQ(contract_of_weights(*plain), Contract::ggml);
  const auto model = Model::load(plain, 1, Contract::ggml);
  const auto expected = Model::load(source, 1, Contract::ggml);
  EXPECT_EQ(model->fingerprint(), expected->fingerprint());
  EXPECT_EQ(model->types(), expected->types());
  Session a = session(model), b = session(expected);
  EXPECT_TRUE(std::ranges::equal(a.logits(), b.logits()));
}

}  // namespace
}  // namespace stet::test::gguf_weights_tests
