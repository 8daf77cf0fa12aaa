#include "plugin/fabric/soft/mlx5/opcode.h"

namespace twinpath::soft::mlx5 {

const char* name_of(Opcode opcode) {
  switch (opcode) {
    case Opcode::query_hca_cap:
      return "QUERY_HCA_CAP";
    case Opcode::create_mkey:
      return "CREATE_MKEY";
    case Opcode::destroy_mkey:
      return "DESTROY_MKEY";
    case Opcode::create_cq:
      return "CREATE_CQ";
    case Opcode::destroy_cq:
      return "DESTROY_CQ";
    case Opcode::query_cq:
      return "QUERY_CQ";
    case Opcode::modify_cq:
      return "MODIFY_CQ";
    case Opcode::create_qp:
      return "CREATE_QP";
    case Opcode::destroy_qp:
      return "DESTROY_QP";
    case Opcode::rst2init_qp:
      return "RST2INIT_QP";
    case Opcode::init2rtr_qp:
      return "INIT2RTR_QP";
    case Opcode::rtr2rts_qp:
      return "RTR2RTS_QP";
    case Opcode::rts2rts_qp:
      return "RTS2RTS_QP";
    case Opcode::qp_2err:
      return "2ERR_QP";
    case Opcode::qp_2rst:
      return "2RST_QP";
    case Opcode::query_qp:
      return "QUERY_QP";
    case Opcode::init2init_qp:
      return "INIT2INIT_QP";
    case Opcode::create_srq:
      return "CREATE_SRQ";
    case Opcode::create_dct:
      return "CREATE_DCT";
    case Opcode::create_xrq:
      return "CREATE_XRQ";
    case Opcode::query_nic_vport_context:
      return "QUERY_NIC_VPORT_CONTEXT";
    case Opcode::query_roce_address:
      return "QUERY_ROCE_ADDRESS";
    case Opcode::query_hca_vport_context:
      return "QUERY_HCA_VPORT_CONTEXT";
    case Opcode::query_hca_vport_gid:
      return "QUERY_HCA_VPORT_GID";
    case Opcode::query_lag:
      return "QUERY_LAG";
    case Opcode::create_rmp:
      return "CREATE_RMP";
    case Opcode::create_general_object:
      return "CREATE_GENERAL_OBJECT";
  }
  return nullptr;
}

}  // namespace twinpath::soft::mlx5
