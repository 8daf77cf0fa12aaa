#include "plugin/base/refused.h"

#include <sys/resource.h>

#include <cerrno>
#include <cstring>

namespace twinpath {
namespace {

std::string profile_refuses(const char* calls) {
  return std::string("the security profile of the container or sandbox (seccomp) refuses ") +
         calls + ", and has to allow it";
}

// Empty without such a limit.
std::string address_space(const char* before) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return {};
  return std::string(before) + "raise the limit of address space (ulimit -v)";
}

std::string remedy_for_memory(int error) {
  switch (error) {
    case EFBIG:
      return "the limit of file sizes holds for it: raise it (ulimit -f unlimited)";
    case EMFILE:
    case ENFILE:
      return "raise the open file limit (ulimit -n)";
    default:
      return "free memory (shared memory counts against the container's or cgroup's limit)" +
             address_space(", or ");
  }
}

}  // namespace

bool is_refusal(int error) { return error == EPERM || error == EACCES || error == ENOSYS; }

std::string why_no_thread(int error) {
  return std::string(std::strerror(error)) + "; " +
         (is_refusal(error)
              ? profile_refuses("clone3")
              : "raise the limit of processes and threads (ulimit -u, pids.max of the container)" +
                    address_space(", or "));
}

std::string why_no_memory(int error) {
  // Kinds of sockets are refused as if there were none (systemd's RestrictAddressFamilies).
  return std::string(std::strerror(error)) + "; " +
         (is_refusal(error) || error == EAFNOSUPPORT ? profile_refuses("the call")
                                                     : remedy_for_memory(error));
}

std::string why_not_watched(int error) {
  if (error != ENOSPC) return why_no_memory(error);
  return std::string(std::strerror(error)) + "; raise fs.epoll.max_user_watches";
}

}  // namespace twinpath
