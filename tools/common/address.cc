#include "tools/common/address.h"

#include <charconv>

namespace twinpath::tools {
namespace {

constexpr unsigned long long kMostPort = 65535;

}  // namespace

std::string port_complaint(const std::string& port, unsigned least_port) {
  if (port.find_first_not_of("0123456789") != std::string::npos) {
    // A sign or a blank begins no service's name, and strtol() takes both.
    const char first = port.front();
    return first == '-' || first == '+' || first == ' ' ? "'" + port + "' is not a port" : "";
  }
  unsigned long long number = 0;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), number);
  if (!port.empty() && error == std::errc{} && number >= least_port && number <= kMostPort)
    return {};
  return "'" + port + "' is not a port: " + std::to_string(least_port) + " to 65535";
}

std::optional<HostPort> parse_host_port(const std::string& text, unsigned least_port,
                                        std::string& why) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == text.size()) {
    why = "'" + text + "' is not HOST:PORT";
    return std::nullopt;
  }
  HostPort out{text.substr(0, colon), text.substr(colon + 1)};
  if (out.host.size() > 2 && out.host.front() == '[' && out.host.back() == ']') {
    out.host = out.host.substr(1, out.host.size() - 2);
  } else if (out.host.find_first_of("[:") != std::string::npos) {
    // Where the address ends and the port begins would be a guess.
    why =
        "'" + text + "' is not HOST:PORT; an IPv6 address stands in brackets: [2001:db8::1]:29500";
    return std::nullopt;
  }
  if (why = port_complaint(out.port, least_port); !why.empty()) return std::nullopt;
  return out;
}

}  // namespace twinpath::tools
