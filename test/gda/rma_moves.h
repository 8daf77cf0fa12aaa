#pragma once
// Ranks whose first port fails while their hosts put and get (RMA), for tests; the faults are those
// of moves.h.
//
// Threads: ranks are threads or processes; `fault` and `alone` are set before they begin.
#include <algorithm>
#include <future>
#include <initializer_list>
#include <thread>
#include <vector>

#include "test/gda/gpu_window.h"
#include "test/gda/moves.h"
#include "test/gda/rma_ranks.h"

namespace twinpath::test {

inline constexpr std::uint64_t kHeld = 20;  // turns for which taken memory is looked at

// `Memory` with bytes that are known.
template <class Memory>
struct RmaPatternIn : Memory {
  using Memory::Memory;
  void fill(unsigned seed, std::size_t at, std::size_t bytes) {
    of(seed).fill(this->data() + at, bytes);
  }
  bool has(unsigned seed, std::size_t at, std::size_t bytes) {
    return of(seed).differs_at(this->data() + at, bytes) == bytes;
  }

 private:
  static KnownBytes of(unsigned seed) { return KnownBytes(seed * 37 + seed / 256 + 1); }
};
using RmaPattern = RmaPatternIn<RmaMemory>;
using RmaGpuData = RmaPatternIn<RmaGpuMemory>;

// Queues from each rank to each: the second one of two contexts is idle, and of a port that loses
// all without a word only those learn that use it.
inline std::size_t queues_of(const Fault& one) { return one.down ? 2 : 1; }

inline RmaMember rma_join_first(Rank& r) {
  const bool merged = alone || r.rank != 0 || r.devices->merge(std::array{0, 1});
  r.meeting->barrier();
  return merged ? rma_join(r, {.contexts = 2}, alone ? 0 : last_device(r)) : RmaMember{};
}

// All that ranks do is join.
inline std::string rma_meets(Rank& r) {
  const RmaMember member = rma_join_first(r);
  EXPECT_GIN(member.context);
  r.meeting->barrier();
  return {};
}

// What `wait` comes to, while this rank makes the progress that its queues need.
template <class Wait>
bool driven(std::initializer_list<gda::RmaContext*> contexts, Wait wait) {
  auto over = std::async(std::launch::async, wait);
  while (over.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
    for (gda::RmaContext* context : contexts) (void)context->progress();
    sched_yield();
  }
  return over.get();
}

// Whether its context fails within 20 s; an RMA context is driven meanwhile, as NCCL does.
template <class Joined>
bool fails_in_time(Joined& member) {
  const std::int64_t end = now_ns() + 20 * kSecond;
  while (!member.context->failed() && now_ns() < end) {
    if constexpr (requires { member.context->progress(); }) (void)member.context->progress();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return member.context->failed();
}

// What one rank does with all others, itself included, over one context, in turns of one thread as
// NCCL has it: puts into slots there, each when it is free again; takes what has come into its own,
// has that memory for itself for a while, and gives it back by a signal.  Gets in between.
template <class Words, class Data>
class Play {
 public:
  Play(Rank& r, RmaMember& member)
      : me_(r.rank),
        context_(*member.context),
        out_(*member.comm, kSlot * kSlots * static_cast<std::size_t>(r.ranks)),
        in_(*member.comm, kSlot * kSlots * static_cast<std::size_t>(r.ranks)),
        fetched_(*member.comm, 4096 * static_cast<std::size_t>(r.ranks)),
        fixed_(*member.comm, 4096),
        words_(*member.comm, 16 * static_cast<std::size_t>(r.ranks)),
        peers_(static_cast<std::size_t>(r.ranks)) {
    if (fixed_) fixed_.fill(1000 + static_cast<unsigned>(r.rank), 0, 4096);
  }
  explicit operator bool() const { return out_ && in_ && fixed_ && fetched_ && words_; }

  std::string run() {
    std::int64_t end = now_ns() + kLimit;
    for (bool done = false; !done;) {
      if (rounds > kForAsLong) end = now_ns() + kLimit;  // the striker has limits of its own
      done = true;
      EXPECT_RMA_OK(context_.progress());
      for (int p = 0; p < ranks(); ++p) {
        if (std::string wrong = send(p); !wrong.empty()) return wrong;
        if (std::string wrong = take(p); !wrong.empty()) return wrong;
        done &= over(p);
      }
      EXPECT_GIN(now_ns() < end, me_, static_cast<std::int64_t>(peers_[0].sent),
                 static_cast<std::int64_t>(peers_[0].taken));
      sched_yield();
    }
    return {};
  }
  std::string check() {
    for (int p = 0; p < ranks(); ++p) {
      EXPECT_GIN(words_.word(data_word(p)) == rounds && words_.word(credit_word(p)) == rounds, me_,
                 static_cast<std::int64_t>(words_.word(data_word(p))),
                 static_cast<std::int64_t>(words_.word(credit_word(p))));
      for (std::uint64_t last = rounds - kSlots; last < rounds; ++last)
        EXPECT_GIN(in_.has(77, slot_of(p, last), bytes_of(p, me_, last)), me_, p);
    }
    return {};
  }

 private:
  struct Peer {
    std::uint64_t sent = 0, taken = 0, held = 0;
    std::array<gda::RmaRequest*, kSlots> puts{};
    std::vector<gda::RmaRequest*> others;  // half puts, credits
    gda::RmaRequest *get = nullptr, *flush = nullptr;
  };
  int ranks() const { return static_cast<int>(peers_.size()); }
  int queue_of(int p) const { return (p + me_) % 2; }  // both ends the same
  std::size_t data_word(int p) const { return 8 * static_cast<std::size_t>(p); }
  std::size_t credit_word(int p) const { return 8 * static_cast<std::size_t>(ranks() + p); }

  // Clears it once it is done.
  static std::string ends(gda::RmaRequest*& request) {
    bool done = false;
    if (request == nullptr) return {};
    EXPECT_RMA_OK(request->test(done));
    if (done) request = nullptr;
    return {};
  }

  std::string send(int p) {
    Peer& peer = peers_[static_cast<std::size_t>(p)];
    for (gda::RmaRequest*& request : peer.puts)
      if (std::string wrong = ends(request); !wrong.empty()) return wrong;
    for (gda::RmaRequest*& request : peer.others)
      if (std::string wrong = ends(request); !wrong.empty()) return wrong;
    std::erase(peer.others, nullptr);
    if (std::string wrong = fetch(p, peer); !wrong.empty()) return wrong;
    const std::uint64_t round = peer.sent;
    for (std::uint64_t far = furthest;
         far < round && !furthest.compare_exchange_weak(far, round);) {
    }
    gda::RmaRequest*& request = peer.puts[round % kSlots];
    if (round >= rounds / 2 && !has_struck) return {};
    if (round == rounds || request != nullptr || !peer.others.empty()) return {};
    if (round >= kSlots && words_.word(credit_word(p)) < round - kSlots + 1) return {};
    const std::size_t bytes = bytes_of(me_, p, round), at = slot_of(p, round),
                      there = slot_of(me_, round);
    out_.fill(seed_of(me_, p, round), at, bytes);
    // The first part of some goes without a signal, which the rest's tells of.
    const std::size_t alone_bytes = round % 3 == 0 ? bytes / 2 : 0;
    if (alone_bytes != 0) {
      auto part = context_.put(queue_of(p), p, {out_.at(at), in_.at(there), alone_bytes}, nullptr);
      EXPECT_GIN(part);
      peer.others.push_back(*part);
    }
    const gda::RmaSignal signal{words_.at(data_word(me_)), 1};
    auto put = context_.put(
        queue_of(p), p,
        {out_.at(at + alone_bytes), in_.at(there + alone_bytes), bytes - alone_bytes}, &signal);
    EXPECT_GIN(put);
    request = *put;
    ++peer.sent;
    if (round % 16 != 5 || peer.get != nullptr || peer.flush != nullptr) return {};
    std::memset(fetched_.data() + 4096 * static_cast<std::size_t>(p), 0, 4096);
    auto get = context_.get(queue_of(p), p,
                            {fetched_.at(4096 * static_cast<std::size_t>(p)), fixed_.at(0), 4096});
    auto flush = context_.flush(queue_of(p), p);
    EXPECT_GIN(get && flush);
    peer.get = *get;
    peer.flush = *flush;
    return {};
  }

  // A flush is done when the get before it is.
  std::string fetch(int p, Peer& peer) {
    if (peer.flush == nullptr) return ends(peer.get);
    if (std::string wrong = ends(peer.flush); !wrong.empty() || peer.flush != nullptr) return wrong;
    EXPECT_GIN(
        fetched_.has(1000 + static_cast<unsigned>(p), 4096 * static_cast<std::size_t>(p), 4096),
        me_, p);
    return ends(peer.get);
  }

  std::string take(int p) {
    Peer& peer = peers_[static_cast<std::size_t>(p)];
    const std::uint64_t round = peer.taken;
    if (round == rounds || words_.word(data_word(p)) <= round) return {};
    const std::size_t bytes = bytes_of(p, me_, round), at = slot_of(p, round);
    if (peer.held == 0) {
      EXPECT_GIN(in_.has(seed_of(p, me_, round), at, bytes), me_, p,
                 static_cast<std::int64_t>(round));
      in_.fill(77, at, bytes);
    }
    if (++peer.held <= kHeld) return {};
    peer.held = 0;
    EXPECT_GIN(in_.has(77, at, bytes), me_, p, static_cast<std::int64_t>(round));
    const gda::RmaSignal credit{words_.at(credit_word(me_)), 1};
    auto put = context_.put(queue_of(p), p, {}, &credit);
    EXPECT_GIN(put);
    peer.others.push_back(*put);
    ++peer.taken;
    return {};
  }

  bool over(int p) {
    const Peer& peer = peers_[static_cast<std::size_t>(p)];
    for (const gda::RmaRequest* request : peer.puts)
      if (request != nullptr) return false;
    return peer.sent == rounds && peer.taken == rounds && peer.others.empty() &&
           peer.get == nullptr && peer.flush == nullptr && words_.word(credit_word(p)) >= rounds;
  }

  const int me_;
  gda::RmaContext& context_;
  Data out_, in_, fetched_;
  Data fixed_;  // the last one, of which flushes read a byte, as nobody writes there
  Words words_;
  std::vector<Peer> peers_;
};

inline std::atomic<int> playing{0};  // ranks of this process

template <class Words = RmaMemory, class Data = RmaPattern>
std::string play_rma(Rank& r, RmaMember& member) {
  Play<Words, Data> play(r, member);
  EXPECT_GIN(play);
  const Port& lost = *r.devices->rails(struck).front().port;
  ++playing;
  r.meeting->barrier();
  const bool all_here = playing == r.ranks;
  r.meeting->barrier();
  std::thread striker;
  std::string told;
  if (r.rank == 0 && (fault.down || fault.loss != soft::PortLoss::none))
    striker = std::thread([&] { told = strike(lost); });
  std::string wrong = play.run();
  if (striker.joinable()) striker.join();
  if (wrong.empty()) wrong = told;
  if (!wrong.empty()) {
    --playing;
    return wrong;
  }
  // Others may have to move yet, and count on this one: ranks of this process, or for a while those
  // of others.
  --playing;
  const std::int64_t until = now_ns() + (all_here ? 0 : 300 * kMillisecond);
  while (playing > 0 || now_ns() < until) {
    EXPECT_RMA_OK(member.context->progress());
    EXPECT_GIN(now_ns() < until + 2 * kLimit);
    sched_yield();
  }
  r.meeting->barrier();  // all has come: nothing more may
  for (const std::int64_t end = now_ns() + 20 * kMillisecond; now_ns() < end; sched_yield())
    EXPECT_RMA_OK(member.context->progress());
  wrong = play.check();
  EXPECT_GIN(!member.context->failed());
  r.meeting->barrier();
  return wrong;
}

template <class Words, class Data = RmaPattern>
std::string rma_moves(Rank& r) {
  RmaMember member = rma_join_first(r);
  EXPECT_GIN(member.context);
  std::string wrong = play_rma<Words, Data>(r, member);
  if (r.rank == 0 && wrong.empty()) wrong = count_moves(r.devices->counters()->process().rma);
  mend(r);
  return wrong;
}

}  // namespace twinpath::test
