// See soft_ways.h.
#include "gda/served/back/soft_ways.h"

#include "plugin/base/log.h"

namespace twinpath::gda {

SoftWays::SoftWays(const SoftWaysSetup& setup) : setup_(setup) {
  for (std::size_t way = 0; way < 2; ++way)
    if (setup.ways[way].qp != nullptr) reach_[way] = setup.soft->reach(setup.ways[way].qp);
}

int SoftWays::choose_of_two(const char* name) {
  const bool one = setup_.lacks->load(std::memory_order_relaxed) != nullptr;
  if (!one && reach(0).down() && reach(1).down()) return -1;
  const int way = one || !reach(0).down() ? 0 : 1;
  if (way == on_) return way;
  const auto port = [this](int of) { return setup_.ways[static_cast<std::size_t>(of)].port; };
  if (way == 0)
    TP_INFO(net, "%s goes back to %s, which works again", name, port(way));
  else
    TP_WARN("%s leaves %s for %s: it is down", name, port(on_), port(way));
  setup_.counts->add(0);  // it has not stood still
  return on_ = way;
}

}  // namespace twinpath::gda
