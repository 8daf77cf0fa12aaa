#pragma once
// The requests of a sender: which messages are under way, and which of them a completion ends.
//
//   by itself     its own completion ends it, or the last one of its pieces
//   in a batch    the completion of the last message ends all: each keeps the slot of the one
//                 before it
//
// Threads: which are free is the caller's own affair (SlotPool); the rest under the hub's lock.
#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

#include "proxy/connect/failover.h"
#include "proxy/queues/depths.h"
#include "proxy/send/send_request.h"

namespace twinpath {

class SendRequests {
 public:
  // `wr_base`: wr_id of slot 0 before its first use.
  SendRequests(ProxySendComm* comm, std::uint64_t wr_base) : comm_(comm), wr_base_(wr_base) {}

  // --- the caller's
  SendRequest* take_again() { return pool_.take_again(); }
  // Null when all are in use.
  SendRequest* take() {
    return pool_.take([this](void* at, std::uint16_t slot) {
      return new (at) SendRequest(comm_, wr_base_ | std::uint64_t{slot} << 36);
    });
  }
  void give(SendRequest& r) { pool_.give(r); }
  bool full() const { return pool_.full(); }
  // Slot of the one that take_again() gives.
  std::uint16_t next() const { return pool_.next(); }
  int used() { return pool_.used(); }

  // --- locked
  bool made(std::size_t slot) const { return pool_.made(slot); }
  SendRequest& at(std::size_t slot) { return pool_.at(slot); }
  // The one that this completion is of; null: of none, or of an earlier use.
  SendRequest* find(std::uint64_t wr_id) {
    const std::uint16_t slot = slot_of(wr_id);
    return made(slot) && at(slot).wr_id_ == wr_id ? &at(slot) : nullptr;
  }
  // Those before it in its batch have no completion of their own, and stay pending until now.
  void end_batch(SendRequest& last) {
    for (std::uint16_t slot = std::exchange(last.before_, SendRequest::kNone);
         slot != SendRequest::kNone;) {
      SendRequest& r = at(slot);
      r.set_pending(0);
      slot = r.before_;
    }
  }
  // Calls `f(request)` for each that was made, or that is under way.
  template <class F>
  void for_all(F&& f) {
    for (std::uint16_t slot = 0; made(slot); ++slot) f(at(slot));
  }
  template <class F>
  void for_pending(F&& f) {
    for_all([&](SendRequest& r) {
      if (r.pending() != 0) f(r);
    });
  }
  // Every write tells by its completion that it has arrived, or the last of its batch does.
  AtRisk at_risk() {
    AtRisk risk;
    for_pending([&](const SendRequest& r) {
      risk.any = true;
      risk.bytes += r.bytes_;
    });
    risk.mark = ++looks_;
    return risk;
  }
  // That memory goes: what is under way out of it cannot be sent again.  Whether anything is.
  bool forget(const ProxyMemory& memory) {
    bool any = false;
    for_pending([&](SendRequest& r) {
      if (r.memory_ != &memory || r.bytes_ == 0) return;
      r.memory_ = nullptr;
      any = true;
    });
    return any;
  }
  // It is sent anew, by itself, over other queues.
  void restart(SendRequest& r) {
    r.renumber();
    r.before_ = SendRequest::kNone;
    r.small_ = false;
    r.marks_ &= SendRequest::kUnnoted | SendRequest::kStaged;
  }

 private:
  ProxySendComm* const comm_;
  const std::uint64_t wr_base_;
  SlotPool<SendRequest, kSendSlots> pool_;
  std::uint64_t looks_ = 0;  // at what is at risk
};

}  // namespace twinpath
