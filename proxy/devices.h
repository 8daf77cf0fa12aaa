#pragma once
// What a transport has: the fabric's adapters and ports, the devices shown to NCCL (each port,
// and those merged from several), and the registrations made on them.
//
// Lives as long as the last session or comm.  Threads: any; adapters and ports never change,
// devices only grow under a mutex.
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "plugin/base/config.h"
#include "plugin/fabric/fabric.h"
#include "plugin/transport.h"
#include "proxy/async_events.h"
#include "proxy/mr_cache.h"

namespace twinpath {

// What the ports of one device context share.
struct Adapter {
  Adapter(const Verbs& verbs, ibv_context* c, ibv_pd* p, const std::string& device)
      : context(c), pd(p), mrs(verbs, p, device), events(verbs, c, device) {}
  ibv_context* context;
  ibv_pd* pd;
  MrCache mrs;
  AsyncEvents events;
};

// One port of a device, as a connection uses it.
struct RailPort {
  const Port* port = nullptr;
  Adapter* adapter = nullptr;
};

// A registration on every rail of a device.
class ProxyMemory final : public Memory {
 public:
  // Whether [data, data + bytes) lies inside what was registered.
  bool covers(const void* data, std::size_t bytes) const {
    const auto at = reinterpret_cast<std::uintptr_t>(data);
    return at >= address && at - address <= length && bytes <= length - (at - address);
  }
  std::uint32_t lkey(int rail) const { return keys_[static_cast<std::size_t>(rail)].lkey; }
  std::uint32_t rkey(int rail) const { return keys_[static_cast<std::size_t>(rail)].rkey; }

  std::uint64_t address = 0;
  std::size_t length = 0;
  MemoryType type = MemoryType::host;
  int device = -1;

 private:
  friend class Devices;
  struct Keys {
    std::uint32_t lkey = 0, rkey = 0;
    MrRegion* region = nullptr;
    MrCache* cache = nullptr;
  };
  std::array<Keys, kMaxRails> keys_{};
};

class Devices {
 public:
  Devices(std::unique_ptr<Fabric> fabric, const Config& config);
  ~Devices();

  const Config& config() const { return config_; }
  const Verbs& verbs() const { return fabric_->verbs; }

  std::size_t count() const;
  Result<DeviceProps> properties(int index) const;
  Result<int> merge(std::span<const int> members);
  // The ports of a device; empty for an index out of range.
  std::vector<RailPort> rails(int index) const;

  Result<Memory*> register_memory(int device, void* data, std::size_t bytes, MemoryType type,
                                  std::uint64_t dmabuf_offset, int dmabuf_fd);
  Status deregister_memory(Memory* memory);

 private:
  void release(ProxyMemory& memory);

  std::unique_ptr<Fabric> fabric_;
  const Config config_;
  std::vector<std::unique_ptr<Adapter>> adapters_;
  std::vector<RailPort> ports_;
  mutable std::mutex mutex_;
  std::vector<DeviceProps> devices_;  // members = indices into ports_
  std::mutex memory_mutex_;
  // NCCL may give a registration back through another comm of the device, or not at all.
  std::unordered_map<Memory*, std::unique_ptr<ProxyMemory>> memories_;
};

// How a merged device stands in for its members.  Pure.
DeviceProps merge_properties(std::span<const DeviceProps> members);

}  // namespace twinpath
