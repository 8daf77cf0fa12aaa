#include "proxy/receive/flushes.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "plugin/base/log.h"

namespace twinpath {
namespace {

// Between tries to make flush queues while a port is in trouble, and how long that may take.
constexpr std::int64_t kFlushPause = 20 * kMillisecond, kFlushPatience = 10 * kSecond;

}  // namespace

Flushes::Flushes(ProxyRecvComm* comm, PeerLink& link, std::shared_ptr<SessionCore> core)
    : link_(link),
      core_(std::move(core)),
      requests_(comm),
      queues_(core_->hub, core_->devices, link.set().rails(), link.comm_id()),
      in_use_(link.set().rails_in_use()) {}

bool Flushes::wanted() const { return !core_->devices->config().gdr_flush_disable; }

std::int64_t Flushes::landed_by() const {
  return now_ns() + std::int64_t{core_->devices->config().gone_rail_ms} * kMillisecond;
}

Status Flushes::prepare() {
  std::unique_ptr<QueueSet> old;
  std::uint32_t rails = 0;
  {
    std::lock_guard hold(link_.hub().lock);
    requests_.make();
    rails = link_.set().rails_in_use();
    if (queues_.ready() && !stale_) return Status::ok;
    stale_ = false;
    old = queues_.take();
    requests_.repeat();  // what the old queues have under way is lost with them
  }
  old.reset();
  return queues_.prepare(rails, !link_.can_fail_over());
}

std::uint32_t Flushes::rails(std::uint32_t carried) {
  requests_.make();
  return requests_.rails(carried);
}

FlushRequest* Flushes::take(std::uint32_t rails, const RecvBuffer& of) {
  return requests_.take(rails, reinterpret_cast<std::uintptr_t>(of.data),
                        static_cast<const ProxyMemory*>(of.memory));
}

// Where nothing can be posted now there is a request all the same: the caller must not take the
// data for visible.
Status Flushes::begin(std::unique_lock<SpinLock>& hold, FlushRequest& f) {
  if (link_.broken()) return Status::remote;
  if (link_.halted()) return Status::ok;
  // Made at registration, unless that was through another comm; anew after a failure.
  if (!served(f)) {
    TP_TRY(try_again(hold, f));
    if (link_.halted() || !served(f)) return Status::ok;
  }
  mute_ = RunClock(kSecond);
  try_at_ = 0;
  return post(f);
}

bool Flushes::served(const FlushRequest& f) const {
  const std::uint32_t rails = f.rails() & link_.set().rails_in_use();
  for (int r = 0; rails >> r != 0; ++r)
    if ((rails >> r & 1) != 0 && !queues_.serves(r)) return false;
  return queues_.ready() && !stale_;
}

Status Flushes::try_again(std::unique_lock<SpinLock>& hold, const FlushRequest& f) {
  const std::int64_t now = now_ns();
  if (now < try_at_) return Status::ok;
  try_at_ = now + kFlushPause;
  stale_ = queues_.ready();
  hold.unlock();
  const Status s = prepare();
  hold.lock();
  if (link_.broken()) return Status::remote;
  if (s != Status::ok && !link_.can_fail_over()) return s;
  // The connection's own queues will say what is wrong with the port, or all is well soon.
  if (link_.halted() || served(f) || mute_.look(now) < kFlushPatience) return Status::ok;
  link_.fail("a port that brought data to a GPU cannot be read back through (flush)");
  return Status::remote;
}

Status Flushes::post(FlushRequest& f) {
  // What was deregistered need not be read.
  const std::uint32_t rails = f.memory_ == nullptr ? 0 : f.rails() & link_.set().rails_in_use();
  if (left_by_ != 0 && now_ns() >= left_by_) left_by_ = 0;  // no clock for later ones
  f.posting((f.rails() & ~rails) != 0 ? landed_by() : left_by_);
  for (int rail = 0; rails >> rail != 0; ++rail) {
    if ((rails >> rail & 1u) == 0) continue;
    const int error =
        queues_.post(rail, f.address_, f.memory_->rkey(rail), f.slot_, f.generation());
    if (error != 0) {
      link_.fail("cannot post a flush read: %s (errno %d)", std::strerror(error), error);
      return Status::system;
    }
    f.posted();
  }
  return Status::ok;
}

FlushRequest* Flushes::find(const ibv_wc& wc) {
  return requests_.find(slot_of(wc.wr_id), generation_of(wc.wr_id));
}

void Flushes::done(const ibv_wc& wc) {
  if (FlushRequest* f = find(wc)) f->read_done();
}

void Flushes::failed(const ibv_wc& wc) {
  stale_ = true;
  if (FlushRequest* f = find(wc)) f->read_failed(landed_by());
}

void Flushes::watch() {
  if (!watch_.call() || !watch_.due(now_ns()) || !queues_.ready() || stale_) return;
  const auto& engines = queues_.queues().engines();
  stale_ = std::any_of(engines.begin(), engines.end(),
                       [](const CompletionEngine* e) { return e->failed(); });
  if (stale_) requests_.repeat();
}

void Flushes::queues_replaced() {
  const std::uint32_t rails = link_.set().rails_in_use();
  if ((std::exchange(in_use_, rails) & ~rails) != 0) left_by_ = landed_by();
  if (queues_.ready() && !queues_.fits(link_.set().rails(), rails)) stale_ = true;
  if (stale_ || rails != link_.set().regular_rails()) requests_.repeat();
}

}  // namespace twinpath
