#pragma once
// Pages of the guest one behind the other in our address space, where they may lie anywhere in its
// memory: what the guest registers and where its queues lie, as the software HCA knows memory.
//
// Threads: any.
#include <cstdint>
#include <optional>
#include <vector>

#include "tools/softhca/pci/guest_memory.h"

namespace twinpath::softhca::pci {

class GuestView {
 public:
  // Pages of `page_bytes` (a power of two, 4096 or more) at those addresses.  None when one lies
  // outside the memory, or nothing can be mapped.
  static std::optional<GuestView> map(const GuestMemory& memory,
                                      const std::vector<std::uint64_t>& pages,
                                      std::uint64_t page_bytes);
  ~GuestView();
  GuestView(GuestView&&) noexcept;
  GuestView& operator=(GuestView&&) noexcept;

  std::uint8_t* begin() const { return begin_; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  GuestView(std::uint8_t* begin, std::uint64_t bytes, bool mapped)
      : begin_(begin), bytes_(bytes), mapped_(mapped) {}
  std::uint8_t* begin_;
  std::uint64_t bytes_;
  bool mapped_;  // else they follow each other anyhow
};

}  // namespace twinpath::softhca::pci
