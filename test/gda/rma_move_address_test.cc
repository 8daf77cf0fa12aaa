// Addresses of a team's ports move, and both ports are down for a while, under puts of the host.
#include <atomic>
#include <optional>
#include <thread>

#include "test/gda/moving_address.h"
#include "test/gda/rma_moves.h"
#include "test/support/catch.h"
#include "test/support/log_capture.h"

using namespace twinpath;
using namespace twinpath::gda;
using namespace twinpath::test;

namespace {

// What one rank has, driven by a thread of its own.
struct Driven {
  Driven(Rank& r, RmaMember with) : me(r.rank), member(std::move(with)) {
    if (member.context == nullptr) return;
    words.emplace(*member.comm, 4096);
    driver = std::thread([this] {
      while (!over) {
        (void)member.context->progress();
        std::this_thread::yield();
      }
    });
  }
  Driven(Rank& r, int device) : Driven(r, rma_join(r, {.contexts = 1}, device)) {}
  ~Driven() {
    over = true;
    if (driver.joinable()) driver.join();
  }
  explicit operator bool() const { return words && *words; }

  // The n-th signal to the other of two ranks and from it.
  std::string talk(std::uint64_t n = 1) {
    const RmaSignal signal{words->at(0), 1};
    auto put = member.context->put(0, 1 - me, {}, &signal);
    EXPECT_GIN(put);
    EXPECT_RMA_OK(rma_wait(*put));
    EXPECT_GIN(rma_await(*member.context, *words, 0, n) && !member.context->failed());
    return {};
  }

  const int me;
  RmaMember member;
  std::optional<RmaMemory> words;
  std::atomic<bool> over{false};
  std::thread driver;
};

bool busy = false;

// Both ports are down; the second one comes back first.
std::string waits_for_second(Rank& r) {
  Driven driven(r, rma_join_first(r));
  EXPECT_GIN(driven);
  const Port& first = *r.devices->rails(0).front().port;
  const Port& second = *r.devices->rails(1).front().port;
  r.meeting->barrier();
  if (r.rank == 0) {
    (void)soft::set_port_state(second.context, second.number, false);
    (void)soft::set_port_state(first.context, first.number, false);
  }
  r.meeting->barrier();
  std::string said;
  std::thread talking;
  if (busy) talking = std::thread([&] { said = driven.talk(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  r.meeting->barrier();
  if (r.rank == 0) (void)soft::set_port_state(second.context, second.number, true);
  const bool moved = all_are_on("soft1");
  if (talking.joinable()) talking.join();
  EXPECT_GIN(moved);
  if (!said.empty()) return said;
  r.meeting->barrier();
  if (std::string wrong = driven.talk(busy ? 2 : 1); !wrong.empty()) return wrong;
  r.meeting->barrier();
  mend(r);
  return {};
}

}  // namespace

TEST_CASE("F6: With both ports down RMA waits, and goes on over the second when that is back",
          "[once]") {
  if (on_adapters()) return;
  busy = GENERATE(false, true);
  const LogCapture log;
  fault = {"both", true};
  fault.log = &log;
  fault.queues = 8;  // of two contexts
  Config config = merged_config();
  config.ib_timeout = 20;  // else what is under way ends meanwhile
  CHECK(run_threads(2, waits_for_second, config) == "");
  CHECK(log.has("leaves soft0 for soft1: it is down"));
}

TEST_CASE("F9: The address of a second port that RMA does not use moves", "[once]") {
  if (on_adapters()) return;
  idle_addresses<Driven>();
}

TEST_CASE("F9: RMA goes back to a port whose address has moved, by seed", "[once]") {
  if (on_adapters()) return;
  for (const bool gone : {false, true}) {
    away = gone;
    each_seed([](unsigned seed, const LogCapture& log) {
      INFO((away ? "gone for a while" : "moved at once"));
      Fault address{"address", seed % 2 == 0, soft::PortLoss::all};
      address.plan = moves_address;
      REQUIRE(by_seed(seed, address, log, {rma_moves<RmaMemory>, queues_of(address)}, moving) ==
              "");
      CHECK(moves_counted >= 4 * fault.queues);
      CHECK(log.has(LogLevel::info, "goes back to soft0, which works again"));
    });
  }
}
