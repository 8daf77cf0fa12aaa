#include "tools/common/output.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <new>
#include <string>

#include "plugin/base/file.h"
#include "plugin/base/owned.h"
#include "tools/common/failure.h"

namespace twinpath::tools {
namespace {

void print_failure(const char* tool, const std::exception& error) {
  std::string what = error.what();
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr)
    what = "out of memory; ask for less, or raise the limit (ulimit -v)";
  else if (dynamic_cast<const Failure*>(&error) == nullptr)
    what = "an error of this program, please report it with the command: " + what;
  std::fprintf(stderr, "%s: %s\n", tool, what.c_str());
}

// Seen only where SIGPIPE is ignored, as in a service; else it has ended the program.
bool reader_has_gone() {
  pollfd out{STDOUT_FILENO, POLLOUT, 0};
  return poll(&out, 1, 0) == 1 && (out.revents & POLLERR) != 0;
}

// `status`, or `failed` where output was lost.
int finish_output(const char* tool, int status, int failed) {
  errno = 0;
  std::cout.flush();  // CLI11 prints --help there
  const bool flushed = std::fflush(stdout) == 0;
  if (flushed && std::ferror(stdout) == 0 && std::cout.good()) return status;
  // An earlier write may have failed: its errno is gone, what is left to write usually fails alike.
  const int error = errno;
  if (error == EPIPE || reader_has_gone()) return failed;
  std::fprintf(stderr, "%s: the output cannot be written%s%s: nobody has the results\n", tool,
               error == 0 ? "" : ": ", error == 0 ? "" : std::strerror(error));
  return failed;
}

UniqueFd open_output(const std::string& path, int how) {
  UniqueFd fd(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK | how, 0666));
  // A reader who is there may take his time.
  if (fd) (void)::fcntl(fd.get(), F_SETFL, 0);
  return fd;
}

}  // namespace

int make_output(const std::string& path) { return open_output(path, 0) ? 0 : errno; }

int write_output(const std::string& path, std::string_view data) {
  const UniqueFd fd = open_output(path, O_TRUNC);
  if (!fd) return errno;
  return write_all(fd.get(), data) ? 0 : errno;
}

std::string why_unwritable(int error) {
  return std::string("cannot be written: ") + std::strerror(error) +
         "; give a file in a folder of yours";
}

int run_tool(const char* tool, int failed, const std::function<int()>& run,
             const std::function<int(const std::exception&)>& status_of) {
  try {
    return finish_output(tool, run(), failed);
  } catch (const std::exception& error) {
    std::fflush(stdout);
    print_failure(tool, error);
    return status_of(error);
  }
}

int run_tool(const char* tool, int failed, const std::function<int()>& run) {
  return run_tool(tool, failed, run, [failed](const std::exception&) { return failed; });
}

}  // namespace twinpath::tools
