// The model linked into the program itself: tests that look into it, and the tools that are it
// (tools/softhca).  A library apart from the model's, because the plugin finds its model elsewhere.
#include "plugin/fabric/soft/entry.h"

namespace twinpath {

const SoftHca* open_soft_hca(std::string&) { return &soft::entry(); }

}  // namespace twinpath
