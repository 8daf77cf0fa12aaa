// Ports that come and go under messages between GPUs, direct and through host memory, with the
// flush that NCCL asks for.
#include <algorithm>
#include <deque>
#include <mutex>
#include <optional>
#include <vector>

#include "plugin/fabric/soft/extended.h"
#include "plugin/rdma/staging.h"
#include "test/fabric/landed.h"
#include "test/fabric/staged_world.h"
#include "test/fabric/tap.h"
#include "test/support/needs.h"

namespace twinpath::test {
namespace {

constexpr std::size_t kPlace = std::size_t{1} << 20;
constexpr std::uint64_t kPlaces = 6;

class GpuStream {
 public:
  GpuStream(FakeGpu& fake, Link& link)
      : link_(link),
        from_(fake, *link.send, kPlace * kPlaces),
        to_(fake, *link.recv, kPlace * kPlaces) {
    from_.forget();
    to_.forget();
  }
  // Until so many have arrived and been flushed; what went wrong, or empty.
  std::string run(std::uint64_t messages) {
    std::string wrong;
    const bool ended = eventually(
        [&] {
          wrong = step(messages);
          return !wrong.empty() || (arrived_ >= messages && sends_.empty());
        },
        30000);
    return ended || !wrong.empty() ? wrong : "nothing more came";
  }

 private:
  static std::size_t bytes(std::uint64_t n) {
    constexpr std::size_t kLengths[] = {0, 24, 4096, 65536, 65664, 300'000, kPlace};
    return kLengths[n % std::size(kLengths)];
  }
  std::string step(std::uint64_t messages) {
    if (posted_ < messages && posted_ - arrived_ < kPlaces) {
      const RecvBuffer b =
          to_.receive(0, posted_ % kPlaces * kPlace, std::max<std::size_t>(bytes(posted_), 1));
      Request* r = nullptr;
      const Status s = link_.recv->irecv({&b, 1}, false, &r);
      if (s != Status::ok && s != Status::again) return "irecv fails";
      if (r != nullptr) receives_.push_back(r), ++posted_;
    }
    // A place may be filled anew once its last message has left.
    if (sent_ < posted_ && sends_.size() < kPlaces) {
      const std::size_t at = sent_ % kPlaces * kPlace;
      from_.fill(seed(sent_), at, bytes(sent_));
      Request* r = nullptr;
      const Status s = link_.send->isend(from_.data() + at, bytes(sent_), 0, from_.memory, &r);
      if (s != Status::ok && s != Status::again) return "isend fails";
      if (r != nullptr) sends_.push_back(r), ++sent_;
    }
    Completion c;
    while (!sends_.empty()) {
      if (sends_.front()->test(c) != Status::ok) return "a send fails";
      if (!c.done) break;
      sends_.pop_front();
    }
    return take();
  }
  std::string take() {
    Completion c;
    const std::size_t at = arrived_ % kPlaces * kPlace, n = bytes(arrived_);
    if (flushing_ == nullptr && !flushed_) {
      if (receives_.empty()) return {};
      if (receives_.front()->test(c) != Status::ok) return "a receive fails";
      if (!c.done) return {};
      receives_.pop_front();
      // As NCCL: no request means that there is nothing to wait for.
      flushed_ = n == 0;
      if (!flushed_) {
        const RecvBuffer b = to_.receive(0, at, n);
        if (link_.recv->iflush({&b, 1}, &flushing_) != Status::ok) return "iflush fails";
        flushed_ = flushing_ == nullptr;
      }
    }
    if (flushing_ != nullptr) {
      if (flushing_->test(c) != Status::ok) return "a flush fails";
      if (!c.done) return {};
      flushing_ = nullptr;
      flushed_ = true;
    }
    if (!flushed_) return {};
    flushed_ = false;
    see_what_has_landed();
    if (!to_.holds(seed(arrived_), at, n))
      return "wrong bytes in message " + std::to_string(arrived_);
    ++arrived_;
    return {};
  }
  static unsigned seed(std::uint64_t n) { return static_cast<unsigned>(n % 250 + 1); }

  Link& link_;
  GpuBuffer from_, to_;
  std::deque<Request*> sends_, receives_;
  Request* flushing_ = nullptr;
  bool flushed_ = false;
  std::uint64_t posted_ = 0, sent_ = 0, arrived_ = 0;
};

void ports_come_and_go(Use source, Use landing, const std::string& faults, bool merged = true) {
  CAPTURE(name_of(source), name_of(landing), merged);
  FakeGpu fake;
  LogCapture log;
  Config config = gpu_config("soft0,soft1,soft2,soft3");
  config.soft_faults = faults;
  std::optional<Ends> ends;
  if (merged)
    ends.emplace(source, landing, config, 2);
  else
    ends.emplace(source, landing, config, "soft0,soft1", "soft2,soft3");
  // The devices are this process's: another context of theirs will do.
  auto fabric = open_fabric(config);
  REQUIRE(fabric);
  const auto port = [&](const std::string& name, bool up) {
    for (const Port& p : (*fabric)->ports)
      if (p.device == name) CHECK(soft::set_port_state(p.context, 1, up) == 0);
  };
  Link link = ends->connect();
  GpuStream stream(fake, link);
  std::string wrong = stream.run(10);
  for (std::uint64_t i = 1; i <= 6 && wrong.empty(); ++i) {
    const std::string name = "soft" + std::to_string(i % 4);
    port(name, false);
    wrong = stream.run(10 + 20 * i - 10);
    port(name, true);
    if (wrong.empty()) wrong = stream.run(10 + 20 * i);
  }
  for (const char* name : {"soft0", "soft1", "soft2", "soft3"}) port(name, true);
  std::string told;
  for (const LogLine& l : log.lines()) told += l.text.substr(0, 170) + "\n";
  CAPTURE(wrong, told);
  CHECK(wrong.empty());
  CHECK(log.has("goes on over"));
}

}  // namespace

TEST_CASE("Ports come and go under messages of GPU memory, direct and staged") {
  ports_come_and_go(GENERATE(Use::direct, Use::staged, Use::up_to_64k),
                    GENERATE(Use::direct, Use::staged), "", GENERATE(true, false));
}

TEST_CASE("A flush waits for a port when none works: no request would mean that none was needed") {
  FakeGpu fake;
  LogCapture log;
  Config config = gpu_config("soft0,soft1,soft2,soft3");
  config.ib_timeout = 10;  // the adapter gives up after 34 ms
  Ends ends(Use::direct, Use::direct, config, 2);
  auto fabric = open_fabric(config);
  REQUIRE(fabric);
  const auto port = [&](const std::string& name, bool up) {
    for (const Port& p : (*fabric)->ports)
      if (p.device == name) CHECK(soft::set_port_state(p.context, 1, up) == 0);
  };
  Link link = ends.connect();
  GpuBuffer from(fake, *link.send, 4096), to(fake, *link.recv, 8192);
  from.forget();
  to.forget();
  from.fill(3, 0, 4096);
  const RecvBuffer b = to.receive(0, 0, 4096), next = to.receive(0, 4096, 4096);
  Request *receive = nullptr, *second = nullptr, *send = nullptr, *flush = nullptr;
  Completion c;
  REQUIRE(link.recv->irecv({&b, 1}, false, &receive) == Status::ok);
  REQUIRE(link.recv->irecv({&next, 1}, false, &second) == Status::ok);
  const auto sent = [&] {
    send = nullptr;
    return eventually([&] {
      return link.send->isend(from.data(), 4096, 0, from.memory, &send) == Status::ok &&
             send != nullptr;
    });
  };
  // Of two that go down one after the other the second might serve for a moment.
  port("soft3", false);
  REQUIRE(eventually([&] {
    return receive->test(c) != Status::ok || second->test(c) != Status::ok ||
           log.has("goes on over");
  }));
  REQUIRE(sent());
  REQUIRE(eventually([&] { return send->test(c) != Status::ok || c.done; }));
  log.clear();
  port("soft2", false);
  // This one cannot arrive; it is not even accepted where the port's event was faster.
  send = nullptr;
  REQUIRE(link.send->isend(from.data(), 4096, 0, from.memory, &send) != Status::remote);
  REQUIRE(eventually([&] {
    return (send != nullptr && send->test(c) != Status::ok) || log.has("the peer says");
  }));
  REQUIRE(eventually([&] { return receive->test(c) != Status::ok || c.done; }));
  REQUIRE(c.done);
  REQUIRE(link.recv->iflush({&b, 1}, &flush) == Status::ok);
  REQUIRE(flush != nullptr);
  for (const std::int64_t end = now_ns() + 100 * kMillisecond; now_ns() < end;) {
    REQUIRE(flush->test(c) == Status::ok);
    REQUIRE_FALSE(c.done);
  }
  port("soft2", true);
  port("soft3", true);
  CHECK(eventually([&] { return flush->test(c) != Status::ok || c.done; }));
  CHECK(c.done);
  CHECK(to.holds(3, 0, 4096));
  if (send == nullptr) REQUIRE(sent());
  CHECK(eventually([&] { return send->test(c) != Status::ok || c.done; }));
  CHECK(eventually([&] { return second->test(c) != Status::ok || c.done; }));
  CHECK(c.done);
}

TEST_CASE("What a rail brought before it was left is flushed by time") {
  FakeGpu fake;
  LogCapture log;
  Config config = gpu_config("soft0,soft1,soft2,soft3");
  config.gone_rail_ms = 150;
  Ends ends(Use::direct, Use::direct, config, "soft0,soft1", "soft2,soft3", Tap::on);
  auto fabric = open_fabric(config);
  REQUIRE(fabric);
  const auto port = [](const char* name, bool up) {
    (void)soft::set_port_state(Tap::context_of(name), 1, up);
  };
  Link link = ends.connect();
  GpuBuffer from(fake, *link.send, 8192), to(fake, *link.recv, 8192);
  from.forget();
  to.forget();
  from.fill(3, 0, 4096);
  const RecvBuffer b = to.receive(0, 0, 4096), next = to.receive(0, 4096, 4096);
  Request *receive = nullptr, *second = nullptr, *send = nullptr, *flush = nullptr;
  Completion c;
  REQUIRE(link.recv->irecv({&b, 1}, false, &receive) == Status::ok);
  REQUIRE(link.recv->irecv({&next, 1}, false, &second) == Status::ok);
  REQUIRE(eventually([&] {
    return link.send->isend(from.data(), 4096, 0, from.memory, &send) == Status::ok &&
           send != nullptr;
  }));
  REQUIRE(eventually([&] { return receive->test(c) != Status::ok || c.done; }));
  REQUIRE(c.done);
  // It is left, and the connection goes on, before the flush is asked for.
  port("soft2", false);
  const auto stops = [&] {
    const auto lines = log.lines();
    return std::count_if(lines.begin(), lines.end(), [](const LogLine& l) {
      return l.text.find("goes on over soft") != std::string::npos;
    });
  };
  REQUIRE(eventually([&] { return second->test(c) != Status::ok || stops() == 2; }));
  const std::int64_t asked = now_ns();
  REQUIRE(link.recv->iflush({&b, 1}, &flush) == Status::ok);
  REQUIRE(flush != nullptr);
  CHECK(eventually([&] { return flush->test(c) != Status::ok || c.done; }));
  CHECK(c.done);
  CHECK(now_ns() - asked >= 150 * kMillisecond);
  port("soft2", true);
}

TEST_CASE("What comes again is flushed once nothing more can come of the rail that was left") {
  FakeGpu fake;
  LogCapture log;
  Config config = gpu_config("soft0,soft1,soft2,soft3");
  config.gone_rail_ms = 150;
  Ends ends(Use::direct, Use::direct, config, "soft0,soft1", "soft2,soft3", Tap::on);
  Link link = ends.connect();
  GpuBuffer from(fake, *link.send, 4096), to(fake, *link.recv, 4096);
  from.fill(3, 0, 4096);
  const RecvBuffer b = to.receive(0, 0, 4096);
  Tap::lose_writes = 1;  // with its notice; some of its bytes may be on their way to the GPU
  Request* const receive = start_recv(*link.recv, {b});
  Request* const send = start_send(*link.send, from, 4096, 0, receive);
  REQUIRE(Tap::lose_writes == 0);
  const std::int64_t left = now_ns();
  CHECK(soft::set_port_state(Tap::context_of("soft2"), 1, false) == 0);
  (void)finish_both(send, receive);
  Request* flush = nullptr;
  REQUIRE(link.recv->iflush({&b, 1}, &flush) == Status::ok);
  REQUIRE(flush != nullptr);
  finish(flush);
  CHECK(now_ns() - left >= 150 * kMillisecond);
  CHECK(to.holds(3, 0, 4096));
  CHECK(soft::set_port_state(Tap::context_of("soft2"), 1, true) == 0);
}

TEST_CASE("A copy that a stopped queue had under way does not land in memory that was handed on") {
  constexpr std::size_t kBytes = 65536;
  FakeGpu fake;
  LogCapture log;
  const Config config = gpu_config("soft0,soft1,soft2,soft3");
  Ends ends(Use::staged, Use::direct, config, "soft0,soft1", "soft2,soft3", Tap::on);
  Link link = ends.connect();
  GpuBuffer from(fake, *link.send, kBytes), to(fake, *link.recv, kBytes);
  from.fill(5, 0, kBytes);
  // The old queue's copy waits at its destination; that of the new one passes it.
  fake.hold_next_copy_at(to.data());
  Request* const receive = start_recv(*link.recv, {to.receive(0, 0, kBytes)});
  Request* const send = start_send(*link.send, from, kBytes, 0, receive);
  Completion c;
  REQUIRE(eventually(
      [&] { return send->test(c) != Status::ok || c.done || fake.holds_copy_at(to.data()); }));
  REQUIRE_FALSE(c.done);
  CHECK(soft::set_port_state(Tap::context_of("soft2"), 1, false) == 0);
  std::atomic<bool> handed_on{false};
  std::thread gpu([&] {
    (void)eventually([&] { return log.has("stops and goes on"); });
    (void)eventually([&] { return handed_on.load(); }, 300);
    fake.hold_next_copy_at(nullptr);
  });
  const Both both = finish_both(send, receive);
  const bool right = to.holds(5, 0, kBytes);
  to.blank();
  handed_on = true;
  gpu.join();
  CHECK(both.received.bytes[0] == kBytes);
  CHECK(right);
  REQUIRE(eventually([&] { return !fake.has_work(); }));
  CHECK(to.is_blank(0, kBytes));
  CHECK(log.has("goes on over"));
  CHECK(soft::set_port_state(Tap::context_of("soft2"), 1, true) == 0);
}

TEST_CASE("What arrived in part is not written again while the GPU copies it") {
  constexpr std::size_t kTwoChunks = 2 * kStagedChunk, kMost = kMostChunks * kStagedChunk;
  FakeGpu fake;
  LogCapture log;
  Config config = gpu_config("soft0,soft1,soft2,soft3");
  config.stall_ms = 0;  // what is lost stays so
  Ends ends(Use::staged, Use::staged, config, "soft0,soft1", "soft2,soft3", Tap::on);
  auto fabric = open_fabric(config);
  REQUIRE(fabric);
  Link link = ends.connect();
  GpuBuffer from(fake, *link.send, kMost), to(fake, *link.recv, kMost);
  from.fill(5, 0, kTwoChunks);
  to.blank();
  const RecvBuffer b = to.receive(0, 0, kTwoChunks);
  // The first chunk arrives, and its copy to where it belongs waits; the second never leaves.
  fake.hold_copies_at({b.data});
  Tap::pass_writes = 1;
  Tap::lose_writes = 1 << 20;
  Request* receive = start_recv(*link.recv, {b});
  Request* send = start_send(*link.send, from, kTwoChunks, 0, receive);
  Completion c;
  const auto turn = [&] {
    const bool fine = send->test(c) == Status::ok && !c.done && receive->test(c) == Status::ok;
    return !fine || c.done;
  };
  REQUIRE(eventually([&] { return turn() || fake.holds_copy_at(b.data); }));
  REQUIRE(Tap::pass_writes == 0);
  for (const Port& p : (*fabric)->ports)
    if (p.device == "soft0") CHECK(soft::set_port_state(p.context, 1, false) == 0);
  REQUIRE(eventually([&] { return turn() || log.has("stops and goes on"); }));
  Tap::lose_writes = 0;
  bool early = false;
  for (const std::int64_t end = now_ns() + 200 * kMillisecond; now_ns() < end && !early;)
    early = turn() || log.has("goes on over");
  fake.hold_copies_at({});  // before anything that may end the case: the buffers go first
  CHECK_FALSE(early);
  CHECK(finish_both(send, receive).received.bytes[0] == kTwoChunks);
  CHECK(log.has("goes on over"));
  CHECK(to.holds(5, 0, kTwoChunks));
  // Neither what was lost nor what went again, as one write, counts as under way any more.
  const auto writes = [] {
    const std::lock_guard hold(Tap::mutex);
    return std::count_if(Tap::posted.begin(), Tap::posted.end(),
                         [](const Tap::Posted& p) { return p.kind == WrKind::send_data; });
  };
  const auto before = writes();
  Tap::lose_writes = 1 << 20;
  std::vector<Request*> more;
  while (more.size() < 2 * 3) {
    more.push_back(start_recv(*link.recv, {to.receive(0, 0, kMost)}));
    more.push_back(start_send(*link.send, from, kMost, 0, more.back()));
  }
  const auto posted = [&] {
    for (Request* r : more) (void)r->test(c);
    return writes() - before;
  };
  CHECK(eventually([&] { return posted() >= kStagedWrites; }, 10000));
  for (const std::int64_t end = now_ns() + 100 * kMillisecond; now_ns() < end;) (void)posted();
  CHECK(posted() == kStagedWrites);
  from.forget();
  to.forget();
  link = {};
  for (const Port& p : (*fabric)->ports) (void)soft::set_port_state(p.context, 1, true);
}

// As behind PCIe: who takes data for visible before its flush is done sees what was there before. A
// program has the faults that it first opened the soft HCA with.
TEST_CASE("Ports come and go, and data reach the GPU late", "[.late]") {
  NEEDS(!TWINPATH_SANITIZES_THREADS,
        "what a lost port had brought is waited for by time alone (FlushRequest::not_before_)");
  ports_come_and_go(GENERATE(Use::direct, Use::staged), Use::direct, "late_us=300",
                    GENERATE(true, false));
}

}  // namespace twinpath::test
