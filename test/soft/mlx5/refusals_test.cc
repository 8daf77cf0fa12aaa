// Wrong commands: each a valid one with one thing changed, refused with its status and without a
// trace, so that the valid one is accepted after it.
#include <string>

#include "test/soft/mlx5/world.h"
#include "test/support/catch.h"

using namespace twinpath::soft::mlx5;

namespace {

enum class Base { caps, roce, vport, cq, qp, init, receive, send, query };

// In the command `base`, bits [high:low] of the word at `byte` become `value`.
struct Wrong {
  const char* what;
  Base base;
  std::size_t byte;
  unsigned high, low;
  std::uint32_t value;
  Refusal refusal;
};

constexpr std::size_t kCqc = 0x10, kQpc = 0x18, kPath = kQpc + 0x18;
constexpr std::uint32_t kNobody = 0xabcdef;

const Wrong kAnywhere[] = {
    {"unknown command", Base::caps, 0, 31, 16, 0xfff, Refusal::no_command},
    {"command 0", Base::caps, 0, 31, 16, 0, Refusal::no_command},
    {"a command that is not modelled", Base::qp, 0, 31, 16, 0x710, Refusal::no_command},
    {"unknown kind of capabilities", Base::caps, 4, 15, 0, 0x7 << 1 | 1, Refusal::no_modifier},
    {"kind of capabilities beyond all", Base::caps, 4, 15, 0, 0xffff, Refusal::no_modifier},
    {"vport: modifier", Base::vport, 4, 15, 0, 1, Refusal::no_modifier},
    {"vport: port", Base::vport, 8, 19, 16, 3, Refusal::no_port},
    {"RoCE address: modifier", Base::roce, 4, 15, 0, 2, Refusal::no_modifier},
    {"RoCE address: port", Base::roce, 8, 3, 0, 3, Refusal::no_port},
    {"RoCE address: index", Base::roce, 8, 31, 16, 8, Refusal::no_gid},
    {"RoCE address: last index", Base::roce, 8, 31, 16, 0xffff, Refusal::no_gid},

    {"CQ: modifier", Base::cq, 4, 15, 0, 1, Refusal::no_modifier},
    {"CQ: no doorbell page", Base::cq, kCqc + 0xc, 23, 0, 0, Refusal::no_uar},
    {"CQ: another's doorbell page", Base::cq, kCqc + 0xc, 23, 0, kNobody, Refusal::no_uar},
    {"CQ: a umem for a doorbell page", Base::cq, kCqc + 0xc, 23, 0, 0x102, Refusal::no_uar},
    {"CQ: no memory", Base::cq, 0x58, 31, 0, 0, Refusal::no_umem},
    {"CQ: another's memory", Base::cq, 0x58, 31, 0, kNobody, Refusal::no_umem},
    {"CQ: a doorbell page for memory", Base::cq, 0x58, 31, 0, 0x101, Refusal::no_umem},
    {"CQ: number of memory beyond 24 bits", Base::cq, 0x58, 31, 0, 0x1000102, Refusal::no_umem},
    {"CQ: no memory for the record", Base::cq, kCqc + 0x4, 31, 0, 0, Refusal::no_record_umem},
    {"CQ: another's for the record", Base::cq, kCqc + 0x4, 31, 0, kNobody, Refusal::no_record_umem},
    {"CQ: record off 8 bytes", Base::cq, kCqc + 0x3c, 31, 0, 4, Refusal::record_alignment},
    {"CQ: record behind its memory", Base::cq, kCqc + 0x3c, 31, 0, 8, Refusal::record_end},
    {"CQ: record far behind", Base::cq, kCqc + 0x38, 31, 0, 0x80000000, Refusal::record_end},
    {"CQ: event queue of nobody", Base::cq, kCqc + 0x14, 7, 0, 12, Refusal::no_eqn},
    {"CQ: event queue of the kernel", Base::cq, kCqc + 0x14, 7, 0, 0, Refusal::no_eqn},
    {"CQ: size of completions 2", Base::cq, kCqc, 23, 21, 2, Refusal::cqe_size},
    {"CQ: size of completions 7", Base::cq, kCqc, 23, 21, 7, Refusal::cqe_size},
    {"CQ: longer than any", Base::cq, kCqc + 0xc, 28, 24, 23, Refusal::cq_size},
    {"CQ: length 2^31", Base::cq, kCqc + 0xc, 28, 24, 31, Refusal::cq_size},
    {"CQ: longer than its memory", Base::cq, kCqc + 0xc, 28, 24, 11, Refusal::queue_end},
    {"CQ: begins in the middle of an entry", Base::cq, 0x54, 31, 0, 32, Refusal::queue_alignment},
    {"CQ: ends behind its memory", Base::cq, 0x54, 31, 0, 0xe040, Refusal::queue_end},
    {"CQ: begins behind its memory", Base::cq, 0x50, 31, 0, 1, Refusal::queue_end},

    {"QP: modifier", Base::qp, 4, 15, 0, 1, Refusal::no_modifier},
    {"QP: made in INIT", Base::qp, kQpc, 31, 28, 1, Refusal::new_state},
    {"QP: service UC", Base::qp, kQpc, 23, 16, 1, Refusal::service},
    {"QP: service UD", Base::qp, kQpc, 23, 16, 2, Refusal::service},
    {"QP: service 255", Base::qp, kQpc, 23, 16, 255, Refusal::service},
    {"QP: without records", Base::qp, kQpc + 0x10, 31, 30, 1, Refusal::record_mode},
    {"QP: without records, internal", Base::qp, kQpc + 0x10, 31, 30, 2, Refusal::record_mode},
    {"QP: another's doorbell page", Base::qp, kQpc + 0xc, 23, 0, kNobody, Refusal::no_uar},
    {"QP: no protection domain", Base::qp, kQpc + 0x4, 23, 0, 0, Refusal::no_pd},
    {"QP: another's protection domain", Base::qp, kQpc + 0x4, 23, 0, kNobody, Refusal::no_pd},
    {"QP: no completion queue", Base::qp, kQpc + 0x7c, 23, 0, 0, Refusal::no_cq},
    {"QP: another's completion queue", Base::qp, kQpc + 0x7c, 23, 0, kNobody, Refusal::no_cq},
    {"QP: a umem for a completion queue", Base::qp, kQpc + 0x7c, 23, 0, 0x102, Refusal::no_cq},
    {"QP: receives, and no queue for it", Base::qp, kQpc + 0xac, 26, 24, 0, Refusal::no_cq},
    {"QP: kind of receive queue 5", Base::qp, kQpc + 0xac, 26, 24, 5, Refusal::no_cq},
    {"QP: no memory", Base::qp, 0x108, 31, 0, 0, Refusal::no_umem},
    {"QP: another's memory", Base::qp, 0x108, 31, 0, kNobody, Refusal::no_umem},
    {"QP: a completion queue for memory", Base::qp, 0x108, 31, 0, 0x106, Refusal::no_umem},
    {"QP: longer than its memory", Base::qp, kQpc + 0x8, 14, 11, 11, Refusal::queue_end},
    {"QP: as long as can be", Base::qp, kQpc + 0x8, 14, 11, 15, Refusal::queue_end},
    {"QP: begins in the middle of a block", Base::qp, 0x104, 31, 0, 16, Refusal::queue_alignment},
    {"QP: ends behind its memory", Base::qp, 0x104, 31, 0, 0xe040, Refusal::queue_end},
    {"QP: begins far behind", Base::qp, 0x100, 31, 0, 0xffffffff, Refusal::queue_end},
    {"QP: no memory for the record", Base::qp, kQpc + 0xe4, 31, 0, 0, Refusal::no_record_umem},
    {"QP: record off 8 bytes", Base::qp, kQpc + 0xa4, 31, 0, 12, Refusal::record_alignment},
    {"QP: record behind its memory", Base::qp, kQpc + 0xa4, 31, 0, 64, Refusal::record_end},

    {"to INIT: no queue pair", Base::init, 8, 23, 0, 0, Refusal::no_object},
    {"to INIT: another's queue pair", Base::init, 8, 23, 0, kNobody, Refusal::no_object},
    {"to INIT: modifier", Base::init, 4, 15, 0, 1, Refusal::no_modifier},
    {"to INIT: port 0", Base::init, kPath + 0x24, 23, 16, 0, Refusal::no_port},
    {"to INIT: port 3 of 2", Base::init, kPath + 0x24, 23, 16, 3, Refusal::no_port},
    {"to INIT: partition key", Base::init, kPath, 15, 0, 1, Refusal::no_pkey},
    {"to INIT: atomics of no size", Base::init, kQpc + 0x90, 19, 16, 0, Refusal::atomic_mode},
    {"to RTR: another's queue pair", Base::receive, 8, 23, 0, kNobody, Refusal::no_object},
    {"to RTR: MTU 0", Base::receive, kQpc + 0x8, 31, 29, 0, Refusal::mtu},
    {"to RTR: MTU 6", Base::receive, kQpc + 0x8, 31, 29, 6, Refusal::mtu},
    {"to RTR: MTU 7", Base::receive, kQpc + 0x8, 31, 29, 7, Refusal::mtu},
    {"to RTR: messages of 2 GiB", Base::receive, kQpc + 0x8, 28, 24, 31, Refusal::message},
    {"to RTR: 32 reads at once", Base::receive, kQpc + 0x90, 23, 21, 5, Refusal::reads},
    {"to RTS: 128 reads at once", Base::send, kQpc + 0x70, 23, 21, 7, Refusal::reads},
    {"to RTS: another's queue pair", Base::send, 8, 23, 0, kNobody, Refusal::no_object},
    {"query: another's queue pair", Base::query, 8, 23, 0, kNobody, Refusal::no_object},
    {"query: a completion queue", Base::query, 8, 23, 0, 0x106, Refusal::no_object},
};

const Wrong kOnEthernet[] = {
    {"GID index behind the table", Base::receive, kPath + 0x8, 23, 16, 8, Refusal::no_gid},
    {"GID index 255", Base::receive, kPath + 0x8, 23, 16, 255, Refusal::no_gid},
    {"UDP port 0", Base::receive, kPath + 0x20, 15, 0, 0, Refusal::udp_port},
    {"UDP port below RoCE's", Base::receive, kPath + 0x20, 15, 0, 0xbfff, Refusal::udp_port},
};

const Wrong kOnInfiniband[] = {
    {"no LID", Base::receive, kPath + 0x4, 15, 0, 0, Refusal::remote_lid},
    {"GRH without a GID", Base::receive, kPath + 0x4, 23, 23, 1, Refusal::remote_gid},
};

Bytes valid(World& w, Base base) {
  switch (base) {
    case Base::caps:
      return twinpath::softhca::query_caps(0);
    case Base::roce:
      return twinpath::softhca::command(0x760, 16).put(8, 31, 16, 1);
    case Base::vport:
      return twinpath::softhca::command(0x762, 16);
    case Base::cq:
      return w.cq();
    case Base::qp:
      w.make_cq();
      return w.qp();
    case Base::init:
      w.make_qp();
      return w.init();
    case Base::receive:
      w.make_qp(State::init);
      return w.receive();
    case Base::send:
      w.make_qp(State::ready_to_receive);
      return w.send();
    case Base::query:
      w.make_qp();
      return w.query();
  }
  return Bytes(16);
}

constexpr std::size_t answer_bytes(Base base) {
  return base == Base::query ? 272 : base == Base::vport ? 528 : base == Base::roce ? 48 : 16;
}

void check_refused(World& w, Bytes wrong, Base base, Refusal refusal) {
  const Answered a = w.run(wrong, answer_bytes(base));
  CHECK(std::string(text_of(a.refusal)) == text_of(refusal));
  CHECK(a.status() == static_cast<unsigned>(status_of(refusal)));
  CHECK(a.status() != 0);
  CHECK(a.out.get(4, 31, 0) == static_cast<std::uint32_t>(refusal));
  for (std::size_t i = 8; i < a.out.size(); i += 4) CHECK(a.out.get(i, 31, 0) == 0);
}

template <std::size_t N>
void check_all(const Wrong (&rows)[N], bool ethernet) {
  for (const Wrong& row : rows) {
    CAPTURE(row.what);
    World w(ethernet);
    const Bytes good = valid(w, row.base);
    Bytes wrong = good;
    wrong.put(row.byte, row.high, row.low, row.value);
    check_refused(w, wrong, row.base, row.refusal);
    CHECK(w.run(good, answer_bytes(row.base)).refusal == Refusal::none);
  }
}

}  // namespace

TEST_CASE("a command with one thing wrong is refused and changes nothing") {
  static_assert(std::size(kAnywhere) + std::size(kOnEthernet) + std::size(kOnInfiniband) >= 60);
  check_all(kAnywhere, true);
  check_all(kAnywhere, false);
  check_all(kOnEthernet, true);
  check_all(kOnInfiniband, false);
}

TEST_CASE("an address without a GID or a MAC is refused on Ethernet") {
  World w;
  w.make_qp(State::init);
  const Bytes good = w.receive();
  Bytes no_gid = good, no_mac = good;
  for (std::size_t i = 0; i < 4; ++i) no_gid.put(kPath + 0x10 + 4 * i, 31, 0, 0);
  no_mac.put(kPath + 0x24, 15, 0, 0).put(kPath + 0x28, 31, 0, 0);
  check_refused(w, no_gid, Base::receive, Refusal::remote_gid);
  check_refused(w, no_mac, Base::receive, Refusal::remote_mac);
  CHECK(w.run(good).refusal == Refusal::none);
}

TEST_CASE("what an adapter has not, or has reserved, is refused where it is asked for") {
  struct Case {
    Variant variant;
    std::vector<std::uint32_t> clocks;  // that may be asked for
  };
  const Case cases[] = {{{.clocks = Clocks::real_time}, {1, 2}},
                        {{.clocks = Clocks::both}, {0, 1, 2}},
                        {{.clocks = Clocks::free_running}, {0}}};
  for (const Case& one : cases) {
    for (std::uint32_t clock = 0; clock < 4; ++clock) {
      World w(true, one.variant);
      w.make_cq();
      const Bytes in = w.qp().put(kQpc + 0x08, 7, 6, clock);
      const bool offered =
          std::find(one.clocks.begin(), one.clocks.end(), clock) != one.clocks.end();
      CAPTURE(static_cast<int>(one.variant.clocks), clock);
      CHECK(w.run(in).refusal == (offered ? Refusal::none : Refusal::clock));
    }
  }
  World alone(true, {.waits = false});
  alone.make_cq();
  CHECK(alone.run(alone.qp().put(kQpc + 0x90, 0, 0, 1)).refusal == Refusal::cross_channel);
  CHECK(alone.run(alone.qp()).refusal == Refusal::none);
  World few(true, {.few = true});
  CHECK(few.run(few.cq().put(kCqc + 0xc, 28, 24, 13)).refusal == Refusal::cq_size);
  few.make_cq();
  CHECK(few.run(few.qp().put(kQpc + 0x8, 14, 11, 11)).refusal == Refusal::queue_size);
  few.make_qp(State::init);
  CHECK(few.run(few.receive().put(kQpc + 0x90, 23, 21, 3)).refusal == Refusal::reads);
}

TEST_CASE("receive queues: their completion queue, their shared queue, their place") {
  World w;
  w.make_cq();
  Bytes own = w.qp().put(kQpc + 0xac, 26, 24, 0).put(kQpc + 0x9c, 23, 0, w.cqn);
  // 64 KiB hold 512 receives of 64 bytes and 512 blocks of sends, and no more.
  own.put(kQpc + 0x8, 18, 16, 2).put(kQpc + 0x8, 22, 19, 9).put(kQpc + 0x8, 14, 11, 9);
  CHECK(w.run(own).refusal == Refusal::none);
  Bytes longer = own;
  check_refused(w, longer.put(kQpc + 0x8, 22, 19, 10), Base::qp, Refusal::queue_end);
  Bytes shared = w.qp().put(kQpc + 0xac, 26, 24, 1).put(kQpc + 0x9c, 23, 0, w.cqn);
  check_refused(w, shared, Base::qp, Refusal::no_srq);
  shared.put(kQpc + 0xac, 23, 0, World::kSrq);
  CHECK(w.run(shared).refusal == Refusal::none);
  Bytes unknown = shared;
  check_refused(w, unknown.put(kQpc + 0xac, 26, 24, 2), Base::qp, Refusal::rq_type);
  // Without a send queue nobody asks for its completion queue.
  Bytes receiver = own;
  receiver.put(kQpc + 0x8, 15, 15, 1).put(kQpc + 0x7c, 23, 0, 0);
  CHECK(w.run(receiver).refusal == Refusal::none);
}

TEST_CASE("a command that is cut is refused, wherever it is cut") {
  for (const Base base : {Base::cq, Base::qp, Base::init, Base::receive, Base::send}) {
    CAPTURE(static_cast<int>(base));
    World w;
    Bytes good = valid(w, base);
    for (std::size_t size = 16; size < good.size(); size += 1) {
      std::vector<std::uint8_t> out(16, 0xa5);
      CHECK(w.device.execute({good.data(), size}, out) == Refusal::short_command);
      CHECK(out[0] == 0x50);
    }
    CHECK(w.run(good).refusal == Refusal::none);
  }
}

TEST_CASE("an answer that is cut is refused where half of it would mislead") {
  World w;
  w.make_qp();
  for (std::size_t size = 16; size < 272; size += 8)
    CHECK(w.run(w.query(), size).refusal == Refusal::short_answer);
  CHECK(w.run(twinpath::softhca::command(0x760, 16), 40).refusal == Refusal::short_answer);
  CHECK(w.run(twinpath::softhca::command(0x762, 16), 256).refusal == Refusal::short_answer);
}
