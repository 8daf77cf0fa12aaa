#pragma once
// What a queue pair sees of the link to its destination (link.h): its own end, the other's, and
// what it knows of whoever is there.
//
// Threads: whoever holds the queue pair's lock.
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "plugin/fabric/soft/link.h"
#include "plugin/fabric/soft/peer.h"

namespace twinpath::soft {

struct QpLink {
  std::shared_ptr<Link> memory;
  std::shared_ptr<Peer> peer;  // null: destination is in this process
  LinkEnd* mine = nullptr;
  const LinkEnd* theirs = nullptr;  // null also before the peer has given its half
  const LinkEnd* parked = nullptr;  // `theirs` while our port is down
  std::uint8_t* out_ring = nullptr;
  const std::uint8_t* in_ring = nullptr;
  Bell* my_bell = nullptr;
  Bell* their_bell = nullptr;
  Claim* out_claim = nullptr;
  Claim* in_claim = nullptr;
  bool unreachable = false;   // no process answers for the destination
  bool heard = false;         // what was told to the peer's process has been read there
  bool deaf = false;          // takes nothing in
  bool unanswered = false;    // hears no acknowledgement
  bool pull_offered = false;  // the peer was told what we can do for it

  // The other end, also while our port is down; null: it is not there yet.
  const LinkEnd* far() const { return theirs != nullptr ? theirs : parked; }

  // Whether what the other end sends, acknowledgements too, goes to a LID that our port has no
  // more, or what we send to one that its has no more.  The other end is there.
  bool astray_from_there() const { return is_astray(far()->to_lid, mine->lid); }
  bool astray_to_there() const { return is_astray(mine->to_lid, far()->lid); }
  static bool is_astray(const std::atomic<std::uint32_t>& to,
                        const std::atomic<std::uint32_t>& at) {
    const std::uint32_t sent_to = to.load(std::memory_order_relaxed);
    return sent_to != 0 && sent_to != at.load(std::memory_order_relaxed);
  }

  // Takes the own end, `me`, of a link; the other is at `other`, the same where a queue pair is its
  // own destination.  see() follows when that half is there.
  void join(std::shared_ptr<Link> link, std::size_t me, std::size_t other) {
    LinkHalf& own = *link->own(me);
    LinkWords& words = link->words();
    memory = std::move(link);
    mine = &own.end;
    out_ring = own.ring;
    my_bell = &words.bell[me];
    their_bell = &words.bell[other];
    out_claim = &words.claim[me];
    in_claim = &words.claim[other];
  }
  void see(const LinkHalf& half) {
    theirs = &half.end;
    in_ring = half.ring;
  }
  // Tells the other end of our state.
  void show(EndState state) {
    if (mine != nullptr)
      mine->state.store(static_cast<std::uint32_t>(state), std::memory_order_release);
  }
  // The port's link is there or not.  Without `theirs` nothing is sent or received; the peer waits
  // while our end is not `ready`.
  void set_carrier(bool up) {
    if (mine == nullptr) return;
    const auto ready = static_cast<std::uint32_t>(EndState::ready);
    const auto unset = static_cast<std::uint32_t>(EndState::unset);
    std::uint32_t from = up ? unset : ready;
    (void)mine->state.compare_exchange_strong(from, up ? ready : unset, std::memory_order_acq_rel);
    if (!up && theirs != nullptr) parked = std::exchange(theirs, nullptr);
    if (up && parked != nullptr) theirs = std::exchange(parked, nullptr);
  }
  // As before join(); the other end sees that nobody is here any more.
  void leave() {
    show(EndState::closed);
    *this = {};
  }
};

}  // namespace twinpath::soft
