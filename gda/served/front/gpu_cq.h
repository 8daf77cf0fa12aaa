#pragma once
// A CQ in GPU memory, which many threads may poll without being in each other's way (on one line
// of host memory they are served one after the other).
//
// CQEs go there as words: the last eight bytes, and for errors those with the syndrome before them.
// Kernels look at the last byte only; the rest of an entry stays as it was filled.
//   MappedCq  the engine stores them, through GDRCopy's mapping
//   GpuCq     where there is none: they are kept until the end of the engine's turn, and copied
//
// Every CQE is written and in order: a kernel that has seen one takes the slots of all before it as
// free, and must find them of their lap when it waits for their next.
//
// Threads: the engine's.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "gda/abi/cqe.h"
#include "gda/memory/word_stream.h"
#include "gda/served/front/work_queue.h"
#include "plugin/base/device_fence.h"

namespace twinpath::gda {

// What of a CQE goes to the GPU, and where it lies in it.
struct CqeWords {
  static constexpr std::size_t kSyndromeAt = 48, kLastAt = 56;
  std::uint64_t syndrome = 0, last = 0;

  static CqeWords of(const std::uint8_t (&cqe)[64]) {
    CqeWords words;
    std::memcpy(&words.syndrome, cqe + kSyndromeAt, sizeof words.syndrome);
    std::memcpy(&words.last, cqe + kLastAt, sizeof words.last);
    return words;
  }
};

// What MappedCq does to memory; a test puts its own in its place.
struct MappedStores {
  static void word(std::uint8_t* at, std::uint64_t value) {
    std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(at))
        .store(value, std::memory_order_relaxed);
  }
  static void fence() { device_store_fence(); }
};

template <typename Stores = MappedStores>
class MappedCq final : public CqeWriter {
 public:
  // `cqes`: depth * 64 bytes of GPU memory, filled with kCqeFill, as the CPU stores to them
  // (plugin/gpu/gdrcopy.h has the rules).
  MappedCq(std::uint8_t* cqes, std::uint32_t depth) : cqes_(cqes), mask_(depth - 1) {}

  void write(std::uint64_t index, const std::uint8_t (&cqe)[64]) override {
    std::uint8_t* const slot = cqes_ + (index & mask_) * kCqeBytes;
    const CqeWords words = CqeWords::of(cqe);
    if (words.syndrome != 0) {
      // A core that gathers writes sends those of one line in any order, too.
      Stores::word(slot + CqeWords::kSyndromeAt, words.syndrome);
      Stores::fence();
    }
    Stores::word(slot + CqeWords::kLastAt, words.last);
    // Before the next CQE, and not kept back until it comes.
    Stores::fence();
  }

 private:
  std::uint8_t* const cqes_;
  const std::uint64_t mask_;
};

class GpuCq final : public CqeWriter {
 public:
  // `address`: depth * 64 bytes of GPU memory, filled with kCqeFill.  `unsent`: counts what all
  // CQs together have to send.
  GpuCq(std::uint64_t address, std::uint32_t depth, std::uint64_t& unsent)
      : address_(address), mask_(depth - 1), unsent_(unsent), kept_(depth) {}

  void write(std::uint64_t index, const std::uint8_t (&cqe)[64]) override {
    kept_[index & mask_] = CqeWords::of(cqe);
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
      const CqeWords& kept = kept_[sent_ & mask_];
      const std::uint64_t slot = address_ + (sent_ & mask_) * kCqeBytes;
      if (kept.syndrome != 0) stream.add(slot + CqeWords::kSyndromeAt, kept.syndrome);
      stream.add(slot + CqeWords::kLastAt, kept.last);
    }
  }

 private:
  const std::uint64_t address_;
  const std::uint64_t mask_;
  std::uint64_t& unsent_;
  std::vector<CqeWords> kept_;
  std::uint64_t written_ = 0, sent_ = 0;  // CQE numbers; queues begin with 0
};

}  // namespace twinpath::gda
