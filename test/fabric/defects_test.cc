// Mistakes that other transports of this kind have made, each by its number in the list in
// proxy/README.md.
#include <algorithm>
#include <cerrno>
#include <map>

#include "plugin/fabric/provider.h"
#include "proxy/receive/cts_writer.h"
#include "proxy/send/send_comm.h"
#include "proxy/wire/stripe.h"
#include "test/fabric/fake_gpu.h"
#include "test/fabric/tap.h"
#include "test/fabric/world.h"
#include "test/support/memlock.h"

namespace twinpath::test {
namespace {

// Room that a message leaves.
constexpr std::size_t kBeyond = 512;

TEST_CASE("D4: the size of a receive is exact however the message travelled") {
  for (int qps : {1, 4}) {
    for (bool split : {false, true}) {
      Config config = soft_config("6");
      config.ib_qps_per_connection = qps;
      config.ib_split_data_on_qps = split;
      World world(config);
      const int two = world.merge({0, 1}), three = world.merge({2, 3, 4});
      for (auto [a, b] : {std::pair{0, 5}, {two, three}, {three, 5}}) {
        INFO(qps << " QPs, split " << split << ", device " << a << " to " << b);
        Link link = world.connect(a, b);
        unsigned seed = 0;
        for (std::size_t bytes : {0u, 1u, 127u, 128u, 129u, 5000u, 65535u, 65536u, 300001u})
          exchange(link, bytes, ++seed, kBeyond);
      }
    }
  }
}

TEST_CASE("D4: the sizes of a group are exact one by one, empty messages among them") {
  World world(soft_config("4"));
  Link link = world.connect(world.merge({0, 1}), world.merge({2, 3}));
  const std::size_t sizes[] = {0, 1, 70000, 0, 128, 200001, 4096, 0};
  Buffer from(*link.send, 200001, 3), to(*link.recv, 8 * 200001);
  std::vector<RecvBuffer> group;
  for (int i = 0; i < 8; ++i)
    group.push_back(to.receive(i, static_cast<std::size_t>(i) * 200001, 200001));
  Request* receive = start_recv(*link.recv, group);
  std::vector<Request*> sends;
  for (int i = 7; i >= 0; --i)
    sends.push_back(start_send(*link.send, from, sizes[i], i, i == 7 ? receive : nullptr));
  for (Request* s : sends) finish(s);
  const Completion received = finish(receive);
  REQUIRE(received.count == 8);
  for (std::size_t i = 0; i < 8; ++i) CHECK(received.bytes[i] == sizes[i]);
}

TEST_CASE("D10: as many merged devices as there may be stay in bounds, one more is refused") {
  LogCapture log;
  World world(soft_config("16"));
  int next = 16;
  for (int a = 0; a < 16; ++a) {
    for (int b = 0; b < 16 && next < kMaxDevices; ++b) {
      if (a == b) continue;
      REQUIRE(world.merge({a, b}) == next++);
    }
  }
  REQUIRE(world.transport->device_count() == static_cast<std::size_t>(kMaxDevices));
  CHECK(log.warnings().empty());
  const int one_more[] = {0, 1};
  CHECK(world.transport->make_virtual_device(one_more).status() == Status::bad_argument);
  const int of_merged[] = {0, kMaxDevices - 1}, nine[] = {0, 1, 2, 3, 4, 5, 6, 7, 8};
  CHECK(world.transport->make_virtual_device(of_merged).status() == Status::bad_argument);
  CHECK(world.transport->make_virtual_device(nine).status() == Status::bad_argument);

  std::map<std::uint64_t, int> guids;
  for (int i = 0; i < kMaxDevices; ++i) {
    auto p = world.transport->device(i);
    REQUIRE(p);
    CHECK(++guids[p->guid] == 1);
    for (int m : p->members) CHECK((m >= 0 && m < 16));
  }
  for (int outside : {-1, kMaxDevices, 1 << 30}) {
    HandleArray handle{};
    std::unique_ptr<Listener> listener;
    CHECK(world.transport->device(outside).status() == Status::bad_argument);
    CHECK(world.b->listen(outside, handle, listener) == Status::bad_argument);
  }
  Link link = world.connect(kMaxDevices - 1, kMaxDevices - 2);
  exchange(link, 100000, 1, kBeyond);
}

TEST_CASE("D10: a merged device takes GPU memory only when every member does") {
  FakeGpu gpu;
  World world(soft_config("4"), -1, [](Fabric& f) {
    for (Port& p : f.ports) p.peermem = p.dmabuf = true;
    f.ports[1].peermem = false;
    f.ports[2].dmabuf = false;
  });
  struct Case {
    std::vector<int> members;
    bool gpu_direct, dmabuf;
  };
  for (const Case& c : {Case{{0, 3}, true, true},
                        {{0, 1}, false, true},
                        {{1, 0}, false, true},
                        {{3, 2}, true, false},
                        {{2, 3}, true, false},
                        {{0, 3, 2, 1}, false, false}}) {
    auto p = world.transport->device(world.merge(c.members));
    REQUIRE(p);
    INFO(p->name);
    CHECK(p->gpu_direct == c.gpu_direct);
    CHECK(p->dmabuf == c.dmabuf);
  }
}

TEST_CASE("D12: a group of clear-to-sends is inlined or gathered, never refused") {
  LogCapture log;
  struct Row {
    std::uint32_t limit;
    int refusal;  // errno of a queue pair with more
  };
  // The last is Broadcom's: its provider refuses without a word.
  for (const auto [limit, refusal] :
       {Row{0, EINVAL}, {32, EINVAL}, {64, EINVAL}, {256, EINVAL}, {48, EOPNOTSUPP}, {96, 0}}) {
    World world(soft_config("16"), -1, Tap::on);
    Tap::inline_limit = limit;
    Tap::inline_error = refusal;
    errno = ENOMEM;  // of some call before: nobody's reason
    const int two = world.merge({8, 9}), eight = world.merge({8, 9, 10, 11, 12, 13, 14, 15});
    for (int device : {8, two, eight}) {
      Link link = world.connect(0, device);
      Buffer from(*link.send, 1000, 1), to(*link.recv, 8000);
      const CtsLayout layout(device == 8 ? 1 : device == two ? 2 : 8);
      for (int n = 1; n <= kMaxRecvs; ++n) {
        INFO("inline limit " << limit << ", rails " << layout.rails() << ", group of " << n);
        Tap::posted.clear();
        to.clear();
        std::vector<RecvBuffer> group;
        for (int i = 0; i < n; ++i)
          group.push_back(to.receive(i, static_cast<std::size_t>(i) * 1000, 1000));
        Request* receive = start_recv(*link.recv, group);
        std::vector<Request*> sends;
        for (int i = 0; i < n; ++i)
          sends.push_back(start_send(*link.send, from, 1000, i, i == 0 ? receive : nullptr));
        for (Request* s : sends) finish(s);
        CHECK(finish(receive).count == n);
        for (int i = 0; i < n; ++i)
          CHECK(std::equal(from.data(), from.data() + 1000, to.data() + i * 1000));
        // As many cells in a write as go inline; adapters that take not even one fetch them.
        std::size_t cells = 0;
        for (const Tap::Posted& p : Tap::posted) {
          if (p.kind != WrKind::cts) continue;
          cells += (p.bytes - layout.wire_bytes(1)) / layout.stride() + 1;
          const bool one_fits = layout.wire_bytes(1) <= Tap::inline_bytes[p.qpn];
          CHECK(((p.flags & IBV_SEND_INLINE) != 0) == one_fits);
          if (one_fits) CHECK(p.bytes <= Tap::inline_bytes[p.qpn]);
        }
        CHECK(cells == static_cast<std::size_t>(n));
      }
    }
  }
  CHECK(log.warnings().empty());
  // Both ways have really been taken.
  CHECK(CtsLayout(1).wire_bytes(kMaxRecvs) <= kInlineCts);
  CHECK(CtsLayout(2).wire_bytes(kMaxRecvs) > kInlineCts);
}

TEST_CASE("an adapter that ignores the inline flag is handed no inline data of any kind") {
  // As Azure's MANA does: what is posted inline is fetched by its local key.
  const auto adjust = [](Fabric& fabric) {
    Tap::on(fabric);
    for (Port& port : fabric.ports) port.inline_data = inline_use("mana", -1).allowed;
  };
  Config config = soft_config("4");
  config.ib_adaptive_routing = GENERATE(0, 1);  // 1: sizes in words of their own
  config.ib_ar_threshold = 4096;
  LogCapture log;
  World world(config, -1, adjust);
  Tap::ignore_inline = true;
  const int two = world.merge({2, 3});
  for (const int device : {2, two}) {
    Link link = world.connect(0, device);
    for (const std::size_t bytes : {1, 28, 200, 5000, 200000}) {
      INFO(bytes << " bytes to device " << device);
      Buffer from(*link.send, bytes, 1), to(*link.recv, bytes);
      for (int i = 0; i < 3; ++i) {
        Request* receive = start_recv(*link.recv, {to.receive(i)});
        Request* send = start_send(*link.send, from, bytes, i, receive);
        finish(send);
        CHECK(finish(receive).bytes[0] == bytes);
        CHECK(to.holds(1, bytes));
      }
    }
  }
  CHECK(log.warnings().empty());
}

TEST_CASE("a queue pair that is refused without a reason is told of with its device and a remedy") {
  World world(soft_config(), -1, Tap::on);
  Tap::create_error = -1;
  errno = EBADF;  // of some call before
  LogCapture log;
  HandleArray handle;
  std::unique_ptr<Listener> listener;
  REQUIRE(world.b->listen(1, handle, listener) == Status::ok);
  Link link;
  Status sent = Status::again;
  REQUIRE(eventually([&] {
    sent = world.a->connect(0, handle, link.send);
    (void)listener->accept(link.recv);
    return sent != Status::again;
  }));
  CHECK(sent == Status::system);
  CHECK(log.has(LogLevel::warn, "soft0 cannot make a queue pair ("));
  CHECK(log.has(LogLevel::warn, "the provider gave no reason; see the kernel log (dmesg)"));
}

TEST_CASE("D18: both ends make the same queues out of unequal rails and wishes") {
  struct Case {
    int qps_a, qps_b, rails_a, rails_b;
  };
  for (const Case& c : {Case{1, 1, 1, 1},
                        {1, 4, 1, 1},
                        {4, 1, 1, 1},
                        {1, 1, 3, 2},
                        {1, 1, 2, 3},
                        {3, 2, 1, 4},
                        {2, 5, 3, 1},
                        {8, 1, 8, 5},
                        {1, 16, 3, 8}}) {
    INFO("QPs " << c.qps_a << "/" << c.qps_b << ", rails " << c.rails_a << "/" << c.rails_b);
    Config config = soft_config("8");
    config.ib_qps_per_connection = c.qps_a;
    World a(config, -1, Tap::on);
    config.ib_qps_per_connection = c.qps_b;
    World b(config, -1, Tap::on);
    auto first = [](World& w, int rails) {
      std::vector<int> members(static_cast<std::size_t>(rails));
      std::iota(members.begin(), members.end(), 0);
      return w.merge(members);
    };
    const int from = first(a, c.rails_a), to = first(b, c.rails_b);
    Link link = connect(*a.a, from, *b.b, to);
    const int queues = queues_for(c.qps_a, c.qps_b, c.rails_a, c.rails_b);
    CHECK(queues == std::min(kMaxQps, std::max(c.qps_a, c.qps_b) * std::max(c.rails_a, c.rails_b)));
    CHECK(Tap::raised.size() == 2 * static_cast<std::size_t>(queues));
    // Each queue's partner has it as partner.
    std::map<std::uint32_t, std::uint32_t> partner;
    for (const Tap::Raised& q : Tap::raised) partner[q.qpn] = q.attr.dest_qp_num;
    CHECK(partner.size() == Tap::raised.size());
    for (auto [qpn, other] : partner)
      CHECK((partner.count(other) == 1 && partner.at(other) == qpn && other != qpn));
    for (int i = 0; i < queues + 1; ++i) {
      exchange(link, 1000, static_cast<unsigned>(i), kBeyond);
      exchange(link, 200000, static_cast<unsigned>(i), kBeyond);
    }
  }
}

TEST_CASE("D21: a call that gave up early leaves no lock behind") {
  LogCapture log;
  {
    Config config = soft_config();
    config.socket_ifname = "=nosuchinterface0";
    World world(config);
    HandleArray handle{};
    std::unique_ptr<Listener> listener;
    for (int i = 0; i < 2; ++i) {
      const Status s = world.b->listen(1, handle, listener);
      CHECK((s != Status::ok && s != Status::again));
      CHECK(listener == nullptr);
    }
    CHECK(log.warnings().size() == 2);
  }
  // Every early return of every call, each followed by the same call done right on the same
  // objects; a lock left behind would stop this test for ever.
  World world;
  HandleArray bad{};
  std::unique_ptr<Listener> listener;
  std::unique_ptr<SendComm> none;
  const int no_port[] = {9};
  CHECK(world.transport->make_virtual_device(no_port).status() == Status::bad_argument);
  world.merge({0, 1});
  CHECK(world.b->listen(9, bad, listener) == Status::bad_argument);
  CHECK(world.a->connect(0, bad, none) == Status::bad_argument);
  Link link = world.connect();
  CHECK(link.recv->register_memory(nullptr, 1, MemoryType::host, 0, -1).status() ==
        Status::bad_argument);
  CHECK(link.recv->deregister_memory(nullptr) == Status::bad_argument);
  Buffer from(*link.send, 100, 1), to(*link.recv, 100);
  Request* request = nullptr;
  RecvBuffer outside = to.receive(0);
  outside.bytes = 1 << 20;
  CHECK(link.recv->irecv(std::span<const RecvBuffer>(), false, &request) == Status::bad_argument);
  CHECK(link.recv->irecv({&outside, 1}, false, &request) == Status::bad_argument);
  CHECK(link.send->isend(from.data(), 1 << 20, 0, from.memory, &request) == Status::bad_argument);
  CHECK(link.send->isend(from.data(), 100, 0, nullptr, &request) == Status::bad_argument);
  CHECK(request == nullptr);
  exchange(link, 100, 1, kBeyond);
  Request* receive = start_recv(*link.recv, {to.receive(0)});
  Request* send = start_send(*link.send, from, 100, 0, receive);
  Completion c;
  finish(send);
  finish(receive);
  CHECK(send->test(c) == Status::bad_argument);  // over already
  CHECK(receive->test(c) == Status::bad_argument);
  exchange(link, 100, 2, kBeyond);
}

TEST_CASE("Too little lockable memory for a connection is named with its remedy") {
  LogCapture log;
  const LimitedMemlock limited;
  World world(soft_config(), -1, Tap::on);
  HandleArray handle;
  std::unique_ptr<Listener> listener;
  REQUIRE(world.b->listen(1, handle, listener) == Status::ok);
  Tap::no_memory = true;
  std::unique_ptr<SendComm> send;
  std::unique_ptr<RecvComm> recv;
  Status sent = Status::again, received = Status::again;
  REQUIRE(eventually([&] {
    if (sent == Status::again) sent = world.a->connect(0, handle, send);
    if (received == Status::again) received = listener->accept(recv);
    return sent != Status::again && received != Status::again;
  }));
  CHECK(sent != Status::ok);
  CHECK(received != Status::ok);
  CHECK(log.has(LogLevel::warn, "bytes of the connection's own memory"));
  CHECK(log.has(LogLevel::warn, "ulimit -l unlimited"));
  Tap::no_memory = false;
  Link link = world.connect();
  exchange(link, 1000, 1, kBeyond);
}

}  // namespace
}  // namespace twinpath::test
