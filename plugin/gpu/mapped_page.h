#pragma once
// A page of the host that a GPU sees: an adapter's doorbell registers, or memory of an adapter that
// is software.
//
// CUDA refuses memory that is mapped already (712: what overlaps it; seen by the range on an H100,
// nothing promises that it is not by the page), and registers of several contexts share a page: up
// to rdma-core 44 there is one register for all of an opened adapter, from 45 on there are four a
// page.  So a page is mapped once, by the first who asks, and let go by the last.
//
// Threads: any.
#include <cstdint>
#include <memory>

#include "plugin/gpu/driver.h"

namespace twinpath::gpu {

class MappedPage {
 public:
  // The page of `at`.  `registers`: of a device, else ordinary memory.  Null and `why_not`, CUDA's
  // number.  The driver has host_register, host_unregister and host_device_pointer.
  static std::unique_ptr<MappedPage> map(const cuda::Driver& driver, cuda::Device gpu, void* at,
                                         bool registers, cuda::Result& why_not);
  ~MappedPage();  // the last of a page waits for kernels
  MappedPage(const MappedPage&) = delete;
  MappedPage& operator=(const MappedPage&) = delete;

  cuda::Address address() const { return address_; }  // of `at`, as kernels see it

 private:
  MappedPage(std::uintptr_t page, cuda::Address address) : page_(page), address_(address) {}
  const std::uintptr_t page_;
  const cuda::Address address_;
};

}  // namespace twinpath::gpu
