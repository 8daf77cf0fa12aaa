// Preloaded: memory that is wanted at once (MAP_POPULATE) takes five seconds, as gigabytes do on a
// busy machine.
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>

// Under names of their own: headers may have made one of the two a name for the other.
extern "C" {
void* slow_mmap(void*, std::size_t, int, int, int, off_t) __asm__("mmap");
void* slow_mmap64(void*, std::size_t, int, int, int, off_t) __asm__("mmap64");

void* slow_mmap(void* at, std::size_t bytes, int protection, int flags, int fd, off_t offset) {
  if ((flags & MAP_POPULATE) != 0) sleep(5);
  return reinterpret_cast<void*>(syscall(SYS_mmap, at, bytes, protection, flags, fd, offset));
}
void* slow_mmap64(void* at, std::size_t bytes, int protection, int flags, int fd, off_t offset) {
  return slow_mmap(at, bytes, protection, flags, fd, offset);
}
}
