#pragma once
// How the tools that measure through NCCL end a run: a message that names the object, the cause and
// the remedy, and the exit status it leads to.
#include <exception>
#include <string>

#include "tools/common/failure.h"

namespace twinpath::tools {

enum ExitCode : int {
  kExitOk = 0,
  kExitWrong = 1,    // wrong elements or bytes, too many signals, or a scenario that failed
  kExitUsage = 2,    // bad option
  kExitMissing = 3,  // no GPU, no driver, no NCCL, or not one that will do
  kExitFailed = 4,   // an operation failed or did not finish in time
};

class ToolError : public Failure {
 public:
  ToolError(ExitCode code, const std::string& what) : Failure(what), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

// The exit status for whatever was caught: its own, or that of the tools' common failures.
int exit_code_of(const std::exception& error);

}  // namespace twinpath::tools
