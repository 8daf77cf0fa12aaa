// See window.h.
#include "gda/team/window.h"

#include <cstring>

#include "gda/abi/abi.h"
#include "gda/abi/host_device.h"
#include "gda/adapter/mlx5/region.h"
#include "gda/team/adapter_side.h"
#include "gda/team/gpu_signals.h"
#include "plugin/base/log.h"
#include "plugin/gpu/engine.h"

namespace twinpath::gda {
namespace {

bool relaxed(const TeamCore& team, const WindowRequest& request) {
  return !request.traits.strict && team.config().ib_pci_relaxed_ordering != 0;
}

}  // namespace

Status Window::announce(const WindowRequest& request) {
  const auto mine = prepare(request);
  auto theirs = gather_or_fail(*core_.mesh, mine, "registering a window");
  if (!theirs) return theirs.status();
  const Status known = publish(request, *theirs);
  // Where signals are counted each rank's engine looks their words up, so all must be found there
  // before the first kernel raises one.
  if (!core_.counted()) return known;
  Result<std::vector<std::uint8_t>> mine_known{std::vector<std::uint8_t>{}};
  if (known != Status::ok) mine_known = known;
  return gather_or_fail(*core_.mesh, mine_known, "announcing a window").status();
}

Result<std::vector<std::uint8_t>> Window::prepare(const WindowRequest& request) {
  const auto address = reinterpret_cast<std::uintptr_t>(request.data);
  if (request.data == nullptr || request.bytes == 0 || address + request.bytes < address) {
    TP_WARN("cannot register %zu bytes at %p as a window: not a range of memory", request.bytes,
            request.data);
    return Status::bad_argument;
  }
  // Before anything is asked of the adapter, and with all ranks, which have the same table.
  if (core_.keys.full()) {
    TP_WARN(
        "cannot register %zu bytes at %p as a window: %zu windows and contexts' tables of this "
        "communicator are registered, and there is no room for more; deregister some first, or "
        "register larger ranges",
        request.bytes, request.data, KeyTable::kMaxWindows - 1);
    return Status::no_memory;
  }
  auto rkey = register_memory(request);
  if (!rkey) return rkey.status();
  if (!core_.spare_handles.empty()) {
    device_ = std::move(core_.spare_handles.back());
    core_.spare_handles.pop_back();
  } else {
    auto device = DeviceBlock::make(
        core_.gpu, Place::gpu,
        sizeof(DeviceWindow) + static_cast<std::size_t>(core_.ranks()) * sizeof(std::uint32_t));
    if (!device) return device.status();
    device_ = std::move(device).take();
  }
  Writer w;
  w.integer(std::uint64_t{address});
  w.integer(std::uint64_t{request.bytes});
  w.integer(*rkey);
  w.integer(second_ != nullptr ? second_->mr->rkey : 0);
  return w.take();
}

int gpu_of(const WindowRequest& request) {
  return request.type == MemoryType::cuda ? gpu::inspect_pointer(request.data).gpu : -1;
}

MrRequest registration(const TeamCore& team, const WindowRequest& request) {
  MrRequest mr;
  mr.address = reinterpret_cast<std::uintptr_t>(request.data);
  mr.bytes = request.bytes;
  mr.kind = kind_of(request.type, request.dmabuf_fd);
  // NCCL brings no dma-buf for what kernels name, whatever NCCL_DMABUF_ENABLE says.
  if (mr.kind == MrKind::cuda) mr.kind = MrKind::dmabuf;
  mr.relaxed_ordering = relaxed(team, request);
  mr.remote_atomic = team.limits.atomics;
  mr.dmabuf_offset = request.dmabuf_offset;
  mr.dmabuf_fd = request.dmabuf_fd;
  mr.data_direct = !team.rail.port.port->data_direct.empty();
  return mr;
}

Result<MrRegion*> register_on_second(const TeamCore& team, const WindowRequest& request) {
  if (team.second == nullptr) return static_cast<MrRegion*>(nullptr);
  const RailPort& port = team.second->rail.port;
  // The driver is asked for the team's GPU.
  const bool settled =
      team.second->settled == Settled::all && (team.verbs().ordered || gpu_of(request) == team.gpu);
  if (request.type == MemoryType::cuda && !settled) {
    if (team.second->crosses(team.rank())) {
      TP_WARN(
          "a window in GPU memory cannot be had where some queues are over %s from the start: what "
          "they bring is not known to be there before signals; set TWINPATH_FAILOVER=0",
          port.port->name.c_str());
      return Status::unsupported;
    }
    if (team.second->lack("a window is GPU memory, which cannot be settled"))
      TP_INFO(net, "%s of rank %d does not move to %s any more: a window is GPU memory", team.name,
              team.rank(), port.port->name.c_str());
    return static_cast<MrRegion*>(nullptr);
  }
  MrRequest mr = registration(team, request);
  mr.data_direct = !port.port->data_direct.empty();
  auto region = port.adapter->mrs.acquire(mr);
  if (region || team.second->crosses(team.rank())) return region;
  return static_cast<MrRegion*>(nullptr);
}

KeyedMemory take_memory(const TeamCore& team, Reader& in) {
  KeyedMemory memory;
  memory.address = in.integer<std::uint64_t>();
  memory.bytes = in.integer<std::uint64_t>();
  memory.fabric_key = in.integer<std::uint32_t>();
  memory.second_key = in.integer<std::uint32_t>();
  if (team.second != nullptr && memory.second_key == 0)
    (void)team.second->lack("a window is not registered");
  return memory;
}

// Result: the rkey.
Result<std::uint32_t> Window::register_memory(const WindowRequest& request) {
  if (core_.adapter != nullptr) {
    auto mr = mlx5::register_region(*core_.adapter->adapter,
                                    {.data = request.data,
                                     .bytes = request.bytes,
                                     .on_gpu = request.type == MemoryType::cuda,
                                     .dmabuf_fd = request.dmabuf_fd,
                                     .dmabuf_offset = request.dmabuf_offset,
                                     .relaxed_ordering = relaxed(core_, request)});
    if (!mr) return mr.status();
    mr_ = std::move(mr).take();
    return mr_->rkey;
  }
  cache_ = &core_.rail.port.adapter->mrs;
  auto region = cache_->acquire(registration(core_, request));
  if (!region) return region.status();
  region_ = *region;
  auto second = register_on_second(core_, request);
  if (!second) return second.status();
  second_ = *second;
  if (request.type == MemoryType::cuda) {
    flush_source_ =
        core_.flush_sources.add({reinterpret_cast<std::uintptr_t>(request.data),
                                 {region_->mr->rkey, second_ != nullptr ? second_->mr->rkey : 0}});
    warn_of_host_signals(core_);
  }
  return region_->mr->rkey;
}

Status Window::publish(const WindowRequest& request,
                       const std::vector<std::vector<std::uint8_t>>& from) {
  std::vector<KeyedMemory> remote;
  for (const auto& bytes : from) {
    Reader in(bytes);
    const KeyedMemory memory = take_memory(core_, in);
    if (!in.ok()) {
      TP_WARN("%s sent a damaged description of its window",
              core_.mesh->peer_text(static_cast<int>(remote.size())).c_str());
      return Status::remote;
    }
    remote.push_back(memory);
  }
  KeyedMemory& own = remote[static_cast<std::size_t>(core_.rank())];
  own.gpu = gpu_of(request);
  own.never_reset = request.traits.never_reset;
  if (mr_) {
    std::vector<std::uint32_t> rkeys;
    for (const KeyedMemory& memory : remote) rkeys.push_back(memory.fabric_key);
    return fill(mr_->lkey, rkeys);
  }
  const KeyedMemory local{reinterpret_cast<std::uintptr_t>(request.data), request.bytes,
                          region_->mr->lkey, second_ != nullptr ? second_->mr->lkey : 0};
  // Without atomics signals in it are counted, as those of tables are.
  auto key = core_.keys.add(local, remote,
                            kLocalRead | kLocalWrite | kRemoteWrite | kRemoteRead | kRemoteAtomic);
  if (!key) return key.status();
  key_ = *key;
  return fill(key_, std::vector<std::uint32_t>(remote.size(), key_));
}

Status Window::fill(std::uint32_t lkey, const std::vector<std::uint32_t>& rkeys) {
  std::vector<std::uint8_t> image(device_->bytes());
  DeviceWindow handle{};
  handle.rkeys_be = device_->device_address() + sizeof handle;
  handle.lkey_be = swap32(lkey);
  std::memcpy(image.data(), &handle, sizeof handle);
  std::size_t at = sizeof handle;
  for (const std::uint32_t rkey : rkeys) {
    const std::uint32_t key_be = swap32(rkey);
    std::memcpy(image.data() + at, &key_be, sizeof key_be);
    at += sizeof key_be;
  }
  return device_->copy_in(0, image.data(), image.size());
}

void Window::close() {
  if (key_ != 0) core_.keys.remove(key_);
  key_ = 0;
  if (flush_source_ != nullptr) core_.flush_sources.remove(flush_source_);
  flush_source_ = nullptr;
}

Window::~Window() {
  close();
  if (device_ != nullptr) core_.spare_handles.push_back(std::move(device_));
  if (region_ != nullptr) cache_->release(region_);
  if (second_ != nullptr) core_.second->rail.port.adapter->mrs.release(second_);
}

}  // namespace twinpath::gda
