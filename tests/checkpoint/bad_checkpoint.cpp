// A faulty checkpoint gives one line of error that names the file, the field, the expected value
// and the value found.
#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "tests/support/models.hpp"

namespace stet::test::bad_checkpoint_tests {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// A copy of a small checkpoint, to be damaged. "@" in expected texts stands for its directory.
class BadCheckpoint : public testing::Test {
 protected:
  explicit BadCheckpoint(const std::string& name = "llama31-tiny") : source_(name) {
    for (const char* file : {"config.json", "model.safetensors"}) {
      fs::copy_file(data_path("models/" + name + "/" + file), path(file));
      fs::permissions(path(file), fs::perms::owner_write, fs::perm_options::add);
    }
  }

  std::string path(const std::string& file) const { return directory_.path() + "/" + file; }
  void write(const std::string& file, const std::string& text) const {
    std::ofstream(path(file)) << text;
  }
  void config(const std::function<void(Json&)>& change) const {
    std::ifstream in(data_path("models/" + source_ + "/config.json"));
    Json json = Json::parse(in);
    change(json);
    write("config.json", json.dump());
  }

  // Rewrites model.safetensors with each tensor as `change` leaves it. A tensor renamed to "" is
  // left out.
  struct Tensor {
    TensorSpec spec;
    std::vector<std::byte> bytes;
  };
  void tensors(const std::function<void(Tensor&)>& change) const {
    const Golden original(data_path("models/" + source_ + "/model.safetensors"));
    std::vector<Tensor> all;
    for (const TensorView& view : original.all()) {
      Tensor t{{view.name, view.dtype, view.shape}, {view.bytes.begin(), view.bytes.end()}};
      change(t);
      if (!t.spec.name.empty()) all.push_back(std::move(t));
    }
    std::vector<TensorSpec> specs;
    for (const Tensor& t : all) specs.push_back(t.spec);
    SafeTensorsWriter writer(path("model.safetensors"), specs);
    for (const Tensor& t : all) writer.write(t.bytes);
    writer.commit();
  }

  std::string error(ErrorKind kind) const {
    std::string text = error_of([&] { Model::load(directory_.path(), 1); }, kind);
    EXPECT_EQ(text.find('\n'), std::string::npos);
    const std::string& name = directory_.path();  // errors begin with this path
    return text.starts_with(name) ? fmt::format("@{}", text.substr(name.size())) : text;
  }
  std::string config_error(ErrorKind kind, const std::function<void(Json&)>& change) const {
    config(change);
    return error(kind);
  }
  // Sets one field of config.json. Returns the error.
  std::string field_error(const char* field, const Json& value) const {
    return config_error(ErrorKind::format, [&](Json& j) { j[field] = value; });
  }

  std::string source_;
  TemporaryDirectory directory_;
};

class BadGemma : public BadCheckpoint {
 protected:
  BadGemma() : BadCheckpoint("gemma3-tiny") {}
};

class BadGemma4 : public BadCheckpoint {
 protected:
  BadGemma4() : BadCheckpoint("gemma4-dense-tiny") {}
};

class BadGpt2 : public BadCheckpoint {
 protected:
  BadGpt2() : BadCheckpoint("gpt2-tiny") {}
};

TEST_F(BadCheckpoint, TheCopyItselfLoads) {
  tensors([](Tensor&) {});
  config([](Json&) {});
  EXPECT_EQ(error(ErrorKind::io), "no error");
}

// ---- files ----

TEST_F(BadCheckpoint, MissingFiles) {
  fs::remove(path("model.safetensors"));
  EXPECT_EQ(error(ErrorKind::io),
            "@: expected model.safetensors or model.safetensors.index.json in it, found neither");
  write("model.fp16.safetensors", "");
  EXPECT_EQ(error(ErrorKind::io),
            "@: expected model.safetensors or model.safetensors.index.json in it, found "
            "model.fp16.safetensors; rename it to model.safetensors");
  fs::remove(path("model.fp16.safetensors"));
  write("model-00001-of-00003.safetensors", "");
  EXPECT_EQ(error(ErrorKind::io),
            "@: expected model.safetensors or model.safetensors.index.json in it, found "
            "model-00001-of-00003.safetensors without the index; fetch it from where the file is "
            "from");
  fs::remove(path("model-00001-of-00003.safetensors"));
  fs::remove(path("config.json"));
  EXPECT_EQ(error(ErrorKind::io), "@/config.json: cannot be read: No such file or directory");
  fs::remove(directory_.path());
  EXPECT_EQ(error(ErrorKind::io),
            "@: expected a checkpoint directory or a .gguf file, found nothing of that name");
}

TEST_F(BadCheckpoint, AFileInsteadOfADirectory) {
  EXPECT_EQ(error_of([&] { Model::load(path("config.json"), 1); }, ErrorKind::io),
            path("config.json") + ": expected a checkpoint directory or a .gguf file, here " +
                directory_.path() + ", found one file of a checkpoint");
}

TEST_F(BadCheckpoint, TruncatedWeights) {
  const size_t size = fs::file_size(path("model.safetensors"));
  std::ifstream in(path("model.safetensors"), std::ios::binary);
  uint64_t header = 0;
  in.read(reinterpret_cast<char*>(&header), sizeof header);
  const auto cut = [&](size_t bytes) {
    fs::resize_file(path("model.safetensors"), bytes);
    return error(ErrorKind::format);
  };
  const auto stopped = [](size_t promised, size_t found) {
    return fmt::format(
        "@/model.safetensors: the file is truncated: it has {} bytes of the {} bytes that its "
        "header promises; download it again",
        found, promised);
  };
  EXPECT_EQ(cut(size - 1), stopped(size, size - 1));
  EXPECT_EQ(cut(8 + header - 1), stopped(8 + header, 8 + header - 1));
  EXPECT_EQ(
      cut(7),
      "@/model.safetensors: header length: expected 8 bytes at offset 0, found 7 before the end");
  EXPECT_EQ(cut(0), "@/model.safetensors: expected a file with content, found 0 bytes");
}

TEST_F(BadCheckpoint, EveryTruncationOfTheHeaderIsAnError) {
  std::ifstream in(path("model.safetensors"), std::ios::binary);
  uint64_t header = 0;
  in.read(reinterpret_cast<char*>(&header), sizeof header);
  for (size_t size = 8 + header + 4; size-- > 0;) {
    fs::resize_file(path("model.safetensors"), size);
    ASSERT_EQ(error(ErrorKind::format).rfind("@/model.safetensors: ", 0), 0u) << size;
  }
}

// ---- config.json ----

TEST_F(BadCheckpoint, ConfigIsNoJson) {
  write("config.json", "{\"vocab_size\": ");
  EXPECT_EQ(error(ErrorKind::format),
            "@/config.json: line 1, column 16: expected valid JSON, found the end of the text");
  write("config.json", "[1, 2]");
  EXPECT_EQ(error(ErrorKind::format), "@/config.json: expected a JSON object, found an array");
  write("config.json", "");
  EXPECT_EQ(error(ErrorKind::format),
            "@/config.json: line 1, column 1: expected valid JSON, found the end of the text");
}

TEST_F(BadCheckpoint, NotANumber) {
  config([](Json& j) { j["rms_norm_eps"] = 7; });
  std::string text = read_text(path("config.json"));
  write("config.json", text.replace(text.find("\"rms_norm_eps\":7") + 15, 1, "NaN"));
  EXPECT_EQ(error(ErrorKind::format),
            "@/config.json: rms_norm_eps: expected a number in 0.0..1.0, found NaN");
  write("config.json", "{\"rms_norm_eps\": 1e999}");
  EXPECT_EQ(
      error(ErrorKind::format),
      "@/config.json: line 1, column 22: expected a number that fits a double, found '1e999'");
}

TEST_F(BadCheckpoint, UnknownArchitecture) {
  const std::string known =
      "GemmaForCausalLM, Gemma2ForCausalLM, Gemma3ForCausalLM, Gemma3ForConditionalGeneration, "
      "Gemma3nForCausalLM, Gemma3nForConditionalGeneration, Gemma4ForCausalLM, "
      "Gemma4ForConditionalGeneration, GPT2LMHeadModel, GPTNeoXForCausalLM, GptOssForCausalLM, "
      "GraniteForCausalLM, GraniteMoeHybridForCausalLM, GraniteMoeForCausalLM, Lfm2ForCausalLM, "
      "Lfm2MoeForCausalLM, LlamaForCausalLM, MistralForCausalLM, MixtralForCausalLM, "
      "Olmo2ForCausalLM, Olmo3ForCausalLM, OlmoeForCausalLM, Phi3ForCausalLM, Qwen2ForCausalLM, "
      "Qwen3ForCausalLM, Qwen3_5ForCausalLM, Qwen3_5ForConditionalGeneration, "
      "Qwen3_5MoeForCausalLM, Qwen3_5MoeForConditionalGeneration, Qwen3MoeForCausalLM, "
      "Qwen3NextForCausalLM, SmolLM3ForCausalLM";
  EXPECT_EQ(
      config_error(ErrorKind::unsupported, [](Json& j) { j["architectures"] = {"BertModel"}; }),
      "@/config.json: architectures: expected one of " + known + ", found BertModel");
  EXPECT_EQ(config_error(ErrorKind::unsupported,
                         [](Json& j) {
                           j.erase("architectures");
                           j["model_type"] = "bert";
                         }),
            "@/config.json: model_type: expected one of " + known + ", found bert");
  EXPECT_EQ(config_error(ErrorKind::unsupported,
                         [](Json& j) {
                           j.erase("architectures");
                           j.erase("model_type");
                         }),
            "@/config.json: model_type: expected one of " + known + ", found nothing");
}

TEST_F(BadCheckpoint, TwoFamilies) {
  EXPECT_EQ(config_error(ErrorKind::unsupported, [](Json& j) { j["model_type"] = "mistral"; }),
            "@/config.json: model_type: expected llama, or other architectures than "
            "LlamaForCausalLM, found mistral");
  config([](Json& j) { j["model_type"] = "of_no_family"; });
  EXPECT_NO_THROW(Model::load(directory_.path(), 1));
}

TEST_F(BadCheckpoint, NoDecoder) {
  const std::string fault =
      "is_causal: expected true: stet runs decoders, whose tokens attend to earlier ones alone, "
      "found ";
  for (const auto& [value, found] :
       {std::pair<Json, const char*>(false, "false"), {nullptr, "null"}})
    EXPECT_EQ(
        config_error(ErrorKind::unsupported, [value = value](Json& j) { j["is_causal"] = value; }),
        "@/config.json: " + fault + found);
  EXPECT_EQ(config_error(ErrorKind::unsupported,
                         [](Json& j) {
                           j["text_config"] = {{"is_causal", false}};
                         }),
            "@/config.json: text_config." + fault + "false");
  config([](Json& j) { j["is_causal"] = true; });
  EXPECT_NO_THROW(Model::load(directory_.path(), 1));
}

TEST_F(BadGpt2, NoDecoder) {
  EXPECT_EQ(config_error(ErrorKind::unsupported, [](Json& j) { j["is_causal"] = false; }),
            "@/config.json: is_causal: expected true: stet runs decoders, whose tokens attend to "
            "earlier ones alone, found false");
}

const Json kExceptions = {{"1", {{"sliding_window", 3}}}};

TEST_F(BadCheckpoint, ExceptionsOfSingleLayers) {
  EXPECT_EQ(
      config_error(ErrorKind::unsupported, [](Json& j) { j["per_layer_config"] = kExceptions; }),
      "@/config.json: per_layer_config: expected nothing: layers of this family have one shape, "
      "found {\"1\":{\"sliding_window\":3}}");
  for (const Json& none : {Json(), Json::object()}) {
    config([&](Json& j) { j["per_layer_config"] = none; });
    EXPECT_NO_THROW(Model::load(directory_.path(), 1));
  }
}

TEST_F(BadGpt2, ExceptionsOfSingleLayers) {
  EXPECT_EQ(
      config_error(ErrorKind::unsupported, [](Json& j) { j["per_layer_config"] = kExceptions; }),
      "@/config.json: per_layer_config: expected nothing: layers of this family have one shape, "
      "found {\"1\":{\"sliding_window\":3}}");
}

TEST_F(BadGemma4, NoDecoder) {
  for (const auto& [value, found] :
       {std::pair<Json, const char*>(true, "true"), {"all", "\"all\""}})
    EXPECT_EQ(config_error(ErrorKind::unsupported,
                           [value = value](Json& j) { j["use_bidirectional_attention"] = value; }),
              std::string("@/config.json: use_bidirectional_attention: expected null or false or "
                          "\"vision\", found ") +
                  found);
  for (const Json& none : {Json(), Json(false), Json("vision")}) {
    config([&](Json& j) { j["use_bidirectional_attention"] = none; });
    EXPECT_NO_THROW(Model::load(directory_.path(), 1));
  }
}

TEST_F(BadGemma4, ExceptionsOfSingleLayers) {
  const auto fault = [&](ErrorKind kind, const char* layer, const Json& fields) {
    return config_error(kind, [&](Json& j) {
      const Json full = {{"head_dim", 32}, {"num_key_value_heads", 1}};
      j["per_layer_config"] = {{"2", full}, {"5", full}};
      j["per_layer_config"][layer] = fields;
    });
  };
  EXPECT_EQ(fault(ErrorKind::unsupported, "0", {{"sliding_window", 3}}),
            "@/config.json: per_layer_config.0.sliding_window: the field is not supported for "
            "single layers; only head_dim and num_key_value_heads are");
  EXPECT_EQ(fault(ErrorKind::format, "6", Json::object()),
            "@/config.json: per_layer_config.6: expected the number of a layer, 0..5, found an "
            "object");
}

TEST_F(BadCheckpoint, WeightsOfOtherPrograms) {
  const std::string fault =
      "quantization_config.quant_method: weights quantized by gptq are not supported; take the "
      "checkpoint that they were made from, with --compute q8 or q4, or the model as a GGUF file";
  const Json gptq = {{"quant_method", "gptq"}}, none = Json::object();
  const auto found = [&](const Json& top, const Json& nested) {
    return config_error(ErrorKind::unsupported, [&](Json& j) {
      j["quantization_config"] = top;
      j["text_config"] = {{"quantization_config", nested}};
    });
  };
  EXPECT_EQ(found(gptq, none), "@/config.json: " + fault);
  EXPECT_EQ(found(none, gptq), "@/config.json: text_config." + fault);
  EXPECT_EQ(found(nullptr, gptq), "@/config.json: text_config." + fault);
  EXPECT_EQ(field_error("quantization_config", "gptq"),
            "@/config.json: quantization_config: expected an object, found \"gptq\"");
}

TEST_F(BadCheckpoint, AbsurdSizes) {
  EXPECT_EQ(field_error("num_attention_heads", 0),
            "@/config.json: num_attention_heads: expected an integer in 1..1024, found 0");
  EXPECT_EQ(
      field_error("num_hidden_layers", int64_t{1} << 40),
      "@/config.json: num_hidden_layers: expected an integer in 1..1024, found 1099511627776");
  EXPECT_EQ(field_error("vocab_size", -1),
            "@/config.json: vocab_size: expected an integer in 1..1048576, found -1");
  EXPECT_EQ(field_error("vocab_size", 1e300),
            "@/config.json: vocab_size: expected an integer in 1..1048576, found 1e+300");
  EXPECT_EQ(field_error("hidden_size", nullptr),
            "@/config.json: hidden_size: expected an integer in 1..1048576, found nothing");
  EXPECT_EQ(field_error("hidden_size", 64.5),
            "@/config.json: hidden_size: expected an integer in 1..1048576, found 64.5");
  EXPECT_EQ(field_error("intermediate_size", "176"),
            "@/config.json: intermediate_size: expected an integer in 1..1048576, found \"176\"");
  EXPECT_EQ(field_error("max_position_embeddings", 0),
            "@/config.json: max_position_embeddings: expected an integer in 1..16777216, found 0");
  EXPECT_EQ(field_error("head_dim", 7),
            "@/config.json: head_dim: expected an even number, found 7");
  EXPECT_EQ(
      field_error("num_key_value_heads", 3),
      "@/config.json: num_key_value_heads: expected a divisor of num_attention_heads 8, found 3");
  EXPECT_EQ(field_error("num_key_value_heads", 9),
            "@/config.json: num_key_value_heads: expected an integer in 1..8, found 9");
  EXPECT_EQ(field_error("hidden_size", 63),
            "@/config.json: hidden_size: expected a multiple of num_attention_heads 8, found 63");
}

TEST_F(BadCheckpoint, UnknownRopeType) {
  const char* const expected =
      "@/config.json: rope_scaling.rope_type: expected default, linear, llama3, yarn, longrope or "
      "proportional, found dynamic";
  EXPECT_EQ(config_error(ErrorKind::unsupported,
                         [](Json& j) { j["rope_scaling"]["rope_type"] = "dynamic"; }),
            expected);
  const auto yarn = [&](const char* field, const Json& value) {
    return [=](Json& j) {
      j["rope_scaling"]["rope_type"] = "yarn";
      j["rope_scaling"][field] = value;
    };
  };
  EXPECT_EQ(config_error(ErrorKind::format, yarn("beta_fast", 1)),
            "@/config.json: rope_scaling.beta_fast: expected a number above beta_slow, found 1");
  EXPECT_EQ(config_error(ErrorKind::format, yarn("original_max_position_embeddings", 0)),
            "@/config.json: rope_scaling.original_max_position_embeddings: expected a number in "
            "1.0..1000000000.0, found 0");
  EXPECT_EQ(config_error(ErrorKind::unsupported, yarn("mscale", 0.7)),
            "@/config.json: rope_scaling.mscale: expected mscale and mscale_all_dim, or neither, "
            "found 0.7");
  EXPECT_EQ(
      config_error(ErrorKind::format, [](Json& j) { j["rope_scaling"].erase("factor"); }),
      "@/config.json: rope_scaling.factor: expected a number in 1e-06..1000000.0, found nothing");
  EXPECT_EQ(
      config_error(ErrorKind::format, [](Json& j) { j["rope_scaling"]["high_freq_factor"] = 0.5; }),
      "@/config.json: rope_scaling.high_freq_factor: expected a number above low_freq_factor, "
      "found 0.5");
  EXPECT_EQ(field_error("rope_theta", 0),
            "@/config.json: rope_theta: expected a number in 1.0..1000000000000.0, found 0");
}

TEST_F(BadCheckpoint, UnknownActivation) {
  EXPECT_EQ(config_error(ErrorKind::unsupported, [](Json& j) { j["hidden_act"] = "relu"; }),
            "@/config.json: hidden_act: expected silu, found relu");
}

// No token has such an id, so that it ends nothing.
TEST_F(BadCheckpoint, StopTokensOutsideTheVocabulary) {
  const auto found = [&](const Json& ids) {
    config([&](Json& j) { j["eos_token_id"] = ids; });
    return Model::load(directory_.path(), 1)->generation().eos_ids;
  };
  EXPECT_EQ(found(-1), std::vector<int32_t>());
  EXPECT_EQ(found({1, -1, 320, 319}), (std::vector<int32_t>{1, 319}));
  write("generation_config.json", "{\"eos_token_id\": [2, 999]}");
  EXPECT_EQ(found(1), std::vector<int32_t>{2});
  write("generation_config.json", "{\"eos_token_id\": 999}");
  EXPECT_EQ(found(1), std::vector<int32_t>{1});
  EXPECT_EQ(field_error("eos_token_id", {1, nullptr}),
            "@/config.json: eos_token_id[1]: expected an integer in "
            "-2147483648..4294967295, found null");
}

TEST_F(BadGemma, LayerTypes) {
  EXPECT_EQ(field_error("layer_types", {"full_attention", "sliding_attention"}),
            "@/config.json: layer_types: expected one entry for each of 7 layers, found an array");
  EXPECT_EQ(config_error(ErrorKind::unsupported,
                         [](Json& j) {
                           j["layer_types"] = std::vector<std::string>(7, "chunked_attention");
                         }),
            "@/config.json: layer_types: expected sliding_attention or full_attention, found "
            "chunked_attention");
  EXPECT_EQ(field_error("sliding_window", 0),
            "@/config.json: sliding_window: expected an integer in 1..4294967296, found 0");
  EXPECT_EQ(field_error("sliding_window_pattern", 0),
            "@/config.json: sliding_window_pattern: expected an integer in 1..1024, found 0");
}

// The multimodal layout names stop tokens at the top or in the text part only.
TEST_F(BadGemma, StopTokensOfANestedConfig) {
  const Json text = {{"model_type", "gemma3_text"}, {"eos_token_id", 3}};
  Json whole = {{"architectures", {"Gemma3ForConditionalGeneration"}}, {"text_config", text}};
  EXPECT_EQ(parse_model_config(whole.dump(), "config.json").eos_ids, std::vector<int32_t>{3});
  whole["eos_token_id"] = {1, 106};
  EXPECT_EQ(parse_model_config(whole.dump(), "config.json").eos_ids,
            (std::vector<int32_t>{1, 106}));
}

// ---- generation_config.json ----

TEST_F(BadCheckpoint, GenerationConfig) {
  const auto generation = [&](const std::string& text) {
    write("generation_config.json", text);
    return error(ErrorKind::format);
  };
  const std::string file = "@/generation_config.json: ";
  EXPECT_EQ(generation("{\"temperature\": -1}"),
            file + "temperature: expected a number in 0.0..1000000.0, found -1");
  EXPECT_EQ(generation("{\"top_p\": 1.5}"),
            file + "top_p: expected a number in 0.0..1.0, found 1.5");
  EXPECT_EQ(generation("{\"top_k\": -3}"),
            file + "top_k: expected an integer in 0..2147483648, found -3");
  EXPECT_EQ(generation("{\"repetition_penalty\": 0}"),
            file + "repetition_penalty: expected a number in 1e-06..1000000.0, found 0");
  EXPECT_EQ(generation("{\"do_sample\": 1}"), file + "do_sample: expected true or false, found 1");
  EXPECT_EQ(generation("{\"eos_token_id\": [2, true]}"),
            file +
                "eos_token_id[1]: expected an integer in "
                "-2147483648..4294967295, found true");
  EXPECT_EQ(generation("nonsense"),
            file + "line 1, column 2: expected valid JSON, found 'no': invalid literal");
}

TEST_F(BadCheckpoint, GenerationConfigThatIsABrokenLink) {
  fs::create_symlink("nowhere.json", path("generation_config.json"));
  EXPECT_EQ(error(ErrorKind::io),
            "@/generation_config.json: cannot be read: No such file or directory");
}

// Settings that no part of stet has, for `stet inspect`.
TEST_F(BadCheckpoint, SettingsThatStetDoesNotHave) {
  using Names = std::vector<std::string>;
  const auto ignored = [&] { return Model::load(directory_.path(), 1)->generation().ignored; };
  EXPECT_EQ(ignored(), Names());
  config([](Json& j) {
    j.update({{"do_sample", true},
              {"temperature", 0.5},
              {"top_k", 50},
              {"num_beams", 4},
              {"max_length", 20},
              {"suppress_tokens", {3}},
              {"bad_words_ids", nullptr}});
  });
  EXPECT_EQ(ignored(), (Names{"do_sample", "temperature", "num_beams", "suppress_tokens"}));
  config([](Json& j) {
    j.update({{"top_k", "many"}, {"do_sample", false}, {"max_length", 20.0}});
  });
  EXPECT_EQ(ignored(), Names{"top_k"});
  write("generation_config.json", "{}");
  EXPECT_EQ(ignored(), Names());
  write("generation_config.json",
        R"({"max_new_tokens": 3, "max_length": 99, "max_time": 1.5, "dola_layers": "high",
            "forced_decoder_ids": [[1, 2]], "force_words_ids": [[3]], "renormalize_logits": true,
            "token_healing": true, "num_return_sequences": 2})");
  EXPECT_EQ(ignored(), (Names{"max_length", "num_return_sequences", "dola_layers",
                              "force_words_ids", "forced_decoder_ids", "max_new_tokens", "max_time",
                              "renormalize_logits", "token_healing"}));
  write("generation_config.json",
        R"({"max_length": 20, "renormalize_logits": false, "token_healing": false,
            "num_return_sequences": 1})");
  EXPECT_EQ(ignored(), Names());
}

// ---- tensors ----

TEST_F(BadCheckpoint, TensorsOfGptq) {
  tensors([](Tensor& t) {
    if (t.spec.name == "model.layers.0.self_attn.q_proj.weight")
      t.spec.name = "model.layers.0.self_attn.q_proj.qweight";
  });
  EXPECT_EQ(
      error(ErrorKind::unsupported),
      "@/model.safetensors: model.layers.0.self_attn.q_proj.qweight: weights quantized by GPTQ "
      "or AWQ are not supported; take the checkpoint that they were made from, with --compute "
      "q8 or q4, or the model as a GGUF file");
}

TEST_F(BadCheckpoint, MissingTensor) {
  tensors([](Tensor& t) {
    if (t.spec.name == "model.layers.2.mlp.up_proj.weight") t.spec.name.clear();
  });
  EXPECT_EQ(error(ErrorKind::format),
            "@/model.safetensors: model.layers.2.mlp.up_proj.weight: expected F32, BF16 or F16 "
            "[176, 64], found nothing");
}

// Checkpoints that were saved from a model without its head have no prefix.
TEST_F(BadCheckpoint, OtherPrefixes) {
  const auto renamed = [&](const std::string& prefix, const std::string& head) {
    tensors([&](Tensor& t) {
      const bool inside = t.spec.name.starts_with("model.");
      t.spec.name = inside ? prefix + t.spec.name.substr(6) : head + t.spec.name;
    });
  };
  const std::string fault =
      "@/model.safetensors: model.embed_tokens.weight: the tensor is missing; the file has ";
  renamed("", "");
  EXPECT_EQ(Model::load(directory_.path(), 1)->fingerprints(),
            Model::load(data_path("models/llama31-tiny"), 1)->fingerprints());
  renamed("_orig_mod.model.", "_orig_mod.");
  EXPECT_EQ(error(ErrorKind::format),
            fault + "_orig_mod.model.embed_tokens.weight: take \"_orig_mod.\" off all names");
  renamed("a.", "");
  EXPECT_EQ(error(ErrorKind::format), fault + "a.embed_tokens.weight: take \"a.\" off all names");
}

TEST_F(BadCheckpoint, MissingEmbeddingsAndHead) {
  tensors([](Tensor& t) {
    if (t.spec.name == "lm_head.weight") t.spec.name.clear();
  });
  EXPECT_EQ(
      error(ErrorKind::format),
      "@/model.safetensors: lm_head.weight: expected F32, BF16 or F16 [320, 64], found nothing");
  tensors([](Tensor& t) {
    if (t.spec.name == "model.embed_tokens.weight") t.spec.name.clear();
  });
  EXPECT_EQ(error(ErrorKind::format),
            "@/model.safetensors: model.embed_tokens.weight: the tensor is missing");
}

TEST_F(BadCheckpoint, WrongShape) {
  tensors([](Tensor& t) {
    if (t.spec.name == "model.layers.0.self_attn.k_proj.weight")
      std::swap(t.spec.shape[0], t.spec.shape[1]);
  });
  EXPECT_EQ(error(ErrorKind::mismatch),
            "@/model.safetensors: model.layers.0.self_attn.k_proj.weight: expected F32, BF16 or "
            "F16 [16, 64], "
            "found F32 [64, 16]");
}

// A config with more layers than the weights is refused at the first missing tensor.
TEST_F(BadCheckpoint, ConfigWithMoreLayersThanTheWeights) {
  EXPECT_EQ(field_error("num_hidden_layers", 1024),
            "@/model.safetensors: model.layers.4.self_attn.q_proj.weight: expected F32, BF16 or "
            "F16 [64, 64], found nothing");
}

TEST_F(BadCheckpoint, WrongDtype) {
  tensors([](Tensor& t) {
    if (t.spec.name != "model.norm.weight") return;
    t.spec.dtype = DType::i64;
    t.bytes.resize(64 * 8);
  });
  EXPECT_EQ(
      error(ErrorKind::unsupported),
      "@/model.safetensors: model.norm.weight: expected F32, BF16 or F16 [64], found I64 [64]");
}

// ---- families ----

// A field of the config and a tensor of each family, with the errors for wrong values.
struct FamilyCase {
  std::string name, field;
  Json value;
  std::string config_error;
  std::string tensor, shape,
      swapped;  // errors if the tensor is missing, or has swapped or doubled dimensions
};
void PrintTo(const FamilyCase& c, std::ostream* out) { *out << c.name << " " << c.field; }

class BadFamily : public BadCheckpoint, public testing::WithParamInterface<FamilyCase> {
 protected:
  BadFamily() : BadCheckpoint(GetParam().name) {}
};

TEST_P(BadFamily, ConfigAndTensorsAreChecked) {
  const FamilyCase& c = GetParam();
  EXPECT_EQ(config_error(ErrorKind::unsupported, [&](Json& j) { j[c.field] = c.value; }),
            "@/config.json: " + c.field + ": expected " + c.config_error);
  config([](Json&) {});
  tensors([&](Tensor& t) {
    if (t.spec.name == c.tensor) t.spec.name.clear();
  });
  const std::string expected =
      "@/model.safetensors: " + c.tensor + ": expected F32, BF16 or F16 " + c.shape + ", found ";
  EXPECT_EQ(error(ErrorKind::format), expected + "nothing");
  std::string dtype;
  tensors([&](Tensor& t) {
    if (t.spec.name != c.tensor) return;
    dtype = dtype_name(t.spec.dtype);
    if (t.spec.shape.size() == 1) {
      t.spec.shape[0] *= 2;
      t.bytes.resize(t.bytes.size() * 2);
    } else {
      std::swap(t.spec.shape[0], t.spec.shape[1]);
    }
  });
  EXPECT_EQ(error(ErrorKind::mismatch), expected + dtype + " " + c.swapped);
}

INSTANTIATE_TEST_SUITE_P(
    Families, BadFamily,
    testing::Values(
        FamilyCase{"gpt2-tiny", "activation_function", "relu",
                   "gelu_new or gelu_pytorch_tanh, found relu", "h.1.attn.c_attn.weight",
                   "[64, 192]", "[192, 64]"},
        FamilyCase{"gpt2-tiny", "scale_attn_by_inverse_layer_idx", true, "false, found true",
                   "wpe.weight", "[128, 64]", "[64, 128]"},
        FamilyCase{"gpt2-tiny", "reorder_and_upcast_attn", true, "false, found true",
                   "h.2.mlp.c_proj.bias", "[64]", "[128]"},
        FamilyCase{"gpt2-tiny", "add_cross_attention", true, "false, found true", "ln_f.bias",
                   "[64]", "[128]"},
        FamilyCase{"gemma-tiny", "hidden_activation", "gelu", "gelu_pytorch_tanh, found gelu",
                   "model.layers.1.mlp.down_proj.weight", "[64, 160]", "[160, 64]"},
        FamilyCase{"gemma-tiny", "hidden_act", "relu", "gelu_pytorch_tanh or gelu, found relu",
                   "model.layers.2.post_attention_layernorm.weight", "[64]", "[128]"},
        FamilyCase{"gemma2-tiny", "hidden_activation", "relu", "gelu_pytorch_tanh, found relu",
                   "model.layers.3.pre_feedforward_layernorm.weight", "[64]", "[128]"},
        FamilyCase{"gemma2-tiny", "attention_bias", true, "false, found true",
                   "model.layers.0.self_attn.v_proj.weight", "[32, 64]", "[64, 32]"},
        FamilyCase{"mistral-tiny", "hidden_act", "gelu", "silu, found gelu", "lm_head.weight",
                   "[320, 64]", "[64, 320]"},
        FamilyCase{"qwen2-tiny", "hidden_act", "gelu", "silu, found gelu",
                   "model.layers.1.self_attn.k_proj.bias", "[32]", "[64]"},
        FamilyCase{"qwen3-tiny", "hidden_act", "gelu", "silu, found gelu",
                   "model.layers.0.self_attn.q_norm.weight", "[24]", "[48]"},
        FamilyCase{"granite-tiny", "hidden_act", "gelu", "silu, found gelu",
                   "model.layers.0.input_layernorm.weight", "[64]", "[128]"},
        FamilyCase{"olmo2-tiny", "hidden_act", "gelu", "silu, found gelu",
                   "model.layers.0.self_attn.q_norm.weight", "[64]", "[128]"},
        FamilyCase{"olmo3-tiny", "hidden_act", "gelu", "silu, found gelu",
                   "model.layers.3.self_attn.k_norm.weight", "[32]", "[64]"},
        FamilyCase{"smollm3-tiny", "use_sliding_window", true, "false, found true",
                   "model.layers.0.self_attn.k_proj.weight", "[32, 64]", "[64, 32]"},
        FamilyCase{"pythia-tiny", "hidden_act", "gelu_new", "gelu, found gelu_new",
                   "gpt_neox.layers.1.attention.query_key_value.weight", "[192, 64]", "[64, 192]"},
        FamilyCase{"phi3-tiny", "attention_bias", true, "false, found true",
                   "model.layers.2.mlp.gate_up_proj.weight", "[192, 64]", "[64, 192]"}),
    [](const auto& info) { return fmt::format("{}", info.index); });

TEST_F(BadGpt2, Sizes) {
  EXPECT_EQ(field_error("n_head", 5),
            "@/config.json: n_embd: expected an even multiple of n_head 5, found 64");
  EXPECT_EQ(field_error("n_head", 64),
            "@/config.json: n_embd: expected an even multiple of n_head 64, found 64");
  EXPECT_EQ(field_error("n_positions", 0),
            "@/config.json: n_positions: expected an integer in 1..1048576, found 0");
  EXPECT_EQ(field_error("n_inner", -1),
            "@/config.json: n_inner: expected an integer in 1..4194304, found -1");
  EXPECT_EQ(field_error("n_layer", nullptr),
            "@/config.json: n_layer: expected an integer in 1..1024, found nothing");
  EXPECT_EQ(field_error("layer_norm_epsilon", -1),
            "@/config.json: layer_norm_epsilon: expected a number in 0.0..1.0, found -1");
}

TEST_F(BadGpt2, NoEmbeddings) {
  tensors([](Tensor& t) {
    if (t.spec.name == "wte.weight") t.spec.name.clear();
  });
  EXPECT_EQ(error(ErrorKind::format),
            "@/model.safetensors: transformer.wte.weight: the tensor is missing");
}

}  // namespace
}  // namespace stet::test::bad_checkpoint_tests
