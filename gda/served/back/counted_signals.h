#pragma once
// Signals where one of two adapters has no atomics.  All that travels has one writer: a queue has
// a row of entries in the peer's memory, and writes what its n-th signal adds into the n-th of
// them, going round.  Immediate data says which word of the table it is for, or that the entry
// names a word of a window; the peer's engine adds (word_adder.h), once the receive has come (IB
// specification vol. 1, 9.4.1: it completes after the write, and in order with what the queue pair
// has sent before).
//
// So how many signals of a queue have been taken is a number, and those are its first ones: nothing
// of a later one was seen here, even if its entry is there already.  Who must send again what may
// not have arrived begins behind it, and no signal is added twice or left out.
//
// An entry is used again once a row's length of signals has followed it.  Until then the sender had
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

#include "gda/abi/operation.h"
#include "gda/served/back/moving.h"
#include "gda/served/back/word_adder.h"
#include "gda/served/back/work_request_id.h"
#include "gda/served/front/key_table.h"
#include "plugin/base/status.h"

namespace twinpath::gda {

// As it lies in the row; of a signal of the table only what it adds is written.
struct CountedEntry {
  // Immediate data of one for a window; else it is an index into the table.
  static constexpr std::uint32_t kInWindow = 0xfffffff0;
  std::uint64_t add = 0;
  std::uint64_t offset = 0, window = 0;  // the window by key
};

// The sender's part, one per queue.
class CountedSender {
 public:
  struct Target {
    std::uint64_t signals = 0, signals_bytes = 0;  // the peer's table, as kernels name it
    std::uint64_t row = 0;                         // address there
    std::uint64_t entries = 1;                     // of the row
  };
  explicit CountedSender(const Target& target) : target_(target) {}

  // Makes that FETCH_ADD a write of so many bytes, which it puts into `data`.  `rkey`: of the row.
  std::uint32_t fill(ibv_send_wr& wr, const Operation& operation, std::uint32_t rkey,
                     std::uint8_t* data);
  // The next one is the signal of that number, of those that this queue ever had.
  void continue_at(std::uint64_t number) { sent_ = number; }

 private:
  const Target target_;
  std::uint64_t sent_ = 0;  // signals
};

// The receiver's, one per context.
class CountedInbox final : public MovingInbox, private WordAdder::Owner {
 public:
  static constexpr int kReceives = 64;  // of each queue pair; senders wait for more (RNR)

  // Entries of a row whose sender has up to that many work requests under way.
  static constexpr std::uint64_t room_for(std::uint64_t requests) { return requests + kReceives; }

  // `entries`: pairs rows of `row`; `table`: the signals, zeroed.  `windows`: all keys, of which
  // those of `rank` are meant.  All outlive this.  `flush`: null where none is needed.
  struct Memory {
    CountedEntry* entries = nullptr;
    std::uint64_t* table = nullptr;
    std::size_t pairs = 0, row = 1, signals = 0;
    const KeyTable* windows = nullptr;
    int rank = 0;
  };
  CountedInbox(const Memory& memory, GpuFlush* flush);
  // The queue pair whose far end is the only writer of row `pair`, over that port.
  Status listen(std::size_t pair, int port, ibv_qp* qp);
  void on_receive(const ibv_wc& wc) override;
  void give_back(const ibv_wc& wc) override { give_back(WorkRequestId::pair(wc)); }

  // For another queue pair that takes over: gives it that many receives.
  static Status prepare(std::size_t pair, ibv_qp* qp, int receives);
  // See moving.h.
  bool stop(std::size_t pair) override;
  void move(std::size_t pair, int port, ibv_qp* qp) override;
  std::uint64_t taken(std::size_t pair) const override { return rows_[pair].taken; }
  std::uint64_t fence() override { return flush_ != nullptr ? flush_->fence() : 0; }
  bool fenced(std::uint64_t ticket) override { return flush_ == nullptr || flush_->fenced(ticket); }
  WordAdder& adder() { return adder_; }

 private:
  static constexpr int kRefill = 16;
  struct Row {
    ibv_qp* qp = nullptr;
    std::uint32_t generation = 0;  // of queue pairs so far
    int owed = 0;                  // receives to post
    int port = 0;
    std::uint64_t taken = 0;  // signals
  };
  static int post(ibv_qp* qp, std::size_t pair, int count);
  bool find(const CountedEntry& entry, GpuWords::Word& word) const;
  void added(const WordAdder::Receipt& receipt) override;
  void give_back(std::size_t pair);

  const Memory memory_;
  GpuFlush* const flush_;
  std::vector<Row> rows_;
  WordAdder adder_;
};

}  // namespace twinpath::gda
