#pragma once
// Errors of the tool: everything that ends a run is thrown as ToolError.  Nothing is thrown between
// the first and the last timed operation of a measurement.
#include <string>

#include "tools/common/tool_error.h"

namespace twinpath::coll {

using tools::exit_code_of, tools::ToolError;
using enum tools::ExitCode;

// printf into a string.
std::string strf(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace twinpath::coll
