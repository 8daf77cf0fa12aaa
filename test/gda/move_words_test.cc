// What ranks tell each other of queue pairs that are made anew goes over the queue pair in use: it
// takes receives there like signals, and is not told while that port is down.
#include <cerrno>

#include "gda/served/back/work_request_id.h"
#include "test/gda/move_seeds.h"
#include "test/gda/rings.h"

using namespace twinpath;
using namespace twinpath::gda;
using namespace twinpath::test;

namespace {

// Of the first rank: the first port makes no queue pair meanwhile, and the words sent over the
// second one are counted.
struct Refuses {
  static inline std::atomic<bool> on{false};
  static inline std::atomic<int> words{0};
  static inline Verbs below;
  static inline int (*post_below)(ibv_qp*, ibv_send_wr*, ibv_send_wr**) = nullptr;

  static ibv_qp* create_qp(ibv_pd* pd, ibv_qp_init_attr* attr) {
    if (!on || std::string(pd->context->device->name) != "soft0") return below.create_qp(pd, attr);
    errno = ENOMEM;
    return nullptr;
  }
  static int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) {
    if (WorkRequestId::number(wr->wr_id) == WorkRequestId::kWord) ++words;
    return post_below(qp, wr, bad);
  }
  static void adjust(Fabric& fabric) {
    below = fabric.verbs;
    fabric.verbs.create_qp = create_qp;
  }
};

// Of the second: its first port's adapter tells of a change.
void ring(Fabric& fabric) { Rings::on(fabric, "soft0"); }

constexpr int kOffers = 80;  // more than a queue pair has receives

std::string offers_often(Rank& r) {
  Config config = soon_back();
  config.failover_pace = {.first_pause_ms = 1, .longest_pause_ms = 1, .settle_ms = 0};
  EXPECT_GIN(r.use(open_devices(config, r.rank == 0 ? Refuses::adjust : ring)));
  const bool merged = static_cast<bool>(r.devices->merge(std::array{0, 1}));
  r.meeting->barrier();
  EXPECT_GIN(merged);
  Member member = join(r, settings30(), static_cast<int>(r.devices->count()) - 1);
  EXPECT_GIN(member.context);
  const Port& first = *r.devices->rails(0).front().port;
  if (r.rank == 0) {
    auto& post = r.devices->rails(1).front().port->context->ops.post_send;
    Refuses::post_below = post;
    post = Refuses::post_send;
  }
  r.meeting->barrier();
  if (r.rank == 0) set(first, false);
  EXPECT_GIN(all_are_on("soft1"));
  r.meeting->barrier();
  if (r.rank == 0) {
    Refuses::words = 0;
    Refuses::on = true;
    set(first, true);
    auto kernel = member.kernel<GinKernel30>();
    const bool all = comes([&kernel] {
      (void)kernel.signal(0, 1);  // the engine does not sleep
      Rings::rung = true;
      return Refuses::words >= kOffers;
    });
    Refuses::on = false;
    EXPECT_GIN(all, Refuses::words);
  }
  r.meeting->barrier();
  if (std::string wrong = talk(member, 1); !wrong.empty()) return wrong;
  EXPECT_GIN(all_are_on("soft0"));
  if (std::string wrong = talk(member, 2); !wrong.empty()) return wrong;
  r.meeting->barrier();
  mend(r);
  return {};
}

// The port in use is down while the one that was left works again.
std::string second_is_away(Rank& r) {
  Member member = join_first(r);
  EXPECT_GIN(member.context);
  const Port& first = *r.devices->rails(0).front().port;
  const Port& second = *r.devices->rails(1).front().port;
  r.meeting->barrier();
  if (r.rank == 0) set(first, false);
  EXPECT_GIN(all_are_on("soft1"));
  r.meeting->barrier();
  if (r.rank == 0) {
    set(second, false);
    set(first, true);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(500));  // some looks at ports
  EXPECT_GIN(!member.context->failed());
  r.meeting->barrier();
  if (r.rank == 0) set(second, true);
  EXPECT_GIN(all_are_on("soft0"));
  if (std::string wrong = talk(member, 1); !wrong.empty()) return wrong;
  r.meeting->barrier();
  mend(r);
  return {};
}

// Two ranks of four queues each play it.
void play_alone(const char* what, std::string (*ranks)(Rank&)) {
  if (on_adapters() || on_adapter_queues()) return;
  const LogCapture log;
  fault = {what, true};
  fault.log = &log;
  fault.queues = 4;
  CHECK(run_threads(2, ranks, soon_back()) == "");
}

}  // namespace

TEST_CASE("F6: Idle queues outlive their second port's absence while the first one is there",
          "[once]") {
  play_alone("away", second_is_away);
}

TEST_CASE("Offers of queue pairs that come to nothing leave receives for signals", "[once]") {
  play_alone("offers", offers_often);
}
