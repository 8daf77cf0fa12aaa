// Large messages are copied in slices: no post and no poll takes as long as the message.
#include <signal.h>

#include "plugin/fabric/soft/hca.h"
#include "plugin/fabric/soft/requester.h"
#include "test/soft/processes.h"
#include "test/support/needs.h"

using namespace twinpath;
using namespace twinpath::test;

namespace {

void fill(Side& s, std::uint32_t bytes) {
  for (std::uint32_t i = 0; i < bytes; ++i)
    s.buffer[i] = static_cast<std::uint8_t>(i * 31 + i / 77);
}

// The port is down, so that what is posted waits for the test to look at the queue itself.
struct Paused {
  explicit Paused(Side& side) : s(side) {
    soft::Hca::existing()->team().set(0);  // what helpers copy is none of a look's
    REQUIRE(soft::set_port_state(s.context, 1, false) == 0);
  }
  ~Paused() {
    soft::Hca::existing()->team().set(-1);
    (void)soft::set_port_state(s.context, 1, true);
    while (s.next_event(nullptr, 0) != -1) continue;
  }
  static void connect_again(soft::SoftQp& qp) {
    const std::lock_guard hold(qp.lock);
    soft::set_carrier(qp, true);
  }
  Side& s;
};

}  // namespace

TEST_CASE("one look at a queue copies a slice of a large write or read", "[soft]") {
  const auto opcode = GENERATE(IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE_WITH_IMM);
  constexpr std::uint32_t kBytes = 32u << 20;
  Options o;
  o.bytes = kBytes;
  Pair p(o);
  Side& source = opcode == IBV_WR_RDMA_READ ? p.b : p.a;
  fill(source, kBytes);
  if (opcode == IBV_WR_RDMA_WRITE_WITH_IMM) REQUIRE(p.b.post_receive(0, 0) == 0);
  Paused pause(p.a);
  auto w = p.a.request(opcode, 0, kBytes, p.b.address(), p.b.mr->rkey);
  REQUIRE(p.a.post(w) == 0);
  pause.connect_again(*soft::soft(p.b.qp));
  {
    soft::SoftQp& qp = *soft::soft(p.a.qp);
    const std::lock_guard hold(qp.lock);
    soft::set_carrier(qp, true);
    for (const std::uint64_t slices : {1, 2, 3}) {
      CHECK(soft::run_send_queue(qp));
      CHECK(qp.send.entry(0).offset == slices * soft::kSlice);
    }
  }
  CHECK(p.wait(p.a).status == IBV_WC_SUCCESS);
  if (opcode == IBV_WR_RDMA_WRITE_WITH_IMM) CHECK(p.wait(p.b).byte_len == kBytes);
  CHECK(p.a.buffer == p.b.buffer);
}

TEST_CASE("one look copies a slice of what goes to another process, too", "[soft]") {
  constexpr std::uint32_t kBytes = 8u << 20;
  Child child("direct");  // has 8 MiB
  Options o;
  o.bytes = kBytes;
  Side s(o);
  child.connect(s);
  fill(s, kBytes);
  const std::vector<std::uint8_t> sent = s.buffer;
  auto first = s.request(IBV_WR_RDMA_WRITE, 0, kBytes, child.theirs.address, child.theirs.rkey);
  REQUIRE(s.post(first) == 0);
  CHECK(wait(s).status == IBV_WC_SUCCESS);  // greeted, the link complete
  soft::SoftQp& qp = *soft::soft(s.qp);
  NEEDS(qp.link.peer->direct, "the system does not let processes copy from each other");
  for (const auto opcode : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ}) {
    INFO("opcode " << opcode);
    if (opcode == IBV_WR_RDMA_READ) std::fill(s.buffer.begin(), s.buffer.end(), std::uint8_t{0});
    Paused pause(s);
    auto w = s.request(opcode, 0, kBytes, child.theirs.address, child.theirs.rkey);
    REQUIRE(s.post(w) == 0);
    REQUIRE(kill(child.pid, SIGSTOP) == 0);  // it would help
    {
      const std::lock_guard hold(qp.lock);
      soft::set_carrier(qp, true);
      const soft::SendEntry& e = qp.send.entry(qp.send.exec);
      for (const std::uint64_t slices : {1, 2, 3}) {
        CHECK(soft::run_send_queue(qp));
        CHECK(e.stage == soft::Stage::queued);
        if (opcode == IBV_WR_RDMA_READ) CHECK(e.offset == slices * soft::kSlice);
      }
    }
    REQUIRE(kill(child.pid, SIGCONT) == 0);
    CHECK(wait(s).status == IBV_WC_SUCCESS);
  }
  CHECK(s.buffer == sent);
  CHECK(child.finish() == 0);
}
