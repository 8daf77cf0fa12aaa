#include "proxy/send/staged_send.h"

#include <arpa/inet.h>

#include <mutex>

#include "plugin/base/log.h"
#include "proxy/send/send_comm.h"
#include "proxy/wire/parcel.h"

namespace twinpath {

static_assert(StagedSends::kMost == kSendSlots);

StagedSends::~StagedSends() {
  if (wait_for_copies(copying_, "a connection closed")) return;
  (void)messages_.release();
  (void)jobs_.release();
}

void StagedSends::add(std::uint16_t slot, const Outgoing& out, int queue) {
  Message& m = message(last_++);
  m.mirror = out.memory->mirror;
  m.out = out;
  m.out.memory = &m.mirror->memory;
  m.from = reinterpret_cast<std::uintptr_t>(out.data);
  m.out.data = m.mirror->at(m.from);
  m.plan = plan_chunks(out.bytes);
  m.started = m.popped = 0;
  m.queue = queue;
  m.slot = slot;
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
  piece.message = &m.out;
  piece.mirror = m.mirror.get();
  piece.offset = m.plan.offset(m.popped);
  piece.bytes = m.plan.size(m.popped);
  piece.chunks = m.plan.count;
  piece.queue = m.queue;
  piece.slot = m.slot;
  piece.copied = state == State::copied;
  return true;
}

void StagedSends::pop() {
  ++first_job_;
  Message& m = message(first_);
  if (++m.popped < m.plan.count) return;
  m.mirror.reset();
  ++first_;
}

// --- the comm's part ----------------------------------------------------------------------

void ProxySendComm::prepare_staging() {
  auto made = std::make_unique<StagedSends>();
  std::lock_guard hold(link_->hub().lock);
  if (staged_ == nullptr) staged_ = std::move(made);
}

void ProxySendComm::send_staged(SendRequest& request, const Outgoing& message) {
  // Memory may have been registered on another comm of the device.
  if (staged_ == nullptr) staged_ = std::make_unique<StagedSends>();
  const ChunkPlan plan = plan_chunks(message.bytes);
  request.pending_ = static_cast<std::uint8_t>(plan.count);
  request.chunked_ = plan.count > 1;
  staged_->add(request.slot_, message, next_queue());
  start_copies();
}

void ProxySendComm::start_copies() {
  if (!staged_->start_copies())
    link_->fail(
        "GPU memory cannot be copied to host memory for sending: the CUDA driver takes no copies, "
        "or the memory was deregistered while it was being sent");
  else if (staged_->busy())
    link_->hub().hold(*this);  // any poll of the session goes on with it
}

void ProxySendComm::post_staged() {
  // The batch refers to mirrors until it is posted.
  std::array<Mirror*, kStagedCopies> inside;
  std::size_t count = 0;
  StagedSends::Piece piece;
  while (!link_->broken() && staged_->front(piece)) {
    if (piece.chunks > 1 && staged_writes_ == kStagedWrites) break;
    if (!piece.copied || !piece.mirror->enter()) {
      link_->fail("%zu bytes of GPU %d cannot be sent through host memory: %s", piece.bytes,
                  piece.mirror->gpu(),
                  piece.copied ? "the memory was deregistered while it was being sent"
                               : "the copy from the GPU failed; the lines of the copy thread "
                                 "before this one name the CUDA error");
      break;
    }
    inside[count++] = piece.mirror;
    (void)post_piece(piece);
    staged_->pop();
  }
  if (!link_->broken()) (void)post_batch();
  for (std::size_t i = 0; i < count; ++i) inside[i]->leave();
  if (!link_->broken()) start_copies();
}

Status ProxySendComm::post_piece(const StagedSends::Piece& piece) {
  SendRequest& request = requests_[piece.slot];
  if (piece.chunks == 1) {
    const bool joins = !batch_.empty() && piece.bytes <= static_cast<std::size_t>(kParcelBytes);
    return join_batch(request, *piece.message, joins ? batch_.queue() : piece.queue);
  }
  Queue& queue = link_->queue(piece.queue);
  const Cts& cts = piece.message->cts;
  Immediate imm{cts.slot, cts.sub, cts.generation, static_cast<std::uint8_t>(piece.chunks)};
  imm.in_order = true;
  ibv_sge sge{};
  ibv_send_wr wr = data_write(*piece.message, queue, piece.offset, piece.bytes, encode(imm), sge);
  wr.send_flags |= IBV_SEND_SIGNALED;
  ibv_send_wr* bad = nullptr;
  if (const int error = ibv_post_send(queue.qp.get(), &wr, &bad); error != 0)
    return post_failed(queue, piece.bytes, error);
  ++staged_writes_;
  return Status::ok;
}

}  // namespace twinpath
