#pragma once
// The receiving end of signals without atomics: messages of peers, which this rank adds to its
// words (gda/served/back/word_adder.h).  A receive completes after the writes that the queue pair
// has sent before (IB specification vol. 1, 9.4.1).
//
// Where the context's queues can move to another queue pair (rma_moves.h), all queue pairs of one
// have receives in the same slots: signals come by one of them at a time, the next once all that
// the last had has come back, and whatever else comes is immediate data, which leaves memory alone.
// A receive is given back to the queue pair that is in use, unless it was another one's.  How many
// signals of a queue have been taken, over all, is what its sender must know.
//
// Threads: under the context's lock.
#include <infiniband/verbs.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gda/rma/rma_queue.h"
#include "gda/rma/rma_team.h"
#include "gda/served/back/word_adder.h"

namespace twinpath::gda::rma {

class Inbox final : private WordAdder::Owner {
 public:
  static constexpr std::uint32_t kReceives = 64;  // of each queue pair; senders wait for more (RNR)
  // Registered memory that it needs; `second`: with a second port.
  static std::size_t bytes(std::size_t queues, bool second) {
    return queues * slots(second) * Queue::kScratchSlot + GpuWords::kValuesBytes;
  }

  // `lkeys`: of the memory over either port; `second`: there is one.  `flush`: null where none is
  // needed.
  struct Memory {
    std::uint8_t* at = nullptr;
    PortKeys lkeys{};
    bool second = false;
  };
  static Result<std::unique_ptr<Inbox>> make(Team& team, std::size_t queues, const Memory& memory,
                                             GpuFlush* flush);
  ~Inbox() = default;
  Inbox(const Inbox&) = delete;
  Inbox& operator=(const Inbox&) = delete;

  // Gives all its receives to a queue pair of that queue.  By any thread.
  Status prepare(std::size_t queue, int port, ibv_qp* qp) const;
  // The same, of the one that is in use from now on.
  Status listen(std::size_t queue, int port, ibv_qp* qp);
  // False: what came is no signal for a window of this rank, which was logged.
  bool on_receive(const ibv_wc& wc, const std::string& from);
  // See gda/served/back/moving.h.
  std::uint64_t taken(std::size_t queue) const { return rows_[queue].taken; }
  bool ask_for_last(std::size_t queue);
  void move(std::size_t queue, int port, ibv_qp* qp);
  std::uint64_t fence() { return flush_ != nullptr ? flush_->fence() : 0; }
  bool fenced(std::uint64_t ticket) const { return flush_ == nullptr || flush_->fenced(ticket); }
  void give_back(const ibv_wc& wc) {
    (void)post(WorkRequestId::pair(wc), static_cast<std::uint32_t>(WorkRequestId::slot(wc)));
  }
  WordAdder& adder() { return adder_; }

 private:
  // The queue pair of a queue that is in use.
  struct Row {
    ibv_qp* qp = nullptr;
    int port = 0;
    std::uint32_t generation = 0;  // of those in use so far
    std::uint64_t taken = 0;       // signals, over all
  };
  // One more where there is a number to come.
  static std::uint32_t slots(bool second) { return kReceives + (second ? 1 : 0); }

  Inbox(Team& team, std::size_t queues, const Memory& memory, GpuFlush* flush)
      : team_(team),
        receives_(memory.at),
        slots_(slots(memory.second)),
        lkeys_(memory.lkeys),
        flush_(flush),
        rows_(queues),
        adder_(*this, flush, kReceives) {}
  std::uint8_t* receive(std::size_t queue, std::uint32_t slot) const {
    return receives_ + (queue * slots_ + slot) * Queue::kScratchSlot;
  }
  int post(std::size_t queue, std::uint32_t slot) const {
    return post(queue, slot, rows_[queue].port, rows_[queue].qp);
  }
  int post(std::size_t queue, std::uint32_t slot, int port, ibv_qp* qp) const;
  void added(const WordAdder::Receipt& receipt) override;

  Team& team_;
  std::uint8_t* const receives_;
  const std::uint32_t slots_;  // of a queue
  const PortKeys lkeys_;
  GpuFlush* const flush_;
  std::vector<Row> rows_;  // by queue
  WordAdder adder_;
};

}  // namespace twinpath::gda::rma
