#pragma once
// How gda_perf gives up: thrown where the cause is known, with the exit status it leads to; the
// thread's or the program's main function prints it.
#include <string>

#include "tools/common/failure.h"

namespace twinpath::gda_perf {

enum ExitCode : int {
  kExitOk = 0,
  kExitWrong = 1,    // wrong bytes or too many signals
  kExitUsage = 2,    // bad option
  kExitMissing = 3,  // no GPU, no NCCL, wrong NCCL
  kExitFailed = 4,   // an operation failed or did not finish in time
};

struct Failed : tools::Failure {
  Failed(ExitCode exit_code, const std::string& what) : tools::Failure(what), code(exit_code) {}
  ExitCode code;
};

}  // namespace twinpath::gda_perf
