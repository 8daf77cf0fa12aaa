// Receives that queue pairs share; completion queues that get another memory, and that overflow.
#include "test/soft/pci/machine.h"

namespace twinpath::softhca::pci {
namespace {

using mlx5::Opcode;
using mlx5::Refusal;
using test::Connected;
using test::End;

// Two ends, of which the second shares its receives.
struct Pair : test::Ends {
  explicit Pair(std::uint64_t service) {
    a.make(service);
    b.make_objects();
    b.share();
    b.make_queue_pair(service);
    make_keys();
    for (std::uint64_t i = 0; i < 256; ++i) *a.byte(i) = static_cast<std::uint8_t>(i + 1);
  }
  std::uint64_t limit() {
    REQUIRE(b.run(Opcode::query_rmp, {{mlx5::kNumber, b.srqn}}) == Refusal::none);
    CHECK(mlx5::get(b.out, {264, 4}) == 1);  // ready
    CHECK(mlx5::get(b.out, End::kRmpLogEntries) == 3);
    return mlx5::get(b.out, End::kRmpLimit);
  }
  Refusal set_limit(std::uint64_t limit) {
    return b.run(Opcode::modify_rmp, {{{64, 4}, 1},
                                      {mlx5::kNumber, b.srqn},
                                      {{191, 1}, 1},
                                      {{264, 4}, 1},
                                      {End::kRmpLimit, limit}});
  }
};

std::uint64_t index_of(End& end, std::uint32_t completion) {
  return mlx5::get({end.at(End::kCq) + 64 * completion, 64}, {480, 16});
}

TEST_CASE("shared receives are taken in the order of their list, and the limit is told once") {
  Pair p(0);
  p.connect();
  // 0, 5, 2, and then 7, which is not given yet.
  p.b.give(0, 5, 0, 100);
  p.b.give(5, 2, 1000, 100);
  p.b.give(2, 7, 2000, 100);
  CHECK(p.limit() == 0);
  CHECK(p.set_limit(9) == Refusal::srq_limit);
  REQUIRE(p.set_limit(2) == Refusal::none);
  CHECK(p.limit() == 2);
  p.a.send_message(0, 40);
  REQUIRE(p.b.completion(0) == 2);
  CHECK(index_of(p.b, 0) == 0);
  CHECK(*p.b.byte(39) == 40);
  CHECK(*p.b.byte(40) == 0);
  CHECK_FALSE(p.b.data.next_event().value_or(DataPath::Told{}).event == Event::shared_limit);
  p.a.send_message(1, 50);
  REQUIRE(p.b.completion(1) == 2);
  CHECK(index_of(p.b, 1) == 5);
  CHECK(*p.b.byte(1049) == 50);
  auto told = p.b.wait_for_event();
  while (told && told->event == Event::established) told = p.b.wait_for_event();
  REQUIRE(told);
  CHECK(told->event == Event::shared_limit);
  CHECK(told->number == p.b.srqn);
  CHECK(p.limit() == 0);
  p.a.send_message(2, 60);
  REQUIRE(p.b.completion(2) == 2);
  CHECK(index_of(p.b, 2) == 2);
  CHECK(*p.b.byte(2059) == 60);
  // The next waits for its receive.
  p.a.send_message(3, 70);
  p.b.give(7, 1, 500, 100);
  REQUIRE(p.b.completion(3) == 2);
  CHECK(index_of(p.b, 3) == 7);
  CHECK(*p.b.byte(569) == 70);
}

TEST_CASE("a limit that is above what is there is told at once") {
  Pair p(0);
  p.connect();
  p.b.give(0, 1, 0, 100);
  REQUIRE(p.set_limit(1) == Refusal::none);
  CHECK_FALSE(p.b.data.next_event());
  REQUIRE(p.set_limit(2) == Refusal::none);
  const auto told = p.b.wait_for_event();
  REQUIRE(told);
  CHECK(told->event == Event::shared_limit);
}

TEST_CASE("datagrams take shared receives") {
  Pair p(2);
  p.a.be_ready(0x1234);
  p.b.be_ready(0x1234);
  p.b.give(0, 3, 0, 200);
  p.b.give(3, 4, 500, 200);
  p.a.send_datagram(0, p.b.qpn, p.b.data.lid(), 0x1234, 60);
  REQUIRE(p.b.completion(0) == 2);
  p.a.send_datagram(2, p.b.qpn, p.b.data.lid(), 0x1234, 70);
  REQUIRE(p.b.completion(1) == 2);
  CHECK(index_of(p.b, 0) == 0);
  CHECK(index_of(p.b, 1) == 3);
  CHECK(*p.b.byte(99) == 60);
  CHECK(*p.b.byte(609) == 70);
}

TEST_CASE("shared receives are as the device has them, and stay while they are used") {
  Pair p(0);
  const auto make = [&](std::initializer_list<End::Value> other) {
    std::vector<End::Value> values{{End::kRmpPd, p.b.pd},
                                   {End::kRmpLogEntry, 5},
                                   {End::kRmpLogEntries, 7},
                                   {End::kRmpRecord, p.b.base + End::kRecords + 136},
                                   {End::kPage, p.b.base + End::kShared}};
    values.insert(values.end(), other.begin(), other.end());
    return p.b.run(Opcode::create_rmp, values);
  };
  CHECK(make({}) == Refusal::none);
  CHECK(make({{End::kRmpLogEntries, 8}}) == Refusal::queue_end);
  CHECK(make({{{427 + 256, 5}, 1}}) == Refusal::queue_end);  // a 64th of a page further on
  CHECK(make({{End::kRmpLogEntries, 16}}) == Refusal::srq_size);
  CHECK(make({{End::kRmpLogEntries, 0}}) == Refusal::none);  // rdma-core's tests make such
  CHECK(make({{End::kRmpLogEntry, 4}}) == Refusal::srq_size);
  CHECK(make({{End::kRmpLogEntry, 10}}) == Refusal::srq_size);
  CHECK(make({{{640, 4}, 1}}) == Refusal::rq_type);  // a ring, not a list
  CHECK(make({{End::kRmpLimit, 129}}) == Refusal::srq_limit);
  CHECK(make({{End::kRmpRecord, test::kMemory}}) == Refusal::no_page);
  CHECK(make({{End::kRmpRecord, 2}}) == Refusal::record_alignment);
  CHECK(make({{End::kRmpPd, p.b.pd + 1}}) == Refusal::no_pd);
  const End::Value own{mlx5::kNumber, p.b.srqn}, qp{mlx5::kNumber, p.b.qpn};
  // As another kind.
  CHECK(p.b.run(Opcode::query_srq, {own}) == Refusal::no_object);
  CHECK(p.b.run(Opcode::arm_xrc_srq, {own, {mlx5::kOpMod, 1}}) == Refusal::no_object);
  CHECK(p.b.run(Opcode::arm_rq, {own}) == Refusal::no_modifier);
  CHECK(p.b.run(Opcode::destroy_rmp, {own}) == Refusal::in_use);
  REQUIRE(p.b.run(Opcode::destroy_qp, {qp}) == Refusal::none);
  CHECK(p.b.run(Opcode::destroy_rmp, {own}) == Refusal::none);
  CHECK(p.b.run(Opcode::query_rmp, {own}) == Refusal::no_object);
}

// Another memory of 2^`log_entries` entries: the page at kNewCq, or that of a umem.
Refusal resize(End& end, std::uint64_t log_entries, std::uint64_t select = 7,
               std::uint64_t umem = 0) {
  for (std::uint64_t i = 0; i < 64; ++i) end.at(End::kNewCq)[64 * i + 63] = mlx5::kUnwrittenOwner;
  return end.run(Opcode::modify_cq, {{mlx5::kOpMod, 1},
                                     {mlx5::kNumber, end.cqn},
                                     {{96, 32}, select},
                                     {mlx5::cq::kLogSize, log_entries},
                                     {mlx5::cq::kUmemValid, umem != 0 ? 1u : 0u},
                                     {mlx5::cq::kUmem, umem},
                                     {End::kPage, end.base + End::kNewCq}});
}

TEST_CASE("a completion queue goes on in another memory, and says so in the old one") {
  Connected ends;
  End& a = ends.a;
  for (std::uint32_t i = 0; i < 3; ++i) ends.write(i);
  REQUIRE(a.completion(2) == 0);
  CHECK(resize(a, 2, 3) == Refusal::no_field);
  CHECK(resize(a, 7) == Refusal::queue_end);
  CHECK(resize(a, 1) == Refusal::outstanding);
  CHECK(a.out[0] == 0x40);
  a.word(End::kRecords + 64, 1);  // one is taken: two and the entry that says so are left
  CHECK(resize(a, 1) == Refusal::outstanding);
  REQUIRE(resize(a, 2) == Refusal::none);
  CHECK(a.completion(3) == 5);
  ends.write(3);
  // The old one's end is counted, too: the next is the fifth, which begins the second lap of 4.
  CHECK(a.completion(0, End::kNewCq) == 0);
  CHECK((a.at(End::kNewCq)[63] & 1) == 1);
  CHECK(a.at(End::kCq)[64 * 4 + 63] == mlx5::kUnwrittenOwner);
  // The old memory is not the queue's any more, and a second resize is possible.
  a.word(End::kRecords + 64, 5);
  REQUIRE(resize(a, 3) == Refusal::none);
  ends.write(4);
  CHECK(a.completion(6, End::kNewCq) == 0);
  // A program's own memory is in use as long as it is the queue's.
  REQUIRE(a.run(Opcode::create_umem, {{{320, 64}, 1}, {{384, 64}, a.base + End::kCq}}) ==
          Refusal::none);
  const std::uint64_t umem = a.number();
  const auto destroy_umem = [&] { return a.run(Opcode::destroy_umem, {{mlx5::kNumber, umem}}); };
  a.word(End::kRecords + 64, 7);
  REQUIRE(resize(a, 3, 7, umem) == Refusal::none);
  CHECK(destroy_umem() == Refusal::in_use);
  a.word(End::kRecords + 64, 8);
  REQUIRE(resize(a, 3) == Refusal::none);
  CHECK(destroy_umem() == Refusal::none);
  REQUIRE(a.run(Opcode::destroy_qp, {{mlx5::kNumber, a.qpn}}) == Refusal::none);
  CHECK(a.run(Opcode::destroy_cq, {{mlx5::kNumber, a.cqn}}) == Refusal::none);
  CHECK(resize(a, 2) == Refusal::no_object);
}

TEST_CASE("a completion without a place ends the queue and its queue pairs, and is an event") {
  Connected ends;
  End& a = ends.a;
  // An event queue for that.
  REQUIRE(a.run(Opcode::create_eq, {{{227, 5}, 2},
                                    {{232, 24}, a.uar},
                                    {{704, 64}, 1u << 4},
                                    {End::kPage, a.base + End::kShared}}) == Refusal::none);
  // 16 places, none of which is given back.
  for (std::uint32_t i = 0; i < 16; ++i) {
    ends.write(i);
    REQUIRE(a.completion(i) == 0);
  }
  CHECK(a.interrupts == 0);
  ends.write(16);
  REQUIRE(a.interrupted());
  const Bytes event(a.at(End::kShared), 64);
  CHECK(event[1] == 4);
  CHECK(mlx5::get(event, {264, 24}) == a.cqn);
  CHECK(event[43] == 1);  // overrun
  REQUIRE(a.run(Opcode::query_qp, {{mlx5::kNumber, a.qpn}}) == Refusal::none);
  CHECK(mlx5::get(a.out, mlx5::qp::kState) == static_cast<unsigned>(mlx5::State::error));
  CHECK(a.interrupts == 1);
}

}  // namespace
}  // namespace twinpath::softhca::pci
