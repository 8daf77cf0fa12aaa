// The second part of many_connections.
#include <algorithm>
#include <cstdio>
#include <iterator>

#include "test/perf/many_connections.h"

namespace twinpath::perf {
namespace {

// Large messages that are always under way, and how they share queue pairs with the small ones.
struct Bulk {
  const char* name;
  bool same_queue;
  std::size_t bytes;
  int window;
};
constexpr std::size_t kSmall = 64;
constexpr int kWarmUp = 200, kPings = 4000;
constexpr Bulk kBulks[] = {
    {"nothing", false, 0, 0},
    {"4 MiB x 2 on queues of their own", false, 4 << 20, 2},
    {"4 MiB x 2 on the same queue", true, 4 << 20, 2},
    {"512 KiB x 2 on the same queue", true, 512 << 10, 2},
    {"64 KiB x 2 on the same queue", true, 64 << 10, 2},
};

// Messages of one kind over one connection: at most `window` under way.  The receiver has twice as
// many receives posted, so that none waits for a clear-to-send.
class Flow {
 public:
  Flow(Comm& comm, std::size_t bytes, int tag, int window)
      : comm_(comm), bytes_(bytes), tag_(tag), window_(static_cast<std::size_t>(window)) {
    data_.resize(bytes + 1);
    auto m = comm.register_memory(data_.data(), data_.size(), MemoryType::host, 0, -1);
    if (!m) fail("no memory region");
    memory_ = *m;
  }
  ~Flow() { (void)comm_.deregister_memory(memory_); }
  Flow(const Flow&) = delete;
  Flow& operator=(const Flow&) = delete;
  bool send(SendComm& comm) {
    Request* r = nullptr;
    if (open_.size() == window_) return false;
    check(comm.isend(data_.data(), bytes_, tag_, memory_, &r));
    if (r != nullptr) open_.push_back(r);
    return r != nullptr;
  }
  void offer(RecvComm& comm) {
    const RecvBuffer buffer{data_.data(), bytes_, tag_, memory_};
    while (open_.size() < 2 * window_) {
      Request* r = nullptr;
      check(comm.irecv({&buffer, 1}, false, &r));
      if (r == nullptr) return;
      open_.push_back(r);
    }
  }
  // Whether the oldest is over.
  bool ended() {
    int done = 0;
    if (open_.empty()) return false;
    check(open_.front()->test(done, nullptr));
    if (done == 0) return false;
    open_.erase(open_.begin());
    ++count;
    return true;
  }
  bool idle() const { return open_.empty(); }
  std::int64_t count = 0;

 private:
  static void check(Status s) {
    if (s != Status::ok && s != Status::again) fail("a message failed");
  }
  Comm& comm_;
  const std::size_t bytes_;
  const int tag_;
  std::vector<std::uint8_t> data_;
  const std::size_t window_;
  Memory* memory_ = nullptr;
  std::vector<Request*> open_;  // the oldest first
};

// Rank 0 pings and sends the bulk; rank 1 answers.
void answer(Rank& r, const Bulk& bulk) {
  r.take(1);
  if (!bulk.same_queue) r.take(2);
  r.reach({0}, 1);
  SendComm& back = *r.sends[0];
  Flow in(*r.receives[0], kSmall, 0, 2), out(back, kSmall, 0, 1);
  Flow large(*r.receives.back(), bulk.bytes, 1, bulk.window);
  until([&] {
    in.offer(*r.receives[0]);
    large.offer(*r.receives.back());
    (void)large.ended();
    if (in.ended()) until([&] { return out.send(back) || (out.ended() && false); });
    (void)out.ended();
    return r.board().over == 1;
  });
}

void ping(Rank& r, const Bulk& bulk) {
  r.reach({1}, 1);
  if (!bulk.same_queue) r.reach({1}, 1);
  r.take(1);
  Board& b = r.board();
  SendComm& small_way = *r.sends[0];
  SendComm& large_way = *r.sends.back();
  Flow out(small_way, kSmall, 0, 1), in(*r.receives[0], kSmall, 0, 2);
  Flow large(large_way, bulk.bytes, 1, bulk.window);
  std::vector<double> times;
  std::int64_t began = 0;
  for (int n = -kWarmUp; n < kPings; ++n) {
    if (n == 0) {
      began = now_ns();
      large.count = 0;
    }
    std::int64_t sent = 0;
    const auto go_on = [&] {
      in.offer(*r.receives[0]);
      (void)large.send(large_way);
      (void)large.ended();
      (void)out.ended();
    };
    until([&] {
      go_on();
      sent = now_ns();
      return out.send(small_way);
    });
    until([&] {
      go_on();
      return in.ended();
    });
    if (n >= 0) times.push_back(static_cast<double>(now_ns() - sent) / 1e3);
  }
  b.gbytes_per_s = static_cast<double>(large.count) * static_cast<double>(bulk.bytes) /
                   static_cast<double>(now_ns() - began);
  std::sort(times.begin(), times.end());
  b.median_us = times[times.size() / 2];
  b.p99_us = times[times.size() * 99 / 100];
  until([&] { return (large.ended() || true) && large.idle() && (out.ended() || out.idle()); });
  b.over = 1;
}

}  // namespace

int measure_behind() {
  constexpr std::size_t kCount = std::size(kBulks);
  std::array<std::vector<double>, kCount> half, whole, bulk;
  for (int round = 0; round < kRounds; ++round) {
    for (std::size_t i = 0; i < kCount; ++i) {
      const auto b = play(1, [&](Rank& r, int rank) {
        if (rank == 0)
          ping(r, kBulks[i]);
        else
          answer(r, kBulks[i]);
      });
      half[i].push_back(b->median_us);
      whole[i].push_back(b->p99_us);
      bulk[i].push_back(b->gbytes_per_s);
    }
  }
  std::printf("round trip of 64 bytes while this is under way from the same process:\n");
  std::printf("%-36s %10s %10s %10s\n", "", "median, us", "p99, us", "bulk, GB/s");
  for (std::size_t i = 0; i < kCount; ++i)
    std::printf("%-36s %10.1f %10.1f %10.2f\n", kBulks[i].name, median(half[i]), median(whole[i]),
                median(bulk[i]));
  return 0;
}

}  // namespace twinpath::perf
