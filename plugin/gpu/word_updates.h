#pragma once
// Read-modify-writes of words of one GPU (engine.h: WordUpdate).
//
// The CPU cannot reach GPU memory, so an update is a copy out, an operation here, and a write-value
// back: about 11 us.  What has gathered in the meantime is done together, each word read and
// written once; the next group begins when the last has landed, so no update sees an old value.
//
// Threads: the copy thread only.
#include <array>
#include <cstddef>
#include <cstdint>

#include "plugin/gpu/lane.h"

namespace twinpath::gpu {

class WordUpdates {
 public:
  static constexpr std::size_t kWords = 64;  // of one group
  static constexpr std::size_t kGroup = 256;

  // `words`: kWords of pinned memory.
  void open(int gpu, std::uint64_t* words);
  void add(WordUpdate* update) { waiting_.push(update); }
  bool idle() const { return waiting_.empty() && phase_ == Phase::idle && ended_.empty(); }
  // Copies to be queued now.  Call again until idle.
  JobList begin();
  // Updates that are over, WordUpdate::ended says how: their `done` is to be called.
  JobList take_ended();
  // No copy lands any more; those that were given out have ended.
  void give_up(Status status);

 private:
  enum class Phase : std::uint8_t { idle, reading, writing };
  // A word of the group, and its copy.
  struct Word : CopyJob {
    WordUpdates* updates = nullptr;
    std::uint64_t* value = nullptr;  // pinned
    std::uint64_t address = 0;       // on the GPU
    bool changed = false;
    Status ended = Status::ok;
  };
  static void copy_done(CopyJob* job, Status status);
  Word* word_of(std::uint64_t address);
  bool take(WordUpdate* update);
  JobList read();
  JobList write();
  void end();

  int gpu_ = -1;
  std::array<Word, kWords> words_;
  std::size_t used_ = 0;       // words of the group
  std::size_t under_way_ = 0;  // of their copies
  Phase phase_ = Phase::idle;
  JobList waiting_, group_, ended_;
};

}  // namespace twinpath::gpu
