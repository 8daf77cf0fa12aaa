#pragma once
// Requests of a comm: up to N of them in one piece of memory, each made when it is first needed, so
// that an idle comm has touched none.  The one given back last is taken first: its lines are warm.
//
// T has a `std::uint16_t next_free_` that the pool may set.
//
// Threads: which are free is known to one thread at a time, the comm's caller.  at() and made() are
// for whoever holds the lock under which take() makes one.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace twinpath {

template <class T, std::uint16_t N>
class SlotPool {
 public:
  static constexpr std::uint16_t kNone = 0xffff;

  SlotPool() : memory_(static_cast<std::byte*>(::operator new(sizeof(T) * N, kAlign))) {}
  ~SlotPool() {
    for (std::uint16_t i = 0; i < made_; ++i) at(i).~T();
  }
  SlotPool(const SlotPool&) = delete;
  SlotPool& operator=(const SlotPool&) = delete;

  // One that was given back; null when there is none, which says nothing of those not made yet.
  T* take_again() {
    if (free_ == kNone) [[unlikely]]
      return nullptr;
    T& t = at(free_);
    free_ = t.next_free_;
    return &t;
  }
  // Null when all are in use.  `make(place, slot)` builds one in place.
  template <class Make>
  T* take(Make&& make) {
    if (T* again = take_again()) return again;
    if (made_ == N) return nullptr;
    T* t = make(static_cast<void*>(memory_.get() + sizeof(T) * made_), made_);
    ++made_;
    return t;
  }
  void give(T& t) {
    t.next_free_ = free_;
    free_ = static_cast<std::uint16_t>(&t - &at(0));
  }
  bool full() const { return free_ == kNone && made_ == N; }
  // Another number after one was taken or given back.
  std::uint16_t next() const { return free_; }
  // Counts: not for the data path, and for the caller only.
  int used() {
    int n = made_;
    for (std::uint16_t slot = free_; slot != kNone; slot = at(slot).next_free_) --n;
    return n;
  }
  // One that was made before.
  T& at(std::size_t slot) { return *std::launder(reinterpret_cast<T*>(memory_.get()) + slot); }
  bool made(std::size_t slot) const { return slot < made_; }

 private:
  static constexpr std::align_val_t kAlign{alignof(T)};
  struct Free {
    void operator()(std::byte* p) const { ::operator delete(p, kAlign); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  std::uint16_t free_ = kNone;
  std::uint16_t made_ = 0;
};

}  // namespace twinpath
