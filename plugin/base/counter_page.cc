#include "plugin/base/counter_page.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <exception>
#include <new>
#include <thread>
#include <utility>

#include "plugin/base/blocked_signals.h"
#include "plugin/base/clock.h"
#include "plugin/base/file.h"
#include "plugin/base/log.h"

namespace twinpath {

using counters::begin_change;
using counters::CommunicatorState;
using counters::end_change;
using counters::State;

namespace {

// Reserved at once: a few dozen connections.
constexpr std::size_t kReserveStep = 65536;

// As if it had never been in use.
void reset(counters::Connection& c) {
  c.messages_before = 0;
  c.since.set(0);
  c.waits_for.set(0);
  for (auto& n : c.waited_ns) n.set(0);
  for (counters::Count* n : {&c.staged_bytes, &c.failovers, &c.stopped_ns, &c.longest_stop_ns})
    n->set(0);
  for (auto& n : c.errors) n.set(0);
  for (counters::Rail& r : c.rails) {
    r.bytes.set(0);
    r.messages.set(0);
    r.timed_ns.set(0);
    r.permille.set(0);
    for (auto& n : r.buckets) n.set(0);
  }
}

}  // namespace

ConnectionCounts::ConnectionCounts()
    : own_(std::make_unique<counters::Connection>()), at_(own_.get()) {}

ConnectionCounts::ConnectionCounts(std::shared_ptr<CounterPage> page, counters::Connection* at)
    : page_(std::move(page)), at_(at) {}

ConnectionCounts::~ConnectionCounts() {
  if (page_ != nullptr) page_->close(*at_);
}

void ConnectionCounts::lost() {
  at_->state.set(static_cast<std::uint32_t>(State::lost));
  if (page_ != nullptr) page_->leave_behind_soon();
}

CounterPage::CounterPage(SharedMemory memory, std::string leave_in)
    : memory_(std::move(memory)),
      page_(new (memory_.as<void>()) counters::Process),
      leave_in_(std::move(leave_in)) {}

std::shared_ptr<CounterPage> CounterPage::create(const std::string& host,
                                                 const std::string& version,
                                                 const std::string& leave_in) {
  auto memory =
      SharedMemory::create_sparse(counters::kMemoryName, counters::kPageBytes, Writers::creator);
  if (!memory || memory->reserve(0, counters::kConnectionsAt) != Status::ok) {
    TP_INFO(init, "counters are not offered: there is no shared memory for them");
    return nullptr;
  }
  std::shared_ptr<CounterPage> made(new CounterPage(std::move(memory).take(), leave_in));
  made->reserved_ = counters::kConnectionsAt;
  counters::Process& p = *made->page_;
  put_name(p.host, host);
  put_name(p.plugin, version);
  p.pid = static_cast<std::uint32_t>(::getpid());
  p.started_ns = now_ns();
  p.started_unix_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(
                          std::chrono::system_clock::now().time_since_epoch())
                          .count();
  p.connection_bytes = sizeof(counters::Connection);
  p.connections_at = counters::kConnectionsAt;
  p.capacity = counters::kMaxConnections;
  p.version = counters::kVersion;
  // Last: a page without it is not read.
  std::atomic_ref<std::uint64_t>(p.magic).store(counters::kMagic, std::memory_order_release);
  return made;
}

counters::PortCounts* CounterPage::add_port(const std::string& name, const std::string& device,
                                            int number, int speed_mbps) {
  const std::lock_guard hold(mutex_);
  const std::uint32_t n = page_->ports_used.get();
  if (n == page_->ports.size()) return nullptr;
  counters::PortCounts& port = page_->ports[n];
  put_name(port.name, name);
  put_name(port.device, device);
  port.number = static_cast<std::uint32_t>(number);
  port.speed_mbps = static_cast<std::uint32_t>(speed_mbps);
  port.state.set(static_cast<std::uint32_t>(counters::PortState::up));
  page_->ports_used.set(n + 1);
  return &port;
}

std::uint8_t CounterPage::port(std::string_view name) const {
  for (std::uint32_t i = 0; i < page_->ports_used.get(); ++i)
    if (name == page_->ports[i].name.data()) return static_cast<std::uint8_t>(i);
  return 0;
}

counters::Connection& CounterPage::connection(std::uint32_t index) const {
  auto* first = memory_.as<std::uint8_t>() + counters::kConnectionsAt;
  return *std::launder(reinterpret_cast<counters::Connection*>(
      first + std::size_t{index} * sizeof(counters::Connection)));
}

// A closed one that was like it, a new one, or any closed one.
counters::Connection* CounterPage::place_for(const counters::Identity& who) {
  const std::uint32_t used = page_->used.load(std::memory_order_relaxed);
  counters::Connection* closed = nullptr;
  for (std::uint32_t i = 0, left = closed_; left > 0 && i < used; ++i) {
    counters::Connection& c = connection(i);
    if (c.state.get() != static_cast<std::uint32_t>(State::closed)) continue;
    --left;
    closed = &c;
    if (!(c.identity == who)) continue;
    --closed_;
    begin_change(c);
    c.messages_before += c.messages();
    for (counters::Rail& r : c.rails) r.messages.set(0);
    return &c;
  }
  if (used == counters::kMaxConnections) {
    if (closed == nullptr) return nullptr;
    --closed_;
    begin_change(*closed);
    reset(*closed);
    return closed;
  }
  const std::size_t end =
      counters::kConnectionsAt + (std::size_t{used} + 1) * sizeof(counters::Connection);
  if (end > reserved_) {
    const std::size_t to = std::min(std::max(end, reserved_ + kReserveStep), counters::kPageBytes);
    if (memory_.reserve(reserved_, to - reserved_) != Status::ok) return nullptr;
    reserved_ = to;
  }
  auto* made = new (&connection(used)) counters::Connection;
  begin_change(*made);
  return made;
}

ConnectionCounts CounterPage::open(const counters::Identity& who) {
  const std::lock_guard hold(mutex_);
  counters::Connection* c = place_for(who);
  if (c == nullptr) {
    page_->uncounted.add(1);
    return {};
  }
  c->identity = who;
  c->state.set(static_cast<std::uint32_t>(State::open));
  c->in_flight.set(0);
  c->looked_at.set(0);
  end_change(*c);
  if (c == &connection(page_->used.load(std::memory_order_relaxed)))
    page_->used.store(page_->used.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  ++open_;
  return {shared_from_this(), c};
}

counters::Communicator* CounterPage::begin_communicator(const counters::CommunicatorIdentity& who) {
  const std::lock_guard hold(mutex_);
  const std::uint32_t used = page_->communicators_used.load(std::memory_order_relaxed);
  const bool fresh = used < counters::kMaxCommunicators;
  if (!fresh && ended_.empty()) {
    page_->unnamed.add(1);
    return nullptr;
  }
  counters::Communicator& c = page_->communicators[fresh ? used : ended_.front()];
  if (!fresh) ended_.pop_front();
  begin_change(c);
  c.identity = who;
  c.state.set(static_cast<std::uint32_t>(CommunicatorState::living));
  end_change(c);
  if (fresh) page_->communicators_used.store(used + 1, std::memory_order_release);
  return &c;
}

void CounterPage::end_communicator(const void* communicator) {
  const std::lock_guard hold(mutex_);
  for (std::uint32_t i = 0; i < page_->communicators_used.load(std::memory_order_relaxed); ++i) {
    counters::Communicator& c = page_->communicators[i];
    if (&c != communicator ||
        c.state.get() != static_cast<std::uint32_t>(CommunicatorState::living))
      continue;
    ended_.push_back(i);
    c.state.set(static_cast<std::uint32_t>(CommunicatorState::ended));
  }
}

std::shared_ptr<counters::GinCounts> CounterPage::open_gin(int gpu) {
  const std::lock_guard hold(mutex_);
  const std::uint32_t used = page_->gin_used.load(std::memory_order_relaxed);
  std::uint32_t at = 0;
  // An engine may begin before the last one of its GPU has quite ended.
  while (at < used && (page_->gin[at].gpu != gpu || gin_in_use_[at])) ++at;
  if (at == page_->gin.size()) return std::make_shared<counters::GinCounts>();
  counters::GinCounts& place = page_->gin[at];
  gin_in_use_[at] = true;
  if (at == used) {
    place.gpu = gpu;
    place.place = at;
    place.since_ns = now_ns();
    page_->gin_used.store(used + 1, std::memory_order_release);
  }
  return {&place, [self = shared_from_this()](counters::GinCounts* done) {
            const std::lock_guard again(self->mutex_);
            self->gin_in_use_[done->place] = false;
          }};
}

void CounterPage::close(counters::Connection& c) {
  {
    const std::lock_guard hold(mutex_);
    c.in_flight.set(0);
    c.state.set(static_cast<std::uint32_t>(State::closed));
    ++closed_;
    if (--open_ > 0) return;
  }
  leave_behind();
}

// When one connection breaks, others follow.
void CounterPage::leave_behind_soon() {
  if (leave_in_.empty()) return;
  // The caller may hold locks that a slow file system must not hold up: no lock that is held while
  // a copy is written, and a thread of its own writes it.
  const std::atomic_ref<std::int64_t> last(copied_at_);
  const std::int64_t now = now_ns();
  std::int64_t before = last.load(std::memory_order_relaxed);
  if (now - before < kSecond ||
      !last.compare_exchange_strong(before, now, std::memory_order_relaxed))
    return;
  const BlockedSignals blocked;
  // Without a thread the last connection's end is what leaves a copy.
  try {
    std::thread([self = shared_from_this()] { self->leave_behind(); }).detach();
  } catch (const std::exception&) {
  }
}

// Names are written under the lock; counts are words that go on meanwhile, each by itself.
void CounterPage::copy_page(char* to, std::size_t bytes) {
  static_assert(counters::kConnectionsAt % sizeof(std::uint64_t) == 0 &&
                sizeof(counters::Connection) % sizeof(std::uint64_t) == 0);
  const std::lock_guard hold(mutex_);
  auto* const words = memory_.as<std::uint64_t>();
  for (std::size_t i = 0; i < bytes / sizeof *words; ++i) {
    const std::uint64_t word = std::atomic_ref(words[i]).load(std::memory_order_relaxed);
    std::memcpy(to + i * sizeof word, &word, sizeof word);
  }
}

void CounterPage::leave_behind() {
  if (leave_in_.empty()) return;
  const std::lock_guard hold(copying_);
  const std::string name = leave_in_ + "/twinpath-" + page_->host.data() + "-" +
                           std::to_string(page_->pid) + ".counters";
  const std::size_t bytes =
      counters::kConnectionsAt +
      std::size_t{page_->used.load(std::memory_order_acquire)} * sizeof(counters::Connection);
  // Neither a destructor nor a thread may throw.
  const std::unique_ptr<char[]> all(new (std::nothrow) char[bytes]);
  if (all == nullptr) return;
  copy_page(all.get(), bytes);
  const std::int64_t now = now_ns();
  std::memcpy(all.get() + offsetof(counters::Process, copied_at), &now, sizeof now);
  if (std::string why; !replace_file(name, {all.get(), bytes}, 0600, why))
    TP_WARN("the counters cannot be left in %s, which %s%s", name.c_str(), why.c_str(),
            why.find("ulimit") != std::string::npos
                ? ""
                : "; TWINPATH_METRICS_DIR names a folder that this user may write to");
}

}  // namespace twinpath
