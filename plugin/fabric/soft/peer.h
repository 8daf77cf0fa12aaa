#pragma once
// Another process of this host and job that we have QPs with: its key table, its process id for
// direct copies, its CUDA allocations as mapped here, and whether it lives.
//
// Rendezvous: every process listens on an abstract UNIX socket named after user, job and a slot
// number; the slot is the upper part of its QP numbers, so a QP number says whom to ask.  The
// kernel removes the name when the process dies, however it dies.
//
// Threads: fields marked E belong to the engine thread (or the holder of Hca::lock_); atomics
// may be read by all.
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "plugin/base/owned.h"
#include "plugin/base/status.h"
#include "plugin/base/unshared_fd.h"
#include "plugin/fabric/soft/keys.h"
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
  ~Peer();
  std::uint32_t slot = 0;
  std::atomic<bool> dead{false};
  // Set once by the engine when the peer's greeting has come; then immutable.
  std::atomic<bool> greeted{false};
  int pid = 0;
  bool direct = false;  // process_vm_readv/writev works
  KeyView keys;
  SharedTables* shared = nullptr;  // its keys and its notice board, mapped

  // The mapping of one of its allocations; the first call asks for it.  Never blocks: null while
  // it is under way.  `failed` is set when it cannot be had.
  std::shared_ptr<ImportedAllocation> allocation(std::uint64_t alloc_id, std::uint32_t key,
                                                 bool& failed);

  UnsharedFd socket;  // ours towards it
  std::mutex lock;    // guards allocations
  std::unordered_map<std::uint64_t, std::shared_ptr<RemoteAllocation>> allocations;
};

// --- messages on the socket (SOCK_SEQPACKET), fixed size, same-host byte order ------------
enum class MessageKind : std::uint32_t {
  greeting = 1,
  offer,
  export_request,
  export_reply,
  gone,
  wake
};

struct Message {
  std::uint32_t magic;
  MessageKind kind;
  std::uint32_t slot;   // sender's
  std::int32_t pid;     // sender's own idea of it
  std::uint64_t a, b;   // offer: source and destination QP; export: allocation id, key
  std::uint64_t probe;  // greeting: address of `probe_value` in the sender
  std::uint64_t probe_value;
  // export_reply
  std::uint32_t export_kind;  // ExportedAllocation::Kind; none = refused
  std::uint32_t reserved;
  std::uint64_t bytes;
  std::uint8_t gpu[16];
  std::uint8_t ipc[64];
};
inline constexpr std::uint32_t kMessageMagic = 0x54505733;  // changes with the layout

bool send_message(int socket, const Message& m, int fd = -1);
// Tells the peer's engine to look at its queues; never blocks.
void send_wake(int socket, std::uint32_t slot);
// ok, again, closed.  A descriptor that came along is put into `fd`.
Status receive_message(int socket, Message& m, UniqueFd& fd);

}  // namespace twinpath::soft
