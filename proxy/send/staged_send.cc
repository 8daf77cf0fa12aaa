#include "proxy/send/staged_send.h"

#include "plugin/base/log.h"
#include "proxy/send/send_comm.h"

namespace twinpath {

static_assert(StagedSends::kMost == kSendSlots);

StagedSends::~StagedSends() {
  if (wait_for_copies(copying_, "a connection closed")) return;
  (void)messages_.release();
  (void)jobs_.release();
}

void StagedSends::add(const Outgoing& out, std::size_t cell_bytes, int queue) {
  Message& m = message(last_++);
  m.mirror = out.memory->mirror;
  m.out = out;
  m.out.cell = out.cell.copy(m.cell.data(), cell_bytes);
  m.out.memory = &m.mirror->memory;
  m.from = reinterpret_cast<std::uintptr_t>(out.data);
  m.out.data = m.mirror->at(m.from);
  m.plan = plan_chunks(out.bytes);
  m.started = m.popped = 0;
  m.queue = queue;
}

// On the copy thread.  The job may be used again, and its mirror freed, from each step on.
void StagedSends::copy_done(gpu::CopyJob* base, Status status) {
  auto* job = static_cast<Job*>(base);
  std::atomic<int>* copying = job->copying;
  job->mirror->leave();
  // Partner of the acquire in front(): the copied bytes are there.
  job->state.store(status == Status::ok ? State::copied : State::failed, std::memory_order_release);
  copying->fetch_sub(1);
}

bool StagedSends::start_copy(Message& m) {
  if (!m.mirror->enter()) return false;
  Job& job = jobs_[last_job_ % kStagedCopies];
  const std::size_t at = m.plan.offset(m.started);
  job.to = {reinterpret_cast<std::uintptr_t>(m.out.data) + at, -1};
  job.from = {m.from + at, m.mirror->gpu()};
  job.bytes = m.plan.size(m.started);
  job.executor = m.mirror->gpu();
  job.order = reinterpret_cast<std::uintptr_t>(this);  // front() looks at them in order
  job.done = copy_done;
  job.mirror = m.mirror.get();
  job.copying = &copying_;
  job.state.store(State::copying, std::memory_order_relaxed);
  copying_.fetch_add(1);
  if (gpu::submit_copy(&job) != Status::ok) {
    copying_.fetch_sub(1);
    m.mirror->leave();
    return false;
  }
  ++last_job_;
  ++m.started;
  return true;
}

bool StagedSends::start_copies() {
  while (starting_ != last_ && last_job_ - first_job_ < kStagedCopies) {
    Message& m = message(starting_);
    if (!start_copy(m)) return false;
    if (m.started == m.plan.count) ++starting_;
  }
  return true;
}

bool StagedSends::front(Piece& piece) {
  if (first_job_ == last_job_) return false;
  const State state = jobs_[first_job_ % kStagedCopies].state.load(std::memory_order_acquire);
  if (state == State::copying) return false;
  const Message& m = message(first_);
  piece = piece_of(m, m.popped);
  piece.copied = state == State::copied;
  return true;
}

StagedSends::Piece StagedSends::piece_of(const Message& m, int i) {
  Piece piece;
  piece.message = &m.out;
  piece.mirror = m.mirror.get();
  piece.offset = m.plan.offset(i);
  piece.bytes = m.plan.size(i);
  piece.chunks = m.plan.count;
  piece.queue = m.queue;
  return piece;
}

void StagedSends::pop() {
  ++first_job_;
  Message& m = message(first_);
  if (++m.popped < m.plan.count) return;
  m.mirror.reset();
  ++first_;
}

// --- the comm's part ----------------------------------------------------------------------

void ProxySendComm::send_staged(SendRequest& request, const Outgoing& m) {
  // Memory may have been registered on another comm of the device.
  if (staged_ == nullptr) staged_ = std::make_unique<StagedSends>();
  const ChunkPlan plan = plan_chunks(m.bytes);
  request.set_pending(plan.count);
  if (plan.count > 1) request.mark(SendRequest::kChunked);
  link_->counts()->staged_bytes.add(m.bytes);
  const int queue = queues_.lanes().next();
  trace_.leaves(queues_.lanes()[static_cast<std::size_t>(queue)], m.bytes);
  staged_->add(m, ring_.layout().field_bytes(), queue);
  // The others of its group need not wait for its copies.
  if (coalescer_.releases(m.meta)) (void)post_batch();
  start_copies();
}

void ProxySendComm::start_copies() {
  if (!staged_->start_copies())
    link_->fail(
        "GPU memory cannot be copied to host memory for sending: the CUDA driver takes no copies, "
        "or the memory was deregistered while it was being sent");
  else if (staged_->busy())
    hub_->hold(*this);  // any poll of the session goes on with it
}

void ProxySendComm::post_staged() {
  StagedSends::Piece piece;
  while (!link_->halted() && queues_.room() && staged_->front(piece)) {
    if (piece.chunks > 1 && staged_->writes() == kStagedWrites) break;
    if (!piece.copied || !piece.mirror->enter()) {
      link_->fail("%zu bytes of GPU %d cannot be sent through host memory: %s", piece.bytes,
                  piece.mirror->gpu(),
                  piece.copied ? "the memory was deregistered while it was being sent"
                               : "the copy from the GPU failed; the lines of the copy thread "
                                 "before this one name the CUDA error");
      break;
    }
    (void)post_copied(piece);
    piece.mirror->leave();
    staged_->pop();
  }
  if (!link_->halted()) start_copies();
}

Status ProxySendComm::post_copied(const StagedSends::Piece& piece) {
  const Outgoing& m = *piece.message;
  WriteMaker::Piece part = WriteMaker::whole(m);
  if (piece.chunks != 1) {
    staged_->write_posted();
    part = {piece.offset, static_cast<std::uint32_t>(piece.bytes),
            static_cast<std::uint32_t>(piece.chunks), true};
  }
  const Lane& lane = queues_.lanes()[static_cast<std::size_t>(piece.queue)];
  return queues_.post_piece(m, part, lane, requests_.at(m.slot).wr_id(), ring_.head())
             ? Status::ok
             : post_failed();
}

}  // namespace twinpath
