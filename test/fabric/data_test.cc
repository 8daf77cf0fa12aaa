// Matching, sizes, limits and striping of messages between two connected comms.
#include <algorithm>

#include "test/fabric/world.h"

namespace twinpath::test {
namespace {

TEST_CASE("A byte of a pattern that is another one is found, wherever it is") {
  const KnownBytes pattern(77);
  std::vector<std::uint8_t> data(70'000);
  for (const std::size_t bytes : {0ul, 1ul, 255ul, 256ul, 257ul, data.size()}) {
    pattern.fill(data.data(), bytes);
    CHECK(pattern.differs_at(data.data(), bytes) == bytes);
  }
  for (std::size_t i = 0; i < data.size(); ++i)
    if (data[i] != pattern[i]) FAIL("byte " << i);
  for (const std::size_t at : {0ul, 1ul, 255ul, 256ul, 65'536ul, data.size() - 1}) {
    data[at] ^= 1;
    CHECK(pattern.differs_at(data.data(), data.size()) == at);
    data[at] ^= 1;
  }
  CHECK(KnownBytes(78).differs_at(data.data(), data.size()) == 0);
  CHECK(pattern.differs_at(data.data() + 256, 512) == 0);

  std::fill(data.begin(), data.end(), std::uint8_t{9});
  CHECK(other_than(9, data.data(), data.size()) == data.size());
  CHECK(other_than(8, data.data(), data.size()) == 0);
  CHECK(other_than(8, data.data(), 0) == 0);
  for (const std::size_t at : {0ul, 1ul, 4096ul, data.size() - 1}) {
    data[at] = 8;
    CHECK(other_than(9, data.data(), data.size()) == at);
    data[at] = 9;
  }
}

TEST_CASE("Messages of awkward sizes arrive whole") {
  World world;
  Link link = world.connect();
  unsigned seed = 1;
  for (std::size_t bytes : {1, 7, 63, 64, 65, 127, 128, 129, 4095, 4096, 4097, 65537, 3 << 20})
    exchange(link, bytes, seed++);
}

TEST_CASE("A message of no bytes needs no memory and completes") {
  World world;
  Link link = world.connect();
  Request* receive = start_recv(*link.recv, {RecvBuffer{}});
  Request* send = nullptr;
  Completion c;
  REQUIRE(eventually([&] {
    REQUIRE(receive->test(c) == Status::ok);
    (void)link.send->isend(nullptr, 0, 0, nullptr, &send);
    return send != nullptr;
  }));
  CHECK(finish(send).bytes[0] == 0);
  const Completion r = finish(receive);
  CHECK(r.count == 1);
  CHECK(r.bytes[0] == 0);
}

TEST_CASE("Grouped receives complete together, whatever order the tags are sent in") {
  World world;
  Link link = world.connect();
  Buffer from(*link.send, 8 * 1024, 3), to(*link.recv, 8 * 1024);
  to.clear();
  std::vector<RecvBuffer> group;
  for (std::size_t i = 0; i < 8; ++i)
    group.push_back(to.receive(100 + static_cast<int>(i), i * 1024, 1024));
  Request* receive = start_recv(*link.recv, group);
  for (std::size_t i : {5, 0, 7, 2, 1, 6, 3, 4}) {
    Completion c;
    REQUIRE(receive->test(c) == Status::ok);
    CHECK_FALSE(c.done);
    Request* send = start_send(*link.send, from, 10 + i, 100 + static_cast<int>(i), receive);
    finish(send);
  }
  const Completion r = finish(receive);
  REQUIRE(r.count == 8);
  for (std::size_t i = 0; i < 8; ++i) {
    CHECK(r.bytes[i] == 10 + i);
    CHECK(to.holds(3, 10 + i, i * 1024));
    CHECK(to.data()[i * 1024 + 10 + i] == 0);
  }
}

TEST_CASE("Messages of one tag arrive in order, also inside a group") {
  World world;
  Link link = world.connect();
  Buffer from(*link.send, 4096, 3), to(*link.recv, 4096);
  Request* receive = start_recv(*link.recv, {to.receive(5, 0, 1024), to.receive(5, 1024, 1024),
                                             to.receive(9, 2048, 1024), to.receive(5, 3072, 1024)});
  for (std::size_t n : {11, 12, 13}) finish(start_send(*link.send, from, n, 5, receive));
  finish(start_send(*link.send, from, 99, 9, receive));
  const Completion r = finish(receive);
  CHECK(r.bytes[0] == 11);
  CHECK(r.bytes[1] == 12);
  CHECK(r.bytes[2] == 99);
  CHECK(r.bytes[3] == 13);
}

TEST_CASE("A tag that nobody receives waits and does not hold up others") {
  World world;
  Link link = world.connect();
  Buffer from(*link.send, 64, 3), to(*link.recv, 64);
  Request* receive = start_recv(*link.recv, {to.receive(1)});
  Completion c;
  Request* send = nullptr;
  for (int i = 0; i < 100; ++i) {
    REQUIRE(receive->test(c) == Status::ok);
    REQUIRE(link.send->isend(from.data(), 8, 2, from.memory, &send) == Status::again);
    REQUIRE(send == nullptr);
  }
  finish(start_send(*link.send, from, 8, 1, receive));
  CHECK(finish(receive).bytes[0] == 8);
}

TEST_CASE("32 requests of 8 receives each can be outstanding") {
  World world;
  Link link = world.connect();
  constexpr std::size_t kEach = 64;
  Buffer from(*link.send, 256 * kEach, 1), to(*link.recv, 256 * kEach);
  for (int round = 0; round < 3; ++round) {
    to.clear();
    std::vector<Request*> receives, sends;
    for (std::size_t i = 0; i < 32; ++i) {
      std::vector<RecvBuffer> group;
      for (std::size_t j = 0; j < 8; ++j)
        group.push_back(to.receive(static_cast<int>(j), (i * 8 + j) * kEach, kEach));
      receives.push_back(start_recv(*link.recv, group));
    }
    // The ring is full: one more must wait.
    Request* more = nullptr;
    const RecvBuffer extra = to.receive(0, 0, kEach);
    CHECK(link.recv->irecv({&extra, 1}, false, &more) == Status::again);
    CHECK(more == nullptr);
    for (std::size_t i = 0; i < 32; ++i)
      for (std::size_t j = 8; j-- > 0;)
        sends.push_back(start_send(*link.send, from, i + 1, static_cast<int>(j), receives[i]));
    for (Request* s : sends) finish(s);
    for (std::size_t i = 0; i < 32; ++i) {
      const Completion c = finish(receives[i]);
      REQUIRE(c.count == 8);
      for (std::size_t j = 0; j < 8; ++j) {
        CHECK(c.bytes[j] == i + 1);
        CHECK(to.holds(1, i + 1, (i * 8 + j) * kEach));
      }
    }
  }
}

TEST_CASE("D15: more requests than slots is back-pressure, not an error") {
  World world;
  Link link = world.connect();
  Buffer from(*link.send, 64, 1), to(*link.recv, 64);
  const RecvBuffer buffer = to.receive(0, 0, 8);
  std::vector<Request*> receives;
  Request* r = nullptr;
  Status s;
  while ((s = link.recv->irecv({&buffer, 1}, false, &r)) == Status::ok) {
    receives.push_back(r);
    REQUIRE(receives.size() < 1000);
  }
  CHECK(s == Status::again);
  CHECK(receives.size() >= 32);
  for (Request* receive : receives) {
    finish(start_send(*link.send, from, 8, 0, receive));
    finish(receive);
  }
  r = start_recv(*link.recv, {buffer});
  finish(start_send(*link.send, from, 8, 0, r));
  finish(r);
}

TEST_CASE("A send larger than the receive is cut to it and reported once") {
  LogCapture log;
  World world;
  Link link = world.connect();
  Buffer from(*link.send, 4096, 2), to(*link.recv, 4096);
  to.clear();
  for (int i = 0; i < 2; ++i) {
    Request* receive = start_recv(*link.recv, {to.receive(0, 0, 1000)});
    CHECK(finish(start_send(*link.send, from, 4096, 0, receive)).bytes[0] == 1000);
    CHECK(finish(receive).bytes[0] == 1000);
  }
  CHECK(to.holds(2, 1000));
  CHECK(to.data()[1000] == 0);
  REQUIRE(log.warnings().size() == 1);
  CHECK(log.has(LogLevel::warn, "4096"));
  CHECK(log.has(LogLevel::warn, "1000"));
}

TEST_CASE("A buffer outside its registration is refused and named") {
  LogCapture log;
  World world;
  Link link = world.connect();
  Buffer from(*link.send, 128, 1), to(*link.recv, 128);
  Request* r = nullptr;
  CHECK(link.send->isend(from.data(), 200, 0, from.memory, &r) == Status::bad_argument);
  CHECK(log.has(LogLevel::warn, "isend of 200 bytes"));
  CHECK(log.has(LogLevel::warn, "(129 bytes"));
  RecvBuffer b{to.data() + 100, 100, 0, to.memory};
  CHECK(link.recv->irecv({&b, 1}, false, &r) == Status::bad_argument);
  CHECK(log.has(LogLevel::warn, "irecv of 100 bytes"));
  // A registration of another device has other keys.
  b = {from.data(), 100, 0, from.memory};
  CHECK(link.recv->irecv({&b, 1}, false, &r) == Status::bad_argument);
  exchange(link, 64, 1);
}

TEST_CASE("Optional completions finish without data and never overrun the sender's ring") {
  World world;
  Link link = world.connect();
  Buffer from(*link.send, 64 * 1024, 4), to(*link.recv, 64 * 1024);
  to.clear();
  // Far more than the ring holds, with the sender always as late as it can be.
  std::size_t posted = 0, sent = 0;
  std::vector<std::pair<Request*, bool>> open;
  int refused = 0;
  constexpr std::size_t kTotal = 1000;
  REQUIRE(eventually(
      [&] {
        const std::size_t at = posted % 1000 * 64;
        const RecvBuffer b = to.receive(0, at, 64);
        Request* r = nullptr;
        if (posted < kTotal && link.recv->irecv({&b, 1}, true, &r) == Status::ok) {
          open.push_back({r, false});
          ++posted;
        } else {
          ++refused;
          Request* s = nullptr;
          if (sent < kTotal &&
              link.send->isend(from.data(), 64, 0, from.memory, &s) == Status::ok) {
            finish(s);
            ++sent;
          }
        }
        std::erase_if(open, [&](auto& o) {
          Completion c;
          REQUIRE(o.first->test(c) == Status::ok);
          return c.done;
        });
        return sent == kTotal && open.empty();
      },
      20000));
  CHECK(refused > 0);
  for (std::size_t i = 0; i < 1000; ++i) REQUIRE(to.holds(4, 64, i * 64));
}

TEST_CASE("An optional completion is a normal one when the setting says so") {
  for (const bool optional : {true, false}) {
    CAPTURE(optional);
    Config config = soft_config();
    config.optional_recv_completion = optional;
    World world(config);
    Link link = world.connect();
    Buffer from(*link.send, 64, 4), to(*link.recv, 64);
    Request* receive = start_recv(*link.recv, {to.receive(0)}, true);
    // Without a completion of the data's it ends as soon as the sender knows of the buffer.
    Completion c;
    const auto done = [&] {
      REQUIRE(receive->test(c) == Status::ok);
      return c.done;
    };
    if (optional) {
      CHECK(eventually(done));
      finish(start_send(*link.send, from, 64, 0, nullptr));
      continue;
    }
    for (int i = 0; i < 1000; ++i) REQUIRE_FALSE(done());
    finish(start_send(*link.send, from, 64, 0, receive));
    CHECK(finish(receive).bytes[0] == 64);
    CHECK(to.holds(4, 64));
  }
}

TEST_CASE("Mixed tags with optional completions keep their messages") {
  World world;
  Link link = world.connect();
  Buffer from(*link.send, 64, 4), to(*link.recv, 64);
  for (int i = 0; i < 600; ++i) {
    const int tag = i % 3;
    Request* receive = start_recv(*link.recv, {to.receive(tag)}, i % 2 == 0);
    Completion c;
    Request* send = nullptr;
    REQUIRE(eventually([&] {
      if (!c.done) REQUIRE(receive->test(c) == Status::ok);
      (void)link.send->isend(from.data(), 64, tag, from.memory, &send);
      return send != nullptr;
    }));
    if (!c.done) finish(receive);
    finish(send);
  }
}

TEST_CASE("Whole messages go round over several queues") {
  Config config = soft_config();
  config.ib_qps_per_connection = 4;
  World world(config);
  Link link = world.connect();
  for (unsigned i = 0; i < 9; ++i) exchange(link, 5000, i);
}

TEST_CASE("Messages split over queues arrive whole at any size") {
  Config config = soft_config();
  config.ib_qps_per_connection = 8;
  config.ib_split_data_on_qps = true;
  World world(config);
  Link link = world.connect();
  unsigned seed = 1;
  for (std::size_t bytes : {1, 128, 129, 1000, 4097, 65536 + 77, 1 << 20})
    exchange(link, bytes, seed++);
}

TEST_CASE("A flush reads back after GPU data arrived, and only then") {
  World world;
  Link link = world.connect();
  Buffer from(*link.send, 64, 1), host(*link.recv, 64);
  // Host memory declared as CUDA: the soft adapter does not mind, and the flush does not know.
  std::vector<std::uint8_t> gpu(4096);
  auto memory = link.recv->register_memory(gpu.data(), gpu.size(), MemoryType::cuda, 0, -1);
  REQUIRE(memory);
  const RecvBuffer to_gpu{gpu.data(), 64, 0, *memory}, to_host = host.receive(0);
  Request* flush = nullptr;
  CHECK(link.recv->iflush({&to_gpu, 1}, &flush) == Status::ok);
  CHECK(flush == nullptr);  // nothing has arrived
  Request* receive = start_recv(*link.recv, {to_gpu});
  finish(start_send(*link.send, from, 64, 0, receive));
  finish(receive);
  CHECK(link.recv->iflush({&to_host, 1}, &flush) == Status::ok);
  CHECK(flush == nullptr);  // host memory needs none
  REQUIRE(link.recv->iflush({&to_gpu, 1}, &flush) == Status::ok);
  CHECK(finish(flush).count == 0);
  CHECK(link.recv->deregister_memory(*memory) == Status::ok);
}

TEST_CASE("Every registration is shared on its device and given back") {
  World world;
  Link one = world.connect(), two = world.connect();
  std::vector<std::uint8_t> bytes(8192);
  auto a = one.send->register_memory(bytes.data(), bytes.size(), MemoryType::host, 0, -1);
  auto b = two.send->register_memory(bytes.data() + 100, 1000, MemoryType::host, 0, -1);
  REQUIRE(a);
  REQUIRE(b);
  CHECK(one.send->deregister_memory(*a) == Status::ok);
  // `b` still works after the registration it shared was given back, on the other comm, too.
  Buffer to(*one.recv, 1000);
  Request* receive = start_recv(*one.recv, {to.receive(0)});
  Request* send = nullptr;
  Completion c;
  REQUIRE(eventually([&] {
    if (!c.done) (void)receive->test(c);
    (void)one.send->isend(bytes.data() + 100, 1000, 0, *b, &send);
    return send != nullptr;
  }));
  finish(send);
  LogCapture log;
  CHECK(one.send->deregister_memory(*b) == Status::ok);
  CHECK(one.send->deregister_memory(*b) == Status::bad_argument);
}

}  // namespace
}  // namespace twinpath::test
