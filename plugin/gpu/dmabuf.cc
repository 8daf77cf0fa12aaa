// See dmabuf.h.
#include "plugin/gpu/dmabuf.h"

#include <sys/stat.h>

#include <array>
#include <mutex>

#include "plugin/gpu/driver.h"

namespace twinpath::gpu {
namespace {

// By inode, which the kernel numbers anew for each dma-buf (a count of 64 bits): one that is closed
// is nobody's afterwards.  One a process, as the driver: who registers gets nothing but the
// descriptor.
class Exports {
 public:
  void add(int fd, const DmabufMemory& memory) {
    struct stat is {};
    if (fstat(fd, &is) != 0) return;
    const std::lock_guard hold(lock_);
    entries_[next_++ % entries_.size()] = {is.st_dev, is.st_ino, memory};
  }
  bool find(int fd, DmabufMemory& out) {
    struct stat is {};
    if (fstat(fd, &is) != 0) return false;
    const std::lock_guard hold(lock_);
    for (const Entry& e : entries_) {
      if (e.memory.bytes == 0 || e.inode != is.st_ino || e.device != is.st_dev) continue;
      out = e.memory;
      return true;
    }
    return false;
  }

 private:
  struct Entry {
    dev_t device = 0;
    ino_t inode = 0;
    DmabufMemory memory;
  };
  std::mutex lock_;
  std::array<Entry, 512> entries_{};
  std::size_t next_ = 0;
};

Exports& exports() {
  static Exports all;
  return all;
}

}  // namespace

bool exports_dmabufs() {
  const cuda::Driver* const d = cuda::driver();
  return d != nullptr && d->range_handle != nullptr;
}

int export_dmabuf(std::uint64_t address, std::size_t bytes, DmabufMapping mapping) {
  constexpr int kDmaBuf = 1;
  const cuda::Driver* const d = cuda::driver();
  if (d == nullptr || d->range_handle == nullptr) return -1;
  const auto look = [](std::uint64_t at) { return inspect_pointer(reinterpret_cast<void*>(at)); };
  // The first page may begin before the allocation does.
  PointerInfo info = look(address);
  if (info.kind != MemoryKind::cuda) info = look(address + bytes - 1);
  if (info.kind != MemoryKind::cuda) return -1;
  const cuda::ScopedContext scope(*d, info.gpu);
  if (!scope) return -1;
  int fd = -1;
  if (d->range_handle(&fd, address, bytes, kDmaBuf, export_flags(mapping)) != cuda::kSuccess)
    return -1;
  exports().add(fd, {address, bytes});
  return fd;
}

bool find_dmabuf(int fd, DmabufMemory& out) { return exports().find(fd, out); }

}  // namespace twinpath::gpu
