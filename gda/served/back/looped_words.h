#pragma once
// Words in GPU memory, added to by the adapter: see gpu_words.h.
//
// Where the context's queues can move there is a queue pair for it over either port.  Words go over
// the port over which the team's last ones went for as long as that one works: it is up, the queue
// pair has not failed, and the queue that moved last did not leave it.  What was begun and is not
// over begins again over the other one: READs in any case; WRITEs, of which nobody knows whether
// they came, where nobody else writes these words (WindowTraits::never_reset), since they are of
// the same sums.  Else the context is at its end.
//
//   stopping  the queue pair is in error, and what it had comes back: it writes nothing any more
//   waiting   for a port that works
//   fencing   until what came over any port, and what was written over the one before, is visible
//             (gpu_flush.h): a READ of one adapter may pass what another one has written
//   reading
//   writing
//
// Threads: of who drives the context.
#include <infiniband/verbs.h>

#include <array>
#include <memory>
#include <optional>

#include "gda/served/back/gpu_words.h"
#include "gda/served/back/loop_pair.h"
#include "gda/served/back/path_blame.h"
#include "plugin/base/wait_within.h"

namespace twinpath::gda {

class LoopedWords final : public GpuWords {
 public:
  static Result<std::unique_ptr<GpuWords>> make(TeamCore& team, WordTurn& turn, GpuFlush& flush,
                                                const Values& values);
  ~LoopedWords() override { stop(); }

  Status add_second(std::uint32_t lkey) override;
  LoopPair* loop(int port) override { return loops_[static_cast<std::size_t>(port)].get(); }
  int port() const override { return port_; }
  State begin(std::span<const Word> words) override;
  State look() override;
  void stop() override;

 private:
  enum class Phase : std::uint8_t {
    idle,
    stopping,
    waiting,
    fencing,
    reading,
    writing,
    failed,
  };

  LoopedWords(TeamCore& team, WordTurn& turn, GpuFlush& flush, const Values& values);
  Status make_loop(int port);
  LoopPair& loop() { return *loops_[static_cast<std::size_t>(port_)]; }
  std::span<const Word> batch() const { return {words_.data(), count_}; }
  bool usable(int port) const;
  bool works(int port) const { return usable(port) && !flush_.left(port); }
  int choose(int wanted);  // that, or the other one; below 0: none
  bool may_repeat() const;
  bool posted() const { return phase_ == Phase::reading || phase_ == Phase::writing; }
  void hurry();
  bool late();
  void fence(int port);
  void post(Phase phase);
  void poll();
  void leave(const char* why, int error);
  void on_error(const char* what, int error, ibv_wc_status status);
  void fail(const char* what, int error);

  TeamCore& team_;
  WordTurn& turn_;
  GpuFlush& flush_;
  std::uint64_t* const values_;
  PortKeys lkeys_{};                                // of them
  std::array<std::unique_ptr<LoopPair>, 2> loops_;  // the second: null where no queue can move
  int port_ = 0;
  Phase phase_ = Phase::idle;
  Phase next_ = Phase::reading;  // after the fence
  std::uint64_t fence_ = 0;
  std::array<Word, kBatch> words_;
  std::size_t count_ = 0, under_way_ = 0;
  std::uint64_t ended_ = 0;        // batches
  PathBlame blame_;                // of errors
  std::optional<RunLimit> limit_;  // of what does not end
};

}  // namespace twinpath::gda
