#include "tools/common/said_once.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>

namespace twinpath::tools {
namespace {

// In memory that all processes of the run map.
struct SaidTable {
  std::array<std::atomic<std::uint64_t>, 512> said;  // hashes, never 0; filled from the front
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

// What a plugin's log function prints must be known without an argument: it is a plain function.
struct Shared {
  SaidTable* table = nullptr;
  int fd = -1;

  bool map(int from) {
    void* const p = mmap(nullptr, sizeof(SaidTable), PROT_READ | PROT_WRITE, MAP_SHARED, from, 0);
    if (p == MAP_FAILED) return false;
    table = static_cast<SaidTable*>(p);
    fd = from;
    return true;
  }
};

Shared& shared() {
  static Shared s = [] {
    Shared made;
    const int fd = memfd_create("said-once", MFD_CLOEXEC);
    if (fd >= 0 && (ftruncate(fd, sizeof(SaidTable)) != 0 || !made.map(fd))) close(fd);
    return made;
  }();
  return s;
}

}  // namespace

int said_once_fd() { return shared().fd; }

void join_said_once(int fd) {
  Shared& s = shared();
  const int own = s.fd;
  SaidTable* const mine = s.table;
  if (fd < 0 || !s.map(fd)) return;
  fcntl(fd, F_SETFD, FD_CLOEXEC);
  if (mine != nullptr) munmap(mine, sizeof(SaidTable));
  if (own >= 0) close(own);
}

bool first_to_say(std::string_view text) {
  SaidTable* const table = shared().table;
  if (table == nullptr) return true;
  const std::uint64_t wanted = std::hash<std::string_view>{}(text) | 1;
  for (std::atomic<std::uint64_t>& slot : table->said) {
    std::uint64_t found = 0;
    // Relaxed: a slot says nothing about other memory.  Who loses the exchange sees the winner's.
    if (slot.compare_exchange_strong(found, wanted, std::memory_order_relaxed)) return true;
    if (found == wanted) return false;
  }
  return true;  // so many different messages that none is a repetition
}

}  // namespace twinpath::tools
