#pragma once
// UPPER SEAM of the GPU-initiated transport: what plugin/nccl offers to NCCL as its GIN plugin of
// type GDAKI.  Nothing here knows NCCL's host types; device layouts are in gda/abi.
//
// What it shares with RMA, and which calls are collective, is in one_sided.h.
//
// Threads: any, one at a time per comm; last_error and progress from any at any time.
#include <cstddef>
#include <cstdint>

#include "gda/one_sided.h"

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

class GinComm : public OneSidedComm<GinWindow, GinContext, ContextSettings> {};

class GinTransport : public OneSidedTransport<GinComm> {
 public:
  // Same devices, same numbers as the Transport of the process.
  virtual std::size_t device_count() const = 0;
  virtual Result<DeviceProps> device(int index) const = 0;
};

}  // namespace twinpath::gda
