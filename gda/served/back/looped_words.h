#pragma once
// Words in GPU memory, added to by the adapter: see gpu_words.h.
//
// Threads: of who drives the context.
#include <infiniband/verbs.h>

#include <array>
#include <memory>
#include <string>

#include "gda/connect/queue_pair.h"
#include "gda/served/back/gpu_words.h"
#include "plugin/base/owned.h"

namespace twinpath::gda {

class LoopedWords final : public GpuWords {
 public:
  static Result<std::unique_ptr<GpuWords>> make(const TeamCore& team, WordTurn& turn,
                                                const Values& values);
  ~LoopedWords() override;

  bool begin(std::span<const Word> words) override;
  State look() override;

 private:
  enum class Phase : std::uint8_t { idle, reading, writing, failed };

  LoopedWords(WordTurn& turn, const Values& values) : turn_(turn), values_(values) {}
  void post(Phase phase);
  void fail(const char* what, int error);

  WordTurn& turn_;
  const Values values_;
  std::string port_;
  Owned<ibv_cq> cq_;
  std::unique_ptr<QueuePair> pair_;  // joined to itself
  Phase phase_ = Phase::idle;
  std::array<Word, kBatch> words_;
  std::size_t count_ = 0, under_way_ = 0;
};

}  // namespace twinpath::gda
