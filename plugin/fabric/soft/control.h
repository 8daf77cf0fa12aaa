#pragma once
// The functions that fill the verbs table and ibv_context::ops; grouped by file.  Each has the
// contract of the libibverbs function of its name.
#include <infiniband/verbs.h>

#include <cstdint>

#include "plugin/fabric/verbs.h"

namespace twinpath {
struct Mlx5;
}

namespace twinpath::soft {

// soft_hca.cc: the table, for contexts that are open.
void fill(Verbs& table);

// mlx5_table.cc: the table (plugin/fabric/mlx5.h), and that a context is closed.
void load_mlx5(Mlx5& table);
void forget_mlx5(ibv_context*);

// cq.cc
ibv_cq* create_cq(ibv_context*, int cqe, void* user, ibv_comp_channel*, int vector);
int destroy_cq(ibv_cq*);
int poll_cq(ibv_cq*, int n, ibv_wc* out);

// channel.cc
int req_notify_cq(ibv_cq*, int solicited_only);

// shared_receive.cc
int post_srq_recv(ibv_srq*, ibv_recv_wr*, ibv_recv_wr** bad);

// events.cc
int get_async_event(ibv_context*, ibv_async_event*);
void ack_async_event(ibv_async_event*);
const char* event_type_str(ibv_event_type);

// ports.cc
int query_port(ibv_context*, std::uint8_t port, ibv_port_attr*);
// As Verbs::port_speed.
int port_speed(ibv_context*, std::uint8_t port);
int query_gid(ibv_context*, std::uint8_t port, int index, ibv_gid*);

// memory.cc
ibv_pd* alloc_pd(ibv_context*);
int dealloc_pd(ibv_pd*);
ibv_mr* reg_mr_iova2(ibv_pd*, void* address, size_t bytes, uint64_t iova, unsigned access);
ibv_mr* reg_dmabuf_mr(ibv_pd*, uint64_t offset, size_t bytes, uint64_t iova, int fd, int access);
int dereg_mr(ibv_mr*);
// An errno value, or 0: for memory of queues (mlx5dv_devx_umem_reg).
int refuse_umem_pages(ibv_context*, uint64_t address, size_t bytes, unsigned access);

// queue_pair.cc, states.cc
ibv_qp* create_qp(ibv_pd*, ibv_qp_init_attr*);
int modify_qp(ibv_qp*, ibv_qp_attr*, int mask);
int query_qp(ibv_qp*, ibv_qp_attr*, int mask, ibv_qp_init_attr*);
int destroy_qp(ibv_qp*);

// ece.cc
int query_ece(ibv_qp*, ibv_ece*);
int set_ece(ibv_qp*, ibv_ece*);

// post.cc
int post_send(ibv_qp*, ibv_send_wr*, ibv_send_wr** bad);
int post_recv(ibv_qp*, ibv_recv_wr*, ibv_recv_wr** bad);

}  // namespace twinpath::soft
