#pragma once
// A stream of messages over one connection that checks every byte, and that nothing is written to a
// buffer which was given back: what has been received is painted over, left alone for a while, and
// must still be paint when it is offered again.
#include <cstdlib>
#include <cstring>
#include <deque>
#include <optional>
#include <random>

#include "plugin/fabric/soft/extended.h"
#include "plugin/fabric/soft/personality.h"
#include "test/fabric/tap.h"
#include "test/fabric/world.h"

namespace twinpath::test {

// What an adapter softN of a specification is called when the suite runs over others (like.h).
inline std::string as_called(const std::string& name) {
  const char* const what = std::getenv("TWINPATH_TEST_LIKE");
  const soft::Personality* const like = what != nullptr ? soft::find_personality(what) : nullptr;
  return like != nullptr ? std::string(like->identity.device) + name.substr(4) : name;
}

// What each end's two ports are to NCCL: one device, or one device each.
enum class Ports { merged, apart };

// soft0 and soft1 send to soft2 and soft3.
struct FailoverWorld {
  World world;
  int from = -1, to = -1;
  std::optional<World> left, right;  // hosts of their own, where ports are apart

  static Config config(const std::string& hcas = "soft0,soft1,soft2,soft3") {
    Config c = soft_config(hcas);
    c.soft_copy_threads = 0;
    return c;
  }
  explicit FailoverWorld(const Config& c = config(), Ports ports = Ports::merged,
                         std::shared_ptr<CounterPage> counters = nullptr,
                         void (*adjust)(Fabric&) = Tap::on)
      : world(c, -1, adjust, std::move(counters)) {
    if (ports == Ports::apart) {
      Config own = c;
      own.ib_hca = "=" + as_called("soft0") + "," + as_called("soft1");
      left.emplace(own);
      own.ib_hca = "=" + as_called("soft2") + "," + as_called("soft3");
      right.emplace(own);
      return;
    }
    const int first[] = {0, 1}, second[] = {2, 3};
    auto a = world.transport->make_virtual_device(first);
    auto b = world.transport->make_virtual_device(second);
    REQUIRE(a);
    REQUIRE(b);
    from = *a;
    to = *b;
  }
  ~FailoverWorld() {
    for (const char* name : {"soft0", "soft1", "soft2", "soft3"}) {
      port(name, true);
      loss(name, soft::PortLoss::none);
      rate(name, 0);
    }
  }
  static void port(const std::string& name, bool up) {
    if (ibv_context* c = Tap::context_of(as_called(name))) (void)soft::set_port_state(c, 1, up);
  }
  static void loss(const std::string& name, soft::PortLoss what) {
    if (ibv_context* c = Tap::context_of(as_called(name))) (void)soft::set_port_loss(c, 1, what);
  }
  static void rate(const std::string& name, std::uint32_t mbps) {
    if (ibv_context* c = Tap::context_of(as_called(name))) (void)soft::set_port_rate(c, 1, mbps);
  }
  Link connect() {
    return left ? test::connect(*left->a, 0, *right->b, 0) : world.connect(from, to);
  }
};

class Stream {
 public:
  struct Shape {
    std::vector<std::size_t> sizes{0, 1, 8, 64, 127, 129, 4096, 70'000, 300'000};
    int group = 1;
    int window = 8;         // irecvs under way
    int rest = 4;           // irecvs whose buffers rest
    bool reversed = false;  // members of a group are sent last first
  };
  Stream(Link& link, Shape shape, unsigned seed)
      : link_(link), shape_(std::move(shape)), random_(seed) {
    most_ = *std::max_element(shape_.sizes.begin(), shape_.sizes.end());
    const int n = (shape_.window + shape_.rest) * shape_.group;
    for (int i = 0; i < n; ++i) {
      to_.push_back(std::make_unique<Buffer>(*link.recv, most_ + kMargin));
      std::memset(to_.back()->data(), kPaint, to_.back()->size());
      from_.push_back(std::make_unique<Buffer>(*link.send, most_));
    }
  }
  // What is still under way is written into these buffers until its ends are closed.
  ~Stream() {
    if (!sends_.empty() || !receives_.empty()) {
      link_.send.reset();
      link_.recv.reset();
    }
    for (auto& b : to_) b->forget();
    for (auto& b : from_) b->forget();
  }

  // One step of both ends; false when something is wrong (failure says what).
  bool step(std::uint64_t stop_at) {
    if (offered_ < stop_at && receives_.size() < static_cast<std::size_t>(shape_.window)) offer();
    if (!failure.empty()) return false;
    feed();
    test_sends();
    test_receives();
    return failure.empty();
  }
  // Until that many groups have been received; false when it fails or takes too long.
  bool run(std::uint64_t groups, std::int64_t limit_ms = 60000) {
    const bool ended = eventually([&] { return !step(groups) || done(groups); }, limit_ms);
    if (!ended && failure.empty())
      failure = "after " + std::to_string(received_) + " of " + std::to_string(groups) +
                " groups nothing more came (" + std::to_string(offered_) + " offered, " +
                std::to_string(sends_.size()) + " sends under way)";
    return failure.empty();
  }
  bool done(std::uint64_t groups) const { return received_ >= groups && sends_.empty(); }
  std::uint64_t received() const { return received_; }
  // Of the longest time between two receives.
  std::int64_t longest_gap() const { return gap_; }
  // Goes on for so long; false when something is wrong.
  bool run_for(std::int64_t ms) {
    const std::int64_t end = now_ns() + ms * kMillisecond;
    while (now_ns() < end && step(~std::uint64_t{0})) {
    }
    return failure.empty();
  }
  // Whatever was offered ends.
  bool finish() { return run(offered_); }
  void forget_gap() { gap_ = 0, last_ = now_ns(); }
  std::string failure;

 private:
  static constexpr std::uint8_t kPaint = 0xc5;
  static constexpr std::size_t kMargin = 64;
  struct Receive {
    std::uint64_t number = 0;
    Request* request = nullptr;
    std::vector<std::size_t> bytes;
    std::uint64_t sent = 0;  // a bit each
  };
  struct Send {
    Request* request = nullptr;
    std::size_t bytes = 0;
  };
  std::size_t buffer_of(std::uint64_t number, int i) const {
    const auto g = static_cast<std::uint64_t>(shape_.group);
    return (number * g + static_cast<std::uint64_t>(i)) % to_.size();
  }
  static unsigned seed_of(std::uint64_t number, int i) {
    return static_cast<unsigned>(number * 8 + static_cast<std::uint64_t>(i)) % 251 + 1;
  }
  void offer() {
    Receive r;
    r.number = offered_;
    std::vector<RecvBuffer> buffers;
    for (int i = 0; i < shape_.group; ++i) {
      Buffer& b = *to_[buffer_of(r.number, i)];
      const std::size_t written = other_than(kPaint, b.data(), b.size());
      if (written != b.size()) {
        failure = "buffer of group " + std::to_string(r.number) +
                  " was written to while it rested, at " + std::to_string(written);
        return;
      }
      r.bytes.push_back(shape_.sizes[random_() % shape_.sizes.size()]);
      // Every other group fills its buffers.
      buffers.push_back(b.receive(i, 0, r.number % 2 == 0 ? r.bytes.back() : most_));
    }
    const Status s = link_.recv->irecv(buffers, false, &r.request);
    if (s != Status::ok && s != Status::again) failure = std::string("irecv: ") + status_name(s);
    if (r.request == nullptr) return;
    ++offered_;
    receives_.push_back(std::move(r));
  }
  void feed() {
    for (Receive& r : receives_) {
      for (int n = 0; n < shape_.group; ++n) {
        const int i = shape_.reversed ? shape_.group - 1 - n : n;
        if ((r.sent >> i & 1) != 0) continue;
        // A message's source is its receive's twin, which rests as long.
        Buffer& b = *from_[buffer_of(r.number, i)];
        const std::size_t bytes = r.bytes[static_cast<std::size_t>(i)];
        b.fill(seed_of(r.number, i), bytes);
        Request* request = nullptr;
        const Status s = link_.send->isend(b.data(), bytes, i, b.memory, &request);
        if (s != Status::ok && s != Status::again)
          failure = std::string("isend: ") + status_name(s);
        if (request == nullptr) return;
        r.sent |= std::uint64_t{1} << i;
        sends_.push_back({request, bytes});
      }
    }
  }
  void test_sends() {
    for (auto at = sends_.begin(); at != sends_.end();) {
      Completion c;
      const Status s = at->request->test(c);
      if (s != Status::ok) {
        failure = std::string("test of a send: ") + status_name(s);
        return;
      }
      if (c.done && c.bytes[0] != at->bytes) failure = "a send of another size";
      at = c.done ? sends_.erase(at) : at + 1;
    }
  }
  void test_receives() {
    while (!receives_.empty()) {
      Receive& r = receives_.front();
      Completion c;
      const Status s = r.request->test(c);
      if (s != Status::ok) failure = std::string("test of a receive: ") + status_name(s);
      if (!c.done || !failure.empty()) return;
      for (int i = 0; i < shape_.group; ++i) check(r, i, c.bytes[static_cast<std::size_t>(i)]);
      ++received_;
      const std::int64_t now = now_ns();
      if (last_ != 0) gap_ = std::max(gap_, now - last_);
      last_ = now;
      receives_.pop_front();
    }
  }
  void check(const Receive& r, int i, std::size_t got) {
    Buffer& b = *to_[buffer_of(r.number, i)];
    const std::size_t bytes = r.bytes[static_cast<std::size_t>(i)];
    const std::string which = "group " + std::to_string(r.number) + ", member " + std::to_string(i);
    if (got != bytes)
      failure = which + " has " + std::to_string(got) + " bytes of " + std::to_string(bytes);
    if (!b.holds(seed_of(r.number, i), bytes)) failure = which + " has wrong bytes";
    const std::size_t beyond = b.size() - bytes;
    if (other_than(kPaint, b.data() + bytes, beyond) != beyond)
      failure = which + " was written beyond its end";
    std::memset(b.data(), kPaint, bytes);
  }

  Link& link_;
  const Shape shape_;
  std::mt19937 random_;
  std::size_t most_ = 0;
  std::vector<std::unique_ptr<Buffer>> from_, to_;
  std::deque<Receive> receives_;
  std::deque<Send> sends_;
  std::uint64_t offered_ = 0, received_ = 0;
  std::int64_t last_ = 0, gap_ = 0;
};

}  // namespace twinpath::test
