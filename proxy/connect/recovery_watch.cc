// How the recovery of a connection (recovery.h) finds out that a queue cannot be used, or can be
// again: what ports say of themselves, and which queues answer.
#include <algorithm>
#include <bit>

#include "plugin/base/clock.h"
#include "proxy/connect/peer_link.h"
#include "proxy/connect/recovery.h"

namespace twinpath {
namespace {

constexpr std::int64_t ns(int ms) { return ms * kMillisecond; }
constexpr std::int64_t kLongestWake = 2 * kSecond;

}  // namespace

const FailoverPace& Recovery::pace() const { return link_.set().devices().config().failover_pace; }

// Asking is a system call for each port: only after an adapter told of a change, and now and then.
void Recovery::look_at_states(std::int64_t now) {
  QueueSet& set = link_.set();
  std::uint32_t changes = 0;
  for (const Rail& rail : set.rails()) changes += rail.port.adapter->events.port_changes();
  if (changes == changes_ && looked_ != 0 && now - looked_ < ns(pace().states_ms)) return;
  changes_ = changes;
  looked_ = now;
  QueueMask rails_down = 0, rails_moved = 0;
  for (std::size_t r = 0; r < set.rails().size(); ++r) {
    const Rail& rail = set.rails()[r];
    const QueueMask bit = queue_bit(static_cast<int>(r));
    std::string why;
    if (!set.devices().port_active(rail.port).value_or(false) ||
        rail.port.adapter->events.device_failed())
      rails_down |= bit;
    else if (!set.devices().address_stands(rail.port, rail.gid))
      (set.devices().live(rail.port, why) ? rails_moved : rails_down) |= bit;
  }
  down_ = moved_ = 0;
  for (int q = 0; q < link_.queue_count(); ++q) {
    const int rail = link_.queue(q).rail;
    if ((rails_down >> rail & 1) != 0) down_ |= queue_bit(q);
    if ((rails_moved >> rail & 1) != 0) moved_ |= queue_bit(q);
  }
}

QueueMask Recovery::unusable(std::int64_t now) const {
  QueueMask sick = 0;
  for (int q = 0; q < link_.queue_count(); ++q)
    if (sick_[static_cast<std::size_t>(q)].until > now) sick |= queue_bit(q);
  // A doubtful one is better than none.
  return (down_ | sick) == all() ? down_ : down_ | sick;
}

void Recovery::mark_sick(int q, std::int64_t now) {
  Sick& s = sick_[static_cast<std::size_t>(q)];
  const std::int64_t longest = ns(pace().longest_pause_ms);
  // Long after the last time it begins anew.
  s.pause = s.pause == 0 || now > s.until + longest ? ns(pace().first_pause_ms)
                                                    : std::min(2 * s.pause, longest);
  s.until = now + s.pause;
}

void Recovery::leave_to_peer(QueueMask queues) {
  mine_ &= ~queues;
  for (int q = 0; q < link_.queue_count(); ++q)
    if ((queues & queue_bit(q)) != 0) sick_[static_cast<std::size_t>(q)] = {};
}

void Recovery::look_at_ports(std::int64_t now, bool anew) {
  if (comm_ == nullptr || link_.broken() || running()) return;
  (void)ran_.look(now);
  if (anew) looked_ = 0;
  look_at_states(now);
  const QueueMask cannot = unusable(now), in_use = link_.set().in_use();
  if ((in_use & moved_) != 0 || ((in_use & down_) != 0 && (all() & ~cannot) != 0)) {
    note_trouble(now, false);
    for (int q = 0; q < link_.queue_count(); ++q)
      if ((in_use & (moved_ | down_) & queue_bit(q)) != 0)
        if (const std::string down = link_.down_text(rail_of(q)); !down.empty()) why_ = down;
    return begin(round_ + 1, why_);
  }
  // The peer looks after what it alone cannot use.
  if ((mine_ & ~cannot & ~in_use & link_.set().regular()) == 0) {
    back_since_ = 0;
  } else if (back_since_ == 0) {
    back_since_ = now;
    link_.call_again();  // whoever polls now may be long in coming back
  } else if (now - back_since_ >= ns(pace().settle_ms)) {
    note_trouble(now, false);
    begin(round_ + 1, "a port that had failed can be used again");
  }
}

void Recovery::look_for_stalls(std::int64_t now) {
  const int stall_ms = link_.set().devices().config().stall_ms;
  if (comm_ == nullptr || running() || stall_ms == 0) return;
  const std::int64_t ran = ran_.look(now);
  const QueueMask in_use = link_.set().in_use();
  const AtRisk risk = comm_->at_risk();
  const bool others = (all() & ~in_use & ~unusable(now)) != 0;
  if (std::popcount(in_use) < 2 && !others) return;
  if (!risk.any) return wake_peer(now);
  QueueMask mute = 0;
  std::int64_t limit = 0;
  for (int q = 0; q < link_.queue_count(); ++q) {
    const std::int64_t asked = questions_[static_cast<std::size_t>(q)].asked;
    if ((in_use & queue_bit(q)) == 0 || asked == 0) continue;
    // What is in front of the question takes its time: a 64th of the port's speed is still alive.
    limit =
        stall_ms * kMillisecond +
        static_cast<std::int64_t>(risk.bytes * 512 / std::max(link_.queue(q).speed_mbps, 1000u)) *
            1000;
    if (ran - asked < limit) continue;
    mute |= queue_bit(q);
    for (int p = 0; p < link_.queue_count(); ++p) {
      if ((in_use & queue_bit(p)) == 0 || questions_[static_cast<std::size_t>(p)].answered <= asked)
        continue;
      return queue_failed(q, mute_text(q) + " while queue " + std::to_string(p) + " on " +
                                 rail_of(p).port.port->name + " does");
    }
  }
  if (mute == in_use && others) return all_mute(mute, limit);
  // What a question was behind has arrived when that is answered.
  bool known = true;
  for (int q = 0; q < link_.queue_count(); ++q) {
    const Question& last = questions_[static_cast<std::size_t>(q)];
    if ((in_use & queue_bit(q)) != 0)
      known = known && last.asked == 0 && last.answered != 0 && last.mark == risk.mark;
  }
  if (!known) ask(now);
}

// Nothing of ours is under way, and callers wait: for a cell, then, that the peer has not posted
// yet or that is lost.  Perhaps nobody calls there: a receive without completion is done once its
// cell is posted.  So the peer is asked to look at its queues by itself: when the wait has lasted,
// and after twice as long each time, since mostly it has nothing to offer yet.
void Recovery::wake_peer(std::int64_t now) {
  const std::int64_t first = ns(link_.set().devices().config().stall_ms);
  const std::uint64_t progress = comm_->progress();
  if (wake_at_ == 0 || progress != wake_progress_) {
    wake_progress_ = progress;
    wake_pause_ = first;
  } else if (now < wake_at_) {
    return;
  } else {
    peer_asked_ = ran_.time();
    link_.send(encode_recovery(RecoveryKind::ask));
    wake_pause_ = std::min(2 * wake_pause_, std::max(kLongestWake, first));
  }
  wake_at_ = now + wake_pause_;
}

void Recovery::look_after(std::int64_t now) {
  look_for_stalls(now);
  link_.call_again();
  looks_until_ = now + 3 * ns(link_.set().devices().config().stall_ms) + kSecond;
}

// To be called when no queue in use has answered for `limit`: they have half as long again, from
// when the peer's process has answered.
void Recovery::all_mute(QueueMask mute, std::int64_t limit) {
  const std::int64_t ran = ran_.time(), now = now_ns();
  const int first = std::countr_zero(mute);
  if (peer_asked_ < questions_[static_cast<std::size_t>(first)].asked) {
    peer_asked_ = ran;
    link_.send(encode_recovery(RecoveryKind::ask));
  } else if (peer_answered_ >= peer_asked_ && ran - peer_answered_ >= limit / 2) {
    for (int q = first + 1; q < link_.queue_count(); ++q)
      if ((mute & queue_bit(q)) != 0) mark_sick(q, now);
    queue_failed(first, mute_text(first) + " while the peer's process answers");
  }
}

std::string Recovery::mute_text(int q) const {
  return "queue " + std::to_string(q) + " on " + rail_of(q).port.port->name +
         " has acknowledged nothing for " +
         std::to_string((ran_.time() - questions_[static_cast<std::size_t>(q)].asked) /
                        kMillisecond) +
         " ms";
}

const Rail& Recovery::rail_of(int q) const {
  return link_.set().rails()[static_cast<std::size_t>(link_.queue(q).rail)];
}

void Recovery::ask(std::int64_t now) {
  if (comm_ == nullptr || running()) return;
  const std::uint64_t mark = comm_->at_risk().mark;
  for (int q = 0; q < link_.queue_count(); ++q) {
    Question& question = questions_[static_cast<std::size_t>(q)];
    if (link_.queue(q).qp == nullptr || question.asked != 0 || !link_.ask(q)) continue;
    question.asked = ran_.look(now);
    question.mark = mark;
  }
}

void Recovery::answered(int q) {
  if (q >= link_.queue_count()) return;
  Question& question = questions_[static_cast<std::size_t>(q)];
  question.asked = 0;
  question.answered = ran_.look(now_ns());
}

std::int64_t Recovery::next_look() const {
  if (comm_ == nullptr || link_.broken() || running()) return 0;  // held work, then
  if (back_since_ != 0) return back_since_ + ns(pace().settle_ms);
  const std::int64_t now = now_ns();
  // An adapter's event may come before what it tells of.
  std::int64_t next = (mine_ & link_.set().regular()) != 0 ? looked_ + ns(pace().states_ms) : 0;
  for (int q = 0; q < link_.queue_count(); ++q) {
    const std::int64_t until = sick_[static_cast<std::size_t>(q)].until;
    if ((mine_ & queue_bit(q)) != 0 && until > now && (next == 0 || until < next)) next = until;
  }
  if (const std::int64_t again =
          now + std::min(ns(link_.set().devices().config().stall_ms) / 4 + kMillisecond, kRunStep);
      looks_after(now) && (next == 0 || again < next))
    next = again;
  return next;
}

}  // namespace twinpath
