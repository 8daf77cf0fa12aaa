#pragma once
// What a transport has: the fabric's adapters and ports, the devices shown to NCCL (each port,
// and those merged from several), and the registrations made on them.
//
// Lives as long as the last session or comm.  Threads: any; adapters and ports never change,
// devices only grow under a mutex.
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "plugin/base/config.h"
#include "plugin/base/counter_page.h"
#include "plugin/fabric/fabric.h"
#include "plugin/rdma/async_events.h"
#include "plugin/rdma/key_range.h"
#include "plugin/rdma/live_ports.h"
#include "plugin/rdma/merged_device.h"
#include "plugin/rdma/mr_cache.h"
#include "plugin/rdma/placement.h"
#include "plugin/rdma/rail.h"
#include "plugin/transport.h"

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

class Mirror;

// What messages from or to GPU memory need: the memory itself registered, host memory that stands
// in for it (staging.h), or both, as it depends on the size.
enum class Staging : std::uint8_t { never, some, always };

// A registration on every rail of a device, and on standby rails from when one is first needed.
// Of keys those are read only that stood when the reader's queues were made.
class ProxyMemory final : public Memory {
 public:
  // Whether [data, data + bytes) lies inside what was registered.
  bool covers(const void* data, std::size_t bytes) const {
    // Before the beginning is far behind the end.
    const std::uintptr_t at = reinterpret_cast<std::uintptr_t>(data) - address;
    return bytes <= length && at <= length - bytes;
  }
  // Whether it does, and is host memory, which needs no decision.
  bool plainly_covers(const void* data, std::size_t bytes, int on_device) const {
    return plain_device_ == on_device && covers(data, bytes);
  }
  std::uint32_t lkey(int rail) const { return keys_[static_cast<std::size_t>(rail)].lkey; }
  std::uint32_t rkey(int rail) const { return keys_[static_cast<std::size_t>(rail)].rkey; }

  std::uint64_t address = 0;
  std::size_t length = 0;
  MemoryType type = MemoryType::host;
  int device = -1;
  bool direct = true;              // has keys; else the mirror alone has
  std::shared_ptr<Mirror> mirror;  // null: not staged

 private:
  friend class Devices;
  int plain_device_ = -1;  // `device` of host memory with keys, else none
  struct Keys {
    std::uint32_t lkey = 0, rkey = 0;
    MrRegion* region = nullptr;
    MrCache* cache = nullptr;
  };
  std::array<Keys, kMaxRails> keys_{};  // those of standby rails behind the device's own
};

// Who reads or writes memory of registrations by the CPU, or will have an adapter do so: the comms.
class MemoryUser {
 public:
  // That registration is being given back, through whichever comm: what waits to be sent from it
  // leaves, and once this returns no CPU reads or writes its memory for this user.  Any thread;
  // takes the hub's lock.
  virtual void give_up(const ProxyMemory& memory) = 0;

 protected:
  ~MemoryUser() = default;
};

class Devices {
 public:
  // Without a placement: this machine's.  Without a page nothing is counted for readers.
  Devices(std::unique_ptr<Fabric> fabric, const Config& config,
          std::optional<PlacementSource> placement = std::nullopt,
          std::shared_ptr<CounterPage> counters = nullptr);
  ~Devices();

  const Config& config() const { return config_; }
  const Verbs& verbs() const { return fabric_->verbs; }

  std::size_t count() const;
  // A place for that connection's counts, among others' or of its own.
  ConnectionCounts count(const counters::Identity& who) const {
    return counters_ != nullptr ? counters_->open(who) : ConnectionCounts();
  }
  // May be null.
  const std::shared_ptr<CounterPage>& counters() const { return counters_; }
  std::uint8_t counted_port(const std::string& name) const {
    return counters_ != nullptr ? counters_->port(name) : std::uint8_t{0};
  }
  // As the calling thread's GPU sees it: GPUDirect is withdrawn (and the reason logged, once)
  // where an adapter was found to register none of that GPU's memory.
  Result<DeviceProps> properties(int index) const;
  // This end of connections over the device, for the calling thread's GPU.
  Placement::End placement(int index) const;
  // The rails nearest to that GPU.
  std::vector<int> nearest_rails(int index) const;
  Result<int> merge(std::span<const int> members);
  // The ports of a device; empty for an index out of range.
  std::vector<RailPort> rails(int index) const;
  // Its standby rails, the nearest first: ports of the same kind that are no part of it.
  std::vector<RailPort> standby(int index) const;
  // The port as it is now, for a connection that is being made.
  // Of the physical device that the port is.
  int index_of(const RailPort& rail) const;
  Result<LivePort> live(const RailPort& rail, std::string& why) const;
  // Whether a port is active; nothing where it cannot be asked.  A system call.
  std::optional<bool> port_active(const RailPort& rail) const;
  // Empty while the port's adapter can be asked, else that it cannot.  The kernel takes away what
  // an adapter has before it tells of the adapter's end, so that work on it may end in any error
  // first. A system call.
  std::string absence_text(const RailPort& rail) const;
  // Whether a port still has the address that it had.
  bool address_stands(const RailPort& rail, const GidEntry& gid) const {
    return live_.still_there(*rail.port, gid);
  }

  Result<Memory*> register_memory(int device, void* data, std::size_t bytes, MemoryType type,
                                  std::uint64_t dmabuf_offset, int dmabuf_fd,
                                  Staging staging = Staging::never);
  // Registers what this device's memory is, and will be, on that rail if it is a standby one
  // (behind the device's own), as far as that goes: what cannot be (its owner may have freed it
  // without a word) has no key there.  False where some could not for want of room, of the
  // adapter's or under a limit: whoever sends from it or receives into it next would send or
  // receive nothing.
  bool stand_by(int device, int rail);
  // Of memory that was registered here and not given back, the part (itself or its mirror) that
  // has these bytes: its keys by rail or, where `only` names one, that rail's as every key.
  std::optional<KeyRange> key_range(const Memory* memory, std::uint64_t address,
                                    std::uint64_t bytes, int rails, std::optional<int> only) const;
  // Has all users of its device give the memory up.  May wait for copies of staged memory that are
  // under way.
  Status deregister_memory(Memory* memory);
  // From when a comm can be asked to send or receive until it cannot.  Without the hub's lock.
  void attach(int device, MemoryUser& user);
  void detach(const MemoryUser& user);
  // Whether a registration of that device, not given back, has these bytes of host memory.
  bool registered(int device, const void* data, std::size_t bytes) const;

 private:
  Status acquire(ProxyMemory& memory, const std::vector<RailPort>& ports, const MrRequest& request);
  Status acquire(ProxyMemory& memory, MrRequest request, const RailPort& port, std::size_t rail);
  bool needs_keys_early(MrKind kind) const;
  void acquire_early(ProxyMemory& memory, MrRequest request, const RailPort& port,
                     std::size_t rail);
  Status acquire_standby(ProxyMemory& memory, const RailPort& port, std::size_t rail, bool quiet);
  void release(ProxyMemory& memory);
  std::vector<const Port*> ports_of(int index) const;

  std::unique_ptr<Fabric> fabric_;
  const Config config_;
  const std::shared_ptr<CounterPage> counters_;  // may be null
  const std::unique_ptr<Placement> placement_;
  std::vector<std::unique_ptr<Adapter>> adapters_;
  std::vector<RailPort> ports_;
  Planes planes_;  // of the ports
  mutable LivePorts live_;
  mutable std::mutex mutex_;
  std::vector<DeviceProps> devices_;                                // members = indices into ports_
  mutable std::set<std::string> refusals_;                          // told already
  mutable std::unordered_map<int, std::vector<RailPort>> standby_;  // by device, once asked
  mutable std::mutex memory_mutex_;
  // By device: standby rails that were used, and those of which a failure was told, a bit each.
  struct StandingBy {
    std::uint32_t used = 0, told = 0;
  };
  std::unordered_map<int, StandingBy> standing_by_;
  // NCCL may give a registration back through another comm of the device, or not at all.
  std::unordered_map<Memory*, std::unique_ptr<ProxyMemory>> memories_;
  // Held while they are asked.  Taken before a hub's lock, which is taken before memory_mutex_.
  std::mutex users_mutex_;
  struct User {
    int device;
    MemoryUser* user;
  };
  std::vector<User> users_;
};

// A device's ports and their addresses as they are now.  Logs what is wrong with one that has none.
Result<std::vector<Rail>> choose_rails(const Devices& devices, int device);

}  // namespace twinpath
