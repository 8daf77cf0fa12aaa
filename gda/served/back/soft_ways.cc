// See soft_ways.h.
#include "gda/served/back/soft_ways.h"

#include "plugin/base/clock.h"
#include "plugin/base/log.h"

namespace twinpath::gda {

SoftWays::SoftWays(const SoftWaysSetup& setup) : setup_(setup) {
  for (std::size_t way = 0; way < 2; ++way)
    if (setup.ways[way].qp != nullptr) reach_[way] = setup.soft->reach(setup.ways[way].qp);
}

int SoftWays::find() const {
  if (reach_[1] == nullptr || setup_.lacks->load(std::memory_order_relaxed) != nullptr) return 0;
  return !reach(0).down() ? 0 : !reach(1).down() ? 1 : kNone;
}

int SoftWays::choose_of_two(const char* name) {
  const int way = find();
  if (way == kNone) return none(name);
  limit_.reset();
  if (way == on_) return way;
  const auto port = [this](int of) { return setup_.ways[static_cast<std::size_t>(of)].port; };
  if (way == 0)
    TP_INFO(net, "%s goes back to %s, which works again", name, port(way));
  else
    TP_WARN("%s leaves %s for %s: it is down", name, port(on_), port(way));
  setup_.counts->add(0);  // it has not stood still
  return on_ = way;
}

// A port of each end may be down, and the ends learn of their own alone.
int SoftWays::none(const char* name) {
  if (!limit_) limit_.emplace(setup_.hold);
  if (!limit_->over(now_ns())) return kNone;
  TP_WARN(
      "%s: neither %s nor %s has been up at both ends for %lld ms, check cables (ip link, ibstat)",
      name, setup_.ways[0].port, setup_.ways[1].port,
      static_cast<long long>(setup_.hold / kMillisecond));
  return kLost;
}

}  // namespace twinpath::gda
