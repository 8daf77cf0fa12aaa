// That the model reads and writes each field where it lies, and nothing beside it.  The places
// stand here as other people's tables have them (bytes, and bits of the word that begins there),
// not as the model's does: one moved field fails.
#include <cstring>

#include "test/soft/mlx5/world.h"
#include "test/support/catch.h"

using namespace twinpath::soft::mlx5;
using twinpath::softhca::modify_qp;
using twinpath::softhca::query_caps;

namespace {

struct Place {
  std::size_t byte;
  unsigned high, low;
  std::uint32_t value = 0;
};

constexpr Place kGeneral[] = {
    {0x04, 31, 31, 1},    // hca_cap_2
    {0x10, 31, 24, 15},   // log_max_srq_sz
    {0x10, 23, 16, 15},   // log_max_qp_sz
    {0x10, 4, 0, 18},     // log_max_qp
    {0x14, 20, 16, 18},   // log_max_srq
    {0x18, 23, 16, 22},   // log_max_cq_sz
    {0x18, 4, 0, 18},     // log_max_cq
    {0x1c, 21, 16, 20},   // log_max_mkey
    {0x24, 21, 16, 4},    // log_max_ra_req_dc
    {0x24, 5, 0, 4},      // log_max_ra_res_dc
    {0x28, 21, 16, 4},    // log_max_ra_req_qp
    {0x28, 5, 0, 4},      // log_max_ra_res_qp
    {0x2c, 21, 21, 1},    // rts2rts_qp_dscp
    {0x34, 20, 16, 16},   // local_ca_ack_delay
    {0x34, 7, 0, 2},      // num_ports
    {0x38, 28, 24, 30},   // log_max_msg
    {0x3c, 3, 0, 1},      // cqe_version
    {0x40, 31, 31, 1},    // compact_address_vector
    {0x40, 5, 5, 1},      // dct
    {0x40, 1, 1, 1},      // atomic
    {0x40, 0, 0, 1},      // extended_retry_count
    {0x44, 31, 31, 1},    // cq_oi
    {0x44, 19, 19, 1},    // cd
    {0x44, 0, 0, 1},      // rc
    {0x48, 31, 31, 1},    // uar_4k
    {0x48, 7, 0, 12},     // log_pg_sz
    {0x4c, 31, 31, 1},    // bf
    {0x4c, 20, 16, 9},    // log_bf_reg_size
    {0x50, 15, 0, 1024},  // max_wqe_sz_sq
    {0x54, 15, 0, 512},   // max_wqe_sz_rq
    {0x58, 15, 0, 1024},  // max_wqe_sz_sq_dc
    {0x64, 20, 16, 20},   // log_max_pd
    {0x88, 31, 30, 1},    // sq_ts_format
    {0xa4, 31, 0, 1},     // num_of_uars_per_page
    {0xb0, 31, 24, 3},    // log_max_atomic_size_qp
    {0xb0, 7, 0, 3},      // log_max_atomic_size_dc
};
constexpr Place kAtomic[] = {
    {0x08, 31, 30, 1},   // atomic_req_8B_endianness_mode
    {0x08, 25, 25, 1},   // supported_atomic_req_8B_endianness_mode_1
    {0x10, 15, 0, 0xf},  // atomic_operations
    {0x14, 15, 0, 0xc},  // atomic_size_qp
    {0x18, 15, 0, 0xc},  // atomic_size_dc
};
constexpr Place kRoceCaps[] = {
    {0x00, 27, 27, 1},       // sw_r_roce_src_udp_port
    {0x00, 1, 0, 1},         // qp_ts_format
    {0x10, 19, 16, 3},       // l3_type
    {0x10, 7, 0, 4},         // roce_version
    {0x14, 15, 0, 4791},     // r_roce_dest_udp_port
    {0x18, 31, 16, 0xffff},  // r_roce_max_src_udp_port
    {0x18, 15, 0, 0xc000},   // r_roce_min_src_udp_port
    {0x1c, 15, 0, 8},        // roce_address_table_size
};
constexpr Place kGeneral2[] = {
    {0x5c, 30, 30, 0}};  // send_dbr_mode_no_dbr_ext: doorbells need records

// On both kinds of link, what is possible and what is in force.
template <std::size_t N>
void check_answer(std::uint32_t kind, const Place (&places)[N],
                  std::initializer_list<Place> of_ethernet = {}) {
  for (const bool ethernet : {true, false}) {
    World w(ethernet);
    Bytes wanted(16 + 4096);
    for (const Place& p : places) wanted.put(16 + p.byte, p.high, p.low, p.value);
    for (const Place& p : of_ethernet) wanted.put(16 + p.byte, p.high, p.low, ethernet ? 1 : 0);
    for (const Bytes& question : {query_caps(kind), query_caps(kind).put(4, 0, 0, 0)}) {
      Bytes got = w.run(question, 16 + 4096).out;
      for (std::size_t i = 0; i < got.size(); i += 4) {
        CAPTURE(ethernet, i - 16);
        CHECK(got.get(i, 31, 0) == wanted.get(i, 31, 0));
      }
    }
  }
}

constexpr std::size_t kQp = 0x18, kAds = kQp + 0x18;

// What each transition takes over into the context.
constexpr Place kToInit[] = {
    {kQp, 12, 11},         // pm_state
    {kQp + 0x90, 19, 13},  // atomic_mode, rre, rwe, rae
    {kAds, 15, 0},         // pkey_index
    {kAds + 0x24, 23, 16}  // vhca_port_num
};
constexpr Place kToReceive[] = {
    {kQp + 0x08, 31, 24},   // mtu, log_msg_max
    {kQp + 0x14, 23, 0},    // remote_qpn
    {kQp + 0x90, 23, 21},   // log_rra_max
    {kQp + 0x94, 28, 0},    // min_rnr_nak, next_rcv_psn
    {kAds + 0x04, 23, 23},  // grh
    {kAds + 0x04, 15, 0},   // rlid
    {kAds + 0x08, 23, 16},  // src_addr_index
    {kAds + 0x08, 7, 0},    // hop_limit
    {kAds + 0x0c, 27, 20},  // tclass
    {kAds + 0x10, 31, 0},   // rgid_rip
    {kAds + 0x14, 31, 0},  {kAds + 0x18, 31, 0},
    {kAds + 0x1c, 31, 0},  {kAds + 0x20, 21, 0},  // dscp, udp_sport
    {kAds + 0x24, 27, 24},                        // sl
    {kAds + 0x24, 15, 0},                         // rmac_47_32
    {kAds + 0x28, 31, 0},                         // rmac_31_0
};
constexpr Place kToSend[] = {
    {kQp + 0x70, 23, 21},   // log_sra_max
    {kQp + 0x70, 18, 13},   // retry_count, rnr_retry
    {kQp + 0x78, 23, 0},    // next_send_psn
    {kAds + 0x08, 31, 27},  // ack_timeout
};

// Sends `in`, whose context is all ones but where it must not, and checks what is taken over.
template <std::size_t N>
void check_transition(World& w, const Bytes& in, const Place (&places)[N], State to) {
  const Bytes before = w.run(w.query(), 272).out;
  Bytes wanted = before;
  for (const Place& p : places) wanted.put(p.byte, p.high, p.low, in.get(p.byte, p.high, p.low));
  wanted.put(kQp, 31, 28, static_cast<std::uint32_t>(to));
  REQUIRE(w.run(in).refusal == Refusal::none);
  const Bytes after = w.run(w.query(), 272).out;
  for (std::size_t i = 0; i < after.size(); i += 4) {
    CAPTURE(static_cast<int>(to), i - kQp);
    CHECK(after.get(i, 31, 0) == wanted.get(i, 31, 0));
  }
}

Bytes all_ones(const World& w, std::uint32_t opcode) {
  Bytes in = modify_qp(opcode, w.qpn);
  std::memset(in.data() + kQp, 0xff, 232);
  return in;
}

}  // namespace

TEST_CASE("every capability lies where others look for it") {
  check_answer(0, kGeneral, {{0x34, 9, 8} /* port_type */, {0x40, 2, 2} /* roce */});
  check_answer(3, kAtomic);
  check_answer(4, kRoceCaps);
  check_answer(0x20, kGeneral2);
}

TEST_CASE("a table of GIDs is told by its size, rounded up to a power of two from 8") {
  for (const auto& [entries, code] :
       {std::pair{2u, 0u}, {8u, 0u}, {9u, 1u}, {16u, 1u}, {128u, 4u}, {1000u, 4u}}) {
    std::vector<std::uint8_t> answer(16 + 4096);
    DeviceFacts facts;
    facts.gid_entries = entries;
    CHECK(write_capabilities(0, facts, answer));
    CHECK(get(answer, {8 * (16 + 0x2c) + 16, 16}) == code);
  }
}

TEST_CASE("every field of a transition is taken over from its place, and nothing else is") {
  World w;
  w.make_qp();
  check_transition(w, all_ones(w, 0x502).put(kAds, 15, 0, 0).put(kAds + 0x24, 23, 16, 2), kToInit,
                   State::init);
  check_transition(w,
                   all_ones(w, 0x503)
                       .put(kQp + 0x08, 31, 29, 5)
                       .put(kQp + 0x08, 28, 24, 30)
                       .put(kQp + 0x90, 23, 21, 4)
                       .put(kAds + 0x08, 23, 16, 7),
                   kToReceive, State::ready_to_receive);
  check_transition(w, all_ones(w, 0x504).put(kQp + 0x70, 23, 21, 4), kToSend, State::ready_to_send);
}

TEST_CASE("answers about ports and addresses") {
  World w;
  const Bytes address =
      w.run(twinpath::softhca::command(0x760, 16).put(8, 31, 16, 3).put(8, 3, 0, 2), 48).out;
  CHECK(address.get(16, 31, 0) == 0xfe800000);
  CHECK(address.get(28, 31, 0) == 0x23);      // of port 2, index 3
  CHECK(address.get(16 + 0x18, 11, 8) == 1);  // roce_l3_type: IPv6
  CHECK(address.get(16 + 0x18, 7, 0) == 2);   // roce_version
  const Bytes port = w.run(twinpath::softhca::command(0x762, 16), 528).out;
  CHECK(port.get(16 + 0x20, 7, 4) == 4);    // port_state: active
  CHECK(port.get(16 + 0x60, 31, 16) == 3);  // lid
  const Bytes second = w.run(twinpath::softhca::command(0x762, 16).put(8, 19, 16, 2), 528).out;
  CHECK(second.get(16 + 0x60, 31, 16) == 4);  // of port 2
}
