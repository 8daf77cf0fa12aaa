#pragma once
// The few functions of hwloc that we call, found in libhwloc.so.15 at run time: the plugin must
// load on machines without hwloc.  The library stays open for the life of the process.
#include <hwloc.h>

#include <string>

namespace twinpath {

// name, required
#define TP_HWLOC(X)                     \
  X(get_api_version, true)              \
  X(topology_init, true)                \
  X(topology_destroy, true)             \
  X(topology_load, true)                \
  X(topology_set_flags, true)           \
  X(topology_set_io_types_filter, true) \
  X(topology_set_components, true)      \
  X(topology_get_depth, true)           \
  X(get_type_depth, true)               \
  X(get_nbobjs_by_depth, true)          \
  X(get_obj_by_depth, true)             \
  X(bitmap_iszero, true)                \
  X(bitmap_isset, true)                 \
  X(bitmap_isincluded, true)            \
  X(bitmap_first, true)                 \
  X(bitmap_next, true)

struct HwlocLibrary {
#define TP_DECLARE(name, required) decltype(&hwloc_##name) name = nullptr;
  TP_HWLOC(TP_DECLARE)
#undef TP_DECLARE
  std::string version;  // "hwloc interface 2.8" (2.9 has that)
};

// Null and `why_not` when the library is not installed or too old.
const HwlocLibrary* hwloc_library(std::string& why_not);

}  // namespace twinpath
