#pragma once
// Memory that kernels of all ranks may name: registered with the fabric here, its keys known to
// everybody.  Kernels get one key of ours; or, where an adapter serves their queues, the fabric's.
//
// Threads: one at a time; the engine uses what is in the key table.
#include <cstdint>
#include <memory>

#include "gda/gin.h"
#include "gda/memory/device_memory.h"
#include "gda/team/gin_core.h"
#include "plugin/base/owned.h"

namespace twinpath::gda {

struct WindowRequest {
  void* data = nullptr;
  std::size_t bytes = 0;
  MemoryType type = MemoryType::host;
  std::uint64_t dmabuf_offset = 0;
  int dmabuf_fd = -1;
  WindowTraits traits;
};

// The CUDA ordinal of the GPU that it lies in; -1: in none.
int gpu_of(const WindowRequest& request);
// As memory of the team's adapter.
MrRequest registration(const TeamCore& team, const WindowRequest& request);
// The same as memory of the team's second port.  Null: there is none, or it cannot be; the window
// is as good without, but queues cannot move any more.  It fails where some are there from the
// start.
Result<MrRegion*> register_on_second(const TeamCore& team, const WindowRequest& request);
// A rank's part of a window, as it tells of it: address, bytes, and its keys.  Without one over the
// second port nothing moves there any more.
KeyedMemory take_memory(const TeamCore& team, Reader& in);

class Window final : public GinWindow {
 public:
  explicit Window(GinCore& core) : core_(core) {}
  // Collective.  Where it fails the window is closed as any other: something may have seen it.
  Status announce(const WindowRequest& request);
  // Kernels' work requests with its key are refused from now on.  Those under way go on: see
  // ServedContext::settle; the window may be destroyed after that.
  void close();
  ~Window() override;
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  std::uint64_t device_handle() const override { return device_->device_address(); }

 private:
  Result<std::vector<std::uint8_t>> prepare(const WindowRequest& request);
  Status publish(const WindowRequest& request, const std::vector<std::vector<std::uint8_t>>& from);

  GinCore& core_;
  Result<std::uint32_t> register_memory(const WindowRequest& request);
  Status fill(std::uint32_t lkey, const std::vector<std::uint32_t>& rkeys);

  MrCache* cache_ = nullptr;
  MrRegion* region_ = nullptr;
  MrRegion* second_ = nullptr;  // over the team's second port, if there is one
  Owned<ibv_mr> mr_;            // instead of it, where an adapter serves the queues: from address 0
  std::unique_ptr<DeviceBlock> device_;  // DeviceWindow, then the array of keys
  std::uint32_t key_ = 0;
  const FlushSource* flush_source_ = nullptr;  // it is GPU memory
};

}  // namespace twinpath::gda
