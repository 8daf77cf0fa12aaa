#include "plugin/base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "plugin/base/file_size_signal.h"

namespace twinpath {
namespace {

std::string cannot(const char* what, int error) {
  return std::string("cannot be ") + what + ": " + std::strerror(error);
}

std::string unlike_a_file(mode_t mode) {
  if (S_ISDIR(mode)) return cannot("read", EISDIR);
  return std::string("is ") + (S_ISFIFO(mode) ? "a FIFO" : "a device") + ", not a file";
}

// Without waiting for whoever would write to a FIFO, and without taking a terminal.
UniqueFd open_regular(const std::string& path, std::string& why) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat st {};
  if (!fd || ::fstat(fd.get(), &st) != 0) {
    why = cannot("read", errno);
    return {};
  }
  if (S_ISREG(st.st_mode)) return fd;
  why = unlike_a_file(st.st_mode);
  return {};
}

// The size that the kernel tells is not asked for: it is 0 in /proc, a page in /sys, and may
// change.
std::optional<std::string> read_up_to(const std::string& path, std::size_t most, std::string& why) {
  const UniqueFd fd = open_regular(path, why);
  if (!fd) return std::nullopt;
  std::string out;
  std::array<char, 16384> part;
  while (out.size() < most) {
    const ssize_t n = ::read(fd.get(), part.data(), std::min(part.size(), most - out.size()));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      why = cannot("read", errno);
      return std::nullopt;
    }
    if (n == 0) break;
    out.append(part.data(), static_cast<std::size_t>(n));
  }
  return out;
}

std::string size_text(std::size_t bytes) {
  return bytes % (1u << 20) == 0 ? std::to_string(bytes >> 20) + " MiB"
                                 : std::to_string(bytes) + " bytes";
}

std::string self_link(int fd) { return "/proc/self/fd/" + std::to_string(fd); }

// Whether it is of a memfd of that name: a regular file on the one device that only memfds and
// their like are on, which no path leads to.  The name alone proves nothing, a file may be called
// so.
bool is_memory(int fd, const char* name) {
  struct stat st {
  }, own{};
  const UniqueFd mine(memfd_create(name, MFD_CLOEXEC));
  if (!mine || fstat(mine.get(), &own) != 0 || fstat(fd, &st) != 0) return false;
  std::array<char, 256> target{};
  const ssize_t n = readlink(self_link(fd).c_str(), target.data(), target.size());
  return S_ISREG(st.st_mode) && st.st_dev == own.st_dev && n > 0 &&
         std::string_view(target.data(), static_cast<std::size_t>(n)) ==
             std::string("/memfd:") + name + " (deleted)";
}

}  // namespace

std::optional<std::string> read_file(const std::string& path, std::size_t most, std::string& why) {
  auto text = read_up_to(path, most + 1, why);
  if (!text || text->size() <= most) return text;
  why = "has more than " + size_text(most);
  return std::nullopt;
}

std::optional<std::string> read_head(const std::string& path, std::size_t bytes, std::string& why) {
  return read_up_to(path, bytes, why);
}

UniqueFd open_foreign_memory(const std::string& link, const char* name, int access,
                             std::string& why) {
  // O_PATH opens nothing: no right is used, and no driver or file system is asked.
  const UniqueFd seen(::open(link.c_str(), O_PATH | O_CLOEXEC));
  if (!seen) {
    why = std::string("cannot be opened: ") + std::strerror(errno);
    return {};
  }
  if (!is_memory(seen.get(), name)) {
    why = std::string("is no memory named ") + name;
    return {};
  }
  UniqueFd fd(::open(self_link(seen.get()).c_str(), access | O_CLOEXEC));
  if (!fd) why = std::string("cannot be opened: ") + std::strerror(errno);
  return fd;
}

bool write_all(int fd, std::string_view data) {
  while (!data.empty()) {
    const ssize_t n = ::write(fd, data.data(), data.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    data.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

bool replace_file(const std::string& path, std::string_view data, unsigned mode, std::string& why) {
  std::string made = path + ".XXXXXX";
  errno = 0;
  const NoFileSizeSignal error_only;
  const UniqueFd fd(::mkostemp(made.data(), O_CLOEXEC));
  if (!fd) {
    why = cannot("written", errno);
    return false;
  }
  if (write_all(fd.get(), data) && ::fchmod(fd.get(), mode) == 0 &&
      ::rename(made.c_str(), path.c_str()) == 0)
    return true;
  const int error = errno;
  why = cannot("written", error);
  if (error == EFBIG) why += "; raise the limit of file sizes (ulimit -f)";
  (void)::unlink(made.c_str());
  return false;
}

}  // namespace twinpath
