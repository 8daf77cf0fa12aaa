#pragma once
// Where every box of the picture stands: rows for NUMA nodes, in them host bridges, in these
// switches, in these devices.  Root and downstream ports are folded into what they lead to.
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
  std::string detail;                 // a second line
  std::vector<std::string> problems;  // in red
  std::vector<Box> children;
  int per_line = 4;  // children side by side

  double middle() const { return x + width / 2; }
  double bottom() const { return y + height; }
};

struct Layout {
  std::vector<Box> rows;
  double width = 0, height = 0;
};
// `top` is the room above the first row.
Layout lay_out(const Report& report, double top);

inline constexpr double kTitleHeight = 18;
inline constexpr double kDeviceWidth = 134;

}  // namespace twinpath::tools::topo
