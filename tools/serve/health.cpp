// Health checks, status, metrics, and the files of the page.
#include <fmt/format.h>

#include <iterator>

#include "stet/api.h"
#include "stet/base/error.hpp"
#include "tools/serve/page.hpp"
#include "tools/serve/routes.hpp"

namespace stet::serve {

// Runs in the server's thread and takes no lock that a computation may hold.
Response health(Service& service, const Request&, const Parts&) {
  constexpr double kMostSilent = 10;
  const double age = service.engine.heartbeat_age();
  if (age > kMostSilent)
    throw RequestError(503, "engine_hangs",
                       fmt::format("the engine has not answered for {:.0f} s; the limit is {:g} s",
                                   age, kMostSilent));
  return json_response({{"status", "ok"}});
}

Response ready(Service& service, const Request&, const Parts&) {
  const EngineCounters c = service.engine.counters();
  if (service.engine.closing())
    throw RequestError(503, "shutting_down", "the server is shutting down");
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

// Adds the metrics of the shared store.
template <class Add>
void add_store(const Json& store, Add add) {
  const auto blocks = [&](const char* found) { return store[found].get<uint64_t>(); };
  add("store_blocks_total", "counter", "Blocks looked up in the store, by result.", blocks("hits"),
      "{found=\"hit\"}");
  add("store_blocks_total", "counter", "", blocks("misses"), "{found=\"miss\"}");
  add("store_blocks_total", "counter", "", blocks("refused"), "{found=\"refused\"}");
  add("store_blocks_fetched_total", "counter", "Blocks fetched from the store and used.",
      blocks("fetched"));
  add("store_blocks_computed_total", "counter",
      "Blocks of the store's states that were computed instead of fetched.", blocks("computed"));
  add("store_read_bytes_total", "counter", "Bytes read from the store.", blocks("read_bytes"));
  add("store_written_bytes_total", "counter", "Bytes of blocks written to the store.",
      blocks("written_bytes"));
  add("store_read_seconds_total", "counter", "Seconds spent reading from the store.",
      store["read_seconds"].get<double>());
  add("store_write_seconds_total", "counter", "Seconds spent writing to the store.",
      store["write_seconds"].get<double>());
  add("store_reads_total", "counter", "Read requests to the store.", blocks("reads"));
  add("store_writes_total", "counter", "Write requests to the store.", blocks("writes"));
  const auto cost = [&](const char* of) { return store[of].get<double>(); };
  add("store_latency_seconds", "gauge", "Estimated store latency used by the fetch policy.",
      cost("latency"));
  add("store_bytes_per_second", "gauge", "Estimated store bandwidth used by the fetch policy.",
      cost("bandwidth"));
  add("store_token_seconds", "gauge", "Estimated time to compute a token used by the fetch policy.",
      cost("token"));
  add("store_failures_total", "counter", "Failed requests to the store.", blocks("failures"));
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
  add("prompt_tokens_total", "counter", "Prompt tokens processed.", c.prompt_tokens);
  add("drawn_tokens_total", "counter", "Tokens drawn.", c.drawn_tokens);
  add("drafted_tokens_total", "counter", "Drafted tokens processed (--speculate).",
      c.drafted_tokens);
  add("accepted_tokens_total", "counter", "Drawn tokens that had been drafted and needed no pass.",
      c.accepted_tokens);
  add("tokens_reused_total", "counter", "Prompt tokens reused from earlier states.",
      t["reused"].get<int64_t>());
  add("tokens_recomputed_total", "counter",
      "Tokens processed again because their keys and values were not in memory.",
      t["recomputed"].get<int64_t>());
  add("tokens_verified_total", "counter", "Tokens processed to verify states.",
      service.verified_tokens.load());
  add("passes_total", "counter", "Passes of the engine over the weights.", c.passes);
  add("busy_seconds_total", "counter", "Seconds spent in passes and in drafting.", c.busy_seconds);
  add("batch_size", "gauge", "Sessions in the last pass.", c.batch);
  add("requests_running", "gauge", "Requests running.", c.running);
  add("requests_queued", "gauge", "Requests waiting to run.", c.queued);
  add("requests_refused_total", "counter", "Requests refused because the queue was full.",
      c.refused);
  add("requests_cancelled_total", "counter",
      "Requests whose client disconnected while they waited.", c.cancelled);
  add("states", "gauge", "States of clients.", t["states"].get<int64_t>());
  add("state_evictions_total", "counter", "States evicted from memory.",
      t["evictions"].get<int64_t>());
  add("state_restores_total", "counter", "States restored to memory.",
      t["restores"].get<int64_t>());
  add("kv_blocks", "gauge", "Blocks of keys and values held by idle states.",
      t["blocks_memory"].get<int64_t>(), "{kind=\"memory\"}");
  add("kv_blocks", "gauge", "", t["blocks_mapped"].get<int64_t>(), "{kind=\"mapped\"}");
  if (t["store"].is_object()) add_store(t["store"], add);
  add("memory_bytes", "gauge", "Memory of the blocks held by idle states.",
      service.states.memory_used());
  text += service.request_seconds.text("request_seconds",
                                       "Seconds from a request to the end of its answer.");
  text += service.first_token_seconds.text(
      "first_token_seconds", "Seconds from a request to the first token of its reply.");
  text +=
      service.engine.token_seconds().text("token_seconds", "Seconds between tokens of a reply.");
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
  throw RequestError(404, "no_such_address", "the page has no file " + printable(name, 60));
}

}  // namespace stet::serve
