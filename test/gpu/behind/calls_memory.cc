// Getting, sharing and giving back memory; modules.
#include <cuda.h>
#include <dlfcn.h>

#include <memory>
#include <vector>

#include "test/gpu/behind/calls.h"
#include "test/gpu/behind/exporter.h"
#include "test/gpu/behind/gpu.h"
#include "test/gpu/behind/kernels.h"

namespace twinpath::behind {
namespace {

constexpr std::size_t kSmall = std::size_t{1} << 20, kBig = std::size_t{64} << 20;

Action malloc_free(std::size_t bytes) {
  return {[=](int) {
    void* memory = nullptr;
    check(cudaMalloc(&memory, bytes), "cudaMalloc");
    check(cudaFree(memory), "cudaFree");
  }};
}

// Freed in a later round than the one that got it: as a caching allocator does.
Action free_earlier(const Place&) {
  auto kept = std::make_shared<std::unique_ptr<DeviceMemory>>();
  return {[=](int) {
    auto fresh = std::make_unique<DeviceMemory>(kSmall);
    kept->swap(fresh);
  }};
}

Action host_alloc(const Place&) {
  return {[](int) {
    void* memory = nullptr;
    check(cudaHostAlloc(&memory, kSmall, cudaHostAllocDefault), "cudaHostAlloc");
    check(cudaFreeHost(memory), "cudaFreeHost");
  }};
}

Action host_register(const Place&) {
  auto memory = std::make_shared<std::vector<std::byte>>(kSmall);
  return {[=](int) {
    check(cudaHostRegister(memory->data(), memory->size(), cudaHostRegisterDefault),
          "cudaHostRegister");
    check(cudaHostUnregister(memory->data()), "cudaHostUnregister");
  }};
}

Action malloc_async(const Place& place, bool trim) {
  cudaMemPool_t pool = nullptr;
  check(cudaDeviceGetDefaultMemPool(&pool, place.device), "cudaDeviceGetDefaultMemPool");
  auto value = std::make_shared<PinnedMemory>(sizeof(unsigned));
  return {[=](int round) {
            void* memory = nullptr;
            check(cudaMallocAsync(&memory, kBig, place.stream), "cudaMallocAsync");
            launch_store(static_cast<unsigned*>(memory), static_cast<unsigned>(round),
                         place.stream);
            check(cudaMemcpyAsync(value->data(), memory, sizeof(unsigned), cudaMemcpyDeviceToHost,
                                  place.stream),
                  "cudaMemcpyAsync to pinned memory");
            check(cudaFreeAsync(memory, place.stream), "cudaFreeAsync");
            if (trim) check(cudaMemPoolTrimTo(pool, 0), "cudaMemPoolTrimTo");
          },
          [=](int round) -> std::uint64_t {
            return *value->data<unsigned>() == static_cast<unsigned>(round) ? 0 : 1;
          }};
}

Action open_ipc(const Place& place) {
  auto exporter = std::make_shared<Exporter>(place.device);
  return {[=](int) {
    void* memory = nullptr;
    check(cudaIpcOpenMemHandle(&memory, exporter->handle(), cudaIpcMemLazyEnablePeerAccess),
          "cudaIpcOpenMemHandle");
    check(cudaIpcCloseMemHandle(memory), "cudaIpcCloseMemHandle");
  }};
}

Action memory_info(const Place&) {
  return {[](int) {
    std::size_t unused = 0, total = 0;
    check(cudaMemGetInfo(&unused, &total), "cudaMemGetInfo");
  }};
}

// The driver's own functions: what cudart has no call for.
template <class F>
F driver(const char* name) {
  static void* const library = dlopen("libcuda.so.1", RTLD_NOW);
  void* function = library != nullptr ? dlsym(library, name) : nullptr;
  if (function == nullptr) throw Skipped(std::string("libcuda.so.1 has no ") + name);
  return reinterpret_cast<F>(function);
}

void check_driver(CUresult result, const char* what) {
  if (result != CUDA_SUCCESS) {
    throw tools::Failure(std::string(what) + ": CUDA driver error " + std::to_string(result));
  }
}

// Memory as PyTorch's expandable segments get it.
Action map_memory(const Place& place) {
  const auto reserve = driver<decltype(&cuMemAddressReserve)>("cuMemAddressReserve");
  const auto create = driver<decltype(&cuMemCreate)>("cuMemCreate");
  const auto map = driver<decltype(&cuMemMap)>("cuMemMap");
  const auto allow = driver<decltype(&cuMemSetAccess)>("cuMemSetAccess");
  const auto unmap = driver<decltype(&cuMemUnmap)>("cuMemUnmap");
  const auto release = driver<decltype(&cuMemRelease)>("cuMemRelease");
  const auto give_back = driver<decltype(&cuMemAddressFree)>("cuMemAddressFree");
  const int device = place.device;
  return {[=](int) {
    CUmemAllocationProp what{};
    what.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    what.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    what.location.id = device;
    CUmemAccessDesc access{};
    access.location = what.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    constexpr std::size_t kMappedBytes = std::size_t{20} << 20;
    CUdeviceptr at = 0;
    CUmemGenericAllocationHandle handle{};
    check_driver(reserve(&at, kMappedBytes, 0, 0, 0), "cuMemAddressReserve");
    check_driver(create(&handle, kMappedBytes, &what, 0), "cuMemCreate");
    check_driver(map(at, kMappedBytes, 0, handle, 0), "cuMemMap");
    check_driver(allow(at, kMappedBytes, &access, 1), "cuMemSetAccess");
    check_driver(unmap(at, kMappedBytes), "cuMemUnmap");
    check_driver(release(handle), "cuMemRelease");
    check_driver(give_back(at, kMappedBytes), "cuMemAddressFree");
  }};
}

constexpr const char* kModule =
    ".version 7.0\n"
    ".target sm_70\n"
    ".address_size 64\n"
    ".visible .entry nothing() { ret; }\n";

Action load_module(const Place&) {
  const auto load = driver<decltype(&cuModuleLoadData)>("cuModuleLoadData");
  const auto unload = driver<decltype(&cuModuleUnload)>("cuModuleUnload");
  return {[=](int) {
    CUmodule module = nullptr;
    check_driver(load(&module, kModule), "cuModuleLoadData");
    check_driver(unload(module), "cuModuleUnload");
  }};
}

constexpr Call kMemoryCalls[] = {
    {"malloc-free", "cudaMalloc and cudaFree of 1 MiB",
     [](const Place&) { return malloc_free(kSmall); }},
    {"malloc-free-large", "cudaMalloc and cudaFree of 64 MiB",
     [](const Place&) { return malloc_free(kBig); }},
    {"free-earlier", "cudaMalloc, and cudaFree of what the round before got", free_earlier},
    {"host-alloc", "cudaHostAlloc and cudaFreeHost of 1 MiB", host_alloc},
    {"host-register", "cudaHostRegister and cudaHostUnregister of 1 MiB", host_register},
    {"malloc-async", "cudaMallocAsync, a kernel, cudaFreeAsync on the stream",
     [](const Place& p) { return malloc_async(p, false); }},
    {"pool-trim", "the same, and cudaMemPoolTrimTo",
     [](const Place& p) { return malloc_async(p, true); }},
    {"ipc-open", "cudaIpcOpenMemHandle and cudaIpcCloseMemHandle of another process's memory",
     open_ipc},
    {"memory-info", "cudaMemGetInfo", memory_info},
    {"vmm", "cuMemCreate, map, unmap, release of 20 MiB (expandable segments)", map_memory},
    {"module", "cuModuleLoadData (PTX, so compiled) and cuModuleUnload", load_module},
};

}  // namespace

std::span<const Call> memory_calls() { return kMemoryCalls; }

}  // namespace twinpath::behind
