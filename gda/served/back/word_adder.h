#pragma once
// Adds what signals of peers say to this rank's words, once each and in the order in which they
// came: signals without atomics, of GIN (counted_signals.h) as of RMA.
//
// A receive says that the data before it has been *written*.  Words in host memory wait until what
// was written to GPU memory by then has been pushed (gpu_flush.h), then the CPU adds with an atomic
// of its own.  Words in GPU memory: gpu_words.h; what is in host memory behind them waits until
// they have been pushed as well.  A receive is given back once its signal was added, so senders
// cannot run ahead of that.
//
// Threads: of who drives the context; came() and added() from any.
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "gda/served/back/gpu_flush.h"
#include "gda/served/back/gpu_words.h"
#include "gda/served/back/ring.h"

namespace twinpath::gda {

class WordAdder {
 public:
  // The receive that brought a signal.
  struct Receipt {
    std::uint32_t queue = 0, slot = 0, generation = 0;
  };
  // Who gives it back.
  class Owner {
   public:
    virtual void added(const Receipt& receipt) = 0;

   protected:
    ~Owner() = default;
  };

  // `flush`: null where none is needed.  `most`: so many wait without anything being allocated.
  WordAdder(Owner& owner, GpuFlush* flush, std::size_t most);
  // Before the first word in GPU memory: see GpuWords::make.
  Status reach_gpu(TeamCore& team, WordTurn& turn, const GpuWords::Values& values);
  // See gpu_words.h.
  Status add_second(std::uint32_t lkey) {
    return words_ != nullptr ? words_->add_second(lkey) : Status::ok;
  }
  // And of the flush.
  std::array<LoopPair*, 2> loops(int port) {
    return {flush_ != nullptr ? flush_->loop(port) : nullptr,
            words_ != nullptr ? words_->loop(port) : nullptr};
  }

  void add(const GpuWords::Word& word, const Receipt& receipt);
  // Whether turn() has anything to do.
  bool busy() const { return !waiting_.empty(); }
  // Adds what can be added.  False: words in GPU memory cannot be reached any more, which was
  // logged.
  bool turn();
  // Nothing is added any more; what is under way is waited for.
  void stop();

  // Counts of signals, for who waits until what came has been added, or never will be.
  std::uint64_t came() const { return came_.load(std::memory_order_acquire); }
  std::uint64_t added() const { return added_.load(std::memory_order_acquire); }

 private:
  struct Waiting {
    GpuWords::Word word;
    Receipt receipt;
    std::uint64_t ticket = 0;
  };
  void add_in_host();
  bool begin_words();
  bool pushed(std::uint64_t ticket) const;
  void end();  // of the one in front
  void drop();

  Owner& owner_;
  GpuFlush* const flush_;
  std::unique_ptr<GpuWords> words_;
  Ring<Waiting> waiting_;
  std::uint64_t taken_ = 0;   // of those that wait, by words_
  std::uint64_t pushed_ = 0;  // with this flush the last words in GPU memory are
  bool dead_ = false;
  std::atomic<std::uint64_t> came_{0}, added_{0};
};

}  // namespace twinpath::gda
