#pragma once
// Everything that led to one pair's class and modes: one line a rule, with its fact and its source.
#include <optional>
#include <string>
#include <vector>

#include "tools/topo/report.h"

namespace twinpath::tools::topo {

struct WhyLine {
  std::string part;    // "class", "acs", "landing"
  std::string result;  // "PXB", "direct"
  std::string code;    // "W2 OK_PXB"; may be empty
  std::string fact;
  std::string remedy;  // may be empty
  std::string source;  // "sysfs /; hwloc agrees"; may be empty
};

struct WhySection {
  std::string title;
  std::vector<WhyLine> lines;
};

// `peer` is null for a peer that is placed alike; otherwise its GPU of the same number answers.
std::vector<WhySection> why(const Report& report, int gpu, int hca, const Report* peer);
std::string why_text(const std::vector<WhySection>& sections);

// Index of "GPU0", "0" or a bus id, and of an HCA's name; nullopt and `error` that lists what
// there is.
std::optional<int> find_gpu(const Machine& machine, const std::string& name, std::string& error);
std::optional<int> find_hca(const Machine& machine, const std::string& name, std::string& error);

}  // namespace twinpath::tools::topo
