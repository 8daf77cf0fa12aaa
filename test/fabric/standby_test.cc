// A port fails that NCCL uses alone: its connections go over another port of the host, and back.
#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>

#include "test/fabric/failover.h"
#include "test/support/descriptors.h"
#include "test/support/needs.h"

namespace twinpath::test {
namespace {

// The ports that the last line of that kind names for the sender, and for the receiver.
std::string last_used(const LogCapture& log, const std::string& device) {
  std::string used;
  for (const LogLine& line : log.lines()) {
    const std::size_t at = line.text.find(", " + device + " goes on over ");
    if (at == std::string::npos) continue;
    const std::size_t from = line.text.find("over ", at) + 5;
    used = line.text.substr(from, line.text.find(" (", from) - from);
  }
  return used;
}

// Both ends say so, each in its own time.  The log names the peer's device, and our port.
bool goes_over(LogCapture& log, Stream& stream, const std::string& here, const std::string& there) {
  return eventually([&] {
           return !stream.run_for(5) || (last_used(log, as_called("soft2")) == as_called(here) &&
                                         last_used(log, as_called("soft0")) == as_called(there));
         }) &&
         stream.failure.empty();
}

TEST_CASE("F1: a port that is used alone goes down, and others of both hosts are used meanwhile") {
  const char* down = GENERATE("soft0", "soft2");
  CAPTURE(down);
  LogCapture log;
  FailoverWorld w(FailoverWorld::config(), Ports::apart);
  Link link = w.connect();
  Stream stream(link, {}, 7);
  CHECK(stream.run(50));
  stream.forget_gap();
  FailoverWorld::port(down, false);
  CHECK(goes_over(log, stream, "soft1", "soft3"));
  CHECK(stream.run(stream.received() + 300));
  CHECK(stream.longest_gap() < 2 * kSecond);
  FailoverWorld::port(down, true);
  CHECK(goes_over(log, stream, "soft0", "soft2"));
  CHECK(stream.run(stream.received() + 300));
  CHECK(stream.finish());
  CAPTURE(stream.failure, log.warnings());
  CHECK(stream.failure.empty());
}

// As adapters take GPU memory by dma-buf: by a descriptor that must be open then.
ibv_mr* register_by_descriptor(ibv_pd* pd, std::uint64_t, std::size_t bytes, std::uint64_t iova,
                               int fd, int access) {
  if (::fcntl(fd, F_GETFD) < 0) return nullptr;
  return Tap::real().reg_mr_iova2(pd, reinterpret_cast<void*>(iova), bytes, iova,
                                  static_cast<unsigned>(access));
}

TEST_CASE("200 dma-bufs keep no descriptor, and have keys on the port in reserve all the same") {
  Config config = soft_config();
  config.standby_ports = 1;
  auto fabric = open_fabric(config);
  REQUIRE(fabric);
  Tap::on(**fabric);
  (*fabric)->kind = FabricKind::verbs;
  (*fabric)->verbs.reg_dmabuf_mr = register_by_descriptor;
  (*fabric)->verbs.reg_mr_iova2 = [](ibv_pd*, void*, std::size_t, std::uint64_t,
                                     unsigned) -> ibv_mr* {
    errno = EFAULT;  // not by its address, without nvidia_peermem
    return nullptr;
  };
  Devices devices(std::move(fabric).take(), config);
  REQUIRE(devices.standby(0).size() == 1);
  constexpr std::size_t kBytes = 4096;
  std::vector<std::vector<std::uint8_t>> data(200, std::vector<std::uint8_t>(kBytes));
  std::vector<Memory*> memories;
  const std::size_t before = open_descriptors();
  for (auto& block : data) {
    const UniqueFd fd(::memfd_create("dma-buf", MFD_CLOEXEC));
    REQUIRE(fd);
    auto memory = devices.register_memory(0, block.data(), kBytes, MemoryType::cuda, 0, fd.get());
    REQUIRE(memory);
    memories.push_back(*memory);
  }
  CHECK(open_descriptors() == before);
  // Rail 0 is the device's own, 1 the one in reserve.
  CHECK(devices.stand_by(0, 1));
  for (std::size_t i = 0; i < memories.size(); ++i) {
    const auto address = reinterpret_cast<std::uintptr_t>(data[i].data());
    const auto keys = devices.key_range(memories[i], address, kBytes, 2, std::nullopt);
    REQUIRE(keys);
    CHECK(keys->rkeys[0] != 0);
    CHECK(keys->rkeys[1] != 0);
    CHECK(devices.deregister_memory(memories[i]) == Status::ok);
  }
}

TEST_CASE("F4: a lone port that flaps is used again each time it is back") {
  LogCapture log;
  FailoverWorld w(FailoverWorld::config(), Ports::apart);
  Link link = w.connect();
  Stream stream(link, {}, 3);
  for (int i = 0; i < 4; ++i) {
    CAPTURE(i, log.warnings());
    FailoverWorld::port(i % 2 == 0 ? "soft0" : "soft2", false);
    CHECK(goes_over(log, stream, "soft1", "soft3"));
    FailoverWorld::port(i % 2 == 0 ? "soft0" : "soft2", true);
    CHECK(goes_over(log, stream, "soft0", "soft2"));
  }
  CHECK(stream.finish());
  CAPTURE(stream.failure);
  CHECK(stream.failure.empty());
}

// One message of memory that is registered for it; queues may be replaced meanwhile.
void exchange_anew(Link& link, std::size_t bytes, unsigned seed) {
  Buffer from(*link.send, bytes, seed), to(*link.recv, bytes);
  to.clear();
  const RecvBuffer b = to.receive(0);
  Request* receive = nullptr;
  REQUIRE(eventually([&] {
    (void)link.recv->irecv({&b, 1}, false, &receive);
    return receive != nullptr;
  }));
  Request* send = start_send(*link.send, from, bytes, 0, receive);
  Completion sent, received;
  REQUIRE(eventually([&] {
    if (!sent.done) REQUIRE(send->test(sent) == Status::ok);
    if (!received.done) REQUIRE(receive->test(received) == Status::ok);
    return sent.done && received.done;
  }));
  CHECK(to.holds(seed, bytes));
}

TEST_CASE("memory that is registered and given back while a port in reserve serves") {
  LogCapture log;
  FailoverWorld w(FailoverWorld::config(), Ports::apart);
  Link link = w.connect();
  exchange_anew(link, 100'000, 1);
  FailoverWorld::port("soft0", false);
  for (unsigned i = 2; i < 20; ++i) exchange_anew(link, 1000 * i, i);
  CHECK(last_used(log, "soft2") == "soft1");
  FailoverWorld::port("soft0", true);
  CHECK(eventually([&] {
    exchange_anew(link, 5000, 21);
    return last_used(log, "soft2") == "soft0";
  }));
  exchange_anew(link, 300'000, 22);
}

TEST_CASE("without ports in reserve a lone port's failure is the connection's, as both ends say") {
  // Either end may have none: then the other's ports lead to its only one.
  const int here = GENERATE(0, 2), there = GENERATE(0, 2);
  CAPTURE(here, there);
  LogCapture log;
  Config c = FailoverWorld::config();
  c.ib_hca = "=soft0,soft1";
  c.ib_timeout = 10;  // the adapter gives up after 34 ms
  c.failover_hold_ms = 300;
  c.standby_ports = here;
  World switchboard(FailoverWorld::config(), -1, Tap::on);
  World left(c);
  c.ib_hca = "=soft2,soft3";
  c.standby_ports = there;
  World right(c);
  Link link = test::connect(*left.a, 0, *right.b, 0);
  Stream stream(link, {}, 5);
  CHECK(stream.run(20));
  FailoverWorld::port("soft0", false);
  const bool ran = stream.run(200, 15000);
  CAPTURE(stream.failure, log.warnings());
  CHECK(ran == (here != 0));
  FailoverWorld::port("soft0", true);
}

TEST_CASE("F2: a cell that is lost is missed although nobody calls its receiver") {
  const Ports ports = GENERATE(Ports::apart, Ports::merged);
  LogCapture log;
  Config c = FailoverWorld::config();
  c.stall_ms = 50;
  FailoverWorld w(c, ports);
  Link link = w.connect();
  exchange(link, 5000);
  Buffer from(*link.send, 5000, 9), to(*link.recv, 5000);
  // A receive without completion is done once its cell is posted, as it is here, to nowhere.
  FailoverWorld::loss("soft2", soft::PortLoss::all);
  Completion c2;
  Request* receive = start_recv(*link.recv, {to.receive(0)}, true);
  REQUIRE(eventually([&] {
    REQUIRE(receive->test(c2) == Status::ok);
    return c2.done;
  }));
  Request* send = nullptr;
  const bool sent = eventually([&] {
    const Status s = link.send->isend(from.data(), 5000, 0, from.memory, &send);
    return (s != Status::ok && s != Status::again) || send != nullptr;
  });
  CAPTURE(log.warnings());
  CHECK(sent);
  if (send != nullptr) {
    finish(send);
    CHECK(to.holds(9, 5000));
    CHECK(log.has("goes on over"));
  }
  from.forget();
  to.forget();
}

TEST_CASE("a lone port may be away for as long as its adapter tries by itself") {
  LogCapture log;
  Config c = FailoverWorld::config();
  c.failover_hold_ms = 50;
  c.ib_timeout = 15;  // 134 ms, eight times
  FailoverWorld w(c, Ports::apart);
  Link link = w.connect();
  Stream stream(link, {}, 5);
  CHECK(stream.run(20));
  for (const char* port : {"soft0", "soft1"}) FailoverWorld::port(port, false);
  // The hold time begins when a queue is given up, not when its port goes down.
  CHECK(eventually([&] { return !stream.run_for(5) || log.has("stops and goes on: "); }));
  CHECK(stream.run_for(400));
  FailoverWorld::port("soft0", true);
  CHECK(stream.run(200));
  CAPTURE(stream.failure, log.warnings());
  CHECK(stream.failure.empty());
}

TEST_CASE("memory that a program freed without a word keeps no connection from a port in reserve") {
  LogCapture log;
  FailoverWorld w(FailoverWorld::config(), Ports::apart);
  Link link = w.connect();
  constexpr std::size_t kGone = 65536;
  void* gone = ::mmap(nullptr, kGone, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(gone != MAP_FAILED);
  REQUIRE(link.send->register_memory(gone, kGone, MemoryType::host, 0, -1));
  REQUIRE(link.recv->register_memory(gone, kGone, MemoryType::host, 0, -1));
  REQUIRE(::munmap(gone, kGone) == 0);
  Stream stream(link, {}, 7);
  CHECK(stream.run(50));
  FailoverWorld::port("soft0", false);
  CHECK(stream.run(200));
  CHECK(last_used(log, "soft2") == "soft1");
  FailoverWorld::port("soft0", true);
}

TEST_CASE("a port in reserve that registers nothing is named, and serves when it does") {
  // With nothing under way there is no request whose memory could be found missing.
  const bool idle = GENERATE(true, false);
  CAPTURE(idle);
  LogCapture log;
  Config c = FailoverWorld::config();
  c.ib_timeout = 10;
  World w(c, -1, Tap::on);
  Link link = w.connect(0, 2);
  Stream stream(link, {}, 7);
  CHECK(stream.run(20));
  Tap::no_memory = true;
  FailoverWorld::port("soft0", false);
  if (idle) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  bool held = stream.run_for(200);
  for (int i = 0; held && !log.has("cannot register") && i < 50; ++i) held = stream.run_for(200);
  CAPTURE(stream.failure, log.warnings());
  CHECK(held);
  CHECK(log.has("cannot register"));
  CHECK(log.warnings().size() < 12);  // however often it is tried
  Tap::no_memory = false;
  CHECK(stream.run(100));
  // From now on memory that it does not take is refused.
  CHECK(log.has("goes on over"));
  Tap::no_memory = true;
  std::vector<std::uint8_t> more(1 << 20);
  CHECK_FALSE(link.send->register_memory(more.data(), more.size(), MemoryType::host, 0, -1));
  Tap::no_memory = false;
  CHECK(link.send->register_memory(more.data(), more.size(), MemoryType::host, 0, -1));
  FailoverWorld::port("soft0", true);
  CHECK(stream.finish());
}

TEST_CASE("either end may close while queues are replaced") {
  for (int i = 0; i < 24; ++i) {
    LogCapture log;
    FailoverWorld w(FailoverWorld::config(), Ports::apart);
    Link link = w.connect();
    Stream stream(link, {}, static_cast<unsigned>(i));
    CHECK(stream.run(5));
    FailoverWorld::port(i % 2 == 0 ? "soft0" : "soft2", false);
    const std::int64_t then = now_ns() + i * 60'000;
    while (now_ns() < then && stream.step(~std::uint64_t{0})) {
    }
    if (i % 4 < 2) link.send.reset();
    link.recv.reset();
  }
}

TEST_CASE("ports in reserve are of the device's kind, and the fast and near ones come first") {
  Config c = soft_config("a,speed=400,b,speed=25,c,speed=400,d,speed=200,e,speed=400,link=ib");
  const auto names = [&](int device) {
    auto fabric = open_fabric(c);
    REQUIRE(fabric);
    const Devices devices(std::move(fabric).take(), c);
    std::string all;
    for (const RailPort& rail : devices.standby(device)) all += rail.port->name + " ";
    return all;
  };
  CHECK(names(0) == "c d ");
  CHECK(names(1) == "a c ");
  CHECK(names(3) == "a c ");
  CHECK(names(4).empty());
  c.standby_ports = 1;
  CHECK(names(0) == "c ");
  c.standby_ports = 0;
  CHECK(names(0).empty());
  c.standby_ports = 2;
  c.failover = false;
  CHECK(names(0).empty());
  c.failover = true;
  c.ib_hca = "=a,b";
  CHECK(names(0) == "b ");
}

TEST_CASE("a connection has no queue pair on a port in reserve before it needs one") {
  LogCapture log;
  Config c = FailoverWorld::config();
  World w(c, -1, Tap::on);
  Link link = w.connect(0, 2);
  exchange(link, 1000, 1);
  CHECK(Tap::raised.size() == 2);
}

}  // namespace
}  // namespace twinpath::test
