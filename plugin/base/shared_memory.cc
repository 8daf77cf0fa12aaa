#include "plugin/base/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "plugin/base/log.h"

namespace twinpath {
namespace {

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr int kFutureWrite = 0x10;  // F_SEAL_FUTURE_WRITE, which older headers lack

Status failed(const char* name, std::size_t bytes, const char* what, int error) {
  TP_WARN(
      "%s of %zu bytes for %s: %s; free memory (shared memory counts against the "
      "container's or cgroup's limit), or raise the open file limit (ulimit -n)",
      what, bytes, name, std::strerror(error));
  return error == EMFILE || error == ENFILE ? Status::system : Status::no_memory;
}

}  // namespace

SharedMemory::~SharedMemory() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

SharedMemory::SharedMemory(SharedMemory&& o) noexcept
    : fd_(std::move(o.fd_)), data_(std::exchange(o.data_, nullptr)), bytes_(o.bytes_) {}

SharedMemory& SharedMemory::operator=(SharedMemory&& o) noexcept {
  if (this != &o) {
    if (data_ != nullptr) munmap(data_, bytes_);
    fd_ = std::move(o.fd_);
    data_ = std::exchange(o.data_, nullptr);
    bytes_ = o.bytes_;
  }
  return *this;
}

Result<SharedMemory> SharedMemory::create(const char* name, std::size_t bytes, Writers writers) {
  return make(name, bytes, writers, true);
}

Result<SharedMemory> SharedMemory::create_sparse(const char* name, std::size_t bytes,
                                                 Writers writers) {
  return make(name, bytes, writers, false);
}

Status SharedMemory::reserve(std::size_t offset, std::size_t bytes) {
  const int rc = posix_fallocate(fd(), static_cast<off_t>(offset), static_cast<off_t>(bytes));
  return rc == 0 ? Status::ok : failed("more", bytes, "reserving shared memory", rc);
}

Result<SharedMemory> SharedMemory::make(const char* name, std::size_t bytes, Writers writers,
                                        bool reserve_all) {
  SharedMemory m;
  m.fd_ = UniqueFd(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!m.fd_) return failed(name, bytes, "memfd_create", errno);
  if (reserve_all) {
    if (int rc = posix_fallocate(m.fd(), 0, static_cast<off_t>(bytes)); rc != 0)
      return failed(name, bytes, "reserving shared memory", rc);
  } else if (ftruncate(m.fd(), static_cast<off_t>(bytes)) != 0) {
    return failed(name, bytes, "ftruncate", errno);
  }
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, m.fd(), 0);
  if (p == MAP_FAILED) return failed(name, bytes, "mapping shared memory", errno);
  m.data_ = p;
  m.bytes_ = bytes;
  // After our own mapping, which stays writable.
  if (writers == Writers::creator && fcntl(m.fd(), F_ADD_SEALS, kSizeSeals | kFutureWrite) == 0)
    return m;
  if (fcntl(m.fd(), F_ADD_SEALS, kSizeSeals) != 0)
    return failed(name, bytes, "sealing shared memory", errno);
  return m;
}

Result<SharedMemory> SharedMemory::map(int fd, std::size_t bytes, Writers writers,
                                       std::string& why) {
  struct stat st {};
  const int seals = fd >= 0 ? fcntl(fd, F_GET_SEALS) : -1;
  if (seals < 0 || (seals & kSizeSeals) != kSizeSeals || fstat(fd, &st) != 0) {
    why = "it came without memory whose size is sealed";
    return Status::bad_argument;
  }
  // After the seals were seen, which the size cannot change behind.
  if (st.st_size < static_cast<off_t>(bytes)) {
    why = "its memory has " + std::to_string(st.st_size) + " bytes instead of " +
          std::to_string(bytes);
    return Status::bad_argument;
  }
  const int rights = writers == Writers::both ? PROT_READ | PROT_WRITE : PROT_READ;
  void* p = mmap(nullptr, bytes, rights, MAP_SHARED, fd, 0);
  if (p == MAP_FAILED) {
    why = std::string("its memory cannot be mapped: ") + std::strerror(errno);
    return Status::no_memory;
  }
  SharedMemory m;
  m.data_ = p;
  m.bytes_ = bytes;
  return m;
}

}  // namespace twinpath
