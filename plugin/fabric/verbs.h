#pragma once
// LOWER SEAM: the control half of libibverbs as a table of function pointers.
//
// The data path needs no table: ibv_post_send, ibv_post_recv and ibv_poll_cq are inline in
// verbs.h and call through ibv_context::ops, which every provider fills.  A software HCA
// therefore fills this table and its own ibv_context::ops, and all code above works on plain
// ibv_* objects without knowing which it has.
//
// Rules for code above: never link or call an exported ibv_* symbol directly (the linker
// refuses it: nothing links -libverbs); never use ibv_query_port / ibv_reg_mr (macros around
// exported symbols); no extended objects (ibv_cq_ex, ibv_qp_ex): soft contexts have
// abi_compat == nullptr.
#include <infiniband/verbs.h>

#include <string>

#include "plugin/base/config.h"

namespace twinpath {

// X(member, symbol version, required)
#define TP_VERBS(X)                             \
  X(get_device_list, "IBVERBS_1.1", true)       \
  X(free_device_list, "IBVERBS_1.1", true)      \
  X(get_device_guid, "IBVERBS_1.1", true)       \
  X(open_device, "IBVERBS_1.1", true)           \
  X(close_device, "IBVERBS_1.1", true)          \
  X(query_device, "IBVERBS_1.1", true)          \
  X(query_gid, "IBVERBS_1.1", true)             \
  X(query_pkey, "IBVERBS_1.1", false)           \
  X(alloc_pd, "IBVERBS_1.1", true)              \
  X(dealloc_pd, "IBVERBS_1.1", true)            \
  X(reg_mr_iova2, "IBVERBS_1.8", true)          \
  X(reg_dmabuf_mr, "IBVERBS_1.12", false)       \
  X(dereg_mr, "IBVERBS_1.1", true)              \
  X(create_ah, "IBVERBS_1.1", false)            \
  X(destroy_ah, "IBVERBS_1.1", false)           \
  X(create_comp_channel, "IBVERBS_1.0", false)  \
  X(destroy_comp_channel, "IBVERBS_1.0", false) \
  X(create_cq, "IBVERBS_1.1", true)             \
  X(destroy_cq, "IBVERBS_1.1", true)            \
  X(create_qp, "IBVERBS_1.1", true)             \
  X(modify_qp, "IBVERBS_1.1", true)             \
  X(query_qp, "IBVERBS_1.1", true)              \
  X(destroy_qp, "IBVERBS_1.1", true)            \
  X(query_ece, "IBVERBS_1.10", false)           \
  X(set_ece, "IBVERBS_1.10", false)             \
  X(get_async_event, "IBVERBS_1.1", true)       \
  X(ack_async_event, "IBVERBS_1.1", true)       \
  X(event_type_str, "IBVERBS_1.1", true)        \
  X(wc_status_str, "IBVERBS_1.1", true)         \
  X(fork_init, "IBVERBS_1.1", false)            \
  X(is_fork_initialized, "IBVERBS_1.13", false)

// MLX5DV_REG_DMABUF_ACCESS_DATA_DIRECT of rdma-core 54, which our headers need not know.
inline constexpr int kDataDirect = 1;

struct Verbs {
#define TP_VERBS_MEMBER(name, version, required) decltype(&::ibv_##name) name = nullptr;
  TP_VERBS(TP_VERBS_MEMBER)
#undef TP_VERBS_MEMBER
  // ibv_query_port's exported symbol takes an older struct; this one is asked with the full
  // ibv_port_attr and zero-fills what the provider does not know.
  int (*query_port)(ibv_context* context, std::uint8_t port, ibv_port_attr* attr) = nullptr;
  // The port's speed in Mb/s where it is told beyond the old code of ibv_port_attr, in which the
  // kernel says NDR for all that is faster; 0: it is not told.  Null: nobody to ask.
  int (*port_speed)(ibv_context* context, std::uint8_t port) = nullptr;
  // Of a dma-buf, by the data-direct function of an mlx5 adapter: mlx5dv_reg_dmabuf_mr, with
  // kDataDirect as the last argument.  Null where no adapter has such a function.
  ibv_mr* (*reg_data_direct)(ibv_pd* pd, std::uint64_t offset, std::size_t bytes,
                             std::uint64_t iova, int fd, int access, int mlx5_access) = nullptr;
  // Who sees what a queue pair brought, a completion for instance, sees all that it brought before,
  // in whatever memory: the software HCA.  Behind PCIe that holds within one memory only.
  bool ordered = false;
};

// Fills the table from libibverbs.so.1 (dlopen, never closed).  On failure `why_not` names the
// missing library or symbol with its version.
bool load_libibverbs(Verbs& table, std::string& why_not);

// Fills the table from the software HCA of this process; its devices come from
// config.soft_hcas.  False: `why_not` quotes a bad device specification, or says what is missing.
bool load_soft_hca(Verbs& table, const Config& config, std::string& why_not);

}  // namespace twinpath
