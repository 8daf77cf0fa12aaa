// The subnets of several processes of one job, and LIDs that change.
#include "test/soft/pci/machine.h"
#include "test/soft/pci/subnet_process.h"

namespace twinpath::softhca::pci {
namespace {

using mlx5::Datagram;
using mlx5::get;
using mlx5::Opcode;
using mlx5::Refusal;
using test::End;
using test::Ends;
using test::eventually;
using test::kGet;
using test::kGuid;
using test::kSet;
using test::new_job;
using test::Process;

TEST_CASE("a datagram comes to the port of another process as it was sent") {
  const std::string job = new_job();
  Process a(job, 0x11), b(job, 0x12), c(job, 0x13);
  for (Process* from : {&a, &b, &c}) {
    for (Process* to : {&a, &b, &c}) CHECK(from->reaches(*to));
  }
  Datagram d;
  d.from = {0x123456, 0, 3, 2, true};
  d.to_lid = b.lid;
  d.to_qpn = 0x654321;
  d.qkey = 0x80010000;
  d.has_immediate = true;
  d.solicited = GENERATE(false, true);
  d.immediate = 0x01020304;
  for (std::size_t i = 0; i < d.route.size(); ++i) d.route[i] = static_cast<std::uint8_t>(i + 1);
  d.data.resize(4096);
  for (std::size_t i = 0; i < d.data.size(); ++i) d.data[i] = static_cast<std::uint8_t>(i * 7 / 3);
  a.port->send(Datagram(d));
  const auto came = b.wait();
  REQUIRE(came);
  CHECK(came->from.qpn == d.from.qpn);
  CHECK(came->from.lid == a.lid);
  CHECK(came->from.service_level == 3);
  CHECK(came->from.path_bits == 2);
  CHECK(came->from.routed);
  CHECK(came->to_lid == b.lid);
  CHECK(came->to_qpn == d.to_qpn);
  CHECK(came->qkey == d.qkey);
  CHECK(came->has_immediate);
  CHECK(came->solicited == d.solicited);
  CHECK(came->immediate == d.immediate);
  CHECK(get(came->route, {64, 64}) == kLinkLocal);
  CHECK(get(came->route, {128, 64}) == kGuid + a.lid);
  CHECK(std::equal(came->route.begin() + 24, came->route.end(), d.route.begin() + 24));
  CHECK(came->data == d.data);
  CHECK(c.is_quiet());

  // To a group: once to each port, the sender's among them.
  a.send(0xc001, 7);
  for (Process* to : {&a, &b, &c}) {
    const auto member = to->wait();
    REQUIRE(member);
    CHECK(member->data == std::vector<std::uint8_t>{7});
    CHECK(to->is_quiet());
  }

  // More at once than a socket has room for.
  constexpr std::uint32_t kMany = 1000;
  for (d.immediate = 0; d.immediate < kMany; ++d.immediate) a.port->send(Datagram(d));
  for (std::uint32_t i = 0; i < kMany; ++i) {
    const auto next = b.wait();
    REQUIRE(next);
    REQUIRE(next->immediate == i);
  }

  // A cable that is pulled.
  b.port->set_up(false);
  a.send(b.lid, 1);
  b.send(a.lid, 2);
  CHECK(a.is_quiet());
  b.port->set_up(true);
  CHECK(b.is_quiet());
  CHECK(a.reaches(b));

  // A port that loses packets without a word.
  const auto crosses = [](Process& from, Process& to, bool expected) {
    from.send(to.lid, 3);
    // What is to come may be late; what is not would have come by then.
    return expected ? eventually([&] { return !to.is_quiet(); }) : to.is_quiet();
  };
  for (const auto loss : {soft::PortLoss::all, soft::PortLoss::incoming, soft::PortLoss::answers,
                          soft::PortLoss::none}) {
    b.port->lose(loss);
    CHECK(crosses(b, a, loss != soft::PortLoss::all));
    CHECK(crosses(a, b, loss == soft::PortLoss::answers || loss == soft::PortLoss::none));
  }

  // A port with another LID.
  CHECK(a.knows_path_to(b.lid));
  b.port->set_lid(0x21);
  CHECK(eventually([&] {
    a.send(0x21, 0xee);
    return b.port->receive().has_value();
  }));
  a.send(b.lid, 4);
  CHECK(b.is_quiet());
  CHECK_FALSE(a.knows_path_to(b.lid));
  b.send(a.lid, 5);
  const auto from_there = a.wait();
  REQUIRE(from_there);
  CHECK(from_there->from.lid == 0x21);
}

TEST_CASE("the managers of all processes give the same answers, and a process may end") {
  const std::string job = new_job();
  Process a(job, 0x11);
  CHECK_FALSE(a.knows_path_to(0x12));
  Gid first{0xff, 0x12, 0x40, 0x1b}, second{0xff, 0x12, 0x40, 0x1b, 9};
  const std::uint64_t lid = a.group(kSet, first);
  CHECK(lid >= 0xc000);
  {
    Process b(job, 0x12);
    CHECK(eventually([&] { return a.knows_path_to(b.lid) && b.knows_path_to(a.lid); }));
    // Groups of before and after.
    CHECK(eventually([&] { return b.group(kGet, first) == lid; }));
    CHECK(a.group(kGet, second) == 0);
    const std::uint64_t other = b.group(kSet, second);
    CHECK(eventually([&] { return a.group(kGet, second) == other; }));
    Gid of_a{}, of_b{};
    CHECK(a.group(kSet, of_a) != 0);
    CHECK(b.group(kSet, of_b) != 0);
    CHECK(of_a != of_b);
    CHECK(eventually([&] { return a.group(kGet, of_b) != 0; }));  // heard before that one ends
  }
  CHECK(eventually([&] { return !a.knows_path_to(0x12); }));
  Process again(job, 0x12);
  CHECK(a.reaches(again));
  // There is an end to groups.
  Gid made{};
  std::size_t groups = 0;
  for (; groups <= kMostGroups && a.group(kSet, made) != 0; ++groups) made = {};
  CHECK(groups == kMostGroups - 4);
}

TEST_CASE("processes of other jobs, and with the same LID, are left out") {
  const std::string job = new_job();
  Process a(job, 0x11), b(job, 0x12), other(new_job(), 0x13), same(job, 0x11);
  CHECK(a.reaches(b));
  CHECK_FALSE(a.knows_path_to(other.lid));
  a.send(other.lid, 1);
  same.send(0xc001, 2);
  CHECK(same.wait());
  CHECK(other.is_quiet());
  CHECK(a.is_quiet());
}

TEST_CASE("what is sent or acknowledged to a LID that the port has no more is lost") {
  constexpr std::uint64_t kTimeout = 10;  // 34 ms with its retries
  Ends ends;
  End &a = ends.a, &b = ends.b;
  a.make(0);
  b.make(0);
  ends.make_keys();
  const auto connect = [&](std::uint64_t lid_of_a, std::uint64_t lid_of_b) {
    a.connect(b.qpn, lid_of_b, kTimeout);
    b.connect(a.qpn, lid_of_a, kTimeout);
  };
  const auto connect_again = [&](std::uint64_t lid_of_a, std::uint64_t lid_of_b) {
    for (End* end : {&a, &b})
      REQUIRE(end->run(Opcode::qp_2rst, {{mlx5::kNumber, end->qpn}}) == Refusal::none);
    connect(lid_of_a, lid_of_b);
  };
  const auto write = [&](std::uint32_t index) {
    a.send(index, 8, End::kStart, b.key, 8, End::kStart);
  };
  const std::uint64_t of_a = a.data.lid(), of_b = b.data.lid();
  connect(of_a, of_b);
  write(0);
  REQUIRE(a.completion(0) == 0);
  End& moved = GENERATE(true, false) ? a : b;
  const std::uint64_t before = moved.data.lid();
  moved.function.change_lid();
  CHECK(moved.data.lid() != before);
  REQUIRE(moved.run(Opcode::query_hca_vport_context, {{mlx5::vport::kPort, 1}}) == Refusal::none);
  CHECK(mlx5::get(moved.out, mlx5::vport::kLid) == moved.data.lid());
  *a.byte(0) = 1;
  write(1);
  REQUIRE(a.completion(1) == 13);
  CHECK(a.syndrome(1) == static_cast<unsigned>(mlx5::Syndrome::transport_retry));
  // Made anew, by who has not heard of it and by who has.
  connect_again(of_a, of_b);
  write(0);
  REQUIRE(a.completion(2) == 13);
  CHECK((*b.byte(0) == 1) == (&moved == &a));
  connect_again(a.data.lid(), b.data.lid());
  write(0);
  CHECK(a.completion(3) == 0);
  // There are eight.
  for (int i = 0; i < 7; ++i) moved.function.change_lid();
  CHECK(moved.data.lid() == before);
}

}  // namespace
}  // namespace twinpath::softhca::pci
