#include "tools/softhca/work_requests.h"

#include <cerrno>
#include <cstring>

namespace twinpath::softhca {
namespace {

WorkRequests& of(ibv_qp_ex* base) { return *static_cast<WorkRequests*>(base); }

void cmp_swp(ibv_qp_ex* b, std::uint32_t rkey, std::uint64_t address, std::uint64_t compare,
             std::uint64_t swap) {
  of(b).add_atomic(IBV_WR_ATOMIC_CMP_AND_SWP, rkey, address, compare, swap);
}
void fetch_add(ibv_qp_ex* b, std::uint32_t rkey, std::uint64_t address, std::uint64_t add) {
  of(b).add_atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, rkey, address, add, 0);
}
void rdma_read(ibv_qp_ex* b, std::uint32_t rkey, std::uint64_t address) {
  of(b).add_rdma(IBV_WR_RDMA_READ, rkey, address);
}
void rdma_write(ibv_qp_ex* b, std::uint32_t rkey, std::uint64_t address) {
  of(b).add_rdma(IBV_WR_RDMA_WRITE, rkey, address);
}
void rdma_write_imm(ibv_qp_ex* b, std::uint32_t rkey, std::uint64_t address, __be32 imm) {
  of(b).add_rdma(IBV_WR_RDMA_WRITE_WITH_IMM, rkey, address);
  of(b).items.back().wr.imm_data = imm;
}
void send(ibv_qp_ex* b) { of(b).add(IBV_WR_SEND); }
void send_imm(ibv_qp_ex* b, __be32 imm) { of(b).add(IBV_WR_SEND_WITH_IMM)->imm_data = imm; }

void set_sge(ibv_qp_ex* b, std::uint32_t lkey, std::uint64_t address, std::uint32_t bytes) {
  const ibv_sge one{address, bytes, lkey};
  of(b).set_sges(&one, 1);
}
void set_sge_list(ibv_qp_ex* b, std::size_t count, const ibv_sge* list) {
  of(b).set_sges(list, count);
}
void set_inline_data(ibv_qp_ex* b, void* address, std::size_t bytes) {
  const ibv_data_buf one{address, bytes};
  of(b).set_inline(&one, 1);
}
void set_inline_data_list(ibv_qp_ex* b, std::size_t count, const ibv_data_buf* list) {
  of(b).set_inline(list, count);
}

}  // namespace

WorkRequests::WorkRequests(ibv_qp* real, std::uint64_t ops) : ibv_qp_ex{}, qp(real) {
  // Member by member: the lock in it must not be copied.
  qp_base.context = real->context;
  qp_base.qp_context = real->qp_context;
  qp_base.pd = real->pd;
  qp_base.send_cq = real->send_cq;
  qp_base.recv_cq = real->recv_cq;
  qp_base.srq = real->srq;
  qp_base.handle = real->handle;
  qp_base.qp_num = real->qp_num;
  qp_base.state = real->state;
  qp_base.qp_type = real->qp_type;

  const auto want = [&](std::uint64_t op, auto& pointer, auto function) {
    if ((ops & op) != 0) pointer = function;
  };
  want(IBV_QP_EX_WITH_RDMA_WRITE, wr_rdma_write, rdma_write);
  want(IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, wr_rdma_write_imm, rdma_write_imm);
  want(IBV_QP_EX_WITH_SEND, wr_send, send);
  want(IBV_QP_EX_WITH_SEND_WITH_IMM, wr_send_imm, send_imm);
  want(IBV_QP_EX_WITH_RDMA_READ, wr_rdma_read, rdma_read);
  want(IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, wr_atomic_cmp_swp, cmp_swp);
  want(IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, wr_atomic_fetch_add, fetch_add);
  wr_set_sge = set_sge;
  wr_set_sge_list = set_sge_list;
  wr_set_inline_data = set_inline_data;
  wr_set_inline_data_list = set_inline_data_list;
  wr_start = [](ibv_qp_ex* b) { of(b).start(); };
  wr_complete = [](ibv_qp_ex* b) { return of(b).complete(); };
  wr_abort = [](ibv_qp_ex* b) { of(b).abort(); };
}

void WorkRequests::start() {
  building.lock();
  items.clear();
  sges.clear();
  inline_bytes.clear();
  error = 0;
}

ibv_send_wr* WorkRequests::add(ibv_wr_opcode opcode) {
  Item& item = items.emplace_back();
  item.wr.wr_id = wr_id;
  item.wr.send_flags = wr_flags;
  item.wr.opcode = opcode;
  return &item.wr;
}

void WorkRequests::add_rdma(ibv_wr_opcode opcode, std::uint32_t rkey, std::uint64_t address) {
  ibv_send_wr& wr = *add(opcode);
  wr.wr.rdma.rkey = rkey;
  wr.wr.rdma.remote_addr = address;
}

void WorkRequests::add_atomic(ibv_wr_opcode opcode, std::uint32_t rkey, std::uint64_t address,
                              std::uint64_t compare_add, std::uint64_t swap) {
  ibv_send_wr& wr = *add(opcode);
  wr.wr.atomic.rkey = rkey;
  wr.wr.atomic.remote_addr = address;
  wr.wr.atomic.compare_add = compare_add;
  wr.wr.atomic.swap = swap;
}

WorkRequests::Item* WorkRequests::data_of_last() {
  if (items.empty() || items.back().wr.num_sge != 0) {
    error = EINVAL;
    return nullptr;
  }
  return &items.back();
}

void WorkRequests::set_sges(const ibv_sge* list, std::size_t count) {
  Item* const item = data_of_last();
  if (item == nullptr) return;
  item->first_sge = sges.size();
  item->wr.num_sge = static_cast<int>(count);
  sges.insert(sges.end(), list, list + count);
}

void WorkRequests::set_inline(const ibv_data_buf* list, std::size_t count) {
  Item* const item = data_of_last();
  if (item == nullptr) return;
  const std::size_t begin = inline_bytes.size();
  for (std::size_t i = 0; i < count; ++i) {
    const auto* const bytes = static_cast<const std::uint8_t*>(list[i].addr);
    inline_bytes.insert(inline_bytes.end(), bytes, bytes + list[i].length);
  }
  item->first_sge = sges.size();
  item->has_inline = true;
  item->wr.num_sge = 1;
  item->wr.send_flags |= IBV_SEND_INLINE;
  // An offset for now.
  sges.push_back({begin, static_cast<std::uint32_t>(inline_bytes.size() - begin), 0});
}

int WorkRequests::complete() {
  std::unique_lock hold(building, std::adopt_lock);
  if (error != 0) return error;
  if (items.empty()) return 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    Item& item = items[i];
    ibv_sge* const list = sges.data() + item.first_sge;
    if (item.has_inline) list->addr += reinterpret_cast<std::uintptr_t>(inline_bytes.data());
    item.wr.sg_list = list;
    item.wr.next = i + 1 < items.size() ? &items[i + 1].wr : nullptr;
  }
  ibv_send_wr* bad = nullptr;
  return qp->context->ops.post_send(qp, &items.front().wr, &bad);
}

void WorkRequests::abort() { building.unlock(); }

}  // namespace twinpath::softhca
