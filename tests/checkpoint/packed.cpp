// Packed checkpoints give the bits of their originals, are used in place, and are written
// identically every time. Faulty ones are refused.
#include "stet/checkpoint/packed.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "stet/snapshot/snapshot.hpp"
#include "tests/support/models.hpp"
#include "tests/support/snapshot_image.hpp"

namespace stet::test::packed_tests {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr Contract kContracts[] = {Contract::f32, Contract::q8, Contract::q4};

SessionOptions under(Contract contract) { return options(1, STET_DEFAULT_ISA, 512, contract); }
std::string pack(const std::string& directory, Contract contract, const std::string& to,
                 int threads = 2) {
  pack_checkpoint(*directory_source(directory), contract, to, threads);
  return to;
}

// Copies of a directory's files in memory that begin `offset` bytes after a multiple of 4096.
class OwnedFiles : public FileSource {
 public:
  explicit OwnedFiles(const std::string& directory, size_t offset = 0)
      : FileSource("owned", "owned: ") {
    for (const auto& entry : fs::directory_iterator(directory)) {
      const std::string content = read_text(entry.path());
      File& file = files_[entry.path().filename()];
      file.memory.resize(content.size() + 2 * 4096);
      const size_t to_page = 4096 - reinterpret_cast<uintptr_t>(file.memory.data()) % 4096;
      file.bytes = std::span(file.memory).subspan(to_page + offset, content.size());
      std::memcpy(file.bytes.data(), content.data(), content.size());
    }
  }
  bool has(const std::string& name) const override { return files_.contains(name); }
  std::shared_ptr<const FileBytes> open(const std::string& name) const override {
    return std::make_shared<const FileBytes>(path_of(name), files_.at(name).bytes, nullptr);
  }
  std::string read(const std::string& name, size_t) const override {
    const auto bytes = files_.at(name).bytes;
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  std::span<std::byte> bytes(const std::string& name) { return files_.at(name).bytes; }

 private:
  struct File {
    std::vector<std::byte> memory;
    std::span<std::byte> bytes;
  };
  std::map<std::string, File> files_;
};

// ---------------------------------------------------------------- the same bits

// Returns every checkpoint with every contract that packs it, and "@bf16", which uses packed
// weights that were not rounded.
std::vector<Subject> packed_subjects() {
  std::vector<Subject> all;
  for (const Subject& s : subjects_and_contracts()) {
    if (s.contract == Contract::f32 || s.contract == Contract::bf16) all.push_back(s);
  }
  for (const Subject& s : subjects()) {
    for (const Contract c : {Contract::q8, Contract::q4})
      all.push_back({s.name + "@" + contract_name(c), s.directory, c});
  }
  return all;
}

class Packed : public testing::TestWithParam<Subject> {
 protected:
  const Contract contract = GetParam().contract;
  TemporaryDirectory scratch;
  const std::shared_ptr<const Model> plain = model(GetParam().directory, contract);
  const std::string directory = pack(GetParam().directory, contract, scratch / "packed");
  const std::shared_ptr<const Model> packed = Model::load(directory_source(directory));
};
INSTANTIATE_TEST_SUITE_P(Checkpoints, Packed, testing::ValuesIn(packed_subjects()), subject_name);

TEST_P(Packed, IsTheSameModel) {
  EXPECT_EQ(packed->contract(), contract == Contract::bf16 ? Contract::f32 : contract);
  EXPECT_EQ(packed->contract(), plain->contract());
  EXPECT_EQ(contract_of_weights(*directory_source(directory)), packed->contract());
  EXPECT_EQ(packed->fingerprints(), plain->fingerprints());
  EXPECT_EQ(packed->fingerprints(),
            model(GetParam().directory)->fingerprints());  // fingerprints of the unpacked weights
  EXPECT_EQ(packed->weight_bytes(), plain->weight_bytes());
  EXPECT_EQ(packed->generation().eos_ids, plain->generation().eos_ids);

  const std::vector<int32_t> ids = random_tokens(*plain, 70), one = {ids[7]};
  Session a(plain, under(contract)), b(packed, under(contract));
  EXPECT_TRUE(same_bytes(all_logits(a, ids), all_logits(b, ids)));
  EXPECT_TRUE(same_state(a, b));
  a.append(one);
  b.append(one);
  EXPECT_TRUE(same_state(a, b));
  EXPECT_EQ(digests_of(a).state, digests_of(b).state);

  // Packed and plain weights open each other's snapshots.
  for (const auto& [from, to] : {std::pair(&a, packed), std::pair(&b, plain)}) {
    Snapshot::save(*from, scratch / "s.stet");
    Session back = Snapshot::open(scratch / "s.stet").restore(to, {.session = under(contract)});
    EXPECT_TRUE(same_state(back, *from));
    Session on = from->fork();
    back.append(std::span(ids).first(20));
    on.append(std::span(ids).first(20));
    EXPECT_TRUE(same_state(back, on));
  }
}

TEST(PackedFile, IsWrittenReproducibly) {
  TemporaryDirectory scratch;
  for (const Contract contract : kContracts) {
    const std::string name = contract_name(contract);
    const std::string a = pack(asset_path("pocket-llama3"), contract, scratch / (name + "a"), 1);
    const std::string b = pack(asset_path("pocket-llama3"), contract, scratch / (name + "b"), 3);
    size_t files = 0;
    for (const auto& entry : fs::directory_iterator(a)) {
      const std::string file = entry.path().filename();
      EXPECT_EQ(read_text(a + "/" + file), read_text(b + "/" + file)) << file;
      if (file != kPackedName) {
        EXPECT_EQ(read_text(a + "/" + file), read_text(asset_path("pocket-llama3/") + file));
      }
      ++files;
    }
    EXPECT_EQ(files,
              5u);  // config, generation_config, tokenizer, tokenizer_config and the weights
  }
}

// ---------------------------------------------------------------- in place

class InPlace : public testing::TestWithParam<std::tuple<std::string, Contract>> {
 protected:
  std::vector<float> logits(const std::shared_ptr<const Model>& m) const {
    Session s(m, under(m->contract()));
    return all_logits(s, random_tokens(*m, 5));
  }
  TemporaryDirectory scratch;
  const std::string directory = pack(data_path("models/" + std::get<0>(GetParam())),
                                     std::get<1>(GetParam()), scratch / "packed");
};
INSTANTIATE_TEST_SUITE_P(Checkpoints, InPlace,
                         testing::Combine(testing::Values("llama31-tiny", "gpt2-tiny",
                                                          "gemma3-tiny-bf16", "llama2-tiny-f16"),
                                          testing::ValuesIn(kContracts)),
                         [](const auto& info) {
                           std::string name = std::get<0>(info.param) + "_" +
                                              contract_name(std::get<1>(info.param));
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// A U8 tensor is a matrix. It begins at a page of the file and is followed by zeros up to the next
// page.
TEST_P(InPlace, MatricesBeginAtPages) {
  const std::string path = directory + "/" + kPackedName;
  const std::vector<std::byte> file = read_file(path, size_t{1} << 30);
  const SafeTensors parsed = SafeTensors::parse(file, path);
  size_t matrices = 0, vectors = 0;
  for (const TensorView& t : parsed.tensors()) {
    const auto at = static_cast<size_t>(t.bytes.data() - file.data());
    if (t.dtype != DType::u8) {
      ++vectors;
      continue;
    }
    ++matrices;
    EXPECT_EQ(at % 4096, 0u) << t.name;
    EXPECT_EQ(t.bytes.size() % 4096, 0u) << t.name;
    EXPECT_TRUE(parsed.metadata().contains("matrix:" + t.name));
  }
  const auto m = Model::load(directory);
  const ModelConfig& c = m->config();
  EXPECT_EQ(matrices, static_cast<size_t>(4 * c.layers) + 1 + (c.tied_head ? 0 : 1) +
                          (c.family == "gpt2" ? 1 : 0));
  EXPECT_GT(vectors, static_cast<size_t>(2 * c.layers));
}

// Bytes that change in the file after loading change the logits, because the model reads its
// weights from the file's memory.
TEST_P(InPlace, EveryMatrixIsReadWhereItStands) {
  const auto files = std::make_shared<OwnedFiles>(directory);
  const auto m = Model::load(files);
  const std::vector<float> before = logits(m);
  const std::span<std::byte> file = files->bytes(kPackedName);
  const SafeTensors parsed = SafeTensors::parse(file, "");
  size_t matrices = 0;
  for (const TensorView& t : parsed.tensors()) {
    if (t.dtype != DType::u8) continue;
    const std::span<std::byte> matrix =
        file.subspan(static_cast<size_t>(t.bytes.data() - file.data()), t.bytes.size());
    const std::vector<std::byte> saved(matrix.begin(), matrix.end());
    std::fill(matrix.begin(), matrix.end(), std::byte{0});
    EXPECT_FALSE(same_bytes(logits(m), before)) << t.name;
    std::copy(saved.begin(), saved.end(), matrix.begin());
    ++matrices;
  }
  EXPECT_GT(matrices, 12u);
  EXPECT_TRUE(same_bytes(logits(m), before));
}

// A file that is not aligned for the kernels is copied.
TEST_P(InPlace, AnyAlignmentWillDo) {
  const auto files = std::make_shared<OwnedFiles>(directory, 1);
  EXPECT_TRUE(same_bytes(logits(Model::load(files)), logits(Model::load(directory))));
}

// ---------------------------------------------------------------- snapshots and sessions

class PackedSnapshot : public testing::Test {
 protected:
  Session session(const std::string& directory, Contract contract, size_t tokens = 100) const {
    const auto m = Model::load(directory_source(directory), 1, contract);
    Session s(m, under(contract));
    s.append(random_tokens(*m, tokens));
    return s;
  }
  const std::string llama = data_path("models/llama31-tiny");
  TemporaryDirectory scratch;
  const std::string file = scratch / "s.stet";
};

TEST_F(PackedSnapshot, BringsItsWeightsAlong) {
  for (const Contract contract : kContracts) {
    const std::string directory = pack(llama, contract, scratch / "packed");
    Session s = session(directory, contract);
    SaveOptions save;
    save.weights_files = &s.model().source();
    Snapshot::save(s, file, save);
    fs::remove_all(directory);
    const Snapshot snapshot = Snapshot::open(file);
    ASSERT_NE(snapshot.weights(), nullptr);
    EXPECT_EQ(contract_of_weights(*snapshot.weights()), contract);
    Session back = snapshot.restore(Model::load(snapshot.weights()), {.session = under(contract)});
    EXPECT_TRUE(same_state(back, s));
    back.append(std::vector<int32_t>{1, 2, 3});
    s.append(std::vector<int32_t>{1, 2, 3});
    EXPECT_TRUE(same_state(back, s));
  }
}

TEST_F(PackedSnapshot, ContractsAreKeptApartAndMigrate) {
  for (const Contract from : kContracts) {
    Session s = session(llama, from);
    Snapshot::save(s, file);
    for (const Contract to : kContracts) {
      if (to == from) continue;
      const auto m = Model::load(directory_source(llama), 1, to);
      EXPECT_EQ(error_of([&] { Snapshot::open(file).restore(m, {.session = under(to)}); }),
                fmt::format("mismatch: {}: contract: expected {} version 1, found {} version 1",
                            file, contract_name(from), contract_name(to)));
      Session back = Snapshot::open(file).restore(m, {.session = under(to), .replay = true}),
              straight = session(llama, to);
      EXPECT_TRUE(same_state(back, straight));
      EXPECT_EQ(digests_of(back).state, digests_of(straight).state);
      EXPECT_NE(digests_of(back).state, digests_of(s).state);
    }
  }
}

TEST_F(PackedSnapshot, ASessionTakesTheContractOfItsWeights) {
  for (const Contract weights : kContracts) {
    const std::string directory = pack(llama, weights, scratch / contract_name(weights));
    for (const std::string& from : {llama, directory}) {
      const auto m = Model::load(directory_source(from), 1, weights);
      for (const Contract contract : kContracts) {
        EXPECT_EQ(
            error_of([&] { Session(m, under(contract)); }),
            contract == weights
                ? "no error"
                : fmt::format("unsupported: {}: weights: expected weights for the contract {}, "
                              "found weights for {}",
                              from, contract_name(contract), contract_name(weights)));
      }
      const std::string bf16 = error_of([&] { Session(m, under(Contract::bf16)); });
      EXPECT_TRUE(bf16.starts_with("unsupported: " + from + "/") &&
                  bf16.find(": model.embed_tokens.weight: expected ") != bf16.npos)
          << bf16;
    }
  }
}

// ---------------------------------------------------------------- damage

// A packed file taken apart, which can be changed and put together again. The code follows the
// description of the format and shares none with the library.
struct Image {
  Json header;
  std::string data;

  explicit Image(const std::string& file) {
    const size_t size = get_le(file, 0, 8);
    header = Json::parse(file.substr(8, size));
    data = file.substr(8 + size);
  }
  std::string build() const {
    const std::string text = header.dump();
    return le(text.size(), 8) + text + data;
  }
  Json& metadata() { return header["__metadata__"]; }
};

class PackedDamage : public testing::Test {
 protected:
  using Change = std::function<void(Image&)>;

  std::shared_ptr<const FileSource> source(const std::string& file) const {
    return memory_source(
        {{"config.json", read_text(directory + "/config.json")}, {kPackedName, file}}, "m");
  }
  std::shared_ptr<const FileSource> changed(const Change& change) const {
    Image image(original);
    change(image);
    return source(image.build());
  }
  // Returns the error without "m: packed.safetensors: ".
  static std::string load_error(const std::shared_ptr<const FileSource>& from) {
    std::string text = error_of([&] { Model::load(from, 1); });
    EXPECT_EQ(text.find('\n'), text.npos);
    const size_t at = text.find("m: packed.safetensors: ");
    return at == text.npos ? text : text.erase(at, 23);
  }
  std::string error(const Change& change) const { return load_error(changed(change)); }
  std::string metadata_error(const std::string& key, const std::string& value) const {
    return error([&](Image& i) { i.metadata()[key] = value; });
  }

  TemporaryDirectory scratch;
  const std::string directory =
      pack(data_path("models/llama31-tiny"), Contract::q4, scratch / "packed");
  const std::string original = read_text(directory + "/" + kPackedName);
  const std::string at = "model.layers.0.self_attn.";
  const std::string qkv = at + "q_proj.weight+" + at + "k_proj.weight+" + at + "v_proj.weight",
                    o = at + "o_proj.weight", embeddings = "model.embed_tokens.weight",
                    norm = "model.norm.weight";
};

TEST_F(PackedDamage, TheImageItselfLoads) {
  EXPECT_EQ(error([](Image&) {}), "no error");
  EXPECT_EQ(check_packed(*changed([](Image&) {})), check_packed(*directory_source(directory)));
}

TEST_F(PackedDamage, OtherMetadataIsIgnored) {
  const auto with_more = changed([](Image& i) {
    for (const char* group : {"embeddings", "norms", "attention", "mlp"})
      i.metadata()[std::string("weights:") + group] = "xxh3:00000000000000000000000000000000";
  });
  EXPECT_EQ(Model::load(with_more, 1)->fingerprints(),
            Model::load(data_path("models/llama31-tiny"), 1)->fingerprints());
}

TEST_F(PackedDamage, WrongMetadata) {
  EXPECT_EQ(error([](Image& i) { i.header.erase("__metadata__"); }),
            "unsupported: format: expected stet packed weights, found nothing");
  EXPECT_EQ(metadata_error("format", "pt"),
            "unsupported: format: expected stet packed weights, found pt");
  EXPECT_EQ(metadata_error("version", "2"), "unsupported: version: expected 1, found 2");
  EXPECT_EQ(error([](Image& i) { i.metadata().erase("version"); }),
            "unsupported: version: expected 1, found nothing");
  EXPECT_EQ(metadata_error("contract", "bf16"),
            "unsupported: contract: expected f32, q8, q4 or ggml, found bf16");
  EXPECT_EQ(error([](Image& i) { i.metadata().erase("contract"); }),
            "unsupported: contract: expected f32, q8, q4 or ggml, found nothing");
  EXPECT_EQ(metadata_error("contract", "f32"),
            "format: matrix:" + embeddings +
                ": expected f32, bf16, f16 or mxfp4 for the contract f32, found q8");
  EXPECT_EQ(metadata_error("contract", "q8"),
            "format: matrix:" + qkv + ": expected q8 for the contract q8, found q4");
  EXPECT_EQ(error([](Image& i) { i.metadata().erase("fingerprint:mlp"); }),
            "format: fingerprint:mlp: expected a SHA-256, found nothing");
  EXPECT_EQ(metadata_error("fingerprint:mlp", "sha256:12"),
            "format: fingerprint:mlp: expected a SHA-256, found sha256:12");
  EXPECT_EQ(contract_of_weights(*changed([](Image&) {})), Contract::q4);
  EXPECT_EQ(error_of([&] {
              contract_of_weights(*changed([](Image& i) { i.metadata()["version"] = "0"; }));
            }),
            "unsupported: m: packed.safetensors: version: expected 1, found 0");
}

TEST_F(PackedDamage, WrongMatrixEntries) {
  const std::string d = " xxh3:00000000000000000000000000000000";
  const std::vector<std::string> wrong = {"q4",
                                          "q4 64" + d,
                                          "q4 64 64",
                                          "q9 96 64" + d,
                                          "Q4 96 64" + d,
                                          "q4 0 64" + d,
                                          "q4 96 -64" + d,
                                          "q4 96 64.0" + d,
                                          "q4 96  64" + d,
                                          "q4 96 64" + d + " more",
                                          "q4 96 64" + d + " ",
                                          " q4 96 64" + d,
                                          "q4 268435457 64" + d,
                                          "q4 96 18446744073709551680" + d};
  for (const std::string& entry : wrong) {
    EXPECT_EQ(metadata_error("matrix:" + qkv, entry),
              "format: matrix:" + qkv + ": expected TYPE ROWS COLUMNS DIGEST, found " + entry);
  }
  EXPECT_EQ(metadata_error("matrix:" + qkv, ""),
            "format: matrix:" + qkv + ": expected TYPE ROWS COLUMNS DIGEST, found nothing");
  EXPECT_EQ(error([&](Image& i) { i.metadata().erase("matrix:" + qkv); }),
            "format: matrix:" + qkv + ": expected TYPE ROWS COLUMNS DIGEST, found nothing");
  for (const char* type : {"f32", "bf16", "f16", "q8"}) {
    EXPECT_EQ(metadata_error("matrix:" + qkv, type + (" 96 64" + d)),
              "format: matrix:" + qkv + ": expected q4 for the contract q4, found " + type);
  }
  EXPECT_EQ(metadata_error("matrix:" + qkv, "q4 97 64" + d),
            "mismatch: " + qkv + ": expected [96, 64], found [97, 64]");
  EXPECT_EQ(metadata_error("matrix:" + qkv, "q4 96 65" + d),
            "mismatch: " + qkv + ": expected [96, 64], found [96, 65]");
}

TEST_F(PackedDamage, WrongTensors) {
  // 96 rows of 64 columns: 6 blocks of one strip of 576 bytes, padded to a page.
  const std::string expected = ": expected U8 [4096], found ";
  const auto tensor_error = [&](const char* dtype, const Json& shape) {
    return error([&](Image& i) {
      i.header[qkv]["dtype"] = dtype;
      i.header[qkv]["shape"] = shape;
    });
  };
  EXPECT_EQ(tensor_error("I8", {4096}), "format: " + qkv + expected + "I8 [4096]");
  EXPECT_EQ(tensor_error("F32", {1024}), "format: " + qkv + expected + "F32 [1024]");
  EXPECT_EQ(tensor_error("U8", {64, 64}), "format: " + qkv + expected + "U8 [64, 64]");
  EXPECT_EQ(
      error([&](Image& i) {  // its last bytes belong to another tensor
        Json& t = i.header[qkv];
        const int begin = t["data_offsets"][0], end = t["data_offsets"][1];
        t["shape"] = {4000};
        t["data_offsets"] = {begin, begin + 4000};
        i.header["z"] = {{"dtype", "U8"}, {"shape", {96}}, {"data_offsets", {begin + 4000, end}}};
      }),
      "format: " + qkv + expected + "U8 [4000]");
  const auto renamed = [&](const std::string& name) {
    return error([&](Image& i) {
      i.header["other"] = i.header[name];
      i.header.erase(name);
    });
  };
  EXPECT_EQ(renamed(qkv), "format: " + qkv + expected + "nothing");
  EXPECT_EQ(renamed(embeddings), "format: " + embeddings + ": the tensor is missing");
  EXPECT_EQ(renamed(norm), "format: " + norm + ": expected F32, BF16 or F16 [64], found nothing");
  EXPECT_EQ(error([&](Image& i) {
              i.header[norm]["shape"] = {8, 8};
            }),
            "mismatch: " + norm + ": expected F32, BF16 or F16 [64], found F32 [8, 8]");
}

TEST_F(PackedDamage, ATruncatedFileIsRefused) {
  for (size_t size = 0; size < original.size(); size += size < 64 ? 1 : original.size() / 97) {
    const std::string text = load_error(source(original.substr(0, size)));
    EXPECT_TRUE(text.starts_with("format: ") &&
                (text.find(": expected ") != text.npos ||
                 text.find(": the file is truncated: ") != text.npos))
        << size << ": " << text;
  }
  EXPECT_NE(load_error(source(original.substr(0, original.size() - 1))), "no error");
  EXPECT_NE(load_error(source(original + "x")), "no error");
}

// Any flipped bit of the header gives an Error or a usable model.
TEST_F(PackedDamage, FlippedBitsOfTheHeaderAreHarmless) {
  std::mt19937 random(11);
  const size_t size = original.find("  ", 8);  // length of the JSON; spaces follow
  size_t loaded = 0;
  for (int i = 0; i < 400; ++i) {
    std::string file = original;
    const size_t byte = random() % size;
    file[byte] = static_cast<char>(file[byte] ^ (1 << random() % 8));
    const auto from = source(file);
    try {
      const auto m = Model::load(from, 1);
      Session s(m, under(m->contract()));
      s.append(std::vector<int32_t>{1, 2, 3});
      ++loaded;
    } catch (const Error&) {
    }
    error_of([&] { check_packed(*from, 1); });
    error_of([&] { contract_of_weights(*from); });
  }
  EXPECT_LT(loaded, 300u);  // mostly with a changed digest: loading checks none
}

TEST_F(PackedDamage, CheckFindsAFlippedBitOfEveryTensor) {
  const Image image(original);
  const size_t front = original.size() - image.data.size();
  size_t bytes = 0;
  for (const auto& [name, t] : image.header.items()) {
    if (name == "__metadata__") continue;
    const bool is_matrix = t["dtype"] == "U8";
    const size_t begin = t["data_offsets"][0], end = t["data_offsets"][1];
    size_t used = end - begin;
    if (is_matrix) {
      std::istringstream entry(image.header["__metadata__"]["matrix:" + name].get<std::string>());
      std::string type;
      size_t rows = 0, columns = 0;
      entry >> type >> rows >> columns;
      used = (rows + 15) / 16 * ((columns + 63) / 64) * (type == "q8" ? 1088 : 576);
    }
    bytes += used;
    for (const size_t where : {begin, begin + used / 2, begin + used - 1}) {
      std::string file = original;
      file[front + where] = static_cast<char>(file[front + where] ^ 16);
      const std::string text = error_of([&] { check_packed(*source(file), 2); });
      EXPECT_TRUE(text.starts_with("format: m: packed.safetensors: " + name + ": expected xxh3:"))
          << text;
    }
  }
  EXPECT_EQ(check_packed(*source(original)), bytes);
  EXPECT_EQ(check_packed(*directory_source(directory)), bytes);
}

TEST_F(PackedDamage, CheckRefusesMissingAndMalformedDigests) {
  const auto check = [&](const Change& change) {
    return error_of([&] { check_packed(*changed(change), 1); });
  };
  const std::string in = "format: m: packed.safetensors: ",
                    d = " xxh3:00000000000000000000000000000000";
  EXPECT_EQ(check([&](Image& i) { i.metadata().erase("matrix:" + o); }),
            in + "matrix:" + o + ": expected TYPE ROWS COLUMNS DIGEST, found nothing");
  EXPECT_EQ(check([&](Image& i) { i.metadata().erase("vector:" + norm); }),
            in + "vector:" + norm + ": expected a digest, found nothing");
  EXPECT_EQ(check([&](Image& i) { i.metadata()["matrix:" + o] = "f32 268435456 268435456" + d; }),
            in + o + ": expected U8 [288230376151711744], found U8 [4096]");
  EXPECT_EQ(error_of([&] { check_packed(*directory_source(data_path("models/llama31-tiny"))); }),
            "unsupported: " + data_path("models/llama31-tiny") +
                ": packed.safetensors: the checkpoint has no packed weights");
}

// ---------------------------------------------------------------- packing that fails

// The files of a checkpoint, one of which can be inspected but not copied.
class BrokenFiles : public FileSource {
 public:
  BrokenFiles(const std::string& directory, std::string broken)
      : FileSource(directory, directory + "/"),
        files_(directory_source(directory)),
        broken_(std::move(broken)) {}
  bool has(const std::string& name) const override { return files_->has(name); }
  std::string read(const std::string& name, size_t limit) const override {
    return files_->read(name, limit);
  }
  std::shared_ptr<const FileBytes> open(const std::string& name) const override {
    if (name == broken_)
      throw Error(ErrorKind::io, path_of(name), "", "", "cannot be read: an error of the disk");
    return files_->open(name);
  }

 private:
  std::shared_ptr<const FileSource> files_;
  std::string broken_;
};

class PackingFails : public testing::Test {
 protected:
  // Packing fails into a missing and into an empty directory, and leaves both as they were.
  void leaves_nothing(const FileSource& source, Contract contract, const std::string& error) const {
    const std::string fresh = scratch / "fresh", empty = scratch / "empty";
    EXPECT_EQ(error_of([&] { pack_checkpoint(source, contract, fresh, 2); }), error);
    EXPECT_FALSE(fs::exists(fresh));
    fs::create_directory(empty);
    EXPECT_EQ(error_of([&] { pack_checkpoint(source, contract, empty, 2); }), error);
    EXPECT_TRUE(fs::exists(empty) && fs::is_empty(empty));
  }
  TemporaryDirectory scratch;
  const std::string llama = data_path("models/llama31-tiny");
};

TEST_F(PackingFails, InTheMiddle) {
  const std::string pocket = asset_path("pocket-llama3");
  for (const char* name : {"tokenizer.json", "generation_config.json", "config.json"}) {
    leaves_nothing(BrokenFiles(pocket, name), Contract::q8,
                   "io: " + pocket + "/" + name + ": cannot be read: an error of the disk");
  }
  // One tensor less than the config asks for; then a weight that is not a number.
  std::string config = read_text(llama + "/config.json");
  const size_t layers = config.find("\"num_hidden_layers\": 4");
  ASSERT_NE(layers, config.npos);
  config.replace(layers, 22, "\"num_hidden_layers\": 5");
  std::string weights = read_text(llama + "/model.safetensors");
  leaves_nothing(*memory_source({{"config.json", config}, {"model.safetensors", weights}}, "m"),
                 Contract::q4,
                 "format: m: model.safetensors: model.layers.4.self_attn.q_proj.weight: expected "
                 "F32, BF16 or F16 [64, 64], found nothing");
  const Golden golden(llama + "/model.safetensors");
  const auto head = static_cast<size_t>(golden.view("lm_head.weight").bytes.data() -
                                        golden.all()[0].bytes.data());
  const float nan = std::nanf("");
  std::memcpy(weights.data() + 8 + get_le(weights, 0, 8) + head, &nan, sizeof nan);
  leaves_nothing(
      *memory_source(
          {{"config.json", read_text(llama + "/config.json")}, {"model.safetensors", weights}},
          "m"),
      Contract::q4,
      "unsupported: m: model.safetensors: lm_head.weight[0, 0]: expected less than 8.32104e+06 in "
      "magnitude for q8, found nan");
}

TEST_F(PackingFails, IntoANonemptyDirectory) {
  const std::string used = scratch / "used";
  fs::create_directory(used);
  write_file(used + "/notes", "mine");
  EXPECT_EQ(error_of([&] { pack(llama, Contract::q8, used); }),
            "io: " + used + ": the directory is not empty; name a new one");
  EXPECT_EQ(error_of([&] { pack(llama, Contract::q8, used + "/notes"); }),
            "io: " + used + "/notes: a file has this name; name a new or an empty directory");
  EXPECT_EQ(
      error_of([&] { pack(llama, Contract::q8, scratch / "no/where"); }),
      "io: " + scratch / "no/where" + ": the directory cannot be made: No such file or directory");
  EXPECT_EQ(read_text(used + "/notes"), "mine");
  EXPECT_EQ(scratch.names(), std::vector<std::string>{"used"});
}

TEST_F(PackingFails, ForAPackedCheckpoint) {
  const std::string packed = pack(llama, Contract::f32, scratch / "packed");
  leaves_nothing(*directory_source(packed), Contract::q8,
                 "unsupported: " + packed +
                     "/packed.safetensors: the weights are packed already; take the checkpoint "
                     "that they were packed from");
}

}  // namespace
}  // namespace stet::test::packed_tests
