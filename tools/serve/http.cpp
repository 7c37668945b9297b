// The server's thread: listens, and reads and writes for all connections (connection.cpp).
#include "tools/serve/http.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <list>

#include "stet/base/error.hpp"
#include "tools/serve/connection.hpp"

namespace stet::serve {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using tcp = asio::ip::tcp;

// Returns the group of an address. The owner of one IPv6 address usually has its whole network.
std::string group_of(const asio::ip::address& address) {
  if (!address.is_v6() || address.to_v6().is_v4_mapped() || address.is_loopback())
    return address.to_string();
  const auto bytes = address.to_v6().to_bytes();
  return {reinterpret_cast<const char*>(bytes.data()), 8};
}

bool out_of_something(const error_code& error) {
  return error == asio::error::no_descriptors || error == asio::error::no_memory ||
         error == asio::error::no_buffer_space ||
         error == error_code(ENFILE, boost::system::system_category());
}

}  // namespace

struct HttpServer::Impl final : HttpContext {
  explicit Impl(const HttpLimits& limits_) : HttpContext(limits_) {}

  void bind(const std::string& host, int port);
  void accept();
  void took(const error_code& error, tcp::socket socket);
  void begin(tcp::socket socket);
  bool make_room(const std::string* group);
  void ended(Connection& connection) override;
  void drain();

  tcp::acceptor acceptor{io};
  asio::steady_timer pause{io};
  std::list<ConnectionPtr> connections;  // in order of arrival
  asio::executor_work_guard<asio::io_context::executor_type> guard = asio::make_work_guard(io);
  error_code broken;
};

// Binds the address. SO_REUSEADDR lets a server start right after another has ended, but not two at
// once.
void HttpServer::Impl::bind(const std::string& host, int port) {
  tcp::resolver resolver(io);
  error_code error = asio::error::host_not_found;
  for (const auto& found : resolver.resolve(host, std::to_string(port))) {
    const tcp::endpoint endpoint = found.endpoint();
    acceptor.open(endpoint.protocol());
    acceptor.set_option(tcp::acceptor::reuse_address(true));
    acceptor.bind(endpoint, error);
    if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
    if (!error) return;
    acceptor.close();
  }
  throw boost::system::system_error(error);
}

void HttpServer::Impl::accept() {
  acceptor.async_accept(
      [this](const error_code& error, tcp::socket socket) { took(error, std::move(socket)); });
}

void HttpServer::Impl::took(const error_code& error, tcp::socket socket) {
  if (draining) return;
  if (!error) {
    begin(std::move(socket));
  } else if (out_of_something(error)) {
    make_room(nullptr);
    pause.expires_after(std::chrono::milliseconds(100));
    pause.async_wait([this](const error_code& ended) {
      if (!ended) accept();
    });
    return;
  } else if (error != asio::error::connection_aborted && error != asio::error::interrupted) {
    broken = error;
    return drain();
  }
  accept();
}

void HttpServer::Impl::begin(tcp::socket socket) {
  error_code ignored;
  const tcp::endpoint peer = socket.remote_endpoint(ignored);
  const std::string group = group_of(peer.address());
  const auto of_group = static_cast<size_t>(
      std::count_if(connections.begin(), connections.end(),
                    [&](const ConnectionPtr& connection) { return connection->group() == group; }));
  const bool room = (connections.size() < limits.connections || make_room(nullptr)) &&
                    (of_group < limits.per_address || make_room(&group));
  if (!room) {
    constexpr std::string_view kFull =
        "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 1\r\n"
        "Connection: close\r\n\r\n";
    socket.non_blocking(true, ignored);
    socket.send(asio::buffer(kFull.data(), kFull.size()), 0, ignored);
    return;
  }
  socket.set_option(tcp::no_delay(true), ignored);
  connections.push_back(
      std::make_shared<Connection>(std::move(socket), peer.address().to_string(), group, *this));
  connections.back()->begin();
}

// Ends one connection, of this group if one is named. Takes the one that has waited longest for a
// request, or else for the rest of one.
bool HttpServer::Impl::make_room(const std::string* group) {
  for (const bool idle : {true, false}) {
    for (const ConnectionPtr& connection : connections) {
      if (group != nullptr && connection->group() != *group) continue;
      if (idle ? !connection->waits() : !connection->asks()) continue;
      connection->cut();
      return true;
    }
  }
  return false;
}

void HttpServer::Impl::ended(Connection& connection) {
  connections.remove_if([&](const ConnectionPtr& other) { return other.get() == &connection; });
  if (draining && connections.empty()) guard.reset();
}

void HttpServer::Impl::drain() {
  draining = true;
  error_code ignored;
  acceptor.close(ignored);
  pause.cancel();
  for (const ConnectionPtr& connection : std::list(connections)) connection->drain();
  if (connections.empty()) guard.reset();
}

HttpServer::HttpServer(const HttpLimits& limits, Admit admit)
    : impl_(std::make_unique<Impl>(limits)) {
  impl_->admit = std::move(admit);
}

HttpServer::~HttpServer() {
  impl_->work.join();
  impl_->beside.join();
}

int HttpServer::bind(const std::string& host, int port) {
  try {
    impl_->bind(host, port);
    return impl_->acceptor.local_endpoint().port();
  } catch (const boost::system::system_error& e) {
    const bool used = e.code() == asio::error::address_in_use;
    throw Error(
        ErrorKind::io, "", "--port", "",
        used ? fmt::format("port {} of {} is in use by another program", port, host)
             : fmt::format("cannot listen on port {} of {}: {}", port, host, e.code().message()));
  }
}

void HttpServer::run() {
  asio::post(impl_->io, [this] { impl_->accept(); });
  impl_->io.run();
  impl_->work.join();
  impl_->beside.join();
  if (impl_->broken)
    throw Error(ErrorKind::io, "", "serve", "a socket that takes connections",
                impl_->broken.message());
}

void HttpServer::drain() {
  asio::post(impl_->io, [this] { impl_->drain(); });
}

void HttpServer::stop() {
  asio::post(impl_->io, [this] {
    impl_->drain();
    for (const ConnectionPtr& connection : std::list(impl_->connections)) connection->cut();
  });
}

}  // namespace stet::serve
