// Functions for provider libraries and for librdmacm.  Debian's libmlx5 and libefa, which perftest
// and UCX link, must load; their devices are never shown, so that nothing here is called but
// verbs_register_driver.  Prototypes stand in headers that are not installed; with the calling
// conventions that Linux has, a function that ignores its arguments may have any.
#include <cerrno>

extern "C" {

// The library with the real adapters keeps a list of drivers; ours has none.
void verbs_register_driver_34() {}

// A flag that providers read.
bool verbs_allow_disassociate_destroy = false;

#define TP_NOT_MODELLED(name) \
  int name();                 \
  int name() { return EOPNOTSUPP; }
#define TP_NOTHING(name) \
  void* name();          \
  void* name() {         \
    errno = EOPNOTSUPP;  \
    return nullptr;      \
  }

TP_NOTHING(verbs_open_device)
TP_NOTHING(_verbs_init_and_alloc_context)
TP_NOTHING(verbs_uninit_context)
TP_NOTHING(verbs_set_ops)
TP_NOTHING(verbs_init_cq)
TP_NOTHING(__verbs_log)
TP_NOTHING(__ioctl_final_num_attrs)
TP_NOTHING(ibv_copy_ah_attr_from_kern)
TP_NOTHING(ibv_copy_path_rec_from_kern)
TP_NOTHING(ibv_copy_path_rec_to_kern)
TP_NOTHING(ibv_copy_qp_attr_from_kern)
TP_NOT_MODELLED(execute_ioctl)
TP_NOT_MODELLED(ibv_read_ibdev_sysfs_file)
TP_NOT_MODELLED(ibv_cmd_advise_mr)
TP_NOT_MODELLED(ibv_cmd_alloc_dm)
TP_NOT_MODELLED(ibv_cmd_alloc_mw)
TP_NOT_MODELLED(ibv_cmd_alloc_pd)
TP_NOT_MODELLED(ibv_cmd_attach_mcast)
TP_NOT_MODELLED(ibv_cmd_close_xrcd)
TP_NOT_MODELLED(ibv_cmd_create_ah)
TP_NOT_MODELLED(ibv_cmd_create_counters)
TP_NOT_MODELLED(ibv_cmd_create_cq)
TP_NOT_MODELLED(ibv_cmd_create_cq_ex)
TP_NOT_MODELLED(ibv_cmd_create_flow)
TP_NOT_MODELLED(ibv_cmd_create_flow_action_esp)
TP_NOT_MODELLED(ibv_cmd_create_qp)
TP_NOT_MODELLED(ibv_cmd_create_qp_ex)
TP_NOT_MODELLED(ibv_cmd_create_qp_ex2)
TP_NOT_MODELLED(ibv_cmd_create_rwq_ind_table)
TP_NOT_MODELLED(ibv_cmd_create_srq)
TP_NOT_MODELLED(ibv_cmd_create_srq_ex)
TP_NOT_MODELLED(ibv_cmd_create_wq)
TP_NOT_MODELLED(ibv_cmd_dealloc_mw)
TP_NOT_MODELLED(ibv_cmd_dealloc_pd)
TP_NOT_MODELLED(ibv_cmd_dereg_mr)
TP_NOT_MODELLED(ibv_cmd_destroy_ah)
TP_NOT_MODELLED(ibv_cmd_destroy_counters)
TP_NOT_MODELLED(ibv_cmd_destroy_cq)
TP_NOT_MODELLED(ibv_cmd_destroy_flow)
TP_NOT_MODELLED(ibv_cmd_destroy_flow_action)
TP_NOT_MODELLED(ibv_cmd_destroy_qp)
TP_NOT_MODELLED(ibv_cmd_destroy_rwq_ind_table)
TP_NOT_MODELLED(ibv_cmd_destroy_srq)
TP_NOT_MODELLED(ibv_cmd_destroy_wq)
TP_NOT_MODELLED(ibv_cmd_detach_mcast)
TP_NOT_MODELLED(ibv_cmd_free_dm)
TP_NOT_MODELLED(ibv_cmd_get_context)
TP_NOT_MODELLED(ibv_cmd_modify_cq)
TP_NOT_MODELLED(ibv_cmd_modify_flow_action_esp)
TP_NOT_MODELLED(ibv_cmd_modify_qp)
TP_NOT_MODELLED(ibv_cmd_modify_qp_ex)
TP_NOT_MODELLED(ibv_cmd_modify_srq)
TP_NOT_MODELLED(ibv_cmd_modify_wq)
TP_NOT_MODELLED(ibv_cmd_open_qp)
TP_NOT_MODELLED(ibv_cmd_open_xrcd)
TP_NOT_MODELLED(ibv_cmd_poll_cq)
TP_NOT_MODELLED(ibv_cmd_post_recv)
TP_NOT_MODELLED(ibv_cmd_post_send)
TP_NOT_MODELLED(ibv_cmd_post_srq_recv)
TP_NOT_MODELLED(ibv_cmd_query_context)
TP_NOT_MODELLED(ibv_cmd_query_device_any)
TP_NOT_MODELLED(ibv_cmd_query_mr)
TP_NOT_MODELLED(ibv_cmd_query_port)
TP_NOT_MODELLED(ibv_cmd_query_qp)
TP_NOT_MODELLED(ibv_cmd_query_srq)
TP_NOT_MODELLED(ibv_cmd_read_counters)
TP_NOT_MODELLED(ibv_cmd_reg_dm_mr)
TP_NOT_MODELLED(ibv_cmd_reg_dmabuf_mr)
TP_NOT_MODELLED(ibv_cmd_reg_mr)
TP_NOT_MODELLED(ibv_cmd_req_notify_cq)
TP_NOT_MODELLED(ibv_cmd_rereg_mr)
TP_NOT_MODELLED(ibv_cmd_resize_cq)

}  // extern "C"
