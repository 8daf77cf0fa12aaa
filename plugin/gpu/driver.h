#pragma once
// The part of the CUDA driver interface that the plugin uses, as a table of functions.
//
// Types are plain integers declared here, so no CUDA header is needed.  Each function is asked
// for at the version whose signature is written here (cuGetProcAddress), so a newer driver
// cannot hand us a changed one: cuMemcpyBatchAsync lost a parameter in 13.0, and the stream
// memory operations of before 11.7 are other functions under the same names.
//
// The table is the seam for tests: a fake one makes the copy threads run without a GPU.
//
// Threads: any; the table does not change once it is handed out.
#include <cstddef>
#include <cstdint>
#include <string>

#include "plugin/gpu/engine.h"

namespace twinpath::gpu::cuda {

using Result = int;  // CUresult
using Device = int;
using Context = void*;
using Stream = void*;
using Event = void*;
using Graph = void*;
using GraphExec = void*;
using Address = unsigned long long;  // CUdeviceptr
using Handle = unsigned long long;   // CUmemGenericAllocationHandle

inline constexpr Result kSuccess = 0;
inline constexpr Result kInvalidContext = 201;
inline constexpr Result kNotReady = 600;
inline constexpr Result kPeerAccessAlreadyEnabled = 704;

// Of a device.
inline constexpr int kPciBus = 33;
inline constexpr int kPciDevice = 34;
inline constexpr int kPciDomain = 50;
inline constexpr int kFlushWritesOptions = 117;
inline constexpr int kFlushByHost = 1;  // a bit of it: flush_writes works
inline constexpr int kFlushOfCurrentContext = 0;
inline constexpr int kFlushToAllDevices = 200;
// Of a pointer.
inline constexpr int kAttributeMemoryType = 2;
inline constexpr int kAttributeManaged = 8;
inline constexpr int kAttributeOrdinal = 9;
inline constexpr int kAttributeLegacyIpc = 10;
inline constexpr int kAttributeRangeStart = 11;
inline constexpr int kAttributeRangeSize = 12;
inline constexpr int kAttributeMappingSize = 18;
inline constexpr int kAttributeMappingBase = 19;
inline constexpr unsigned kMemoryTypeDevice = 2;

inline constexpr unsigned kHostAllocPortable = 1;  // of cuMemHostRegister, too
inline constexpr unsigned kHostAllocMapped = 2;
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr int kCaptureRelaxed = 2;
inline constexpr int kHandlePosixFd = 1;
inline constexpr int kAllocationPinned = 1;
inline constexpr int kLocationDevice = 1;
inline constexpr int kAccessReadWrite = 3;
inline constexpr unsigned kIpcLazyPeerAccess = 1;
inline constexpr int kSourceOrderStream = 1;
inline constexpr unsigned kPreferOverlap = 1;
inline constexpr int kOpWriteValue32 = 2;  // takes the lower half of MemOp::value
inline constexpr int kOpWriteValue64 = 5;
// cuStreamBatchMemOp takes fewer than 256 operations.
inline constexpr std::size_t kMaxMemOps = 255;

struct Location {
  int type = 0;
  int id = 0;
};
struct AllocationProperties {
  int type = 0;
  int handle_types = 0;
  Location location;
  void* windows_only = nullptr;
  std::uint8_t flags[8] = {};
};
struct AccessDescription {
  Location location;
  int flags = 0;
};
struct CopyAttributes {
  int source_order = 0;
  Location source_hint, destination_hint;
  unsigned flags = 0;
};
struct IpcHandle {
  char bytes[64];
};
// A copy of rows (CUDA_MEMCPY2D, 128 bytes).
inline constexpr int kRowsHost = 1;
inline constexpr int kRowsDevice = 2;
struct RowsEnd {
  std::size_t x = 0, y = 0;
  int memory_type = 0;
  const void* host = nullptr;
  Address device = 0;
  void* array = nullptr;
  std::size_t pitch = 0;
};
struct Rows {
  RowsEnd from, to;
  std::size_t width = 0, height = 0;
};
static_assert(sizeof(Rows) == 128);
// One write-value operation of a batch (CUstreamBatchMemOpParams, 48 bytes).
struct MemOp {
  int operation = 0;
  Address address = 0;
  std::uint64_t value = 0;
  unsigned flags = 0;
  Address alias = 0;
  std::uint64_t unused = 0;
};

// X(member, symbol, version, required, parameters)
// clang-format off
#define TP_CUDA_FUNCTIONS(X)                                                                     \
  X(get_error_name, "cuGetErrorName", 6000, true, (Result, const char**))                        \
  X(device_count, "cuDeviceGetCount", 2000, true, (int*))                                        \
  X(device_uuid, "cuDeviceGetUuid", 11040, true, (void*, Device))                                \
  X(device_attribute, "cuDeviceGetAttribute", 2000, false, (int*, int, Device))                  \
  X(can_access_peer, "cuDeviceCanAccessPeer", 4000, true, (int*, Device, Device))                \
  X(primary_retain, "cuDevicePrimaryCtxRetain", 7000, true, (Context*, Device))                  \
  X(primary_release, "cuDevicePrimaryCtxRelease", 11000, true, (Device))                         \
  X(primary_state, "cuDevicePrimaryCtxGetState", 7000, true, (Device, unsigned*, int*))          \
  X(ctx_push, "cuCtxPushCurrent", 4000, true, (Context))                                         \
  X(ctx_pop, "cuCtxPopCurrent", 4000, true, (Context*))                                          \
  X(ctx_set, "cuCtxSetCurrent", 4000, true, (Context))                                           \
  X(ctx_enable_peer, "cuCtxEnablePeerAccess", 4000, true, (Context, unsigned))                   \
  X(exchange_capture_mode, "cuThreadExchangeStreamCaptureMode", 10010, true, (int*))             \
  X(pointer_attributes, "cuPointerGetAttributes", 7000, true, (unsigned, int*, void**, Address)) \
  X(host_alloc, "cuMemHostAlloc", 2020, true, (void**, std::size_t, unsigned))                   \
  X(host_free, "cuMemFreeHost", 2000, true, (void*))                                             \
  X(host_device_pointer, "cuMemHostGetDevicePointer", 3020, true, (Address*, void*, unsigned))   \
  X(host_register, "cuMemHostRegister", 6050, false, (void*, std::size_t, unsigned))             \
  X(host_unregister, "cuMemHostUnregister", 4000, false, (void*))                                \
  X(range_handle, "cuMemGetHandleForAddressRange", 11070, false,                                 \
    (void*, Address, std::size_t, int, unsigned long long))                                      \
  X(flush_writes, "cuFlushGPUDirectRDMAWrites", 11030, false, (int, int))                        \
  X(mem_alloc, "cuMemAlloc", 3020, true, (Address*, std::size_t))                                \
  X(mem_free, "cuMemFree", 3020, true, (Address))                                                \
  X(stream_create, "cuStreamCreate", 2000, true, (Stream*, unsigned))                            \
  X(stream_create_with_priority, "cuStreamCreateWithPriority", 5050, false,                      \
    (Stream*, unsigned, int))                                                                    \
  X(stream_destroy, "cuStreamDestroy", 4000, true, (Stream))                                     \
  X(stream_query, "cuStreamQuery", 2000, true, (Stream))                                         \
  X(copy_async, "cuMemcpyAsync", 4000, true, (Address, Address, std::size_t, Stream))            \
  X(copy_rows_async, "cuMemcpy2DAsync", 3020, false, (const Rows*, Stream))                      \
  X(write_value64, "cuStreamWriteValue64", 11070, true,                                          \
    (Stream, Address, std::uint64_t, unsigned))                                                  \
  X(batch_mem_op, "cuStreamBatchMemOp", 11070, true, (Stream, unsigned, MemOp*, unsigned))       \
  X(copy_batch_async, "cuMemcpyBatchAsync", 12080, false,                                        \
    (Address*, Address*, std::size_t*, std::size_t, CopyAttributes*, std::size_t*, std::size_t,  \
     std::size_t*, Stream))                                                                      \
  X(handle_create, "cuMemCreate", 10020, false,                                                  \
    (Handle*, std::size_t, const AllocationProperties*, unsigned long long))                     \
  X(handle_retain, "cuMemRetainAllocationHandle", 11000, true, (Handle*, void*))                 \
  X(handle_release, "cuMemRelease", 10020, true, (Handle))                                       \
  X(handle_properties, "cuMemGetAllocationPropertiesFromHandle", 10020, true,                    \
    (AllocationProperties*, Handle))                                                             \
  X(handle_export, "cuMemExportToShareableHandle", 10020, true,                                  \
    (void*, Handle, int, unsigned long long))                                                    \
  X(handle_import, "cuMemImportFromShareableHandle", 10020, true, (Handle*, void*, int))         \
  X(granularity, "cuMemGetAllocationGranularity", 10020, true,                                   \
    (std::size_t*, const AllocationProperties*, int))                                            \
  X(address_reserve, "cuMemAddressReserve", 10020, true,                                         \
    (Address*, std::size_t, std::size_t, Address, unsigned long long))                           \
  X(address_free, "cuMemAddressFree", 10020, true, (Address, std::size_t))                       \
  X(map, "cuMemMap", 10020, true,                                                                \
    (Address, std::size_t, std::size_t, Handle, unsigned long long))                             \
  X(unmap, "cuMemUnmap", 10020, true, (Address, std::size_t))                                    \
  X(set_access, "cuMemSetAccess", 10020, true,                                                   \
    (Address, std::size_t, const AccessDescription*, std::size_t))                               \
  X(ipc_get, "cuIpcGetMemHandle", 4010, true, (IpcHandle*, Address))                             \
  X(ipc_open, "cuIpcOpenMemHandle", 11000, true, (Address*, IpcHandle, unsigned))                \
  X(ipc_close, "cuIpcCloseMemHandle", 4010, true, (Address))
// clang-format on

struct Driver {
#define TP_CUDA_MEMBER(member, symbol, version, required, parameters) \
  Result(*member) parameters = nullptr;
  TP_CUDA_FUNCTIONS(TP_CUDA_MEMBER)
#undef TP_CUDA_MEMBER
};

// The driver that the program has loaded; null while there is none (asked again at each call:
// a program may load it later) or when it is too old.
const Driver* driver();

// Whether the program has loaded a CUDA driver, of whatever age.
bool library_loaded();

// Puts `fake` in the driver's place; null puts the real one back.  Only between
// stop_copy_threads() and the next use.
void set_driver_for_test(const Driver* fake);

// "CUDA_ERROR_INVALID_VALUE", or "CUDA error N".
std::string error_name(const Driver& d, Result r);

// Makes a GPU's primary context current on this thread for a scope, with relaxed stream capture
// so that a capture elsewhere in the program does not forbid our calls (and is not spoilt).
class ScopedContext {
 public:
  ScopedContext(const Driver& d, Device gpu);
  ~ScopedContext();
  ScopedContext(const ScopedContext&) = delete;
  ScopedContext& operator=(const ScopedContext&) = delete;
  explicit operator bool() const { return result_ == kSuccess; }
  Result result() const { return result_; }
  Context context() const { return context_; }

 private:
  const Driver& d_;
  Device gpu_;
  Context context_ = nullptr;
  int capture_mode_ = kCaptureRelaxed;
  Result result_;
};

// Whether the program uses that GPU (its primary context exists).  A context costs hundreds of
// megabytes of GPU memory, so we make none on GPUs that belong to other processes.
bool in_use(const Driver& d, Device gpu);
int gpu_count(const Driver& d);

}  // namespace twinpath::gpu::cuda
