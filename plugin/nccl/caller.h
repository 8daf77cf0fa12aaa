#pragma once
// Which release of NCCL calls, for tables by which releases of different device structures call.
#include "plugin/base/log.h"

namespace twinpath {

// As ncclGetVersion of the library that holds the logger counts: 23004 is 2.30.4.  0 where that
// library, or the program that NCCL is linked into, does not show the function.
//
// Threads: any; opens and closes the library's handle, so not for the data path.
int nccl_version_of(LogSink log);

}  // namespace twinpath
