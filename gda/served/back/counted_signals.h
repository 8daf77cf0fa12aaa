#pragma once
// Signals where one of two adapters has no atomics.  Every word that travels has one writer: a
// queue has a row of words in the peer's memory, and writes what its n-th signal adds into the
// n-th of them, going round.  Immediate data says which signal it was, and the peer's engine adds
// the word to it (IB specification vol. 1, 9.4.1: the receive completes after the write, and in
// order with what the queue pair has sent before).  The words and the receive say that the data
// before them has been *written*, to the host's memory or a GPU's; of a GPU's the adds wait for a
// flush (gpu_flush.h), in the order in which they came.
//
// So how many signals of a queue have been taken is a number, and those are its first ones: nothing
// of a later one was seen here, even if its word is there already.  Who must send again what may
// not have arrived begins behind it, and no signal is added twice or left out.
//
// A word is used again once a row's length of signals has followed it.  Until then the sender had
// its work request acknowledged, and the receiver has looked at it, because a receive is posted
// again only after that: room_for() is what both need.
//
// Against atomics it costs a receive at the peer and a turn of its engine.
//
// Threads: the engine's; made and connected at setup.
#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gda/served/back/gpu_flush.h"
#include "gda/served/back/moving.h"
#include "gda/served/back/work_request_id.h"
#include "plugin/base/status.h"

namespace twinpath::gda {

// The sender's part, one per queue.
class CountedSender {
 public:
  struct Target {
    std::uint64_t signals = 0, signals_bytes = 0;  // the peer's table, as kernels name it
    std::uint64_t row = 0;                         // address there
    std::uint64_t words = 1;                       // of the row
  };
  explicit CountedSender(const Target& target) : target_(target) {}

  // Whether that FETCH_ADD is one on a signal; others cannot be done.
  bool covers(std::uint64_t remote) const {
    return remote >= target_.signals && remote - target_.signals < target_.signals_bytes &&
           remote % 8 == 0;
  }
  // Makes it a write, of 8 bytes that the caller gives: what the signal adds.  `rkey`: of the row.
  void fill(ibv_send_wr& wr, std::uint64_t remote, std::uint32_t rkey);
  // The next one is the signal of that number, of those that this queue ever had.
  void continue_at(std::uint64_t number) { sent_ = number; }

 private:
  const Target target_;
  std::uint64_t sent_ = 0;  // signals
};

// The receiver's, one per context.
class CountedInbox final : public MovingInbox {
 public:
  static constexpr int kReceives = 64;  // of each queue pair; senders wait for more (RNR)

  // Words of a row whose sender has up to that many work requests under way.
  static constexpr std::uint64_t room_for(std::uint64_t requests) { return requests + kReceives; }

  // `words`: pairs rows of `row` words; `table`: the signals, zeroed.  Both outlive this.
  // `flush`: null where none is needed.
  struct Memory {
    std::uint64_t* words = nullptr;
    std::uint64_t* table = nullptr;
    std::size_t pairs = 0, row = 1, signals = 0;
  };
  CountedInbox(const Memory& memory, GpuFlush* flush);
  // The queue pair whose far end is the only writer of row `pair`.
  Status listen(std::size_t pair, ibv_qp* qp);
  void on_receive(const ibv_wc& wc) override;
  void give_back(const ibv_wc& wc) override { give_back(WorkRequestId::pair(wc)); }

  // For another queue pair that takes over: gives it that many receives.
  static Status prepare(std::size_t pair, ibv_qp* qp, int receives);
  // See moving.h.
  bool stop(std::size_t pair) override;
  void move(std::size_t pair, int port, ibv_qp* qp) override;
  std::uint64_t taken(std::size_t pair) const override { return rows_[pair].taken; }
  // The flush has come further: adds what waited for it.
  void settle();

 private:
  static constexpr int kRefill = 16;
  struct Row {
    ibv_qp* qp = nullptr;
    int owed = 0;             // receives to post
    std::uint64_t taken = 0;  // signals
  };
  // A receive whose add waits for a flush.
  struct Waiting {
    std::uint32_t pair = 0, index = 0;
    std::uint64_t add = 0, ticket = 0;
  };
  static int post(ibv_qp* qp, std::size_t pair, int count);
  void add(std::size_t index, std::uint64_t what);
  void give_back(std::size_t pair);
  Waiting& waiting(std::uint64_t number) { return waiting_[number % waiting_.size()]; }

  const Memory memory_;
  std::vector<Row> rows_;
  GpuFlush* const flush_;
  // Ring of [first_waiting_, next_waiting_).  A receive is posted again after its add, so there are
  // no more than were ever posted.
  std::vector<Waiting> waiting_;
  std::uint64_t first_waiting_ = 0, next_waiting_ = 0;
};

}  // namespace twinpath::gda
