#include "gda/mlx5/queue_memory.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "gda/cqe.h"
#include "plugin/base/log.h"
#include "plugin/base/owned.h"

namespace twinpath::gda::mlx5 {

std::vector<UmemWay> umem_ways(const UmemFacts& f) {
  std::vector<UmemWay> ways;
  if (f.gpu && f.exported && f.takes_dmabuf) ways.push_back(UmemWay::gpu_dmabuf);
  if (f.gpu && f.peermem) ways.push_back(UmemWay::gpu_address);
  ways.push_back(UmemWay::host);
  return ways;
}

const char* name_of(UmemWay way) {
  switch (way) {
    case UmemWay::gpu_dmabuf:
      return "GPU memory by dma-buf";
    case UmemWay::gpu_address:
      return "GPU memory by nvidia_peermem";
    case UmemWay::host:
      return "host memory";
  }
  return "";
}

// 0, or an errno value.
int QueueMemory::attempt(const Adapter& adapter, int gpu, UmemWay way, const QueueWish& wish) {
  auto block =
      DeviceBlock::make(gpu, way == UmemWay::host ? Place::shared : Place::gpu, plan_.bytes());
  if (!block) return ENOMEM;
  mlx5dv_devx_umem_in in{};
  in.size = plan_.bytes();
  in.access = IBV_ACCESS_LOCAL_WRITE;
  in.pgsz_bitmap = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  UniqueFd fd;
  if (way == UmemWay::gpu_dmabuf) {
    fd = UniqueFd(wish.exporter(**block));
    if (!fd) return ENODEV;
    in.addr = nullptr;  // a place in the dma-buf
    in.comp_mask = MLX5DV_UMEM_MASK_DMABUF;
    in.dmabuf_fd = fd.get();
  } else {
    in.addr = reinterpret_cast<void*>((*block)->device_address());
  }
  const Mlx5& mlx5 = adapter.mlx5();
  errno = 0;
  mlx5dv_devx_umem* const umem =
      mlx5.devx_umem_reg_ex != nullptr
          ? mlx5.devx_umem_reg_ex(adapter.context(), &in)
          : mlx5.devx_umem_reg(adapter.context(), in.addr, in.size, in.access);
  if (umem == nullptr) return errno == 0 ? EIO : errno;
  umem_ = Handle<mlx5dv_devx_umem>(umem, Destroyer{&adapter});
  block_ = std::move(block).take();
  way_ = way;
  return 0;
}

Result<std::unique_ptr<QueueMemory>> QueueMemory::make(const Adapter& adapter, int gpu,
                                                       const BlockPlan& plan,
                                                       const QueueWish& wish) {
  std::unique_ptr<QueueMemory> memory(new QueueMemory(plan));
  UmemFacts facts;
  facts.gpu = gpu >= 0 && wish.on_gpu;
  facts.exported = wish.exporter != nullptr;
  facts.takes_dmabuf = adapter.mlx5().devx_umem_reg_ex != nullptr;
  facts.peermem = adapter.rail().port.port->peermem;
  std::string failed;
  int error = 0;
  for (const UmemWay way : umem_ways(facts)) {
    error = memory->attempt(adapter, gpu, way, wish);
    if (error == 0) {
      if (!failed.empty())
        TP_INFO(net, "%s: queues lie in %s, because not in %s", adapter.name(), name_of(way),
                failed.c_str());
      TP_TRY(memory->fill());
      return memory;
    }
    if (!failed.empty()) failed += ", ";
    failed += std::string(name_of(way)) + " (" + std::strerror(error) + ")";
  }
  TP_WARN(
      "%s cannot register %zu bytes for queues, neither in %s; raise the memlock limit (ulimit "
      "-l), "
      "or load nvidia_peermem",
      adapter.name(), plan.bytes(), failed.c_str());
  return error == ENOMEM ? Status::no_memory : Status::system;
}

Status QueueMemory::fill() {
  const std::vector<std::uint8_t> unwritten(plan_.cq_used(), kCqeFill);
  for (std::size_t q = 0; q < plan_.queues; ++q)
    TP_TRY(block_->copy_in(plan_.cq(q), unwritten.data(), unwritten.size()));
  return Status::ok;
}

}  // namespace twinpath::gda::mlx5
