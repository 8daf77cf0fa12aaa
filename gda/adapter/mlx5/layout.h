#pragma once
// Where fields lie in the commands that we send: byte and bits as the adapter's reference manual
// has them (bits.h).  Names are the manual's.
#include "gda/adapter/mlx5/bits.h"

namespace twinpath::gda::mlx5 {

enum class Opcode : std::uint16_t {
  query_hca_cap = 0x100,
  create_cq = 0x400,
  create_qp = 0x500,
  rst2init_qp = 0x502,
  init2rtr_qp = 0x503,
  rtr2rts_qp = 0x504,
  qp_2err = 0x507,
  query_qp = 0x50b,
};

// Of every command, and of every answer.
inline constexpr std::size_t kShortBytes = 16;  // without a body
inline constexpr Bits kOpcode{0x00, 31, 16};
inline constexpr Bits kOpMod{0x04, 15, 0};
inline constexpr Bits kNumber{0x08, 23, 0};
inline constexpr Bits kStatus{0x00, 31, 24};
inline constexpr Bits kSyndrome = dword(0x04);

namespace cq {
inline constexpr std::size_t kBytes = 272;
inline constexpr Part kContext{0x10};
// Of the context.
inline constexpr Bits dbr_umem_valid{0x00, 25, 25};
inline constexpr Bits cqe_sz{0x00, 23, 21};
inline constexpr Bits cc{0x00, 20, 20};  // collapsed: each entry over the one before
inline constexpr Bits oi{0x00, 17, 17};  // overrun is ignored: nobody tells what was read
inline constexpr Bits dbr_umem_id = dword(0x04);
inline constexpr Bits log_cq_size{0x0c, 28, 24};
inline constexpr Bits uar_page{0x0c, 23, 0};
inline constexpr Bits c_eqn{0x14, 7, 0};
inline constexpr std::uint16_t dbr_addr = 0x38;
// Of the command.
inline constexpr std::uint16_t cq_umem_offset = 0x50;
inline constexpr Bits cq_umem_id = dword(0x58);
inline constexpr Bits cq_umem_valid{0x5c, 31, 31};
}  // namespace cq

namespace qp {
inline constexpr std::size_t kBytes = 272;
inline constexpr Bits opt_param_mask = dword(0x10);
inline constexpr Part kContext{0x18};
// Of the context.
inline constexpr Bits state{0x00, 31, 28};
inline constexpr Bits st{0x00, 23, 16};
inline constexpr Bits pm_state{0x00, 12, 11};
inline constexpr Bits pd{0x04, 23, 0};
inline constexpr Bits mtu{0x08, 31, 29};
inline constexpr Bits log_msg_max{0x08, 28, 24};
inline constexpr Bits log_sq_size{0x08, 14, 11};
inline constexpr Bits ts_format{0x08, 7, 6};
inline constexpr Bits uar_page{0x0c, 23, 0};
inline constexpr Bits remote_qpn{0x14, 23, 0};
inline constexpr Bits log_sra_max{0x70, 23, 21};
inline constexpr Bits retry_count{0x70, 18, 16};
inline constexpr Bits rnr_retry{0x70, 15, 13};
inline constexpr Bits next_send_psn{0x78, 23, 0};
inline constexpr Bits cqn_snd{0x7c, 23, 0};
inline constexpr Bits log_rra_max{0x90, 23, 21};
inline constexpr Bits atomic_mode{0x90, 19, 16};
inline constexpr Bits rre{0x90, 15, 15};
inline constexpr Bits rwe{0x90, 14, 14};
inline constexpr Bits rae{0x90, 13, 13};
inline constexpr Bits cd_master{0x90, 0, 0};  // may execute WAIT
inline constexpr Bits min_rnr_nak{0x94, 28, 24};
inline constexpr Bits next_rcv_psn{0x94, 23, 0};
inline constexpr Bits cqn_rcv{0x9c, 23, 0};
inline constexpr std::uint16_t dbr_addr = 0xa0;
inline constexpr Bits rq_type{0xac, 26, 24};
inline constexpr Bits dbr_umem_valid{0xd0, 28, 28};
inline constexpr Bits dbr_umem_id = dword(0xe4);
// Of the command.
inline constexpr std::uint16_t wq_umem_offset = 0x100;
inline constexpr Bits wq_umem_id = dword(0x108);
inline constexpr Bits wq_umem_valid{0x10c, 31, 31};
}  // namespace qp

// The address path, in the context of a queue pair.
namespace path {
inline constexpr Part kPrimary{0x18 + 0x18};
inline constexpr Bits pkey_index{0x00, 15, 0};
inline constexpr Bits grh{0x04, 23, 23};
inline constexpr Bits rlid{0x04, 15, 0};
inline constexpr Bits ack_timeout{0x08, 31, 27};
inline constexpr Bits src_addr_index{0x08, 23, 16};
inline constexpr Bits hop_limit{0x08, 7, 0};
inline constexpr Bits tclass{0x0c, 27, 20};
inline constexpr std::uint16_t rgid = 0x10;
inline constexpr Bits dscp{0x20, 21, 16};
inline constexpr Bits udp_sport{0x20, 15, 0};
inline constexpr Bits eth_prio{0x24, 30, 28};
inline constexpr Bits sl{0x24, 27, 24};
inline constexpr Bits vhca_port_num{0x24, 23, 16};
inline constexpr std::uint16_t rmac = 0x26;
}  // namespace path

// Answers of QUERY_HCA_CAP, behind their header.  The kind is in op_mod, times 2, plus 1 for what
// is in force.
namespace cap {
inline constexpr Part kAnswer{0x10};
inline constexpr std::size_t kAnswerBytes = 16 + 4096;
// general (0)
inline constexpr Bits log_max_qp_sz{0x10, 23, 16};
inline constexpr Bits log_max_cq_sz{0x18, 23, 16};
inline constexpr Bits log_max_ra_req_qp{0x28, 21, 16};
inline constexpr Bits log_max_ra_res_qp{0x28, 5, 0};
inline constexpr Bits port_type{0x34, 9, 8};  // 1: Ethernet
inline constexpr Bits log_max_msg{0x38, 28, 24};
inline constexpr Bits cqe_version{0x3c, 3, 0};
inline constexpr Bits roce{0x40, 2, 2};
inline constexpr Bits atomic{0x40, 1, 1};
inline constexpr Bits cq_oi{0x44, 31, 31};
inline constexpr Bits cd{0x44, 19, 19};
inline constexpr Bits rc{0x44, 0, 0};
inline constexpr Bits sq_ts_format{0x88, 31, 30};  // 0: free running alone
// general, the second page (0x20)
inline constexpr Bits hca_cap_2{0x04, 31, 31};  // in the first: whether there is one
// atomic (3)
inline constexpr Bits endianness_mode{0x08, 31, 30};  // of 8 bytes; 1: the host's
inline constexpr Bits atomic_operations{0x10, 15, 0};
inline constexpr Bits atomic_size_qp{0x14, 15, 0};
inline constexpr std::uint32_t kFetchAdd = 1u << 1, kEightBytes = 1u << 3;
// RoCE (4)
inline constexpr Bits qp_ts_format{0x00, 1, 0};  // of queue pairs where there is RoCE
inline constexpr Bits roce_version{0x10, 7, 0};  // bit 2: v2
inline constexpr Bits r_roce_max_src_udp_port{0x18, 31, 16};
inline constexpr Bits r_roce_min_src_udp_port{0x18, 15, 0};
}  // namespace cap

}  // namespace twinpath::gda::mlx5
