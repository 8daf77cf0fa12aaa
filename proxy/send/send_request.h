#pragma once
// A message of a send comm, from its isend until its test has said that it is done, and what it
// takes to send it again.
//
// Threads: under the hub's lock.  Its owner reads pending() without it; `active_` and `next_free_`
// are the owner's own.
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "plugin/base/sync.h"
#include "plugin/rdma/devices.h"
#include "plugin/transport.h"
#include "proxy/queues/completion_engine.h"
#include "proxy/queues/parcel_pool.h"
#include "proxy/queues/slot_pool.h"

namespace twinpath {

class ProxySendComm;

class alignas(kCacheLine) SendRequest final : public Request {
 public:
  static constexpr std::uint16_t kNone = 0xffff;  // no slot
  enum Mark : std::uint8_t {
    kChunked = 1,   // staged, in several writes on one queue
    kTimed = 2,     // how long it takes is counted
    kUnnoted = 4,   // the receiver gets no notice of it
    kStaged = 8,    // from its memory's mirror
    kPaced = 16,    // its pieces are measured
    kWatched = 32,  // its flight is told of them
  };

  SendRequest(ProxySendComm* comm, std::uint64_t wr_id) : comm_(comm), wr_id_(wr_id) {}
  ~SendRequest() = default;
  Status test(int& done, int* sizes) override;
  std::size_t parts(std::span<Part, kMaxParts> out) const override;
  std::uint32_t parts_left() const override;

  // A new use of it: completions of earlier ones find another number.  `seq`: of its cell.
  void begin(const void* data, std::size_t bytes, const ProxyMemory* memory, std::uint64_t seq,
             std::uint16_t before = kNone) {
    bytes_ = static_cast<std::uint32_t>(bytes);
    data_ = static_cast<const std::uint8_t*>(data);
    memory_ = memory;
    cell_ = static_cast<std::uint32_t>(seq);
    renumber();
    pending_.store(1, std::memory_order_relaxed);
    active_ = true;
    marks_ = 0;
    before_ = before;
  }
  // What its old queue may still say of it finds another number.
  void renumber() { wr_id_ += std::uint64_t{1} << 48; }
  std::uint64_t wr_id() const { return wr_id_; }
  std::uint16_t slot() const { return slot_of(wr_id_); }
  std::uint32_t bytes() const { return bytes_; }
  const std::uint8_t* data() const { return data_; }
  const ProxyMemory* memory() const { return memory_; }
  // Low half of its cell's number.
  std::uint32_t cell() const { return cell_; }
  // Slot of the one before it in its batch, or kNone.
  std::uint16_t before() const { return before_; }

  // Writes without completion.
  std::uint8_t pending() const { return pending_.load(std::memory_order_relaxed); }
  // To be seen with what happened before: at 0 its owner may use the memory again.  No atomic
  // read-modify-write, for only holders of the lock write it.
  void set_pending(int n) {
    pending_.store(static_cast<std::uint8_t>(n), std::memory_order_release);
  }
  bool is(Mark mark) const { return (marks_ & mark) != 0; }
  bool marked() const { return marks_ != 0; }
  void mark(Mark mark) { marks_ |= mark; }
  void unmark(Mark mark) { marks_ &= static_cast<std::uint8_t>(~mark); }
  // It has bytes, and their memory has gone.
  bool forgotten() const { return memory_ == nullptr && bytes_ != 0; }

 private:
  friend class ParcelBlocks;
  friend class ProxySendComm;
  friend class SendRequests;
  template <class T, std::uint16_t N>
  friend class SlotPool;
  // Of one that is done.
  TP_ALWAYS_INLINE Status finish(int& done, int* sizes);

  ProxySendComm* const comm_;
  std::uint64_t wr_id_;
  std::uint32_t bytes_ = 0;
  std::uint32_t cell_ = 0;
  const std::uint8_t* data_ = nullptr;
  const ProxyMemory* memory_ = nullptr;
  std::uint16_t before_ = kNone;
  std::uint16_t block_ = kNoBlock;  // of the parcel whose completion this one gets
  std::uint16_t next_free_ = 0;
  std::uint8_t pool_ = 0;  // rail of that block
  std::atomic<std::uint8_t> pending_{0};
  bool active_ = false;
  std::uint8_t marks_ = 0;
  bool small_ = false;  // its completion is what others are held for
};
static_assert(sizeof(SendRequest) == kCacheLine);

}  // namespace twinpath
