#pragma once
// The counters of one process as they lie in shared memory, for readers in other processes: one
// page that the plugin writes (counter_page.h) and that readers map read-only (tools/counters).
//
// Layout: a Process, in which its communicators have their names, and from `connections_at` on
// `capacity` Connections of which the first `used` were ever in use.  Whoever changes any of it
// raises kVersion; a reader refuses another version.
//
// Threads: each number has one writer at a time, unless it says otherwise, and any readers.  The
// writer's stores are relaxed: numbers are independent of each other, a reader may see one before
// another, and each only whole. What must fit together (who a connection is, and what its counts
// start from; who a communicator is) is under a `sequence` of its own: odd while it is changed,
// another even number afterwards.
#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "plugin/base/limits.h"

namespace twinpath::counters {

// Of the memfd; readers look for it in /proc/PID/fd.
inline constexpr const char* kMemoryName = "twinpath-counters";
inline constexpr std::uint64_t kMagic = 0x73746e756f435054;  // "TPCounts"
inline constexpr std::uint32_t kVersion = 7;
// Connections of a process that are counted one by one.
inline constexpr std::uint32_t kMaxConnections = 8192;
// Communicators that are told by name, those that have ended among them; a process that has more at
// a time leaves the rest unnamed.
inline constexpr std::uint32_t kMaxCommunicators = 128;
// Whether what connections carry and wait for is counted.  Not in a build made to measure what that
// costs (meson_options.txt): all of it stays 0 there, and tests that look at it fail.
#ifdef TWINPATH_NO_CONNECTION_COUNTS
inline constexpr bool kConnectionCounts = false;
#else
inline constexpr bool kConnectionCounts = true;
#endif
inline constexpr std::uint32_t kNoRank = ~std::uint32_t{0};

template <class T>
class Number {
 public:
  Number() = default;
  Number(const Number&) = delete;
  Number& operator=(const Number&) = delete;
  T get() const {
    // C++20 has no atomic_ref of what is const; nothing is written here.
    return std::atomic_ref<T>(const_cast<T&>(value_)).load(std::memory_order_relaxed);
  }
  void set(T value) { std::atomic_ref<T>(value_).store(value, std::memory_order_relaxed); }
  // No atomic read-modify-write, for there is one writer at a time; and the writer's own look at it
  // need not be atomic: nobody else changes it, and an earlier writer has released a lock since.
  void add(T n) { set(static_cast<T>(value_ + n)); }

 private:
  static_assert(std::atomic_ref<T>::is_always_lock_free &&
                std::atomic_ref<T>::required_alignment <= alignof(T));
  T value_ = 0;
};
using Count = Number<std::uint64_t>;

template <std::size_t N>
using Name = std::array<char, N>;  // ends with 0

// What a connection waits for while its caller asks in vain.
enum class Wait : std::uint8_t {
  peer_cts,   // sender: the peer has offered no buffer
  peer_data,  // receiver: buffers are offered, and nothing has come
  network,    // sender: posted, and the adapter has not said that it arrived
  flush,      // receiver: a read through the adapter that makes data visible to the GPU
  gpu_copy,   // a copy between GPU and host memory
  slots,      // all requests of the connection are in use
};
inline constexpr std::size_t kWaits = 6;
inline constexpr std::array<const char*, kWaits> kWaitNames{"peer_cts", "peer_data", "network",
                                                            "flush",    "gpu_copy",  "slots"};

// Bucket b counts what took less than 1024 << b ns, and not less than the bucket before; the last
// one also all that took longer.
inline constexpr std::size_t kBuckets = 24;
constexpr std::size_t bucket_of(std::uint64_t ns) {
  const auto b = static_cast<std::size_t>(std::bit_width(ns >> 10));
  return b < kBuckets ? b : kBuckets - 1;
}

// Of ibv_wc_status; others count as the last.
inline constexpr std::size_t kStatuses = 24;
// One message of so many is timed: of small ones, which the clock would make dearer, and of others.
inline constexpr std::uint64_t kTimedSmall = 512, kTimedLarge = 32;
inline constexpr std::size_t kSmallBytes = 4096;

enum class State : std::uint32_t { none, open, lost, closed };
enum class Role : std::uint8_t { sender, receiver };

// Who a connection is.  A connection that is like a closed one goes on with its counts.
struct Identity {
  Name<64> peer_host{};
  Name<64> peer_device{};
  Name<16> peer_gpu{};
  Name<64> device{};
  Name<16> gpu{};
  Name<24> path{};                 // "PROXY-GDR"; "HOST" where neither end has a GPU
  Name<160> reason{};              // codes of topology/DECISIONS.md
  std::uint64_t communicator = 0;  // NCCL's commId; 0: not told
  std::uint32_t peer_pid = 0;
  std::uint16_t session = 0;  // CommSettings::serial
  Role role = Role::sender;
  std::uint8_t rails = 1;                       // those in reserve too
  std::uint8_t standby = 0;                     // so many at the end are in reserve
  std::array<std::uint8_t, kMaxRails> ports{};  // by rail: index into Process::ports
  friend bool operator==(const Identity&, const Identity&) = default;
};

struct alignas(64) Rail {
  Count bytes;
  Count messages;  // of the connection, as of the last one that this rail carried
  Count timed_ns;  // of the timed messages: from posting to completion
  std::array<Number<std::uint32_t>, kBuckets> buckets;
  Number<std::uint32_t> permille;  // sender of several rails: its share of messages that are cut
};

struct alignas(64) Connection {
  std::atomic<std::uint32_t> sequence{0};
  Number<std::uint32_t> state;  // a State
  Identity identity;
  std::uint64_t messages_before = 0;  // of earlier connections like this one

  // Written while the caller asks in vain, once a tick of the system's coarse clock (1 to 4 ms).
  alignas(64) Number<std::int64_t> looked_at;  // CLOCK_MONOTONIC, ns
  Number<std::int64_t> since;                  // nothing has moved since then
  Number<std::uint32_t> in_flight;             // requests
  Number<std::uint32_t> waits_for;             // a Wait
  std::array<Count, kWaits> waited_ns;
  Count staged_bytes;
  // Times that all its queues were replaced, how long it stood still for that, and at most.
  Count failovers, stopped_ns, longest_stop_ns;
  std::array<Number<std::uint32_t>, kStatuses> errors;  // failed completions, by ibv_wc_status
  std::array<Rail, kMaxRails> rails;

  // Since messages_before.  They are numbered, so the rail that carried the last one has the most.
  std::uint64_t messages() const {
    std::uint64_t most = 0;
    for (const Rail& r : rails) most = std::max(most, r.messages.get());
    return most;
  }
};

enum class CommunicatorState : std::uint32_t { none, living, ended };

// Who a rank of this process is in a communicator, as NCCL's profiler interface tells it.  A
// process with several GPUs may be several ranks of one communicator: they have its id in common.
struct CommunicatorIdentity {
  std::uint64_t id = 0;       // NCCL's commId, as in Identity
  std::uint16_t session = 0;  // of its connections (Identity); 0: none is known to be its own
  std::uint32_t rank = kNoRank;
  std::uint32_t ranks = 0, nodes = 0;
  Name<80> name{};  // empty: its user gave it none
  friend bool operator==(const CommunicatorIdentity&, const CommunicatorIdentity&) = default;
};

// One that has ended keeps its name until another needs the place: connections and readers may be
// later than NCCL's end of it.
struct alignas(64) Communicator {
  std::atomic<std::uint32_t> sequence{0};
  Number<std::uint32_t> state;  // a CommunicatorState
  CommunicatorIdentity identity;
};

// Around every change of who a connection or a communicator is.
template <class Place>
void begin_change(Place& c) {
  c.sequence.store(c.sequence.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  // What follows must not be seen before the odd number.
  std::atomic_thread_fence(std::memory_order_release);
}
// Partner of the reader's acquire: who sees the even number sees all that was changed.
template <class Place>
void end_change(Place& c) {
  c.sequence.store(c.sequence.load(std::memory_order_relaxed) + 1, std::memory_order_release);
}

enum class PortState : std::uint32_t { unknown, up, down };

struct alignas(64) PortCounts {
  Name<64> name{};    // "mlx5_0:1", as NCCL sees it
  Name<64> device{};  // of libibverbs
  std::uint32_t number = 0;
  std::uint32_t speed_mbps = 0;
  Number<std::uint32_t> state;  // a PortState, as of the last event
  Count went_down, came_up, changed_address, failed;
};

// What kernels ask for by themselves (GIN), by kind of work request; a put with a signal is two.
inline constexpr std::size_t kGinOperations = 7;
inline constexpr std::array<const char*, kGinOperations> kGinOperationNames{
    "nop", "write", "write_inline", "fetch_add", "read", "dump", "wait"};
// GPUs of a process whose engines are counted.
inline constexpr std::size_t kMaxGinEngines = 16;

// Times that a queue went over to another port, how long queues stood still for that, and at most.
// Of RMA's any thread that drives one, so these are really added to.
struct MoveCounts {
  std::atomic<std::uint64_t> moves{0}, stopped_ns{0}, longest_ns{0};
  void add(std::uint64_t ns) {
    moves.fetch_add(1, std::memory_order_relaxed);
    stopped_ns.fetch_add(ns, std::memory_order_relaxed);
    std::uint64_t most = longest_ns.load(std::memory_order_relaxed);
    while (most < ns && !longest_ns.compare_exchange_weak(most, ns, std::memory_order_relaxed)) {
    }
  }
};

// Of all queues that a GPU's engine serves (gda/team/engine.h); its thread writes.  What an
// adapter serves by itself is not seen, and counts only when it fails.
struct alignas(64) GinCounts {
  std::int32_t gpu = -1;                         // CUDA ordinal; -1: CPU threads play the GPU
  std::uint32_t place = 0;                       // of the page's; for the writer's side
  std::int64_t since_ns = 0;                     // CLOCK_MONOTONIC: the first engine's beginning
  Count doorbells;                               // times that one was found to have been rung
  std::array<Count, kGinOperations> operations;  // taken from queues
  Count busy_ns;                                 // rounds in which something moved
  Count failed_queues;
  Count released;  // queues whose kernels were let go because nothing would come any more
  MoveCounts moves;
};

// Registrations happen on any thread, so these are really added to.
struct alignas(64) MemoryCounts {
  std::atomic<std::uint64_t> registrations{0}, registered_bytes{0}, hits{0};
};

struct Process {
  std::uint64_t magic = 0;
  std::uint32_t version = 0;
  std::uint32_t connection_bytes = 0;
  std::uint64_t connections_at = 0;
  std::uint32_t capacity = 0;
  std::uint32_t pid = 0;             // in its own namespace
  std::int64_t started_ns = 0;       // CLOCK_MONOTONIC
  std::int64_t started_unix_ns = 0;  // CLOCK_REALTIME
  Name<64> host{};
  Name<64> plugin{};                   // version
  std::atomic<std::uint32_t> used{0};  // released after the connection before it was filled in
  Number<std::uint32_t> ports_used;
  Number<std::uint32_t> uncounted;  // open connections that found no place
  Number<std::int64_t> copied_at;   // a copy that was left behind: when; else 0
  MemoryCounts memory;
  std::array<PortCounts, kMaxPorts> ports;
  std::atomic<std::uint32_t> communicators_used{0};  // as `used`
  Number<std::uint32_t> unnamed;                     // communicators that found no place
  std::array<Communicator, kMaxCommunicators> communicators;
  std::atomic<std::uint32_t> gin_used{0};  // as `used`
  std::array<GinCounts, kMaxGinEngines> gin;
  alignas(64) MoveCounts rma;  // of the host's queues to put and get
};

inline constexpr std::size_t kConnectionsAt = 28672;
static_assert(sizeof(Process) <= kConnectionsAt && sizeof(Connection) == 1792 &&
              sizeof(Communicator) == 128);
inline constexpr std::size_t kPageBytes =
    kConnectionsAt + std::size_t{kMaxConnections} * sizeof(Connection);

}  // namespace twinpath::counters
