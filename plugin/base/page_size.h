#pragma once
// Bytes of a page of the host: 4 KiB, or 64 KiB where the kernel is built so (Grace).  What kernels
// pin, and the places and lengths that uverbs and cuMemGetHandleForAddressRange compare, are
// multiples of it.
//
// Threads: any.
#include <cstddef>
#include <cstdint>

namespace twinpath {

std::size_t page_size();

inline std::uint64_t page_start(std::uint64_t address) { return address & ~(page_size() - 1); }
inline std::uint64_t page_end(std::uint64_t address) {
  return page_start(address + page_size() - 1);
}
inline std::uint64_t page_offset(std::uint64_t address) { return address & (page_size() - 1); }

// For tests: another host's, a multiple of this one's, for the life of the object.  One at a time.
class PageSizeForTest {
 public:
  explicit PageSizeForTest(std::size_t bytes);
  ~PageSizeForTest();
  PageSizeForTest(const PageSizeForTest&) = delete;
  PageSizeForTest& operator=(const PageSizeForTest&) = delete;
};

}  // namespace twinpath
