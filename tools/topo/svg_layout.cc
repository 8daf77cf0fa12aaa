#include "tools/topo/svg_layout.h"

#include <algorithm>

namespace twinpath::tools::topo {
namespace {

constexpr double kGap = 10;
constexpr double kMostWidth = 1500;
constexpr double kLeastWidth = 760;  // of the picture: the legend

double device_height(const Box& b) {
  const std::size_t lines = b.details.size() + (b.rail < 0 ? 0 : 1) + b.problems.size();
  return 20 + kLineHeight * static_cast<double>(lines);
}
// All devices are equally high, so that those of one line end at the same place.
double highest_device(const std::vector<Box>& boxes) {
  double most = 0;
  for (const Box& b : boxes)
    most = std::max(most, b.is_device() ? device_height(b) : highest_device(b.children));
  return most;
}

// How devices are set.
struct Measures {
  double device_height = 0;
  double room = 0;  // below each line of devices, for lines between them
};

// Sizes from the inside out; children in lines of at most `most` wide, device beside device.
void measure(Box& box, double most, const Measures& with) {
  if (box.is_device()) {
    box.width = std::max({kDeviceWidth, text_width(box.title, 6.9), text_width(box.tag, 6.2) + 10});
    for (const std::string& d : box.details) box.width = std::max(box.width, text_width(d, 5.5));
    for (const std::string& p : box.problems) box.width = std::max(box.width, text_width(p, 6));
    box.height = with.device_height;
    return;
  }
  for (Box& c : box.children) measure(c, most - 2 * kPad, with);
  double x = kPad, y = kTitleHeight + 6 + kLineHeight * static_cast<double>(box.problems.size());
  double tallest = 0, widest = text_width(box.title, kTitleLetter);
  for (const std::string& p : box.problems) widest = std::max(widest, text_width(p, 6));
  int in_line = 0;
  bool devices = false;
  const auto end_line = [&] {
    y += tallest + (devices ? with.room : kGap);
    x = kPad;
    tallest = 0;
    in_line = 0;
    devices = false;
  };
  const bool row = box.kind == Box::Kind::row;
  for (Box& c : box.children) {
    const bool full = x + c.width + kPad > most || (!row && in_line == box.per_line);
    const bool other = in_line > 0 && !row && c.is_device() != devices;
    if (in_line > 0 && (full || other)) end_line();
    c.x = x;
    c.y = y;
    x += c.width + kGap;
    widest = std::max(widest, c.x + c.width + kPad);
    tallest = std::max(tallest, c.height);
    devices = devices || c.is_device();
    ++in_line;
  }
  if (in_line > 0) end_line();
  box.width = widest;
  box.height = y;
}

void move_by(Box& box, double dx, double dy) {
  box.x += dx;
  box.y += dy;
  for (Box& c : box.children) move_by(c, box.x, box.y);
}

Layout lay_out_with(const std::vector<Box>& rows, double top, const Measures& with) {
  Layout layout;
  layout.width = kLeastWidth;
  layout.rows = rows;
  double y = top;
  for (Box& row : layout.rows) {
    measure(row, kMostWidth, with);
    row.x = 0;
    row.y = 0;
    move_by(row, 16, y);
    y = row.bottom() + 24;
    layout.width = std::max(layout.width, row.x + row.width + 16);
  }
  // Rows are equally wide, so that their frames line up.
  for (Box& row : layout.rows) row.width = layout.width - 32;
  layout.height = y;
  layout.routes = routes_of(layout.rows);
  return layout;
}

}  // namespace

Layout lay_out(const Report& report, double top) {
  const std::vector<Box> rows = boxes_of(report);
  Measures with{highest_device(rows), kGap + kLane * kMostLanes};
  // First with room for all lines; then with as much as they take.
  double lanes = 0;
  for (const Route& r : lay_out_with(rows, top, with).routes)
    lanes = std::max(lanes, (r.y - std::max(r.y1, r.y2)) / kLane);
  with.room = kGap + kLane * lanes;
  return lay_out_with(rows, top, with);
}

}  // namespace twinpath::tools::topo
