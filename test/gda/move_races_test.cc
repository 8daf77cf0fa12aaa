// What crosses while a pair of queues goes back to its first port and that is lost again:
// completion queues and the log decide when things happen, not time.
#include <mutex>
#include <vector>

#include "gda/served/back/work_request_id.h"
#include "test/gda/move_seeds.h"

using namespace twinpath;
using namespace twinpath::gda;
using namespace twinpath::test;

namespace {

// The first rank's completions over the first port, which may come late, in their order.
struct LateCq {
  struct Kept {
    ibv_cq* cq;
    ibv_wc wc;
  };
  static inline int (*below)(ibv_cq*, int, ibv_wc*) = nullptr;
  static inline std::mutex lock;
  static inline std::vector<Kept> kept;
  static inline std::atomic<bool> late{false};
  static inline std::atomic<int> receives{0};  // kept, of what the other rank has sent

  static int poll(ibv_cq* cq, int most, ibv_wc* wcs) {
    const std::lock_guard hold(lock);
    if (!late && kept.empty()) return below(cq, most, wcs);
    const int n = below(cq, most, wcs);
    for (int i = 0; i < n; ++i) {
      kept.push_back({cq, wcs[i]});
      const bool success = wcs[i].status == IBV_WC_SUCCESS;
      receives += success && WorkRequestId::is(wcs[i], WorkRequestId::kReceive) &&
                  WorkRequestId::pair(wcs[i]) == 1;
    }
    if (late || n < 0) return n < 0 ? n : 0;
    int out = 0;
    for (auto at = kept.begin(); at != kept.end() && out < most;) {
      if (at->cq == cq) wcs[out++] = at->wc;
      at = at->cq == cq ? kept.erase(at) : at + 1;
    }
    return out;
  }
};

LogSink behind = nullptr;
std::atomic<bool> goes_back{false};
// What the second rank tells the first of going back is late until that has heard what comes later.
__attribute__((format(printf, 5, 6))) void sink(LogLevel level, unsigned long subsys,
                                                const char* where, int line, const char* format,
                                                ...) {
  va_list arguments;
  va_start(arguments, format);
  const std::string text = text_of(format, arguments);
  va_end(arguments);
  behind(level, subsys, where, line, "%s", text.c_str());
  if (text.find("of rank 1 to rank 0") != text.npos &&
      text.find("goes back to soft0") != text.npos && !goes_back.exchange(true))
    LateCq::late = true;
  if (text.find("of rank 0 to rank 1") != text.npos &&
      text.find("does not stay on soft0") != text.npos)
    LateCq::late = false;
}

// The first rank's adapters tell of no change.
std::string crosses(Rank& r) {
  if (r.rank == 0) {
    EXPECT_GIN(r.use(open_devices(soon_back(), [](Fabric& fabric) {
      fabric.verbs.get_async_event = [](ibv_context*, ibv_async_event*) { return -1; };
    })));
    auto& poll = r.devices->rails(0).front().port->context->ops.poll_cq;
    LateCq::below = poll;
    poll = LateCq::poll;
  }
  const bool merged = static_cast<bool>(r.devices->merge(std::array{0, 1}));
  r.meeting->barrier();
  EXPECT_GIN(merged);
  Member member = join(r, settings30(), static_cast<int>(r.devices->count()) - 1);
  return play_and_mend(r, member);
}

std::string strike_crossing(const Port& port) {
  set(port, false);
  EXPECT_GIN(all_are_on("soft1"));
  LateCq::receives = 0;
  goes_back = false;
  set(port, true);
  EXPECT_GIN(comes([] { return LateCq::receives != 0; }));
  set(port, false);
  EXPECT_GIN(comes([] { return !LateCq::late; }));
  EXPECT_GIN(all_are_on("soft1"));
  set(port, true);
  EXPECT_GIN(all_are_on("soft0"));
  return {};
}

}  // namespace

TEST_CASE("F5: Kernels go on when a peer's second move is heard before its first one", "[once]") {
  if (on_adapters() || on_adapter_queues()) return;
  const LogCapture log;
  fault = {"crosses", true, {}, 3000, 21};
  fault.log = &log;
  fault.queues = 4;
  fault.plan = strike_crossing;
  rounds = kForAsLong + 1;
  furthest = 0;
  behind = current_sink();
  (void)set_log_sink(&sink);
  CHECK(run_threads(2, crosses, soon_back()) == "");
  (void)set_log_sink(behind);
  rounds = kRounds;
  CHECK(log.has("does not stay on soft0: the peer has left it"));
}
