#pragma once
// How gda_perf gives up: ToolError, thrown where the cause is known; the thread's or the program's
// main function prints it.
#include "tools/common/tool_error.h"

namespace twinpath::gda_perf {

using tools::ExitCode;
using tools::ToolError;
using enum tools::ExitCode;

}  // namespace twinpath::gda_perf
