#pragma once
// HOST:PORT as people and variables give it.  Pure.
#include <optional>
#include <string>

namespace twinpath::tools {

struct HostPort {
  std::string host;  // without brackets
  std::string port;
};

// HOST:PORT or [IPv6]:PORT.  Nothing, and `why` with the remedy, where it is neither, or where the
// port is none.  `least_port`: 0 where the kernel may choose, else 1.
std::optional<HostPort> parse_host_port(const std::string& text, unsigned least_port,
                                        std::string& why);

// Empty, or what is wrong with a port that is a number: getaddrinfo() takes 99999 for 34463.  A
// service's name is left to getaddrinfo().
std::string port_complaint(const std::string& port, unsigned least_port);

}  // namespace twinpath::tools
