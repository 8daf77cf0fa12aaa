#include "tools/common/output.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iostream>

namespace twinpath::tools {

int finish_output(const char* tool, int status, int failed) {
  errno = 0;
  std::cout.flush();  // CLI11 prints --help there
  const bool flushed = std::fflush(stdout) == 0;
  if (flushed && std::ferror(stdout) == 0 && std::cout.good()) return status;
  // An earlier write may have failed: its errno is gone, what is left to write usually fails alike.
  std::fprintf(stderr, "%s: the output cannot be written%s%s: nobody has the results\n", tool,
               errno == 0 ? "" : ": ", errno == 0 ? "" : std::strerror(errno));
  return failed;
}

}  // namespace twinpath::tools
