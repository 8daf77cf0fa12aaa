// What a sender posts on its queues, alone: an adapter that keeps the work requests, or refuses
// them.
#include "proxy/send/send_queues.h"

#include <arpa/inet.h>

#include <cerrno>
#include <vector>

#include "proxy/send/send_requests.h"
#include "test/support/catch.h"

namespace twinpath {
namespace {

constexpr std::uint64_t kBase = std::uint64_t{static_cast<int>(WrKind::send_data)} << 32;

struct Posted {
  std::uint32_t queue = 0;
  ibv_send_wr wr{};
  std::vector<ibv_sge> sges;
};

struct Bench {
  static inline std::vector<Posted> posted;
  static inline int refuse = 0;
  ibv_context context{};
  std::array<ibv_qp, 2> qps{};
  std::array<counters::Rail, kMaxRails> rails;
  std::array<std::uint8_t, 1 << 18> data{};
  ProxyMemory memory;
  alignas(8) std::array<std::uint8_t, sizeof(WideCell)> cell{};
  CtsLayout layout{2};
  SendQueues queues;
  SendRequests requests{nullptr, kBase};
  SendTrace trace{rails};

  explicit Bench(int lanes, std::uint16_t inline_bytes = 32, std::size_t split_above = SIZE_MAX)
      : queues(Lanes({{}, 1 << 16, false, false, false}, rails),
               WriteMaker(0x10000, {21, 22}, split_above), kBase, 4096) {
    posted.clear();
    refuse = 0;
    context.ops.post_send = [](ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) {
      *bad = wr;
      if (refuse == 0)
        for (; wr != nullptr; wr = wr->next)
          posted.push_back({qp->qp_num, *wr, {wr->sg_list, wr->sg_list + wr->num_sge}});
      return refuse;
    };
    std::vector<Lane> used;
    for (int i = 0; i < lanes; ++i) {
      const auto at = static_cast<std::size_t>(i);
      qps[at].context = &context;
      qps[at].qp_num = static_cast<std::uint32_t>(100 + i);
      const auto rail = static_cast<std::uint8_t>(i);
      used.push_back({&qps[at], rail, rail, rail, inline_bytes, 1000, &rails[at]});
    }
    queues.use(std::move(used), lanes);
    layout.fill(cell.data(), 0x5000, 1 << 18, 3, 0x41, 0,
                [](int rail) { return 70u + static_cast<unsigned>(rail); });
  }
  Outgoing message(std::uint32_t bytes) const {
    const CellView view(cell.data());
    return {data.data(), &memory, view, view.meta(), bytes, 0};
  }
};

TEST_CASE("A plain message is one write with notice, and counts on its rail") {
  Bench b(1);
  CHECK(b.queues.plain_up_to() == 4096);
  for (const std::size_t bytes : {0, 8, 64}) {
    CAPTURE(bytes);
    Bench::posted.clear();
    const CellView cell(b.cell.data());
    b.queues.lay_plain(b.data.data(), bytes, &b.memory, cell, cell.meta(), 9);
    REQUIRE(b.queues.post_plain(bytes, bytes + 1));
    REQUIRE(Bench::posted.size() == 1);
    const Posted& p = Bench::posted[0];
    CHECK(p.wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM);
    CHECK(p.wr.wr_id == 9);
    CHECK(ntohl(p.wr.imm_data) == message_immediate(0x41, 1));
    CHECK(p.wr.wr.rdma.remote_addr == 0x5000);
    CHECK(p.wr.wr.rdma.rkey == 70);
    CHECK((p.wr.send_flags & IBV_SEND_SIGNALED) != 0);
    CHECK(((p.wr.send_flags & IBV_SEND_INLINE) != 0) == (bytes <= 32));
    CHECK(p.sges.size() == (bytes == 0 ? 0u : 1u));
    CHECK(b.rails[0].messages.get() == bytes + 1);
  }
  CHECK(b.rails[0].bytes.get() == 72);
}

TEST_CASE("Over several queues, or above the limit of adaptive routing, no message is plain") {
  CHECK(Bench(2).queues.plain_up_to() == 0);
  CHECK(Bench(1, 32, 100).queues.plain_up_to() == 100);
}

TEST_CASE("What is split goes as a write and a write of its size, the last of them signalled") {
  Bench b(1, 32, 100);
  const Outgoing m = b.message(200);
  REQUIRE(b.queues.post_piece(m, WriteMaker::whole(m), b.queues.first(), 5, 1));
  REQUIRE(Bench::posted.size() == 2);
  CHECK(Bench::posted[0].wr.opcode == IBV_WR_RDMA_WRITE);
  CHECK((Bench::posted[0].wr.send_flags & IBV_SEND_SIGNALED) == 0);
  CHECK(Bench::posted[1].wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM);
  CHECK((Bench::posted[1].wr.send_flags & IBV_SEND_SIGNALED) != 0);
  for (const Posted& p : Bench::posted) CHECK(p.wr.wr_id == 5);
}

TEST_CASE("A message that is cut awaits all its pieces, each on a queue of its own") {
  Bench b(2);
  SendRequest& r = *b.requests.take();
  r.begin(b.data.data(), b.data.size(), &b.memory, 0);
  REQUIRE(b.queues.post_striped(r, b.message(1 << 18), {0, 2}, b.trace, 1));
  REQUIRE(Bench::posted.size() == 2);
  CHECK(r.pending() == 2);
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < 2; ++i) {
    const Posted& p = Bench::posted[i];
    CHECK(p.queue == 100 + i);
    CHECK(p.wr.wr_id == r.wr_id());
    CHECK(p.wr.wr.rdma.remote_addr == 0x5000 + bytes);
    CHECK(p.wr.wr.rdma.rkey == 70 + i);
    CHECK(b.rails[i].bytes.get() == p.sges[0].length);
    bytes += p.sges[0].length;
  }
  CHECK(bytes == 1 << 18);
}

TEST_CASE("How far all cells are used is told by an inline write of its own") {
  Bench b(1);
  REQUIRE(b.queues.tell_used(77, RegisteredBuffer{}, 0));
  REQUIRE(Bench::posted.size() == 1);
  const Posted& p = Bench::posted[0];
  CHECK(p.wr.opcode == IBV_WR_RDMA_WRITE);
  CHECK(kind_of(p.wr.wr_id) == WrKind::used);
  CHECK(p.wr.wr.rdma.remote_addr == 0x10000 + kUsedAt);
  CHECK(p.wr.wr.rdma.rkey == 21);
  CHECK((p.wr.send_flags & IBV_SEND_INLINE) != 0);
}

TEST_CASE("What an adapter refuses is told with its queue, length and errno") {
  Bench b(2);
  SendRequest& r = *b.requests.take();
  r.begin(b.data.data(), b.data.size(), &b.memory, 0);
  Bench::refuse = ENOMEM;
  const Outgoing m = b.message(48);
  CHECK_FALSE(b.queues.post_whole(m, b.queues.lanes()[1], 1, 1));
  CHECK(b.queues.failed().queue == 101);
  CHECK(b.queues.failed().bytes == 48);
  CHECK(b.queues.failed().error == ENOMEM);
  CHECK_FALSE(b.queues.post_striped(r, b.message(1 << 18), {0, 2}, b.trace, 1));
  CHECK(b.queues.failed().queue == 100);
  CHECK(b.queues.failed().bytes == 1 << 17);
  Bench::refuse = EINVAL;
  CHECK_FALSE(b.queues.tell_used(1, RegisteredBuffer{}, 0));
  CHECK(b.queues.failed().bytes == sizeof(std::uint32_t));
  CHECK(b.queues.failed().error == EINVAL);
}

TEST_CASE("Messages of a batch leave together, and the last speaks for all") {
  Bench b(1);
  SendBatch batch;
  batch.add(b.message(8));
  batch.add(b.message(16));
  REQUIRE(b.queues.post_batch(batch, b.queues.first(), {}, 33, 16, 2));
  CHECK(batch.empty());
  REQUIRE(Bench::posted.size() == 2);
  CHECK((Bench::posted[0].wr.send_flags & IBV_SEND_SIGNALED) == 0);
  CHECK((Bench::posted[1].wr.send_flags & IBV_SEND_SIGNALED) != 0);
  CHECK(Bench::posted[1].wr.wr_id == 33);
  CHECK(b.rails[0].bytes.get() == 24);
  CHECK(b.rails[0].messages.get() == 2);
}

}  // namespace
}  // namespace twinpath
