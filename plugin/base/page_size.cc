#include "plugin/base/page_size.h"

#include <unistd.h>

#include <atomic>

namespace twinpath {
namespace {

// A fact of the machine, so one a process; read by setup calls only.
std::atomic<std::size_t>& bytes_of_page() {
  static std::atomic<std::size_t> bytes{static_cast<std::size_t>(::sysconf(_SC_PAGESIZE))};
  return bytes;
}

}  // namespace

std::size_t page_size() { return bytes_of_page().load(std::memory_order_relaxed); }

PageSizeForTest::PageSizeForTest(std::size_t bytes) { bytes_of_page().store(bytes); }
PageSizeForTest::~PageSizeForTest() {
  bytes_of_page().store(static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)));
}

}  // namespace twinpath
