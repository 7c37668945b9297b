#include "tests/support/models.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <ostream>
#include <random>
#include <stdexcept>
#include <utility>

#include "stet/files/file.hpp"

namespace stet::test {

std::string data_path(const std::string& name) {
  return std::string(STET_ROOT) + "/tests/data/" + name;
}
std::string asset_path(const std::string& name) {
  return std::string(STET_ROOT) + "/assets/" + name;
}

std::shared_ptr<const Model> model(const std::string& directory, Contract contract) {
  static std::map<std::pair<std::string, Contract>, std::shared_ptr<const Model>> loaded;
  if (contract == Contract::bf16) contract = Contract::f32;
  std::shared_ptr<const Model>& m = loaded[{directory, contract}];
  if (m == nullptr) m = Model::load(directory_source(directory), 0, contract);
  return m;
}

Golden::Golden(const std::string& path)
    : bytes_(read_file(path, size_t{1} << 30)), tensors_(SafeTensors::parse(bytes_, path)) {}

const TensorView& Golden::view(const std::string& name) const {
  const TensorView* v = tensors_.find(name);
  if (v == nullptr) throw std::runtime_error("no golden tensor " + name);
  return *v;
}

std::vector<float> Golden::floats(const std::string& name) const {
  const TensorView& v = view(name);
  if (v.dtype != DType::f32) throw std::runtime_error(name + " is " + v.dtype_text);
  std::vector<float> out(v.bytes.size() / 4);
  std::memcpy(out.data(), v.bytes.data(), v.bytes.size());
  return out;
}

std::vector<int32_t> Golden::ids(const std::string& name) const {
  const TensorView& v = view(name);
  const size_t size = dtype_size(v.dtype);
  std::vector<int32_t> out(v.bytes.size() / size);
  for (size_t i = 0; i < out.size(); ++i) std::memcpy(&out[i], v.bytes.data() + i * size, 4);
  return out;
}

SessionOptions options(int threads, const std::string& isa, int64_t chunk, Contract contract) {
  SessionOptions o;
  o.compute.contract = contract;
  o.compute.threads = threads;
  o.compute.isa = isa;
  o.compute.chunk = chunk;
  return o;
}

std::vector<float> all_logits(Session& session, std::span<const int32_t> ids) {
  std::vector<float> out;
  session.append(ids, [&](int64_t, Rows rows) {
    for (size_t i = 0; i < rows.count; ++i)
      out.insert(out.end(), rows.row(i), rows.row(i) + rows.width);
  });
  return out;
}

int32_t argmax(std::span<const float> x) {
  return static_cast<int32_t>(std::max_element(x.begin(), x.end()) - x.begin());
}

bool same_bytes(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

std::vector<std::byte> kv_bytes(const KvCache& kv) {
  std::vector<std::byte> out;
  const int64_t blocks = (kv.size() + kBlockPositions - 1) / kBlockPositions;
  for (int64_t b = 0; b < blocks; ++b)
    out.insert(out.end(), kv.block(b), kv.block(b) + kv.shape().block_bytes());
  return out;
}

void PrintTo(const Subject& s, std::ostream* out) { *out << s.name; }

std::vector<Subject> subjects() {
  std::vector<Subject> all;
  for (const char* name :
       {"gemma3-tiny",       "gemma3-tiny-bf16",  "gemma3-vision-tiny", "llama31-tiny",
        "llama32-tiny-bf16", "llama2-tiny-f16",   "gpt2-tiny",          "gemma-tiny",
        "gemma2-tiny",       "mistral-tiny",      "qwen2-tiny",         "qwen3-tiny",
        "granite-tiny",      "olmo2-tiny",        "olmo3-tiny",         "smollm3-tiny",
        "pythia-tiny",       "phi3-tiny",         "phi4-tiny",          "qwen3moe-tiny",
        "mixtral-tiny",      "olmoe-tiny",        "gptoss-tiny",        "gptoss-mxfp4-tiny",
        "gemma4-dense-tiny", "gemma4-small-tiny", "gemma4-vl-tiny",     "gemma4-moe-tiny",
        "gemma3n-tiny"}) {
    all.push_back({name, data_path(std::string("models/") + name)});
  }
  for (const char* name : {"pocket-gemma3", "pocket-llama3"})
    all.push_back({name, asset_path(name)});
  return all;
}

std::vector<Subject> subjects_and_contracts() {
  const std::vector<std::pair<Contract, std::vector<std::string>>> others = {
      {Contract::bf16,
       {"gemma3-tiny-bf16", "llama32-tiny-bf16", "qwen2-tiny", "olmo3-tiny", "mixtral-tiny",
        "gemma4-dense-tiny", "pocket-gemma3", "pocket-llama3"}},
      {Contract::q8,
       {"gemma3-tiny", "llama2-tiny-f16", "gpt2-tiny", "granite-tiny", "pythia-tiny",
        "qwen3moe-tiny", "gemma4-small-tiny", "pocket-gemma3", "pocket-llama3"}},
      {Contract::q4,
       {"gemma3-vision-tiny", "llama31-tiny", "gpt2-tiny", "olmoe-tiny", "pocket-gemma3",
        "pocket-llama3"}},
      {Contract::ggml, {"gptoss-mxfp4-tiny"}}};
  std::vector<Subject> all = subjects();
  for (const auto& [contract, names] : others) {
    for (const Subject& subject : subjects()) {
      const bool named = std::find(names.begin(), names.end(), subject.name) != names.end();
      if (named)
        all.push_back({subject.name + "@" + contract_name(contract), subject.directory, contract});
    }
  }
  return all;
}

std::vector<Subject> recurrent_subjects() {
  std::vector<Subject> all;
  const auto add = [&](const std::string& name, Contract contract) {
    const std::string end =
        contract == Contract::f32 ? "" : std::string("@") + contract_name(contract);
    all.push_back({name + end, data_path("models/" + name), contract});
  };
  for (const char* name :
       {"qwen35-tiny", "qwen35-vl-tiny", "qwen35moe-tiny", "qwen35moe-fused-tiny", "qwen3next-tiny",
        "lfm2-tiny", "lfm2moe-tiny", "granite-h-tiny", "granite-hd-tiny", "granite-dense-tiny",
        "qwen35-odd-tiny", "lfm2-odd-tiny", "granite-odd-tiny"})
    add(name, Contract::f32);
  add("qwen35-vl-tiny", Contract::bf16);
  for (const char* name : {"qwen3next-tiny", "lfm2moe-tiny", "granite-h-tiny"})
    add(name, Contract::q8);
  add("qwen35-tiny", Contract::q4);
  return all;
}

std::string subject_name(const testing::TestParamInfo<Subject>& info) {
  std::string name = info.param.name;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c == '-' || c == '@'; }, '_');
  return name;
}

std::vector<int32_t> random_tokens(const Model& m, size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> ids(n);
  for (int32_t& id : ids)
    id = static_cast<int32_t>(random() % static_cast<uint32_t>(m.config().vocab_size));
  return ids;
}

std::vector<int32_t> stepped_ids(int64_t n, int64_t step, int64_t modulus, int64_t first,
                                 int64_t offset) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < n; ++i)
    ids.push_back(static_cast<int32_t>(offset + (first + i * step) % modulus));
  return ids;
}

testing::AssertionResult same_state(Session& a, Session& b) {
  if (a.tokens() != b.tokens()) return testing::AssertionFailure() << "tokens differ";
  a.state(), b.state();  // checks every block of a mapped file
  const std::span<const float> x = a.logits(), y = b.logits();
  if (x.size() != y.size())
    return testing::AssertionFailure() << x.size() << " and " << y.size() << " logits";
  for (size_t i = 0; i < x.size(); ++i) {
    if (std::memcmp(&x[i], &y[i], sizeof x[i]) != 0) {
      return testing::AssertionFailure() << "logit " << i << " is " << x[i] << " and " << y[i];
    }
  }
  const KvShape& shape = a.kv().shape();
  if (!(shape == b.kv().shape()) || a.kv().size() != b.kv().size()) {
    return testing::AssertionFailure()
           << "caches of " << a.kv().size() << " and " << b.kv().size() << " positions";
  }
  for (int64_t block = 0; block * kBlockPositions < a.kv().size(); ++block) {
    const std::byte* p = a.kv().block(block);
    const std::byte* q = b.kv().block(block);
    if (p == q || shape.block_bytes() == 0) continue;
    if (std::memcmp(p, q, shape.block_bytes()) == 0) continue;
    const auto at = std::mismatch(p, p + shape.block_bytes(), q).first - p;
    return testing::AssertionFailure() << "block " << block << " differs from byte " << at << " on";
  }
  return testing::AssertionSuccess();
}

}  // namespace stet::test
