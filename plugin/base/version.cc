#include "plugin/base/version.h"

#include "plugin/base/twinpath_commit.h"  // generated: TWINPATH_COMMIT

namespace twinpath {

const char* built_version() { return TWINPATH_VERSION; }
const char* built_commit() { return TWINPATH_COMMIT; }
const char* built_from() { return TWINPATH_VERSION " (" TWINPATH_COMMIT ")"; }

}  // namespace twinpath
