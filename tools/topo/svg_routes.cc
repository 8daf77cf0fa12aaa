#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "tools/topo/svg_layout.h"

namespace twinpath::tools::topo {
namespace {

class Router {
 public:
  explicit Router(const std::vector<Box>& rows) {
    for (const Box& row : rows) collect(row);
  }

  // Short ones first: they lie above the long ones.
  std::vector<Route> routes() {
    std::vector<const Box*> gpus;
    for (const Box* d : devices_)
      if (d->kind == Box::Kind::gpu && d->rail >= 0 && target(*d) != nullptr) gpus.push_back(d);
    std::sort(gpus.begin(), gpus.end(), [&](const Box* a, const Box* b) {
      return std::pair(span(*a), a->index) < std::pair(span(*b), b->index);
    });
    for (const Box* g : gpus) route(*g, *target(*g));
    return std::move(out_);
  }

 private:
  void collect(const Box& box) {
    if (box.is_device()) {
      devices_.push_back(&box);
      return;
    }
    titles_.push_back(&box);
    for (const Box& c : box.children) collect(c);
  }
  // GPU data goes through the data-direct function where there is one.
  const Box* target(const Box& gpu) const {
    const Box* found = nullptr;
    for (const Box* d : devices_) {
      if (d->rail != gpu.rail || d->kind == Box::Kind::gpu) continue;
      if (found == nullptr || d->kind == Box::Kind::dma) found = d;
    }
    return found;
  }
  double span(const Box& gpu) const { return std::abs(target(gpu)->middle() - gpu.middle()); }

  struct Area {
    double left, top, right, bottom;
  };
  static bool cuts(const Area& a, const Box& b, double width, double height) {
    return a.left < b.x + width && b.x < a.right && a.top < b.y + height && b.y < a.bottom;
  }
  bool free(const Area& a) const {
    return std::none_of(devices_.begin(), devices_.end(),
                        [&](const Box* d) { return cuts(a, *d, d->width, d->height); }) &&
           std::none_of(titles_.begin(), titles_.end(), [&](const Box* t) {
             return cuts(a, *t, text_width(t->title, kTitleLetter), kTitleHeight);
           });
  }
  bool taken(double y, double left, double right) const {
    return std::any_of(out_.begin(), out_.end(), [&](const Route& r) {
      return std::abs(r.y - y) < kLane - 1 && std::min(r.x1, r.x2) - 3 < right &&
             left < std::max(r.x1, r.x2) + 3;
    });
  }
  void route(const Box& gpu, const Box& hca) {
    // Several ends at one HCA stand side by side.
    const int before = ends_[&hca]++;
    const double from = gpu.middle();
    const double to = hca.middle() + 9 * ((before + 1) / 2) * (before % 2 == 1 ? 1 : -1);
    const double left = std::min(from, to) - 3, right = std::max(from, to) + 3;
    for (int lane = 1; lane <= kMostLanes; ++lane) {
      const double y = std::max(gpu.bottom(), hca.bottom()) + kLane * lane;
      if (taken(y, left, right)) continue;
      if (free({left, y - 2, right, y + 2}) && free({from - 2, gpu.bottom() + 1, from + 2, y}) &&
          free({to - 2, hca.bottom() + 1, to + 2, y}))
        out_.push_back({gpu.index, gpu.rail, from, gpu.bottom(), to, hca.bottom(), y});
      return;
    }
  }

  std::vector<const Box*> devices_, titles_;
  std::map<const Box*, int> ends_;
  std::vector<Route> out_;
};

}  // namespace

std::vector<Route> routes_of(const std::vector<Box>& rows) { return Router(rows).routes(); }

}  // namespace twinpath::tools::topo
