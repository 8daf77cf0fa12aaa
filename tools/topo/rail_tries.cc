#include "tools/topo/rail_tries.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "plugin/base/clock.h"
#include "tools/topo/names.h"
#include "tools/topo/rail_end.h"

namespace twinpath::tools::topo {
namespace {

using TriedEnds = std::vector<std::unique_ptr<End>>;

void try_all(const std::vector<End*>& ends, double patience_s) {
  for (End* e : ends) e->start();
  const std::int64_t deadline = now_ns() + static_cast<std::int64_t>(patience_s * 1e9);
  const auto busy = [](const End* e) { return e->busy(); };
  while (std::any_of(ends.begin(), ends.end(), busy) && now_ns() < deadline) {
    for (End* e : ends) e->step();
    usleep(100);  // both ends may share a core, and nothing is timed to the microsecond yet
  }
  for (End* e : ends) e->give_up(patience_s);
}

// One round of the tournament, at one rank.
class Round {
 public:
  Round(NetPlugin* plugin, Group& group, const std::vector<int>& rails, const UseOfPair& use,
        int me, int other)
      : group_(group), me_(me), other_(other), most_(most_pairs(rails)) {
    if (me_ < 0 || other_ < 0) return;
    const int first = rails[static_cast<std::size_t>(std::min(me_, other_))];
    second_ = rails[static_cast<std::size_t>(std::max(me_, other_))];
    for (int p = 0; p < first * second_; ++p) {
      const PairUse good_for =
          use(std::min(me_, other_), p / second_, std::max(me_, other_), p % second_);
      ends_.push_back(nullptr);
      if (good_for == PairUse::never) continue;
      ends_.back() =
          std::make_unique<End>(*plugin, sends(), p, sends() ? p / second_ : p % second_);
      (good_for == PairUse::near ? near_ : far_).push_back(ends_.back().get());
    }
  }

  void run_all(const std::vector<int>& ranks, double patience_s) {
    start(ranks);
    try_all(near_, patience_s);
    try_all(far_, patience_s);
    const std::vector<char> good = agree(ranks);
    for (std::size_t p = 0; p < ends_.size(); ++p) {
      if (good[p] == 0) continue;
      ends_[p]->again();
      const std::int64_t deadline = now_ns() + static_cast<std::int64_t>(patience_s * 1e9);
      while (ends_[p]->busy() && now_ns() < deadline) {
        ends_[p]->step();
        usleep(0);
      }
      ends_[p]->give_up(patience_s);
    }
    (void)agree(ranks);
  }

  void add_to(std::vector<PairTry>& out) const {
    for (std::size_t p = 0; p < ends_.size(); ++p) {
      if (ends_[p] == nullptr) continue;
      PairTry t;
      t.host = std::min(me_, other_);
      t.peer = std::max(me_, other_);
      t.rail = static_cast<int>(p) / second_;
      t.peer_rail = static_cast<int>(p) % second_;
      t.connect_ms = ends_[p]->connect_ms();
      t.us = ends_[p]->us();
      t.why = ends_[p]->why();
      out.push_back(std::move(t));
    }
  }
  bool sends() const { return me_ < other_; }

 private:
  static std::size_t most_pairs(const std::vector<int>& rails) {
    const int most = rails.empty() ? 0 : *std::max_element(rails.begin(), rails.end());
    return static_cast<std::size_t>(most * most);
  }

  // Receivers listen; everybody has their handles then.
  void start(const std::vector<int>& ranks) {
    std::vector<NetHandle> mine(most_), all(most_ * static_cast<std::size_t>(group_.size()));
    if (!sends())
      for (std::size_t p = 0; p < ends_.size(); ++p)
        if (ends_[p] != nullptr) ends_[p]->listen(mine[p]);
    group_.all_gather(mine.data(), most_ * sizeof(NetHandle), all.data());
    if (ends_.empty()) return;
    const auto at = most_ * static_cast<std::size_t>(ranks[static_cast<std::size_t>(other_)]);
    for (std::size_t p = 0; p < ends_.size(); ++p) {
      if (ends_[p] == nullptr) continue;
      if (sends() && all[at + p] == NetHandle{}) ends_[p]->fail("the other end cannot listen");
      ends_[p]->goes_to(all[at + p]);
    }
  }

  // Which pairs work at both ends.
  std::vector<char> agree(const std::vector<int>& ranks) {
    std::vector<char> mine(most_, 0), all(most_ * static_cast<std::size_t>(group_.size()));
    for (std::size_t p = 0; p < ends_.size(); ++p)
      mine[p] = ends_[p] != nullptr && ends_[p]->why().empty() ? 1 : 0;
    group_.all_gather(mine.data(), most_, all.data());
    if (ends_.empty()) return mine;
    const auto at = most_ * static_cast<std::size_t>(ranks[static_cast<std::size_t>(other_)]);
    for (std::size_t p = 0; p < ends_.size(); ++p) {
      if (ends_[p] == nullptr) continue;
      if (all[at + p] == 0) ends_[p]->fail("the other end could not");
      mine[p] = ends_[p]->why().empty() ? 1 : 0;
    }
    return mine;
  }

  Group& group_;
  const int me_, other_;
  const std::size_t most_;
  int second_ = 0;
  TriedEnds ends_;                // by pair; null: not tried
  std::vector<End*> near_, far_;  // of these, in the order of their tries
};

std::string told(const std::vector<PairTry>& tries) {
  Json out = Json::array();
  for (const PairTry& t : tries)
    out.push_back({t.host, t.peer, t.rail, t.peer_rail, t.connect_ms, t.us, t.why});
  return out.dump();
}

// How much a reason explains: an end's own cause, that nothing came, that the other end failed.
int weight(const std::string& why) {
  const auto begins = [&why](std::string_view with) { return why.starts_with(with); };
  if (why.empty() || begins("the other end")) return 0;
  return begins("no connection within") || begins("connected, but") ? 1 : 2;
}

// The senders' tries, with what the receivers know of those that failed.
std::vector<PairTry> joined_tries(const std::vector<std::string>& texts) try {
  std::map<std::array<int, 4>, PairTry> out;
  for (const std::string& text : texts)
    for (const auto& j : Json::parse(text)) {
      PairTry t{j.at(0), j.at(1), j.at(2), j.at(3), j.at(4), j.at(5), j.at(6)};
      const auto [at, fresh] = out.try_emplace({t.host, t.peer, t.rail, t.peer_rail}, t);
      if (fresh) continue;
      if (at->second.why.empty() || weight(t.why) > weight(at->second.why)) at->second.why = t.why;
    }
  std::vector<PairTry> list;
  for (auto& [key, t] : out) list.push_back(std::move(t));
  return list;
} catch (const Json::exception& e) {
  throw Failure(std::string("what a rank has tried cannot be read: ") + e.what());
}

}  // namespace

int partner(int who, int round, int n) {
  // The circle method: the last one stands still, the others walk around.
  const int even = n + n % 2, walkers = even - 1;
  const auto meets = [&](int i) {
    return i == walkers ? -1 : (2 * round - i % walkers + 2 * walkers) % walkers;
  };
  int other = who == walkers ? round % walkers : meets(who);
  if (other == who) other = walkers;  // meets itself: the one who stands still
  return other >= n ? -1 : other;
}

std::vector<std::string> gather_texts(Group& group, const std::string& mine) {
  const auto size = static_cast<std::size_t>(group.size());
  std::vector<std::uint64_t> sizes(size);
  const std::uint64_t own = mine.size();
  group.all_gather(&own, sizeof own, sizes.data());
  const std::uint64_t most = *std::max_element(sizes.begin(), sizes.end());
  constexpr std::uint64_t kMost = std::uint64_t{16} << 20;
  if (most > kMost) throw Failure("a rank tells more than 16 MiB of itself; is it this program?");
  std::string padded = mine, all(size * most, '\0');
  padded.resize(most);
  group.all_gather(padded.data(), most, all.data());
  std::vector<std::string> out;
  for (std::size_t r = 0; r < size; ++r) out.push_back(all.substr(r * most, sizes[r]));
  return out;
}

std::unique_ptr<NetPlugin> open_for_tries(const std::string& path, double patience_s) {
  setenv("TWINPATH_FAILOVER", "0", 1);
  setenv("NCCL_IB_SUBNET_AWARE_ROUTING", "0", 1);
  setenv("TWINPATH_CONNECT_TIMEOUT_MS", number(patience_s * 1000, 0).c_str(), 1);
  std::string why;
  auto plugin = NetPlugin::open(path, 0, NetLog::kept, why, NetJob::none);
  if (plugin == nullptr) throw Failure(why);
  return plugin;
}

std::vector<PairTry> try_rails(NetPlugin* plugin, Group& group, const std::vector<int>& ends,
                               const std::vector<int>& rails, const UseOfPair& use,
                               double patience_s) {
  const auto n = static_cast<int>(ends.size());
  const auto own = std::find(ends.begin(), ends.end(), group.rank());
  const int me = own == ends.end() ? -1 : static_cast<int>(own - ends.begin());
  std::vector<PairTry> tries;
  for (int r = 0; r < n - 1 + n % 2; ++r) {
    Round round(plugin, group, rails, use, me, me < 0 ? -1 : partner(me, r, n));
    round.run_all(ends, patience_s);
    round.add_to(tries);
  }
  return joined_tries(gather_texts(group, told(tries)));
}

}  // namespace twinpath::tools::topo
