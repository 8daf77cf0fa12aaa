#pragma once
// UPPER SEAM: what a transport offers.  plugin/nccl translates NCCL's tables to this and knows
// nothing below it; a transport knows nothing of NCCL's types.
//
// Threads: NCCL calls listen, connect, accept, registration and close from its service thread
// and isend, irecv, iflush, test from its progress thread, on the same comm at the same time.
// Several ranks of one process do so at once on different comms.  Each class says what it
// allows.  Nothing here blocks, except Transport::open.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "plugin/base/config.h"
#include "plugin/base/limits.h"
#include "plugin/base/status.h"

namespace twinpath {

// What NCCL learns of a device.  Strings live as long as the Transport.
struct DeviceProps {
  std::string name;
  std::string pci_path;     // empty: none
  std::uint64_t guid = 0;   // unique per device, never 0
  bool gpu_direct = false;  // regMr accepts CUDA pointers
  bool dmabuf = false;      // regMrDmaBuf works
  int speed_mbps = 0;       // sum over the merged ports
  int port = 1;
  int rail_id = -1;      // of NCCL_IB_HCA; -1: not named, or merged ports differ
  int plane_id = -1;     // the same; of merged ports a value that no single port has
  float latency_us = 0;  // 0: NCCL's default
  int max_comms = 65536;
  int max_recvs = kMaxRecvs;
  bool force_flush = false;
  // Whether a comm of the device takes memory that was registered with another: not where comms may
  // be over other devices than NCCL named.
  bool global_memory = true;
  std::size_t max_message_bytes = 0;  // in (0, 1 TiB]
  std::vector<int> members;           // physical device indices; itself for a plain device
};

enum class MemoryType { host, cuda };

// A registration, valid on the comm (and by the MR cache on every comm of its device).
class Memory {
 public:
  virtual ~Memory() = default;
};

// What is over, for whoever keeps it (Request::test has it the way NCCL asks for it).
struct Completion {
  bool done = false;
  int count = 0;                             // sub-receives (1 for a send, 0 for a flush)
  std::array<std::size_t, kMaxRecvs> bytes;  // really moved, in posting order; `count` of them
};

// A size as NCCL can be told it.
constexpr int told_size(std::size_t bytes) {
  constexpr std::size_t most = std::numeric_limits<int>::max();
  return static_cast<int>(std::min(bytes, most));
}

// What one rail carries of a send, or one buffer of a receive.
struct Part {
  int device = -1;          // index of the physical device; -1: not known
  std::uint32_t queue = 0;  // number of the queue pair; 0: not settled when the operation began
  std::uint64_t id = 0;     // of the operation in the queue's work requests
  std::size_t bytes = 0;    // of a receive what there is room for
  int buffer = 0;           // which one of the receive's
};
// There is one for each rail, or for each buffer.
inline constexpr std::size_t kMaxParts = std::max(kMaxRails, kMaxRecvs);

// A started operation.  Owned by its comm; dead once test() reported done or an error.
class Request {
 public:
  // Never blocks.  `done`: 1 once it is over, else 0.  Only then `sizes`, if not null, has for each
  // part what was really moved (told_size), in posting order: 1 of a send, as many as were posted
  // of a receive, none of a flush.  An error names the peer in the log (once per comm).
  virtual Status test(int& done, int* sizes) = 0;
  Status test(Completion& out) {
    int done = 0;
    std::array<int, kMaxRecvs> sizes;
    sizes.fill(-1);
    const Status status = test(done, sizes.data());
    out.done = done != 0;
    out.count = 0;
    for (const int size : sizes)
      if (out.done && size >= 0)
        out.bytes[static_cast<std::size_t>(out.count++)] = static_cast<std::size_t>(size);
    return status;
  }
  // Of a receive, or of a send behind watch_next(): by the thread that started it, before it is
  // done: how it goes over the network, as it was when it began (a failure may have it go another
  // way). How many there are.
  virtual std::size_t parts(std::span<Part, kMaxParts>) const { return 0; }
  // A bit for each of them that is not known to have arrived.
  virtual std::uint32_t parts_left() const { return ~0u; }

 protected:
  ~Request() = default;
};

// What the user of the seam keeps with one of its objects; it ends with that.
class Companion {
 public:
  virtual ~Companion() = default;
};

class Comm {
 public:
  // Closing with requests outstanding or a dead peer is allowed and never waits for the peer.
  virtual ~Comm() = default;
  // Any thread, also while the progress thread moves data.  dmabuf_fd -1: plain registration.
  virtual Result<Memory*> register_memory(void* data, std::size_t bytes, MemoryType type,
                                          std::uint64_t dmabuf_offset, int dmabuf_fd) = 0;
  virtual Status deregister_memory(Memory* memory) = 0;

  std::unique_ptr<Companion> companion;
};

class SendComm : public Comm {
 public:
  // Status::again (and null request): no clear-to-send yet or all request slots busy; call
  // again with the same arguments.  `data` stays valid and registered until done.  bytes may
  // be 0, then memory may be null.  One thread at a time.
  virtual Status isend(void* data, std::size_t bytes, int tag, Memory* memory,
                       Request** request) = 0;
  // parts() of the request that the next isend makes will be asked for.  By the thread of isend,
  // before each such call, one that said `again` included.
  virtual void watch_next() {}
};

struct RecvBuffer {
  void* data = nullptr;
  std::size_t bytes = 0;  // capacity
  int tag = 0;
  Memory* memory = nullptr;
};

// The buffers of one receive as NCCL has them: arrays of `count`, none of them null.
struct RecvBuffers {
  std::size_t count = 0;
  void* const* data = nullptr;
  const std::size_t* bytes = nullptr;  // capacities
  const int* tags = nullptr;
  void* const* memories = nullptr;  // each a Memory* of the comm, or null

  Memory* memory(std::size_t i) const { return static_cast<Memory*>(memories[i]); }
};

class RecvComm : public Comm {
 public:
  // Posts 1..kMaxRecvs receives as one request.  `completion_optional`: the caller does not need
  // to learn that the data arrived (NCCL's LL protocols carry flags in the data).
  virtual Status irecv(const RecvBuffers& buffers, bool completion_optional, Request** request) = 0;
  Status irecv(std::span<const RecvBuffer> buffers, bool completion_optional, Request** request) {
    std::array<void*, kMaxRecvs> data, memories;
    std::array<std::size_t, kMaxRecvs> bytes;
    std::array<int, kMaxRecvs> tags;
    for (std::size_t i = 0; i < std::min(buffers.size(), data.size()); ++i) {
      data[i] = buffers[i].data;
      memories[i] = buffers[i].memory;
      bytes[i] = buffers[i].bytes;
      tags[i] = buffers[i].tag;
    }
    return irecv({buffers.size(), data.data(), bytes.data(), tags.data(), memories.data()},
                 completion_optional, request);
  }
  // Makes earlier received data visible to the GPU; request null = nothing to do.
  virtual Status iflush(std::span<const RecvBuffer> buffers, Request** request) = 0;
};

class Listener {
 public:
  virtual ~Listener() = default;
  // Status::again while no peer has finished its handshake.  May be called again after a
  // success: a listener serves any number of peers.  Comms outlive it.
  virtual Status accept(std::unique_ptr<RecvComm>& comm) = 0;

  std::unique_ptr<Companion> companion;
};

// Settings of one communicator (ncclNetCommConfig): -1 = not set.
struct CommSettings {
  std::uint64_t comm_id = 0;
  int traffic_class = -1;
  // The Context's number of the session, from 1, for a process that is several ranks of one
  // communicator: they have the id in common.  0: no communicator's own.
  std::uint16_t serial = 0;
};

// What the user of a session is about to do, as far as it knows.
struct TrafficHints {
  struct Range {
    int least = 0, most = 0;  // 0: not known
  };
  bool point_to_point = false;  // and nothing else
  Range peers, connections;     // that it sends to at once, and to each of them
  // As it is of the transfer that comes; a wider range is what may come over a connection.
  bool exact() const {
    return peers.most > 0 && peers.least == peers.most && connections.least == connections.most;
  }
};

// The per-communicator view of a transport (NCCL's ctx); splits may share one.
class Session {
 public:
  virtual ~Session() = default;
  // Fills the 128-byte handle that NCCL carries to the peer.
  virtual Status listen(int device, std::span<std::uint8_t, kHandleBytes> handle,
                        std::unique_ptr<Listener>& listener) = 0;
  // Non-blocking: Status::again until the handshake is done, to be called with the same handle
  // buffer (it holds the connection's state between calls).
  virtual Status connect(int device, std::span<std::uint8_t, kHandleBytes> handle,
                         std::unique_ptr<SendComm>& comm) = 0;
  // Any thread, also from the progress thread between two sends.
  virtual void expect(const TrafficHints&) {}
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::size_t device_count() const = 0;             // grows by make_virtual_device only
  virtual Result<DeviceProps> device(int index) const = 0;  // bad_argument when out of range
  // Merges physical devices (1..kMaxRails indices) into one; gives the new device's index.
  virtual Result<int> make_virtual_device(std::span<const int> members) = 0;
  virtual Result<std::unique_ptr<Session>> open_session(const CommSettings& settings) = 0;
};

}  // namespace twinpath
