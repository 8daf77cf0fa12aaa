#include "tools/exporter/http.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <map>

#include "plugin/base/clock.h"
#include "tools/common/address.h"

namespace twinpath::tools {
namespace {

constexpr const char* kEnd = "\r\n\r\n";  // of a request

std::string answer(const char* status, const std::string& body) {
  return std::string("HTTP/1.1 ") + status +
         "\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\nConnection: close\r\n\r\n" + body;
}

}  // namespace

std::string http_answer(const std::string& request, const HttpBody& body) {
  if (request.size() > kMostRequest) return answer("431 Request Header Fields Too Large", "");
  if (request.find(kEnd) == std::string::npos) return {};
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
  const auto given = parse_host_port(address, 0, why);
  if (!given) return nullptr;
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICHOST | AI_NUMERICSERV;
  if (const int rc = ::getaddrinfo(given->host.c_str(), given->port.c_str(), &hints, &found);
      rc != 0) {
    why = "'" + address + "' is not ADDRESS:PORT: " + ::gai_strerror(rc) +
          "; an address of this host, in numbers";
    return nullptr;
  }
  UniqueFd socket(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int yes = 1;
  const bool bound = socket &&
                     ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0 &&
                     ::bind(socket.get(), found->ai_addr, found->ai_addrlen) == 0 &&
                     ::listen(socket.get(), 128) == 0;
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

// Everybody who knocks; the first to go for them are callers that have asked nothing, whose silence
// is all that is known of them, by age.
void HttpServer::admit() {
  for (std::size_t round = 0; round < kMostCallers; ++round) {
    UniqueFd socket(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) return;
    if (callers_.size() == kMostCallers) {
      const auto silent = std::find_if(callers_.begin(), callers_.end(),
                                       [](const Caller& c) { return c.reply == nullptr; });
      callers_.erase(silent != callers_.end() ? silent : callers_.begin());
    }
    Caller& caller = callers_.emplace_back();
    caller.socket = std::move(socket);
    caller.until = now_ns() + kPatienceMs * kMillisecond;
  }
}

// What a round's callers are answered: one body of a path, however its request is written, and
// equal answers once in memory.
class HttpServer::Answers {
 public:
  explicit Answers(const HttpBody& body) : body_(body) {}
  Reply to(const std::string& request) {
    std::string text = http_answer(request, [this](const std::string& path) {
      const auto [at, fresh] = bodies_.try_emplace(path);
      if (fresh) at->second = body_(path);
      return at->second;
    });
    if (text.empty()) return nullptr;
    for (const Reply& r : replies_)
      if (*r == text) return r;
    return replies_.emplace_back(std::make_shared<const std::string>(std::move(text)));
  }

 private:
  const HttpBody& body_;
  std::map<std::string, std::string> bodies_;
  std::vector<Reply> replies_;
};

void HttpServer::listen_to(Caller& caller, Answers& answers) {
  while (caller.reply == nullptr) {
    std::array<char, 2048> part;
    const ssize_t n = ::recv(caller.socket.get(), part.data(), part.size(), 0);
    if (n <= 0) {
      caller.over = n == 0 || (errno != EAGAIN && errno != EINTR);
      return;
    }
    caller.request.append(part.data(), static_cast<std::size_t>(n));
    caller.reply = answers.to(caller.request);
    if (caller.reply == nullptr) continue;
    caller.request.clear();
    caller.until = now_ns() + kReplyPatienceMs * kMillisecond;
  }
}

void HttpServer::bound_replies() {
  std::map<const std::string*, std::size_t> held;
  for (const Caller& c : callers_)
    if (c.reply != nullptr && !c.over) held[c.reply.get()] = c.reply->size();
  std::size_t bytes = 0;
  for (const auto& [reply, size] : held) bytes += size;
  for (Caller& c : callers_) {
    if (bytes <= kMostReplyBytes || held.size() <= 1) return;
    if (c.reply == nullptr || c.over) continue;
    c.over = true;
    const bool shared = std::any_of(callers_.begin(), callers_.end(), [&](const Caller& other) {
      return !other.over && other.reply == c.reply;
    });
    if (!shared) {
      bytes -= c.reply->size();
      held.erase(c.reply.get());
    }
  }
}

void HttpServer::serve(int ms, const HttpBody& body) {
  std::vector<pollfd> waits{{socket_.get(), POLLIN, 0}};
  std::int64_t until = now_ns() + ms * kMillisecond;
  for (const Caller& c : callers_) {
    waits.push_back({c.socket.get(), static_cast<short>(c.reply ? POLLOUT : POLLIN), 0});
    until = std::min(until, c.until);
  }
  const std::int64_t left = std::max<std::int64_t>(0, until - now_ns());
  (void)::poll(waits.data(), waits.size(), static_cast<int>(left / kMillisecond) + 1);
  admit();
  Answers answers(body);
  for (Caller& c : callers_) listen_to(c, answers);
  for (Caller& c : callers_) {
    while (c.reply != nullptr && !c.over) {
      const ssize_t n =
          ::send(c.socket.get(), c.reply->data() + c.sent, c.reply->size() - c.sent, MSG_NOSIGNAL);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno == EAGAIN) break;
      if (n > 0) c.sent += static_cast<std::size_t>(n);
      c.over = n <= 0 || c.sent == c.reply->size();
      if (c.over) (void)::shutdown(c.socket.get(), SHUT_WR);
    }
    c.over = c.over || now_ns() >= c.until;
  }
  bound_replies();
  std::erase_if(callers_, [](const Caller& c) { return c.over; });
}

}  // namespace twinpath::tools
