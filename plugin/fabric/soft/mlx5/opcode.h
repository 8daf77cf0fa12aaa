#pragma once
// The commands that an mlx5 device is sent through DevX, as far as they have a name here.
#include <cstdint>

namespace twinpath::soft::mlx5 {

enum class Opcode : std::uint16_t {
  query_hca_cap = 0x100,
  create_mkey = 0x200,
  destroy_mkey = 0x202,
  create_cq = 0x400,
  destroy_cq = 0x401,
  query_cq = 0x402,
  modify_cq = 0x403,
  create_qp = 0x500,
  destroy_qp = 0x501,
  rst2init_qp = 0x502,
  init2rtr_qp = 0x503,
  rtr2rts_qp = 0x504,
  rts2rts_qp = 0x505,
  qp_2err = 0x507,
  qp_2rst = 0x50a,
  query_qp = 0x50b,
  init2init_qp = 0x50e,
  create_srq = 0x700,
  create_dct = 0x710,
  create_xrq = 0x717,
  query_nic_vport_context = 0x754,
  query_roce_address = 0x760,
  query_hca_vport_context = 0x762,
  query_hca_vport_gid = 0x764,
  query_lag = 0x842,
  create_rmp = 0x90c,
  create_general_object = 0xa00,
};

// As in the adapter's reference manual: "CREATE_QP"; null for what stands not above.
const char* name_of(Opcode opcode);

}  // namespace twinpath::soft::mlx5
