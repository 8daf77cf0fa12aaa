// The address of a team's port goes and comes back at another index of the port's GID table while
// kernels run: a queue pair that was made with it is mute from then on.
#include "test/gda/moving_address.h"

using namespace twinpath;
using namespace twinpath::gda;
using namespace twinpath::test;

namespace {

struct Kernels {
  Kernels(Rank& r, int device) : member(join(r, settings30(), device)) {}
  explicit operator bool() const { return member.context != nullptr; }
  std::string talk() { return test::talk(member, 1); }
  Member member;
};

}  // namespace

TEST_CASE("F9: The address of a second port that is not in use moves", "[once]") {
  if (on_adapters() || on_adapter_queues()) return;
  idle_addresses<Kernels>();
}

TEST_CASE("F9: Kernels go back to a port whose address has moved, by seed", "[once]") {
  if (on_adapters() || on_adapter_queues()) return;
  for (const bool gone : {false, true}) {
    away = gone;
    each_seed([](unsigned seed, const LogCapture& log) {
      INFO((away ? "gone for a while" : "moved at once"));
      Fault address{"address", false, soft::PortLoss::all};
      address.plan = moves_address;
      REQUIRE(by_seed(seed, address, log, {}, moving) == "");
      CHECK(moves_counted >= 4u * static_cast<unsigned>(fault.queues) / (2 + seed % 2));
      CHECK(log.has(LogLevel::info, "goes back to soft0, which works again"));
    });
  }
}
