#include "tools/command.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <future>

#include "stet/error.hpp"
#include "stet/file.hpp"

namespace stet::tool {
namespace {

constexpr size_t kPromptLimit = size_t{1} << 30;

bool watched() { return isatty(STDERR_FILENO) != 0; }

// The bundled checkpoint: beside an installed command, or in the source tree.
std::string default_model() {
  std::error_code ignored;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", ignored);
  const std::filesystem::path installed = self.parent_path().parent_path() / "share/stet/assets/pocket-gemma3";
  if (std::filesystem::exists(installed, ignored)) return installed.string();
  return STET_ASSETS "/pocket-gemma3";
}

}  // namespace

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void ModelOptions::add_compute_to(CLI::App& app) {
  ComputeOptions& c = session.compute;
  app.add_option("--threads", c.threads, "threads (0: all processors)")->capture_default_str();
  app.add_option("--isa", c.isa, "portable, avx2 or avx512 (default: the best this CPU has)");
  app.add_option("--compute", compute, "numeric contract: f32")->capture_default_str();
  app.add_option("--gemm", gemm, "own, or blas: OpenBLAS for prompts; its bits depend on shape and threads")->capture_default_str();
  app.add_option("--ctx", session.capacity, "capacity in tokens (0: all that the model allows)")->capture_default_str();
  app.add_option("--chunk", c.chunk, "tokens of a prompt processed at once")->capture_default_str();
}

void ModelOptions::add_to(CLI::App& app) {
  directory = default_model();
  app.add_option("-m,--model", directory, "checkpoint directory (default: the bundled pocket-gemma3)");
  add_compute_to(app);
  app.add_option("--kv", kv, "type of keys and values: f32, bf16 or f16 (default: f32)");
}

SessionOptions ModelOptions::session_options() const {
  if (compute != "f32") throw Error(ErrorKind::unsupported, "", "--compute", "f32", compute);
  if (gemm != "own" && gemm != "blas") throw Error(ErrorKind::argument, "", "--gemm", "own or blas", gemm);
  SessionOptions o = session;
  o.compute.blas = gemm == "blas";
  if (!kv.empty()) o.kv_type = kv_type_of(kv);
  return o;
}

std::shared_ptr<const Model> ModelOptions::load_model() {
  session_options();  // what is wrong with the options is said before a long load
  if (!watched()) return Model::load(directory, session.compute.threads);
  auto loading = std::async(std::launch::async, [&] { return Model::load(directory, session.compute.threads); });
  const double start = seconds();
  bool shown = false;
  while (loading.wait_for(std::chrono::milliseconds(shown ? 250 : 1000)) != std::future_status::ready) {
    fmt::print(stderr, "\rloading {} … {:.0f} s", printable(directory), seconds() - start);
    std::fflush(stderr);
    shown = true;
  }
  if (shown) fmt::print(stderr, "\r\033[K");
  return loading.get();
}

std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& directory) {
  const std::filesystem::path dir = directory;
  if (!std::filesystem::exists(dir / "tokenizer.json") && !std::filesystem::exists(dir / "tokenizer.model")) return nullptr;
  return Tokenizer::load(directory);
}

std::shared_ptr<const Tokenizer> require_tokenizer(const std::string& directory) {
  if (auto tokenizer = load_tokenizer(directory)) return tokenizer;
  throw Error(ErrorKind::io, directory, "tokenizer", "tokenizer.json or tokenizer.model (or use --ids)", "neither");
}

void PromptOptions::add_to(CLI::App& app) {
  app.add_option("-p,--prompt", prompts, "text; given again, it is said after the reply to the one before");
  app.add_option("--prompt-file", prompt_file, "text from a file (- for standard input)");
  app.add_option("--ids", ids, "token ids: 1,2,3");
  app.add_option("--ids-file", ids_file, "token ids: a JSON array in a file");
  app.add_option("--bos", bos, "begin-of-sequence token before the first text: auto, on or off")->capture_default_str();
}

bool PromptOptions::given() const {
  return !prompts.empty() || !prompt_file.empty() || !ids.empty() || !ids_file.empty();
}

Tokenizer::Bos bos_of(const std::string& name) {
  if (name == "auto") return Tokenizer::Bos::automatic;
  if (name == "on") return Tokenizer::Bos::on;
  if (name == "off") return Tokenizer::Bos::off;
  throw Error(ErrorKind::argument, "", "--bos", "auto, on or off", name);
}

std::vector<int32_t> parse_ids(const std::string& text, const std::string& where) {
  std::vector<int32_t> ids;
  const nlohmann::json parsed = nlohmann::json::parse(text, nullptr, false);
  if (!parsed.is_array()) throw Error(ErrorKind::argument, where, "ids", "integers: 1,2,3", text.substr(0, 60));
  for (const nlohmann::json& value : parsed) {
    const std::string field = "ids[" + std::to_string(ids.size()) + "]";
    if (!value.is_number_integer() || value.get<int64_t>() < 0 || value.get<int64_t>() > INT32_MAX ||
        (value.is_number_unsigned() && value.get<uint64_t>() > INT32_MAX)) {
      throw Error(ErrorKind::argument, where, field, "a token id", value.dump());
    }
    ids.push_back(static_cast<int32_t>(value.get<int64_t>()));
  }
  return ids;
}

std::vector<std::vector<int32_t>> PromptOptions::turns(const std::shared_ptr<const Tokenizer>& tokenizer, bool fresh) const {
  std::vector<std::vector<int32_t>> turns;
  if (!ids.empty()) turns.push_back(parse_ids("[" + ids + "]", "--ids"));
  if (!ids_file.empty()) turns.push_back(parse_ids(read_text_file(ids_file, kPromptLimit), ids_file));
  std::vector<std::string> texts = prompts;
  if (!prompt_file.empty()) {
    texts.insert(texts.begin(), read_text_file(prompt_file == "-" ? "/dev/stdin" : prompt_file, kPromptLimit));
  }
  for (const std::string& text : texts) {
    if (tokenizer == nullptr) throw Error(ErrorKind::io, "", "tokenizer", "one in the checkpoint directory (or use --ids)", "none");
    const bool first = fresh && turns.empty();
    turns.push_back(tokenizer->encode(text, first ? bos_of(bos) : Tokenizer::Bos::off));
  }
  return turns;
}

void SamplingOptions::add_to(CLI::App& app) {
  app.add_option("--temperature", temperature, "draw with this temperature (0: greedy)");
  app.add_option("--top-k", top_k, "draw from the k best (0: all)");
  app.add_option("--top-p", top_p, "draw from the best that hold this probability");
  app.add_option("--min-p", min_p, "draw from those at least this likely, relative to the best");
  app.add_option("--typical", typical_p, "draw from the most typical that hold this probability");
  app.add_option("--repetition-penalty", repetition_penalty, "divide the scores of tokens already there");
  app.add_option("--seed", seed, "seed of the draws");
  app.add_flag("--greedy", greedy, "always the best token");
  app.add_flag("--sample", sample, "draw, with the checkpoint's settings where none are given");
  app.add_option("--stop", stop_strings, "end a reply at this text (again for more)");
  app.add_option("--stop-id", stop_ids, "end a reply at this token, in place of the checkpoint's")->delimiter(',');
}

void SamplingOptions::apply(GenerationState& state) const {
  SamplingSettings& s = state.sampling;
  if (temperature || top_k || top_p || min_p || typical_p || sample) s.greedy = false;
  if (temperature && *temperature == 0) s.greedy = true;
  else if (temperature) s.temperature = *temperature;
  if (top_k) s.top_k = *top_k;
  if (top_p) s.top_p = *top_p;
  if (min_p) s.min_p = *min_p;
  if (typical_p) s.typical_p = *typical_p;
  if (repetition_penalty) s.repetition_penalty = *repetition_penalty;
  if (seed) s.seed = *seed;
  if (greedy) s.greedy = true;
  if (!stop_strings.empty()) state.stop_strings = stop_strings;
  if (!stop_ids.empty()) state.stop_ids = stop_ids;
  s.validate("");
}

void prefill(Session& session, std::span<const int32_t> ids) {
  const double start = seconds();
  bool shown = false;
  append_prompt(session, ids, [&](int64_t done) {
    const double t = seconds() - start;
    if (!watched() || (!shown && t < 1)) return;
    const double rate = static_cast<double>(done) / t;
    fmt::print(stderr, "\rprefill {} / {} tokens, {:.0f} tokens/s", done, ids.size(), rate);
    std::fflush(stderr);
    shown = true;
  });
  if (shown) fmt::print(stderr, "\r\033[K");
}

Json digests_json(const StateDigests& d) {
  return {{"tokens", digest_text(d.tokens)}, {"logits", digest_text(d.logits)}, {"kv", digest_text(d.kv)},
          {"state", digest_text(d.state)}};
}

std::string bytes_text(double bytes) {
  const char* const units[] = {"bytes", "KB", "MB", "GB", "TB"};
  size_t unit = 0;
  for (; bytes >= 1000 && unit < 4; ++unit) bytes /= 1000;
  return fmt::format("{:.{}f} {}", bytes, unit == 0 ? 0 : 1, units[unit]);
}

}  // namespace stet::tool
