// See rma_host_rank.h.
#include "test/gpu/rma_host_rank.h"

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "tools/coll_perf/cuda_api.h"
#include "tools/coll_perf/error.h"
#include "tools/coll_perf/nccl_api.h"
#include "tools/common/nccl_library.h"

namespace twinpath::rma_host {
namespace {

using coll::CuDevicePtr;
using coll::CuResult;
using coll::NcclComm;
using coll::NcclResult;
using Clock = std::chrono::steady_clock;
using coll::CuStream;

constexpr int kSymmetric = 1;  // NCCL_WIN_COLL_SYMMETRIC
constexpr int kInt8 = 0;       // ncclInt8
constexpr std::size_t kMost = std::size_t{64} << 20;
constexpr std::size_t kSlack = 4096;

struct WaitSignal {  // ncclWaitSignalDesc_t
  int count, peer, signal, context;
};
static_assert(sizeof(WaitSignal) == 16);

// What NCCL has of it; names and signatures are its public ones.
struct RmaApi {
  NcclResult (*WindowRegister)(NcclComm, void*, std::size_t, void** window, int flags);
  NcclResult (*WindowDeregister)(NcclComm, void* window);
  NcclResult (*PutSignal)(const void*, std::size_t, int type, int peer, void* window,
                          std::size_t offset, int signal, int context, unsigned flags, NcclComm,
                          CuStream);
  NcclResult (*Signal)(int peer, int signal, int context, unsigned flags, NcclComm, CuStream);
  NcclResult (*Wait)(int count, WaitSignal*, NcclComm, CuStream);
};

class Rank {
 public:
  Rank(const Options& options, int rank, const Meeting& meeting)
      : options_(options),
        rank_(rank),
        ranks_(static_cast<int>(options.gpus.size())),
        next_((rank + 1) % ranks_),
        before_((rank + ranks_ - 1) % ranks_),
        meeting_(meeting),
        cuda_(coll::CudaApi::open()),
        nccl_(coll::NcclApi::open(options.nccl)) {
    const tools::NcclLibrary library(options.nccl, "2.30.7", "give one with --nccl PATH");
    library.find("ncclCommWindowRegister", rma_.WindowRegister);
    library.find("ncclCommWindowDeregister", rma_.WindowDeregister);
    library.find("ncclPutSignal", rma_.PutSignal);
    library.find("ncclSignal", rma_.Signal);
    library.find("ncclWaitSignal", rma_.Wait);
    const int gpu = options.gpus[static_cast<std::size_t>(rank)];
    int device = 0;
    coll::CuContext context{};
    cuda_.check(cuda_.device_get(&device, gpu), "cuDeviceGet");
    cuda_.check(cuda_.primary_retain(&context, device), "cuDevicePrimaryCtxRetain");
    cuda_.check(cuda_.ctx_set(context), "cuCtxSetCurrent");
    cuda_.check(cuda_.stream_create(&stream_, 1), "cuStreamCreate");
    coll::NcclUniqueId id{};
    if (rank == 0) check(nccl_.GetUniqueId(&id), "ncclGetUniqueId");
    meeting_.share(&id, sizeof id);
    check(nccl_.CommInitRank(&comm_, ranks_, id, rank), "ncclCommInitRank");
    if (rank == 0)
      std::printf("NCCL %s, %d ranks, rank 0 on %s\n", nccl_.version_text().c_str(), ranks_,
                  cuda_.device_text(gpu).c_str());
    for (Side* side : {&from_, &to_}) {
      check(nccl_.MemAlloc(&side->memory, kMost + kSlack), "ncclMemAlloc");
      check(rma_.WindowRegister(comm_, side->memory, kMost + kSlack, &side->window, kSymmetric),
            "ncclCommWindowRegister");
      if (side->window == nullptr)
        throw coll::ToolError(coll::kExitFailed, "NCCL gives no symmetric window");
    }
    void* bytes = nullptr;
    cuda_.check(cuda_.host_alloc(&bytes, kMost + kSlack, 0), "cuMemHostAlloc");
    bytes_ = static_cast<unsigned char*>(bytes);
  }

  int run() {
    for (const std::size_t bytes :
         {std::size_t{1}, std::size_t{7}, std::size_t{8}, std::size_t{4096}, std::size_t{65537},
          std::size_t{1} << 20, kMost - 3, kMost})
      report("put of " + std::to_string(bytes) + " bytes", puts(bytes, 3));
    report("puts at odd offsets", odd_offsets());
    report("200 signals without data", signals(200));
    report("100 puts in a group, waited for at once", group(100));
    report("put and wait in a graph, launched 10 times", graph(10));
    report("round trips", round_trips());
    if (options_.kill) return killed();
    for (Side* side : {&from_, &to_}) {
      check(rma_.WindowDeregister(comm_, side->window), "ncclCommWindowDeregister");
      check(nccl_.MemFree(side->memory), "ncclMemFree");
    }
    check(nccl_.CommDestroy(comm_), "ncclCommDestroy");
    cuda_.check(cuda_.host_free(bytes_), "cuMemFreeHost");
    return failed_ ? 1 : 0;
  }

 private:
  struct Side {
    void* memory = nullptr;
    void* window = nullptr;
    CuDevicePtr at(std::size_t offset) const {
      return static_cast<CuDevicePtr>(reinterpret_cast<std::uintptr_t>(memory)) + offset;
    }
    void* host_pointer(std::size_t offset) const { return static_cast<char*>(memory) + offset; }
  };

  void check(NcclResult result, const char* what) const { nccl_.check(result, comm_, what); }

  static unsigned char byte_of(int from, int round, std::size_t i) {
    return static_cast<unsigned char>(static_cast<std::size_t>(from * 91 + round * 17 + 3) + i +
                                      (i >> 8) + (i >> 16));
  }

  void wait_stream() {
    const auto end = Clock::now() + std::chrono::seconds(60);
    for (;;) {
      const CuResult r = cuda_.stream_query(stream_);
      if (r == 0) return;
      if (r != 600) cuda_.check(r, "cuStreamQuery");  // 600: not ready
      NcclResult async = coll::kNcclSuccess;
      (void)nccl_.CommGetAsyncError(comm_, &async);
      if (async != coll::kNcclSuccess && async != coll::kNcclInProgress)
        check(async, "the communicator");
      if (Clock::now() > end)
        throw coll::ToolError(coll::kExitFailed,
                              "rank " + std::to_string(rank_) + " waits for more than 60 s");
      ::usleep(20);
    }
  }

  void fill(int round, std::size_t offset, std::size_t bytes) {
    for (std::size_t i = 0; i < bytes; ++i) bytes_[i] = byte_of(rank_, round, i);
    cuda_.check(cuda_.copy_in_async(from_.at(offset), bytes_, bytes, stream_), "copy in");
    wait_stream();
  }
  // What went wrong, or nothing: each byte, and that those beside are as they were.
  std::string look(int round, std::size_t offset, std::size_t bytes) {
    cuda_.check(cuda_.copy_out_async(bytes_, to_.at(offset), bytes + 1, stream_), "copy out");
    wait_stream();
    for (std::size_t i = 0; i < bytes; ++i)
      if (bytes_[i] != byte_of(before_, round, i))
        return "byte " + std::to_string(i) + " of round " + std::to_string(round) + " is " +
               std::to_string(bytes_[i]) + " in place of " +
               std::to_string(byte_of(before_, round, i));
    return bytes_[bytes] == 0xee ? "" : "the byte behind the put was written";
  }
  void poison() {
    cuda_.check(cuda_.set_bytes_async(to_.at(0), 0xee, kMost + kSlack, stream_), "filling");
    wait_stream();
    meeting_.barrier();
  }
  void put(std::size_t src, std::size_t bytes, std::size_t dst) {
    check(rma_.PutSignal(from_.host_pointer(src), bytes, kInt8, next_, to_.window, dst, 0, 0, 0,
                         comm_, stream_),
          "ncclPutSignal");
  }
  void wait(int count) {
    WaitSignal signal{count, before_, 0, 0};
    check(rma_.Wait(1, &signal, comm_, stream_), "ncclWaitSignal");
  }

  // The copy out is in the stream behind the wait, so it sees what a kernel there would.
  std::string puts(std::size_t bytes, int rounds) {
    poison();
    for (int round = 0; round < rounds; ++round) {
      fill(round, 0, bytes);
      put(0, bytes, 0);
      wait(1);
      if (std::string wrong = look(round, 0, bytes); !wrong.empty()) return wrong;
      meeting_.barrier();
    }
    return {};
  }

  std::string odd_offsets() {
    for (const std::size_t offset :
         {std::size_t{1}, std::size_t{63}, std::size_t{4097}, kMost - 1000}) {
      poison();
      fill(5, 3, 1000);
      put(3, 1000, offset);
      wait(1);
      if (std::string wrong = look(5, offset, 1000); !wrong.empty()) return wrong;
      meeting_.barrier();
    }
    return {};
  }

  std::string signals(int count) {
    for (int i = 0; i < count; ++i)
      check(rma_.Signal(next_, 0, 0, 0, comm_, stream_), "ncclSignal");
    wait(count);
    wait_stream();
    meeting_.barrier();
    return {};
  }

  std::string group(int count) {
    poison();
    constexpr std::size_t kPiece = 10007;
    const auto all = kPiece * static_cast<std::size_t>(count);
    fill(9, 0, all);
    check(nccl_.GroupStart(), "ncclGroupStart");
    for (int i = 0; i < count; ++i)
      put(static_cast<std::size_t>(i) * kPiece, kPiece, static_cast<std::size_t>(i) * kPiece);
    check(nccl_.GroupEnd(), "ncclGroupEnd");
    wait(count);
    std::string wrong = look(9, 0, all);
    meeting_.barrier();
    return wrong;
  }

  // In graphs NCCL keeps signals in the host's memory and flushes by a put to itself.
  std::string graph(int launches) {
    if (!cuda_.has_graphs()) return "the driver has no graphs";
    poison();
    constexpr std::size_t kBytes = 300001;
    gpu::cuda::Graph graph = nullptr;
    gpu::cuda::GraphExec executable = nullptr;
    cuda_.check(cuda_.capture_begin(stream_, 1), "cuStreamBeginCapture");  // of this thread
    put(0, kBytes, 0);
    wait(1);
    cuda_.check(cuda_.capture_end(stream_, &graph), "cuStreamEndCapture");
    cuda_.check(cuda_.graph_instantiate(&executable, graph, 0), "cuGraphInstantiate");
    std::string wrong;
    for (int i = 0; i < launches && wrong.empty(); ++i) {
      fill(20 + i, 0, kBytes);
      cuda_.check(cuda_.graph_launch(executable, stream_), "cuGraphLaunch");
      wrong = look(20 + i, 0, kBytes);
      if (wrong.empty()) meeting_.barrier();
    }
    cuda_.check(cuda_.graph_exec_destroy(executable), "cuGraphExecDestroy");
    // ncclCommDestroy waits for it.
    cuda_.check(cuda_.graph_destroy(graph), "cuGraphDestroy");
    return wrong;
  }

  std::string round_trips() {
    for (const std::size_t bytes : {std::size_t{8}, std::size_t{1} << 20}) {
      meeting_.barrier();
      const auto start = Clock::now();
      for (int i = 0; i < options_.rounds; ++i) {
        if (rank_ == 0) put(0, bytes, 0);
        wait(1);
        if (rank_ != 0) put(0, bytes, 0);
        wait_stream();
      }
      const double us =
          std::chrono::duration<double, std::micro>(Clock::now() - start).count() / options_.rounds;
      if (rank_ == 0) std::printf("     %zu bytes round %d ranks: %.1f us\n", bytes, ranks_, us);
    }
    return {};
  }

  // The others' communicator must fail, not hang; nothing is cleaned up afterwards, for a stream
  // may wait for the signal that never comes.  NCCL 2.30.7 keeps what its RMA thread learns to
  // itself (its source has no reader of that result); there only the plugin's warning tells.
  int killed() {
    meeting_.barrier();
    if (rank_ == ranks_ - 1) ::_exit(0);
    const auto start = Clock::now();
    NcclResult async = coll::kNcclSuccess;
    if (next_ == ranks_ - 1) put(0, 1 << 20, 0);
    while (async == coll::kNcclSuccess && Clock::now() < start + std::chrono::seconds(60)) {
      (void)nccl_.CommGetAsyncError(comm_, &async);
      ::usleep(1000);
    }
    const double s = std::chrono::duration<double>(Clock::now() - start).count();
    const bool told = async != coll::kNcclSuccess;
    const bool may_keep = nccl_.version < 23100;
    std::printf("%s rank %d learns of the end of rank %d: result %d after %.1f s\n",
                told       ? "ok  "
                : may_keep ? "note (see the plugin's warning)"
                           : "FAILED",
                rank_, ranks_ - 1, async, s);
    std::fflush(stdout);
    ::_exit((told || may_keep) && !failed_ ? 0 : 1);
  }

  void report(const std::string& name, const std::string& wrong) {
    if (!wrong.empty()) {
      std::printf("FAILED rank %d: %s: %s\n", rank_, name.c_str(), wrong.c_str());
      failed_ = true;
      std::fflush(stdout);
      ::_exit(1);  // the others are out of step
    }
    if (rank_ == 0) std::printf("ok   %s\n", name.c_str());
  }

  const Options& options_;
  const int rank_, ranks_, next_, before_;
  const Meeting& meeting_;
  const coll::CudaApi cuda_;
  const coll::NcclApi nccl_;
  RmaApi rma_{};
  NcclComm comm_ = nullptr;
  CuStream stream_{};
  Side from_, to_;
  // Pinned: a copy to other memory keeps CUDA's lock until the stream is there, which the soft
  // HCA's copies in this process may have to bring it to.
  unsigned char* bytes_ = nullptr;
  bool failed_ = false;
};

}  // namespace

int run_rank(const Options& options, int rank, const Meeting& meeting) {
  // NCCL takes each rank for a host of its own; before it is opened.
  if (!options.threads) ::setenv("NCCL_HOSTID", ("rma-host-" + std::to_string(rank)).c_str(), 1);
  try {
    Rank it(options, rank, meeting);
    return it.run();
  } catch (const std::exception& error) {
    std::printf("FAILED rank %d: %s\n", rank, error.what());
    std::fflush(stdout);
    return 1;
  }
}

}  // namespace twinpath::rma_host
