// Whether the server is well, what it has done, and its page.
#include <fmt/format.h>

#include <iterator>

#include "stet/api.h"
#include "stet/base/error.hpp"
#include "tools/serve/page.hpp"
#include "tools/serve/routes.hpp"

namespace stet::serve {

// By the thread that reads and writes: it waits for no lock that work may hold.
Response health(Service& service, const Request&, const Parts&) {
  constexpr double kMostSilent = 10;
  const double age = service.engine.heartbeat_age();
  if (age > kMostSilent)
    throw RequestError(
        503, "engine_hangs",
        fmt::format("expected a sign of the engine each {:g} s, found none for {:.0f} s",
                    kMostSilent, age));
  return json_response({{"status", "ok"}});
}

Response ready(Service& service, const Request&, const Parts&) {
  const EngineCounters c = service.engine.counters();
  if (service.engine.closing()) throw RequestError(503, "shutting_down", "the server is ending");
  return json_response({{"status", "ready"}, {"running", c.running}, {"queued", c.queued}});
}

Response status(Service& service, const Request&, const Parts&) {
  const EngineCounters c = service.engine.counters();
  const Json totals = service.states.totals();
  return json_response(
      {{"model", service.name},
       {"contract", contract_name(*service.model, service.session.compute.contract)},
       {"isa",
        service.session.compute.isa.empty() ? best_kernels().name : service.session.compute.isa},
       {"threads", detail::threads_of(service.session.compute)},
       {"tokens_per_second",
        c.busy_seconds > 0 ? static_cast<double>(c.drawn_tokens + c.prompt_tokens) / c.busy_seconds
                           : 0},
       {"queued", c.queued},
       {"running", c.running},
       {"memory",
        {{"budget", service.states.memory_budget()}, {"used", service.states.memory_used()}}},
       {"reuse",
        {{"reused", totals["reused"]},
         {"recomputed", totals["recomputed"]},
         {"new", totals["new"]}}},
       {"states", totals["states"]},
       {"changes", totals["changes"]},
       {"version", STET_VERSION}});
}

// What went to and came from the store that servers share.
template <class Add>
void add_store(const Json& store, Add add) {
  const auto blocks = [&](const char* found) { return store[found].get<uint64_t>(); };
  add("store_blocks_total", "counter", "Blocks that were looked for in the store.", blocks("hits"),
      "{found=\"hit\"}");
  add("store_blocks_total", "counter", "", blocks("misses"), "{found=\"miss\"}");
  add("store_blocks_total", "counter", "", blocks("refused"), "{found=\"refused\"}");
  add("store_blocks_fetched_total", "counter", "Blocks that states and prompts went on with.",
      blocks("fetched"));
  add("store_blocks_computed_total", "counter", "Blocks of its states that were computed instead.",
      blocks("computed"));
  add("store_read_bytes_total", "counter", "Bytes of records that came.", blocks("read_bytes"));
  add("store_written_bytes_total", "counter", "Bytes of blocks that went.",
      blocks("written_bytes"));
  add("store_read_seconds_total", "counter", "Time in which they came.",
      store["read_seconds"].get<double>());
  add("store_write_seconds_total", "counter", "Time in which they went.",
      store["write_seconds"].get<double>());
  add("store_reads_total", "counter", "Requests for blocks.", blocks("reads"));
  add("store_writes_total", "counter", "Requests that took blocks.", blocks("writes"));
  const auto cost = [&](const char* of) { return store[of].get<double>(); };
  add("store_latency_seconds", "gauge", "Of an answer, as fetching or computing is decided by.",
      cost("latency"));
  add("store_bytes_per_second", "gauge", "At which blocks come, likewise.", cost("bandwidth"));
  add("store_token_seconds", "gauge", "Of computing a token, likewise.", cost("token"));
  add("store_failures_total", "counter", "Times that the store did not do what it was asked.",
      blocks("failures"));
}

Response metrics(Service& service, const Request&, const Parts&) {
  const EngineCounters c = service.engine.counters();
  const Json t = service.states.totals();
  std::string text;
  const auto add = [&](const char* name, const char* type, const char* help, auto value,
                       const char* labels = "") {
    if (text.find(fmt::format("# TYPE stet_{} ", name)) == std::string::npos)
      text += fmt::format("# HELP stet_{} {}\n# TYPE stet_{} {}\n", name, help, name, type);
    text += fmt::format("stet_{}{} {}\n", name, labels, value);
  };
  add("prompt_tokens_total", "counter", "Tokens of prompts that were processed.", c.prompt_tokens);
  add("drawn_tokens_total", "counter", "Tokens that were drawn.", c.drawn_tokens);
  add("tokens_reused_total", "counter", "Tokens of prompts that were there already.",
      t["reused"].get<int64_t>());
  add("tokens_recomputed_total", "counter", "Tokens that were processed again.",
      t["recomputed"].get<int64_t>());
  add("tokens_verified_total", "counter", "Tokens that were processed to verify states.",
      service.verified_tokens.load());
  add("passes_total", "counter", "Passes over the weights.", c.passes);
  add("busy_seconds_total", "counter", "Time in passes.", c.busy_seconds);
  add("batch_size", "gauge", "Sessions in the last pass.", c.batch);
  add("requests_running", "gauge", "Requests that have a place.", c.running);
  add("requests_queued", "gauge", "Requests that wait for one.", c.queued);
  add("requests_refused_total", "counter", "Requests that found the queue full.", c.refused);
  add("requests_cancelled_total", "counter", "Requests whose client left the queue.", c.cancelled);
  add("states", "gauge", "States that clients can name.", t["states"].get<int64_t>());
  add("state_evictions_total", "counter", "States that left memory.",
      t["evictions"].get<int64_t>());
  add("state_restores_total", "counter", "States that came back.", t["restores"].get<int64_t>());
  add("kv_blocks", "gauge", "Blocks of keys and values that idle states hold.",
      t["blocks_memory"].get<int64_t>(), "{kind=\"memory\"}");
  add("kv_blocks", "gauge", "", t["blocks_mapped"].get<int64_t>(), "{kind=\"mapped\"}");
  if (t["store"].is_object()) add_store(t["store"], add);
  add("memory_bytes", "gauge", "What those blocks take.", service.states.memory_used());
  text +=
      service.request_seconds.text("request_seconds", "From a request to the end of its answer.");
  text += service.first_token_seconds.text("first_token_seconds",
                                           "From a request to the first token of its reply.");
  text += service.engine.token_seconds().text("token_seconds", "From token to token of a reply.");
  Response r;
  r.type = "text/plain; version=0.0.4";
  r.body = text;
  return r;
}

Response openapi_page(Service&, const Request&, const Parts&) { return json_response(openapi()); }

Response page(Service&, const Request& request, const Parts&) {
  const std::string name = request.path == "/" ? "index.html" : request.path.substr(6);
  for (const PageFile& file : page_files()) {
    if (file.name != name) continue;
    Response r;
    r.type = file.type;
    r.body = file.bytes;
    r.headers = {{"Content-Security-Policy",
                  "default-src 'self'; img-src 'self' data: blob:; frame-ancestors 'none'; "
                  "base-uri 'none'; form-action 'self'"},
                 {"Cache-Control", "no-cache"},
                 {"Referrer-Policy", "no-referrer"}};
    return r;
  }
  throw RequestError(404, "no_such_address",
                     "expected a file of the page, found " + printable(name, 60));
}

}  // namespace stet::serve
