// How the failover of a connection (failover.h) finds out that a queue cannot be used, or can be
// again: what ports say of themselves, and which queues answer.
#include <algorithm>
#include <bit>

#include "plugin/base/clock.h"
#include "proxy/connect/failover.h"
#include "proxy/connect/peer_link.h"

namespace twinpath {
namespace {

constexpr std::int64_t ns(int ms) { return ms * kMillisecond; }

}  // namespace

const FailoverPace& Failover::pace() const { return link_.set().devices().config().failover_pace; }

// Asking is a system call for each port: only after an adapter told of a change, and now and then.
void Failover::look_at_states(std::int64_t now) {
  QueueSet& set = link_.set();
  std::uint32_t changes = 0;
  for (const Rail& rail : set.rails()) changes += rail.port.adapter->events.port_changes();
  if (!health_.look_due(changes, now, ns(pace().states_ms))) return;
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
  health_.ports(rails_down, rails_moved, link_.queue_count(),
                [this](int q) { return link_.queue(q).rail; });
}

std::string Failover::left_text(const Rail& rail) const {
  if (rail.port.adapter->events.device_failed())
    return "the local device " + rail.port.port->device + " failed";
  return down_text(link_.set().devices(), rail);
}

bool Failover::outlives_adapters(std::int64_t now) {
  if (comm_ == nullptr || running()) return comm_ != nullptr;
  health_.look_anew();
  look_at_states(now);
  return (all() & ~health_.down()) != 0;
}

QueueMask Failover::unusable(std::int64_t now) const { return health_.unusable(all(), now); }

void Failover::mark_sick(int q, std::int64_t now) {
  health_.failed(q, now, ns(pace().first_pause_ms), ns(pace().longest_pause_ms));
}

void Failover::look_at_ports(std::int64_t now, bool anew) {
  if (comm_ == nullptr || link_.broken() || running()) return;
  (void)ran_.look(now);
  if (anew) health_.look_anew();
  look_at_states(now);
  const QueueMask cannot = unusable(now), in_use = link_.set().in_use();
  const QueueMask down = health_.down(), moved = health_.moved();
  if ((in_use & moved) != 0 || ((in_use & down) != 0 && (all() & ~cannot) != 0)) {
    note_trouble(now, false);
    for (int q = 0; q < link_.queue_count(); ++q)
      if ((in_use & (moved | down) & queue_bit(q)) != 0)
        if (std::string text = left_text(rail_of(q)); !text.empty()) why_ = std::move(text);
    return begin(round_.next(), why_);
  }
  // The peer looks after what it alone cannot use.
  if ((round_.mine() & ~cannot & ~in_use & link_.set().regular()) == 0) {
    back_since_ = 0;
  } else if (back_since_ == 0) {
    back_since_ = now;
    link_.call_again();  // whoever polls now may be long in coming back
  } else if (now - back_since_ >= ns(pace().settle_ms)) {
    note_trouble(now, false);
    begin(round_.next(), "a port that had failed can be used again");
  }
}

void Failover::look_for_stalls(std::int64_t now) {
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

void Failover::wake_peer(std::int64_t now) {
  if (!peer_.wake_due(now, comm_->progress(), ns(link_.set().devices().config().stall_ms))) return;
  link_.control().send(encode_failover(FailoverKind::ask));
}

void Failover::look_after(std::int64_t now) {
  look_for_stalls(now);
  link_.call_again();
  peer_.look_until(now + 3 * ns(link_.set().devices().config().stall_ms) + kSecond);
}

// To be called when no queue in use has answered for `limit`: they have half as long again, from
// when the peer's process has answered.
void Failover::all_mute(QueueMask mute, std::int64_t limit) {
  const std::int64_t ran = ran_.time(), now = now_ns();
  const int first = std::countr_zero(mute);
  if (!peer_.asked_since(questions_[static_cast<std::size_t>(first)].asked)) {
    peer_.asked(ran);
    link_.control().send(encode_failover(FailoverKind::ask));
  } else if (peer_.answered_for(limit / 2, ran)) {
    for (int q = first + 1; q < link_.queue_count(); ++q)
      if ((mute & queue_bit(q)) != 0) mark_sick(q, now);
    queue_failed(first, mute_text(first) + " while the peer's process answers");
  }
}

std::string Failover::mute_text(int q) const {
  return "queue " + std::to_string(q) + " on " + rail_of(q).port.port->name +
         " has acknowledged nothing for " +
         std::to_string((ran_.time() - questions_[static_cast<std::size_t>(q)].asked) /
                        kMillisecond) +
         " ms";
}

const Rail& Failover::rail_of(int q) const {
  return link_.set().rails()[static_cast<std::size_t>(link_.queue(q).rail)];
}

void Failover::ask(std::int64_t now) {
  if (comm_ == nullptr || running()) return;
  const std::uint64_t mark = comm_->at_risk().mark;
  for (int q = 0; q < link_.queue_count(); ++q) {
    Question& question = questions_[static_cast<std::size_t>(q)];
    if (link_.queue(q).qp == nullptr || question.asked != 0 ||
        !link_.probes().post(link_.queue(q), q))
      continue;
    question.asked = ran_.look(now);
    question.mark = mark;
  }
}

void Failover::answered(int q) {
  if (q >= link_.queue_count()) return;
  Question& question = questions_[static_cast<std::size_t>(q)];
  question.asked = 0;
  question.answered = ran_.look(now_ns());
}

std::int64_t Failover::next_look() const {
  if (comm_ == nullptr || link_.broken() || running()) return 0;  // held work, then
  if (back_since_ != 0) return back_since_ + ns(pace().settle_ms);
  const std::int64_t now = now_ns();
  // An adapter's event may come before what it tells of.
  const QueueMask mine = round_.mine();
  std::int64_t next =
      (mine & link_.set().regular()) != 0 ? health_.looked() + ns(pace().states_ms) : 0;
  if (const std::int64_t retry = health_.next_try(mine, now);
      retry != 0 && (next == 0 || retry < next))
    next = retry;
  if (const std::int64_t again =
          now + std::min(ns(link_.set().devices().config().stall_ms) / 4 + kMillisecond, kRunStep);
      looks_after(now) && (next == 0 || again < next))
    next = again;
  return next;
}

}  // namespace twinpath
