// The calls of libmlx5 that are not modelled.  Each says its name once and refuses.  Prototypes
// stand in mlx5dv.h, and those of newer releases in no header that is installed; with the calling
// conventions that Linux has, a function that ignores its arguments may have any.
#include <atomic>
#include <cerrno>
#include <cstdio>

namespace {

// One write, so that messages of several ranks do not mix.
void say(const char* name, std::atomic_flag& said) {
  if (said.test_and_set(std::memory_order_relaxed)) return;  // guards nothing but the message
  std::fprintf(stderr, "soft HCA: %s is not modelled and was refused (EOPNOTSUPP)\n", name);
}

}  // namespace

#define TP_SAY(name)              \
  static std::atomic_flag said{}; \
  say(#name, said);               \
  errno = EOPNOTSUPP

// Returns an error number.
#define TP_NUMBER(name) \
  int name();           \
  int name() {          \
    TP_SAY(name);       \
    return EOPNOTSUPP;  \
  }
// Returns a count or a file descriptor, and what is below 0 is an error.
#define TP_NEGATIVE(name) \
  int name();             \
  int name() {            \
    TP_SAY(name);         \
    return -EOPNOTSUPP;   \
  }
#define TP_POINTER(name) \
  void* name();          \
  void* name() {         \
    TP_SAY(name);        \
    return nullptr;      \
  }
#define TP_NOTHING(name) \
  void name();           \
  void name() { TP_SAY(name); }

extern "C" {

TP_NUMBER(_mlx5dv_mkey_check)
TP_NUMBER(_mlx5dv_query_port)
TP_NUMBER(mlx5dv_crypto_login)
TP_NUMBER(mlx5dv_crypto_login_destroy)
TP_NUMBER(mlx5dv_crypto_login_query)
TP_NUMBER(mlx5dv_crypto_login_query_state)
TP_NUMBER(mlx5dv_crypto_logout)
TP_NUMBER(mlx5dv_dci_stream_id_reset)
TP_NUMBER(mlx5dv_dek_destroy)
TP_NUMBER(mlx5dv_dek_query)
TP_NUMBER(mlx5dv_destroy_flow_matcher)
TP_NUMBER(mlx5dv_destroy_mkey)
TP_NUMBER(mlx5dv_destroy_steering_anchor)
TP_NUMBER(mlx5dv_devx_cq_modify)
TP_NUMBER(mlx5dv_devx_cq_query)
TP_NUMBER(mlx5dv_devx_destroy_eq)
TP_NUMBER(mlx5dv_devx_free_msi_vector)
TP_NUMBER(mlx5dv_devx_get_async_cmd_comp)
TP_NUMBER(mlx5dv_devx_ind_tbl_modify)
TP_NUMBER(mlx5dv_devx_ind_tbl_query)
TP_NUMBER(mlx5dv_devx_obj_export)
TP_NUMBER(mlx5dv_devx_obj_query_async)
TP_NUMBER(mlx5dv_devx_qp_modify)
TP_NUMBER(mlx5dv_devx_qp_query)
TP_NUMBER(mlx5dv_devx_srq_modify)
TP_NUMBER(mlx5dv_devx_srq_query)
TP_NUMBER(mlx5dv_devx_subscribe_devx_event)
TP_NUMBER(mlx5dv_devx_subscribe_devx_event_fd)
TP_NUMBER(mlx5dv_devx_umem_export)
TP_NUMBER(mlx5dv_devx_wq_modify)
TP_NUMBER(mlx5dv_devx_wq_query)
TP_NUMBER(mlx5dv_dr_action_destroy)
TP_NUMBER(mlx5dv_dr_action_modify_aso)
TP_NUMBER(mlx5dv_dr_action_modify_flow_meter)
TP_NUMBER(mlx5dv_dr_aso_other_domain_link)
TP_NUMBER(mlx5dv_dr_aso_other_domain_unlink)
TP_NUMBER(mlx5dv_dr_domain_destroy)
TP_NUMBER(mlx5dv_dr_domain_sync)
TP_NUMBER(mlx5dv_dr_matcher_destroy)
TP_NUMBER(mlx5dv_dr_matcher_set_layout)
TP_NUMBER(mlx5dv_dr_rule_destroy)
TP_NUMBER(mlx5dv_dr_table_destroy)
TP_NUMBER(mlx5dv_dump_dr_domain)
TP_NUMBER(mlx5dv_dump_dr_matcher)
TP_NUMBER(mlx5dv_dump_dr_rule)
TP_NUMBER(mlx5dv_dump_dr_table)
TP_NUMBER(mlx5dv_get_clock_info)
TP_NUMBER(mlx5dv_map_ah_to_qp)
TP_NUMBER(mlx5dv_modify_qp_lag_port)
TP_NUMBER(mlx5dv_modify_qp_sched_elem)
TP_NUMBER(mlx5dv_modify_qp_udp_sport)
TP_NUMBER(mlx5dv_query_qp_lag_port)
TP_NUMBER(mlx5dv_reserved_qpn_alloc)
TP_NUMBER(mlx5dv_reserved_qpn_dealloc)
TP_NUMBER(mlx5dv_sched_leaf_destroy)
TP_NUMBER(mlx5dv_sched_leaf_modify)
TP_NUMBER(mlx5dv_sched_node_destroy)
TP_NUMBER(mlx5dv_sched_node_modify)
TP_NUMBER(mlx5dv_set_context_attr)
TP_NUMBER(mlx5dv_var_export)
TP_NUMBER(mlx5dv_vfio_process_events)

TP_NEGATIVE(mlx5dv_devx_uar_export_dmabuf_fd)
TP_NEGATIVE(mlx5dv_qp_cancel_posted_send_wrs)
TP_NEGATIVE(mlx5dv_vfio_get_events_fd)

TP_POINTER(__mlx5dv_create_flow)
TP_POINTER(mlx5dv_alloc_dm)
TP_POINTER(mlx5dv_alloc_var)
TP_POINTER(mlx5dv_create_cq)
TP_POINTER(mlx5dv_create_flow)
TP_POINTER(mlx5dv_create_flow_action_esp)
TP_POINTER(mlx5dv_create_flow_action_modify_header)
TP_POINTER(mlx5dv_create_flow_action_packet_reformat)
TP_POINTER(mlx5dv_create_flow_matcher)
TP_POINTER(mlx5dv_create_mkey)
TP_POINTER(mlx5dv_create_steering_anchor)
TP_POINTER(mlx5dv_create_wq)
TP_POINTER(mlx5dv_crypto_login_create)
TP_POINTER(mlx5dv_dek_create)
TP_POINTER(mlx5dv_devx_alloc_msi_vector)
TP_POINTER(mlx5dv_devx_create_cmd_comp)
TP_POINTER(mlx5dv_devx_create_eq)
TP_POINTER(mlx5dv_devx_obj_import)
TP_POINTER(mlx5dv_devx_umem_import)
TP_POINTER(mlx5dv_dm_map_op_addr)
TP_POINTER(mlx5dv_dr_action_create_aso)
TP_POINTER(mlx5dv_dr_action_create_default_miss)
TP_POINTER(mlx5dv_dr_action_create_dest_array)
TP_POINTER(mlx5dv_dr_action_create_dest_devx_tir)
TP_POINTER(mlx5dv_dr_action_create_dest_ib_port)
TP_POINTER(mlx5dv_dr_action_create_dest_ibv_qp)
TP_POINTER(mlx5dv_dr_action_create_dest_root_table)
TP_POINTER(mlx5dv_dr_action_create_dest_table)
TP_POINTER(mlx5dv_dr_action_create_dest_vport)
TP_POINTER(mlx5dv_dr_action_create_drop)
TP_POINTER(mlx5dv_dr_action_create_flow_counter)
TP_POINTER(mlx5dv_dr_action_create_flow_meter)
TP_POINTER(mlx5dv_dr_action_create_flow_sampler)
TP_POINTER(mlx5dv_dr_action_create_modify_header)
TP_POINTER(mlx5dv_dr_action_create_packet_reformat)
TP_POINTER(mlx5dv_dr_action_create_pop_vlan)
TP_POINTER(mlx5dv_dr_action_create_push_vlan)
TP_POINTER(mlx5dv_dr_action_create_tag)
TP_POINTER(mlx5dv_dr_domain_create)
TP_POINTER(mlx5dv_dr_matcher_create)
TP_POINTER(mlx5dv_dr_rule_create)
TP_POINTER(mlx5dv_dr_table_create)
TP_POINTER(mlx5dv_get_vfio_device_list)
TP_POINTER(mlx5dv_pp_alloc)
TP_POINTER(mlx5dv_qp_ex_from_ibv_qp_ex)
TP_POINTER(mlx5dv_sched_leaf_create)
TP_POINTER(mlx5dv_sched_node_create)
TP_POINTER(mlx5dv_var_import)

TP_NOTHING(_mlx5dv_get_export_sizes)
TP_NOTHING(mlx5dv_devx_destroy_cmd_comp)
TP_NOTHING(mlx5dv_devx_obj_unimport)
TP_NOTHING(mlx5dv_devx_umem_unimport)
TP_NOTHING(mlx5dv_dr_domain_allow_duplicate_rules)
TP_NOTHING(mlx5dv_dr_domain_set_reclaim_device_memory)
TP_NOTHING(mlx5dv_free_var)
TP_NOTHING(mlx5dv_pp_free)
TP_NOTHING(mlx5dv_var_unimport)

}  // extern "C"
