// Building and submitting the batches of one stream.
#include "plugin/gpu/lane.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "plugin/base/clock.h"
#include "plugin/base/log.h"

namespace twinpath::gpu {

using cuda::kSuccess;

// All the memory that building batches takes.
CopyLane::CopyLane(const Setup& setup) : s_(setup), peer_(setup.peer), late_(setup.late) {
  for (auto* list : {&copies_, &staged_, &fills_, &drains_, &word_rows_}) list->reserve(kBatchJobs);
}

bool CopyLane::reached(std::uint64_t sequence) const {
  // Partner of the stream's write-value, which is ordered after all earlier work of the stream.
  return std::atomic_ref(*s_.word).load(std::memory_order_acquire) >= sequence;
}

void CopyLane::fail(Batch& batch, std::size_t index, const CopyEnd& to, cuda::Result r,
                    const char* call) {
  batch.failed.set(index);
  if (warned_) return;
  warned_ = true;
  TP_WARN("GPU %d: %s to 0x%llx failed (%s); the transfer ends in error", s_.gpu, call,
          static_cast<unsigned long long>(to.address), error_name(*s_.driver, r).c_str());
}

// False: the batch has no room for it.
bool CopyLane::add_tiny(const CopyJob& job, const Batch& batch, std::size_t index) {
  const std::size_t count = tiny_words(job);
  // Values land behind rows: behind a value of its order, the job is values, too.
  if (count <= kValueWords || s_.word_stage == nullptr || values_.has_order_of(job))
    return values_.add(job, index);
  if (stage_words_ + count > kStageWords) return false;
  // Of the batch's own: those before may still be read.
  std::uint64_t* const at = s_.word_stage + batch.sequence % kMaxDepth * kStageWords + stage_words_;
  stage_words_ += count;
  for (std::size_t i = 0; i < count; ++i) at[i] = tiny_word(job, i);
  word_rows_.push_back(
      {job.to.address, reinterpret_cast<std::uintptr_t>(at), job.bytes, index, nullptr, true});
  return true;
}

std::size_t CopyLane::collect(Batch& batch) {
  copies_.clear();
  staged_.clear();
  word_rows_.clear();
  stage_words_ = 0;
  values_.clear();
  // Bounds how many calls one batch makes.
  const std::uint64_t staged_limit = (peer_.base != 0 ? peer_ : s_.host).bytes;
  std::uint64_t bytes = 0, staged = 0;
  std::size_t count = 0;
  while (!waiting_.empty() && count < kBatchJobs && bytes < kBatchBytes) {
    CopyJob* job = waiting_.front();
    switch (classify(*job)) {
      case CopyKind::nothing:
        break;
      case CopyKind::copy:
        copies_.push_back({job->to.address, job->from.address, job->bytes, count, nullptr,
                           job->from.gpu < 0 && job->to.gpu >= 0});
        bytes += job->bytes;
        break;
      case CopyKind::tiny:
        if (!add_tiny(*job, batch, count)) return count;
        break;
      case CopyKind::staged: {
        const std::uint64_t part = std::min(job->bytes - staged_done_, staged_limit - staged);
        if (part == 0) return count;
        staged_.push_back({job->to.address + staged_done_, job->from.address + staged_done_, part,
                           count, &stage_of(*job)});
        staged += part;
        staged_done_ += part;
        if (staged_done_ < job->bytes) return count;  // the rest goes with the next batch
        staged_done_ = 0;
        batch.failed[count] = std::exchange(staged_failed_, false);
        break;
      }
    }
    batch.jobs.push(waiting_.pop());
    ++count;
  }
  return count;
}

bool CopyLane::goes_as_rows(const Copy& c) const {
  return linear_by_compute(c) && c.bytes > 1 && s_.driver->copy_rows_async != nullptr;
}

cuda::Result CopyLane::copy_as_rows(const Copy& c) {
  const RowPlan plan = plan_rows(c.bytes);
  const auto copy_rows = [&](std::uint64_t at, std::uint64_t part, std::size_t height) {
    if (part == 0) return kSuccess;
    cuda::Rows rows;
    rows.height = height;
    rows.width = part / height;
    rows.from.memory_type = cuda::kRowsHost;
    rows.from.host = reinterpret_cast<const void*>(c.from + at);
    rows.to.memory_type = cuda::kRowsDevice;
    rows.to.device = c.to + at;
    rows.from.pitch = rows.to.pitch = rows.width;
    return s_.driver->copy_rows_async(&rows, s_.stream);
  };
  const cuda::Result r = copy_rows(0, plan.head, 2);
  return r != kSuccess ? r : copy_rows(plan.head, plan.tail, 3);
}

// Inside one call of this, copies land in any order.
void CopyLane::copy(std::vector<Copy>& copies, Batch& batch) {
  if (s_.rows_below != 0)
    std::erase_if(copies, [&](const Copy& c) {
      if (!goes_as_rows(c)) return false;
      if (const cuda::Result r = copy_as_rows(c); r != kSuccess)
        fail(batch, c.job, {c.to, 0}, r, "cuMemcpy2DAsync");
      else
        on_copy_engine_ = true;
      return true;
    });
  if (copies.empty()) return;
  const cuda::Driver& d = *s_.driver;
  cuda::Result refused = kSuccess;
  const bool as_batch = copies.size() > 1 && copy_call_.usable(d);
  if (as_batch) {
    copy_call_.clear();
    for (const Copy& c : copies) copy_call_.add(c.to, c.from, c.bytes);
    refused = copy_call_.submit(d, s_.stream);
    if (refused == kSuccess) {
      on_copy_engine_ = std::none_of(copies.begin(), copies.end(),
                                     [&](const Copy& c) { return linear_by_compute(c); });
      return;
    }
    // One bad copy refuses the whole list: again one by one, to fail only that one.
  }
  bool all_good = true;
  for (const Copy& c : copies) {
    const cuda::Result r = d.copy_async(c.to, c.from, c.bytes, s_.stream);
    if (r == kSuccess) {
      on_copy_engine_ = !linear_by_compute(c);
      continue;
    }
    all_good = false;
    fail(batch, c.job, {c.to, 0}, r, "cuMemcpyAsync");
  }
  if (as_batch && all_good) {
    copy_call_.distrust();
    TP_WARN(
        "GPU %d: cuMemcpyBatchAsync refused copies (%s) that cuMemcpyAsync takes: copies go "
        "one by one, at less bandwidth",
        s_.gpu, error_name(d, refused).c_str());
  }
}

// Puts what fits into the stage of staged_[first], of whose bytes `done` went before, into fills_
// and drains_.  Returns the first copy not finished.
std::size_t CopyLane::next_round(std::size_t first, std::uint64_t& done) {
  constexpr std::uint64_t kAlign = 256;
  const CopyStage& stage = *staged_[first].stage;
  fills_.clear();
  drains_.clear();
  std::uint64_t used = 0;
  std::size_t i = first;
  while (i < staged_.size() && used < stage.bytes && staged_[i].stage == &stage) {
    const Copy& c = staged_[i];
    const std::uint64_t at = stage.base + used,
                        bytes = std::min(c.bytes - done, stage.bytes - used);
    fills_.push_back({at, c.from + done, bytes, c.job});
    drains_.push_back({c.to + done, at, bytes, c.job, nullptr, &stage == &s_.host});
    used += (bytes + kAlign - 1) / kAlign * kAlign;
    done += bytes;
    if (done == c.bytes) {
      ++i;
      done = 0;
    }
  }
  return i;
}

void CopyLane::copy_staged(Batch& batch) {
  std::uint64_t done = 0;
  for (std::size_t i = 0; i < staged_.size();) {
    i = next_round(i, done);
    copy(fills_, batch);
    // What could not be read is not written: the stage holds bytes of other copies.
    std::erase_if(drains_, [&](const Copy& c) { return batch.failed[c.job]; });
    copy(drains_, batch);
  }
}

// Before values are written: see lane.h.  True: the batch is nothing but values, without a copy
// before them.
bool CopyLane::nudge(bool no_copy) {
  const bool trusted = !no_copy || !late_.in_doubt() || late_.trusted(now_ns());
  if (on_copy_engine_ && trusted) return no_copy;
  // Should it fail, so do the values behind it; else they are late at worst.
  on_copy_engine_ = s_.driver->copy_async(s_.nudge_to, s_.nudge_from, sizeof(std::uint64_t),
                                          s_.stream) == kSuccess;
  return false;
}

void CopyLane::judge(const Batch& batch) {
  if (late_.took(batch.bare_since, now_ns()))
    TP_INFO(net, "GPU %d: values that a stream wrote were late: a copy goes before each", s_.gpu);
}

bool CopyLane::write_and_signal(Batch& batch) {
  const cuda::Driver& d = *s_.driver;
  const auto word = static_cast<cuda::Address>(reinterpret_cast<std::uintptr_t>(s_.word));
  const cuda::Result r =
      values_.submit(d, s_.stream, word, batch.sequence,
                     [&](std::size_t index, cuda::Address to, cuda::Result result) {
                       fail(batch, index, {to, 0}, result, "cuStreamBatchMemOp");
                     });
  if (r == kSuccess) return true;
  TP_WARN("GPU %d: cuStreamWriteValue64 failed (%s): its copies end in error from now on", s_.gpu,
          error_name(d, r).c_str());
  return false;
}

bool CopyLane::issue(LaneCounts& counts) {
  while (!waiting_.empty() && batches_.size() < std::min(s_.depth, kMaxDepth)) {
    Batch& batch = batches_.add();  // before submitting: abandon() must find these jobs
    const std::size_t count = collect(batch);
    ++counts.batches;
    counts.write_values += values_.size();
    counts.staged += staged_.size();
    const bool no_copy = copies_.empty() && staged_.empty() && word_rows_.empty();
    copy(copies_, batch);
    copy_staged(batch);
    if (staged_done_ != 0 && batch.failed[count]) staged_failed_ = true;
    copy(word_rows_, batch);
    const bool bare = s_.nudge_from != 0 && nudge(no_copy);
    if (!write_and_signal(batch)) return false;
    if (bare && batches_.size() == 1) batch.bare_since = now_ns();
  }
  return true;
}

bool CopyLane::stuck() {
  if (batches_.empty()) return false;
  const cuda::Result r = s_.driver->stream_query(s_.stream);
  // The word is read after the query: a batch that has just finished is not stuck.
  if (r == cuda::kNotReady || reached(batches_.oldest().sequence)) return false;
  TP_WARN("GPU %d: a copy batch does not finish (stream: %s): copies end in error from now on",
          s_.gpu,
          r == kSuccess ? "empty, completion word not written" : error_name(*s_.driver, r).c_str());
  return true;
}

}  // namespace twinpath::gpu
