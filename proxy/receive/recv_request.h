#pragma once
// A receive of up to kMaxRecvs buffers: what is awaited for each of them and what has come.
//
// Threads: under the hub's lock.  But for the test of one that is done: `left_` says so without the
// lock, and which requests are free is the caller's own affair.
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <cstring>

#include "plugin/base/sync.h"
#include "plugin/transport.h"
#include "proxy/queues/slot_pool.h"
#include "proxy/wire/cts.h"

namespace twinpath {

class Arrivals;
class ProxyRecvComm;

class alignas(kCacheLine) RecvRequest final : public Request {
 public:
  RecvRequest(ProxyRecvComm* comm, std::uint32_t slot) : comm_(comm), bits_(slot) {}
  ~RecvRequest() = default;
  Status test(int& done, int* sizes) override;
  std::size_t parts(std::span<Part, kMaxParts> out) const override;
  std::uint32_t parts_left() const override;

  // Whether a parcel may bring a buffer's message: straight to it, or to the mirror before it.
  // Gone: its memory was given back, and no CPU may write there.
  enum class Copied : std::uint8_t { never, straight, to_mirror, gone };
  // A buffer of the receive.  The peer may not be believed: what lies where stands here.
  struct Sub {
    std::uint8_t* to = nullptr;
    std::uint32_t capacity = 0;
    struct State {
      std::uint8_t expected = 0;  // chunks; 0 until the first arrives
      std::uint8_t arrived = 0;
      Copied copied = Copied::never;
      bool sized = false;  // a chunk has left the message's size in the box
      bool complete() const { return expected != 0 && arrived == expected; }
      // All of it in one comparison, since it is asked for each message of a parcel.  Those behind
      // the receive's last buffer are not awaited: of a receive of several all have come before its
      // request is used again.
      bool awaits(Copied how) const {
        return std::bit_cast<std::uint32_t>(*this) == std::bit_cast<std::uint32_t>(fresh(how));
      }
      static constexpr State fresh(Copied how) { return {0, 0, how, false}; }
      static constexpr State whole() { return {1, 1, Copied::never, false}; }
      // In one store.
      void become(State next) {
        const auto bits = std::bit_cast<std::uint32_t>(next);
        std::memcpy(static_cast<void*>(this), &bits, sizeof bits);
      }
    } state;
    void expect(std::uint8_t* at, std::uint32_t most, Copied how) {
      to = at;
      capacity = most;
      state.become(State::fresh(how));
    }
  };

  // A new use of it: answers to earlier ones bring another generation.
  // `staged`: a bit for each buffer that lands in its mirror first.
  void begin(unsigned count, unsigned staged, bool optional) {
    bits_ = (bits_ + (1u << 9)) & kReceiveBits;
    count_ = static_cast<std::uint8_t>(count);
    set_left(optional ? 0 : count);
    staged_ = static_cast<std::uint8_t>(staged);
    optional_ = optional;
    active_ = true;
  }
  Sub& sub(std::size_t index) { return subs_[index]; }
  // Of its first buffer; the others' are behind it.
  void set_first_cell(std::uint64_t seq) { first_cell_ = seq; }
  // The receive bits of its cells and their answers, but for the part's.
  std::uint32_t bits() const { return bits_; }
  int slot() const { return CellMeta(bits_).slot(); }
  // Subs not complete; none of a receive without completion.  Locked; the caller's test() reads it
  // without the lock.
  unsigned left() const { return left_.load(std::memory_order_relaxed); }
  // To be seen with what has arrived.  Only holders of the lock write it.
  void set_left(unsigned n) {
    left_.store(static_cast<std::uint8_t>(n), std::memory_order_release);
  }
  // Bytes that came for that buffer.
  std::uint32_t size(std::size_t index) const { return sizes_[index]; }

 private:
  friend class Arrivals;
  friend class ProxyRecvComm;
  template <class T, std::uint16_t N>
  friend class SlotPool;
  // Of one that is done.
  TP_ALWAYS_INLINE Status finish(int& done, int* sizes);

  ProxyRecvComm* const comm_;
  std::uint64_t first_cell_ = 0;
  std::uint32_t bits_;  // slot and generation, as in a cell
  std::uint8_t count_ = 0;
  std::atomic<std::uint8_t> left_{0};
  std::uint8_t staged_ = 0;  // a bit for each sub that lands in its mirror first
  bool optional_ = false;
  bool active_ = false;  // the caller's own
  std::uint16_t next_free_ = 0;
  // Bytes of each that have come, once some have.
  std::array<std::uint32_t, kMaxRecvs> sizes_{};
  std::array<Sub, kMaxRecvs> subs_{};
  // Of each with several chunks: a bit for each queue that brought one.
  std::array<std::uint32_t, kMaxRecvs> queues_{};
};
static_assert(kMaxRecvs <= 8 && sizeof(RecvRequest) <= 4 * kCacheLine);

}  // namespace twinpath
