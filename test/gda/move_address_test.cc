// The address of a team's port goes and comes back at another index of the port's GID table while
// kernels run: a queue pair that was made with it is mute from then on.
#include "test/gda/move_seeds.h"
#include "test/support/moving_gids.h"

using namespace twinpath;
using namespace twinpath::gda;
using namespace twinpath::test;

namespace {

int place = 0;      // where the first port's address goes
bool away = false;  // it is nowhere in between

void moving(Fabric& fabric) { MovingGids::on(fabric, "soft0"); }

std::size_t refusals() {
  std::size_t count = 0;
  for (const LogLine& line : fault.log->lines())
    count += line.text.find("soft0 cannot be used again yet: ") != std::string::npos ? 1 : 0;
  return count;
}

std::string moves_address(const Port& port) {
  for (place = 1; place <= 2; ++place) {
    std::this_thread::sleep_for(std::chrono::microseconds(fault.after_us));
    MovingGids::put(away ? std::vector<int>{} : std::vector{place});
    {
      const std::lock_guard hold(MovingGids::mutex);
      MovingGids::raised.clear();
    }
    set(port, false);
    EXPECT_GIN(all_are_on("soft1"), place);
    std::this_thread::sleep_for(std::chrono::microseconds(fault.back_us));
    set(port, true);
    if (away) {  // the port serves again; without an address no queue can be made
      const std::size_t before = refusals();
      EXPECT_GIN(comes([before] { return refusals() > before; }), place);
      EXPECT_GIN(MovingGids::indices_raised().empty(), place);
      MovingGids::put({place});
    }
    EXPECT_GIN(all_are_on("soft0"), place);
    const std::vector<int> raised = MovingGids::indices_raised();
    EXPECT_GIN(!raised.empty() && raised == std::vector(raised.size(), place), place);
  }
  return {};
}

}  // namespace

TEST_CASE("F9: Kernels go back to a port whose address has moved, by seed") {
  if (on_adapters() || on_adapter_queues()) return;
  for (const bool gone : {false, true}) {
    away = gone;
    each_seed([](unsigned seed, const LogCapture& log) {
      INFO((away ? "gone for a while" : "moved at once"));
      Fault address{"address", false, soft::PortLoss::all};
      address.plan = moves_address;
      REQUIRE(by_seed(seed, address, log, moving) == "");
      CHECK(moves_counted >= 4u * static_cast<unsigned>(fault.queues) / (2 + seed % 2));
      CHECK(log.has(LogLevel::info, "goes back to soft0, which works again"));
    });
  }
}
