#pragma once
// The soft HCAs of a configuration (TWINPATH_SOFT_HCAS) entered into a machine, each at the place
// that its `pci` or `place` names, with its ports.  Pure.
#include <string>

#include "plugin/base/config.h"
#include "topology/model/machine.h"

namespace twinpath {

// False and `why` for text that is not a specification (nothing is entered), or a place that does
// not exist (that adapter is entered without one).
bool place_soft_hcas(Machine& machine, const Config& config, std::string& why);

}  // namespace twinpath
