#include "proxy/connect/failover.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <mutex>

#include "plugin/base/clock.h"
#include "plugin/base/log.h"
#include "proxy/connect/peer_link.h"
#include "proxy/queues/ece.h"
#include "proxy/queues/receive_queue.h"

namespace twinpath {
namespace {

// An adapter flushes its queues at once.
constexpr std::int64_t kFlushLimit = 5 * kSecond;
// AsyncEvents::taken_away is not sure of it before a second has passed.
constexpr std::int64_t kLeastTaking = 2 * kSecond;
constexpr std::int64_t kHoldLook = 20 * kMillisecond;
// An address that does not resolve may do so a moment later; another rail is there at once.
constexpr std::int64_t kRaiseLimit = 300 * kMillisecond;

// How long an adapter tries to send before it gives up: 4.096 us * 2^timeout each time (IB spec
// vol. 1, 9.7.6.1.3), 0 without end.
std::int64_t adapter_patience(int timeout, int retries) {
  if (timeout == 0) return std::numeric_limits<std::int64_t>::max();
  return (std::int64_t{4096} << timeout) * (retries + 1);
}

}  // namespace

Failover::~Failover() {
  const std::lock_guard hold(link_.hub().lock);
  link_.hub().drop_held(*this);
}

QueueMask Failover::all() const { return link_.set().all(); }

// A queue that fails again before anything was achieved is the old trouble.
void Failover::note_trouble(std::int64_t now, bool may_be_old) {
  const std::uint64_t progress = comm_->progress();
  if (!may_be_old || trouble_ran_ == 0 || progress != last_progress_) trouble_ran_ = ran_.look(now);
}

// One port alone may be away for as long as its adapter would try by itself: to leave it is to
// gain.
bool Failover::out_of_time() const {
  const Config& config = link_.set().devices().config();
  std::int64_t hold = std::int64_t{config.failover_hold_ms} * kMillisecond;
  if (std::popcount(link_.set().regular_rails()) == 1 && link_.peer().regular == 1)
    hold = std::max(hold, adapter_patience(config.ib_timeout, config.ib_retry_cnt));
  return ran_.time() - trouble_ran_ > hold;
}

void Failover::give_up() {
  link_.fail("%s; no port has brought anything through for %lld ms (TWINPATH_FAILOVER_HOLD_MS)",
             why_.c_str(), static_cast<long long>((ran_.time() - trouble_ran_) / kMillisecond));
}

void Failover::queue_failed(int q, const std::string& why) {
  const std::int64_t now = now_ns();
  (void)ran_.look(now);
  health_.look_anew();  // events may lag behind completions
  look_at_states(now);
  if (q < link_.queue_count() && ((health_.down() | health_.moved()) & queue_bit(q)) == 0)
    mark_sick(q, now);
  // The rest of what a halted or given-up queue says is no news.
  if (running()) return;
  note_trouble(now, true);
  why_ = why;
  if (out_of_time()) return give_up();
  begin(round_.next(), why);
}

void Failover::enter(Phase phase, std::int64_t now) {
  constexpr std::array parts{StopClock::Part::agree,   StopClock::Part::agree,
                             StopClock::Part::drain,   StopClock::Part::exchange,
                             StopClock::Part::connect, StopClock::Part::wait};
  phase_ = phase;
  phase_since_ = now;
  phase_ran_ = ran_.look(now);
  clock_.turn(parts[static_cast<std::size_t>(phase)], now);
}

void Failover::begin(std::uint32_t round, const std::string& why) {
  const std::int64_t now = now_ns();
  health_.look_anew();
  look_at_states(now);
  round_.begin(round, unusable(now));
  if (!running()) {
    clock_.start(now);
    why_ = why;
    aloud_ = !why.empty() && link_.tell("stops and goes on: " + why);
  }
  enter(Phase::stopping, now);
  back_since_ = 0;
  link_.stopped(true);
  link_.control().send(
      encode_failover(StopNote{round, round_.mine(), round_.mine() & health_.down(), why}));
  link_.hub().hold(*this);
}

// The round has failed: the next one a little later, so that a port which lies about its state
// costs no more than that.
void Failover::try_again(std::int64_t now, QueueMask failed, const std::string& why) {
  for (int q = 0; q < link_.queue_count(); ++q)
    if ((failed & queue_bit(q)) != 0) mark_sick(q, now);
  why_ = why;
  enter(Phase::holding, now);
  again_at_ = now + std::min(kHoldLook << std::min(failures_++, 6), kSecond);
}

bool Failover::hear(FailoverKind kind, std::span<const std::uint8_t> body) {
  if (comm_ == nullptr) return true;  // it closes
  switch (kind) {
    case FailoverKind::stop: {
      StopNote note;
      if (!decode_failover(body, note)) return false;
      const std::int32_t ahead = round_.ahead(note.round);
      if (ahead < 0 || (ahead == 0 && !running())) return true;  // overtaken by a later one
      if (ahead > 0) {
        if (!running()) note_trouble(now_ns(), false);
        if (!note.why.empty()) why_ = "the peer says: " + note.why;
        begin(note.round, running() ? std::string() : why_);
      }
      // No fault of the path: the peer's ports are down, and it will tell when they are not.
      round_.leave_to_peer(note.down & ~health_.down());
      health_.forgive(note.down & ~health_.down());
      round_.hear(std::move(note));
      return true;
    }
    case FailoverKind::fenced: {
      FencedNote note;
      if (!decode_failover(body, note)) return false;
      round_.hear(std::move(note));
      return true;
    }
    case FailoverKind::ready: {
      std::uint32_t round = 0;
      if (!decode_ready(body, round)) return false;
      round_.hear_ready(round);
      return true;
    }
    case FailoverKind::ask:
      // That this process runs; unless the peer has not read what it was told before.
      if (link_.control().sent()) link_.control().send(encode_failover(FailoverKind::answer));
      look_after(now_ns());
      return true;
    case FailoverKind::answer:
      peer_.answered(ran_.look(now_ns()));
      return true;
  }
  return false;
}

bool Failover::post_held(bool) {
  if (comm_ == nullptr) return false;  // it closes
  go_on(now_ns());
  return running() && !link_.broken();
}

void Failover::go_on(std::int64_t now) {
  (void)ran_.look(now);
  link_.exchange_words(now);
  while (running() && !link_.broken() && step(now)) {
  }
}

bool Failover::step(std::int64_t now) {
  switch (phase_) {
    case Phase::whole:
      return false;
    case Phase::stopping:
      if (!round_.agree()) return false;
      link_.set().halt();
      enter(Phase::flushing, now);
      return true;
    case Phase::flushing:
      return fence(now);
    case Phase::meeting:
      return round_.their_fence() != nullptr && raise(now);
    case Phase::raising:
      if (!round_.they_are_ready()) return false;
      finish();
      return true;
    case Phase::holding:
      if (now - phase_since_ < kHoldLook) return false;
      phase_since_ = now;
      look_at_states(now);
      if (unusable(now) == round_.mine()) {
        if (out_of_time()) give_up();
        if (link_.broken() || again_at_ == 0 || now < again_at_) return false;
      }
      begin(round_.next(), "");
      return true;
  }
  return false;
}

// A rail of a failed adapter that something may still come of; null: there is none, and nothing
// comes any more of the queues in `gone`.
const Rail* Failover::awaited(std::int64_t now, QueueMask& gone) {
  for (int q = 0; q < link_.queue_count(); ++q) {
    Queue& queue = link_.queue(q);
    if (queue.qp == nullptr) continue;
    AsyncEvents& events = rail_of(q).port.adapter->events;
    events.poll();
    // What does not answer will be told of.
    if (!events.device_failed() &&
        (queue.halted || link_.set().devices().port_active(rail_of(q).port))) {
      if (queue.engine->failed()) link_.set().leave_engine(queue);
      continue;
    }
    if (!events.taken_away(now)) return &rail_of(q);
    // What it had completed before lies in memory.
    while (link_.hub().take(*queue.engine) > 0) {
    }
    gone |= queue_bit(q);
  }
  return nullptr;
}

bool Failover::drained(std::int64_t now) {
  QueueMask gone = 0;
  if (const Rail* const rail = awaited(now, gone); rail != nullptr) {
    const std::int64_t hold = link_.set().devices().config().failover_hold_ms * kMillisecond;
    if (ran_.time() - phase_ran_ > std::max(hold, kLeastTaking))
      link_.fail("%s; the local device %s failed, and its driver does not take it away; see dmesg",
                 why_.c_str(), rail->port.port->device.c_str());
    return false;
  }
  if (!receives_posted_ || comm_->drained(gone)) return true;
  if (ran_.time() - phase_ran_ > kFlushLimit)
    link_.fail("%s, and an adapter does not give its receives back", why_.c_str());
  return false;
}

bool Failover::fence(std::int64_t now) {
  if (!drained(now)) return false;
  if (!comm_->settled()) return false;  // copies end by themselves, also when the driver dies
  // The event came behind the completions.  What it tells of is no port's, and comes again.
  if (link_.set().any_request_refused()) {
    link_.fail("%s: %s", why_.c_str(), kRequestRefused);
    return false;
  }
  clock_.turn(StopClock::Part::renew, now);
  FencedNote note;
  note.round = round_.number();
  note.held = comm_->held();
  if (link_.broken()) return false;
  note.made = link_.set().choose(all() & ~round_.unwanted());
  receives_posted_ = false;
  if (note.made == 0) {
    enter(Phase::holding, now);
    again_at_ = 0;
    return true;
  }
  QueueMask failed = 0;
  std::string why;
  if (link_.set().remake(note.made, failed, why) != Status::ok ||
      renew_extras(link_.set(), failed, why) != Status::ok) {
    try_again(now, failed, why);
    return true;
  }
  if (comm_->reach(note, why) != Status::ok) {
    try_again(now, note.made, why);
    return true;
  }
  note.queues = link_.set().addresses();
  for (const Rail& rail : link_.set().rails()) note.rails.push_back(rail.hello());
  link_.control().send(encode_failover(note));
  enter(Phase::meeting, now_ns());
  return true;
}

bool Failover::raise(std::int64_t now) {
  clock_.turn(StopClock::Part::connect, now);
  QueueSet& set = link_.set();
  const FencedNote& theirs = *round_.their_fence();
  if (theirs.made != set.in_use() || theirs.rails.size() != link_.peer().rails.size()) {
    link_.fail("the peer made other queues than was agreed");
    return false;
  }
  link_.peer_.rails = theirs.rails;
  std::vector<QueueAddress> to(static_cast<std::size_t>(link_.queue_count()));
  std::size_t next = 0;
  for (int q = 0; q < link_.queue_count(); ++q)
    if ((theirs.made & queue_bit(q)) != 0) to[static_cast<std::size_t>(q)] = theirs.queues[next++];
  std::string why;
  if (const Status s = set.raise(link_.peer().rails, to, why); s != Status::ok) {
    if (s == Status::again && ran_.time() - phase_ran_ < kRaiseLimit) return false;
    try_again(now, queue_bit(set.moving()), why);
    return true;
  }
  if (set.receive_depth() > 1 && !prepost_receives(set, link_.comm_id())) {
    try_again(now, 0, "the receive queues cannot be filled");
    return true;
  }
  receives_posted_ = set.receive_depth() > 1;
  comm_->receives_posted();
  link_.control().send(encode_ready(round_.number()));
  enter(Phase::raising, now_ns());
  return true;
}

void Failover::finish() {
  phase_ = Phase::whole;
  failures_ = 0;
  questions_ = {};
  link_.stopped(false);
  const FencedNote theirs = round_.take_fence();
  const int again = comm_->resume(theirs);
  if (again < 0 || link_.broken()) return;
  counters::Connection& counts = *link_.counts();
  const std::int64_t now = now_ns();
  const auto stopped = static_cast<std::uint64_t>(clock_.total(now));
  counts.failovers.add(1);
  counts.stopped_ns.add(stopped);
  counts.longest_stop_ns.set(std::max(counts.longest_stop_ns.get(), stopped));
  const QueueMask in_use = link_.set().in_use();
  std::string rails;
  for (std::size_t r = 0; r < link_.set().rails().size(); ++r) {
    bool used = false;
    for (int q = 0; q < link_.queue_count(); ++q)
      used = used || ((in_use & queue_bit(q)) != 0 && link_.queue(q).rail == static_cast<int>(r));
    if (used) rails += (rails.empty() ? "" : ", ") + link_.set().rails()[r].port.port->name;
  }
  // Who looked while the round went on was told no time for the next look; the port that was left
  // is to be tried again although no caller may ever wait.
  link_.call_again();
  link_.tell("goes on over " + rails + " (" + std::to_string(std::popcount(in_use)) + " of " +
                 std::to_string(link_.queue_count()) + " queues) after " + clock_.text(now) + "; " +
                 std::to_string(again) +
                 (again == 1 ? " message was sent again" : " messages were sent again"),
             0, aloud_);
  last_progress_ = comm_->progress();
}

}  // namespace twinpath
