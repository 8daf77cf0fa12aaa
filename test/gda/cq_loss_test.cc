// A completion queue of a team fails: the team ends, and no other on the same adapter does.
#include <thread>

#include "plugin/fabric/soft/objects.h"
#include "test/gda/rma_ranks.h"
#include "test/support/catch.h"
#include "test/support/log_capture.h"
#include "test/support/needs.h"

using namespace twinpath;
using namespace twinpath::gda;
using namespace twinpath::test;

namespace {

// The first rank's adapter by itself, of which the completion queue is known that was made last.
struct FailingCq {
  static inline Verbs below;
  static inline ibv_cq* last = nullptr;
  static inline Config config = gin_config();
  ibv_cq* chosen = nullptr;

  static bool on(Rank& r) {
    auto fabric = open_fabric(config);
    if (!fabric) return false;
    below = (*fabric)->verbs;
    (*fabric)->verbs.create_cq = [](ibv_context* context, int entries, void* user,
                                    ibv_comp_channel* channel, int vector) {
      return last = below.create_cq(context, entries, user, channel, vector);
    };
    return r.use(std::make_shared<Devices>(std::move(fabric).take(), config));
  }
  void fail() const { soft::async_event(static_cast<soft::SoftCq&>(*chosen), IBV_EVENT_CQ_ERR); }
};

template <class Member, class Join, class Talk>
std::string one_of_two_teams(Rank& r, Join&& join_team, Talk&& talk) {
  if (r.rank == 0) EXPECT_GIN(FailingCq::on(r));
  r.meeting->barrier();
  Member first = join_team(r);
  FailingCq cq;
  if (r.rank == 0) cq.chosen = FailingCq::last;  // which is that rank's alone
  Member second = join_team(r);
  EXPECT_GIN(first.context && second.context);
  EXPECT_GIN(r.rank != 0 || (cq.chosen != nullptr && cq.chosen != FailingCq::last));
  if (auto wrong = talk(first, 1); !wrong.empty()) return wrong;
  r.meeting->barrier();
  if (r.rank == 0) cq.fail();
  const auto failed = [](Member& member) {
    if constexpr (requires { member.context->progress(); }) (void)member.context->progress();
    return member.context->failed();
  };
  const std::int64_t end = now_ns() + 20 * kSecond;
  while (!failed(first) && now_ns() < end) std::this_thread::yield();
  EXPECT_GIN(failed(first));
  // For longer than teams look at their ports.
  const std::int64_t later = now_ns() + 300 * kMillisecond;
  while (now_ns() < later) (void)failed(second);
  r.meeting->barrier();
  if (auto wrong = talk(second, 1); !wrong.empty()) return wrong;
  EXPECT_GIN(!failed(second));
  r.meeting->barrier();
  return {};
}

std::string gin_team(Rank& r) {
  return one_of_two_teams<Member>(
      r, [](Rank& rank) { return join(rank); },
      [&](Member& member, std::uint64_t round) -> std::string {
        auto kernel = member.kernel();
        TRY_GIN(kernel.signal(1 - r.rank, 0));
        TRY_GIN(kernel.wait_signal(0, round));
        return {};
      });
}

std::string rma_team(Rank& r) {
  return one_of_two_teams<RmaMember>(
      r, [](Rank& rank) { return rma_join(rank); },
      [&](RmaMember& member, std::uint64_t round) -> std::string {
        RmaMemory memory(*member.comm, 4096);
        EXPECT_GIN(memory);
        r.meeting->barrier();
        const RmaSignal signal{memory.at(8), 1};
        auto put = member.context->put(0, 1 - r.rank, {memory.at(64), memory.at(128), 64}, &signal);
        EXPECT_GIN(put);
        EXPECT_RMA_OK(rma_wait(*put));
        EXPECT_GIN(rma_await(*member.context, memory, 8, round));
        r.meeting->barrier();
        return {};
      });
}

}  // namespace

TEST_CASE("A completion queue that fails ends its GIN team, and no other on that adapter") {
  NEEDS(!on_adapters(), "completion queues of the soft HCA can be told to fail");
  // With two ports the last one made is the second's, of which queues that move know nothing yet.
  FailingCq::config.soft_hcas = GENERATE("soft0", "soft0,soft1");
  if (FailingCq::config.mode == ModeChoice::proxy) FailingCq::config.soft_hcas = "soft0";
  LogCapture log;
  CHECK(run_threads(2, gin_team, FailingCq::config) == "");
  FailingCq::config = gin_config();
  CAPTURE(log.warnings());
  CHECK(log.has(LogLevel::warn, "GIN of rank 0: a completion queue of "));
  CHECK(log.has(LogLevel::warn, "see the kernel log (dmesg); all kernels are let go"));
  CHECK_FALSE(log.has("a kernel wrote a work request"));  // no kernel is to blame
}

TEST_CASE("A completion queue that fails ends its RMA team, and no other on that adapter") {
  NEEDS(!on_adapters(), "completion queues of the soft HCA can be told to fail");
  LogCapture log;
  CHECK(run_threads(2, rma_team) == "");
  CAPTURE(log.warnings());
  CHECK(log.has(LogLevel::warn, "RMA of rank 0: a completion queue of "));
}
