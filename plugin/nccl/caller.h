#pragma once
// Which release of NCCL calls, for tables by which releases of different device structures call.
#include "plugin/base/log.h"

namespace twinpath {

// As ncclGetVersion of the library that holds the logger counts: 23004 is 2.30.4.  0 where that
// library does not show the function, as when NCCL is linked into a program.
//
// Threads: any; opens and closes the library's handle, so not for the data path.
int nccl_version_of(LogSink log);

}  // namespace twinpath
