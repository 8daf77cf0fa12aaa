// The address of a team's port goes and comes back at another index of the port's GID table while
// kernels run: a queue pair that was made with it is mute from then on.
#include "test/gda/move_seeds.h"
#include "test/support/moving_gids.h"

using namespace twinpath;
using namespace twinpath::gda;
using namespace twinpath::test;

namespace {

int place = 0;      // of the first port's address, the next time that it has one
bool away = false;  // it has none in between

void moving(Fabric& fabric) { MovingGids::on(fabric, "soft0"); }

std::size_t refusals() {
  std::size_t count = 0;
  for (const LogLine& line : fault.log->lines())
    count += line.text.find("soft0 cannot be used again yet: ") != std::string::npos ? 1 : 0;
  return count;
}

bool moves_address(bool well) {
  if (!well) {
    ++place;
    MovingGids::put(away ? std::vector<int>{} : std::vector{place});
    const std::lock_guard hold(MovingGids::mutex);
    MovingGids::raised.clear();
    return true;
  }
  if (!away) return true;
  // The port serves again; without an address no queue can be made.
  const std::size_t before = refusals();
  const bool refused = comes([before] { return refusals() > before; });
  const bool none = MovingGids::indices_raised().empty();
  MovingGids::put({place});
  return refused && none;
}

}  // namespace

TEST_CASE("F9: Kernels go back to a port whose address has moved, by seed") {
  if (on_adapters() || on_adapter_queues()) return;
  for (const bool gone : {false, true}) {
    away = gone;
    each_seed([](unsigned seed, const LogCapture& log) {
      INFO((away ? "gone for a while" : "moved at once"));
      Fault address{"address", false, soft::PortLoss::all};
      address.times = 2;
      address.also = moves_address;
      place = 0;
      REQUIRE(by_seed(seed, address, log, moving) == "");
      const std::vector<int> raised = MovingGids::indices_raised();
      CHECK(!raised.empty());
      CHECK(raised == std::vector(raised.size(), place));
      CHECK(moves_counted >= 4u * static_cast<unsigned>(fault.queues) / (2 + seed % 2));
      CHECK(log.has(LogLevel::info, "goes back to soft0, which works again"));
    });
  }
}
