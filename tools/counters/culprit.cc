// Who holds things up, in one line.
#include <algorithm>

#include "tools/common/units.h"
#include "tools/counters/summary.h"

namespace twinpath::tools {

using counters::kWaits;
using counters::Wait;

namespace {

constexpr double kWorthTelling = 0.1;
// A peer of which nothing else is known is called late from here on: ranks that exchange data at
// full speed wait for each other about half of the time.
constexpr double kSurelyLate = 0.75;
// Who waits more than one of so many parts of what another waits is no better off.
constexpr double kAlike = 3;
// Growth of a counter in a look, and in each second of it, from which on packets count as lost: an
// adapter sends again now and then for other reasons.
constexpr std::uint64_t kLost = 3;

// The port of a rail.
bool is_of(const ProcessSample& p, const RailSample& rail, const NicCounter& n) {
  return std::any_of(p.ports.begin(), p.ports.end(), [&](const PortSample& x) {
    return x.name == rail.port && x.device == n.hca && std::to_string(x.number) == n.port;
  });
}

bool about_peer(Wait wait) { return wait == Wait::peer_cts || wait == Wait::peer_data; }

const RailSample* slowest(const PeerRow& row) {
  const RailSample* slow = nullptr;
  for (const RailSample& r : row.rails)
    if (slow == nullptr || quantile(r.buckets, 0.5) > quantile(slow->buckets, 0.5)) slow = &r;
  return slow;
}

std::string duration(std::uint64_t ns) {
  if (ns < 1'000'000) return fixed(static_cast<double>(ns) * 1e-3, 0) + " us";
  if (ns < 1'000'000'000) return fixed(static_cast<double>(ns) * 1e-6, 0) + " ms";
  return fixed(static_cast<double>(ns) * 1e-9, 1) + " s";
}

double message_bytes(const PeerRow& row) {
  return row.messages_per_s > 0 ? row.bytes_per_s / row.messages_per_s : 0;
}

// Whether what the two carry may be compared.  Another job may keep fewer messages under way.
bool in_one_job(const ProcessSample& a, const ProcessSample& b) {
  const std::uint64_t one = job_of(a), other = job_of(b);
  return one == other || one == 0 || other == 0;
}

// ", over soft0 up to 64 us": the quickest of the job's other rails on the host that takes a
// quarter of this one's time or less.  Messages of less than half the size say nothing of the rail.
std::string sibling(const Summary& s, const PeerRow& row, const RailSample& slow) {
  std::string out;
  std::uint64_t best = quantile(slow.buckets, 0.5) / 4 + 1;
  for (const PeerRow& other : s.rows) {
    const ProcessSample &mine = s.processes[row.process], &its = s.processes[other.process];
    if (its.host != mine.host || !in_one_job(mine, its) ||
        message_bytes(other) < message_bytes(row) / 2)
      continue;
    for (const RailSample& r : other.rails) {
      const std::uint64_t q = quantile(r.buckets, 0.5);
      if (r.port == slow.port || q == 0 || q >= best) continue;
      best = q;
      out = ", over " + r.port + " up to " + duration(q);
    }
  }
  return out;
}

// The port of the row whose counters of that kind have grown most, with what has grown:
// "completer_retry_err 30, rcvd_seq_err 4".  No port where it is not worth telling.
struct Lossy {
  std::string port, grown;
};
Lossy lossy(const Summary& s, const PeerRow& row, NicTrouble trouble) {
  Lossy out;
  std::uint64_t most = 0;
  const ProcessSample& p = s.processes[row.process];
  for (const RailSample& rail : row.rails) {
    std::string text;
    std::uint64_t here = 0;
    for (const NicChange& n : s.nics) {
      if (n.counter.trouble != trouble || n.grown == 0 || !is_of(p, rail, n.counter)) continue;
      here = std::max(here, n.grown);
      text += (text.empty() ? "" : ", ") + n.counter.name + " " + std::to_string(n.grown);
    }
    if (here < kLost || static_cast<double>(here) < s.seconds || here <= most) continue;
    most = here;
    out = {rail.port, text};
  }
  return out;
}

// Of the way by which a receiver's data comes: what the sender's port says, if the sender is looked
// at, else what its own does.
Lossy lossy_way(const Summary& s, const PeerRow& row) {
  const ProcessSample& me = s.processes[row.process];
  bool seen = false;
  for (const PeerRow& other : s.rows) {
    const ProcessSample& p = s.processes[other.process];
    if (p.host != row.peer_host || p.inner_pid != static_cast<int>(row.peer_pid)) continue;
    seen = true;
    if (other.role != counters::Role::sender || other.peer_host != me.host ||
        static_cast<int>(other.peer_pid) != me.inner_pid)
      continue;
    if (Lossy rail = lossy(s, other, NicTrouble::retransmission); !rail.port.empty()) return rail;
  }
  return seen ? Lossy() : lossy(s, row, NicTrouble::out_of_sequence);
}

// What is known of the peer that a row is about.
enum class Peer { unseen, busy, waits };

struct Seen {
  Peer peer = Peer::unseen;
  double share = 0;  // of its waiting
};

// Whoever waits himself, for this row's process or another, holds up nobody.
Seen look_at_peer(const Summary& s, const PeerRow& row) {
  Seen seen;
  for (std::size_t i = 0; i < s.processes.size(); ++i)
    if (s.processes[i].host == row.peer_host &&
        s.processes[i].inner_pid == static_cast<int>(row.peer_pid))
      seen.peer = Peer::busy;
  for (const PeerRow& other : s.rows) {
    const ProcessSample& p = s.processes[other.process];
    if (p.host != row.peer_host || p.inner_pid != static_cast<int>(row.peer_pid)) continue;
    if (other.waiting() * kAlike <= row.waiting()) continue;
    seen.peer = Peer::waits;
    seen.share = std::max(seen.share, std::min(other.waiting(), 1.0));
  }
  return seen;
}

std::string percent(double share) { return fixed(100 * share, 0) + "%"; }

std::string late(const Summary& s, const PeerRow& row, double share) {
  const bool sure = share >= kSurelyLate || look_at_peer(s, row).peer == Peer::busy;
  return row.peer + (sure ? " is late: " : " may be late: ");
}

std::string network(const Summary& s, const PeerRow& row, const std::string& waits) {
  const std::string what = waits + " for what it sends to " + row.peer;
  if (const std::optional<SlowRail> behind = slow_rail(row, s.processes[row.process]))
    return "rail " + behind->port + " is slow: " + what + "; it " + behind->gets;
  const RailSample* rail = slowest(row);
  const std::uint64_t p50 = rail != nullptr ? quantile(rail->buckets, 0.5) : 0;
  if (p50 == 0) return "rail " + row.device + " is the limit: " + what;
  const std::string others = sibling(s, row, *rail);
  return "rail " + rail->port + (others.empty() ? " is the limit: " : " is slow: ") + what +
         "; every other message takes up to " + duration(p50) + others;
}

void tell(const Summary& s, Summary::Culprit& c) {
  const PeerRow& row = s.rows[c.row];
  const std::string waits = name_of(s.processes[row.process]) + row.member.in_words() + " waits " +
                            percent(c.share) + " of the time";
  switch (c.wait) {
    case Wait::peer_cts:
      c.text = late(s, row, c.share) + waits +
               " for its clear-to-send; that rank or its GPU takes nothing in";
      break;
    case Wait::peer_data: {
      const Lossy rail = lossy_way(s, row);
      c.packets_lost = !rail.port.empty();
      c.text =
          c.packets_lost
              ? "rail " + rail.port + " loses packets: " + waits + " for data of " + row.peer +
                    "; in " + fixed(s.seconds, 1) + " s its port counted " + rail.grown
              : late(s, row, c.share) + waits +
                    " for its data; that rank or its GPU sends nothing, or its network is slow";
      break;
    }
    case Wait::network: {
      const Lossy rail = lossy(s, row, NicTrouble::retransmission);
      c.packets_lost = !rail.port.empty();
      c.text = c.packets_lost ? "rail " + rail.port + " loses packets: " + waits +
                                    " for what it sends to " + row.peer + "; in " +
                                    fixed(s.seconds, 1) + " s its port sent again: " + rail.grown
                              : network(s, row, waits);
      break;
    }
    case Wait::flush:
      c.text = "flushes over " + row.device + " are slow: " + waits +
               " until its GPU may see what came from " + row.peer;
      break;
    case Wait::gpu_copy:
      c.text = "copies through host memory are slow: " + waits + " for them, with " + row.peer +
               " over " + row.device + " (" + row.path + ": " + row.reason + ")";
      break;
    case Wait::slots:
      c.text = "too few slots: all requests of its connections with " + row.peer + " are in use, " +
               waits + " for one; more channels would carry more";
      break;
  }
}

// Who waits for each other, as all ranks of a ring do, of whom none is to blame.
std::string alike(const Summary& s, const PeerRow& row, double share) {
  std::string out = "no rank is late alone: " + name_of(s.processes[row.process]) +
                    row.member.in_words() + " waits " + percent(share) + " of the time for " +
                    row.peer + ", which waits " + percent(look_at_peer(s, row).share) + " itself";
  if (row.stalled_s >= 1) out += "; nothing has moved for " + fixed(row.stalled_s, 0) + " s";
  return out;
}

}  // namespace

// Waiting for data says least of all: the cause is at the other end, or between.
void find_culprit(Summary& s) {
  double most = -1, most_alike = -1;
  for (std::size_t i = 0; i < s.rows.size(); ++i) {
    const PeerRow& row = s.rows[i];
    for (std::size_t w = 0; w < kWaits; ++w) {
      if (row.share[w] < kWorthTelling) continue;
      const auto wait = static_cast<Wait>(w);
      const double share = std::min(row.share[w], 1.0);
      if (about_peer(wait) && look_at_peer(s, row).peer == Peer::waits) {
        if (share <= most_alike) continue;
        most_alike = share;
        s.first_line = alike(s, row, share);
        continue;
      }
      const double weight = share * (wait == Wait::peer_data ? 0.5 : 1);
      if (weight <= most) continue;
      most = weight;
      s.culprit = {i, wait, share, false, {}};
    }
  }
  if (s.culprit) {
    tell(s, *s.culprit);
    s.first_line = s.culprit->text;
  } else if (s.first_line.empty()) {
    s.first_line = "nobody waits for a tenth of the time for a peer or the network";
  }
}

}  // namespace twinpath::tools
