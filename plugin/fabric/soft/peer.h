#pragma once
// Another process of this host and job that we have QPs with: its key table, its process id for
// direct copies, its CUDA allocations as mapped here, and whether it lives.
//
// Between two processes there is a socket in each direction that has QPs to connect; rendezvous.h
// says how they find each other.  Of another process's memory we write its notice board and the
// words of a link, and rubbish there does no harm; all else is mapped read-only.
//
// Threads: any, unless said; what is no atomic is set before `greeted`, by the engine thread.
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "plugin/base/owned.h"
#include "plugin/base/status.h"
#include "plugin/fabric/soft/keys.h"
#include "plugin/fabric/soft/wire.h"
#include "plugin/gpu/engine.h"

namespace twinpath::soft {

// One CUDA allocation of a peer (or of this process), on its way to being reachable here.
struct RemoteAllocation {
  enum class State { requested, ready, failed };
  std::atomic<State> state{State::requested};
  std::shared_ptr<ImportedAllocation> mapping;  // set before state = ready
};

class Peer {
 public:
  // `holds`: what we hold of its keys, to be sent with the greeting.
  Peer(std::uint32_t ours, std::uint32_t its, UniqueFd socket, int epoll, SharedMemory holds)
      : own_slot(ours), slot(its), wire(std::move(socket), epoll), own_holds(std::move(holds)) {}
  const std::uint32_t own_slot, slot;
  std::atomic<bool> dead{false};
  // Set once by the engine when the peer's welcome has come; then immutable.
  std::atomic<bool> greeted{false};
  int pid = 0;
  bool direct = false;  // process_vm_readv/writev works
  KeyView keys;
  Board* board = nullptr;  // its notice board
  Wire wire;               // ours towards it

  // The mapping of one of its allocations; the first call asks for it.  Never blocks: null while
  // it is under way.  `failed` is set when it cannot be had.
  std::shared_ptr<ImportedAllocation> allocation(std::uint64_t alloc_id, std::uint32_t key,
                                                 bool& failed);

  SharedMemory own_holds, key_memory, board_memory;
  std::mutex lock;  // guards allocations
  std::unordered_map<std::uint64_t, std::shared_ptr<RemoteAllocation>> allocations;
};

// A process that has connected to us: what it asks and offers comes from there.  Engine thread.
struct Caller {
  Caller(UniqueFd socket, int epoll) : wire(std::move(socket), epoll) {}
  Wire wire;
  std::uint32_t slot = 0;          // after its greeting
  std::shared_ptr<Holder> holder;  // null before it
};

}  // namespace twinpath::soft
