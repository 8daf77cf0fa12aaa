#pragma once
// Just enough of HTTP/1.1 to be scraped: GET, one request a connection.  Callers are served side by
// side, so that who is slow or silent is so to himself.  What they may hold is bounded: the oldest
// of those that have asked nothing yet goes when there are too many, and a slow reader's answer
// when answers take too much memory.
//
// Threads: one.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "plugin/base/owned.h"

namespace twinpath::tools {

inline constexpr int kPatienceMs = 2000;        // for a request
inline constexpr int kReplyPatienceMs = 10000;  // for an answer to be taken
inline constexpr std::size_t kMostRequest = 8192;
inline constexpr std::size_t kMostCallers = 64;
inline constexpr std::size_t kMostReplyBytes = std::size_t{64} << 20;

// Of a path; an empty one is 404.
using HttpBody = std::function<std::string(const std::string& path)>;

class HttpServer {
 public:
  // `address`: "127.0.0.1:9401", "[::1]:9401"; port 0: any.  Null and `why`.
  static std::unique_ptr<HttpServer> open(const std::string& address, std::string& why);
  // Where it listens, with the port that it got.
  std::string address() const;
  // Waits until a caller can be served, at most `ms`, and does what can be done without waiting.
  // Who asked meanwhile for the same path gets the same answer.
  void serve(int ms, const HttpBody& body);
  std::size_t callers() const { return callers_.size(); }

 private:
  using Reply = std::shared_ptr<const std::string>;
  class Answers;
  struct Caller {
    UniqueFd socket;
    std::int64_t until = 0;
    std::string request;
    Reply reply;  // null: the request is not all there
    std::size_t sent = 0;
    bool over = false;
  };
  explicit HttpServer(UniqueFd socket) : socket_(std::move(socket)) {}
  void admit();
  void listen_to(Caller& caller, Answers& answers);
  void bound_replies();

  UniqueFd socket_;
  std::vector<Caller> callers_;  // the oldest first
};

// What to answer to what was received; empty: it is not all there yet.  Pure but for body().
std::string http_answer(const std::string& request, const HttpBody& body);

}  // namespace twinpath::tools
