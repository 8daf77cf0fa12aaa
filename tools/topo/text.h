#pragma once
// The report as text of at most 80 columns, without colour.
#include <string>
#include <vector>

#include "tools/topo/report.h"

namespace twinpath::tools::topo {

inline constexpr std::size_t kColumns = 80;

// The default output: what the node is, classes of all pairs, the HCA and mode of each GPU, HCAs
// left out, warnings.
std::string matrix_text(const Report& report);
// Of it: what better modes lack, GPUs with one cause in one line; empty when nothing is lacking.
std::string needs_text(const Report& report);
// The modes with another machine, both directions.
std::string peers_text(const Report& local, const Report& peer, const std::vector<PeerPair>& pairs);
// The PCIe tree down to GPUs and HCAs, one device or bridge a line.
std::string tree_text(const Report& report);

// Lines of at most kColumns; those after the first begin with `indent` blanks.
std::string wrapped(const std::string& text, std::size_t indent);

// Rows of cells in left-aligned columns, two blanks apart, each line after `indent` blanks.
std::string columns(const std::vector<std::vector<std::string>>& rows, std::size_t indent);

}  // namespace twinpath::tools::topo
