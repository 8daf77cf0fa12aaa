// dma-bufs of GPU memory on the soft HCA: those that we export are found by what they are, others
// by the address that is asked for.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "plugin/base/owned.h"
#include "plugin/fabric/mlx5.h"
#include "plugin/gpu/dmabuf.h"
#include "test/soft/gpu_page.h"

using namespace twinpath;
using namespace twinpath::test;

namespace {

// A dma-buf, as far as its size tells, that is not ours.
UniqueFd others(std::size_t bytes = 8192) {
  UniqueFd fd(memfd_create("another", MFD_CLOEXEC));
  REQUIRE(ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0);
  return fd;
}

}  // namespace

TEST_CASE("a dma-buf that we exported is found by itself, at any address", "[soft][cuda]") {
  FakeGpu gpu;
  Pair p({}, with_cuda());
  GpuPage page(gpu, p.b);
  REQUIRE(gpu::exports_dmabufs());
  const UniqueFd fd(gpu::export_dmabuf(page.address(), 4096));
  REQUIRE(fd);
  const int access = static_cast<int>(Options{}.access);
  ibv_mr* const mr = p.b.verbs.reg_dmabuf_mr(p.b.pd, 1024, 2048, 1024, fd.get(), access);
  REQUIRE(mr != nullptr);
  p.a.buffer[0] = 77;
  auto w = p.a.request(IBV_WR_RDMA_WRITE, 0, 1, 1024 + 16, mr->rkey);
  REQUIRE(p.a.post(w) == 0);
  CHECK(p.wait(p.a).status == IBV_WC_SUCCESS);
  CHECK(page.value((1024 + 16) / 8) == 77);
  auto beyond = p.a.request(IBV_WR_RDMA_WRITE, 0, 8, 1024 + 2044, mr->rkey);
  REQUIRE(p.a.post(beyond) == 0);
  CHECK(p.wait(p.a).status == IBV_WC_REM_ACCESS_ERR);
  CHECK(p.b.verbs.dereg_mr(mr) == 0);
  errno = 0;
  CHECK(p.b.verbs.reg_dmabuf_mr(p.b.pd, 1024, 4096, 1024, fd.get(), access) == nullptr);
  CHECK(errno == EINVAL);
  // Somebody else's has no address here, and a closed descriptor is none.
  const UniqueFd other = others();
  CHECK(p.b.verbs.reg_dmabuf_mr(p.b.pd, 0, 4096, 0, other.get(), access) == nullptr);
  CHECK(errno == EOPNOTSUPP);
  CHECK(p.b.verbs.reg_dmabuf_mr(p.b.pd, 0, 4096, 0, -1, access) == nullptr);
  CHECK(errno == EBADF);
}

TEST_CASE("queues may lie in a dma-buf that we exported, and in no other", "[soft][cuda]") {
  FakeGpu gpu;
  Pair p({}, with_cuda());
  GpuPage page(gpu, p.b);
  std::string why;
  const Mlx5 mlx5 = *load_mlx5(FabricKind::soft, why);
  REQUIRE(mlx5.devx_umem_reg_ex != nullptr);
  const UniqueFd fd(gpu::export_dmabuf(page.address(), 4096));
  const UniqueFd other = others();
  mlx5dv_devx_umem_in in{};
  in.comp_mask = MLX5DV_UMEM_MASK_DMABUF;
  in.access = IBV_ACCESS_LOCAL_WRITE;
  in.pgsz_bitmap = 4096;
  in.size = 2048;
  in.addr = reinterpret_cast<void*>(2048);  // a place in it
  in.dmabuf_fd = fd.get();
  mlx5dv_devx_umem* const umem = mlx5.devx_umem_reg_ex(p.b.context, &in);
  REQUIRE(umem != nullptr);
  CHECK(in.addr == reinterpret_cast<void*>(2048));
  CHECK(mlx5.devx_umem_dereg(umem) == 0);
  in.size = 2049;
  CHECK(mlx5.devx_umem_reg_ex(p.b.context, &in) == nullptr);
  CHECK(errno == EINVAL);
  in.size = 2048;
  in.dmabuf_fd = other.get();
  CHECK(mlx5.devx_umem_reg_ex(p.b.context, &in) == nullptr);
  CHECK(errno == EOPNOTSUPP);
  in.dmabuf_fd = -1;
  CHECK(mlx5.devx_umem_reg_ex(p.b.context, &in) == nullptr);
  CHECK(errno == EBADF);
}
