// stet serve: serves a model and its states over HTTP.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include "stet/base/error.hpp"
#include "tools/prompt/speculate_option.hpp"
#include "tools/prompt/tokenizer_choice.hpp"
#include "tools/serve/admission.hpp"
#include "tools/serve/keys.hpp"
#include "tools/serve/service.hpp"
#include "tools/store/store.hpp"

namespace stet::tool {
namespace {

// Short, since a client waits for each answer of the store.
constexpr StoreTimeouts kServePatience = {2, 5};

struct ServeCommand {
  ModelOptions model;
  std::string host = "127.0.0.1", key_file, memory = "2048";
  int port = 8080;
  std::vector<std::string> hosts, origins, aliases;
  serve::StatesOptions states;
  serve::EngineOptions engine;
  SpeculateOption speculate;
  double deadline = 0;
  int64_t memory_mb = 2048, stop_seconds = 20, max_states = 0, in_memory = 10000;
};

// Returns true for an origin as browsers send it: a scheme and a host, without a path.
bool is_origin(std::string_view origin) {
  const size_t scheme = origin.starts_with("https://")  ? 8
                        : origin.starts_with("http://") ? 7
                                                        : origin.size();
  const std::string_view host = origin.substr(scheme);
  return !host.empty() && host.find_first_of("/?#@* \t") == std::string_view::npos;
}

// Returns true for a name as in a Host field, without a port.
bool is_host(const std::string& host) {
  return host.find_first_of("/?#@*[] \t") == std::string::npos &&
         (std::count(host.begin(), host.end(), ':') != 1);
}

void check(const ServeCommand& o) {
  if (!serve::is_loopback(o.host) && o.key_file.empty())
    usage_error("--host", "a loopback address (127.0.0.1), or --api-key-file with it", o.host);
  for (const std::string& origin : o.origins) {
    if (origin == "*" && o.key_file.empty())
      usage_error("--allow-origin", "--api-key-file with *, or the origins by their names", origin);
    if (origin != "*" && !is_origin(origin))
      usage_error("--allow-origin", "an origin, as https://example.org", origin);
  }
  for (const std::string& host : o.hosts) {
    if (!is_host(host))
      usage_error("--allow-host", "a host name without scheme, port or path, as example.org", host);
  }
  if (!(o.deadline >= 0))
    usage_error("--deadline", "a number of seconds", fmt::to_string(o.deadline));
  if (o.states.durable && o.states.directory.empty())
    usage_error("--durable", "--state-dir with it", "none");
  if (!store_url().empty() && !o.states.directory.empty())
    usage_error("--state-dir", "--store or this, not both", o.states.directory);
}

// Deletes states that have expired. Repeats that until `pause` returns false.
void delete_expired(serve::States& states, const std::function<bool()>& pause) {
  do {
    try {
      states.expire();
    } catch (const std::exception& e) {
      say("expired states were not deleted: {}\n", printable(e.what(), 3000));
    }
  } while (pause());
}

// Serves until a signal. Running requests may then continue for `patience` seconds before they are
// cancelled; their drawn tokens are kept. Their clients have half as long to receive the answer.
// Sets `signal_time` to the time of the signal. Throws for any other end of the server.
void serve_until_signal(serve::HttpServer& server, serve::Service& service, double patience,
                        double& signal_time) {
  std::atomic<bool> over{false};
  const auto wait = [&](double seconds_, auto&& until) {
    const double end = seconds() + seconds_;
    while (!over && !until() && (seconds_ < 0 || seconds() < end))
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
  };
  std::thread expiry([&] {
    delete_expired(service.states, [&] {
      wait(1, [] { return false; });
      return !over;
    });
  });
  std::thread watch([&] {
    wait(-1, [] { return Interrupts::signal() != 0; });
    if (!over) signal_time = seconds();
    service.engine.close();
    server.drain();
    wait(patience, [] { return false; });
    service.stopping = true;
    wait(patience / 2, [] { return false; });
    server.stop();
  });
  std::exception_ptr error;
  try {
    server.run();
  } catch (...) {
    error = std::current_exception();
  }
  over = true;
  expiry.join();
  watch.join();
  if (error != nullptr) std::rethrow_exception(error);
}

void run(ServeCommand& o) {
  check(o);
  const serve::Keys keys = o.key_file.empty() ? serve::Keys() : serve::Keys(o.key_file);
  const auto model = o.model.load_model();
  const auto tokenizer = load_tokenizer(o.model.checkpoint);
  if (tokenizer == nullptr) {
    if (const auto fault = tokenizer_fault(*o.model.source()))
      say("token ids alone are served: {}\n", fault->what());
  }
  if (!store_url().empty()) {
    o.states.shared = std::make_shared<serve::SharedStates>(
        open_store_backend(store_url(), nullptr, kServePatience), StoreKey::load(store_key_path()),
        o.states.share_prefixes, store_options());
    o.engine.prompt_took = [shared = o.states.shared](int64_t first, int64_t n, double seconds) {
      shared->computed(first, n, seconds);
    };
  }
  o.states.clients = keys.clients();
  o.states.memory = static_cast<uint64_t>(o.memory_mb) << 20;
  if (o.max_states > 0) o.states.max_states = static_cast<size_t>(o.max_states);
  o.states.in_memory = static_cast<size_t>(o.in_memory);
  o.states.lock_seconds = static_cast<double>(o.stop_seconds) + 5;
  const SessionOptions session = o.model.session_options();
  o.engine.drafter =
      o.speculate.drafters({model, o.model, tokenizer.get(), session.compute, session.capacity});
  serve::Service service(model, tokenizer, session, o.states, o.engine, o.deadline);
  for (const std::string& alias : o.aliases) {
    if (!service.is_name(alias)) service.aliases.push_back(alias);
  }
  serve::HttpLimits limits;
  limits.threads = static_cast<size_t>(o.engine.streams + o.engine.queue) + 16;
  for (std::vector<std::string>* names : {&o.hosts, &o.origins}) {
    for (std::string& name : *names) name = serve::lower_case(name);
  }
  serve::AdmissionRules rules{o.host, o.hosts, o.origins, nullptr};
  if (keys.any()) rules.client = [&keys](const std::string& given) { return keys.client(given); };
  serve::HttpServer server(limits, [&service, &rules](serve::Request& request) {
    return serve::admit(service, request, rules);
  });
  const int port = server.bind(o.host, o.port);
  const Interrupts noted;
  out(fmt::format("{}, {}: http://{}:{}/\n", service.name,
                  contract_name(*service.model, service.session.compute.contract), o.host, port));
  flush_output();
  const auto stop_seconds = static_cast<double>(o.stop_seconds);
  double signal_time = 0;
  std::exception_ptr error;
  try {
    serve_until_signal(server, service, stop_seconds / 2, signal_time);
  } catch (...) {
    error = std::current_exception();
  }
  const size_t lost =
      service.states.save_all((signal_time > 0 ? signal_time : seconds()) + stop_seconds);
  if (error != nullptr) std::rethrow_exception(error);
  if (lost > 0) throw ExitStatus{1};
}

}  // namespace

void add_serve(Command& app) {
  const auto o = std::make_shared<ServeCommand>();
  Command* sub = app.add_subcommand("serve",
                                    "Serve a model and its states over HTTP: OpenAI's API, "
                                    "Anthropic's, stet's own, and a web page.");
  const auto number = [&](const char* name, auto& value, const char* help, uint64_t most) {
    sub->add_option(name, value, help)->type_name("N")->check(integer(0, most))->group("Server");
  };
  sub->add_option("--host", o->host,
                  "address to listen on (default: 127.0.0.1); another needs --api-key-file")
      ->type_name("ADDRESS")
      ->group("Server");
  number("--port", o->port, "port to listen on (default: 8080; 0: any free one)", 65535);
  sub->add_option("--allow-host", o->hosts,
                  "a host name that clients use for this server, as behind a proxy")
      ->type_name("NAME")
      ->allow_extra_args(false)
      ->check(named())
      ->group("Server");
  sub->add_option("--allow-origin", o->origins,
                  "an origin whose pages may send requests, as https://example.org (* with "
                  "--api-key-file: any)")
      ->type_name("ORIGIN")
      ->allow_extra_args(false)
      ->group("Server");
  sub->add_option("--api-key-file", o->key_file,
                  "API keys: KEY or NAME KEY on each line; only you may have access to the file")
      ->type_name("FILE")
      ->group("Server");
  sub->add_option("--alias", o->aliases, "another name of the model in requests (repeat for more)")
      ->type_name("NAME")
      ->allow_extra_args(false)
      ->check(named())
      ->group("Server");
  sub->add_option("--streams", o->engine.streams, "maximum requests that run at once (default: 16)")
      ->type_name("N")
      ->check(integer(1, 1024))
      ->group("Server");
  number("--queue", o->engine.queue, "maximum requests that wait (default: 64)", 4096);
  sub->add_option("--deadline", o->deadline, "maximum seconds of a request (default: none)")
      ->type_name("S")
      ->group("Server");
  number("--memory", o->memory_mb, "maximum MB of keys and values of idle states (default: 2048)",
         uint64_t{1} << 30);
  Option* state_dir = sub->add_option("--state-dir", o->states.directory,
                                      "directory that keeps the states (default: only in memory)")
                          ->type_name("DIR")
                          ->group("Server");
  sub->add_option("--max-states", o->max_states,
                  "maximum states of a client; the least recently used are deleted (default: "
                  "10000, with --state-dir none)")
      ->type_name("N")
      ->check(integer(1, uint64_t{1} << 40))
      ->group("Server");
  sub->add_option("--states-in-memory", o->in_memory,
                  "with --state-dir: maximum states of a client whose tokens stay in memory "
                  "(default: 10000)")
      ->type_name("N")
      ->check(integer(1, uint64_t{1} << 40))
      ->needs(state_dir)
      ->group("Server");
  number("--ttl", o->states.ttl,
         "delete a state this many seconds after its last use (default: 0, never)",
         uint64_t{1} << 40);
  number("--stop-seconds", o->stop_seconds,
         "maximum seconds for writing keys and values after a signal (default: 20)", 86400);
  sub->add_flag("--durable", o->states.durable, "write a state to disk before a reply names it")
      ->group("Server");
  sub->add_flag("--share-prefixes", o->states.share_prefixes,
                "let clients reuse one another's tokens; timing can then reveal what others sent")
      ->group("Server");
  o->speculate.add_to(*sub);
  o->model.add_to(*sub);
  sub->callback([o] { run(*o); });
}

}  // namespace stet::tool
