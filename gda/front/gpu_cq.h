#pragma once
// A CQ in GPU memory, which many threads may poll without being in each other's way (on one line
// of host memory they are served one after the other).
//
// The engine cannot store there, so CQEs are kept until the end of its turn and go as words: the
// last eight bytes, and for errors those with the syndrome before them.  Kernels look at the last
// byte only; the rest of an entry stays as it was filled.
//
// Every CQE is written and in order: a kernel that has seen one takes the slots of all before it as
// free, and must find them of their lap when it waits for their next.
//
// Threads: the engine's.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "gda/abi/cqe.h"
#include "gda/front/work_queue.h"
#include "gda/memory/word_stream.h"

namespace twinpath::gda {

class GpuCq final : public CqeWriter {
 public:
  // `address`: depth * 64 bytes of GPU memory, filled with kCqeFill.  `unsent`: counts what all
  // CQs together have to send.
  GpuCq(std::uint64_t address, std::uint32_t depth, std::uint64_t& unsent)
      : address_(address), mask_(depth - 1), unsent_(unsent), kept_(depth) {}

  void write(std::uint64_t index, const std::uint8_t (&cqe)[64]) override {
    Kept& kept = kept_[index & mask_];
    std::memcpy(&kept.syndrome, cqe + kSyndromeAt, sizeof kept.syndrome);
    std::memcpy(&kept.last, cqe + kLastAt, sizeof kept.last);
    ++written_;
    ++unsent_;
    // Nobody can honestly be a lap ahead; kernels that were let go may, and see any entry.
    if (written_ - sent_ > kept_.size()) {
      ++sent_;
      --unsent_;
    }
  }

  // Adds what the stream has room for.
  void send(WordStream& stream) {
    for (; sent_ != written_ && stream.room() >= 2; ++sent_, --unsent_) {
      const Kept& kept = kept_[sent_ & mask_];
      const std::uint64_t slot = address_ + (sent_ & mask_) * kCqeBytes;
      if (kept.syndrome != 0) stream.add(slot + kSyndromeAt, kept.syndrome);
      stream.add(slot + kLastAt, kept.last);
    }
  }

 private:
  static constexpr std::size_t kSyndromeAt = 48, kLastAt = 56;
  struct Kept {
    std::uint64_t syndrome = 0, last = 0;
  };
  const std::uint64_t address_;
  const std::uint64_t mask_;
  std::uint64_t& unsent_;
  std::vector<Kept> kept_;
  std::uint64_t written_ = 0, sent_ = 0;  // CQE numbers; queues begin with 0
};

}  // namespace twinpath::gda
