#pragma once
// A Side here and another in a child process (processes_test.cc says what its roles do).
#include <algorithm>

#include "test/soft/pair.h"
#include "test/support/child_process.h"

namespace twinpath::test {

struct Address {
  std::uint32_t qpn, rkey;
  std::uint64_t address;
  ibv_gid gid;
};

inline Address address_of(const Side& s) { return {s.qp->qp_num, s.mr->rkey, s.address(), s.gid}; }

struct Child : ChildProcess {
  Address theirs{};
  explicit Child(const std::string& role) : ChildProcess(role) { REQUIRE(hear(fd, theirs)); }
  void connect(Side& s) {
    REQUIRE(tell(fd, address_of(s)));
    // Two tries of a second: until the processes' engines have joined the queue pairs, which takes
    // some turns of each, a busy machine needs more than an adapter would.
    s.options.timeout = std::max<std::uint8_t>(s.options.timeout, 18);
    s.connect(theirs.qpn, theirs.gid);
    char go = 0;
    REQUIRE(hear(fd, go));
  }
  // Connects the two to each other.
  void meet(Child& other) {
    REQUIRE(tell(fd, other.theirs));
    REQUIRE(tell(other.fd, theirs));
    char go = 0;
    REQUIRE(hear(fd, go));
    REQUIRE(hear(other.fd, go));
  }
};

inline ibv_wc wait(Side& s, int seconds = 20) {
  ibv_wc wc{};
  for (std::int64_t end = now_ns() + seconds * kSecond; now_ns() < end;) {
    if (ibv_poll_cq(s.cq, 1, &wc) == 1) return wc;
  }
  FAIL("no completion");
  return wc;
}

}  // namespace twinpath::test
