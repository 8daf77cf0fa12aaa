#pragma once
// The commands that an mlx5 device is sent, through DevX or by the kernel's driver, as far as they
// have a name here.
#include <cstdint>

namespace twinpath::soft::mlx5 {

// X(name, number, as in the adapter's reference manual)
#define TP_OPCODES(X)                                            \
  X(query_hca_cap, 0x100, "QUERY_HCA_CAP")                       \
  X(query_adapter, 0x101, "QUERY_ADAPTER")                       \
  X(init_hca, 0x102, "INIT_HCA")                                 \
  X(teardown_hca, 0x103, "TEARDOWN_HCA")                         \
  X(enable_hca, 0x104, "ENABLE_HCA")                             \
  X(disable_hca, 0x105, "DISABLE_HCA")                           \
  X(query_pages, 0x107, "QUERY_PAGES")                           \
  X(manage_pages, 0x108, "MANAGE_PAGES")                         \
  X(set_hca_cap, 0x109, "SET_HCA_CAP")                           \
  X(query_issi, 0x10a, "QUERY_ISSI")                             \
  X(set_issi, 0x10b, "SET_ISSI")                                 \
  X(set_driver_version, 0x10d, "SET_DRIVER_VERSION")             \
  X(create_mkey, 0x200, "CREATE_MKEY")                           \
  X(destroy_mkey, 0x202, "DESTROY_MKEY")                         \
  X(query_special_contexts, 0x203, "QUERY_SPECIAL_CONTEXTS")     \
  X(create_eq, 0x301, "CREATE_EQ")                               \
  X(destroy_eq, 0x302, "DESTROY_EQ")                             \
  X(create_cq, 0x400, "CREATE_CQ")                               \
  X(destroy_cq, 0x401, "DESTROY_CQ")                             \
  X(query_cq, 0x402, "QUERY_CQ")                                 \
  X(modify_cq, 0x403, "MODIFY_CQ")                               \
  X(create_qp, 0x500, "CREATE_QP")                               \
  X(destroy_qp, 0x501, "DESTROY_QP")                             \
  X(rst2init_qp, 0x502, "RST2INIT_QP")                           \
  X(init2rtr_qp, 0x503, "INIT2RTR_QP")                           \
  X(rtr2rts_qp, 0x504, "RTR2RTS_QP")                             \
  X(rts2rts_qp, 0x505, "RTS2RTS_QP")                             \
  X(qp_2err, 0x507, "2ERR_QP")                                   \
  X(qp_2rst, 0x50a, "2RST_QP")                                   \
  X(query_qp, 0x50b, "QUERY_QP")                                 \
  X(mad_ifc, 0x50d, "MAD_IFC")                                   \
  X(init2init_qp, 0x50e, "INIT2INIT_QP")                         \
  X(create_srq, 0x700, "CREATE_SRQ")                             \
  X(destroy_srq, 0x701, "DESTROY_SRQ")                           \
  X(query_srq, 0x702, "QUERY_SRQ")                               \
  X(arm_rq, 0x703, "ARM_RQ")                                     \
  X(create_xrc_srq, 0x705, "CREATE_XRC_SRQ")                     \
  X(destroy_xrc_srq, 0x706, "DESTROY_XRC_SRQ")                   \
  X(query_xrc_srq, 0x707, "QUERY_XRC_SRQ")                       \
  X(arm_xrc_srq, 0x708, "ARM_XRC_SRQ")                           \
  X(create_dct, 0x710, "CREATE_DCT")                             \
  X(create_xrq, 0x717, "CREATE_XRQ")                             \
  X(query_vport_state, 0x750, "QUERY_VPORT_STATE")               \
  X(query_nic_vport_context, 0x754, "QUERY_NIC_VPORT_CONTEXT")   \
  X(query_roce_address, 0x760, "QUERY_ROCE_ADDRESS")             \
  X(query_hca_vport_context, 0x762, "QUERY_HCA_VPORT_CONTEXT")   \
  X(modify_hca_vport_context, 0x763, "MODIFY_HCA_VPORT_CONTEXT") \
  X(query_hca_vport_gid, 0x764, "QUERY_HCA_VPORT_GID")           \
  X(query_hca_vport_pkey, 0x765, "QUERY_HCA_VPORT_PKEY")         \
  X(alloc_q_counter, 0x771, "ALLOC_Q_COUNTER")                   \
  X(dealloc_q_counter, 0x772, "DEALLOC_Q_COUNTER")               \
  X(query_q_counter, 0x773, "QUERY_Q_COUNTER")                   \
  X(alloc_pd, 0x800, "ALLOC_PD")                                 \
  X(dealloc_pd, 0x801, "DEALLOC_PD")                             \
  X(alloc_uar, 0x802, "ALLOC_UAR")                               \
  X(dealloc_uar, 0x803, "DEALLOC_UAR")                           \
  X(access_reg, 0x805, "ACCESS_REG")                             \
  X(attach_to_mcg, 0x806, "ATTACH_TO_MCG")                       \
  X(detach_from_mcg, 0x807, "DETACH_FROM_MCG")                   \
  X(alloc_xrcd, 0x80e, "ALLOC_XRCD")                             \
  X(dealloc_xrcd, 0x80f, "DEALLOC_XRCD")                         \
  X(alloc_transport_domain, 0x816, "ALLOC_TRANSPORT_DOMAIN")     \
  X(dealloc_transport_domain, 0x817, "DEALLOC_TRANSPORT_DOMAIN") \
  X(query_lag, 0x842, "QUERY_LAG")                               \
  X(create_rmp, 0x90c, "CREATE_RMP")                             \
  X(modify_rmp, 0x90d, "MODIFY_RMP")                             \
  X(destroy_rmp, 0x90e, "DESTROY_RMP")                           \
  X(query_rmp, 0x90f, "QUERY_RMP")                               \
  X(create_general_object, 0xa00, "CREATE_GENERAL_OBJECT")       \
  X(create_uctx, 0xa04, "CREATE_UCTX")                           \
  X(destroy_uctx, 0xa06, "DESTROY_UCTX")                         \
  X(create_umem, 0xa08, "CREATE_UMEM")                           \
  X(destroy_umem, 0xa0a, "DESTROY_UMEM")

enum class Opcode : std::uint16_t {
#define TP_OPCODE(name, number, text) name = number,
  TP_OPCODES(TP_OPCODE)
#undef TP_OPCODE
};

// As in the adapter's reference manual: "CREATE_QP"; null for what stands not above.
const char* name_of(Opcode opcode);

}  // namespace twinpath::soft::mlx5
