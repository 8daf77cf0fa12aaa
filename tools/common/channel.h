#pragma once
// One end of a stream socket: JSON lines and fixed-size blocks between a parent and its workers
// and between two workers of a pair.
//
// Threads: one at a time per end.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "plugin/base/owned.h"

namespace twinpath::tools {

class Channel {
 public:
  Channel() = default;
  explicit Channel(UniqueFd fd) : fd_(std::move(fd)) {}
  static std::pair<Channel, Channel> pair();  // close-on-exec; throws Failure

  // Both throw Failure: at `deadline_ns` (now_ns clock), naming `what`, or when the other end
  // is gone.
  void send(const void* data, std::size_t bytes);
  void receive(void* data, std::size_t bytes, std::int64_t deadline_ns, const std::string& what);

  void send_line(const nlohmann::json& j);
  // One line, if a whole one came; `closed` when there will be no more.
  std::optional<nlohmann::json> poll_line(bool& closed);

  int fd() const { return fd_.get(); }
  UniqueFd take_fd() { return std::move(fd_); }
  void close() { fd_.reset(); }

 private:
  UniqueFd fd_;
  std::string pending_;
};

}  // namespace twinpath::tools
