#include "plugin/fabric/soft/link.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>

#include "plugin/base/log.h"

namespace twinpath::soft {

Result<UniqueFd> make_shared_memory(const char* name, std::size_t bytes) {
  UniqueFd fd(memfd_create(name, MFD_CLOEXEC));
  if (!fd) {
    TP_WARN("soft HCA: memfd_create(%s): %s; raise the open file limit (ulimit -n)", name,
            std::strerror(errno));
    return Status::system;
  }
  if (int rc = posix_fallocate(fd.get(), 0, static_cast<off_t>(bytes)); rc != 0) {
    TP_WARN(
        "soft HCA: cannot reserve %zu bytes of shared memory for %s: %s; free memory (shared "
        "memory counts against the container's or cgroup's limit)",
        bytes, name, std::strerror(rc));
    return Status::no_memory;
  }
  return fd;
}

namespace {
Result<LinkMemory*> map(int fd, int flags) {
  void* p = mmap(nullptr, sizeof(LinkMemory), PROT_READ | PROT_WRITE, flags, fd, 0);
  if (p == MAP_FAILED) {
    TP_WARN("soft HCA: cannot map %zu bytes for a connection: %s", sizeof(LinkMemory),
            std::strerror(errno));
    return Status::no_memory;
  }
  return static_cast<LinkMemory*>(p);  // fresh pages are zero: a valid, empty link
}
}  // namespace

Result<std::shared_ptr<Link>> Link::create_local() {
  auto memory = map(-1, MAP_PRIVATE | MAP_ANONYMOUS);
  if (!memory) return memory.status();
  return std::shared_ptr<Link>(new Link(*memory));
}

Result<std::shared_ptr<Link>> Link::create_shared(UniqueFd& fd) {
  auto made = make_shared_memory("twinpath-link", sizeof(LinkMemory));
  if (!made) return made.status();
  fd = std::move(made).take();
  return map_shared(fd.get());
}

Result<std::shared_ptr<Link>> Link::map_shared(int fd) {
  struct stat st {};
  if (fstat(fd, &st) != 0 || st.st_size < static_cast<off_t>(sizeof(LinkMemory)))
    return Status::bad_argument;
  auto memory = map(fd, MAP_SHARED);
  if (!memory) return memory.status();
  return std::shared_ptr<Link>(new Link(*memory));
}

Link::~Link() { munmap(memory_, sizeof(LinkMemory)); }

}  // namespace twinpath::soft
