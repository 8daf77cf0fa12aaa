#pragma once
// Just enough of HTTP/1.1 to be scraped: GET, one request a connection, one connection at a time.
// Who is slow is dropped after kPatienceMs, so nobody can hold up the others for longer.
//
// Threads: one.
#include <functional>
#include <memory>
#include <string>

#include "plugin/base/owned.h"

namespace twinpath::tools {

inline constexpr int kPatienceMs = 2000;
inline constexpr std::size_t kMostRequest = 8192;

class HttpServer {
 public:
  // `address`: "127.0.0.1:9401", "[::1]:9401"; port 0: any.  Null and `why`.
  static std::unique_ptr<HttpServer> open(const std::string& address, std::string& why);
  // Where it listens, with the port that it got.
  std::string address() const;
  // Waits for a caller, at most `ms`, and answers him with body(path); an empty body is 404.
  void serve(int ms, const std::function<std::string(const std::string& path)>& body);

 private:
  explicit HttpServer(UniqueFd socket) : socket_(std::move(socket)) {}
  UniqueFd socket_;
};

// What to answer to what was received; empty: it is not all there yet.  Pure but for body().
std::string http_answer(const std::string& request,
                        const std::function<std::string(const std::string& path)>& body);

}  // namespace twinpath::tools
