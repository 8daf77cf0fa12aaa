#pragma once
// UPPER SEAM of the GPU-initiated transport: what plugin/nccl offers to NCCL as its GIN plugin of
// type GDAKI.  Nothing here knows NCCL's host types; device layouts are in gda/abi.
//
// Collective calls (connect, create_context, register_window) are made by every rank of the team
// in the same order and may block until the slowest has come, at most for the connection time
// limit; then they fail, naming the rank that did not answer.  All other calls never wait for a
// peer.
//
// Threads: any, one at a time per comm; last_error and progress from any at any time.
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "plugin/base/limits.h"
#include "plugin/base/status.h"
#include "plugin/transport.h"

namespace twinpath::gda {

// Which device structures the loading NCCL's kernels were compiled for.
enum class DeviceLayout : std::uint8_t {
  v2_28,     // queue of 280 bytes, one context of 72 bytes (NCCL 2.28.7 to 2.29.x)
  v2_30_72,  // queue of 296 bytes, array of contexts of 72 bytes (2.30.3; backendVersion 0, 1)
  v2_30_88,  // queue of 296 bytes, array of contexts of 88 bytes (backendVersion 2)
};

struct ContextSettings {
  int signals = 0;
  int counters = 0;
  int contexts = 1;     // 2.30: elements of the array
  int queue_depth = 0;  // WQEs, rounded up to a power of two; 0 and below: our default
  int traffic_class = -1;
  int rank_stride = 1;  // only ranks at this stride from the own one are spoken to
  DeviceLayout layout = DeviceLayout::v2_28;
};

class GinWindow {
 public:
  virtual ~GinWindow() = default;
  // Device address of the DeviceWindow (abi.h) that kernels get as ncclGinWindow_t.
  virtual std::uint64_t device_handle() const = 0;
};

class GinContext {
 public:
  // Never waits for a peer.
  virtual ~GinContext() = default;
  // Device address of the context, or of the first of the array.
  virtual std::uint64_t device_handle() const = 0;
  // Lock-free; any thread.
  virtual bool failed() const = 0;
};

class GinComm {
 public:
  // Contexts go first.  Never waits for a peer.
  virtual ~GinComm() = default;
  virtual Result<std::unique_ptr<GinContext>> create_context(const ContextSettings& settings) = 0;
  // `strict`: never registered with relaxed ordering.  dmabuf_fd -1: none.
  virtual Result<GinWindow*> register_window(void* data, std::size_t bytes, MemoryType type,
                                             std::uint64_t dmabuf_offset, int dmabuf_fd,
                                             bool strict) = 0;
  virtual Status deregister_window(GinWindow* window) = 0;
};

class GinListener {
 public:
  virtual ~GinListener() = default;
};

class GinTransport {
 public:
  virtual ~GinTransport() = default;
  // Same devices, same numbers as the Transport of the process.
  virtual std::size_t device_count() const = 0;
  virtual Result<DeviceProps> device(int index) const = 0;
  // Whether kernels may raise words of windows (2.30: VA signals), whatever device is listened on.
  virtual bool window_signals() const = 0;
  virtual Result<std::unique_ptr<GinListener>> listen(
      int device, std::span<std::uint8_t, kHandleBytes> handle) = 0;
  // Collective.  handles[r] is the one that rank r's listen filled; the own rank is included.
  virtual Result<std::unique_ptr<GinComm>> connect(
      std::span<const std::array<std::uint8_t, kHandleBytes>> handles, int rank,
      GinListener& listener, const CommSettings& settings) = 0;
};

}  // namespace twinpath::gda
