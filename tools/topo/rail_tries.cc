#include "tools/topo/rail_tries.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "plugin/base/clock.h"
#include "tools/topo/names.h"

namespace twinpath::tools::topo {
namespace {

constexpr std::size_t kBytes = std::size_t{1} << 20;
constexpr int kTag = 7;

// No other pair's bytes, and none that lie there by chance.
void write_pattern(std::vector<std::uint8_t>& bytes, int pair) {
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] =
        static_cast<std::uint8_t>(i * 31 + (i >> 8) * 7 + static_cast<std::size_t>(pair) + 1);
}

// One end of one pair.
class End {
 public:
  End(NetPlugin& plugin, bool sends, int pair, int device)
      : plugin_(plugin), sends_(sends), pair_(pair), device_(device), bytes_(kBytes) {
    if (sends_) write_pattern(bytes_, pair_);
  }
  ~End() { close(); }
  End(const End&) = delete;
  End& operator=(const End&) = delete;

  void listen(NetHandle& handle) {
    if (!good(plugin_.listen(device_, handle, &listen_), "listen")) listen_ = nullptr;
  }
  void goes_to(const NetHandle& handle) { handle_ = handle; }
  void start() { begin_ = now_ns(); }
  // Something done, or nothing left to do.
  bool busy() const { return why_.empty() && !moved_; }
  void step() {
    if (!busy()) return;
    if (comm_ == nullptr) return connect();
    if (request_ == nullptr) return post();
    int done = 0, bytes = 0;
    if (!good(plugin_.test(request_, &done, &bytes), "the transfer of 1 MiB") || done == 0) return;
    request_ = nullptr;
    us_ = static_cast<double>(now_ns() - begin_) / 1e3;
    moved_ = true;
    if (!sends_) look();
  }
  // 1 MiB more, after a first.
  void again() {
    moved_ = false;
    if (!sends_) std::fill(bytes_.begin(), bytes_.end(), std::uint8_t{0});
    begin_ = now_ns();
  }
  void give_up(double waited_s) {
    if (busy())
      why_ = std::string(comm_ == nullptr ? "no connection" : "connected, but 1 MiB did not pass") +
             " within " + number(waited_s, 0) + " s";
  }
  void fail(const std::string& why) {
    if (why_.empty()) why_ = why;
  }
  const std::string& why() const { return why_; }
  double connect_ms() const { return connect_ms_; }
  double us() const { return us_; }

 private:
  bool good(NetResult r, const char* what) {
    if (r != 0) why_ = std::string(what) + " failed: " + net_result_name(r);
    return r == 0;
  }
  void connect() {
    if (!good(sends_ ? plugin_.connect(device_, handle_, &comm_) : plugin_.accept(listen_, &comm_),
              "the connection") ||
        comm_ == nullptr)
      return;
    connect_ms_ = static_cast<double>(now_ns() - begin_) / 1e6;
    (void)good(plugin_.reg_mr(comm_, bytes_.data(), bytes_.size(), kMemoryHost, &memory_),
               "registering memory");
    begin_ = now_ns();
  }
  void post() {
    if (sends_) {
      (void)good(plugin_.isend(comm_, bytes_.data(), bytes_.size(), kTag, memory_, &request_),
                 "sending");
      return;
    }
    void* data = bytes_.data();
    std::size_t size = bytes_.size();
    int tag = kTag;
    (void)good(plugin_.irecv(comm_, 1, &data, &size, &tag, &memory_, &request_), "receiving");
  }
  void look() {
    std::vector<std::uint8_t> wanted(bytes_.size());
    write_pattern(wanted, pair_);
    if (bytes_ != wanted) why_ = "wrong bytes came";
  }
  void close() {
    if (memory_ != nullptr) (void)plugin_.dereg_mr(comm_, memory_);
    if (comm_ != nullptr) (void)(sends_ ? plugin_.close_send(comm_) : plugin_.close_recv(comm_));
    if (listen_ != nullptr) (void)plugin_.close_listen(listen_);
  }

  NetPlugin& plugin_;
  const bool sends_;
  const int pair_, device_;
  std::vector<std::uint8_t> bytes_;
  NetHandle handle_{};
  void *listen_ = nullptr, *comm_ = nullptr, *memory_ = nullptr, *request_ = nullptr;
  std::int64_t begin_ = 0;
  double connect_ms_ = 0, us_ = 0;
  bool moved_ = false;
  std::string why_;
};

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
  Round(NetPlugin* plugin, Group& group, const std::vector<int>& rails, const AreApart& apart,
        int me, int other)
      : group_(group), me_(me), other_(other), most_(most_pairs(rails)) {
    if (me_ < 0 || other_ < 0) return;
    const int first = rails[static_cast<std::size_t>(std::min(me_, other_))];
    second_ = rails[static_cast<std::size_t>(std::max(me_, other_))];
    for (int p = 0; p < first * second_; ++p) {
      ends_.push_back(
          std::make_unique<End>(*plugin, sends(), p, sends() ? p / second_ : p % second_));
      const bool far =
          apart(std::min(me_, other_), p / second_, std::max(me_, other_), p % second_);
      (far ? far_ : near_).push_back(ends_.back().get());
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
      for (std::size_t p = 0; p < ends_.size(); ++p) ends_[p]->listen(mine[p]);
    group_.all_gather(mine.data(), most_ * sizeof(NetHandle), all.data());
    if (ends_.empty()) return;
    const auto at = most_ * static_cast<std::size_t>(ranks[static_cast<std::size_t>(other_)]);
    for (std::size_t p = 0; p < ends_.size(); ++p) {
      if (sends() && all[at + p] == NetHandle{}) ends_[p]->fail("the other end cannot listen");
      ends_[p]->goes_to(all[at + p]);
    }
  }

  // Which pairs work at both ends.
  std::vector<char> agree(const std::vector<int>& ranks) {
    std::vector<char> mine(most_, 0), all(most_ * static_cast<std::size_t>(group_.size()));
    for (std::size_t p = 0; p < ends_.size(); ++p) mine[p] = ends_[p]->why().empty() ? 1 : 0;
    group_.all_gather(mine.data(), most_, all.data());
    if (ends_.empty()) return mine;
    const auto at = most_ * static_cast<std::size_t>(ranks[static_cast<std::size_t>(other_)]);
    for (std::size_t p = 0; p < ends_.size(); ++p) {
      if (all[at + p] == 0) ends_[p]->fail("the other end could not");
      mine[p] = ends_[p]->why().empty() ? 1 : 0;
    }
    return mine;
  }

  Group& group_;
  const int me_, other_;
  const std::size_t most_;
  int second_ = 0;
  TriedEnds ends_;
  std::vector<End*> near_, far_;  // of these, in the order of their tries
};

std::string told(const std::vector<PairTry>& tries) {
  Json out = Json::array();
  for (const PairTry& t : tries)
    out.push_back({t.host, t.peer, t.rail, t.peer_rail, t.connect_ms, t.us, t.why});
  return out.dump();
}

// The senders' tries, with what the receivers know of those that failed.
std::vector<PairTry> joined_tries(const std::vector<std::string>& texts) try {
  std::map<std::array<int, 4>, PairTry> out;
  for (const std::string& text : texts)
    for (const auto& j : Json::parse(text)) {
      PairTry t{j.at(0), j.at(1), j.at(2), j.at(3), j.at(4), j.at(5), j.at(6)};
      const auto [at, fresh] = out.try_emplace({t.host, t.peer, t.rail, t.peer_rail}, t);
      if (fresh) continue;
      constexpr std::string_view kOther = "the other end";
      if (!t.why.empty() && (at->second.why.empty() || at->second.why.starts_with(kOther)))
        at->second.why = t.why;
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
  auto plugin = NetPlugin::open(path, 0, NetLog::quiet, why, NetJob::none);
  if (plugin == nullptr) throw Failure(why);
  return plugin;
}

std::vector<PairTry> try_rails(NetPlugin* plugin, Group& group, const std::vector<int>& ends,
                               const std::vector<int>& rails, const AreApart& apart,
                               double patience_s) {
  const auto n = static_cast<int>(ends.size());
  const auto own = std::find(ends.begin(), ends.end(), group.rank());
  const int me = own == ends.end() ? -1 : static_cast<int>(own - ends.begin());
  std::vector<PairTry> tries;
  for (int r = 0; r < n - 1 + n % 2; ++r) {
    Round round(plugin, group, rails, apart, me, me < 0 ? -1 : partner(me, r, n));
    round.run_all(ends, patience_s);
    round.add_to(tries);
  }
  return joined_tries(gather_texts(group, told(tries)));
}

}  // namespace twinpath::tools::topo
