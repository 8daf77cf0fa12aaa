// Recognising CUDA memory and giving allocations away to other processes.
#include <algorithm>

#include "plugin/base/log.h"
#include "plugin/gpu/driver.h"

namespace twinpath::gpu {
namespace {

using cuda::Driver;
using cuda::kSuccess;

struct Attributes {
  unsigned memory_type = 0;
  unsigned managed = 0;
  int ordinal = -1;
  unsigned legacy_ipc = 0;
  std::uint64_t range_start = 0, range_size = 0;
  std::uint64_t mapping_base = 0, mapping_size = 0;
};

cuda::Result read_kind(const Driver& d, cuda::Address p, Attributes& a) {
  int which[] = {cuda::kAttributeMemoryType, cuda::kAttributeManaged,    cuda::kAttributeOrdinal,
                 cuda::kAttributeLegacyIpc,  cuda::kAttributeRangeStart, cuda::kAttributeRangeSize};
  void* to[] = {&a.memory_type, &a.managed,     &a.ordinal,
                &a.legacy_ipc,  &a.range_start, &a.range_size};
  return d.pointer_attributes(6, which, to, p);
}

// Apart from the others because drivers before 11.7 refuse the whole list for these two.
void read_mapping(const Driver& d, cuda::Address p, Attributes& a) {
  int which[] = {cuda::kAttributeMappingBase, cuda::kAttributeMappingSize};
  void* to[] = {&a.mapping_base, &a.mapping_size};
  if (d.pointer_attributes(2, which, to, p) != kSuccess) a.mapping_base = a.mapping_size = 0;
}

cuda::Result read_all(const Driver& d, cuda::Address p, Attributes& a) {
  const cuda::Result r = read_kind(d, p, a);
  if (r == kSuccess && a.memory_type == cuda::kMemoryTypeDevice) read_mapping(d, p, a);
  return r;
}

}  // namespace

PointerInfo inspect_pointer(const void* p) {
  const Driver* d = cuda::driver();
  if (d == nullptr || p == nullptr) return {};
  const auto address = static_cast<cuda::Address>(reinterpret_cast<std::uintptr_t>(p));
  Attributes a;
  cuda::Result r = read_all(*d, address, a);
  // A thread without a context may be refused: ask in that of some GPU the program uses.
  for (int gpu = 0, n = gpu_count(*d); r == cuda::kInvalidContext && gpu < n; ++gpu) {
    if (!in_use(*d, gpu)) continue;
    cuda::ScopedContext scope(*d, gpu);
    if (scope) r = read_all(*d, address, a);
  }
  if (r != kSuccess || a.memory_type != cuda::kMemoryTypeDevice || a.managed != 0) return {};
  PointerInfo info;
  info.kind = MemoryKind::cuda;
  info.gpu = a.ordinal;
  // For VMM memory RANGE may be the whole address reservation, which can hold several
  // allocations; MAPPING is the piece that one handle backs.  For cudaMalloc memory it is the
  // other way round: MAPPING may be a driver block that holds several allocations.
  const bool by_mapping = a.legacy_ipc == 0 && a.mapping_size != 0;
  info.alloc_base = by_mapping ? a.mapping_base : a.range_start;
  info.alloc_bytes = by_mapping ? a.mapping_size : a.range_size;
  return info;
}

Status check_range(const PointerInfo& info, const void* p, std::uint64_t bytes) {
  const auto start = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(p));
  if (start >= info.alloc_base && bytes <= info.alloc_bytes &&
      start - info.alloc_base <= info.alloc_bytes - bytes)
    return Status::ok;
  TP_WARN(
      "GPU memory %p+0x%llx spans more than one mapping (0x%llx+0x%llx): it cannot be shared as "
      "one; register each mapping by itself, or turn expandable segments off",
      p, static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(info.alloc_base),
      static_cast<unsigned long long>(info.alloc_bytes));
  return Status::unsupported;
}

namespace {

// VMM memory.  `again`: this is not VMM memory.
Status export_vmm(const Driver& d, const PointerInfo& info, ExportedAllocation& out) {
  cuda::Handle handle = 0;
  if (d.handle_retain(&handle, reinterpret_cast<void*>(info.alloc_base)) != kSuccess)
    return Status::again;
  cuda::AllocationProperties properties;
  Status status = Status::ok;
  cuda::Result r = d.handle_properties(&properties, handle);
  if (r == kSuccess && (properties.handle_types & cuda::kHandlePosixFd) == 0) {
    TP_WARN(
        "GPU %d: memory 0x%llx+0x%llx was made by cuMemCreate without a file descriptor handle "
        "(handle types 0x%x): it cannot be shared between processes and will not be used with "
        "GPUDirect; allocate it with ncclMemAlloc or CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR",
        info.gpu, static_cast<unsigned long long>(info.alloc_base),
        static_cast<unsigned long long>(info.alloc_bytes),
        static_cast<unsigned>(properties.handle_types));
    status = Status::unsupported;
  } else if (r == kSuccess) {
    int fd = -1;
    r = d.handle_export(&fd, handle, cuda::kHandlePosixFd, 0);
    if (r == kSuccess) {
      out.kind = ExportedAllocation::Kind::posix_fd;
      out.fd = UniqueFd(fd);
    }
  }
  if (r != kSuccess) {
    TP_WARN("GPU %d: cannot export memory 0x%llx (%s)", info.gpu,
            static_cast<unsigned long long>(info.alloc_base), error_name(d, r).c_str());
    status = Status::system;
  }
  (void)d.handle_release(handle);
  return status;
}

}  // namespace

Result<ExportedAllocation> export_allocation(const PointerInfo& info) {
  const Driver* d = cuda::driver();
  if (d == nullptr) return Status::unsupported;
  if (info.kind != MemoryKind::cuda) return Status::bad_argument;
  prepare_copies(info.gpu);
  ExportedAllocation out;
  out.bytes = info.alloc_bytes;
  TP_TRY(gpu_uuid(info.gpu, out.gpu));
  cuda::ScopedContext scope(*d, info.gpu);
  if (!scope) {
    TP_WARN("GPU %d: no context (%s)", info.gpu, error_name(*d, scope.result()).c_str());
    return Status::system;
  }
  const Status vmm = export_vmm(*d, info, out);
  if (vmm == Status::ok) return out;
  if (vmm != Status::again) return vmm;
  cuda::IpcHandle handle{};
  const cuda::Result r = d->ipc_get(&handle, info.alloc_base);
  if (r != kSuccess) {
    TP_WARN(
        "GPU %d: memory 0x%llx+0x%llx has neither a VMM nor an IPC handle (%s; memory of a "
        "cudaMallocAsync pool?): it will not be used with GPUDirect; use cudaMalloc or "
        "ncclMemAlloc",
        info.gpu, static_cast<unsigned long long>(info.alloc_base),
        static_cast<unsigned long long>(info.alloc_bytes), error_name(*d, r).c_str());
    return Status::unsupported;
  }
  out.kind = ExportedAllocation::Kind::ipc;
  std::copy(std::begin(handle.bytes), std::end(handle.bytes), out.ipc_handle);
  return out;
}

}  // namespace twinpath::gpu
