// The address vector of a queue pair, out of both ends.
#include <endian.h>

#include <array>
#include <cerrno>
#include <set>

#include "plugin/base/reason_text.h"
#include "plugin/rdma/flow_label.h"
#include "plugin/rdma/partition.h"
#include "plugin/rdma/queue_pair.h"
#include "proxy/queues/queue_set.h"
#include "test/support/catch.h"

namespace twinpath {
namespace {

ibv_gid gid(std::uint8_t subnet, std::uint8_t host) {
  ibv_gid g{};
  g.raw[0] = 0xfe;
  g.raw[1] = 0x80;
  g.raw[7] = subnet;
  g.raw[15] = host;
  return g;
}

// Two InfiniBand ports of one subnet with LIDs 7 and 9.
struct Ends {
  Port port;
  Rail local;
  HelloRail remote;
  Ends() {
    port.name = "mlx5_0";
    local.port.port = &port;
    local.gid.gid = gid(1, 7);
    local.gid.index = 3;
    local.mtu = IBV_MTU_4096;
    local.lid = 7;
    remote.port = "mlx5_1";
    remote.gid = gid(1, 9);
    remote.mtu = IBV_MTU_2048;
    remote.lid = 9;
  }
  ibv_ah_attr address() const {
    QueueSettings settings;
    settings.roce = {2, 106};
    settings.infiniband = {3, 105};
    return path_attributes(local, remote, {42, 43}, settings).ah_attr;
  }
};

void check_global(const Ends& e, bool lid) {
  const ibv_ah_attr a = e.address();
  CHECK(a.is_global == 1);
  CHECK(a.dlid == (lid ? 9 : 0));
  CHECK(std::equal(a.grh.dgid.raw, a.grh.dgid.raw + 16, e.remote.gid.raw));
  CHECK(a.grh.sgid_index == 3);
  CHECK(a.grh.hop_limit == 255);
  CHECK(a.grh.traffic_class == (e.port.roce ? 106 : 105));
  CHECK(a.sl == (e.port.roce ? 2 : 3));
}

// An address that InfiniBand routers pass on, with its floating LID.
ibv_gid routable(std::uint16_t flid, std::uint8_t subnet, std::uint8_t host) {
  ibv_gid g = gid(subnet, host);
  g.raw[1] = 0xc0;
  g.raw[4] = static_cast<std::uint8_t>(flid >> 8);
  g.raw[5] = static_cast<std::uint8_t>(flid);
  return g;
}

}  // namespace

TEST_CASE("InfiniBand peers of one subnet go by LID alone, unless a port asks for the header") {
  Ends plain;
  CHECK(plain.address().is_global == 0);
  CHECK(plain.address().dlid == 9);
  Ends here;
  here.local.grh_required = true;
  check_global(here, true);
  Ends there;
  there.remote.grh_required = true;
  check_global(there, true);
  Ends far;
  far.remote.gid = gid(2, 9);
  check_global(far, true);
  Ends without;
  without.remote.lid = 0;
  check_global(without, false);
  Ends ethernet;
  ethernet.port.roce = ethernet.remote.roce = true;
  check_global(ethernet, false);
}

// NCCL's net_ib (connect.cc): the last 16 bits of the prefix are the subnet.
TEST_CASE("across InfiniBand subnets packets go to the floating LID in the peer's address") {
  struct Row {
    const char* what;
    ibv_gid local, remote;
    int is_global, dlid;
  };
  const Row rows[] = {
      {"one subnet, no routers", gid(1, 7), gid(1, 9), 0, 9},
      {"two subnets", routable(0x111, 1, 7), routable(0xc123, 2, 9), 1, 0xc123},
      {"one subnet, with routers about", routable(0x111, 1, 7), routable(0xc123, 1, 9), 0, 9},
      {"the peer's has none", routable(0x111, 1, 7), gid(2, 9), 1, 9},
      {"ours has none", gid(1, 7), routable(0xc123, 2, 9), 1, 0xc123},
  };
  for (const Row& row : rows) {
    CAPTURE(row.what);
    Ends e;
    e.local.gid.gid = row.local;
    e.remote.gid = row.remote;
    CHECK(e.address().is_global == row.is_global);
    CHECK(e.address().dlid == row.dlid);
  }
  Ends header;
  header.local.gid.gid = routable(0x111, 1, 7);
  header.remote.gid = routable(0xc123, 1, 9);
  header.local.grh_required = true;
  check_global(header, true);  // to the port itself: it is in our subnet
}

TEST_CASE("a flow label goes with RoCE only") {
  Ends ends;
  ends.local.grh_required = true;
  CHECK(path_attributes(ends.local, ends.remote, {42, 43}, {}, 77).ah_attr.grh.flow_label == 0);
  ends.port.roce = ends.remote.roce = true;
  CHECK(path_attributes(ends.local, ends.remote, {42, 43}, {}, 77).ah_attr.grh.flow_label == 77);
}

TEST_CASE("flow labels: the same at both ends, never 0, different ports within a connection") {
  for (std::uint32_t qpn = 0; qpn < 2000; qpn += 7) {
    std::set<std::uint16_t> ports;
    for (std::uint32_t i = 0; i < static_cast<std::uint32_t>(kMaxQps); ++i) {
      const std::uint32_t label = flow_label(qpn, 0xfffff0 + i % 3, i);
      REQUIRE(label != 0);
      REQUIRE(label < 1u << 20);
      REQUIRE(label == flow_label(0xfffff0 + i % 3, qpn, i));
      // As drivers and rdma-core have it.
      const std::uint32_t low = label & 0x3fff, high = label & 0xfc000;
      REQUIRE(udp_source_port(label) == (0xc000 | (low ^ high >> 14)));
      ports.insert(udp_source_port(flow_label(qpn, 0xfffff0, i)));
    }
    REQUIRE(ports.size() == static_cast<std::size_t>(kMaxQps));
  }
}

TEST_CASE("flow labels of neighbouring queue pairs spread over the ways") {
  // 1024 connections whose queue numbers rise together, over 8 equal ways chosen by any 3 bits.
  for (int shift = 0; shift <= 11; ++shift) {
    std::array<int, 8> ways{};
    for (std::uint32_t i = 0; i < 1024; ++i)
      ++ways[udp_source_port(flow_label(0x100 + i, 0x2000 + i, 0)) >> shift & 7u];
    CAPTURE(shift);
    // 128 each if even; a sum of 1024 throws of a die is below 80 once in 10^5.
    for (const int n : ways) CHECK(n > 80);
  }
}

namespace {

// One port's partition table.
std::vector<std::uint16_t>& partitions() {
  static std::vector<std::uint16_t> table;
  return table;
}

struct Partition {
  Status status;
  int index = -1;
  std::string why;
};
Partition find(std::vector<std::uint16_t> table, int value, int index = 0) {
  const int entries = static_cast<int>(table.size());
  partitions() = std::move(table);
  Verbs verbs;
  verbs.query_pkey = [](ibv_context*, std::uint8_t port, int i, __be16* out) {
    if (port != 2 || static_cast<std::size_t>(i) >= partitions().size()) return -1;
    if (partitions()[static_cast<std::size_t>(i)] == 0xdead) return -1;
    *out = htobe16(partitions()[static_cast<std::size_t>(i)]);
    return 0;
  };
  Port port;
  port.device = "mlx5_3";
  port.number = 2;
  Config config;
  config.ib_pkey = index;
  config.ib_pkey_value = value;
  Partition out;
  const auto found = find_partition(verbs, port, entries, config, out.why);
  out.status = found.status();
  if (found) out.index = *found;
  return out;
}

}  // namespace

TEST_CASE("a partition is found by its value, wherever it stands") {
  CHECK(find({0xffff, 0x8001}, -1).index == 0);
  CHECK(find({0xffff, 0x8001}, -1, 7).index == 7);
  CHECK(find({0xffff, 0x8001}, 0x8001).index == 1);
  CHECK(find({0xffff, 0x8001}, 0x0001, 7).index == 1);  // before the index
  CHECK(find({0x0001, 0x8001}, 0x0001).index == 1);     // the full member
  CHECK(find({0xffff, 0x0001}, 0x8001).index == 1);     // a limited one if there is no other
  CHECK(find({0xffff, 0xdead, 0x8002}, 0x8002).index == 2);
}

TEST_CASE("a partition that a port is not in is refused with the port's table") {
  const Partition none = find({0xffff, 0, 0x8001}, 0x1234);
  CHECK(none.status == Status::bad_argument);
  CHECK(none.why.find("mlx5_3:2: NCCL_IB_PKEY_VALUE=0x1234") != std::string::npos);
  CHECK(none.why.find("in use: 0: 0xffff, 2: 0x8001") != std::string::npos);
  CHECK(find({}, 0x1234).why.find("in use: none") != std::string::npos);
  CHECK(find({0, 0}, 0).status == Status::bad_argument);  // entries that are not in use
  Port port;
  std::string why;
  Config config;
  config.ib_pkey_value = 5;
  CHECK(find_partition(Verbs{}, port, 8, config, why).status() == Status::bad_argument);
}

TEST_CASE("a move is tried again after a timeout, later each time, and not for ever") {
  Config config;
  config.ib_mqp_retry_cnt = 3;
  config.ib_mqp_retry_sleep_ms = 100;
  ModifyRetry retry(retry_settings(config));
  CHECK(retry.due(0));
  std::int64_t now = 5 * kSecond;
  for (const int wait_ms : {100, 200, 300}) {
    CHECK(retry.failed(ETIMEDOUT, now));
    CHECK(retry.due_in(now) == wait_ms * kMillisecond);
    CHECK_FALSE(retry.due(now + wait_ms * kMillisecond - 1));
    now += wait_ms * kMillisecond;
    CHECK(retry.due(now));
  }
  CHECK_FALSE(retry.failed(ETIMEDOUT, now));
  retry.succeeded();
  CHECK(retry.due(0));
  CHECK(retry.failed(ETIMEDOUT, now));  // the next move has its own tries
  retry.succeeded();
  CHECK_FALSE(retry.failed(EINVAL, now));
  CHECK_FALSE(ModifyRetry(RetrySettings{}).failed(ETIMEDOUT, now));
}

TEST_CASE("moves are bounded by the time for a connection, and any error may count") {
  Config config;
  config.connect_timeout_ms = 1000;
  config.ib_mqp_retry_all = true;
  ModifyRetry retry(retry_settings(config));
  std::int64_t now = 0;
  int tries = 0;
  for (; tries < 100 && retry.failed(EIO, now); ++tries) now += retry.due_in(now);
  CHECK(tries == 3);  // after 100, 300, 600 ms; the next would be at 1000
  CHECK(now < kSecond);
}

TEST_CASE("what ibv_modify_qp gives is an errno value, its negative, or in errno") {
  errno = EIO;
  CHECK(call_error(0) == 0);
  CHECK(call_error(ETIMEDOUT) == ETIMEDOUT);
  CHECK(call_error(-ETIMEDOUT) == ETIMEDOUT);
  CHECK(call_error(-1) == EIO);
  errno = 0;
  CHECK(call_error(-1) == -1);
}

TEST_CASE("a move takes no earlier call's errno for its own") {
  Verbs verbs;
  verbs.modify_qp = [](ibv_qp*, ibv_qp_attr*, int) { return -1; };
  ibv_qp_attr attr{};
  errno = ETIMEDOUT;
  CHECK(move_pair(verbs, nullptr, attr, 0) == -1);
}

TEST_CASE("a reason is the errno's text, or that there is none") {
  CHECK(reason_text(ENOMEM) == "Cannot allocate memory (errno 12)");
  CHECK(reason_text(0) == "the provider gave no reason");
  CHECK(reason_text(-1) == "the provider gave no reason");
}

TEST_CASE("less inline data is asked for step by step, past each known adapter's limit") {
  int asked = 512;
  for (const int step : {128, 96, 64, 48, 28, 0, 0}) CHECK((asked = less_inline(asked)) == step);
  CHECK(less_inline(28) == 0);
  CHECK(less_inline(1) == 0);
}

}  // namespace twinpath
