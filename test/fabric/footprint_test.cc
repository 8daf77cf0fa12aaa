// What an idle connection takes of our own, without its queue pair: counted in the heap, but for
// what is allocated while the adapter's library runs.
#include <malloc.h>

#include "proxy/queues/depths.h"
#include "proxy/receive/flush.h"
#include "proxy/receive/recv_comm.h"
#include "proxy/send/send_comm.h"
#include "test/fabric/world.h"
#include "test/support/needs.h"

namespace twinpath::test {
namespace {

// The heap's bytes in use, and how many of them the adapter's library took.  The verbs table has
// plain function pointers, so this is static; connections are made by one thread.
struct Heap {
  static inline Verbs real;
  static inline std::int64_t adapters = 0;

  static std::int64_t used() { return static_cast<std::int64_t>(mallinfo2().uordblks); }
  static std::int64_t ours() { return used() - adapters; }
  template <class Call>
  static auto count(Call&& call) {
    const std::int64_t before = used();
    auto result = call();
    adapters += used() - before;
    return result;
  }
  static void on(Fabric& fabric) {
    real = fabric.verbs;
    fabric.verbs.create_qp = [](ibv_pd* pd, ibv_qp_init_attr* init) {
      return count([&] { return real.create_qp(pd, init); });
    };
    fabric.verbs.modify_qp = [](ibv_qp* qp, ibv_qp_attr* attr, int mask) {
      return count([&] { return real.modify_qp(qp, attr, mask); });
    };
    fabric.verbs.reg_mr_iova2 = [](ibv_pd* pd, void* at, std::size_t bytes, std::uint64_t iova,
                                   unsigned access) {
      return count([&] { return real.reg_mr_iova2(pd, at, bytes, iova, access); });
    };
    fabric.verbs.create_cq = [](ibv_context* context, int entries, void* user,
                                ibv_comp_channel* channel, int vector) {
      return count([&] { return real.create_cq(context, entries, user, channel, vector); });
    };
  }
};

struct Taken {
  std::int64_t sender = 0, receiver = 0;
};

Link connect_counted(World& world, Taken& taken) {
  Link link;
  HandleArray handle;
  std::unique_ptr<Listener> listener;
  REQUIRE(world.b->listen(0, handle, listener) == Status::ok);
  const auto step = [](std::int64_t& of, auto&& call) {
    const std::int64_t before = Heap::ours();
    const Status s = call();
    of += Heap::ours() - before;
    REQUIRE((s == Status::ok || s == Status::again));
  };
  REQUIRE(eventually([&] {
    if (!link.send) step(taken.sender, [&] { return world.a->connect(0, handle, link.send); });
    if (!link.recv) step(taken.receiver, [&] { return listener->accept(link.recv); });
    return link.send && link.recv;
  }));
  return link;
}

}  // namespace

TEST_CASE("An idle connection takes 12 KiB at each end, without its queue pair") {
  NEEDS(!kSanitizes, "the sanitizers' heap cannot be asked");
  // Its counts are in the page that twinpath-top reads.
  World world(soft_config("soft0"), -1, Heap::on, CounterPage::create("here", "test", {}));
  Taken first;
  std::vector<Link> links;
  for (int i = 0; i < 20; ++i) links.push_back(connect_counted(world, first));  // tables grow
  constexpr int kMany = 100;
  Taken taken;
  for (int i = 0; i < kMany; ++i) links.push_back(connect_counted(world, taken));
  // Requests are made when they are first needed: until then nothing touches their pages.
  const std::int64_t sender = taken.sender / kMany - std::int64_t{kSendSlots} * sizeof(SendRequest);
  const std::int64_t receiver =
      taken.receiver / kMany - std::int64_t{kRecvSlots} * sizeof(RecvRequest);
  CAPTURE(sender, receiver);
  CHECK(sender > 8192);  // the ring is among it
  CHECK(sender <= 12 * 1024);
  CHECK(receiver > 4096);
  CHECK(receiver <= 12 * 1024);
  exchange(links.back());
}

TEST_CASE("A connection has one place in its session's table, and its flushes none of their own") {
  const Config config = soft_config("soft0");
  auto fabric = open_fabric(config);
  REQUIRE(fabric);
  const auto devices = std::make_shared<Devices>(std::move(fabric).take(), config);
  const auto hub = std::make_shared<CompletionHub>(devices->verbs());
  const auto take = [&] {
    auto place = CommPlace::take(hub);
    REQUIRE(place);
    return std::move(place).take();
  };
  CommPlace first = take();
  {
    auto rails = choose_rails(*devices, 0);
    REQUIRE(rails);
    FlushQueues flushes(hub, devices, *rails, first.id());
    REQUIRE(flushes.prepare(1, true) == Status::ok);
    CHECK(take().id().index == first.id().index + 1);
  }
  // Who has it next is another comm, so that late completions of the first find nobody.
  const CompletionHub::CommId before = first.id();
  CommPlace moved = std::move(first);
  first = CommPlace();
  CHECK(take().id().index != before.index);
  moved = CommPlace();
  const CommPlace again = take();
  CHECK(again.id().index == before.index);
  CHECK(again.id().epoch == before.epoch + 1);
}

}  // namespace twinpath::test
