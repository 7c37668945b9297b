// OpenAI's embeddings API: hidden states of a layer, averaged or the last one, of unit length.
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

struct EmbeddingRequest {
  std::string model;
  size_t layer = 0, dimensions = 0;
  bool mean = true, normalize = true, as_base64 = false;
  std::vector<std::vector<int32_t>> ids;
  std::vector<std::string> texts;  // instead of ids
  bool several = false;            // the input is a list of texts or of lists

  std::string pointer(size_t i) const { return several ? fmt::format("/input/{}", i) : "/input"; }
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

// Pools the layer's hidden states over all tokens.
std::vector<float> embedding(Service& service, const Caller& caller,
                             const std::vector<int32_t>& ids, const EmbeddingRequest& o) {
  Session session(service.model, service.session);
  std::vector<double> sum;
  std::vector<float> pooled;
  int64_t taken = 0;  // positions pooled so far: a repeated pass gives rows again
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
  service.engine.process(std::vector<BatchEntry>{{&session, ids, &watch}}, caller.cancelled);
  const FloatEnvironment contract;
  if (o.mean) mean_of_rows(sum.data(), ids.size(), pooled.data(), pooled.size());
  pooled.resize(o.dimensions);
  if (o.normalize) make_unit_length(pooled.data(), pooled.size());
  return pooled;
}

// Returns the number of dimensions. Embeddings may be shortened if the model was trained for it
// (Kusupati et al., arXiv 2205.13147). Its config.json then has matryoshka_dimensions, a list, or
// is_matryoshka.
size_t read_dimensions(const Model& model, const Field& f) {
  constexpr size_t kConfigLimit = size_t{16} << 20;
  const int64_t all = model.config().hidden_size;
  const int64_t asked = f.integer(1, all).value_or(all);
  if (asked == all) return static_cast<size_t>(all);
  const JsonReader config = model.source().json("config.json", kConfigLimit);
  const std::vector<int64_t> declared = config.integers("matryoshka_dimensions", 1, all);
  if (declared.empty() && !config.boolean_or("is_matryoshka", false))
    throw RequestError(400, "unsupported_field",
                       fmt::format("{}: this model has embeddings of {} numbers only; leave it out",
                                   f.pointer(), all),
                       f.pointer());
  if (!declared.empty() && std::ranges::find(declared, asked) == declared.end())
    refuse(f.pointer(), fmt::format("{}, or one of {}", all, fmt::join(declared, ", ")),
           std::to_string(asked));
  return static_cast<size_t>(asked);
}

// Reads text, a list of texts, token ids, or a list of lists of token ids.
void read_input(EmbeddingRequest& asked, const Field& f, const BodyContext& context) {
  constexpr size_t kMostInputs = 2048;  // as OpenAI's
  const int64_t vocab = context.service.model->config().vocab_size;
  const Json* const input = f.value();
  const Json* const first =
      input != nullptr && input->is_array() && !input->empty() ? &input->front() : nullptr;
  if (first != nullptr && first->is_number()) {
    asked.ids.push_back(*f.ids(vocab));
    return;
  }
  asked.several = input != nullptr && input->is_array();
  if (asked.several && input->empty())
    refuse(f.pointer(), "text, a list of texts, or token ids", "an empty list");
  if (first != nullptr && first->is_array()) {
    if (input->size() > kMostInputs)
      refuse(f.pointer(), fmt::format("at most {} inputs", kMostInputs),
             fmt::format("{}", input->size()));
    for (const Json& ids : *input) {
      const std::string pointer = fmt::format("{}/{}", f.pointer(), asked.ids.size());
      asked.ids.push_back(read_ids(ids, pointer, vocab));
      if (asked.ids.back().empty()) refuse(pointer, "at least one token", "none");
    }
  } else {
    asked.texts = f.texts(kMostInputs, SIZE_MAX);  // bounded by the context
    if (!asked.texts.empty()) context.service.need_tokenizer();
  }
  if (asked.ids.empty() && asked.texts.empty())
    refuse(f.pointer(), "text, a list of texts, or token ids", "nothing", "missing_field");
}

// Returns true for the second of two words, false for the first, which is the default.
bool read_choice(const Field& f, const char* first, const char* second) {
  const std::string word = f.text().value_or(first);
  if (word != first && word != second)
    refuse(f.pointer(), fmt::format("{} or {}", first, second), printable(word, 60));
  return word == second;
}

BodyFields<EmbeddingRequest> embedding_fields() {
  using E = EmbeddingRequest;
  return BodyFields<E>()
      .field("model", "string",
             [](E& e, const Field& f, const BodyContext& context) {
               e.model = read_model(f, context);
             })
      .field("layer", "integer",
             [](E& e, const Field& f, const BodyContext& context) {
               const int64_t layers = context.service.model->config().layers;
               e.layer = static_cast<size_t>(f.integer(0, layers).value_or(layers));
             })
      .field("pooling", "string",
             [](E& e, const Field& f, const BodyContext&) {
               e.mean = !read_choice(f, "mean", "last");
             })
      .field("encoding_format", "string",
             [](E& e, const Field& f, const BodyContext&) {
               e.as_base64 = read_choice(f, "float", "base64");
             })
      .boolean("normalize", &E::normalize)
      .field("dimensions", "integer",
             [](E& e, const Field& f, const BodyContext& context) {
               e.dimensions = read_dimensions(*context.service.model, f);
             })
      .required("input", "any", read_input)
      .unused("string", {"user"});
}

// Makes tokens of texts, and checks the lengths of all inputs before anything is computed.
void check_inputs(Service& service, const Caller& caller, EmbeddingRequest& asked) {
  for (const std::string& text : asked.texts)
    asked.ids.push_back(for_field(asked.pointer(asked.ids.size()), [&] {
      return encode_text(service, caller, text, Tokenizer::Bos::automatic);
    }));
  const Session empty(service.model, service.session);
  for (size_t i = 0; i < asked.ids.size(); ++i) {
    if (asked.ids[i].empty()) refuse(asked.pointer(i), "at least one token", "none");
    for_field(asked.pointer(i), [&] { check_room(empty, asked.ids[i], 0); });
  }
}

Response answer(Service& service, const Request& request, EmbeddingRequest asked) {
  return answer_at_once(service, request, [&](const Caller& caller) {
    check_inputs(service, caller, asked);
    Json data = Json::array();
    size_t tokens = 0;
    for (const std::vector<int32_t>& ids : asked.ids) {
      tokens += ids.size();
      const std::vector<float> x = embedding(service, caller, ids, asked);
      std::string bytes(x.size() * sizeof(float), '\0');
      std::memcpy(bytes.data(), x.data(), bytes.size());
      data.push_back({{"object", "embedding"},
                      {"index", data.size()},
                      {"embedding", asked.as_base64 ? Json(base64(bytes)) : Json(x)}});
    }
    return Json{{"object", "list"},
                {"data", data},
                {"model", asked.model},
                {"layer", asked.layer},
                {"pooling", asked.mean ? "mean" : "last"},
                {"normalized", asked.normalize},
                {"usage", {{"prompt_tokens", tokens}, {"total_tokens", tokens}}}};
  });
}

}  // namespace

Endpoint embeddings() { return endpoint(embedding_fields(), answer); }

}  // namespace stet::serve
