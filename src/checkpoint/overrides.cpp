#include "stet/checkpoint/overrides.hpp"

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "src/base/json_value.hpp"
#include "src/files/additional_templates.hpp"
#include "stet/base/error.hpp"

namespace stet {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostGeneration = size_t{16} << 20;
const std::string kGeneration = "generation_config.json";

std::string with_eos(const FileSource& source, const std::vector<int32_t>& ids) {
  Json config = Json::object();
  if (source.has(kGeneration))
    config = parse_ordered_python_json(source.read(kGeneration, kMostGeneration),
                                       source.path_of(kGeneration));
  if (!config.is_object())
    throw Error(ErrorKind::format, source.path_of(kGeneration), "", "a JSON object", "other text");
  for (const auto& [name, value] : config.items()) {  // JSON cannot express infinity and nan
    if (value.is_number_float() && !std::isfinite(value.get<double>()))
      throw Error(ErrorKind::format, source.path_of(kGeneration), name, "a finite number",
                  "another");
  }
  config["eos_token_id"] = ids;
  config["stet"] = {{"eos_token_id", std::vector<std::string>(ids.size(), "--eos")}};
  return config.dump(-1, ' ', false, Json::error_handler_t::replace);
}

class OverridingSource : public FileSource {
 public:
  OverridingSource(std::shared_ptr<const FileSource> source, CheckpointOverrides overrides)
      : FileSource(source->path(), source->path_of("")), source_(std::move(source)) {
    const auto put = [&](const std::string& name, std::string text) {
      texts_[name] = std::make_shared<const std::string>(std::move(text));
    };
    if (overrides.chat_template) put("chat_template.jinja", std::move(*overrides.chat_template));
    if (!overrides.eos_ids.empty()) put(kGeneration, with_eos(*source_, overrides.eos_ids));
  }

  bool has(const std::string& name) const override {
    return texts_.contains(name) || (!replaced(name) && source_->has(name));
  }
  void check_own(const std::string& name) const override {
    if (!texts_.contains(name)) source_->check_own(name);
  }
  std::shared_ptr<const FileBytes> open(const std::string& name) const override {
    const auto text = texts_.find(name);
    if (text == texts_.end()) return source_->open(name);
    return std::make_shared<const FileBytes>(path_of(name), std::as_bytes(std::span(*text->second)),
                                             text->second);
  }
  std::string read(const std::string& name, size_t limit) const override {
    const auto text = texts_.find(name);
    if (text == texts_.end()) return source_->read(name, limit);
    if (text->second->size() > limit)
      throw Error(ErrorKind::format, path_of(name), "",
                  "at most " + std::to_string(limit) + " bytes",
                  std::to_string(text->second->size()));
    return *text->second;
  }
  JsonReader json(const std::string& name, size_t limit) const override {
    return texts_.contains(name) ? FileSource::json(name, limit) : source_->json(name, limit);
  }

 private:
  // Returns whether an override hides the file `name`. A given chat_template.jinja also replaces the
  // checkpoint's additional templates.
  bool replaced(const std::string& name) const {
    return name == kAdditionalTemplates && texts_.contains("chat_template.jinja");
  }

  std::shared_ptr<const FileSource> source_;
  std::map<std::string, std::shared_ptr<const std::string>> texts_;
};

}  // namespace

std::shared_ptr<const FileSource> overridden(std::shared_ptr<const FileSource> source,
                                             CheckpointOverrides overrides) {
  if (!overrides.any()) return source;
  return std::make_shared<const OverridingSource>(std::move(source), std::move(overrides));
}

}  // namespace stet
