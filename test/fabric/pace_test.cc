// F10: a rail that is slower than its port says, without any event, holds up nobody.
#include "test/fabric/failover.h"

namespace twinpath::test {
namespace {

constexpr std::size_t kWindow = 8;
// What one port brings through when nothing is wrong with it, far below what the soft HCA can.
constexpr std::uint32_t kMbps = 200;

// Messages of one size, `kWindow` at a time; one that has not ended keeps its buffers.
class Pump {
 public:
  explicit Pump(Link& link, std::size_t bytes = 1 << 18) : link_(link), bytes_(bytes) {
    for (std::size_t i = 0; i < kWindow; ++i) {
      from_.push_back(std::make_unique<Buffer>(*link.send, bytes_, static_cast<unsigned>(i + 1)));
      to_.push_back(std::make_unique<Buffer>(*link.recv, bytes_));
    }
  }
  ~Pump() {
    for (auto* list : {&from_, &to_})
      for (auto& b : *list) b->forget();
  }
  // MB/s over so long, or what went wrong.
  double run(std::int64_t ms) {
    const std::int64_t begin = now_ns(), end = begin + ms * kMillisecond;
    const std::uint64_t before = received_;
    while (now_ns() < end && failure.empty()) step(true);
    return static_cast<double>(received_ - before) * static_cast<double>(bytes_) * 1e3 /
           static_cast<double>(now_ns() - begin);
  }
  void finish() {
    REQUIRE(eventually([&] {
      step(false);
      return !failure.empty() || (received_ == offered_ && sent_ == offered_);
    }));
    for (std::size_t i = 0; i < kWindow; ++i)
      CHECK(to_[i]->holds(static_cast<unsigned>(i + 1), bytes_));
  }
  std::string failure;

 private:
  void step(bool more) {
    if (more && offered_ < received_ + kWindow && offered_ < sent_ + kWindow) {
      Request*& r = receives_[offered_ % kWindow];
      const RecvBuffer buffer = to_[offered_ % kWindow]->receive(0);
      check("irecv", link_.recv->irecv({&buffer, 1}, false, &r));
      if (r != nullptr) ++offered_;
    }
    if (begun_ < offered_) {
      Request*& r = sends_[begun_ % kWindow];
      Buffer& b = *from_[begun_ % kWindow];
      check("isend", link_.send->isend(b.data(), bytes_, 0, b.memory, &r));
      if (r != nullptr) ++begun_;
    }
    if (sent_ < begun_ && done(sends_[sent_ % kWindow])) ++sent_;
    if (received_ < offered_ && done(receives_[received_ % kWindow])) ++received_;
  }
  bool done(Request*& r) {
    Completion c;
    check("test", r->test(c));
    if (!c.done) return false;
    if (c.bytes[0] != bytes_) failure = "a message of " + std::to_string(c.bytes[0]) + " bytes";
    r = nullptr;
    return true;
  }
  void check(const char* call, Status s) {
    if (s != Status::ok && s != Status::again) failure = std::string(call) + ": " + status_name(s);
  }
  Link& link_;
  const std::size_t bytes_;
  std::vector<std::unique_ptr<Buffer>> from_, to_;
  std::array<Request*, kWindow> sends_{}, receives_{};
  std::uint64_t offered_ = 0, begun_ = 0, sent_ = 0, received_ = 0;
};

Config without_stalls() {
  Config c = FailoverWorld::config();
  c.stall_ms = 0;  // so slow a rail may pass for a dead one
  return c;
}

// How soon is for lane_shares_test and test/vm to say: here other programs may want the processor.
bool reaches(Pump& pump, double least) {
  return eventually([&] { return pump.run(300) > least || !pump.failure.empty(); }, 30000);
}

void both_at(std::uint32_t first, std::uint32_t second) {
  FailoverWorld::rate("soft0", first);
  FailoverWorld::rate("soft1", second);
}

TEST_CASE("F10: a rail at a tenth of its speed is given a tenth, is named, and comes back") {
  LogCapture log;
  FailoverWorld w(without_stalls());
  Link link = w.connect();
  Pump pump(link);
  both_at(kMbps, kMbps);
  const double alone = pump.run(400) / 2;
  CHECK_FALSE(log.has("finds rail"));
  both_at(kMbps, kMbps / 10);
  // By the ports' speeds it would be a fifth.
  CHECK(reaches(pump, 0.6 * alone));
  CAPTURE(log.warnings(), pump.failure);
  (void)pump.run(500);
  CHECK(log.has("finds rail soft1 (to soft3) slow beside the others"));
  const auto said = [&](std::string_view part) {
    return eventually([&] {
      (void)pump.run(20);
      return log.has(LogLevel::warn, part);
    });
  };
  both_at(kMbps, kMbps);
  CHECK(said("finds rail soft1 (to soft3) as fast as its port again"));
  // Right after that another rail is still told of aloud.
  both_at(kMbps / 10, kMbps);
  CHECK(said("finds rail soft0 (to soft2) slow beside the others"));
  both_at(kMbps, kMbps);
  CHECK(reaches(pump, 1.3 * alone));
  pump.finish();
  CHECK(pump.failure.empty());
}

TEST_CASE("F10: a rail at a hundredth of its speed is left, and tried again now and then") {
  LogCapture log;
  FailoverWorld w;
  Link link = w.connect();
  Pump pump(link);
  both_at(kMbps, kMbps);
  const double alone = pump.run(400) / 2;
  both_at(kMbps, kMbps / 100);
  CHECK(reaches(pump, 0.5 * alone));
  CAPTURE(log.warnings(), pump.failure);
  pump.finish();
  CHECK(pump.failure.empty());
}

TEST_CASE("TWINPATH_MEASURE_RAILS=0 cuts by the ports' speeds") {
  LogCapture log;
  Config c = without_stalls();
  c.measure_rails = false;
  FailoverWorld w(c);
  Link link = w.connect();
  Pump pump(link);
  both_at(kMbps, kMbps / 10);
  (void)pump.run(300);
  CHECK(pump.run(500) < 0.5 * kMbps / 8);
  CHECK_FALSE(log.has("finds rail"));
  pump.finish();
  CHECK(pump.failure.empty());
}

// Messages that are not cut keep off a slow rail, too, once those that are have shown it.
TEST_CASE("F10: whole messages go over the rails that are fast") {
  LogCapture log;
  FailoverWorld w(without_stalls());
  Link link = w.connect();
  double alone = 0;
  {
    Pump cut(link);
    both_at(kMbps, kMbps);
    alone = cut.run(400) / 2;
    both_at(kMbps, kMbps / 10);
    (void)cut.run(700);
    cut.finish();
    CHECK(cut.failure.empty());
  }
  Pump whole(link, 32 * 1024);
  CHECK(reaches(whole, 0.5 * alone));
  whole.finish();
  CHECK(whole.failure.empty());
}

}  // namespace
}  // namespace twinpath::test
