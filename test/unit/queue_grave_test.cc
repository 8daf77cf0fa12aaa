// Queue pairs that were replaced: destroyed aside, each once, before its share is given back.
#include "proxy/queues/queue_grave.h"

#include <atomic>
#include <future>
#include <thread>

#include "test/support/catch.h"

using namespace twinpath;

namespace {

// The adapter: destroys when it may.
struct HangingAdapter {
  static inline std::promise<void> may;
  static inline std::shared_future<void> allowed;
  static inline std::atomic<int> destroyed = 0;
  static int destroy(ibv_qp*) {
    allowed.wait();
    ++destroyed;
    return 0;
  }
  HangingAdapter() {
    may = {};
    allowed = may.get_future().share();
    destroyed = 0;
  }
};

}  // namespace

TEST_CASE("A grave keeps nobody waiting but who takes it away") {
  HangingAdapter adapter;
  ibv_qp pairs[3] = {};
  std::atomic<int> entries = 0;
  std::atomic<bool> early = false;
  bool waited = false;
  std::thread later;
  {
    QueueGrave grave([&](CompletionEngine*, int n) {
      entries += n;
      if (HangingAdapter::destroyed == 0) early = true;
    });
    for (ibv_qp& qp : pairs) grave.bury(own(&qp, &HangingAdapter::destroy), nullptr, 100);
    CHECK(HangingAdapter::destroyed == 0);
    CHECK(entries == 0);
    later = std::thread([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      waited = true;
      HangingAdapter::may.set_value();
    });
  }
  later.join();
  CHECK(waited);
  CHECK(HangingAdapter::destroyed == 3);
  CHECK(entries == 300);
  CHECK_FALSE(early);
}

TEST_CASE("A grave in which nothing lies costs no thread and no time") {
  QueueGrave grave([](CompletionEngine*, int) { FAIL("nothing was buried"); });
}
