// A driver for softhca-mlx5-selftest: one GPU whose memory is a file that the processor has mapped
// once without access, as a driver reserves a GPU's addresses, and once for the player of the
// kernel.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace {

constexpr std::size_t kBytes = 1 << 20;
constexpr int kInvalid = 1;
constexpr int kMemoryType = 2, kOrdinal = 9;

struct Memory {
  char* device = nullptr;
  char* host = nullptr;
  std::size_t used = 0;
  Memory() {
    const int file = memfd_create("stub-gpu", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, kBytes) != 0) std::abort();
    device = static_cast<char*>(mmap(nullptr, kBytes, PROT_NONE, MAP_SHARED, file, 0));
    host = static_cast<char*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
    close(file);
  }
};
Memory& memory() {
  static auto* const all = new Memory;
  return *all;
}

// Where the processor sees it; null for what is none of the GPU's.
char* seen(unsigned long long address, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(memory().device);
  if (address < begin || address + bytes > begin + kBytes) return nullptr;
  return memory().host + (address - begin);
}

int context = 0;  // pushed less popped: a copy without one is an error

}  // namespace

extern "C" {

// For the self-test: memory of the GPU, and where the player of the kernel sees it.
bool softhca_stub_gpu_memory(std::size_t bytes, std::uint64_t* device, void** host);
bool softhca_stub_gpu_memory(std::size_t bytes, std::uint64_t* device, void** host) {
  Memory& m = memory();
  if (m.used + bytes > kBytes) return false;
  *device = reinterpret_cast<std::uintptr_t>(m.device + m.used);
  *host = m.host + m.used;
  m.used += (bytes + 4095) / 4096 * 4096;
  return true;
}

#define TP_CALL(name, ...) \
  int name(__VA_ARGS__);   \
  int name(__VA_ARGS__)

TP_CALL(cuPointerGetAttribute, void* value, int attribute, unsigned long long address) {
  if (seen(address, 1) == nullptr) return kInvalid;
  *static_cast<int*>(value) = attribute == kMemoryType ? 2 : 0;
  return attribute == kMemoryType || attribute == kOrdinal ? 0 : kInvalid;
}
TP_CALL(cuDeviceGet, int* device, int ordinal) { return *device = 0, ordinal == 0 ? 0 : kInvalid; }
TP_CALL(cuDevicePrimaryCtxRetain, void** made, int) { return *made = &context, 0; }
TP_CALL(cuCtxPushCurrent_v2, void*) { return ++context, 0; }
TP_CALL(cuCtxPopCurrent_v2, void**) { return --context, 0; }
TP_CALL(cuStreamCreate, void** stream, unsigned flags) {
  return *stream = &context, flags == 1 && context == 1 ? 0 : kInvalid;
}
TP_CALL(cuStreamSynchronize, void*) { return context == 1 ? 0 : kInvalid; }
TP_CALL(cuMemHostAlloc, void** made, std::size_t bytes, unsigned) {
  return *made = std::malloc(bytes), context == 1 ? 0 : kInvalid;
}
TP_CALL(cuMemcpyDtoHAsync_v2, void* to, unsigned long long from, std::size_t bytes, void*) {
  const char* const at = seen(from, bytes);
  if (at == nullptr || context != 1) return kInvalid;
  std::memcpy(to, at, bytes);
  return 0;
}
TP_CALL(cuMemcpyHtoDAsync_v2, unsigned long long to, const void* from, std::size_t bytes, void*) {
  char* const at = seen(to, bytes);
  if (at == nullptr || context != 1) return kInvalid;
  std::memcpy(at, from, bytes);
  return 0;
}

}  // extern "C"
