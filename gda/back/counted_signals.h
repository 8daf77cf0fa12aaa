#pragma once
// Signals where one of two adapters has no atomics.  Every word that travels has one writer: a
// queue keeps, for each signal of its peer, the sum of all that it has added, and writes that sum
// into a row of the peer's memory that is its own.  Immediate data says which signal it was, and
// the peer's engine adds to the signal what is new (IB specification vol. 1, 9.4.1: the receive
// completes after the write, and in order with what the queue pair has sent before).  The words and
// the receive say that the data before them has been *written*, to the host's memory or a GPU's; of
// a GPU's the adds wait for a flush (gpu_flush.h), in the order in which they came.
//
// Against atomics it costs a receive at the peer and a turn of its engine.
//
// Threads: the engine's; made and connected at setup.
#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gda/back/gpu_flush.h"
#include "plugin/base/status.h"

namespace twinpath::gda {

// The sender's part, one per queue.
class CountedSender {
 public:
  struct Target {
    std::uint64_t signals = 0, signals_bytes = 0;  // the peer's table, as kernels name it
    std::uint64_t row = 0;                         // address there, a word for each signal
    std::uint32_t rkey = 0;                        // of the row
  };
  explicit CountedSender(const Target& target)
      : target_(target), sums_(target.signals_bytes / sizeof(std::uint64_t)) {}

  // Whether that FETCH_ADD is one on a signal; others cannot be done.
  bool covers(std::uint64_t remote) const {
    return remote >= target_.signals && (remote - target_.signals) / 8 < sums_.size() &&
           remote % 8 == 0;
  }
  // Makes it a write of what the caller then puts at the work request's own data: the sum.
  std::uint64_t fill(ibv_send_wr& wr, std::uint64_t remote, std::uint64_t add);

 private:
  const Target target_;
  std::vector<std::uint64_t> sums_;
};

// The receiver's, one per context.
class CountedInbox {
 public:
  static constexpr int kReceives = 64;  // of each queue pair; senders wait for more (RNR)
  static constexpr std::uint64_t kReceiveId = 0xffffffffffff;  // low 48 bits of their wr_id

  // `words`: pairs rows of `signals` words; `table`: the signals.  Both zeroed, outliving this.
  // `flush`: null where none is needed.
  CountedInbox(std::uint64_t* words, std::uint64_t* table, std::size_t pairs, std::size_t signals,
               GpuFlush* flush);
  // The queue pair whose far end is the only writer of row `pair`.
  Status listen(std::size_t pair, ibv_qp* qp);
  static bool is_receive(const ibv_wc& wc) { return (wc.wr_id & kReceiveId) == kReceiveId; }
  void on_receive(const ibv_wc& wc);
  // The flush has come further: adds what waited for it.
  void settle();

 private:
  static constexpr int kRefill = 16;
  struct Row {
    ibv_qp* qp = nullptr;
    int owed = 0;  // receives to post
  };
  // A receive whose add waits for a flush.
  struct Waiting {
    std::uint32_t pair = 0, index = 0;
    std::uint64_t add = 0, ticket = 0;
  };
  int post(std::size_t pair, int count);
  void add(std::size_t index, std::uint64_t what);
  void give_back(std::size_t pair);
  Waiting& waiting(std::uint64_t number) { return waiting_[number % waiting_.size()]; }

  std::uint64_t* const words_;
  std::uint64_t* const table_;
  const std::size_t signals_;
  std::vector<Row> rows_;
  std::vector<std::uint64_t> seen_;  // of each word
  GpuFlush* const flush_;
  // Ring of [first_waiting_, next_waiting_).  A receive is posted again after its add, so there are
  // no more than were ever posted.
  std::vector<Waiting> waiting_;
  std::uint64_t first_waiting_ = 0, next_waiting_ = 0;
};

}  // namespace twinpath::gda
