// What other processes hold of our memory, and for how long deregistration waits for them.
#include <poll.h>

#include <thread>

#include "plugin/fabric/soft/hca.h"
#include "test/soft/processes.h"
#include "test/soft/strangers.h"
#include "test/support/log_capture.h"

using namespace twinpath;
using namespace twinpath::test;

namespace {

// A process that holds keys of ours, played by hand: it holds what `counts` says.
struct Keeper {
  Keeper() {
    auto made = SharedMemory::create("holds", sizeof(soft::Holds), Writers::creator);
    REQUIRE(made);
    memory = std::move(made).take();
    const auto names = listens_at(getpid());
    REQUIRE(names.size() == 1);
    wire = std::make_unique<soft::Wire>(UniqueFd(connect_to(names.front())), -1);
    soft::Message m{};
    m.kind = soft::MessageKind::greeting;
    m.slot = 1;
    REQUIRE(wire->send(m, {memory.fd(), -1}));
    // The welcome says that our greeting was read.
    soft::Received r;
    pollfd p{wire->fd(), POLLIN, 0};
    REQUIRE(::poll(&p, 1, 20000) == 1);
    REQUIRE(wire->receive(r) == Status::ok);
    CHECK(r.message.kind == soft::MessageKind::welcome);
  }
  std::atomic<std::uint32_t>& count(std::uint32_t key) {
    return (*memory.as<soft::Holds>())[soft::key_index(key)];
  }
  SharedMemory memory;
  std::unique_ptr<soft::Wire> wire;
};

struct Registrations {
  explicit Registrations(Side& side, std::size_t n) : s(side) {
    for (std::size_t i = 0; i < n; ++i)
      mrs.push_back(s.verbs.reg_mr_iova2(s.pd, s.buffer.data(), 64, s.address(), s.options.access));
  }
  std::int64_t give_back() {
    const std::int64_t begin = now_ns();
    for (ibv_mr* mr : mrs) CHECK(s.verbs.dereg_mr(mr) == 0);
    mrs.clear();
    return now_ns() - begin;
  }
  Side& s;
  std::vector<ibv_mr*> mrs;
};

}  // namespace

TEST_CASE("a process that keeps many registrations is waited for once", "[soft]") {
  LogCapture log;
  Options o;
  Side s(o);
  Keeper keeper;
  Registrations kept(s, 8);
  std::vector<std::uint32_t> keys;
  for (const ibv_mr* mr : kept.mrs) {
    keys.push_back(mr->rkey);
    ++keeper.count(mr->rkey);
  }
  CHECK(kept.give_back() < 8 * kSecond);  // 16 s, if each were waited for
  CHECK(log.warnings().size() == 1);
  CHECK(log.has(LogLevel::warn, "process " + std::to_string(getpid())));
  // It goes on, and counts again.
  for (const std::uint32_t key : keys) --keeper.count(key);
  Registrations more(s, 1);
  ++keeper.count(more.mrs.front()->rkey);
  const std::uint32_t key = more.mrs.front()->rkey;
  const std::int64_t begin = now_ns();
  std::thread later([&] {
    (void)::poll(nullptr, 0, 100);
    --keeper.count(key);
  });
  (void)more.give_back();
  CHECK(now_ns() - begin >= 90 * kMillisecond);
  later.join();
  CHECK(log.warnings().size() == 1);
}

TEST_CASE("what a dead process held is free at once", "[soft]") {
  LogCapture log;
  Options o;
  Side s(o);
  Registrations kept(s, 4);
  {
    Keeper keeper;
    for (const ibv_mr* mr : kept.mrs) ++keeper.count(mr->rkey);
  }
  // Its end of the socket is closed; our engine sees it in a moment.
  (void)kept.give_back();
  CHECK(log.warnings().empty());
}
