// Answers: JSON, streams of events, and errors.
#include <fmt/format.h>

#include <new>

#include "stet/base/error.hpp"
#include "stet/kv/overflow.hpp"
#include "stet/model/damaged_weights.hpp"
#include "tools/serve/service.hpp"

namespace stet::serve {

Json RequestError::json() const {
  const char* type = status == 401   ? "authentication_error"
                     : status == 403 ? "permission_error"
                     : status == 404 ? "not_found_error"
                     : status == 429 ? "rate_limit_error"
                     : status >= 500 ? "server_error"
                                     : "invalid_request_error";
  return {{"type", "error"},
          {"error",
           {{"message", what()},
            {"type", type},
            {"param", pointer.empty() ? Json(nullptr) : Json(pointer)},
            {"code", code}}}};
}

RequestError current_error() {
  try {
    throw;
  } catch (const RequestError& e) {
    return e;
  } catch (const KvOverflow& e) {  // the type is that of the server's --kv
    return {500, "kv_overflow", e.what()};
  } catch (const DamagedWeights&) {
    return {500, "damaged_weights",
            "the weights of the server's model are damaged; its log names the file"};
  } catch (const Error& e) {
    const bool theirs = e.kind == ErrorKind::argument || e.kind == ErrorKind::capacity ||
                        e.kind == ErrorKind::unsupported || e.kind == ErrorKind::mismatch ||
                        e.kind == ErrorKind::format;
    if (e.kind == ErrorKind::io)
      return {500, "io", "expected a file of the server, found an error"};
    return {theirs ? 400 : 500,
            e.kind == ErrorKind::capacity ? "context_length_exceeded" : "invalid",
            Error(e.kind, "", e.field, e.expected, e.found).what()};
  } catch (const Cancelled&) {
    return {499, "cancelled", "expected a client that waits, found none, or no time left"};
  } catch (const std::bad_alloc&) {
    return {503, "out_of_memory", "expected enough memory, found none left"};
  } catch (const std::exception&) {
    return {500, "internal", "an error of the server's"};
  }
}

RequestError reported_error() {
  try {
    throw;
  } catch (const RequestError& e) {
    return e;
  } catch (const DamagedWeights& e) {
    tool::say("error: {}\n", printable(e.what(), 3000));
    return current_error();
  } catch (const Error& e) {
    if (e.kind != ErrorKind::io) return current_error();
    tool::say("error: {}\n", printable(e.what(), 3000));
    return {500, "io", "the server could not use a file of its own; its log names the reason"};
  } catch (const std::exception& e) {
    tool::say("error: {}\n", printable(e.what(), 3000));
    return current_error();
  } catch (...) {
    return current_error();
  }
}

std::string Request::query_or(const std::string& name, const std::string& fallback) const {
  const auto found = query.find(name);
  return found == query.end() ? fallback : found->second;
}

bool Writer::event(const Json& data, std::string_view name) {
  std::string text;
  if (!name.empty()) text = "event: " + std::string(name) + "\n";
  return write(text + "data: " + tool::dump(data) + "\n\n");
}

Response json_response(const Json& json, int status) {
  Response r;
  r.status = status;
  r.body = tool::dump(json) + "\n";
  return r;
}

Response error_response(const RequestError& error) {
  Response r = json_response(error.json(), error.status);
  if (error.status == 429 || error.status == 503) r.headers.emplace_back("Retry-After", "1");
  if (error.status == 401) r.headers.emplace_back("WWW-Authenticate", "Bearer");
  return r;
}

Response event_stream(std::function<void(Writer&)> stream) {
  Response r;
  r.type = "text/event-stream";
  r.headers = {{"Cache-Control", "no-store"}};
  r.stream = std::move(stream);
  return r;
}

// ---------------------------------------------------------------- leases and deadlines

namespace {

// Runs `work`. Turns Cancelled into an error if the deadline has passed or the server stops.
template <class Work>
auto in_time(const Service& service, const Caller& caller, Work&& work) {
  try {
    return work();
  } catch (const Cancelled&) {
    if (caller.until > 0 && tool::seconds() > caller.until)
      throw RequestError(504, "deadline_exceeded",
                         fmt::format("the request did not end within {:g} s (--deadline)",
                                     caller.until - caller.since));
    if (!service.stopping) throw;
    throw RequestError(503, "shutting_down", "the server is shutting down");
  }
}

}  // namespace

Response respond_at_once(Service& service, const Request& request,
                         const std::function<Response(const Caller&)>& body) {
  const Caller caller = service.caller(request);
  return in_time(service, caller, [&] {
    const Engine::Lease lease = service.engine.enter(caller.client, caller.cancelled);
    Response r = body(caller);
    service.request_seconds.add(tool::seconds() - caller.since);
    return r;
  });
}

Response respond_from(Service& service, const Request& request, const std::vector<NodePtr>& nodes,
                      const std::function<Response(std::vector<Session>&)>& body) {
  std::vector<Session> sessions;
  for (const NodePtr& node : nodes) {
    if (auto session = service.states.in_memory(*node)) sessions.push_back(std::move(*session));
  }
  if (sessions.size() == nodes.size()) return body(sessions);
  sessions.clear();
  return respond_at_once(service, request, [&](const Caller& caller) {
    for (const NodePtr& node : nodes) sessions.push_back(service.open(caller, node));
    return body(sessions);
  });
}

Response answer_at_once(Service& service, const Request& request,
                        const std::function<Json(const Caller&)>& body) {
  return respond_at_once(service, request,
                         [&](const Caller& caller) { return json_response(body(caller)); });
}

Response stream_events(Service& service, const Request& request,
                       const std::function<StreamBody(const Caller&)>& prepare,
                       const ErrorEvent& error_event) {
  constexpr double kKeepAlive = 5;
  const Caller caller = service.caller(request);
  return in_time(service, caller, [&] {
    const auto lease =
        std::make_shared<Engine::Lease>(service.engine.enter(caller.client, caller.cancelled));
    return event_stream(
        [&service, caller, lease, error_event, body = prepare(caller)](Writer& writer) {
          Caller talking = caller;
          talking.cancelled = [&writer, &caller, next = tool::seconds() + kKeepAlive]() mutable {
            if (tool::seconds() > next) {
              writer.write(": still here\n\n");
              next = tool::seconds() + kKeepAlive;
            }
            return !writer.good() || caller.cancelled();
          };
          try {
            in_time(service, caller, [&] { body(talking, writer); });
            service.request_seconds.add(tool::seconds() - caller.since);
          } catch (...) {
            const RequestError error = reported_error();
            writer.event(error_event ? error_event(error) : error.json(), "error");
          }
        });
  });
}

}  // namespace stet::serve
