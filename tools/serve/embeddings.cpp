// OpenAI's embeddings: hidden states of a layer, their mean or the last one, of unit length.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "stet/base/error.hpp"
#include "stet/base/json_reader.hpp"
#include "stet/kernels/float_environment.hpp"
#include "stet/kernels/pooling.hpp"
#include "tools/serve/routes.hpp"

namespace stet::serve {
namespace {

struct EmbeddingOptions {
  size_t layer = 0, dimensions = 0;
  bool mean = true, normalize = true, as_base64 = false;
};

std::string base64(std::string_view bytes) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t three = 0;
    for (size_t k = 0; k < 3; ++k)
      three = three << 8 | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0);
    for (size_t k = 0; k < 4; ++k)
      text += i + k > bytes.size() ? '=' : kDigits[three >> (18 - 6 * k) & 63];
  }
  return text;
}

// Pools hidden states of the layer over all tokens.
std::vector<float> embedding(Service& service, const Caller& caller,
                             const std::vector<int32_t>& ids, const EmbeddingOptions& o) {
  Session session(service.model, service.session);
  std::vector<double> sum;
  std::vector<float> pooled;
  int64_t taken = 0;  // positions: rows may come again
  const auto layer = static_cast<int64_t>(o.layer);
  const bool head = layer == service.model->config().layers;
  const Watch watch{{head ? PointAt{Point::ln_final, 0} : PointAt{Point::resid_pre, layer}},
                    [&](const PointAt&, int64_t first, Rows rows) {
                      const FloatEnvironment contract;
                      sum.resize(rows.width);
                      for (size_t r = 0; r < rows.count; ++r) {
                        if (first + static_cast<int64_t>(r) < taken) continue;
                        ++taken;
                        const float* const row = rows.row(r);
                        if (o.mean) add_row(row, sum.data(), rows.width);
                        pooled.assign(row, row + rows.width);
                      }
                    }};
  service.engine.process(std::vector<BatchEntry>{{&session, ids, &watch}}, caller.gone);
  const FloatEnvironment contract;
  if (o.mean) mean_of_rows(sum.data(), ids.size(), pooled.data(), pooled.size());
  pooled.resize(o.dimensions);
  if (o.normalize) make_unit_length(pooled.data(), pooled.size());
  return pooled;
}

// Embeddings of a model may be cut where it was trained so that their beginnings are embeddings
// themselves (Kusupati et al., arXiv 2205.13147). Its config.json says so: by
// matryoshka_dimensions, a list, or by is_matryoshka.
size_t read_dimensions(const Model& model, Fields& f) {
  constexpr size_t kConfigLimit = size_t{16} << 20;
  const int64_t all = model.config().hidden_size;
  const int64_t asked = f.integer("dimensions", 1, all).value_or(all);
  if (asked == all) return static_cast<size_t>(all);
  const std::string file = model.source().path_of("config.json");
  const JsonReader config = parse_json(model.source().read("config.json", kConfigLimit), file);
  const std::vector<int64_t> declared = config.integers("matryoshka_dimensions", 1, all);
  if (declared.empty() && !config.boolean_or("is_matryoshka", false))
    refuse("/dimensions", fmt::format("{}: this model declares no smaller embeddings", all),
           std::to_string(asked), "unsupported_field");
  if (!declared.empty() && std::ranges::find(declared, asked) == declared.end())
    refuse("/dimensions", fmt::format("{}, or one of {}", all, fmt::join(declared, ", ")),
           std::to_string(asked));
  return static_cast<size_t>(asked);
}

EmbeddingOptions read_options(const Model& model, Fields& f) {
  const int64_t layers = model.config().layers;
  EmbeddingOptions o;
  o.layer = static_cast<size_t>(f.integer("layer", 0, layers).value_or(layers));
  const std::string pooling = f.text("pooling").value_or("mean"),
                    format = f.text("encoding_format").value_or("float");
  if (pooling != "mean" && pooling != "last")
    refuse("/pooling", "mean or last", printable(pooling, 60));
  if (format != "float" && format != "base64")
    refuse("/encoding_format", "float or base64", printable(format, 60));
  o.mean = pooling == "mean";
  o.as_base64 = format == "base64";
  o.normalize = f.boolean("normalize").value_or(true);
  o.dimensions = read_dimensions(model, f);
  return o;
}

struct EmbeddingInputs {
  std::vector<std::vector<int32_t>> ids;
  std::vector<std::string> texts;  // in their place
};

// Text, a list of texts, token ids, or a list of these.
EmbeddingInputs read_inputs(Service& service, Fields& f) {
  constexpr size_t kMostInputs = 64;
  const int64_t vocab = service.model->config().vocab_size;
  EmbeddingInputs inputs;
  const Json* input = f.find("input");
  const Json* const first =
      input != nullptr && input->is_array() && !input->empty() ? &input->front() : nullptr;
  if (first != nullptr && first->is_number()) {
    inputs.ids.push_back(*f.ids("input", vocab));
  } else if (first != nullptr && first->is_array()) {
    if (input->size() > kMostInputs)
      refuse("/input", fmt::format("at most {} of them", kMostInputs),
             fmt::format("{}", input->size()));
    for (const Json& ids : *input)
      inputs.ids.push_back(read_ids(ids, fmt::format("/input/{}", inputs.ids.size()), vocab));
  } else {
    inputs.texts = f.texts("input", kMostInputs);
    if (!inputs.texts.empty()) service.need_tokenizer();
  }
  if (inputs.ids.empty() && inputs.texts.empty())
    refuse("/input", "text, a list of texts, or token ids", "nothing", "missing_field");
  return inputs;
}

}  // namespace

Response embeddings(Service& service, const Request& request, const Parts&) {
  const Json body = parse_body(request.body);
  Fields f(body, "");
  const std::string name = check_model(service, f);
  const EmbeddingOptions options = read_options(*service.model, f);
  EmbeddingInputs inputs = read_inputs(service, f);
  f.unused({"user"});
  f.finish();
  return answer_at_once(service, request, [&](const Caller& caller) {
    for (const std::string& text : inputs.texts)
      inputs.ids.push_back(encode_text(service, caller, text, Tokenizer::Bos::automatic));
    Json data = Json::array();
    size_t tokens = 0;
    for (const std::vector<int32_t>& ids : inputs.ids) {
      if (ids.empty()) refuse("/input", "at least one token", "none");
      tokens += ids.size();
      const std::vector<float> x = embedding(service, caller, ids, options);
      std::string bytes(x.size() * sizeof(float), '\0');
      std::memcpy(bytes.data(), x.data(), bytes.size());
      data.push_back({{"object", "embedding"},
                      {"index", data.size()},
                      {"embedding", options.as_base64 ? Json(base64(bytes)) : Json(x)}});
    }
    return Json{{"object", "list"},
                {"data", data},
                {"model", name},
                {"layer", options.layer},
                {"pooling", options.mean ? "mean" : "last"},
                {"normalized", options.normalize},
                {"usage", {{"prompt_tokens", tokens}, {"total_tokens", tokens}}}};
  });
}

}  // namespace stet::serve
