#pragma once
// Where every box of the picture stands: rows for NUMA nodes, in them host bridges, in these
// switches, in these devices.  Root and downstream ports are folded into what they lead to.  And
// the lines from GPUs to their HCAs: below the devices, where they cross no device and no text;
// pairs for which there is no such way have their colour and their words alone.
//
// Pure.
#include <optional>
#include <string>
#include <vector>

#include "tools/topo/report.h"

namespace twinpath::tools::topo {

struct Box {
  enum class Kind { row, host, bridge, gpu, hca, management, dma };
  Kind kind = Kind::row;
  double x = 0, y = 0, width = 0, height = 0;
  int index = -1;  // into the machine's vector of that kind; NumaNode::id of a row, -1 unknown
  std::string title;
  std::vector<std::string> details;   // further lines
  std::string tag;                    // of a GPU: its HCA and how; of an HCA: its GPUs
  int rail = -1;                      // the HCA whose colour the tag has; -1: no tag
  bool far = false;                   // of a GPU: its HCA lies beyond the switches
  std::vector<std::string> problems;  // in red
  std::vector<Box> children;
  int per_line = 4;  // children side by side

  bool is_device() const { return kind >= Kind::gpu; }
  double middle() const { return x + width / 2; }
  double bottom() const { return y + height; }
};

// From the bottom of one device to the bottom of another: down to y, along, and up.
struct Route {
  int gpu = 0, rail = 0;  // indices into the machine
  double x1 = 0, y1 = 0, x2 = 0, y2 = 0;
  double y = 0;
};

struct Layout {
  std::vector<Box> rows;
  std::vector<Route> routes;
  double width = 0, height = 0;
};
// `top` is the room above the first row.
Layout lay_out(const Report& report, double top);

// What there is to draw, without places.
std::vector<Box> boxes_of(const Report& report);
// Lines between devices, in a picture that is laid out; short ones above long ones.
std::vector<Route> routes_of(const std::vector<Box>& rows);

inline constexpr double kLane = 7;  // between two lines that run side by side
inline constexpr int kMostLanes = 12;
inline constexpr double kPad = 8;  // from a box's edge to what is in it
inline constexpr double kTitleLetter = 6.3;
inline double text_width(const std::string& s, double letter) {
  return static_cast<double>(s.size()) * letter + 2 * kPad;
}
inline constexpr double kTitleHeight = 18;
inline constexpr double kDeviceWidth = 150;
inline constexpr double kLineHeight = 12;  // of a device's text

}  // namespace twinpath::tools::topo
