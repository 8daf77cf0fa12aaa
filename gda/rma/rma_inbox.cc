// See rma_inbox.h.
#include "gda/rma/rma_inbox.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "plugin/base/log.h"
#include "plugin/rdma/completion_text.h"
#include "plugin/rdma/path.h"
#include "plugin/rdma/queue_pair.h"

namespace twinpath::gda::rma {

Result<std::unique_ptr<Inbox>> Inbox::make(Team& team, std::size_t queues, const Memory& memory,
                                           GpuFlush* flush) {
  std::unique_ptr<Inbox> made(new Inbox(team));
  made->receives_ = memory.at;
  made->slots_ = slots(memory.second);
  made->values_ =
      reinterpret_cast<std::uint64_t*>(memory.at + queues * made->slots_ * Queue::kScratchSlot);
  made->lkeys_ = memory.lkeys;
  made->flush_ = flush;
  made->rows_.resize(queues);
  const Team& core = team;
  TP_TRY(made->make_loop(0, core.rail, core.limits));
  if (memory.second && made->make_loop(1, core.second->rail, core.second->limits) != Status::ok)
    core.second->lacks.store("words are not reached", std::memory_order_relaxed);
  return made;
}

Status Inbox::make_loop(int port, const Rail& rail, const AdapterLimits& limits) {
  const Team& core = team_;
  Loop& made = loops_[static_cast<std::size_t>(port)];
  auto cq = make_completion_queue(core.verbs(), rail.port.adapter->context, kBatch, core.owner());
  if (!cq) return cq.status();
  made.cq = std::move(cq).take();
  QueueSettings settings = path_settings(core.config(), core.settings);
  settings.access = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
  settings.recv_depth = 0;
  settings.send_depth = static_cast<int>(kBatch);
  auto pair = QueuePair::make(core.verbs(), rail, made.cq.get(), settings, limits);
  if (!pair) return pair.status();
  TP_TRY((*pair)->raise((*pair)->end(), "itself", true));
  made.pair = std::move(pair).take();
  return Status::ok;
}

Inbox::~Inbox() { stop(); }

void Inbox::stop() {
  for (const Loop& each : loops_)
    if (each.pair != nullptr) each.pair->stop();
  const Inbox* me = this;
  // Partner: the acquire of who adds next.  What this one has had under way is over: stop() is.
  (void)team_.adding.compare_exchange_strong(me, nullptr, std::memory_order_release,
                                             std::memory_order_relaxed);
}

Status Inbox::listen(std::size_t queue, ibv_qp* qp) {
  rows_[queue].qp = qp;
  return prepare(queue, 0, qp);
}

Status Inbox::prepare(std::size_t queue, int port, ibv_qp* qp) const {
  for (std::uint32_t slot = 0; slot < slots_; ++slot) {
    if (const int error = post(queue, slot, port, qp); error != 0) {
      TP_WARN("posting receives for signals fails: %s (errno %d); see dmesg of this host",
              std::strerror(error), error);
      return Status::system;
    }
  }
  return Status::ok;
}

int Inbox::post(std::size_t queue, std::uint32_t slot, int port, ibv_qp* qp) const {
  ibv_sge sge{reinterpret_cast<std::uintptr_t>(receive(queue, slot)), SignalMessage::kBytes,
              lkeys_[static_cast<std::size_t>(port)]};
  ibv_recv_wr wr{};
  wr.wr_id = WorkRequestId::of(queue, WorkRequestId::kSlots + slot);
  wr.sg_list = &sge;
  wr.num_sge = 1;
  ibv_recv_wr* bad = nullptr;
  return ibv_post_recv(qp, &wr, &bad);
}

bool Inbox::ask_for_last(std::size_t queue) {
  ibv_recv_wr wr{};
  wr.wr_id = WorkRequestId::of(queue, WorkRequestId::kLastReceive);
  ibv_recv_wr* bad = nullptr;
  return ibv_post_recv(rows_[queue].qp, &wr, &bad) == 0;
}

void Inbox::move(std::size_t queue, int port, ibv_qp* qp) {
  Row& row = rows_[queue];
  row.qp = qp;
  row.port = port;
  ++row.generation;
  add_over(port);
}

bool Inbox::on_receive(const ibv_wc& wc, const std::string& from) {
  const std::size_t queue = WorkRequestId::pair(wc);
  const auto slot = static_cast<std::uint32_t>(WorkRequestId::slot(wc));
  // Flushed receives: the sender, or this end's own work, tells what went wrong.
  if (wc.status != IBV_WC_SUCCESS || queue >= rows_.size() || slot >= slots_) return true;
  ++rows_[queue].taken;
  const auto message = SignalMessage::decode(receive(queue, slot));
  OwnMemory window;
  const bool known = wc.byte_len == SignalMessage::kBytes && team_.find(message.window, window);
  if (!known || window.memory.bytes < sizeof(std::uint64_t) ||
      message.offset > window.memory.bytes - sizeof(std::uint64_t) ||
      (window.memory.address + message.offset) % sizeof(std::uint64_t) != 0) {
    TP_WARN("%s: a signal came for offset %llu of window %u, where there is no word of this rank%s",
            from.c_str(), static_cast<unsigned long long>(message.offset), message.window,
            known ? "" : ": the window is not registered (any more)");
    return false;
  }
  Waiting w{.queue = static_cast<std::uint16_t>(queue),
            .slot = slot,
            .generation = rows_[queue].generation,
            .address = window.memory.address + message.offset,
            .add = message.add,
            .rkey = {window.memory.fabric_key, window.memory.second_key},
            .on_gpu = window.on_gpu};
  // The READ is posted after the poll that brought this.
  if (!w.on_gpu && flush_ != nullptr && flush_->needed()) w.ticket = flush_->request();
  waiting_.push(w);
  return true;
}

bool Inbox::turn() {
  if (phase_ != Phase::idle && !look_at_words()) return false;
  while (phase_ == Phase::idle && !waiting_.empty()) {
    if (waiting_.front().on_gpu) return begin_words();
    if (flush_ != nullptr && waiting_.front().ticket > flush_->done()) break;
    add_in_host();
  }
  return true;
}

void Inbox::add_in_host() {
  const Waiting w = waiting_.front();
  waiting_.pop();
  // Partner: the acquire of whoever waits for the signal.
  std::atomic_ref<std::uint64_t>(
      *reinterpret_cast<std::uint64_t*>(static_cast<std::uintptr_t>(w.address)))
      .fetch_add(w.add, std::memory_order_release);
  give_back(w);
}

// As many of the signals in front as are for words in GPU memory, each word once.
bool Inbox::begin_words() {
  const Inbox* nobody = nullptr;
  // Acquire and release (end_words): the next reads words that the last has written, by the
  // adapter.
  if (!team_.adding.compare_exchange_strong(nobody, this, std::memory_order_acquire)) return true;
  word_count_ = 0;
  taken_ = waiting_.first();
  for (; taken_ != waiting_.end() && waiting_[taken_].on_gpu; ++taken_) {
    const Waiting& w = waiting_[taken_];
    Word* const end = words_.data() + word_count_;
    Word* const known =
        std::find_if(words_.data(), end, [&](const Word& o) { return o.address == w.address; });
    if (known != end) {
      known->add += w.add;
      continue;
    }
    if (word_count_ == kBatch) break;
    words_[word_count_++] = {w.address, w.add, w.rkey};
  }
  phase_ = Phase::reading;
  return post_words(IBV_WR_RDMA_READ);
}

bool Inbox::post_words(ibv_wr_opcode opcode) {
  std::array<ibv_send_wr, kBatch> requests{};
  std::array<ibv_sge, kBatch> sges{};
  for (std::size_t i = 0; i < word_count_; ++i) {
    sges[i] = {reinterpret_cast<std::uintptr_t>(values_ + i), sizeof(std::uint64_t),
               lkeys_[static_cast<std::size_t>(on_)]};
    ibv_send_wr& wr = requests[i];
    wr.sg_list = &sges[i];
    wr.num_sge = 1;
    wr.opcode = opcode;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.rdma.remote_addr = words_[i].address;
    wr.wr.rdma.rkey = words_[i].rkey[static_cast<std::size_t>(on_)];
    wr.next = i + 1 < word_count_ ? &requests[i + 1] : nullptr;
  }
  ibv_send_wr* bad = nullptr;
  const int error = ibv_post_send(loop().pair->qp(), requests.data(), &bad);
  if (error != 0) return refuse(std::strerror(error), error);
  under_way_ = word_count_;
  return true;
}

bool Inbox::look_at_words() {
  std::array<ibv_wc, kBatch> wcs;
  const int n = ibv_poll_cq(loop().cq.get(), static_cast<int>(wcs.size()), wcs.data());
  if (n < 0) return refuse("its completion queue cannot be read", n);
  for (int i = 0; i < n; ++i) {
    const ibv_wc_status status = wcs[static_cast<std::size_t>(i)].status;
    if (status != IBV_WC_SUCCESS && failed_ == IBV_WC_SUCCESS) failed_ = status;
    --under_way_;
  }
  if (failed_ != IBV_WC_SUCCESS && !loop().stopped && (++failures_ == 2 || !has_other_loop()))
    return refuse(completion_hint(static_cast<ibv_wc_status>(failed_)), failed_);
  if (under_way_ != 0) return true;
  if (failed_ != IBV_WC_SUCCESS) return go_on();
  if (phase_ == Phase::writing) {
    end_words();
    return true;
  }
  // All READs have completed: the words, and that all data before their signals is in place.
  for (std::size_t i = 0; i < word_count_; ++i) values_[i] += words_[i].add;
  phase_ = Phase::writing;
  return post_words(IBV_WR_RDMA_WRITE);
}

// What is under way comes back, and goes on over the other one.
void Inbox::add_over(int port) {
  if (port == on_ || !has_other_loop()) return;
  loop().stopped = true;
  loop().pair->stop();
  if (phase_ == Phase::idle) (void)change_loop();
}

// Nothing is under way.  Over the other one, or the same where that cannot be made ready.
bool Inbox::change_loop() {
  for (const int to : {1 - on_, on_}) {
    Loop& next = loops_[static_cast<std::size_t>(to)];
    if (next.stopped && next.pair->restart() != 0) continue;
    next.stopped = false;
    on_ = to;
    return true;
  }
  return false;
}

// Nothing is under way over the one that has failed or was left any more, nor can be.
bool Inbox::go_on() {
  if (!loop().stopped)
    TP_WARN("%s: adding to signals in GPU memory fails: %s; it goes on over the other port",
            name_of(on_), completion_hint(static_cast<ibv_wc_status>(failed_)));
  loop().stopped = true;
  loop().pair->stop();
  const int failed = std::exchange(failed_, IBV_WC_SUCCESS);
  if (!change_loop()) return refuse("neither port serves", failed);
  return post_words(phase_ == Phase::reading ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE);
}

void Inbox::end_words() {
  phase_ = Phase::idle;
  failures_ = 0;
  for (; waiting_.first() != taken_; waiting_.pop()) give_back(waiting_.front());
  team_.adding.store(nullptr, std::memory_order_release);
}

void Inbox::give_back(const Waiting& done) {
  if (done.generation != rows_[done.queue].generation) return;  // of one that was left
  // An error is the queue pair's end, which its work reports.
  (void)post(done.queue, done.slot);
}

bool Inbox::refuse(const char* what, int error) const {
  TP_WARN(
      "%s: adding to a signal in GPU memory, by the adapter, fails: %s (%d); the communicator "
      "cannot "
      "be used any more; see dmesg of this host",
      name_of(on_), what, error);
  return false;
}

}  // namespace twinpath::gda::rma
