#include "gda/adapter/mlx5/queue_memory.h"

#include <cerrno>
#include <cstring>
#include <string>

#include "gda/abi/cqe.h"
#include "plugin/base/log.h"
#include "plugin/base/owned.h"

namespace twinpath::gda::mlx5 {

namespace {

// 0, or an errno value.  `dmabuf`: a descriptor, or -1 for memory by its address.
int register_block(const Adapter& adapter, const DeviceBlock& block, int dmabuf,
                   Handle<mlx5dv_devx_umem>& out) {
  mlx5dv_devx_umem_in in{};
  in.size = block.bytes();
  in.access = IBV_ACCESS_LOCAL_WRITE;
  in.pgsz_bitmap = page_size();
  if (dmabuf >= 0) {  // a place in it
    in.comp_mask = MLX5DV_UMEM_MASK_DMABUF;
    in.dmabuf_fd = dmabuf;
  } else {
    in.addr = reinterpret_cast<void*>(block.device_address());
  }
  const Mlx5& mlx5 = adapter.mlx5();
  errno = 0;
  mlx5dv_devx_umem* const umem =
      mlx5.devx_umem_reg_ex != nullptr
          ? mlx5.devx_umem_reg_ex(adapter.context(), &in)
          : mlx5.devx_umem_reg(adapter.context(), in.addr, in.size, in.access);
  if (umem == nullptr) return errno == 0 ? EIO : errno;
  out = Handle<mlx5dv_devx_umem>(umem, Destroyer{&adapter});
  return 0;
}

}  // namespace

std::vector<UmemWay> umem_ways(const UmemFacts& f) {
  if (!f.gpu) return {UmemWay::host};
  std::vector<UmemWay> ways;
  if (f.exported && f.takes_dmabuf) ways.push_back(UmemWay::gpu_dmabuf);
  if (f.peermem) ways.push_back(UmemWay::gpu_address);
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
  UniqueFd fd;
  if (way == UmemWay::gpu_dmabuf) {
    fd = UniqueFd(wish.exporter(**block));
    if (!fd) return ENODEV;
  }
  if (const int error = register_block(adapter, **block, fd.get(), umem_); error != 0) return error;
  block_ = std::move(block).take();
  way_ = way;
  if (way == UmemWay::host || !wish.rung_by_cpu) return 0;
  auto records = DeviceBlock::make(gpu, Place::shared, plan_.bytes() - plan_.records());
  if (!records) return ENOMEM;
  records_ = std::move(records).take();
  return register_block(adapter, *records_, -1, record_umem_);
}

Result<std::unique_ptr<QueueMemory>> QueueMemory::make(const Adapter& adapter, int gpu,
                                                       const BlockPlan& plan,
                                                       const QueueWish& wish) {
  std::unique_ptr<QueueMemory> memory(new QueueMemory(plan));
  UmemFacts facts;
  facts.gpu = gpu >= 0;
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
  if (failed.empty()) {
    TP_WARN(
        "%s reaches no memory of GPU %d, in which queues must lie: load nvidia_peermem, or use a "
        "driver that exports dma-bufs and rdma-core 35 or newer; TWINPATH_MODE=proxy goes without",
        adapter.name(), gpu);
    return Status::unsupported;
  }
  TP_WARN(
      "%s cannot register %zu bytes for queues, neither in %s; raise the memlock limit (ulimit "
      "-l), "
      "or load nvidia_peermem",
      adapter.name(), plan.bytes(), failed.c_str());
  return error == ENOMEM ? Status::no_memory : Status::system;
}

std::vector<std::unique_ptr<DeviceBlock>> QueueMemory::take() {
  umem_.reset();
  record_umem_.reset();
  std::vector<std::unique_ptr<DeviceBlock>> blocks;
  blocks.push_back(std::move(block_));
  if (apart()) blocks.push_back(std::move(records_));
  return blocks;
}

Status QueueMemory::fill() {
  const std::vector<std::uint8_t> unwritten(plan_.cq_used(), kCqeFill);
  for (std::size_t q = 0; q < plan_.queues; ++q)
    TP_TRY(block_->copy_in(plan_.cq(q), unwritten.data(), unwritten.size()));
  return Status::ok;
}

}  // namespace twinpath::gda::mlx5
