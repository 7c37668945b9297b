// Sends requests to the server. The first line of an input is the address, such as "POST
// /v1/states", or its first byte chooses one; the rest is the body. Every response must be JSON,
// events or a file. An error must be one line with a code, and never a server error.
#include <algorithm>
#include <string>
#include <string_view>

#include "tests/fuzz/fuzz.hpp"
#include "tools/serve/routes.hpp"

using namespace stet;
using serve::Json;

namespace {

serve::Service& service() {
  static serve::Service* const s = [] {
    SessionOptions session;
    session.capacity = 96;
    session.compute.threads = 1;
    serve::StatesOptions states;
    states.memory = 1 << 20;
    const std::string directory = STET_ROOT "/assets/pocket-llama3";
    return new serve::Service(Model::load(directory, 1), Tokenizer::load(directory), session,
                              states, {}, 0);
  }();
  return *s;
}

// Returns the id of a state that always exists.
const std::string& state() {
  static const std::string id = [] {
    serve::Request r;
    r.body = R"({"ids": [1, 2, 3, 4, 5, 6]})";
    return Json::parse(serve::create_state().answer(service(), r, {}).body)["id"]
        .get<std::string>();
  }();
  return id;
}

void check_error(const serve::RequestError& e) {
  fuzz::must(e.status >= 400 && e.status < 500, "what a request asks is no error of the server");
  fuzz::must(std::string_view(e.what()).find('\n') == std::string_view::npos,
             "an error is one line");
  fuzz::must(!e.code.empty(), "an error has a code");
  fuzz::must(Json::parse(serve::error_response(e).body).contains("error"), "an error is JSON");
}

void ask(const serve::Request& request) {
  try {
    serve::Parts parts;
    const serve::Route* const route = serve::find_route(request, &parts);
    const serve::Response response = route == nullptr
                                         ? serve::page(service(), request, {})
                                         : route->endpoint.answer(service(), request, parts);
    ++fuzz::tally.accepted;
    if (response.stream) {
      serve::Writer writer([](std::string_view bytes) { return !bytes.empty(); });
      response.stream(writer);
    } else if (response.type == "application/json") {
      fuzz::must(Json::accept(response.body), "an answer is JSON");
    }
  } catch (...) {
    check_error(serve::current_error());
  }
}

// Removes the address from the input and returns its route.
const serve::Route& address(std::string_view& input) {
  const auto& all = serve::routes();
  const std::string_view line = input.substr(0, input.find('\n'));
  for (const serve::Route& route : all) {
    if (line != std::string(route.method) + " " + route.path) continue;
    input.remove_prefix(std::min(line.size() + 1, input.size()));
    return route;
  }
  const serve::Route& any = all[static_cast<uint8_t>(input[0]) % all.size()];
  input.remove_prefix(1);
  return any;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  std::string_view input = fuzz::text_of(data, size);
  const serve::Route& route = address(input);
  serve::Request request;
  request.method = route.method;
  request.path = route.path;
  if (const size_t at = request.path.find("{id}"); at != std::string::npos)
    request.path.replace(at, 4, state());
  if (const size_t at = request.path.find("{other}"); at != std::string::npos)
    request.path.replace(at, 7, state());
  const std::string rest(input);
  if (request.method == "GET") {
    for (const char* name : {"n", "layer", "head", "what", "logprobs", "form"})
      request.query[name] = rest;
  } else {
    request.body = rest;
  }
  if (request.method == "DELETE") request.path.back() = '!';  // keeps the state
  ask(request);
  return 0;
}
