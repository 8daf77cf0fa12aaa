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

bool is_limited(decltype(RLIMIT_AS) what) {
  rlimit limit{};
  return ::getrlimit(what, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
}

std::string or_raise_limits() {
  const std::string limits = limits_of_memory();
  return limits.empty() ? limits : ", or raise " + limits;
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
             or_raise_limits();
  }
}

}  // namespace

bool is_refusal(int error) { return error == EPERM || error == EACCES || error == ENOSYS; }

std::string why_no_thread(int error) {
  return std::string(std::strerror(error)) + "; " +
         (is_refusal(error)
              ? profile_refuses("clone3")
              : "raise the limit of processes and threads (ulimit -u, pids.max of the container)" +
                    or_raise_limits());
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

std::string why_no_network(int error, const char* otherwise) {
  const std::string text = std::strerror(error);
  if (error == EPERM || error == EACCES)
    return text + "; a firewall, or " + profile_refuses("the call");
  if (is_refusal(error)) return text + "; " + profile_refuses("the call");
  if (error == EMFILE || error == ENFILE)
    return text + "; raise the limit of open files (ulimit -n)";
  if (error == ENOMEM || error == ENOBUFS) return text + "; " + remedy_for_memory(error);
  return text + (*otherwise == '\0' ? "" : "; ") + otherwise;
}

std::string limits_of_memory() {
  const bool space = is_limited(RLIMIT_AS), data = is_limited(RLIMIT_DATA);
  if (!space && !data) return {};
  if (!data) return "the limit of address space (ulimit -v)";
  return space ? "the limits of address space and data (ulimit -v, ulimit -d)"
               : "the limit of data (ulimit -d)";
}

}  // namespace twinpath
