// vm-dmabuf: what the kernel's driver of an adapter takes for a region of a dma-buf and what it
// refuses, and data through one.  The dma-buf is vgem's (the kernel's virtual graphics memory), so
// that no GPU is needed.  Run inside the VM (test/vm/mlx5, stage memory).
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "plugin/base/owned.h"
#include "plugin/fabric/verbs.h"

namespace {

using namespace twinpath;

// The kernel's interface of graphics memory (drm.h, drm_mode.h), which not every system has headers
// of.
struct CreateDumb {
  std::uint32_t height, width, bits_a_pixel, flags, handle, pitch;
  std::uint64_t size;
};
struct MapDumb {
  std::uint32_t handle, pad;
  std::uint64_t offset;
};
struct PrimeHandle {
  std::uint32_t handle, flags;
  std::int32_t fd;
};
constexpr unsigned long kCreateDumb = _IOWR('d', 0xb2, CreateDumb);
constexpr unsigned long kMapDumb = _IOWR('d', 0xb3, MapDumb);
constexpr unsigned long kPrimeHandleToFd = _IOWR('d', 0x2d, PrimeHandle);

// Nothing can be said without it.
void need(bool there, const char* what) {
  if (there) return;
  std::printf("FAILED: %s: %s\n", what, std::strerror(errno));
  std::exit(1);
}
int failures = 0;
void expect(bool right, const char* what) {
  std::printf("%s: %s\n", right ? "ok" : "FAILED", what);
  if (!right) ++failures;
}

// Graphics memory of 16 pages, mapped, and its dma-buf.
struct Buffer {
  static constexpr std::size_t kBytes = 64 * 1024;
  UniqueFd card, dmabuf;
  std::uint8_t* bytes = nullptr;

  explicit Buffer(const char* path) : card(open(path, O_RDWR | O_CLOEXEC)) {
    need(static_cast<bool>(card), path);
    CreateDumb made{};
    made.width = 1024;
    made.height = 16;
    made.bits_a_pixel = 32;
    need(ioctl(card.get(), kCreateDumb, &made) == 0 && made.size >= kBytes, "graphics memory");
    MapDumb place{};
    place.handle = made.handle;
    need(ioctl(card.get(), kMapDumb, &place) == 0, "its place");
    void* const mapped = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, card.get(),
                              static_cast<off_t>(place.offset));
    need(mapped != MAP_FAILED, "a mapping of it");
    bytes = static_cast<std::uint8_t*>(mapped);
    std::memset(bytes, 0, kBytes);
    PrimeHandle given{};
    given.handle = made.handle;
    given.flags = O_RDWR | O_CLOEXEC;
    need(ioctl(card.get(), kPrimeHandleToFd, &given) == 0, "its dma-buf");
    dmabuf = UniqueFd(given.fd);
  }
};

// A queue pair that is connected to itself.
class Loop {
 public:
  Loop(const Verbs& verbs, ibv_context* context, ibv_pd* pd) {
    cq_ = own(verbs.create_cq(context, 16, nullptr, nullptr, 0), verbs.destroy_cq);
    need(cq_ != nullptr, "a completion queue");
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = cq_.get();
    init.qp_type = IBV_QPT_RC;
    init.sq_sig_all = 1;
    init.cap = {4, 4, 1, 1, 0};
    qp_ = own(verbs.create_qp(pd, &init), verbs.destroy_qp);
    ibv_port_attr port{};
    need(qp_ != nullptr && verbs.query_port(context, 1, &port) == 0, "a queue pair");
    ibv_qp_attr a{};
    a.qp_state = IBV_QPS_INIT;
    a.port_num = 1;
    a.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    const auto change = [&](ibv_qp_state to, int mask) {
      a.qp_state = to;
      need(verbs.modify_qp(qp_.get(), &a, IBV_QP_STATE | mask) == 0, "a connection");
    };
    change(IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    a.path_mtu = IBV_MTU_1024;
    a.dest_qp_num = qp_->qp_num;
    a.max_rd_atomic = a.max_dest_rd_atomic = 1;
    a.min_rnr_timer = 12;
    a.ah_attr.dlid = port.lid;
    a.ah_attr.port_num = 1;
    change(IBV_QPS_RTR, IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                            IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    a.timeout = 14;
    a.retry_cnt = a.rnr_retry = 7;
    change(IBV_QPS_RTS, IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                            IBV_QP_MAX_QP_RD_ATOMIC);
  }
  ibv_wc_status run(ibv_wr_opcode what, ibv_sge here, std::uint64_t there, std::uint32_t key) {
    ibv_send_wr wr{}, *bad = nullptr;
    wr.sg_list = &here;
    wr.num_sge = 1;
    wr.opcode = what;
    wr.wr.rdma.remote_addr = there;
    wr.wr.rdma.rkey = key;
    need(ibv_post_send(qp_.get(), &wr, &bad) == 0, "a work request");
    ibv_wc wc{};
    for (int i = 0; i < 10'000; ++i) {
      if (ibv_poll_cq(cq_.get(), 1, &wc) == 1) return wc.status;
      usleep(1000);
    }
    need(false, "a completion");
    return IBV_WC_GENERAL_ERR;
  }

 private:
  Owned<ibv_cq> cq_;
  Owned<ibv_qp> qp_;
};

constexpr int kRights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

void registrations(const Verbs& verbs, ibv_pd* pd, Buffer& buffer) {
  const auto region = [&](std::uint64_t offset, std::size_t bytes, std::uint64_t iova) {
    errno = 0;
    return own(verbs.reg_dmabuf_mr(pd, offset, bytes, iova, buffer.dmabuf.get(), kRights),
               verbs.dereg_mr);
  };
  const auto by_address =
      own(verbs.reg_mr_iova2(pd, buffer.bytes, 4096, reinterpret_cast<std::uintptr_t>(buffer.bytes),
                             static_cast<unsigned>(kRights)),
          verbs.dereg_mr);
  expect(by_address == nullptr && errno == EFAULT, "memory of a device by its address: EFAULT");
  expect(region(0, 8192, 0) != nullptr, "its dma-buf from a page on, at 0");
  expect(region(64, 4096, 64) != nullptr, "64 bytes into a page, at 64");
  expect(region(64, 4096, 0) == nullptr && errno == EINVAL, "64 bytes into a page, at 0: EINVAL");
  expect(region(0, 2 * Buffer::kBytes, 0) == nullptr && errno == EINVAL, "beyond its end: EINVAL");
}

void traffic(const Verbs& verbs, ibv_context* context, ibv_pd* pd, Buffer& buffer) {
  constexpr std::uint64_t kAt = 0x10000;
  alignas(4096) static std::uint8_t here[8192];
  const auto of_host = own(
      verbs.reg_mr_iova2(pd, here, sizeof here, reinterpret_cast<std::uintptr_t>(here), kRights),
      verbs.dereg_mr);
  const auto of_device =
      own(verbs.reg_dmabuf_mr(pd, 0, Buffer::kBytes, kAt, buffer.dmabuf.get(), kRights),
          verbs.dereg_mr);
  need(of_host != nullptr && of_device != nullptr, "regions");
  Loop loop(verbs, context, pd);
  const auto piece = [&](std::uint8_t* from) {
    return ibv_sge{reinterpret_cast<std::uintptr_t>(from), 4096, of_host->lkey};
  };
  for (std::size_t i = 0; i < 4096; ++i) here[i] = static_cast<std::uint8_t>(i * 7 / 3);
  // Across two of its pages.
  expect(loop.run(IBV_WR_RDMA_WRITE, piece(here), kAt + 5000, of_device->rkey) == IBV_WC_SUCCESS &&
             std::memcmp(buffer.bytes + 5000, here, 4096) == 0,
         "a write into it");
  expect(loop.run(IBV_WR_RDMA_READ, piece(here + 4096), kAt + 5000, of_device->rkey) ==
                 IBV_WC_SUCCESS &&
             std::memcmp(here, here + 4096, 4096) == 0,
         "a read out of it");
  expect(loop.run(IBV_WR_RDMA_WRITE, piece(here), kAt + Buffer::kBytes - 100, of_device->rkey) ==
             IBV_WC_REM_ACCESS_ERR,
         "a write beyond its end: remote access error");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return std::fputs("usage: vm-dmabuf DEVICE /dev/dri/cardN\n", stderr), 2;
  Verbs verbs;
  std::string why;
  if (!load_libibverbs(verbs, why)) return std::printf("FAILED: %s\n", why.c_str()), 1;
  int devices = 0;
  ibv_device** const list = verbs.get_device_list(&devices);
  ibv_context* context = nullptr;
  for (int i = 0; i < devices && context == nullptr; ++i)
    if (std::strcmp(list[i]->name, argv[1]) == 0) context = verbs.open_device(list[i]);
  need(context != nullptr, argv[1]);
  verbs.free_device_list(list);
  {
    const auto pd = own(verbs.alloc_pd(context), verbs.dealloc_pd);
    need(pd != nullptr && verbs.reg_dmabuf_mr != nullptr, "a protection domain");
    Buffer buffer(argv[2]);
    registrations(verbs, pd.get(), buffer);
    traffic(verbs, context, pd.get(), buffer);
  }
  verbs.close_device(context);
  return failures == 0 ? 0 : 1;
}
