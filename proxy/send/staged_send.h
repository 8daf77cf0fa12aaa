#pragma once
// The messages of a send comm that leave GPU memory through its mirror: a queue of copies into host
// memory and, behind them, of writes to the peer.  First in, first out: one message's chunks are
// posted front to back as their copies end, while the copies of the next are under way.
//
// Threads: under the hub's lock; copies report from the copy thread through atomics.  Nothing is
// allocated after construction.
#include <array>
#include <atomic>
#include <memory>

#include "plugin/rdma/staging.h"
#include "proxy/send/outgoing.h"

namespace twinpath {

class StagedSends {
 public:
  // Waits for copies that are under way: they write into mirrors and into this.
  ~StagedSends();

  // A piece of a message whose copy has ended.
  struct Piece {
    const Outgoing* message = nullptr;
    Mirror* mirror = nullptr;  // alive until the piece's message is popped
    std::size_t offset = 0;
    std::size_t bytes = 0;
    int chunks = 1;  // of the message
    int queue = 0;
    bool copied = true;  // else the copy failed
  };

  // Takes a message of the GPU memory `memory` (with a mirror) for a queue.  At most kMost wait.
  // Its cell, of that many bytes, is copied: the sender may say that it was used before the answer
  // is posted.
  void add(const Outgoing& message, std::size_t cell_bytes, int queue);
  bool busy() const { return first_ != last_; }
  // Starts copies while there is room; false when the CUDA driver takes none or the memory has been
  // given back.
  bool start_copies();
  // The oldest piece not popped yet, if its copy has ended.
  bool front(Piece& piece);
  void pop();

  // Calls `f(slot, queue)` for each message that is not wholly popped, the oldest first; `queue` is
  // where it will go and may be changed.
  template <class F>
  void for_waiting(F&& f) {
    for (std::uint64_t n = first_; n != last_; ++n) f(message(n).out.slot, message(n).queue);
  }
  // And `f(cell)` for the copy of its cell.
  template <class F>
  void for_cells(F&& f) {
    for (std::uint64_t n = first_; n != last_; ++n) f(message(n).cell.data());
  }
  // How many pieces of the oldest message have been popped, and each of them again.
  int popped() { return busy() ? message(first_).popped : 0; }
  Piece popped_piece(int i) { return piece_of(message(first_), i); }

  // Writes of messages of several chunks that are under way.
  int writes() const { return writes_; }
  void write_posted() { ++writes_; }
  void write_arrived() { --writes_; }
  // Their queues are gone.
  void forget_writes() { writes_ = 0; }

  static constexpr std::size_t kMost = 256;

 private:
  struct Message {
    Outgoing out;  // of the mirror
    alignas(8) std::array<std::uint8_t, sizeof(WideCell)> cell{};
    std::shared_ptr<Mirror> mirror;
    std::uint64_t from = 0;
    ChunkPlan plan;
    int started = 0;  // chunks
    int popped = 0;
    int queue = 0;
  };
  enum class State : std::uint8_t { copying, copied, failed };
  struct Job : gpu::CopyJob {
    std::atomic<State> state{State::copying};
    Mirror* mirror = nullptr;
    std::atomic<int>* copying = nullptr;
  };
  static void copy_done(gpu::CopyJob* base, Status status);
  bool start_copy(Message& m);
  static Piece piece_of(const Message& m, int i);
  Message& message(std::uint64_t number) { return messages_[number % kMost]; }

  std::unique_ptr<Message[]> messages_ = std::make_unique<Message[]>(kMost);
  std::uint64_t first_ = 0, starting_ = 0, last_ = 0;  // numbers of messages
  // Copies end in order, so the jobs are a ring, too.
  std::unique_ptr<Job[]> jobs_ = std::make_unique<Job[]>(kStagedCopies);
  std::uint64_t first_job_ = 0, last_job_ = 0;
  int writes_ = 0;
  std::atomic<int> copying_{0};
};

}  // namespace twinpath
