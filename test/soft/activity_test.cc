// Which queue pairs polls and sweeps look at, by a clock of the test's own; idle_test.cc has whole
// adapters.
#include "plugin/fabric/soft/activity.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <thread>

#include "plugin/base/clock.h"
#include "plugin/fabric/soft/objects.h"
#include "test/support/catch.h"

using namespace twinpath;
using namespace twinpath::soft;

namespace {

// A queue pair without a link, and all that it needs to be looked at.
struct Bed {
  SoftCq cq;
  SoftQp qp;
  std::unique_ptr<Board> board = std::make_unique<Board>();
  std::vector<SoftQp*> qps = std::vector<SoftQp*>(kQpsPerProcess, nullptr);
  Activity activity;
  std::int64_t now = kSecond;

  Bed() {
    qp.send_cq = qp.recv_cq = &cq;
    qp.qp_num = 77;
    qp.state = IBV_QPS_RTS;
    qps[77] = &qp;
    activity.let_sleep();
  }
  bool get_up() { return activity.get_up_marked(*board, qps, now); }
  // A sweep, so much later.
  void sweep(std::int64_t later) {
    now += later;
    activity.look(qp, now);
    activity.put_to_sleep(now);
  }
  bool is_awake() const {
    CHECK(activity.awake().size() == cq.awake.size());
    CHECK(activity.awake().size() <= 1);
    CHECK(activity.awake().empty() == qp.activity.asleep.load());
    return !activity.awake().empty();
  }
};

class HeldElsewhere {
 public:
  explicit HeldElsewhere(std::mutex& mutex)
      : thread_([this, &mutex] {
          const std::lock_guard hold(mutex);
          held_ = true;
          held_.notify_all();
          ended_.wait(false);
        }) {
    held_.wait(false);
  }
  ~HeldElsewhere() {
    ended_ = true;
    ended_.notify_all();
    thread_.join();
  }
  HeldElsewhere(const HeldElsewhere&) = delete;
  HeldElsewhere& operator=(const HeldElsewhere&) = delete;

 private:
  std::atomic<bool> held_{false}, ended_{false};
  std::thread thread_;
};

}  // namespace

TEST_CASE("activity: who is marked gets up, and sleeps after 10 ms without work", "[soft]") {
  Bed bed;
  CHECK(bed.get_up());
  CHECK_FALSE(bed.is_awake());
  (void)bed.board->mark(77);
  CHECK(bed.get_up());
  CHECK(bed.is_awake());
  (void)bed.board->mark(77);
  CHECK(bed.get_up());
  CHECK(bed.is_awake());  // once
  bed.sweep(9 * kMillisecond);
  CHECK(bed.is_awake());
  bed.qp.receive.tail = 1;  // a receive was posted
  bed.sweep(2 * kMillisecond);
  CHECK(bed.is_awake());
  bed.sweep(9 * kMillisecond);
  CHECK(bed.is_awake());
  bed.sweep(kMillisecond);
  CHECK_FALSE(bed.is_awake());
}

TEST_CASE("activity: who has something to do stays awake", "[soft]") {
  Bed bed;
  (void)bed.board->mark(77);
  CHECK(bed.get_up());
  SECTION("a send that is not completed") { bed.qp.send.tail = 1; }
  SECTION("copies") { bed.qp.copies.jobs_in_flight = 1; }
  SECTION("an event that is owed") { bed.qp.drain_event = true; }
  SECTION("somebody has its lock") { bed.qp.lock.lock(); }
  SECTION("no fence") {
    bed.activity = Activity();
    (void)bed.board->mark(77);
    bed.qp.activity.asleep = true;
    bed.cq.awake.clear();
    CHECK(bed.get_up());
  }
  for (int i = 0; i < 5; ++i) bed.sweep(20 * kMillisecond);
  CHECK(bed.is_awake());
}

TEST_CASE("activity: what a poller holds is not waited for", "[soft]") {
  Bed bed;
  (void)bed.board->mark(77);
  {
    const HeldElsewhere held(bed.cq.members_lock);
    CHECK_FALSE(bed.get_up());
    CHECK_FALSE(bed.is_awake());
  }
  CHECK(bed.get_up());  // it was marked again
  CHECK(bed.is_awake());
  {
    const HeldElsewhere held(bed.cq.members_lock);
    bed.sweep(20 * kMillisecond);
    CHECK(bed.is_awake());
  }
  bed.sweep(20 * kMillisecond);
  CHECK_FALSE(bed.is_awake());
}

TEST_CASE("activity: who is destroyed is not looked at", "[soft]") {
  Bed bed;
  (void)bed.board->mark(77);
  CHECK(bed.get_up());
  bed.activity.forget(&bed.qp);
  CHECK(bed.activity.awake().empty());
  (void)bed.board->mark(77);
  bed.qps[77] = nullptr;
  CHECK(bed.get_up());
  CHECK(bed.activity.awake().empty());
}

TEST_CASE("activity: a CQ that nobody polls is idle after a millisecond", "[soft]") {
  Bed bed;
  (void)bed.board->mark(77);
  CHECK(bed.get_up());
  bed.cq.polled = true;
  bed.activity.note_idle(bed.now);
  CHECK_FALSE(bed.cq.idle);
  bed.activity.note_idle(bed.now + kMillisecond / 2);  // too early
  CHECK_FALSE(bed.cq.idle);
  bed.activity.note_idle(bed.now + kMillisecond);
  CHECK(bed.cq.idle);
  bed.cq.polled = true;
  bed.activity.note_idle(bed.now + 2 * kMillisecond);
  CHECK_FALSE(bed.cq.idle);
}
