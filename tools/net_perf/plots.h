#pragma once
// What --plot draws of net_perf's rows.  Pure.
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/common/plot.h"
#include "tools/net_perf/options.h"

namespace twinpath::tools {

// What was measured, of which plugin and under what circumstances.
std::vector<std::string> plot_heading(const Options& options, const nlohmann::json& plugin);
// Of `results` as the JSON document has them.
std::vector<PlotPanel> plots_of(const Options& options, const nlohmann::json& rows);
// The same of a comparison.
std::vector<PlotPanel> comparison_plots(const Options& options, const nlohmann::json& rows);

}  // namespace twinpath::tools
