#pragma once
// A process of a job with one port on its subnet, for tests: several are played by one process, and
// meet as those of processes do.
#include <poll.h>
#include <unistd.h>

#include <functional>

#include "plugin/base/clock.h"
#include "test/support/catch.h"
#include "tools/softhca/pci/subnet.h"

namespace twinpath::softhca::pci::test {

using mlx5::Datagram;
using mlx5::get;
using mlx5::set;

inline bool eventually(const std::function<bool()>& done) {
  for (const std::int64_t end = now_ns() + 20 * kSecond; now_ns() < end;) {
    if (done()) return true;
    (void)::poll(nullptr, 0, 5);
  }
  return done();
}

inline std::string new_job() {
  static int number = 0;
  return "subnet-test-" + std::to_string(getpid()) + "-" + std::to_string(++number);
}

inline constexpr std::uint64_t kGuid = 0x0275000000000100;

// A process with one port.
struct Process {
  Subnet subnet;
  Subnet::Port* port = nullptr;
  const std::uint16_t lid;
  Process(const std::string& job, std::uint16_t own_lid) : lid(own_lid) {
    std::string why;
    REQUIRE(subnet.connect(job, why));
    port = &subnet.join(lid, kGuid + lid);
  }
  void send(std::uint16_t to, std::uint8_t byte, std::uint32_t qpn = 1) {
    Datagram d;
    d.to_lid = to;
    d.to_qpn = qpn;
    d.data = {byte};
    port->send(std::move(d));
  }
  std::optional<Datagram> wait() {
    std::optional<Datagram> came;
    (void)eventually([&] { return (came = port->receive()).has_value(); });
    return came;
  }
  bool reaches(Process& other) {
    return eventually([&] {
             send(other.lid, 0xee);
             return other.port->receive().has_value();
           }) &&
           other.is_quiet();
  }
  // Takes what comes late.
  bool is_quiet() {
    (void)::poll(nullptr, 0, 50);
    while (auto d = port->receive()) {
      if (d->data != std::vector<std::uint8_t>{0xee}) return false;
    }
    return true;
  }

  // The status that the manager answers with; `record` goes there and comes back.
  std::uint64_t ask(std::uint64_t method, std::uint64_t attribute, Answer record) {
    Datagram d;
    d.to_lid = kManagerLid;
    d.to_qpn = 1;
    d.from.qpn = 1;
    d.data.resize(256);
    set(d.data, {8, 8}, 3);
    set(d.data, {24, 8}, method);
    set(d.data, {128, 16}, attribute);
    std::copy(record.begin(), record.end(), d.data.begin() + 56);
    port->send(std::move(d));
    const auto answer = port->receive();
    REQUIRE(answer);
    REQUIRE(get(answer->data, {24, 8}) == (method | 0x80));
    std::copy_n(answer->data.begin() + 56, record.size(), record.begin());
    return get(answer->data, {32, 16});
  }
  bool knows_path_to(std::uint16_t to) {
    std::array<std::uint8_t, 64> path{};
    set(path, {64, 64}, kLinkLocal);
    set(path, {128, 64}, kGuid + to);
    set(path, {192, 64}, kLinkLocal);
    set(path, {256, 64}, kGuid + lid);
    const std::uint64_t status = ask(1, 0x35, path);
    REQUIRE((status == 0 || status == 0x300));
    return status == 0 && get(path, {320, 16}) == to && get(path, {336, 16}) == lid;
  }
  // The LID of a group; 0: it is refused.
  std::uint64_t group(std::uint64_t method, Gid& group) {
    std::array<std::uint8_t, 56> member{};
    std::copy(group.begin(), group.end(), member.begin());
    set(member, {128, 64}, kLinkLocal);
    set(member, {192, 64}, kGuid + lid);
    if (ask(method, 0x38, member) != 0) return 0;
    std::copy_n(member.begin(), group.size(), group.begin());
    return get(member, {288, 16});
  }
};
inline constexpr std::uint64_t kGet = 1, kSet = 2;

}  // namespace twinpath::softhca::pci::test
