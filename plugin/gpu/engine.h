#pragma once
// CUDA memory for those who move it (soft HCA, host staging): recognise device pointers, share
// allocations between processes of one host, and move bytes with copy engines.
//
// Why a thread of its own: a user kernel may be spinning on the data we move, so nothing here
// launches a kernel or makes a blocking CUDA call on the data path, and one driver call serves
// all copies that became ready since the last (a batch of 64 x 512 KiB moves 345 GB/s between
// two H200, one by one 144).
//
// libcuda is never loaded by us: it is looked up with RTLD_NOLOAD, because memory can be CUDA
// memory only when the program has already loaded the driver.  All types are plain integers so
// that no CUDA header is needed to build or to use this.
//
// Threads: every function may be called from any thread.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "plugin/base/config.h"
#include "plugin/base/owned.h"
#include "plugin/base/status.h"
#include "plugin/gpu/word_operation.h"

namespace twinpath::gpu {

// What a registered range is made of.
enum class MemoryKind : std::uint32_t { host = 0, cuda = 1 };

struct PointerInfo {
  MemoryKind kind = MemoryKind::host;
  int gpu = -1;                  // CUDA device ordinal in this process
  std::uint64_t alloc_base = 0;  // start and size of the whole allocation that holds the range
  std::uint64_t alloc_bytes = 0;
};

// host when the driver is absent or does not know the pointer.  Managed and CUDA-pinned host
// memory count as host.
PointerInfo inspect_pointer(const void* p);

// ok when [p, p+bytes) lies in the allocation `info`.  VMM memory is a row of separate mappings
// (PyTorch's expandable segments) and one registration may use one of them only: a range that
// goes beyond is logged and `unsupported`.
Status check_range(const PointerInfo& info, const void* p, std::uint64_t bytes);

// 16-byte identity of a GPU, equal in all processes of the host (CUDA UUID).
struct GpuUuid {
  std::uint8_t bytes[16];
  friend bool operator==(const GpuUuid&, const GpuUuid&) = default;
};
Status gpu_uuid(int gpu, GpuUuid& out);

// How another process may reach one allocation.  Exactly one of: a POSIX fd (VMM memory,
// cuMemCreate: what NCCL and ncclMemAlloc use) or a 64-byte legacy IPC handle (cudaMalloc).
struct ExportedAllocation {
  enum class Kind : std::uint32_t { none = 0, posix_fd = 1, ipc = 2 };
  Kind kind = Kind::none;
  UniqueFd fd;                       // posix_fd
  std::uint8_t ipc_handle[64] = {};  // ipc
  std::uint64_t bytes = 0;           // size of the allocation (cuMemMap size or cuMemAlloc size)
  GpuUuid gpu{};                     // where it lives
};
Result<ExportedAllocation> export_allocation(const PointerInfo& info);

// The ordinal given to a GPU that this process cannot see (CUDA_VISIBLE_DEVICES): copies for it
// are issued by the GPU of the other end.  Not -1, which would say host memory.
inline constexpr int kGpuNotVisible = 1 << 20;

// An allocation of another process (or of this one, through the same door) mapped so that
// copies issued for any GPU of this process can write and read it.  The mapping is undone by
// the destructor, off the data path.
class ImportedAllocation {
 public:
  virtual ~ImportedAllocation() = default;
  virtual std::uint64_t address() const = 0;  // device address of the allocation's first byte
  virtual std::uint64_t bytes() const = 0;
  virtual int gpu() const = 0;  // ordinal here, or kGpuNotVisible
};
Result<std::shared_ptr<ImportedAllocation>> import_allocation(ExportedAllocation exported);
// For memory of this very process: makes [base, base+bytes) reachable from all GPUs here without
// a handle crossing processes.  Where a process of their own makes the copies (below), that is what
// lets them reach the memory at all, at its own address, for as long as the result lives.
Result<std::shared_ptr<ImportedAllocation>> import_local(const PointerInfo& info);

// One end of a copy.  gpu == -1: host memory of this process.
struct CopyEnd {
  std::uint64_t address = 0;
  int gpu = -1;
};

// A piece of work for the copy thread; embedded in its owner (a send WQE), so nothing is
// allocated per message.  The owner keeps it alive until `done` was called.
struct CopyJob {
  CopyEnd to, from;
  std::uint64_t bytes = 0;
  // The GPU of the end that is this process's own; -1 when that end is host memory.
  int executor = -1;
  // Jobs with equal `order` complete in submission order (a QP uses its own number).
  std::uint64_t order = 0;
  // Called once on the copy thread when the bytes are visible at the destination, to the GPU
  // and to the host (status ok), or could not be moved; `closed` when the process that makes the
  // copies has ended.  Must not block; may submit.
  void (*done)(CopyJob* job, Status status) = nullptr;
  bool update = false;      // a WordUpdate
  CopyJob* next = nullptr;  // engine's own
};

// Reads, changes and writes back one aligned 64-bit word of GPU memory, as an adapter does for an
// RDMA atomic.  `update` is set, `to` is the word, `executor` its GPU; bytes, from and order mean
// nothing.  One thread makes all updates of a GPU in the order of their submission, so none of them
// is lost to another.  What kernels and copies write to the word in the same moment may be: an
// adapter behind PCIe is no more atomic towards them (IB specification vol. 1, 9.4.5).
struct WordUpdate : CopyJob, WordOperation {
  std::uint64_t old = 0;      // once done: what the word was before
  Status ended = Status::ok;  // engine's own
};

// Hands a job to the copy thread of its GPU (the source's, else the destination's).  The first
// call for a GPU starts the thread.  Cheap and lock-free otherwise.
//   - GPU to other GPU: copy engine push, batched.
//   - GPU to host and host to GPU: copy engine, batched.
//   - host to GPU, 4 bytes, or <= 32 bytes and a multiple of 8, aligned like that at both ends:
//     the bytes are taken when the job is issued and arrive in whole words, as NCCL's LL lines
//     need: as values that the stream writes, or, more than two beside another process's kernels,
//     as rows.
//   - same GPU: never a device-to-device copy (the driver runs it on an SM, which a spinning
//     kernel may own): through pinned host memory, D2H then H2D, or, when the program uses
//     another GPU too, through memory of that one (prepare_copies).  On streams of their own.
//   - a WordUpdate: a copy out and a write-value, many words at a time.
// Returns unsupported when the driver is absent.
Status submit_copy(CopyJob* job);

// The same by a thread of this process, whoever makes the other copies: for what must be done
// although the process that makes them has ended.  GPU memory of this process only.
Status submit_copy_here(CopyJob* job);

// Starts the copy thread of a GPU ahead of its first copy: it allocates pinned memory and makes
// streams, which waits for whatever holds the driver: kernels that run, or a program's copy to
// pageable memory, which keeps all others from such calls until a collective before it has ended.
// So who sets up a path to GPU memory waits here until the thread is ready, at most `wait_ns`, and
// no later copy depends on it.  The caller, once per GPU, also allocates memory on another GPU of
// the program for same-GPU copies.  export_allocation and import_local do all this, without
// waiting, for the GPU of the memory.
inline constexpr std::int64_t kPrepareLimit = 2'000'000'000;
void prepare_copies(int gpu, std::int64_t wait_ns = 0);

// From now on a process of their own makes all copies: `executable` is started when the first GPU
// is needed.  The driver's lock that a cudaFree holds while kernels run is then none of ours, so
// copies go on beside every call of the program; see plugin/gpu/process/server.h.  Empty: copies
// are made here again.  `cpus`: where it runs, and the threads that give it work.  Before any
// memory is registered or imported.
void copy_elsewhere(const std::string& executable, HelperCpus cpus = HelperCpus::near);
// ok: copies are made here, or the process that makes them is there (it is started if need be, and
// opens the GPUs that the program uses).  Else `why` not.
Status copies_ready(std::string& why);
bool copied_elsewhere();
// What keeps memory of this process within reach of copies although no adapter has it registered;
// null where nothing is needed.
Result<std::shared_ptr<ImportedAllocation>> keep_in_reach(const void* p, std::uint64_t bytes);

// Stops copy threads, finishing what was submitted; for tests and process end.
void stop_copy_threads();

// Why CUDA memory is not available ("driver library not loaded", "cuMemcpyBatchAsync missing:
// copies are slower", ...); empty when all is there.  For twinpath-info.
std::string cuda_notes();

struct CopyStatistics {
  std::uint64_t jobs = 0, bytes = 0, batches = 0, write_values = 0, staged = 0;
};
CopyStatistics copy_statistics();

}  // namespace twinpath::gpu
