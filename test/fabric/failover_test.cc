// A rail fails, both do, one comes back: what was accepted arrives, once, and nothing is written to
// a buffer that was given back.
#include "test/fabric/failover.h"
#include "test/support/needs.h"

namespace twinpath::test {
namespace {

// How many queues the last line of that kind says are in use; 0: there was none.
int queues_at_last(const LogCapture& log) {
  int n = 0;
  for (const LogLine& line : log.lines()) {
    const std::size_t at = line.text.find("goes on over ");
    if (at != std::string::npos) n = std::atoi(line.text.c_str() + line.text.find('(', at) + 1);
  }
  return n;
}

bool settles_at(LogCapture& log, Stream& stream, int queues, std::int64_t limit_ms = 30000) {
  return eventually([&] { return !stream.run_for(5) || queues_at_last(log) == queues; },
                    limit_ms) &&
         stream.failure.empty();
}

// Both ends' ports; all of them without a sanitizer.
std::vector<const char*> some_ports() {
  if (kSanitizes) return {"soft1", "soft2"};
  return {"soft0", "soft1", "soft2", "soft3"};
}

TEST_CASE("F1: a port that goes down under a stream takes nothing with it") {
  const char* down = GENERATE(from_range(some_ports()));
  CAPTURE(down);
  LogCapture log;
  FailoverWorld w;
  Link link = w.connect();
  Stream stream(link, {}, 7);
  CHECK(stream.run(50));
  stream.forget_gap();
  FailoverWorld::port(down, false);
  CHECK(stream.run(400));
  CAPTURE(stream.failure, log.warnings());
  CHECK(stream.failure.empty());
  CHECK(queues_at_last(log) == 1);
  CHECK(stream.longest_gap() < 2 * kSecond);
  // Whoever reads that it stops reads that it goes on.
  CHECK(log.has(LogLevel::warn, "stops and goes on"));
  CHECK(log.has(LogLevel::warn, "goes on over"));
}

TEST_CASE("F1: an adapter that is slow to destroy queues keeps nobody waiting") {
  constexpr int kSlow = 1200;
  LogCapture log;
  FailoverWorld w;
  Link link = w.connect();
  Stream stream(link, {}, 17);
  CHECK(stream.run(50));
  Tap::destroy_ms = kSlow;
  stream.forget_gap();
  FailoverWorld::port("soft1", false);
  CHECK(stream.run(200));
  CHECK(queues_at_last(log) == 1);
  CHECK(stream.longest_gap() < kSlow * kMillisecond);
  Tap::destroy_ms = 0;
  FailoverWorld::port("soft1", true);
  CHECK(settles_at(log, stream, 2));
  CHECK(stream.finish());
  CAPTURE(stream.failure, log.warnings());
  CHECK(stream.failure.empty());
}

TEST_CASE("F1: a local error is taken for a port's that is about to go down, but not twice") {
  const bool mistake = GENERATE(false, true);
  CAPTURE(mistake);
  LogCapture log;
  FailoverWorld w;
  Link link = w.connect();
  Stream stream(link, {}, 13);
  CHECK(stream.run(50));
  {
    const std::lock_guard hold(Tap::mutex);
    Tap::fail_status = IBV_WC_LOC_QP_OP_ERR;
    Tap::fail_all = mistake;
    Tap::fail_completion = WrKind::send_data;
  }
  CHECK(stream.run(400) != mistake);
  CAPTURE(stream.failure, log.warnings());
  CHECK(log.has("data write failed with local QP operation error"));
  if (mistake) {
    CHECK(log.has("is lost"));  // and not held
  } else {
    CHECK(stream.failure.empty());
    CHECK(queues_at_last(log) > 0);
  }
}

// A port that loses packets without a word, and what it is to NCCL.
struct Silence {
  Ports ports;
  const char* where;
  soft::PortLoss what;
  int queues = 1;
};
std::vector<Silence> silences() {
  std::vector<Silence> rows{{Ports::apart, "soft2", soft::PortLoss::all, 2}};
  for (const auto what : {soft::PortLoss::all, soft::PortLoss::incoming, soft::PortLoss::answers}) {
    for (const char* where : some_ports()) rows.push_back({Ports::merged, where, what});
    for (const char* where : {"soft0", "soft2"}) rows.push_back({Ports::apart, where, what});
  }
  return rows;
}

TEST_CASE("F2, F8, F3: a port that loses packets without a word is left by both ends") {
  const Silence s = GENERATE(from_range(silences()));
  const bool lone = s.ports == Ports::apart;
  CAPTURE(lone, static_cast<int>(s.what), s.where, s.queues);
  LogCapture log;
  Config c = FailoverWorld::config();
  c.ib_qps_per_connection = s.queues;
  FailoverWorld w(c, s.ports);
  Link link = w.connect();
  Stream stream(link, {}, 11);
  CHECK(stream.run(50));
  stream.forget_gap();
  FailoverWorld::loss(s.where, s.what);
  CHECK(stream.run(400));
  CAPTURE(stream.failure, log.warnings(), stream.longest_gap() / kMillisecond);
  CHECK(stream.failure.empty());
  if (!lone) return;
  CHECK(log.has("while the peer's process answers"));
  CHECK(stream.longest_gap() < 3 * kSecond);
}

TEST_CASE("F4: a port that flaps is used again each time it is back") {
  LogCapture log;
  FailoverWorld w;
  Link link = w.connect();
  Stream stream(link, {}, 3);
  for (int i = 0; i < 5; ++i) {
    CAPTURE(i, log.warnings());
    FailoverWorld::port(i % 2 == 0 ? "soft1" : "soft2", false);
    CHECK(settles_at(log, stream, 1));
    FailoverWorld::port(i % 2 == 0 ? "soft1" : "soft2", true);
    CHECK(settles_at(log, stream, 2));
  }
  CHECK(stream.finish());
  CAPTURE(stream.failure);
  CHECK(stream.failure.empty());
}

TEST_CASE("F5: a port that fails at every try, for long, is used again when it is well") {
  LogCapture log;
  Config c = FailoverWorld::config();
  c.stall_ms = 50;
  c.failover_pace = {30, 200, 5, 30};  // in place of 1 s, a minute, 100 ms, 1 s
  FailoverWorld w(c);
  Link link = w.connect();
  Stream stream(link, {}, 23);
  CHECK(stream.run(20));
  FailoverWorld::loss("soft1", soft::PortLoss::all);
  CHECK(settles_at(log, stream, 1));
  // Until the pause between two tries has reached its longest.
  const auto tries = [&] {
    const auto lines = log.lines();
    return std::count_if(lines.begin(), lines.end(), [](const LogLine& l) {
      return l.text.find("stops and goes on: a port that had failed") != std::string::npos;
    });
  };
  CHECK(eventually([&] { return !stream.run_for(20) || tries() >= 10; }, 30000));
  FailoverWorld::loss("soft1", soft::PortLoss::none);
  CHECK(settles_at(log, stream, 2, 20000));
  CHECK(stream.finish());
  CAPTURE(stream.failure, log.warnings());
  CHECK(stream.failure.empty());
}

TEST_CASE("F6: with all ports down a connection waits for one, for as long as it may") {
  LogCapture log;
  Config c = FailoverWorld::config();
  c.failover_hold_ms = 20000;
  FailoverWorld w(c);
  Link link = w.connect();
  Stream stream(link, {}, 5);
  CHECK(stream.run(20));
  FailoverWorld::port("soft0", false);
  CHECK(settles_at(log, stream, 1));
  FailoverWorld::port("soft1", false);
  CHECK(stream.run_for(400));
  FailoverWorld::port("soft0", true);
  CHECK(stream.run(300));
  CAPTURE(stream.failure, log.warnings());
  CHECK(stream.failure.empty());
}

TEST_CASE("F6: and not longer, with an error that names the port") {
  const Ports ports = GENERATE(Ports::merged, Ports::apart);
  LogCapture log;
  Config c = FailoverWorld::config();
  c.failover_hold_ms = 300;
  c.ib_timeout = 10;  // the adapter gives up after 34 ms
  FailoverWorld w(c, ports);
  Link link = w.connect();
  Stream stream(link, {}, 5);
  CHECK(stream.run(20));
  FailoverWorld::port("soft0", false);
  FailoverWorld::port("soft1", false);
  CHECK_FALSE(stream.run_for(10000));
  CAPTURE(ports == Ports::apart, stream.failure, log.warnings());
  CHECK(log.has("TWINPATH_FAILOVER_HOLD_MS"));
}

TEST_CASE("F7: a second port fails while the first is being left") {
  const int later_us = GENERATE(0, 100, 500, 1000, 2000, 4000);
  if (kSanitizes && later_us % 1000 != 0) return;
  CAPTURE(later_us);
  LogCapture log;
  FailoverWorld w;
  Link link = w.connect();
  Stream stream(link, {}, 5);
  CHECK(stream.run(20));
  FailoverWorld::port("soft1", false);
  const std::int64_t then = now_ns() + later_us * 1000;
  while (now_ns() < then) CHECK(stream.step(~std::uint64_t{0}));
  FailoverWorld::port("soft2", false);
  CHECK(stream.run_for(50));
  FailoverWorld::port("soft1", true);
  FailoverWorld::port("soft2", true);
  CHECK(stream.run(500));
  CAPTURE(stream.failure, log.warnings());
  CHECK(stream.failure.empty());
}

// The receiver is told nothing, so all that can be checked is that what the sender calls done is
// there, and that nobody writes a buffer later which went on to other messages.
TEST_CASE("F12: receives without completion lose nothing, and nothing comes later") {
  const Ports apart = GENERATE(Ports::merged, Ports::apart);
  LogCapture log;
  FailoverWorld w(FailoverWorld::config(), apart);
  Link link = w.connect();
  constexpr std::size_t kSlots = 8, kBytes = 20'000;
  std::vector<std::unique_ptr<Buffer>> from, to;
  for (std::size_t i = 0; i < kSlots; ++i) {
    from.push_back(std::make_unique<Buffer>(*link.send, kBytes));
    to.push_back(std::make_unique<Buffer>(*link.recv, kBytes));
  }
  const auto seed_of = [](std::uint64_t n) { return static_cast<unsigned>(n % 250 + 1); };
  std::array<Request*, kSlots> sends{};
  std::string wrong;
  std::uint64_t offered = 0, sent = 0, done = 0;
  const std::array<const char*, 3> ports{"soft1", "soft2", "soft0"};
  int flips = 0;
  const bool ended = eventually(
      [&] {
        while (offered < done + kSlots && wrong.empty()) {
          Request* receive = nullptr;
          const RecvBuffer b = to[offered % kSlots]->receive(0);
          const Status s = link.recv->irecv({&b, 1}, true, &receive);
          if (s != Status::ok && s != Status::again) wrong = "irecv";
          if (receive == nullptr) break;
          Completion c;
          // It is done once its cell is on the wire.
          if (!eventually([&] { return receive->test(c) != Status::ok || c.done; })) wrong = "test";
          ++offered;
        }
        if (sent < offered) {
          Buffer& b = *from[sent % kSlots];
          b.fill(seed_of(sent), kBytes);
          const Status s = link.send->isend(b.data(), kBytes, 0, b.memory, &sends[sent % kSlots]);
          if (s != Status::ok && s != Status::again) wrong = "isend";
          if (sends[sent % kSlots] != nullptr) ++sent;
        }
        while (done < sent) {
          Completion c;
          if (sends[done % kSlots]->test(c) != Status::ok) wrong = "a send";
          if (!c.done) break;
          sends[done % kSlots] = nullptr;
          if (!to[done % kSlots]->holds(seed_of(done), kBytes))
            wrong = "the bytes of message " + std::to_string(done);
          if (++done % 50 == 0) {
            FailoverWorld::port(ports[static_cast<std::size_t>(flips / 2) % 3], flips % 2 != 0);
            ++flips;
          }
        }
        return !wrong.empty() || done >= 600;
      },
      20000);
  CAPTURE(wrong, done, log.warnings());
  CHECK(wrong.empty());
  CHECK(ended);
  CHECK(log.has("goes on over"));
  for (auto& b : from) b->forget();
  for (auto& b : to) b->forget();
}

// Queues that were replaced for it failed alike, as fast as they could be made, until the comm was
// closed.  The adapter's event may come after its completions, so that the queues are halted, but
// nothing is sent again.
TEST_CASE("A message for memory that was deregistered ends the connection, over no other port") {
  LogCapture log;
  FailoverWorld w;
  Link link = w.connect();
  exchange(link, 64);
  constexpr std::size_t kBytes = 1 << 20;
  Buffer from(*link.send, kBytes, 3), to(*link.recv, kBytes);
  Request* const receive = start_recv(*link.recv, {to.receive(0, 0, kBytes)});
  CHECK(link.recv->deregister_memory(to.memory) == Status::ok);
  to.forget();
  Request* send = nullptr;
  REQUIRE(eventually([&] {
    (void)link.send->isend(from.data(), kBytes, 0, from.memory, &send);
    return send != nullptr;
  }));
  // Of the sender nobody looks: its own completion would end the connection.
  CHECK(eventually([&] {
    Completion c;
    return receive->test(c) != Status::ok;
  }));
  CHECK(log.has(LogLevel::warn, "the adapter refused a request of the peer's"));
  CHECK_FALSE(log.has("goes on over"));
}

// As who aborts does: deregister, then close.  What is under way must then not be read any more.
TEST_CASE("Memory of messages under way goes before or while queues are replaced") {
  const bool halted = GENERATE(true, false);
  const bool grouped = GENERATE(true, false);
  CAPTURE(halted, grouped);
  LogCapture log;
  FailoverWorld w(FailoverWorld::config(), Ports::merged);
  Link link = w.connect();
  exchange(link, 64);
  constexpr std::size_t kPiece = 64, kMany = 16;
  Buffer to(*link.recv, kPiece * kMany);
  auto from = std::make_unique<Buffer>(*link.send, kPiece * kMany, 3);
  Buffer other(*link.send, kPiece);
  Request* last = nullptr;
  for (std::size_t i = 0; i < kMany; i += grouped ? 2 : 1) {
    std::vector<RecvBuffer> buffers{to.receive(0, i * kPiece, kPiece)};
    if (grouped) buffers.push_back(to.receive(1, (i + 1) * kPiece, kPiece));
    last = start_recv(*link.recv, buffers);
  }
  Completion c;
  (void)eventually([&] { return last->test(c) != Status::ok; }, 20);  // all cells go
  for (const char* p : {"soft0", "soft1", "soft2", "soft3"})
    FailoverWorld::loss(p, soft::PortLoss::all);
  std::vector<Request*> sends;
  const auto send = [&] {
    const std::size_t i = sends.size();
    Request* request = nullptr;
    REQUIRE(link.send->isend(from->data() + i * kPiece, kPiece,
                             grouped ? static_cast<int>(i % 2) : 0, from->memory,
                             &request) != Status::remote);
    if (request != nullptr) sends.push_back(request);
    return request == nullptr;
  };
  for (int i = 0; i < 3; ++i) REQUIRE_FALSE(send());  // one of a group is held
  if (halted) {
    for (const char* p : {"soft0", "soft1"}) FailoverWorld::port(p, false);
    REQUIRE(eventually([&] {
      (void)eventually([&] { return sends[0]->test(c) != Status::ok || c.done; }, 300);
      return sends.size() < kMany && send();
    }));
  }
  from.reset();  // the registration, and the memory
  Request* next = nullptr;
  (void)link.send->isend(other.data(), kPiece, grouped ? 1 : 0, other.memory, &next);
  if (!halted) {
    for (const char* p : {"soft0", "soft1"}) FailoverWorld::port(p, false);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  for (const char* p : {"soft0", "soft1", "soft2", "soft3"}) {
    FailoverWorld::loss(p, soft::PortLoss::none);
    FailoverWorld::port(p, true);
  }
  Status status = Status::ok;
  CHECK(eventually([&] {
    status = sends[0]->test(c);
    return status == Status::remote || c.done;
  }));
  CAPTURE(c.done, log.warnings());
  // What the adapter had taken inline may still go by itself, when nothing was replaced.
  CHECK((status == Status::remote || (c.done && !halted)));
  CHECK((c.done || log.has(LogLevel::warn, "whose memory was deregistered meanwhile")));
  to.forget();
  other.forget();
  link.send.reset();
  link.recv.reset();  // before its buffers
}

}  // namespace
}  // namespace twinpath::test
