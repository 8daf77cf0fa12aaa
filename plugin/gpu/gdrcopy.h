#pragma once
// GPU memory that the CPU stores to itself, mapped by GDRCopy (libgdrapi.so.2 and its kernel
// module gdrdrv).  A copy engine takes some 7 us for a word; GDRCopy tells 0.1 us for a store.
//
// The library is opened when it is first needed and never linked.  It is not made for threads, so
// all our calls are made here, one at a time.  NCCL makes its own, under a lock of its own and by
// a connection of its own; what the two share are counters that the library's copies look at, and
// nobody here copies by it.
//
// Rules for who stores through a mapping, after GDRCopy's README and header:
//   - On PCIe it is write-combining memory.  Stores of whole aligned words of 8 bytes are not torn;
//     between two whose order matters, and behind the last, stands a device_store_fence().  Fenced,
//     they are posted writes of one requester to one device, which PCIe keeps in order.  (On GPUs
//     linked to their CPU the mapping is ordinary memory, for which the fence is enough, too.)
//   - Nothing is loaded through it: that takes 1 us, and more for each further word.
//   - A kernel that runs already may see these words as it sees those of an adapter, and NCCL's own
//     words through GDRCopy: each whole, in order, by loads that do not stay in its L1.
//
// Threads: any, at set-up and teardown; data() is whoever's who owns the mapping.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace twinpath::gpu {

// What is pinned, in size and alignment, on every GPU.
inline constexpr std::uint64_t kGdrPage = 64 * 1024;
constexpr std::uint64_t gdr_page_end(std::uint64_t n) {
  return (n + kGdrPage - 1) / kGdrPage * kGdrPage;
}

class GdrLibrary;

class GdrMapping {
 public:
  // `address`: of memory from cuMemAlloc, the beginning of a GPU page.  The allocation goes on to
  // gdr_page_end(address + bytes): pages that several allocations share are mapped badly or not at
  // all.  No copy to it is under way that the caller would have to wait for by
  // CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: ours are all asynchronous and waited for.
  // Null and `why` where it cannot be had; else `why` tells the versions.
  static std::unique_ptr<GdrMapping> map(std::uint64_t address, std::uint64_t bytes,
                                         std::string& why);
  // Before the memory is freed: the driver takes it from under a mapping, whose next store would
  // then be a SIGBUS.
  ~GdrMapping();
  GdrMapping(const GdrMapping&) = delete;
  GdrMapping& operator=(const GdrMapping&) = delete;

  std::uint8_t* data() const { return data_; }  // of `address`

 private:
  explicit GdrMapping(std::shared_ptr<GdrLibrary> library) : library_(std::move(library)) {}

  std::shared_ptr<GdrLibrary> library_;
  unsigned long handle_ = 0;
  void* mapped_ = nullptr;
  std::size_t mapped_bytes_ = 0;
  std::uint8_t* data_ = nullptr;
};

// Whether GDRCopy can be used here; opens it for as long as the call takes.
struct GdrState {
  bool usable = false;
  std::string text;  // "libgdrapi 2.4, gdrdrv 2.4", or why not, with what helps
};
GdrState gdrcopy_state();

// Why its kernel module cannot be opened, from open's error number.  Pure.
std::string gdrdrv_refusal(int error);

// Puts another library in its place; null puts the real one back.  While no mapping is there.
void set_gdrapi_for_test(const char* path);

}  // namespace twinpath::gpu
