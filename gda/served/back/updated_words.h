#pragma once
// Words in GPU memory, added to by the GPU's copy thread: see gpu_words.h.
//
// Threads: of who drives the context, and the copy thread, which tells of the end of each word.
#include <array>
#include <atomic>
#include <memory>

#include "gda/served/back/gpu_words.h"
#include "plugin/gpu/engine.h"

namespace twinpath::gda {

class UpdatedWords final : public GpuWords {
 public:
  UpdatedWords();
  ~UpdatedWords() override { stop(); }

  State begin(std::span<const Word> words) override;
  State look() override;
  // What is under way ends without anybody's help.
  void stop() override;

 private:
  // What the copy thread reaches; outlives this object if updates never end.
  struct Batch;
  struct Update : gpu::WordUpdate {
    Batch* batch = nullptr;
  };
  struct Batch {
    std::array<Update, kBatch> updates;
    std::atomic<std::size_t> under_way{0};
    std::atomic<Status> failed{Status::ok};
  };
  static void update_done(gpu::CopyJob* job, Status status);
  // Partner: a job's end, after which its place is free.
  bool ended() const { return batch_->under_way.load(std::memory_order_acquire) == 0; }

  std::unique_ptr<Batch> batch_;
};

}  // namespace twinpath::gda
