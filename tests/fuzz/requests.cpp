// The server's requests: the first byte of an input chooses the address, the rest is the body.
// Every answer is JSON, events or a file; an error is one line with a code, and never the server's
// own.
#include <string>

#include "tests/fuzz/fuzz.hpp"
#include "tools/serve/interfaces.hpp"

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

// A state that is always there.
const std::string& state() {
  static const std::string id = [] {
    serve::Request r;
    r.body = R"({"ids": [1, 2, 3, 4, 5, 6]})";
    return Json::parse(serve::create_state(service(), r, {}).body)["id"].get<std::string>();
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
    const serve::Response response = serve::route(service(), request);
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

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const auto& all = serve::routes();
  const serve::Route& route = all[data[0] % all.size()];
  serve::Request request;
  request.method = route.method;
  request.path = route.path;
  if (const size_t at = request.path.find("{id}"); at != std::string::npos)
    request.path.replace(at, 4, state());
  if (const size_t at = request.path.find("{other}"); at != std::string::npos)
    request.path.replace(at, 7, state());
  const std::string rest(fuzz::text_of(data, size).substr(1));
  if (request.method == "GET") {
    for (const char* name : {"n", "layer", "head", "what", "logprobs", "form"})
      request.query[name] = rest;
  } else {
    request.body = rest;
  }
  if (request.method == "DELETE") request.path.back() = '!';  // the state stays
  ask(request);
  return 0;
}
