#include "tools/exporter/http.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "plugin/base/clock.h"

namespace twinpath::tools {
namespace {

std::string answer(const char* status, const std::string& body) {
  return std::string("HTTP/1.1 ") + status +
         "\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\nConnection: close\r\n\r\n" + body;
}

bool ready(int fd, short events, std::int64_t end) {
  const std::int64_t left = (end - now_ns()) / kMillisecond;
  pollfd p{fd, events, 0};
  return left > 0 && ::poll(&p, 1, static_cast<int>(left)) == 1;
}

bool split(const std::string& address, std::string& host, std::string& port) {
  const std::size_t colon = address.rfind(':');
  if (colon == std::string::npos) return false;
  host = address.substr(0, colon);
  port = address.substr(colon + 1);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']')
    host = host.substr(1, host.size() - 2);
  return !host.empty() && !port.empty();
}

}  // namespace

std::string http_answer(const std::string& request,
                        const std::function<std::string(const std::string& path)>& body) {
  if (request.size() > kMostRequest) return answer("431 Request Header Fields Too Large", "");
  if (request.find("\r\n\r\n") == std::string::npos) return {};
  const std::string line = request.substr(0, request.find("\r\n"));
  const std::size_t first = line.find(' '), second = line.rfind(' ');
  if (first == std::string::npos || second == first || line.compare(second + 1, 5, "HTTP/") != 0)
    return answer("400 Bad Request", "");
  if (line.compare(0, first, "GET") != 0) return answer("405 Method Not Allowed", "");
  std::string path = line.substr(first + 1, second - first - 1);
  path = path.substr(0, path.find('?'));
  const std::string text = body(path);
  return text.empty() ? answer("404 Not Found", "see /metrics\n") : answer("200 OK", text);
}

std::unique_ptr<HttpServer> HttpServer::open(const std::string& address, std::string& why) {
  std::string host, port;
  if (!split(address, host, port)) {
    why = "'" + address + "' is no ADDRESS:PORT";
    return nullptr;
  }
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICHOST | AI_NUMERICSERV;
  if (const int rc = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found); rc != 0) {
    why = "'" + address + "' is no ADDRESS:PORT: " + ::gai_strerror(rc);
    return nullptr;
  }
  UniqueFd socket(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int yes = 1;
  const bool bound = socket &&
                     ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0 &&
                     ::bind(socket.get(), found->ai_addr, found->ai_addrlen) == 0 &&
                     ::listen(socket.get(), 16) == 0;
  const int error = errno;
  ::freeaddrinfo(found);
  if (bound) return std::unique_ptr<HttpServer>(new HttpServer(std::move(socket)));
  why = "cannot listen on " + address + ": " + std::strerror(error) +
        "; --listen takes another address or port";
  return nullptr;
}

std::string HttpServer::address() const {
  sockaddr_storage at{};
  socklen_t bytes = sizeof at;
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  if (::getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&at), &bytes) != 0 ||
      ::getnameinfo(reinterpret_cast<sockaddr*>(&at), bytes, host.data(), host.size(), port.data(),
                    port.size(), NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return {};
  const std::string name = host.data();
  return (at.ss_family == AF_INET6 ? "[" + name + "]" : name) + ":" + port.data();
}

void HttpServer::serve(int ms, const std::function<std::string(const std::string& path)>& body) {
  if (!ready(socket_.get(), POLLIN, now_ns() + ms * kMillisecond)) return;
  const UniqueFd caller(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!caller) return;
  const std::int64_t end = now_ns() + kPatienceMs * kMillisecond;
  std::string request, reply;
  while (reply.empty()) {
    std::array<char, 2048> part;
    if (!ready(caller.get(), POLLIN, end)) return;
    const ssize_t n = ::recv(caller.get(), part.data(), part.size(), 0);
    if (n <= 0) return;
    request.append(part.data(), static_cast<std::size_t>(n));
    reply = http_answer(request, body);
  }
  for (std::size_t sent = 0; sent < reply.size();) {
    if (!ready(caller.get(), POLLOUT, end)) return;
    const ssize_t n = ::send(caller.get(), reply.data() + sent, reply.size() - sent, MSG_NOSIGNAL);
    if (n <= 0) return;
    sent += static_cast<std::size_t>(n);
  }
  (void)::shutdown(caller.get(), SHUT_WR);
}

}  // namespace twinpath::tools
