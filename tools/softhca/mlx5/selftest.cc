// softhca-mlx5-selftest: our libmlx5 as programs use it that make queue pairs by DevX: the sequence
// by which NCCL 2.28.9's GPU-initiated transport makes, joins and destroys one; what is refused;
// who may be destroyed when.  Needs an adapter mlx5_0 and one whose name is another.  Prints a line
// a case, and how many commands it sent, which the recorder must have too.
#include <dlfcn.h>
#include <fcntl.h>
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>

#include "tools/softhca/mlx5/selftest_commands.h"
#include "tools/softhca/mlx5/selftest_library.h"
#include "tools/softhca/mlx5/selftest_traffic.h"
#include "tools/softhca/selftest_cases.h"

namespace {

using namespace twinpath::softhca;

Library& lib() {
  static Library library;
  return library;
}

alignas(65536) char memory[4][8192];

void queue_pair(ibv_context* context) {
  ibv_port_attr port{};
  EXPECT(ibv_query_port(context, 1, &port) == 0);
  const bool ethernet = port.link_layer == IBV_LINK_LAYER_ETHERNET;
  Bytes caps(16 + 4096), roce(16 + 4096), second(16 + 4096);
  EXPECT(lib().query(context, query_caps(0), caps) == 0 &&
         lib().query(context, query_caps(4), roce) == 0);
  EXPECT(lib().query(context, query_caps(0x20), second) == 0);
  EXPECT(caps.get(16 + 0x34, 9, 8) == (ethernet ? 1u : 0u));  // port_type
  EXPECT(caps.get(16 + 0x44, 0, 0) == 1);                     // rc
  EXPECT(caps.get(16 + 0x04, 31, 31) == 1);                   // hca_cap_2, where
  EXPECT(second.get(16 + 0x5c, 30, 30) == 0);                 // doorbells need their records
  EXPECT(roce.get(16 + 0x1c, 15, 0) == static_cast<std::uint32_t>(port.gid_tbl_len));
  EXPECT(roce.get(16 + 0x18, 15, 0) < roce.get(16 + 0x18, 31, 16));  // UDP source ports

  ibv_pd* const pd = ibv_alloc_pd(context);
  mlx5dv_pd view{};
  mlx5dv_obj obj{};
  obj.pd = {pd, &view};
  EXPECT(pd != nullptr && lib().init_obj(&obj, MLX5DV_OBJ_PD) == 0 && view.pdn != 0);

  mlx5dv_devx_uar* const uar = lib().devx_alloc_uar(context, 1u << 31);
  EXPECT(uar != nullptr);
  EXPECT(static_cast<char*>(uar->reg_addr) == static_cast<char*>(uar->base_addr) + 0x800);
  *static_cast<volatile std::uint64_t*>(uar->reg_addr) = 1;  // memory
  mlx5dv_devx_umem* buffers[4];
  for (int i = 0; i < 4; ++i) {
    buffers[i] = lib().umem(context, memory[i], sizeof memory[i]);
    EXPECT(buffers[i] != nullptr && buffers[i]->umem_id != 0);
  }
  Parts parts{uar->page_id,
              buffers[0]->umem_id,
              buffers[1]->umem_id,
              buffers[2]->umem_id,
              buffers[3]->umem_id,
              0,
              view.pdn};
  EXPECT(lib().devx_query_eqn(context, 0, &parts.eqn) == 0);
  std::uint32_t cqn = 0, qpn = 0;
  mlx5dv_devx_obj* const cq = lib().make(context, create_cq(parts, 7), cqn);
  mlx5dv_devx_obj* const qp = lib().make(context, create_qp(parts, cqn, 7), qpn);
  EXPECT(cq != nullptr && qp != nullptr && cqn != 0 && qpn != 0 && qpn != cqn);

  // To RTS, with the destination's MAC from an address handle.
  EXPECT(lib().state_of(qp, qpn) == 0);
  EXPECT(lib().change(qp, to_init(qpn)) == 0 && lib().state_of(qp, qpn) == 1);
  ibv_gid gid{};
  std::uint8_t mac[6] = {};
  EXPECT(ibv_query_gid(context, 1, 1, &gid) == 0);
  if (ethernet) {
    ibv_ah_attr attr{};
    attr.port_num = 1;
    attr.is_global = 1;
    attr.grh.hop_limit = 255;
    attr.grh.dgid = gid;
    ibv_ah* const ah = ibv_create_ah(pd, &attr);
    mlx5dv_ah address{};
    obj.ah = {ah, &address};
    EXPECT(ah != nullptr && lib().init_obj(&obj, MLX5DV_OBJ_AH) == 0 && address.av != nullptr);
    EXPECT((address.av->rmac[0] & 3) == 2);  // somebody's own, of one destination
    EXPECT(std::memcmp(address.av->rgid, attr.grh.dgid.raw, 16) == 0);
    std::memcpy(mac, address.av->rmac, sizeof mac);
    EXPECT(address.av->hop_limit == 255 && ibv_destroy_ah(ah) == 0);
    Bytes answered(48);
    EXPECT(lib().query(context, command(0x760, 16).put(8, 31, 16, 1), answered) == 0);
    EXPECT(answered.get(16 + 0x18, 7, 0) >= 2);  // roce_version
    EXPECT(std::memcmp(answered.data() + 16, attr.grh.dgid.raw, 16) == 0);
  }
  EXPECT(lib().change(qp, to_receive(qpn, ethernet, gid.raw, mac)) == 0 &&
         lib().state_of(qp, qpn) == 2);
  EXPECT(lib().change(qp, to_send(qpn)) == 0 && lib().state_of(qp, qpn) == 3);
  EXPECT(lib().change(qp, modify_qp(0x507, qpn)) == 0 && lib().state_of(qp, qpn) == 6);
  EXPECT(lib().change(qp, modify_qp(0x50a, qpn)) == 0 && lib().state_of(qp, qpn) == 0);

  // What is in use stays.
  EXPECT(lib().devx_obj_destroy(cq) == EBUSY);
  for (mlx5dv_devx_umem* b : buffers) EXPECT(lib().devx_umem_dereg(b) == EBUSY);
  EXPECT(lib().devx_obj_destroy(qp) == 0);
  EXPECT(lib().devx_umem_dereg(buffers[0]) == EBUSY && lib().devx_umem_dereg(buffers[1]) == EBUSY);
  EXPECT(lib().devx_umem_dereg(buffers[2]) == 0 && lib().devx_umem_dereg(buffers[3]) == 0);
  EXPECT(lib().devx_obj_destroy(cq) == 0);
  lib().devx_free_uar(uar);
  EXPECT(lib().devx_umem_dereg(buffers[0]) == 0 && lib().devx_umem_dereg(buffers[1]) == 0);
  EXPECT(ibv_dealloc_pd(pd) == 0);
}

// Registers come four of a page, or one for all; a page stays when a register is given back.
void pages(ibv_context* context) {
  mlx5dv_devx_uar* own[5];
  for (auto*& uar : own) EXPECT((uar = lib().devx_alloc_uar(context, 1u << 31)) != nullptr);
  const auto at = [](const mlx5dv_devx_uar* uar) { return static_cast<char*>(uar->reg_addr); };
  EXPECT(own[0]->page_id == own[1]->page_id && at(own[1]) == at(own[0]) + 0x100);
  EXPECT(own[0]->base_addr == own[1]->base_addr);
  EXPECT(own[3]->page_id == own[0]->page_id && own[4]->page_id != own[0]->page_id);
  lib().devx_free_uar(own[4]);
  mlx5dv_devx_uar* const shared = lib().devx_alloc_uar(context, MLX5DV_UAR_ALLOC_TYPE_NC);
  EXPECT(shared != nullptr);
  EXPECT(lib().devx_alloc_uar(context, MLX5DV_UAR_ALLOC_TYPE_NC) == shared);
  lib().devx_free_uar(shared);
  *static_cast<volatile std::uint64_t*>(shared->reg_addr) = 1;
  EXPECT(lib().devx_alloc_uar(context, MLX5DV_UAR_ALLOC_TYPE_NC) == shared);
  for (int i = 0; i < 4; ++i) lib().devx_free_uar(own[i]);
}

void memory_refused(ibv_context* context) {
  EXPECT(lib().devx_alloc_uar(context, 7) == nullptr && errno == EOPNOTSUPP);
  EXPECT(lib().devx_umem_reg(context, memory[0], 0, 1) == nullptr && errno == EINVAL);
  EXPECT(lib().devx_umem_reg(context, nullptr, 4096, 1) == nullptr && errno == EFAULT);
  EXPECT(lib().devx_umem_reg(context, memory[0], 4096, 1u << 31) == nullptr && errno == EINVAL);
  mlx5dv_devx_umem_in in{};
  in.size = 4096;
  in.addr = memory[0];
  EXPECT(lib().devx_umem_reg_ex(context, &in) == nullptr && errno == EINVAL);  // no page size
  in.pgsz_bitmap = 4096;
  in.comp_mask = 1u << 5;
  EXPECT(lib().devx_umem_reg_ex(context, &in) == nullptr && errno == EOPNOTSUPP);
  in.comp_mask = MLX5DV_UMEM_MASK_DMABUF;
  in.dmabuf_fd = -1;
  EXPECT(lib().devx_umem_reg_ex(context, &in) == nullptr && errno == EBADF);
  in.dmabuf_fd = open("/dev/null", O_RDONLY);
  EXPECT(lib().devx_umem_reg_ex(context, &in) == nullptr && errno == EOPNOTSUPP);
  // NCCL's order: a dma-buf at address 0, then the address.
  ibv_pd* const pd = ibv_alloc_pd(context);
  EXPECT(lib().reg_dmabuf_mr(pd, 0, 4096, 0, in.dmabuf_fd, 1, 0) == nullptr && errno == EINVAL);
  const int file = memfd_create("some", MFD_CLOEXEC);
  EXPECT(file >= 0 && ftruncate(file, 4096) == 0);
  EXPECT(lib().reg_dmabuf_mr(pd, 0, 4096, 0, file, 1, 0) == nullptr && errno == EOPNOTSUPP);
  close(file);
  EXPECT(lib().reg_dmabuf_mr(pd, 0, 4096, 65536, in.dmabuf_fd, 1, 1) == nullptr &&
         errno == EOPNOTSUPP);
  EXPECT(lib().reg_dmabuf_mr(pd, 0, 0, 0, -1, 0, 0) == nullptr && errno == EBADF);
  ibv_mr* const mr = ibv_reg_mr_iova2(pd, memory[0], 4096, 0, IBV_ACCESS_LOCAL_WRITE);
  EXPECT(mr != nullptr && ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0);
  close(in.dmabuf_fd);
}

void commands_refused(ibv_context* context) {
  Bytes in = query_caps(0), out(16);
  for (const auto& [asked, answered] : {std::pair<std::size_t, std::size_t>{15, 16},
                                        {16, 15},
                                        {0, 0},
                                        {1u << 16, 16},
                                        {16, 1u << 16}}) {
    ++lib().commands;
    EXPECT(lib().devx_general_cmd(context, in.data(), asked, out.data(), answered) == EINVAL);
  }
  ++lib().commands;
  EXPECT(lib().devx_obj_create(context, in.data(), 8, out.data(), 16) == nullptr &&
         errno == EINVAL);
  std::uint32_t eqn = 0;
  EXPECT(lib().devx_query_eqn(context, 1u << 20, &eqn) == EINVAL);
  // A command that is another call's, and one that nobody knows.
  Bytes cq = create_cq({}, 0);
  EXPECT(lib().query(context, cq, out) == EINVAL && out.get(0, 31, 24) == 0);
  EXPECT(lib().query(context, command(0xfff, 16), out) == EINVAL && out.get(0, 31, 24) == 0);
  // What the device refuses comes with status and syndrome; the umem is missing, and the page
  // before. The event queue is looked up by the driver.
  std::uint32_t number = 0;
  EXPECT(lib().make(context, cq, number) == nullptr && errno == ENOENT && number == 0);  // eqn 0
  EXPECT(lib().devx_query_eqn(context, 0, &eqn) == 0);
  cq.put(0x10 + 0x14, 7, 0, eqn);
  EXPECT(lib().make(context, cq, number) == nullptr && errno == EREMOTEIO && number == 0);
  EXPECT(lib().last.get(0, 31, 24) == 5 && lib().last.get(4, 31, 0) != 0);
  // An answer that has no room for all is cut, and nothing is written behind it.
  Bytes longer(64);
  longer.put(32, 31, 0, 0xdeadbeef);
  ++lib().commands;
  EXPECT(lib().devx_general_cmd(context, in.data(), 16, longer.data(), 32) == 0);
  EXPECT(longer.get(32, 31, 0) == 0xdeadbeef && longer.get(16 + 0x04, 31, 31) == 1);
  // The answer may go where the command came from.
  std::memcpy(longer.data(), in.data(), 16);
  ++lib().commands;
  EXPECT(lib().devx_general_cmd(context, longer.data(), 16, longer.data(), 32) == 0);
  EXPECT(longer.get(16 + 0x04, 31, 31) == 1);
}

void views(ibv_context* context) {
  mlx5dv_context attr{};
  attr.comp_mask = MLX5DV_CONTEXT_MASK_CQE_COMPRESION;
  EXPECT(lib().query_device(context, &attr) == 0);
  EXPECT(attr.flags == MLX5DV_CONTEXT_FLAGS_CQE_V1 && attr.comp_mask == 0);
  char path[64];
  EXPECT(lib().data_direct(context, path, sizeof path) == ENODEV);

  ibv_pd* const pd = ibv_alloc_pd(context);
  ibv_cq* const cq = ibv_create_cq(context, 15, nullptr, nullptr, 0);
  ibv_srq_init_attr srq_attr{};
  srq_attr.attr = {4, 1, 0};
  ibv_srq* const srq = ibv_create_srq(pd, &srq_attr);
  EXPECT(pd != nullptr && cq != nullptr && srq != nullptr);
  mlx5dv_cq cq_view{};
  mlx5dv_srq srq_view{};
  srq_view.comp_mask = MLX5DV_SRQ_MASK_SRQN;
  mlx5dv_obj obj{};
  obj.cq = {cq, &cq_view};
  obj.srq = {srq, &srq_view};
  EXPECT(lib().init_obj(&obj, MLX5DV_OBJ_CQ | MLX5DV_OBJ_SRQ) == 0);
  EXPECT(cq_view.cqn != 0 && cq_view.cqe_size == 64 && srq_view.srqn != 0);
  const std::uint32_t first = cq_view.cqn;
  using Init = int (*)(mlx5dv_obj*, std::uint64_t);
  const auto old = reinterpret_cast<Init>(dlvsym(lib().handle, "mlx5dv_init_obj", "MLX5_1.0"));
  EXPECT(old != nullptr && old != lib().init_obj);
  EXPECT(old(&obj, MLX5DV_OBJ_CQ) == 0 && cq_view.cqn == first);
  EXPECT(lib().init_obj(&obj, MLX5DV_OBJ_QP) == EOPNOTSUPP && lib().init_obj(&obj, 0) == EINVAL);
  EXPECT(ibv_destroy_srq(srq) == 0 && ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0);

  // Nothing ever comes from an event channel, and it can be polled.
  auto* const channel =
      lib().devx_create_event_channel(context, MLX5_IB_UAPI_DEVX_CR_EV_CH_FLAGS_OMIT_DATA);
  EXPECT(channel != nullptr);
  pollfd readable{channel->fd, POLLIN, 0};
  EXPECT(poll(&readable, 1, 0) == 0);
  EXPECT(fcntl(channel->fd, F_SETFL, O_NONBLOCK) == 0);
  mlx5dv_devx_async_event_hdr event{};
  EXPECT(lib().devx_get_event(channel, &event, sizeof event) == -1 && errno == EAGAIN);
  lib().devx_destroy_event_channel(channel);
}

void names(ibv_device* ours, ibv_device* other) {
  mlx5dv_context_attr attr{};
  attr.flags = MLX5DV_CONTEXT_FLAGS_DEVX;
  EXPECT(lib().is_supported(ours) && !lib().is_supported(other));
  EXPECT(lib().open_device(other, &attr) == nullptr && errno == EOPNOTSUPP);
  attr.flags = 1u << 7;
  EXPECT(lib().open_device(ours, &attr) == nullptr && errno == EOPNOTSUPP);
}

}  // namespace

int main() {
  int count = 0;
  ibv_device** const list = ibv_get_device_list(&count);
  if (count < 2 || lib().missing != nullptr) {
    std::printf("FAILED: %d adapters of 2; libmlx5.so lacks %s\n", count,
                lib().missing == nullptr ? "nothing" : lib().missing);
    return 1;
  }
  mlx5dv_context_attr attr{};
  attr.flags = MLX5DV_CONTEXT_FLAGS_DEVX;
  ibv_context* const context = lib().open_device(list[0], &attr);
  if (context == nullptr) {
    std::printf("FAILED: opening %s: errno %d\n", list[0]->name, errno);
    return 1;
  }
  run("names", [&] { names(list[0], list[1]); });
  run("a queue pair, made, joined and destroyed", [&] { queue_pair(context); });
  run("a target of dynamic connections has a number and states",
      [&] { why = dynamic_target(lib(), context); });
  run("doorbell registers and their pages", [&] { pages(context); });
  run("memory that is refused", [&] { memory_refused(context); });
  run("commands that are refused", [&] { commands_refused(context); });
  run("work given to queues", [&] { why = traffic(lib(), context); });
  run("views of verbs objects, event channels", [&] { views(context); });
  ibv_free_device_list(list);
  run("closing", [&] { EXPECT(ibv_close_device(context) == 0); });
  std::printf("commands: %d\n", lib().commands);
  return failures == 0 ? 0 : 1;
}
