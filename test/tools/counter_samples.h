#pragma once
// What a reader might have taken from a page, made by hand.
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "plugin/base/clock.h"
#include "tools/counters/show.h"
#include "tools/counters/view.h"

namespace twinpath::tools::test {

inline ProcessSample process(const std::string& host, int pid) {
  ProcessSample p;
  p.host = host;
  p.pid = p.inner_pid = pid;
  p.taken_at = 10 * kSecond;
  return p;
}

inline ConnectionSample connection(counters::Role role, const std::string& host,
                                   std::uint32_t pid) {
  ConnectionSample c;
  c.state = counters::State::open;
  c.role = role;
  c.peer_host = host;
  c.peer_pid = pid;
  c.device = "mlx5_0";
  c.path = "HOST";
  c.rails.emplace_back().port = "mlx5_0";
  return c;
}

inline void waits(ProcessSample& p, counters::Role role, const std::string& host, std::uint32_t pid,
                  counters::Wait wait, double share) {
  ConnectionSample c = connection(role, host, pid);
  c.key = p.connections.size() << 32;
  c.waited_ns[static_cast<std::size_t>(wait)] = static_cast<std::uint64_t>(share * 10 * kSecond);
  p.connections.push_back(c);
}

// What is shown on a screen, in lines.
inline std::vector<std::string> shown(const Summary& s, std::size_t most = 0,
                                      const Screen& screen = {}) {
  char* text = nullptr;
  std::size_t bytes = 0;
  std::FILE* const memory = ::open_memstream(&text, &bytes);
  print_summary(memory, s, most, screen);
  std::fclose(memory);
  std::istringstream in(std::string(text, bytes));
  std::free(text);
  std::vector<std::string> out;
  for (std::string line; std::getline(in, line);) out.push_back(line);
  return out;
}

}  // namespace twinpath::tools::test
