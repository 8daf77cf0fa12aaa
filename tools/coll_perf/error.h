#pragma once
// Errors of the tool.  Everything that ends a run is thrown as ToolError with a message that
// names the object, the cause and the remedy, and with the exit status it leads to.  Nothing is
// thrown between the first and the last timed operation of a measurement.
#include <string>

#include "tools/common/failure.h"

namespace twinpath::coll {

enum ExitCode : int {
  kExitOk = 0,
  kExitWrong = 1,    // wrong elements, or a scenario that failed
  kExitUsage = 2,    // bad option
  kExitMissing = 3,  // no GPU, no driver, no NCCL, too old
  kExitFailed = 4,   // an operation failed or did not finish in time
};

class ToolError : public tools::Failure {
 public:
  ToolError(ExitCode code, const std::string& what) : tools::Failure(what), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

// The exit status for whatever was caught: its own, or that of the tools' common failures.
int exit_code_of(const std::exception& error);

// printf into a string.
std::string strf(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace twinpath::coll
