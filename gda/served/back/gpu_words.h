#pragma once
// Adds to words in GPU memory, for signals that no adapter's atomic adds (word_adder.h): several
// words at a time, each once.
//
//   looped    The adapter READs the words over a queue pair joined to itself, which pushes the data
//             that was written before their signals (gpu_flush.h), then WRITEs the sums.  Nobody
//             else may add between the two: word_turn.h.
//             A mapping of GDRCopy's would save the WRITE alone: the READ pushes the data and
//             brings the word with it; and every window would be pinned and mapped for that.
//   updated   On adapters that place in order whatever the memory (Verbs::ordered) the data is in
//             place.  The GPU's copy thread adds, as it does for their atomics, and tells of each
//             word whether it was added: a kernel may have reset it since, so none could be added
//             to again on suspicion.  No port has a part in it, so a port that is lost changes
//             nothing.
//
// Threads: of who drives the context.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "gda/served/back/gpu_flush.h"
#include "gda/team/team_core.h"
#include "gda/team/word_turn.h"

namespace twinpath::gda {

class GpuWords {
 public:
  static constexpr std::size_t kBatch = 16;
  static constexpr std::size_t kValuesBytes = kBatch * sizeof(std::uint64_t);
  struct Word {
    std::uint64_t address = 0, add = 0;
    int gpu = -1;
    PortKeys rkeys{};          // of this rank's memory
    bool never_reset = false;  // WindowTraits
  };
  enum class State : std::uint8_t { idle, busy, failed };  // failed: for good, which was logged

  // Memory of kValuesBytes, registered with the team's adapter.
  struct Values {
    std::uint64_t* at = nullptr;
    std::uint32_t lkey = 0;
  };
  // `turn`: of all who may add to the same words.  All outlive the result.  Null without a CUDA
  // driver.  `flush`: null where none is needed.
  static Result<std::unique_ptr<GpuWords>> make(TeamCore& team, WordTurn& turn, GpuFlush* flush,
                                                const Values& values);
  virtual ~GpuWords() = default;
  GpuWords(const GpuWords&) = delete;
  GpuWords& operator=(const GpuWords&) = delete;

  // Queues can move to the team's second port.  `lkey`: of the values there.
  virtual Status add_second(std::uint32_t /*lkey*/) { return Status::ok; }
  // To be made anew where it is broken; null: there is none.  It outlives stop().
  virtual LoopPair* loop(int /*port*/) { return nullptr; }
  // What comes by another one must be visible (gpu_flush.h) before it is told of here.
  virtual int port() const { return 0; }

  // kBatch at most, of different addresses; while idle.  Idle: not now.
  virtual State begin(std::span<const Word> words) = 0;
  // Of what was begun; not after it has failed.
  virtual State look() = 0;
  // Nothing is added any more; what is under way is waited for.
  virtual void stop() = 0;

 protected:
  GpuWords() = default;
};

}  // namespace twinpath::gda
