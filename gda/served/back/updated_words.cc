// See updated_words.h.
#include "gda/served/back/updated_words.h"

#include "gda/served/back/soft_back_end.h"
#include "plugin/base/log.h"
#include "plugin/base/wait_within.h"

namespace twinpath::gda {

UpdatedWords::UpdatedWords() : batch_(std::make_unique<Batch>()) {
  for (Update& update : batch_->updates) update.batch = batch_.get();
}

void UpdatedWords::stop() {
  if (batch_ == nullptr) return;
  if (wait_within(SoftBackEnd::kCopyLimit, [this] { return ended(); })) return;
  TP_WARN("adding to signals in GPU memory does not end; its memory is left to the process's end");
  (void)batch_.release();
}

GpuWords::State UpdatedWords::begin(std::span<const Word> words) {
  batch_->under_way.store(words.size(), std::memory_order_relaxed);
  for (std::size_t i = 0; i < words.size(); ++i) {
    Update& update = batch_->updates[i];
    update.update = true;
    update.to = {words[i].address, words[i].gpu};
    update.executor = words[i].gpu;
    update.operand[0] = words[i].add;
    update.done = update_done;
    if (const Status status = gpu::submit_copy(&update); status != Status::ok)
      update_done(&update, status);
  }
  return State::busy;
}

void UpdatedWords::update_done(gpu::CopyJob* job, Status status) {
  Batch& batch = *static_cast<Update*>(job)->batch;
  if (status != Status::ok) batch.failed.store(status, std::memory_order_relaxed);
  batch.under_way.fetch_sub(1, std::memory_order_release);
}

GpuWords::State UpdatedWords::look() {
  if (!ended()) return State::busy;
  const Status failed = batch_->failed.load(std::memory_order_relaxed);
  if (failed == Status::ok) return State::idle;
  TP_WARN("adding to a signal in GPU memory fails (%s); the communicator cannot be used any more",
          status_name(failed));
  return State::failed;
}

}  // namespace twinpath::gda
