#include "plugin/fabric/soft/pin.h"

#include <infiniband/verbs.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <memory>

namespace twinpath::soft {
namespace {

constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, which Debian 12's headers may lack
constexpr unsigned kWritable = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                               IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND;

// Whether all mappings of [from, to) may be written; holes are not looked for.
bool writable_mappings(std::uint64_t from, std::uint64_t to) {
  const std::unique_ptr<FILE, int (*)(FILE*)> maps(std::fopen("/proc/self/maps", "re"),
                                                   [](FILE* f) { return std::fclose(f); });
  if (maps == nullptr) return true;
  char line[512];
  while (std::fgets(line, sizeof line, maps.get()) != nullptr) {
    unsigned long start = 0, end = 0;
    char rights[5] = "";
    if (std::sscanf(line, "%lx-%lx %4s", &start, &end, rights) != 3) continue;
    if (start >= to) break;
    if (end > from && rights[1] != 'w') return false;
  }
  return true;
}

// Quick, where the system has it; fails for read-only pages, and also for drivers' pages and on
// kernels before 5.14.
bool populates(std::uint64_t page, std::uint64_t bytes) {
  return madvise(reinterpret_cast<void*>(page), bytes, kPopulateWrite) == 0;
}

}  // namespace

int refuse_pinning(std::uint64_t address, std::uint64_t bytes, unsigned access) {
  // This machine's, whatever page size a test makes up: the system is asked.
  const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  const std::uint64_t from = address & ~(page - 1), to = (address + bytes + page - 1) & ~(page - 1);
  // Has no effect but to look for holes.
  if (msync(reinterpret_cast<void*>(from), to - from, MS_ASYNC) != 0 && errno == ENOMEM)
    return EFAULT;
  if ((access & kWritable) == 0) return 0;
  if (to - from <= 2 * page && populates(from, to - from)) return 0;
  return writable_mappings(from, to) ? 0 : EFAULT;
}

}  // namespace twinpath::soft
