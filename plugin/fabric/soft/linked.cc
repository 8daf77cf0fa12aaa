// The model linked into the program itself.  A library apart from the model's, so that a program
// may find its model elsewhere.
#include "plugin/fabric/soft/entry.h"

namespace twinpath {

const SoftHca* open_soft_hca(std::string&) { return &soft::entry(); }

bool soft_hca_is_there() { return true; }

}  // namespace twinpath
