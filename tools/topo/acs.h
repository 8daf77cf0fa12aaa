#pragma once
// What Access Control Services and the IOMMU do to traffic between a GPU and an HCA.  Pure.
#include <string>
#include <vector>

#include "topology/model/machine.h"

namespace twinpath::tools::topo {

enum class Verdict { ok, bad, unknown };

struct AcsView {
  Verdict verdict = Verdict::unknown;
  std::string text;                  // "no port between them redirects"
  std::vector<std::string> ports;    // ports that redirect, "0000:12:01.0 (SV,RR,CR,UF)"
  bool doorbell_redirected = false;  // requests of the GPU are: matters when it rings itself
};
// Of the ports between the pair and their common switch; ok with a word on it where the way leads
// through the root complex anyway.  Where ACS cannot be read IOMMU groups tell: devices below one
// switch in different groups are isolated by its ports.
AcsView acs_view(const Machine& machine, const Gpu& gpu, const Hca& hca);

struct IommuView {
  Verdict verdict = Verdict::unknown;
  std::string text;  // "off", "on, passthrough (identity)", "on, translated (DMA-FQ)"
};
IommuView iommu_view(const Machine& machine, const Gpu& gpu, const Hca& hca);

}  // namespace twinpath::tools::topo
