// What adapters lack is named; where queues lie, and in which order that is tried.
#include "gda/adapter/mlx5/capabilities.h"

#include "gda/adapter/mlx5/path.h"
#include "gda/adapter/mlx5/queue_memory.h"
#include "test/gda/mlx5/bench.h"

using namespace twinpath;
using namespace twinpath::gda::mlx5;
using twinpath::gda::QueueEnd;

namespace {

Capabilities able() {
  Capabilities c;
  c.reliable = c.atomics = c.ignores_overrun = c.waits = c.ethernet = c.roce = true;
  c.cqe_version = 1;
  c.log_max_queue = 15;
  c.log_max_cq = 22;
  c.log_max_message = 30;
  c.log_reads_in = c.log_reads_out = 4;
  c.fetch_add = c.eight_bytes = c.host_order = c.roce_v2 = true;
  c.first_udp_port = 0xc000;
  c.last_udp_port = 0xffff;
  return c;
}

Rail make_rail(const Port& port, std::uint8_t last) {
  Rail rail;
  rail.port.port = &port;
  rail.gid.index = 3;
  rail.gid.gid.raw[0] = 0xfe;
  rail.gid.gid.raw[1] = 0x80;
  rail.gid.gid.raw[15] = last;
  rail.mtu = IBV_MTU_4096;
  rail.lid = last;
  return rail;
}

QueueEnd far_of(const Rail& rail) {
  QueueEnd far;
  far.rail = rail.hello();
  far.queue = {0x222, 0x333333};
  far.reads_in = 16;
  return far;
}

}  // namespace

TEST_CASE("an adapter that can all lacks nothing, and each thing that one lacks is named") {
  CHECK(missing(able(), 15).empty());
  struct Case {
    void (*take)(Capabilities&);
    const char* named;
  };
  const Case cases[] = {
      {[](Capabilities& c) { c.reliable = false; }, "(rc)"},
      {[](Capabilities& c) { c.cqe_version = 0; }, "version 0, not 1 (cqe_version)"},
      {[](Capabilities& c) { c.ignores_overrun = false; }, "(cq_oi)"},
      {[](Capabilities& c) { c.log_max_queue = 14; }, "16384 entries, not 32768"},
      {[](Capabilities& c) { c.log_max_cq = 10; }, "TWINPATH_GIN_DEPTH"},
      {[](Capabilities& c) { c.atomics = false; }, "no atomic additions of 8 bytes"},
      {[](Capabilities& c) { c.fetch_add = false; }, "no atomic additions of 8 bytes"},
      {[](Capabilities& c) { c.eight_bytes = false; }, "atomic_size_qp"},
      {[](Capabilities& c) { c.host_order = false; }, "another order of bytes"},
      {[](Capabilities& c) { c.roce = false; }, "no RoCE v2"},
      {[](Capabilities& c) { c.roce_v2 = false; }, "no RoCE v2"},
      {[](Capabilities& c) { c.last_udp_port = 1; }, "no UDP ports"},
  };
  for (const Case& one : cases) {
    Capabilities c = able();
    one.take(c);
    const auto lacks = missing(c, 15);
    CAPTURE(one.named);
    REQUIRE(lacks.size() == 1);
    CHECK(lacks[0].find(one.named) != std::string::npos);
  }
  Capabilities c = able();
  c.waits = false;                          // NCCL's own transport never asks
  c.ethernet = c.roce = c.roce_v2 = false;  // InfiniBand
  CHECK(missing(c, 15).empty());
}

TEST_CASE("capabilities are read where the manual has them") {
  Command answer(cap::kAnswerBytes);
  // By byte and bit of the manual, behind the header of 16 bytes.
  answer.put({16 + 0x10, 23, 16}, 13).put({16 + 0x18, 23, 16}, 21);
  answer.put({16 + 0x28, 21, 16}, 5).put({16 + 0x28, 5, 0}, 3);
  answer.put({16 + 0x34, 9, 8}, 1).put({16 + 0x38, 28, 24}, 30).put({16 + 0x3c, 3, 0}, 1);
  answer.put({16 + 0x40, 2, 1}, 3).put({16 + 0x44, 31, 31}, 1).put({16 + 0x44, 19, 19}, 1);
  answer.put({16 + 0x44, 0, 0}, 1);
  Capabilities c;
  c.read(CapabilityKind::general, answer.bytes());
  CHECK(c.log_max_queue == 13);
  CHECK(c.log_max_cq == 21);
  CHECK(c.log_reads_out == 5);
  CHECK(c.log_reads_in == 3);
  CHECK(c.log_max_message == 30);
  CHECK(c.cqe_version == 1);
  const bool all = c.ethernet && c.roce && c.atomics && c.ignores_overrun && c.waits && c.reliable;
  CHECK(all);
  CHECK_FALSE(c.second_page);
}

TEST_CASE("the choice of a clock is told by another page with RoCE than without") {
  for (const std::uint32_t general : {0u, 1u, 2u}) {
    for (const std::uint32_t roce : {0u, 1u, 2u}) {
      Command first(cap::kAnswerBytes), second(cap::kAnswerBytes);
      first.put({16 + 0x88, 31, 30}, general);
      second.put({16 + 0x00, 1, 0}, roce);
      Capabilities c;
      c.read(CapabilityKind::general, first.bytes());
      CHECK(c.chooses_clock == (general != 0));
      c.read(CapabilityKind::roce, second.bytes());
      CHECK(c.chooses_clock == (roce != 0));
    }
  }
}

TEST_CASE("memory of queues: ways in order") {
  using enum UmemWay;
  struct Case {
    UmemFacts facts;
    std::vector<UmemWay> ways;
  };
  // gpu, exported, takes_dmabuf, peermem
  const Case cases[] = {
      {{false, false, false, false}, {host}},
      {{false, true, true, true}, {host}},
      {{true, true, true, true}, {gpu_dmabuf, gpu_address}},
      {{true, true, true, false}, {gpu_dmabuf}},
      {{true, true, false, true}, {gpu_address}},
      {{true, false, true, true}, {gpu_address}},
      {{true, false, true, false}, {}},
  };
  for (const Case& one : cases) CHECK(umem_ways(one.facts) == one.ways);
}

TEST_CASE("queues begin at 4 KiB, records at 8 bytes, and nothing overlaps") {
  for (const unsigned log_depth : {4u, 6u, 8u, 15u}) {
    for (const bool collapsed : {false, true}) {
      const BlockPlan plan{5, log_depth, collapsed};
      CAPTURE(log_depth, collapsed);
      std::size_t end = 0;
      const auto take = [&](std::size_t at, std::size_t bytes, std::size_t alignment) {
        CHECK(at % alignment == 0);
        CHECK(at >= end);
        end = at + bytes;
      };
      for (std::size_t q = 0; q < 5; ++q) take(plan.sq(q), std::size_t{64} << log_depth, 4096);
      for (std::size_t q = 0; q < 5; ++q)
        take(plan.cq(q), collapsed ? 64 : std::size_t{64} << log_depth, 4096);
      for (std::size_t q = 0; q < 5; ++q) take(plan.qp_record(q), 8, 8);
      for (std::size_t q = 0; q < 5; ++q) take(plan.cq_record(q), 8, 8);
      CHECK(plan.bytes() >= end);
      CHECK(plan.bytes() % 4096 == 0);
    }
  }
}

TEST_CASE("paths: what both ends can, addressed as the fabric wants it") {
  Port port;
  port.roce = true;
  port.number = 2;
  Rail rail = make_rail(port, 1);
  const Rail other = make_rail(port, 2);
  QueueSettings settings;
  settings.roce = {3, 0x6a};
  settings.infiniband = {5, 0};
  rail.pkey_index = 1;

  QueueEnd far = far_of(other);
  far.rail.mtu = IBV_MTU_1024;
  far.reads_in = 5;
  Joint j = make_joint(rail, settings, able(), 0x111, 7, far);
  CHECK(j.mtu == 3);  // the far end's, and not NCCL's 4096
  CHECK(j.log_reads_in == 4);
  CHECK(j.log_reads_out == 2);  // 4 of the 5 that the far end takes
  CHECK(j.far_qpn == 0x222);
  CHECK(j.far_psn == 0x333333);
  CHECK(j.psn == 7);
  CHECK(j.path.global);
  CHECK(j.path.lid == 0);
  CHECK(j.path.gid_index == 3);
  CHECK(j.path.port == 2);
  CHECK(j.path.gid[15] == 2);
  // A different UDP port for each pair of queues, within the adapter's, the same from both ends.
  std::vector<std::uint16_t> ports;
  for (std::uint32_t qpn = 0x100; qpn < 0x140; ++qpn) {
    const std::uint16_t udp = make_joint(rail, settings, able(), qpn, 0, far).path.udp_port;
    CHECK(udp >= 0xc000);
    far.queue.qpn = qpn;
    CHECK(make_joint(rail, settings, able(), 0x222, 0, far).path.udp_port == udp);
    far.queue.qpn = 0x222;
    ports.push_back(udp);
  }
  std::sort(ports.begin(), ports.end());
  CHECK(std::unique(ports.begin(), ports.end()) - ports.begin() > 60);

  rail.mtu = IBV_MTU_512;  // ours, now
  Capabilities few = able();
  few.log_reads_in = 1;
  few.log_reads_out = 0;
  few.log_max_message = 20;
  j = make_joint(rail, settings, few, 0x111, 0, far);
  CHECK(j.mtu == 2);
  CHECK(j.log_reads_in == 1);
  CHECK(reads_in(few) == 2);
  CHECK(j.log_reads_out == 0);
  CHECK(j.log_message == 20);

  port.roce = false;  // InfiniBand: by LID in one subnet, by GID across
  far = far_of(other);
  j = make_joint(rail, settings, able(), 0x111, 0, far);
  CHECK_FALSE(j.path.global);
  CHECK(j.path.lid == 2);
  CHECK(j.path.udp_port == 0);
  far.rail.gid.raw[7] = 1;
  j = make_joint(rail, settings, able(), 0x111, 0, far);
  CHECK(j.path.global);
  CHECK(j.path.lid == 2);
  CHECK(j.path.hop_limit == 255);
  far = far_of(other);
  far.rail.lid = 0;
  CHECK(make_joint(rail, settings, able(), 0x111, 0, far).path.global);
}
