// GPU memory for tests.
#include "test/gpu/gpu_memory.h"

#include <dlfcn.h>

#include <stdexcept>
#include <string>

namespace twinpath::test {
namespace {

namespace cu = gpu::cuda;

// What the engine's table lacks, because the engine must not use it.
struct Extra {
  int (*init)(unsigned) = nullptr;
  int (*mem_alloc)(cu::Address*, std::size_t) = nullptr;
  int (*mem_free)(cu::Address) = nullptr;
  int (*create)(cu::Handle*, std::size_t, const cu::AllocationProperties*,
                unsigned long long) = nullptr;
  int (*copy)(cu::Address, cu::Address, std::size_t) = nullptr;
  cu::Context contexts[2] = {};
};
Extra& extra() {
  static Extra e;
  return e;
}

void check(int r, const char* what) {
  if (r != 0) throw std::runtime_error(std::string(what) + ": CUDA error " + std::to_string(r));
}

template <class F>
void find(void* library, const char* name, F& out) {
  void* p = dlsym(library, name);
  if (p == nullptr) throw std::runtime_error(std::string(name) + " missing");
  __builtin_memcpy(&out, &p, sizeof p);
}

}  // namespace

int open_gpus() {
  static const int count = [] {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (library == nullptr) return 0;
    Extra& e = extra();
    find(library, "cuInit", e.init);
    find(library, "cuMemAlloc_v2", e.mem_alloc);
    find(library, "cuMemFree_v2", e.mem_free);
    find(library, "cuMemCreate", e.create);
    find(library, "cuMemcpy", e.copy);
    if (e.init(0) != 0) return 0;
    const cu::Driver* d = cu::driver();
    if (d == nullptr) return 0;
    const int n = cu::gpu_count(*d);
    for (int gpu = 0; gpu < n && gpu < 2; ++gpu)
      check(d->primary_retain(&e.contexts[gpu], gpu), "cuDevicePrimaryCtxRetain");
    if (n > 0) use_gpu(0);
    return n;
  }();
  return count;
}

void use_gpu(int gpu) { check(cu::driver()->ctx_set(extra().contexts[gpu]), "cuCtxSetCurrent"); }

GpuMemory::GpuMemory(Kind kind, int gpu, std::size_t bytes)
    : kind_(kind), gpu_(gpu), bytes_(bytes) {
  use_gpu(gpu);
  const cu::Driver& d = *cu::driver();
  if (kind == Kind::malloc) {
    check(extra().mem_alloc(&address_, bytes), "cuMemAlloc");
  } else {
    cu::AllocationProperties p;
    p.type = cu::kAllocationPinned;
    p.handle_types = kind == Kind::vmm ? cu::kHandlePosixFd : 0;
    p.location = {cu::kLocationDevice, gpu};
    std::size_t unit = 0;
    check(d.granularity(&unit, &p, 0), "cuMemGetAllocationGranularity");
    bytes_ = (bytes + unit - 1) / unit * unit;
    check(extra().create(&handle_, bytes_, &p, 0), "cuMemCreate");
    check(d.address_reserve(&address_, bytes_, unit, 0, 0), "cuMemAddressReserve");
    check(d.map(address_, bytes_, 0, handle_, 0), "cuMemMap");
    const cu::AccessDescription access{{cu::kLocationDevice, gpu}, cu::kAccessReadWrite};
    check(d.set_access(address_, bytes_, &access, 1), "cuMemSetAccess");
  }
  use_gpu(0);
}

GpuMemory::~GpuMemory() {
  const cu::Driver& d = *cu::driver();
  use_gpu(gpu_);
  if (kind_ == Kind::malloc) {
    (void)extra().mem_free(address_);
  } else {
    (void)d.unmap(address_, bytes_);
    (void)d.address_free(address_, bytes_);
    (void)d.handle_release(handle_);
  }
  use_gpu(0);
}

PinnedMemory::PinnedMemory(std::size_t bytes) {
  check(cu::driver()->host_alloc(&p_, bytes, cu::kHostAllocPortable), "cuMemHostAlloc");
}
PinnedMemory::~PinnedMemory() { (void)cu::driver()->host_free(p_); }

namespace {
// A VMM address is mapped for its own GPU only: copies are made from that GPU's context.
void use_owner(std::uint64_t gpu_address) {
  use_gpu(gpu::inspect_pointer(reinterpret_cast<const void*>(gpu_address)).gpu);
}
}  // namespace

void to_gpu(std::uint64_t gpu_address, const void* from, std::size_t bytes) {
  use_owner(gpu_address);
  check(extra().copy(gpu_address, reinterpret_cast<cu::Address>(from), bytes), "cuMemcpy");
}

std::vector<std::uint8_t> from_gpu(std::uint64_t gpu_address, std::size_t bytes) {
  std::vector<std::uint8_t> out(bytes);
  use_owner(gpu_address);
  check(extra().copy(reinterpret_cast<cu::Address>(out.data()), gpu_address, bytes), "cuMemcpy");
  return out;
}

}  // namespace twinpath::test
