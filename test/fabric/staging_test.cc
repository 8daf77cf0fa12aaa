// GPU memory through pinned host memory: every combination of what the two ends do, byte for byte.
#include "proxy/receive/recv_comm.h"

#include "test/fabric/staged_world.h"

namespace twinpath::test {
namespace {

constexpr std::size_t kKiB = 1024, kMiB = 1024 * kKiB;

struct Ways {
  Use source, landing;
};
constexpr Ways kWays[] = {{Use::staged, Use::direct},    {Use::direct, Use::staged},
                          {Use::staged, Use::staged},    {Use::up_to_64k, Use::staged},
                          {Use::staged, Use::up_to_64k}, {Use::up_to_64k, Use::up_to_64k},
                          {Use::direct, Use::up_to_64k}};

// One message of each size, into receives a little longer than it.
void exchange(FakeGpu& fake, Link& link, const std::vector<std::size_t>& sizes) {
  const std::size_t room = *std::max_element(sizes.begin(), sizes.end()) + 100;
  GpuBuffer from(fake, *link.send, room), to(fake, *link.recv, room);
  REQUIRE(from.status == Status::ok);
  REQUIRE(to.status == Status::ok);
  unsigned seed = 1;
  for (std::size_t bytes : sizes) {
    INFO(bytes << " bytes");
    from.fill(++seed, 0, bytes);
    to.blank();
    Request* receive = start_recv(*link.recv, {to.receive(3, 0, bytes + 100)});
    Request* send = start_send(*link.send, from, bytes, 3, receive);
    const Both both = finish_both(send, receive);
    CHECK(both.received.bytes[0] == bytes);
    CHECK(both.sent.bytes[0] == bytes);
    CHECK(to.holds(seed, 0, bytes));
    CHECK(to.is_blank(bytes, 100));
    CHECK(to.guards_intact());
    CHECK(from.holds(seed, 0, bytes));
    Request* flush = nullptr;
    const RecvBuffer b = to.receive(3, 0, bytes + 100);
    REQUIRE(link.recv->iflush({&b, 1}, &flush) == Status::ok);
    if (flush != nullptr) finish(flush);
  }
}

const std::vector<std::size_t> kSizes = {
    0, 1, 8, 31, 4096, 65536, 65537, 256 * kKiB - 1, 256 * kKiB + 1, kMiB, 8 * kMiB + 3};

}  // namespace

TEST_CASE("Whichever end stages, messages of all sizes arrive byte for byte") {
  FakeGpu fake;
  for (const Ways& way : kWays) {
    for (const bool slow : {false, true}) {
      INFO(name_of(way.source) << " to " << name_of(way.landing) << (slow ? ", slowly" : ""));
      fake.slow = slow;
      Ends ends(way.source, way.landing);
      Link link = ends.connect();
      exchange(fake, link, kSizes);
    }
  }
  CHECK(fake.pinned <= 1);  // the copy thread's own; all mirrors are gone
}

TEST_CASE("Only an end that stages has host memory for it") {
  FakeGpu fake;
  gpu::prepare_copies(0);
  REQUIRE(eventually([&] { return fake.pinned == 1; }));
  for (const Ways& way : {Ways{Use::direct, Use::direct}, Ways{Use::staged, Use::direct},
                          Ways{Use::direct, Use::up_to_64k}, Ways{Use::staged, Use::staged}}) {
    INFO(name_of(way.source) << " to " << name_of(way.landing));
    Ends ends(way.source, way.landing);
    Link link = ends.connect();
    {
      GpuBuffer from(fake, *link.send, 5000), to(fake, *link.recv, 5000);
      CHECK(fake.pinned ==
            1 + (way.source != Use::direct ? 1 : 0) + (way.landing != Use::direct ? 1 : 0));
    }
    CHECK(fake.pinned == 1);
  }
}

TEST_CASE("With a limit, short messages go directly and long ones through host memory") {
  FakeGpu fake;
  Ends ends(Use::direct, Use::up_to_64k);
  Link link = ends.connect();
  GpuBuffer from(fake, *link.send, 256 * kKiB), to(fake, *link.recv, 256 * kKiB);
  from.fill(9, 0, 256 * kKiB);
  // A flush is due after direct data only.
  const auto flushes = [&](std::size_t bytes) {
    Request* receive = start_recv(*link.recv, {to.receive(0, 0, bytes)});
    finish_both(start_send(*link.send, from, bytes, 0, receive), receive);
    const RecvBuffer b = to.receive(0, 0, bytes);
    Request* flush = nullptr;
    REQUIRE(link.recv->iflush({&b, 1}, &flush) == Status::ok);
    if (flush != nullptr) finish(flush);
    return flush != nullptr;
  };
  CHECK(flushes(64 * kKiB));
  CHECK_FALSE(flushes(64 * kKiB + 1));
  CHECK(flushes(1));
}

// Their sender has one notice for all of them (direct, or from host memory's mirror as they come).
TEST_CASE("Groups that fill their buffers land in GPU memory, some through host memory") {
  FakeGpu fake;
  fake.slow = true;
  for (const Ways& way : {Ways{Use::direct, Use::direct}, Ways{Use::direct, Use::up_to_64k},
                          Ways{Use::direct, Use::staged}, Ways{Use::staged, Use::staged}}) {
    INFO(name_of(way.source) << " to " << name_of(way.landing));
    Ends ends(way.source, way.landing);
    Link link = ends.connect();
    const std::size_t sizes[] = {100 * kKiB, 1000, 64 * kKiB, 200 * kKiB};
    constexpr std::size_t kRoom = 256 * kKiB;
    GpuBuffer from(fake, *link.send, 4 * kRoom), to(fake, *link.recv, 4 * kRoom);
    for (unsigned round = 0; round < 20; ++round) {
      std::vector<RecvBuffer> buffers;
      for (std::size_t i = 0; i < 4; ++i) {
        from.fill(round * 4 + static_cast<unsigned>(i), i * kRoom, sizes[i]);
        buffers.push_back(to.receive(static_cast<int>(i), i * kRoom, sizes[i]));
      }
      Request* const receive = start_recv(*link.recv, buffers);
      std::vector<Request*> sends;
      for (const std::size_t i : {3, 0, 2, 1})
        sends.push_back(
            start_send(*link.send, from, sizes[i], static_cast<int>(i), receive, i * kRoom));
      for (Request* send : sends) finish(send);
      const Completion c = finish(receive);
      for (std::size_t i = 0; i < 4; ++i) {
        CHECK(c.bytes[i] == sizes[i]);
        CHECK(to.holds(round * 4 + static_cast<unsigned>(i), i * kRoom, sizes[i]));
      }
    }
  }
}

// Without one kernels watch the memory itself, where a copy may show a flag before its data: what
// has keys is written to directly, above the limit too.
TEST_CASE("Receives without completion: a staged sender writes plainly, a staged landing has one") {
  FakeGpu fake;
  for (const std::size_t bytes : {std::size_t{128}, 700 * kKiB}) {
    INFO(bytes << " bytes");
    for (const Ways& way : {Ways{Use::staged, Use::direct}, Ways{Use::staged, Use::up_to_64k},
                            Ways{Use::direct, Use::up_to_64k}}) {
      INFO(name_of(way.source) << " to " << name_of(way.landing));
      Ends ends(way.source, way.landing);
      Link link = ends.connect();
      GpuBuffer from(fake, *link.send, bytes), to(fake, *link.recv, bytes);
      from.fill(6, 0, bytes);
      finish(start_recv(*link.recv, {to.receive(0, 0, bytes)}, true));  // nothing was sent
      Request* send = nullptr;
      REQUIRE(eventually([&] {
        REQUIRE(link.send->isend(from.data(), bytes, 0, from.memory, &send) != Status::remote);
        return send != nullptr;
      }));
      CHECK(finish(send).bytes[0] == bytes);
      CHECK(to.holds(6, 0, bytes));
    }
    Ends ends(Use::staged, Use::staged);
    Link link = ends.connect();
    GpuBuffer from(fake, *link.send, bytes), to(fake, *link.recv, bytes);
    from.fill(7, 0, bytes);
    Request* receive = start_recv(*link.recv, {to.receive(0, 0, bytes)}, true);
    const Both both = finish_both(start_send(*link.send, from, bytes, 0, receive), receive);
    CHECK(both.received.bytes[0] == bytes);
    CHECK(to.holds(7, 0, bytes));
  }
}

TEST_CASE("Staged messages over several queues, cut or not, and over merged rails") {
  FakeGpu fake;
  fake.slow = true;
  for (const bool split : {false, true}) {
    for (const int rails : {1, 2}) {
      for (const Ways& way : kWays) {
        INFO(name_of(way.source) << " to " << name_of(way.landing) << ", split " << split << ", "
                                 << rails << " rails");
        Config config = gpu_config("soft0,soft1,soft2,soft3");
        config.ib_qps_per_connection = 4;
        config.ib_split_data_on_qps = split;
        Ends ends(way.source, way.landing, config, rails);
        Link link = ends.connect();
        exchange(fake, link, {0, 1, 4096, 65537, kMiB + 5, 300 * kKiB, 3 * kMiB + 1, 100});
      }
    }
  }
}

TEST_CASE("Many staged messages under way: 32 groups of 8, answered out of order") {
  FakeGpu fake;
  constexpr std::size_t kGroups = 32, kSubs = 8;
  const std::size_t sizes[] = {70 * kKiB, 5, 257 * kKiB, 0, 33, 300 * kKiB, 4096, 64};
  constexpr std::size_t kRoom = kSubs * 300 * kKiB;
  for (const Ways& way : kWays) {
    INFO(name_of(way.source) << " to " << name_of(way.landing));
    fake.slow = false;
    Config config = gpu_config();
    config.ib_qps_per_connection = 2;
    Ends ends(way.source, way.landing, config);
    Link link = ends.connect();
    GpuBuffer from(fake, *link.send, kRoom * kGroups), to(fake, *link.recv, kRoom * kGroups);
    REQUIRE(to.status == Status::ok);
    std::vector<Request*> receives(kGroups), sends;
    std::vector<bool> received(kGroups);
    const auto at = [&](std::size_t g, std::size_t i) { return kRoom * (g * kSubs + i) / kSubs; };
    // One message of each group fills its receive, all of some.
    const auto bytes_of = [&](std::size_t g, std::size_t i) {
      return i == g % kSubs || g % 8 == 5 ? kRoom / kSubs : sizes[i];
    };
    for (std::size_t g = 0; g < kGroups; ++g)
      for (std::size_t i = 0; i < kSubs; ++i)
        from.fill(static_cast<unsigned>(i), at(g, i), bytes_of(g, i));
    for (std::size_t g = 0; g < kGroups; ++g) {
      std::vector<RecvBuffer> buffers;
      for (std::size_t i = 0; i < kSubs; ++i)
        buffers.push_back(to.receive(static_cast<int>(i), at(g, i), kRoom / kSubs));
      REQUIRE(link.recv->irecv(buffers, false, &receives[g]) == Status::ok);
      REQUIRE(receives[g] != nullptr);
    }
    std::size_t left = kGroups;
    const auto look = [&] {
      for (std::size_t g = 0; g < kGroups; ++g) {
        if (received[g]) continue;
        Completion c;
        REQUIRE(receives[g]->test(c) == Status::ok);
        if (!c.done) continue;
        received[g] = true;
        --left;
        for (std::size_t i = 0; i < kSubs; ++i) {
          REQUIRE(c.bytes[i] == bytes_of(g, i));
          REQUIRE(to.holds(static_cast<unsigned>(i), at(g, i), bytes_of(g, i)));
        }
      }
    };
    for (std::size_t i = kSubs; i-- > 0;) {  // the last tag first
      for (std::size_t g = 0; g < kGroups; ++g) {
        const std::size_t n = bytes_of(g, i);
        Request* request = nullptr;
        REQUIRE(eventually([&] {
          const Status s = link.send->isend(from.data() + at(g, i), n, static_cast<int>(i),
                                            from.memory, &request);
          REQUIRE((s == Status::ok || s == Status::again));
          if (request == nullptr) look();
          return request != nullptr;
        }));
        sends.push_back(request);
      }
    }
    std::size_t sent = 0;
    REQUIRE(eventually(
        [&] {
          look();
          Completion c;
          if (sent < sends.size()) REQUIRE(sends[sent]->test(c) == Status::ok);
          sent += c.done ? 1 : 0;
          return left == 0 && sent == sends.size();
        },
        20000));
    CHECK(to.guards_intact());
  }
}

TEST_CASE("Long staged messages in a row keep to their bounds and all arrive") {
  FakeGpu fake;
  fake.slow = true;
  for (const Ways& way : kWays) {
    INFO(name_of(way.source) << " to " << name_of(way.landing));
    Ends ends(way.source, way.landing);
    Link link = ends.connect();
    constexpr std::size_t kBytes = 2 * kMiB + 77, kCount = 12;
    GpuBuffer from(fake, *link.send, kBytes * kCount), to(fake, *link.recv, kBytes * kCount);
    std::vector<Request*> receives, sends;
    for (std::size_t i = 0; i < kCount; ++i) {
      from.fill(static_cast<unsigned>(i), kBytes * i, kBytes);
      receives.push_back(start_recv(*link.recv, {to.receive(0, kBytes * i, kBytes)}));
    }
    for (std::size_t i = 0; i < kCount; ++i) {
      Request* request = nullptr;
      REQUIRE(eventually([&] {
        Completion c;
        if (i == 0) REQUIRE(receives[0]->test(c) == Status::ok);
        const Status s =
            link.send->isend(from.data() + kBytes * i, kBytes, 0, from.memory, &request);
        REQUIRE((s == Status::ok || s == Status::again));
        return request != nullptr;
      }));
      sends.push_back(request);
    }
    // Only the oldest is tested, as NCCL does: the others must get on all the same.
    for (std::size_t i = 0; i < kCount; ++i) {
      CHECK(finish_both(sends[i], receives[i]).received.bytes[0] == kBytes);
      CHECK(to.holds(static_cast<unsigned>(i), kBytes * i, kBytes));
    }
    CHECK(to.guards_intact());
  }
}

TEST_CASE("A receiver that looks away for more chunks than its queue holds loses none") {
  FakeGpu fake;
  LogCapture log;
  Config config = gpu_config();
  config.standby_ports = 0;  // with a port in reserve the sender would have the peer look
  Ends ends(Use::staged, Use::staged, config);
  Link link = ends.connect();
  constexpr std::size_t kBytes = 2 * kStagedChunk + 1;  // three chunks
  constexpr std::size_t kGroups = kCtsCells / kMaxRecvs;
  static_assert(3 * kCtsCells > kRecvDepth + kStagedReceives);
  GpuBuffer from(fake, *link.send, kBytes * kCtsCells);
  Buffer to(*link.recv, kBytes);
  for (std::size_t i = 0; i < kCtsCells; ++i) from.fill(1, kBytes * i, kBytes);
  to.clear();
  std::vector<Request*> receives, sends;
  for (std::size_t g = 0; g < kGroups; ++g)
    receives.push_back(
        start_recv(*link.recv, std::vector<RecvBuffer>(kMaxRecvs, to.receive(0, 0, kBytes))));
  Completion c;
  REQUIRE(receives[0]->test(c) == Status::ok);  // its cells go out; now it looks away
  while (sends.size() < kCtsCells) {
    Request* request = nullptr;
    const std::size_t i = sends.size();
    REQUIRE(eventually([&] {
      const Status s = link.send->isend(from.data() + kBytes * i, kBytes, 0, from.memory, &request);
      REQUIRE((s == Status::ok || s == Status::again));
      return request != nullptr;
    }));
    sends.push_back(request);
  }
  // The sender gets as far as the receive queue lets it.
  Completion last;
  CHECK_FALSE(eventually(
      [&] {
        REQUIRE(sends.back()->test(last) == Status::ok);
        return last.done;
      },
      1000));
  std::size_t sent = 0, received = 0;
  REQUIRE(eventually(
      [&] {
        Completion out;
        if (sent < sends.size() - 1) REQUIRE(sends[sent]->test(out) == Status::ok);
        sent += out.done ? 1 : 0;
        Completion in;
        if (received < kGroups) REQUIRE(receives[received]->test(in) == Status::ok);
        received += in.done ? 1 : 0;
        return received == kGroups && sent == sends.size() - 1;
      },
      20000));
  finish(sends.back());
  CHECK(to.holds(1, kBytes));
  CHECK(log.warnings().empty());
}

TEST_CASE("Staged answers to receives without completion go where their own cells said") {
  for (const bool paused : {false, true}) {
    FakeGpu fake;
    Ends ends(Use::staged, Use::direct);
    Link link = ends.connect();
    constexpr std::size_t kBytes = 128, kAll = 400;  // more than the ring has cells
    GpuBuffer from(fake, *link.send, kBytes * kAll), to(fake, *link.recv, kBytes * kAll);
    for (std::size_t i = 0; i < kAll; ++i)
      from.fill(static_cast<unsigned>(i + 1), kBytes * i, kBytes);
    to.blank();
    std::size_t posted = 0, sent = 0;
    std::vector<Request*> open;  // receives are done once their cells are on the wire
    const auto test_all = [&] {
      std::erase_if(open, [](Request* r) {
        Completion c;
        REQUIRE(r->test(c) == Status::ok);
        return c.done;
      });
    };
    const auto go_on = [&] {
      Request* request = nullptr;
      const RecvBuffer buffer = to.receive(0, posted * kBytes, kBytes);
      if (posted < kAll) REQUIRE(link.recv->irecv({&buffer, 1}, true, &request) != Status::remote);
      if (request != nullptr) ++posted, open.push_back(request);
      request = nullptr;
      if (sent < kAll)
        REQUIRE(link.send->isend(from.data() + sent * kBytes, kBytes, 0, from.memory, &request) !=
                Status::remote);
      if (request != nullptr) ++sent, open.push_back(request);
    };
    fake.pause(paused);  // all that can be accepted is, before any of it can be written
    for (int i = 0; i < 2000; ++i) go_on();
    fake.pause(false);
    REQUIRE(eventually([&] {
      go_on();
      test_all();
      return sent == kAll && posted == kAll && open.empty();
    }));
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < kAll; ++i)
      wrong += to.holds(static_cast<unsigned>(i + 1), i * kBytes, kBytes) ? 0 : 1;
    CHECK(wrong == 0);
  }
}

}  // namespace twinpath::test
