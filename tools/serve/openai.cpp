// OpenAI's models and embeddings.
#include <fmt/format.h>

#include <cstring>

#include "stet/base/error.hpp"
#include "tools/serve/interfaces.hpp"

namespace stet::serve {
namespace {

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

// Of hidden state `layer` of all tokens: their mean, summed in double in their order, or the last
// one.
std::vector<float> embedding(Service& service, const Caller& caller,
                             const std::vector<int32_t>& ids, size_t layer, bool mean) {
  Session session(service.model, service.session);
  std::vector<double> sum;
  std::vector<float> last;
  int64_t taken = 0;  // positions: rows may come again
  const bool head = static_cast<int64_t>(layer) == service.model->config().layers;
  const Watch watch{
      {head ? PointAt{Point::ln_final, 0} : PointAt{Point::resid_pre, static_cast<int64_t>(layer)}},
      [&](const PointAt&, int64_t first, Rows rows) {
        sum.resize(rows.width);
        for (size_t r = 0; r < rows.count; ++r) {
          if (first + static_cast<int64_t>(r) < taken) continue;
          ++taken;
          const float* const row = rows.row(r);
          for (size_t i = 0; mean && i < rows.width; ++i) sum[i] += static_cast<double>(row[i]);
          last.assign(row, row + rows.width);
        }
      }};
  service.engine.process(std::vector<BatchEntry>{{&session, ids, &watch}}, caller.gone);
  for (size_t i = 0; mean && i < last.size(); ++i)
    last[i] = static_cast<float>(sum[i] / static_cast<double>(ids.size()));
  return last;
}

}  // namespace

namespace {

Json model_json(const Service& service, const std::string& name) {
  return {{"id", name},
          {"object", "model"},
          {"created", service.started},
          {"owned_by", "stet"},
          {"root", service.name},
          {"context_length", Session(service.model, service.session).capacity()},
          {"contract", contract_name(*service.model, service.session.compute.contract)},
          {"fingerprint", service.fingerprint}};
}

}  // namespace

Response models(Service& service, const Request&, const Parts&) {
  Json data = Json::array({model_json(service, service.name)});
  for (const std::string& alias : service.aliases) data.push_back(model_json(service, alias));
  return json_response({{"object", "list"}, {"data", data}});
}

Response model(Service& service, const Request&, const Parts& parts) {
  if (!service.is_name(parts[0]))
    throw RequestError(
        404, "model_not_found",
        fmt::format("/id: expected {}, found {}", service.name, printable(parts[0], 60)), "/id");
  return json_response(model_json(service, parts[0]));
}

Response embeddings(Service& service, const Request& request, const Parts&) {
  const Json body = parse_body(request.body);
  Fields f(body, "");
  const std::string name = check_model(service, f);
  const int64_t layers = service.model->config().layers;
  const int64_t layer = f.integer("layer", 0, layers).value_or(layers);
  const std::string pooling = f.text("pooling").value_or("mean"),
                    format = f.text("encoding_format").value_or("float");
  if (pooling != "mean" && pooling != "last")
    refuse("/pooling", "mean or last", printable(pooling, 60));
  if (format != "float" && format != "base64")
    refuse("/encoding_format", "float or base64", printable(format, 60));
  constexpr size_t kMostInputs = 64;
  std::vector<std::vector<int32_t>> inputs;
  std::vector<std::string> texts;
  const Json* input = f.find("input");
  const Json* const first =
      input != nullptr && input->is_array() && !input->empty() ? &input->front() : nullptr;
  if (first != nullptr && first->is_number()) {
    inputs.push_back(*f.ids("input", service.model->config().vocab_size));
  } else if (first != nullptr && first->is_array()) {
    if (input->size() > kMostInputs)
      refuse("/input", fmt::format("at most {} of them", kMostInputs),
             fmt::format("{}", input->size()));
    for (const Json& ids : *input)
      inputs.push_back(read_ids(ids, fmt::format("/input/{}", inputs.size()),
                                service.model->config().vocab_size));
  } else {
    texts = f.texts("input", kMostInputs);
    if (!texts.empty()) service.need_tokenizer();
  }
  if (inputs.empty() && texts.empty())
    refuse("/input", "text, a list of texts, or token ids", "nothing", "missing_field");
  f.neutral("dimensions", {});
  f.unused({"user"});
  f.finish();
  return answer_at_once(service, request, [&](const Caller& caller) {
    for (const std::string& text : texts)
      inputs.push_back(encode_text(service, caller, text, Tokenizer::Bos::automatic));
    Json data = Json::array();
    size_t tokens = 0;
    for (const std::vector<int32_t>& ids : inputs) {
      if (ids.empty()) refuse("/input", "at least one token", "none");
      tokens += ids.size();
      const std::vector<float> x =
          embedding(service, caller, ids, static_cast<size_t>(layer), pooling == "mean");
      std::string bytes(x.size() * sizeof(float), '\0');
      std::memcpy(bytes.data(), x.data(), bytes.size());
      data.push_back({{"object", "embedding"},
                      {"index", data.size()},
                      {"embedding", format == "float" ? Json(x) : Json(base64(bytes))}});
    }
    return Json{{"object", "list"},
                {"data", data},
                {"model", name},
                {"layer", layer},
                {"pooling", pooling},
                {"normalized", false},
                {"usage", {{"prompt_tokens", tokens}, {"total_tokens", tokens}}}};
  });
}

}  // namespace stet::serve
