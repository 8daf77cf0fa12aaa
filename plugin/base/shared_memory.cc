#include "plugin/base/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "plugin/base/file_size_signal.h"
#include "plugin/base/log.h"
#include "plugin/base/refused.h"

namespace twinpath {
namespace {

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
// F_SEAL_FUTURE_WRITE and MADV_POPULATE_WRITE, which older headers lack.
constexpr int kFutureWrite = 0x10, kPopulateWrite = 23;

Status failed(const char* name, std::size_t bytes, const char* what, int error) {
  TP_WARN("%s of %zu bytes for %s: %s", what, bytes, name, why_no_memory(error).c_str());
  return error == ENOMEM || error == ENOSPC ? Status::no_memory : Status::system;
}

// Where a security profile refuses fallocate, which does the same.  The file has nothing there yet.
// 0, or an errno.
int write_zeros(int fd, std::size_t offset, std::size_t bytes) {
  constexpr char kZeros[4096] = {};
  for (const std::size_t end = offset + bytes; offset < end;) {
    const ssize_t n =
        ::pwrite(fd, kZeros, std::min(sizeof kZeros, end - offset), static_cast<off_t>(offset));
    if (n > 0) offset += static_cast<std::size_t>(n);
    if (n <= 0 && errno != EINTR) return errno;
  }
  return 0;
}

// 0, or an errno.
int reserve_pages(int fd, std::size_t offset, std::size_t bytes) {
  const int rc = posix_fallocate(fd, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  return is_refusal(rc) ? write_zeros(fd, offset, bytes) : rc;
}

// The same by the mapping, which stays writable where the seals refuse writes to the file; since
// Linux 5.14.
int touch_pages(char* at, std::size_t bytes) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t before = reinterpret_cast<std::uintptr_t>(at) % page;
  return ::madvise(at - before, bytes + before, kPopulateWrite) == 0 ? 0 : errno;
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
  const NoFileSizeSignal error_only;
  int rc = posix_fallocate(fd(), static_cast<off_t>(offset), static_cast<off_t>(bytes));
  if (is_refusal(rc)) {
    int other = touch_pages(as<char>() + offset, bytes);
    if (other == EINVAL) other = write_zeros(fd(), offset, bytes);
    // Where neither is possible (an old kernel, and sealed), the refusal is the cause.
    if (other == 0 || other == ENOMEM || other == ENOSPC) rc = other;
  }
  return rc == 0 ? Status::ok : failed("more", bytes, "reserving shared memory", rc);
}

Result<SharedMemory> SharedMemory::make(const char* name, std::size_t bytes, Writers writers,
                                        bool reserve_all) {
  const NoFileSizeSignal error_only;
  SharedMemory m;
  m.fd_ = UniqueFd(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!m.fd_) return failed(name, bytes, "memfd_create", errno);
  if (reserve_all) {
    if (const int rc = reserve_pages(m.fd(), 0, bytes); rc != 0)
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
