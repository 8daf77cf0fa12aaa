#include "proxy/queues/completion_engine.h"

#include <algorithm>
#include <array>
#include <utility>

#include "plugin/base/log.h"
#include "plugin/rdma/devices.h"
#include "plugin/rdma/queue_pair.h"

namespace twinpath {
namespace {
constexpr int kFirstEntries = 4096;
constexpr int kMostEntries = 65536;
constexpr std::size_t kMaxComms = 65536;
}  // namespace

const char* CompletionEngine::device() const {
  const ibv_device* const device = adapter_.context->device;
  return device != nullptr ? device->name : "device";
}

bool CompletionEngine::failed() const {
  adapter_.events.poll();
  return adapter_.events.completions_failed(this);
}

Result<CompletionHub::CommId> CompletionHub::add_comm() {
  thread_.start();
  std::lock_guard hold(lock);
  // Round robin over free places, so that an index rests as long as possible before its reuse.
  const std::size_t n = comms_.size();
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t at = (next_place_ + i) % n;
    if (comms_[at].used) continue;
    comms_[at].used = true;
    ++comms_[at].epoch;
    next_place_ = at + 1;
    return CommId{static_cast<std::uint16_t>(at), comms_[at].epoch};
  }
  if (n == kMaxComms) {
    TP_WARN("%zu connections are open in one communicator, more are not possible", n);
    return Status::no_memory;
  }
  comms_.push_back({nullptr, 0, true});
  return CommId{static_cast<std::uint16_t>(n), 0};
}

void CompletionHub::attach(CommId id, CompletionSink* sink) {
  std::lock_guard hold(lock);
  comms_[id.index].sink = sink;
}

void CompletionHub::drop_comm(CommId id) {
  std::lock_guard hold(lock);
  comms_[id.index].sink = nullptr;
  comms_[id.index].used = false;
}

void CompletionHub::listen(FailureListener* listener) {
  std::lock_guard hold(lock);
  listeners_.push_back(listener);
}

void CompletionHub::unlisten(FailureListener* listener) {
  std::lock_guard hold(lock);
  std::erase(listeners_, listener);
}

void CompletionHub::announce_failure(const FailureListener* failed) {
  if (!one_communicator_) return;
  for (FailureListener* other : listeners_)
    if (other != failed) other->sibling_failed();
}

Result<CompletionEngine*> CompletionHub::reserve(Adapter& adapter, int entries) {
  bool made = false;
  auto engine = find_or_make(adapter, entries, made);
  if (!made) return engine;
  std::lock_guard publish(lock);
  polled_by_thread_.push_back(*engine);
  return engine;
}

Result<CompletionEngine*> CompletionHub::reserve_locked(Adapter& adapter, int entries) {
  bool made = false;
  auto engine = find_or_make(adapter, entries, made);
  if (made) polled_by_thread_.push_back(*engine);
  return engine;
}

Result<CompletionEngine*> CompletionHub::find_or_make(Adapter& adapter, int entries, bool& made) {
  std::lock_guard hold(setup_);
  int size = kFirstEntries;
  for (auto& engine : engines_) {
    if (&engine->adapter_ != &adapter || engine->failed()) continue;
    if (engine->capacity_ - engine->reserved_ >= entries) {
      engine->reserved_ += entries;
      return engine.get();
    }
    size = std::min(engine->capacity_ * 2, kMostEntries);
  }
  ibv_device_attr attr{};
  if (verbs_.query_device(adapter.context, &attr) == 0 && attr.max_cqe > 0)
    size = std::min(size, attr.max_cqe);
  size = std::max(size, entries);
  auto engine = std::make_unique<CompletionEngine>(adapter);
  adapter.events.forget_completions(engine.get());
  auto cq =
      make_completion_queue(verbs_, adapter.context, static_cast<std::size_t>(size), engine.get());
  if (!cq) return cq.status();
  engine->cq_ = std::move(cq).take();
  engine->capacity_ = size;
  engine->reserved_ = entries;
  engines_.push_back(std::move(engine));
  made = true;
  return engines_.back().get();
}

ParcelPool* CompletionHub::parcel_pool(const Adapter& adapter) {
  std::lock_guard hold(setup_);
  for (const auto& pool : pools_)
    if (pool->adapter() == &adapter) return pool.get();
  auto made = ParcelPool::make(verbs_, adapter);
  if (made == nullptr) return nullptr;
  pools_.push_back(std::move(made));
  return pools_.back().get();
}

void CompletionHub::release(CompletionEngine* engine, int entries) {
  std::lock_guard hold(setup_);
  engine->reserved_ -= entries;
}

void CompletionHub::post_held(bool overdue) {
  for (HeldWork** at = &first_held_; *at != nullptr;) {
    HeldWork* work = *at;
    if (work->post_held(overdue)) {
      at = &work->next_held_;
      continue;
    }
    // What it called may have held others, which are put in front.
    while (*at != work) at = &(*at)->next_held_;
    *at = work->next_held_;
    work->held_ = false;
  }
}

bool CompletionHub::take_turn() {
  if (first_held_ == nullptr) return false;
  // Whoever is served may need a further engine (reserve_locked).
  for (std::size_t i = 0; i < polled_by_thread_.size(); ++i) (void)poll(*polled_by_thread_[i]);
  post_held(true);
  return true;
}

void CompletionHub::drop_held(HeldWork& work) {
  for (HeldWork** at = &first_held_; *at != nullptr; at = &(*at)->next_held_) {
    if (*at != &work) continue;
    *at = work.next_held_;
    work.held_ = false;
    return;
  }
}

inline int CompletionHub::hand_out(CompletionEngine& engine) {
  std::array<ibv_wc, kPollBatch> wc;
  const int n = ibv_poll_cq(engine.cq_.get(), kPollBatch, wc.data());
  polled_ = &engine;
  // Nobody who is told of a completion makes a comm.
  const Place* const comms = comms_.data();
  const std::size_t count = comms_.size();
  for (int i = 0; i < n; ++i) {
    const ibv_wc& c = wc[static_cast<std::size_t>(i)];
    const std::size_t comm = comm_of(c.wr_id);
    if (comm >= count) continue;
    const Place& place = comms[comm];
    // A completion may outlive its comm where a provider leaves those of a destroyed QP in the CQ.
    if (place.sink != nullptr && place.epoch == epoch_of(c.wr_id)) place.sink->on_completion(c);
  }
  return n;
}

int CompletionHub::poll(CompletionEngine& engine) {
  const int n = hand_out(engine);
  if (first_held_ != nullptr) post_held(false);
  return n;
}

int CompletionHub::take(CompletionEngine& engine) { return hand_out(engine); }

void CompletionHub::deliver(const ibv_wc& wc) {
  const std::size_t comm = comm_of(wc.wr_id);
  if (comm >= comms_.size()) return;
  const Place& place = comms_[comm];
  if (place.sink != nullptr && place.epoch == epoch_of(wc.wr_id)) place.sink->on_completion(wc);
}

}  // namespace twinpath
