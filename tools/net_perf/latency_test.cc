// latency: ping-pong.  The next receive is always posted before its message is asked for, so that
// a clear-to-send is never waited for; with --window, as many receives stay posted ahead, as NCCL
// keeps them, and then posting them is not part of the round trip either.
#include <algorithm>
#include <cstring>

#include "plugin/base/clock.h"
#include "tools/common/histogram.h"
#include "tools/common/pattern.h"
#include "tools/common/units.h"
#include "tools/net_perf/tests.h"

namespace twinpath::tools {
namespace {

class PingPong {
 public:
  PingPong(Endpoint& e, std::size_t size)
      : e_(e),
        size_(size),
        stride_((size + 127) / 64 * 64),
        ahead_(e.options.window_given ? static_cast<std::uint64_t>(e.options.window) : 1),
        out_(e.buffer((ahead_ + 1) * stride_)),
        in_(e.buffer((ahead_ + 1) * stride_)),
        out_memory_(e.register_on(e.sends, out_)),
        in_memory_(e.register_on(e.receives, in_)),
        receives_(ahead_ + 1) {}
  ~PingPong() {
    (void)e_.plugin->dereg_mr(e_.sends[0], out_memory_[0]);
    (void)e_.plugin->dereg_mr(e_.receives[0], in_memory_[0]);
  }

  void run() {
    const Options& o = e_.options;
    const std::string label = "latency " + format_bytes(size_);
    const std::size_t count = iterations(o, size_);
    Histogram times;
    if (o.verify) {
      e_.reporter.phase(label + ": verify");
      rounds(std::min<std::size_t>(count, 100), true, nullptr);
    }
    e_.reporter.phase(label + ": warm up");
    rounds(o.warmup_given ? o.warmup : count / 10, false, nullptr);
    e_.reporter.phase(label + ": measure");
    if (o.workers > 2) e_.reporter.barrier(e_.deadline_ns);
    const std::int64_t before = cpu_ns();
    rounds(count, false, &times);
    const std::int64_t mine = cpu_ns() - before, theirs = e_.exchange(mine);
    const std::int64_t cpu = o.threads ? std::max(mine, theirs) : mine + theirs;
    const std::uint64_t wrong = wrong_ + e_.exchange(wrong_);
    if (wrong_ != 0) e_.reporter.result({{"wrong_detail", label + ": " + first_wrong_}});
    if (e_.rank % 2 != 0) return;
    e_.reporter.result({{"size", size_},
                        {"messages", 2 * count},
                        {"times", times.to_json()},  // round trips, ns
                        {"cpu", cpu},
                        {"wrong", wrong}});
  }

 private:
  std::size_t offset(std::uint64_t n) const { return (n % (ahead_ + 1)) * stride_; }
  std::uint8_t* slot(Buffer& b, std::uint64_t n) const { return b.data() + offset(n); }

  void post(std::uint64_t n) {
    void* data = slot(in_, n);
    std::size_t bytes = size_;
    int tag = 0;
    void *memory = in_memory_[0], *request = nullptr;
    while (request == nullptr) {
      e_.check(e_.plugin->irecv(e_.receives[0], 1, &data, &bytes, &tag, &memory, &request),
               "irecv");
      if (request == nullptr) e_.idle();
    }
    receives_[n % receives_.size()] = request;
  }
  void send(std::uint64_t n, bool full) {
    if (full)
      out_.write_pattern(offset(n), size_, seed(e_.rank, n));
    else if (stamped())
      std::memcpy(slot(out_, n), &n, sizeof n);
    send_ = nullptr;
    while (send_ == nullptr) {
      e_.check(e_.plugin->isend(e_.sends[0], slot(out_, n), size_, 0, out_memory_[0], &send_),
               "isend");
      if (send_ == nullptr) e_.idle();
    }
  }
  int wait(void* request, const char* what) {
    int done = 0, bytes = 0;
    while (true) {
      e_.check(e_.plugin->test(request, &done, &bytes), what);
      if (done != 0) return bytes;
      e_.idle();
    }
  }
  // Some plugins move a send only while it is tested, so both are.
  void wait_received(std::uint64_t n) {
    void* recv = receives_[n % receives_.size()];
    int done = 0, sent = 0, ignored = 0;
    while (true) {
      e_.check(e_.plugin->test(recv, &done, &received_), "test of a receive");
      if (done != 0) break;
      if (send_ != nullptr) {
        e_.check(e_.plugin->test(send_, &sent, &ignored), "test of a send");
        if (sent != 0) send_ = nullptr;
      }
      e_.idle();
    }
    if (!e_.props.force_flush || !in_.on_gpu()) return;
    void* data = slot(in_, 0);
    void *memory = in_memory_[0], *request = nullptr;
    int bytes = received_;
    e_.check(e_.plugin->iflush(e_.receives[0], 1, &data, &bytes, &memory, &request), "iflush");
    if (request != nullptr) (void)wait(request, "test of a flush");
  }
  void verify(std::uint64_t n, bool full) {
    if (static_cast<std::size_t>(received_) != size_)
      return fail(n, "is reported with " + std::to_string(received_) + " bytes");
    if (full) {
      if (const auto at = in_.check_pattern(offset(n), size_, seed(e_.rank ^ 1, n)); at >= 0)
        fail(n, "differs from byte " + std::to_string(at));
    } else if (stamped()) {
      std::uint64_t stamp = 0;
      std::memcpy(&stamp, slot(in_, n), sizeof stamp);
      if (stamp != n) fail(n, "holds message " + std::to_string(stamp));
    }
  }
  bool stamped() const { return e_.options.verify && size_ >= 8 && !in_.on_gpu(); }
  std::uint64_t seed(int rank, std::uint64_t n) const {
    return pattern_seed(static_cast<std::uint64_t>(rank) + 1, size_, n);
  }
  void fail(std::uint64_t n, const std::string& what) {
    if (wrong_++ == 0) first_wrong_ = "message " + std::to_string(n) + " " + what;
  }

  void rounds(std::size_t count, bool full, Histogram* times) {
    if (count == 0) return;
    const bool first = e_.rank % 2 == 0;
    for (std::uint64_t n = 0; n < std::min<std::uint64_t>(ahead_, count); ++n) post(n);
    e_.pair_barrier();
    for (std::uint64_t n = 0; n < count; ++n) {
      std::int64_t begin = 0;
      if (first) {
        begin = times != nullptr ? now_ns() : 0;
        send(n, full);
        wait_received(n);
        if (times != nullptr) times->add(static_cast<std::uint64_t>(now_ns() - begin));
        verify(n, full);
        if (n + ahead_ < count) post(n + ahead_);
      } else {
        wait_received(n);
        if (full) verify(n, full);
        if (ahead_ == 1 && n + 1 < count) post(n + 1);
        send(n, full);
        if (!full) verify(n, full);
        if (ahead_ > 1 && n + ahead_ < count) post(n + ahead_);
      }
      if (send_ != nullptr) (void)wait(send_, "test of a send");
      send_ = nullptr;
    }
  }

  Endpoint& e_;
  const std::size_t size_, stride_;
  const std::uint64_t ahead_;  // receives posted
  Buffer out_, in_;
  std::vector<void*> out_memory_, in_memory_;
  std::vector<void*> receives_;  // requests, by message modulo their number
  void* send_ = nullptr;
  int received_ = 0;
  std::uint64_t wrong_ = 0;
  std::string first_wrong_;
};

}  // namespace

void run_latency(Endpoint& e) {
  e.reporter.phase("connect");
  e.connect(1, 1);
  const std::vector<std::size_t>& sizes = e.options.sizes;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    e.reporter.fraction(static_cast<double>(i) / static_cast<double>(sizes.size()));
    PingPong(e, sizes[i]).run();
  }
}

}  // namespace twinpath::tools
