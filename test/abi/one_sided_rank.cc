#include "test/abi/one_sided_rank.h"

#include <thread>

#include "test/abi/net_loop.h"

namespace twinpath::test {

std::vector<Handle> OneSidedRank::all_gather(int rank, const Handle& mine) {
  std::vector<Handle> all(2);
  all[static_cast<std::size_t>(rank)] = mine;
  say_handle(mine);
  must(hear_handle(all[static_cast<std::size_t>(1 - rank)]), "the other rank's handle");
  return all;
}

// The same at both ranks, as symmetric windows are.
std::size_t OneSidedRank::window_bytes(int comm) const {
  std::size_t most = 0;
  for (int from = 0; from < 2; ++from) {
    std::size_t bytes = 0;
    for (int c = 0; c < scene_.contexts; ++c)
      bytes += kLaneHead + scene_.lanes[scene_.lane_of(comm, c, from)].bytes();
    most = std::max(most, bytes);
  }
  // What is read lies behind all that, or what was.
  most += static_cast<std::size_t>(scene_.contexts) * kStaticBytes;
  return (most + 4095) / 4096 * 4096;
}

void OneSidedRank::connect(LogSink log) {
  for (int comm = 0; comm < scene_.comms; ++comm) {
    SidedSetup setup{static_cast<Sided>(world_.table), log, side_, comm, {}, {}};
    for (int c = 0; c < scene_.contexts; ++c) {
      setup.out.push_back(scene_.lanes[scene_.lane_of(comm, c, side_)]);
      setup.in.push_back(scene_.lanes[scene_.lane_of(comm, c, 1 - side_)]);
    }
    add(comm, join(plugin_, setup, *this));
  }
}

void OneSidedRank::add(int comm, std::unique_ptr<SidedComm> made) {
  Member& m = members_.emplace_back();
  m.number = comm;
  m.comm = std::move(made);
  std::uint64_t out_at = 0, in_at = 0;
  for (int c = 0; c < scene_.contexts; ++c) {
    const std::size_t out = scene_.lane_of(comm, c, side_), in = out ^ 1;
    m.sources.emplace_back(scene_.lanes[out], out_at, m.comm->lane(c), marks_[out]);
    m.sinks.emplace_back(scene_.lanes[in], in_at, m.comm->lane(c), marks_[in]);
    out_at += kLaneHead + scene_.lanes[out].bytes();
    in_at += kLaneHead + scene_.lanes[in].bytes();
  }
}

// Collective.  False: there are no windows.
bool OneSidedRank::begin_act(Member& m) {
  const std::size_t bytes = window_bytes(m.number);
  m.out = std::make_unique<OwnPages>(bytes);
  m.in = std::make_unique<OwnPages>(bytes);
  const std::uint64_t seed = scene_.lanes[0].seed;
  const std::size_t from = bytes - kStaticBytes;
  fill_static(m.out->data() + from, seed, side_);
  for (int c = 0; c < scene_.contexts; ++c) {
    const auto at = static_cast<std::size_t>(c);
    const std::size_t to = bytes - (at + 1) * kStaticBytes;
    m.sinks[at].begin(m.in->data());
    m.sources[at].reads = {from, to, expected_.data(), m.in->data() + to};
  }
  m.windows.out = m.comm->reg(m.out->data(), bytes);
  if (m.windows.out) m.windows.in = m.comm->reg(m.in->data(), bytes);
  return static_cast<bool>(m.windows.in);
}

// Nothing is under way, neither here nor there.
void OneSidedRank::end_act(Member& m) {
  give_back(m, m.windows.out, m.out);
  give_back(m, m.windows.in, m.in);
  for (LaneSink& sink : m.sinks) sink.end();
}

// Who touches the memory from now on is found out, at once or in the end.
void OneSidedRank::give_back(Member& m, SidedWindow& window, std::unique_ptr<OwnPages>& pages) {
  if (window && m.comm != nullptr) m.comm->dereg(window);
  window = {};
  if (pages == nullptr) return;
  const std::lock_guard hold(lock_);
  pages->become_others(random_() % 2 == 0);
  // Of acts that went well only the last few: the others would be all that a process has.
  if (others_.size() >= 16) {
    if (!others_.front()->untouched()) touched_ = true;
    others_.pop_front();
  }
  others_.push_back(std::move(pages));
}

// Of a connection that is lost anything may be wrong: kernels are let go, and words jump.
bool OneSidedRank::wrong(Member& m, const std::string& what) {
  if (what.empty()) return false;
  const std::int64_t end = now_ns() + 2 * kSecond;
  while (may_lose_ && !m.comm->failed() && now_ns() < end) std::this_thread::yield();
  if (!may_lose_ || !m.comm->failed()) note(what);
  return true;
}

bool OneSidedRank::step(Member& m, std::uint64_t target) {
  for (LaneSource& source : m.sources) {
    const bool works = source.step(m.windows, m.out->data(), target);
    if (wrong(m, source.wrong()) || !works) return false;
  }
  for (LaneSink& sink : m.sinks) {
    sink.step(m.in->data());
    if (wrong(m, sink.wrong())) return false;
  }
  return true;
}

// Whether the act is over for both ranks: who gives memory back must not be written to any more.
bool OneSidedRank::over(const Member& m, std::uint64_t number) {
  const std::uint64_t target = (number + 1) * scene_.messages;
  bool all = true;
  for (int c = 0; c < scene_.contexts; ++c) {
    const auto at = static_cast<std::size_t>(c);
    const std::size_t out = scene_.lane_of(m.number, c, side_), in = out ^ 1;
    if (m.sources[at].over(target)) marks_[out].ended.store(number + 1, std::memory_order_release);
    all = all && m.sources[at].over(target) && m.sinks[at].over(target) &&
          marks_[in].ended.load(std::memory_order_acquire) > number &&
          marks_[out].verified.load(std::memory_order_acquire) == target;
  }
  return all;
}

std::uint64_t OneSidedRank::moved(const Share& share) const {
  std::uint64_t sum = 0;
  for (const Member* m : share) {
    for (const LaneSource& source : m->sources) sum += source.moved();
    for (const LaneSink& sink : m->sinks) sum += sink.moved();
  }
  return sum;
}

// False: it did not come to its end.
bool OneSidedRank::play_act(const Share& share, std::uint64_t number) {
  for (Member* m : share) {
    if (begin_act(*m)) continue;
    if (!may_lose_) note("regMrSym");
    lost_ = true;
    return false;
  }
  const std::uint64_t target = (number + 1) * scene_.messages;
  RunClock clock(kLook);
  std::uint64_t before = 0;
  std::int64_t moved_at = 0;
  for (bool all = false; !all; std::this_thread::yield()) {
    if (leave_ || lost_ || peer_ == Peer::gone) return false;
    for (Member* m : share) {
      if (step(*m, target)) continue;
      if (!may_lose_) note("a connection is lost");
      lost_ = true;
      return false;
    }
    all = true;
    for (Member* m : share) all = over(*m, number) && all;
    const std::int64_t now = clock.look(now_ns());
    const std::uint64_t ended = moved(share);
    if (ended != before) moved_at = now;
    before = ended;
    if (now - moved_at > kStuck) {
      note("nothing moves, and nothing fails");
      lost_ = true;
      return false;
    }
    // What fails without a call of ours under way is told by this alone.
    for (Member* m : share)
      if (now - moved_at > kSecond && may_lose_ && m->comm->failed()) lost_ = true;
  }
  for (Member* m : share) end_act(*m);
  return true;
}

// Who has lost a connection waits until what is under way has ended or failed.
void OneSidedRank::settle(const Share& share) {
  RunClock clock(kLook);
  for (bool all = false; !all; std::this_thread::yield()) {
    all = true;
    for (Member* m : share)
      for (int c = 0; c < scene_.contexts; ++c) all = m->comm->lane(c).settle() && all;
    if (clock.look(now_ns()) > kStuck) return note("a request of a lost connection does not end");
  }
}

void OneSidedRank::work(const Share& share) {
  try {
    for (int number = 0; number < scene_.acts; ++number)
      if (!play_act(share, static_cast<std::uint64_t>(number))) break;
    // The other rank closes when it is told, and not before.
    if (!leave_ && lost_) say_gone();
    if (!leave_ && (lost_ || peer_ == Peer::gone)) settle(share);
  } catch (const Failure& e) {
    note(e.what());
    lost_ = true;
  }
}

void OneSidedRank::wait_for_failure(Member& m) {
  RunClock clock(kLook);
  while (!m.comm->failed()) {
    for (int c = 0; c < scene_.contexts; ++c) (void)m.comm->lane(c).step();
    if (clock.look(now_ns()) > kStuck) return note("nobody says that the other rank has died");
    std::this_thread::yield();
  }
}

// In any order.
void OneSidedRank::close(Member& m) {
  const bool in_first = random_() % 2 == 0;
  const auto give_back_one = [&](bool first) {
    if (first == in_first)
      give_back(m, m.windows.in, m.in);
    else
      give_back(m, m.windows.out, m.out);
  };
  const auto order = random_() % 4;
  if (order == 0) m.comm->destroy_contexts();
  if (order < 3) give_back_one(true);
  if (order == 1) m.comm->destroy_contexts();
  if (order < 2) give_back_one(false);
  m.comm->close();
  m.windows = {};
  m.comm.reset();
  give_back_one(true);
  give_back_one(false);
}

std::string OneSidedRank::play(LogSink log) {
  try {
    Communicator communicator(*plugin_.nets.back(), log);
    try {
      connect(log);
      fill_static(expected_.data(), scene_.lanes[0].seed, 1 - side_);
      connected_ = true;
    } catch (const Failure& e) {
      if (!may_lose_ && peer_ != Peer::gone) note(e.what());
    }
    std::vector<Share> shares;
    for (Member& m : members_) {
      if (shares.empty() || scene_.threads) shares.emplace_back();
      shares.back().push_back(&m);
    }
    if (connected_)
      in_threads(
          shares, [this](const Share& share) { work(share); }, [] {});
    const bool all = connected_ && !leave_ && !lost_ && peer_ != Peer::gone && wrong_.empty();
    if (all) say_done();
    while (all && peer_ == Peer::there) watch(100);
    for (Member& m : members_) {
      if (all && !may_lose_ && m.comm->failed()) note("a healthy context has failed");
      if (connected_ && scene_.ending == Ending::kill && wrong_.empty()) wait_for_failure(m);
    }
    while (!members_.empty()) {
      std::swap(members_[random_() % members_.size()], members_.back());
      close(members_.back());
      members_.pop_back();
    }
    if (!all) say_gone();
  } catch (const Failure& e) {
    note(e.what());
    say_gone();
  }
  while (peer_ == Peer::there) watch(100);
  for (const auto& pages : others_) touched_ = touched_ || !pages->untouched();
  if (touched_) note("memory was written after it had been given back");
  return wrong_;
}

}  // namespace twinpath::test
