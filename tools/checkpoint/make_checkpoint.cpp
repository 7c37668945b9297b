// make_checkpoint: writes a checkpoint of seeded random weights in the published layout, for
// benchmarks and load tests. It writes config.json last: a directory that has it is complete.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "src/base/json_value.hpp"
#include "stet/base/error.hpp"
#include "stet/checkpoint/safetensors.hpp"
#include "stet/files/file.hpp"
#include "tools/checkpoint/checkpoint_shapes.hpp"
#include "tools/checkpoint/random_weights.hpp"
#include "tools/command/streams.hpp"

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using stet_tools::Weight;

constexpr size_t kConfigLimit = 16 << 20;
constexpr size_t kChunk = 16 << 20;  // bytes generated per piece

struct Options {
  std::string shape, directory, dtype;
  uint64_t seed = 0;
  uint64_t shard_size = 5'000'000'000;
  int64_t layers = 0;  // 0: the config's number
  unsigned threads = std::max(1u, std::thread::hardware_concurrency());
  bool force = false, dry_run = false;
};

struct Plan {
  Json config, generation;
  stet::DType dtype;
  std::vector<std::vector<Weight>> shards;
  uint64_t weights = 0, tensors = 0, bytes = 0;
};

uint64_t element_count(const Weight& weight) {
  uint64_t count = 1;
  for (const int64_t dimension : weight.shape) count *= static_cast<uint64_t>(dimension);
  return count;
}

stet::DType dtype_of(const Weight& weight, const Plan& plan) {
  return weight.bytes.values > 0 ? stet::DType::u8 : plan.dtype;
}

// Fills each shard up to its size. A larger tensor gets a shard of its own.
void split(std::vector<Weight> weights, uint64_t shard_size, Plan* plan) {
  uint64_t filled = 0;
  for (Weight& weight : weights) {
    const uint64_t count = element_count(weight),
                   size = count * stet::dtype_size(dtype_of(weight, *plan));
    if (plan->shards.empty() || filled + size > shard_size) {
      plan->shards.emplace_back();
      filled = 0;
    }
    filled += size;
    plan->shards.back().push_back(std::move(weight));
    plan->weights += count;
    plan->tensors += 1;
    plan->bytes += size;
  }
}

Plan make_plan(const Options& options) {
  Plan plan;
  plan.config = stet_tools::named_config(options.shape);
  const bool named = !plan.config.is_null();
  if (!named && options.shape.find_first_of("/.") == std::string::npos &&
      !fs::exists(options.shape)) {
    throw stet::Error(
        stet::ErrorKind::argument, "", "SHAPE",
        fmt::format("{} or the path of a config.json", fmt::join(stet_tools::shape_names(), ", ")),
        options.shape);
  }
  if (!named) {
    plan.config = stet::json_of(
        stet::parse_json(stet::read_text_file(options.shape, kConfigLimit), options.shape));
  }
  if (options.layers > 0) stet_tools::set_layers(&plan.config, options.layers, options.shape);
  if (options.dtype.empty()) {
    plan.dtype = stet_tools::weight_dtype(plan.config, options.shape);
  } else {
    plan.dtype = options.dtype == "f32"   ? stet::DType::f32
                 : options.dtype == "f16" ? stet::DType::f16
                                          : stet::DType::bf16;
    stet_tools::set_weight_dtype(&plan.config, plan.dtype);
  }
  plan.generation = stet_tools::generation_config(named ? options.shape : "", plan.config);
  split(stet_tools::weights_of(plan.config, options.shape), options.shard_size, &plan);
  return plan;
}

bool belongs_to_a_checkpoint(const std::string& name) {
  return name == "config.json" || name == "generation_config.json" ||
         name == "model.safetensors.index.json" ||
         (name.starts_with("model") && name.ends_with(".safetensors"));
}

// Makes the directory, or checks that it is empty. With `force`, removes the checkpoint in it.
void prepare_directory(const Options& options, uint64_t bytes) {
  std::error_code error;
  const auto check = [&](const std::string& expected) {
    if (error)
      throw stet::Error(stet::ErrorKind::io, options.directory, "", expected, error.message());
  };
  fs::create_directories(options.directory, error);
  check("a directory to write to");
  std::vector<fs::path> old;
  for (fs::directory_iterator it(options.directory, error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (!options.force) {
      throw stet::Error(stet::ErrorKind::io, options.directory, "",
                        "an empty directory (or --force)", name);
    }
    if (belongs_to_a_checkpoint(name)) old.push_back(it->path());
  }
  check("a directory to write to");
  // config.json is removed first, so that the rest of an old checkpoint never looks complete.
  std::sort(old.begin(), old.end());
  for (const fs::path& path : old) {
    fs::remove(path, error);
    check("to remove " + path.filename().string());
  }
  const fs::space_info space = fs::space(options.directory, error);
  if (!error && space.available < bytes) {
    throw stet::Error(stet::ErrorKind::io, options.directory, "",
                      fmt::format("{} bytes free", bytes), std::to_string(space.available));
  }
}

class CheckpointWriter {
 public:
  CheckpointWriter(const Options& options, const Plan& plan) : options_(options), plan_(plan) {}

  // Writes everything, or removes all of it if that fails.
  void write() {
    try {
      write_shards();
      write_json("generation_config.json", plan_.generation);
      write_json("config.json", plan_.config);
    } catch (...) {
      for (const std::string& path : written_) ::unlink(path.c_str());
      throw;
    }
  }

 private:
  std::string path_of(const std::string& name) const { return options_.directory + "/" + name; }

  void write_shards() {
    Json weight_map = Json::object();
    for (size_t i = 0; i < plan_.shards.size(); ++i) {
      const std::string name =
          plan_.shards.size() == 1
              ? "model.safetensors"
              : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, plan_.shards.size());
      write_shard(name, plan_.shards[i]);
      for (const Weight& weight : plan_.shards[i]) weight_map[weight.name] = name;
    }
    if (plan_.shards.size() > 1) {
      write_json("model.safetensors.index.json", {{"metadata", {{"total_size", plan_.bytes}}},
                                                  {"weight_map", std::move(weight_map)}});
    }
  }

  void write_shard(const std::string& name, const std::vector<Weight>& weights) {
    std::vector<stet::TensorSpec> specs;
    for (const Weight& weight : weights)
      specs.push_back({weight.name, dtype_of(weight, plan_), weight.shape});
    stet::SafeTensorsWriter writer(path_of(name), specs, {{"format", "pt"}});
    for (const Weight& weight : weights) write_tensor(weight, &writer);
    writer.commit();
    written_.push_back(path_of(name));
  }

  void write_tensor(const Weight& weight, stet::SafeTensorsWriter* writer) {
    const uint64_t key = stet_tools::weight_key(options_.seed, weight.name);
    const stet::DType dtype = dtype_of(weight, plan_);
    const uint64_t count = element_count(weight), chunk = kChunk / stet::dtype_size(dtype);
    for (uint64_t first = 0; first < count; first += chunk) {
      buffer_.resize(std::min(chunk, count - first) * stet::dtype_size(dtype));
      if (dtype == stet::DType::u8)
        stet_tools::fill_bytes(key, weight.bytes, first, buffer_);
      else
        stet_tools::fill_weights(dtype, key, weight.distribution, first, options_.threads, buffer_);
      writer->write(buffer_);
      done_ += buffer_.size();
    }
    if (::isatty(STDERR_FILENO)) {
      stet::tool::rewrite_line(
          done_ < plan_.bytes ? std::to_string(100 * done_ / plan_.bytes) + " %" : "");
    }
  }

  void write_json(const std::string& name, const Json& json) {
    const std::string text = json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
    stet::AtomicFile file(path_of(name));
    file.write(std::as_bytes(std::span(text)));
    file.commit();
    written_.push_back(path_of(name));
  }

  const Options& options_;
  const Plan& plan_;
  std::vector<std::byte> buffer_;
  std::vector<std::string> written_;
  uint64_t done_ = 0;
};

void run(const Options& options) {
  const auto start = std::chrono::steady_clock::now();
  const Plan plan = make_plan(options);
  const std::string summary =
      fmt::format("{}: {} weights in {} tensors, {} {}, {} file{}", options.shape, plan.weights,
                  plan.tensors, plan.bytes, "bytes of " + std::string(stet::dtype_name(plan.dtype)),
                  plan.shards.size(), plan.shards.size() == 1 ? "" : "s");
  if (options.dry_run) {
    fmt::print("{}\n", summary);
    return;
  }
  prepare_directory(options, plan.bytes);
  CheckpointWriter(options, plan).write();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  fmt::print("{}: written to {} in {:.1f} s\n", summary, options.directory, seconds.count());
}

}  // namespace

int main(int argc, char** argv) {
  stet::tool::open_standard_streams();
  std::signal(SIGXFSZ, SIG_IGN);  // exceeding a file size limit is then an error like a full disk
  Options options;
  CLI::App app(
      "Writes a checkpoint of seeded random weights in the published Hugging Face layout.\n"
      "The same SHAPE, seed, dtype and layers give the same weights on every machine.",
      "make_checkpoint");
  app.add_option("SHAPE", options.shape,
                 fmt::format("a named shape ({}) or the path of a config.json",
                             fmt::join(stet_tools::shape_names(), ", ")))
      ->required();
  CLI::Option* output =
      app.add_option("-o,--output", options.directory, "directory to make; must be empty")
          ->check(CLI::Validator(
              [](const std::string& name) {
                return name.empty() ? "expected a name, found nothing" : "";
              },
              ""));
  app.add_option("--seed", options.seed, "seed of the weights")->capture_default_str();
  app.add_option("--dtype", options.dtype, "bf16, f16 or f32; otherwise as the config says")
      ->check(CLI::IsMember({"bf16", "f16", "f32"}));
  app.add_option("--shard-size", options.shard_size,
                 "most bytes in one file, such as 500MB, 2GB, 1GiB")
      ->transform(CLI::AsSizeValue(true))
      ->check(CLI::PositiveNumber)
      ->default_str("5GB");
  app.add_option("--layers", options.layers, "this many layers instead of the config's")
      ->check(CLI::Range(1, 1024));
  app.add_option("--threads", options.threads, "threads that generate weights")
      ->check(CLI::Range(1, 1024));
  app.add_flag("--force", options.force, "replace the checkpoint in the directory");
  CLI::Option* dry =
      app.add_flag("--dry-run", options.dry_run, "say what would be written, write nothing");
  try {
    app.parse(argc, argv);
    if (!*output && !*dry) throw CLI::RequiredError("-o DIR");
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  try {
    run(options);
    return 0;
  } catch (const stet::Error& error) {
    stet::tool::say("make_checkpoint: {}\n", error.what());
    return error.kind == stet::ErrorKind::argument ? 2 : 1;
  } catch (const std::exception& error) {
    stet::tool::say("make_checkpoint: {}\n", stet::printable(error.what()));
    return 1;
  }
}
