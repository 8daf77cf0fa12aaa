#pragma once
// What becomes of a queue's operations when its queue pair is gone and another takes over.  Of
// those that were under way nobody here knows how far they came; but the peer knows how many
// signals of the queue it has taken, and a queue pair carries out what it was given in order.  So
// all that was given before the last of these signals has been carried out, and nothing of what
// came after it has been seen by anybody: the bytes of a put are looked at after its signal, or its
// completion.
//
//   kind             before the last signal taken      behind it
//   nop, dump        again: nothing on the wire        again
//   write            applied                           again: the same bytes, the same place
//   signal           applied                           again: its word is the same, too
//   read             again: its answer may be lost     again
//
// A write before that signal must not be sent again: who has seen the signal may have given the
// memory back, or had others write there.
//
// Threads: one at a time.  Pure.
#include <cstdint>

#include "gda/abi/operation.h"

namespace twinpath::gda {

enum class Replay : std::uint8_t { again, applied };

class ReplayRule {
 public:
  // `signals`: how many of the first signals under way the peer has taken.
  explicit ReplayRule(std::uint64_t signals = 0) : signals_(signals) {}

  // Of the next operation that was under way, in order.  One that is to go again may be asked for
  // again.  A fetch_add is a signal, and counted: only such queues move (second_port.h).
  Replay next(OperationKind kind) {
    switch (kind) {
      case OperationKind::nop:
      case OperationKind::dump:
      case OperationKind::read:
        return Replay::again;
      case OperationKind::write:
      case OperationKind::write_inline:
        return signals_ != 0 ? Replay::applied : Replay::again;
      case OperationKind::fetch_add:
        break;
    }
    if (signals_ == 0) return Replay::again;
    --signals_;
    return Replay::applied;
  }

 private:
  std::uint64_t signals_;
};

}  // namespace twinpath::gda
