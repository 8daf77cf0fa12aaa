// See queue_maker.h.
#include "gda/served/queue_maker.h"

#include <pthread.h>

#include <algorithm>

namespace twinpath::gda {

QueueMaker::QueueMaker(const TwoPorts& ports, std::size_t pairs) : ports_(ports), slots_(pairs) {
  thread_ = std::thread([this] { run(); });
  (void)pthread_setname_np(thread_.native_handle(), "twinpath-gdaqp");
}

QueueMaker::~QueueMaker() {
  stop_.store(true, std::memory_order_relaxed);
  ring();
  thread_.join();
}

void QueueMaker::begin(std::size_t p, int way, Job job) {
  slots_[p].way = way;
  slots_[p].job.store(job, std::memory_order_release);  // partner: run()
  ring();
}

void QueueMaker::renew_loops(int port) {
  loops_[static_cast<std::size_t>(port)].store(true, std::memory_order_release);  // partner: run()
  ring();
}

void QueueMaker::ring() {
  rung_.fetch_add(1, std::memory_order_release);
  rung_.notify_one();
}

void QueueMaker::raise(std::size_t p, int way, const QueueWord& far) {
  slots_[p].far = far;
  begin(p, way, Job::raise);
}

QueueMaker::Answer QueueMaker::look(std::size_t p) {
  const Job job = slots_[p].job.load(std::memory_order_acquire);  // partner: run()
  if (job != Job::done && job != Job::failed) return Answer::pending;
  slots_[p].job.store(Job::none, std::memory_order_relaxed);
  return job == Job::done ? Answer::done : Answer::failed;
}

void QueueMaker::take_in(std::size_t p) {
  Slot& slot = slots_[p];
  ports_.queues(p, slot.way).swap(p, slot.pair);
  if (has_next(slot.way)) ports_.queues(p, 1 - slot.way).swap_next(p, slot.next);
}

void QueueMaker::run() {
  while (!stop_.load(std::memory_order_relaxed)) {
    const int rung = rung_.load(std::memory_order_acquire);
    bool any = false;
    for (const int port : {0, 1}) {
      if (!loops_[static_cast<std::size_t>(port)].exchange(false, std::memory_order_acquire))
        continue;
      any = true;
      (void)ports_.at(port).renew_loops();
    }
    for (std::size_t p = 0; p < slots_.size(); ++p) {
      const Job job = slots_[p].job.load(std::memory_order_acquire);
      if (job != Job::make && job != Job::raise) continue;
      any = true;
      slots_[p].job.store(work(p, job) ? Job::done : Job::failed, std::memory_order_release);
    }
    if (!any && !stop_.load(std::memory_order_relaxed)) rung_.wait(rung, std::memory_order_acquire);
  }
}

bool QueueMaker::work(std::size_t p, Job job) {
  Slot& slot = slots_[p];
  slot.pair = {};  // those before: all that they had has come back
  slot.next = {};
  if (job == Job::raise) return raise(p);
  const bool both = has_next(slot.way);
  if (!make(p, slot.way, slot.pair) || (both && !make(p, 1 - slot.way, slot.next))) return false;
  Writer w;
  encode_end(slot.pair.pair->end(), w);
  if (both) encode_end(slot.next.pair->end(), w);
  if (w.bytes().size() > slot.word.ends.size()) return false;
  slot.word.bytes = static_cast<std::uint8_t>(w.bytes().size());
  std::copy(w.bytes().begin(), w.bytes().end(), slot.word.ends.begin());
  return true;
}

bool QueueMaker::make(std::size_t p, int way, PortPairs::Renewed& into) {
  auto made = ports_.queues(p, way).renew(p, ports_.core);
  if (!made) return false;
  into = std::move(made).take();
  return true;
}

bool QueueMaker::raise(std::size_t p) {
  const Slot& slot = slots_[p];
  const bool itself = ports_.to_itself(p), both = has_next(slot.way);
  PortPairs& to = ports_.queues(p, slot.way);
  PortPairs& beside = ports_.queues(p, 1 - slot.way);
  const auto& ends = slot.far.ends;
  Reader in(std::span(ends.data(), std::min<std::size_t>(slot.far.bytes, ends.size())));
  const QueueEnd far = itself ? to.pair(p)->end() : decode_end(in);
  const QueueEnd next = !both ? QueueEnd{} : itself ? beside.next(p)->end() : decode_end(in);
  const Mesh& mesh = *ports_.core.mesh;
  const int rank = ports_.rank_of(p);
  const std::string peer = mesh.peer_text(rank);
  const bool here = mesh.on_this_host(rank);
  return in.ok() && to.raise(p, far, peer, here) == Status::ok &&
         (!both || beside.raise_next(p, next, peer, here) == Status::ok);
}

}  // namespace twinpath::gda
