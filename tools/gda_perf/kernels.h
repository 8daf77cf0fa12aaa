#pragma once
// What the host gives to the kernels and gets back, and how it launches them.
//
// A test is played by sides: side 2k works with side 2k+1.  Sides are GPUs; with a single GPU
// both are streams of it, which is why signals and memory are laid out by "half" (0: even side).
#include <cuda_runtime.h>
#include <nccl.h>
#include <nccl_device.h>

#include <cstddef>
#include <cstdint>

#include "tools/gda_perf/options.h"

namespace twinpath::gda_perf {

// Signals of one half; each context has its own set.  Blocks have their own done and ack.
inline constexpr unsigned kMainSignal = 0, kDoneSignal = 1, kAckSignal = 1 + kMaxBlocks;
inline constexpr unsigned kSignalsPerHalf = 1 + 2 * kMaxBlocks;
inline constexpr unsigned kSignals = 2 * kSignalsPerHalf;
inline constexpr unsigned kCounters = 1;  // only the even side counts
inline constexpr int kMaxContexts = 4;
// Signals that are words of a window ("VA signals"), and get.
inline constexpr bool kNewerTests = NCCL_VERSION_CODE >= NCCL_VERSION(2, 30, 7);

struct Side {
  ncclDevComm comm;
  ncclWindow_t window;
  int peer;                         // world rank
  int contexts;                     // of `comm`
  unsigned half;                    // listens to the signals of this half, notifies the other's
  std::size_t send_at, receive_at;  // offsets in the window
  std::size_t peer_send_at, peer_receive_at;
  std::size_t peer_word_at;  // the peer's word for signals in the window
  std::uint64_t* send;       // the same places in this GPU's memory
  std::uint64_t* receive;
  std::uint64_t* word;
};

enum class Fault : int { none, signal, counter, gate, word };
struct Outcome {  // of one block; in pinned host memory
  Fault fault;
  unsigned id;  // signal or counter waited for
  std::uint64_t wanted, seen, at;
  std::uint64_t wrong;
  std::uint64_t start_ns, end_ns;        // the GPU's timer
  std::uint64_t start_clock, end_clock;  // the multiprocessor's clock, at about the same times
};

// First and last word of a message, by its number and its sender: never a pattern's by chance.
struct Stamp {
  __host__ __device__ static std::uint64_t of(std::uint64_t number, unsigned half) {
    return (number + 1) * 0xa24baed4963ee407u + half;
  }
};

enum class LatencyOp : int { put, value, signal, flush, counter, window_put, window_signal, get };
constexpr bool in_window(LatencyOp op) {
  return op == LatencyOp::window_put || op == LatencyOp::window_signal;
}
struct LatencyArgs {
  Side side;
  LatencyOp op;
  bool initiator;
  std::size_t bytes;
  unsigned warmup, iterations;
  std::uint64_t wait_ns;
  std::uint64_t* ticks;  // one per timed iteration, of the initiator
  Outcome* outcome;
};
cudaError_t launch_latency(const LatencyArgs& args, cudaStream_t stream);
// The same for LatencyOp::get, where kNewerTests says that it is there.
cudaError_t launch_get(const LatencyArgs& args, cudaStream_t stream);

enum class Notice : int { none, signal, signal_and_counter };  // with each put
struct RateArgs {
  Side side;
  int blocks, contexts;
  Notice notice;
  std::uint64_t messages;  // per block
  std::uint64_t wait_ns;
  unsigned* gate;    // zero
  Outcome* outcome;  // one per block
};
inline constexpr std::uint64_t kRateSlots = 1024;  // per block
cudaError_t launch_rate(const RateArgs& args, cudaStream_t stream);

struct StreamArgs {
  Side side;
  int blocks, contexts;
  bool sends, receives;
  std::size_t bytes;
  std::uint64_t messages, slots;
  std::uint64_t wait_ns;
  unsigned* gate;    // zero
  Outcome* outcome;  // one per block
};
cudaError_t launch_stream(const StreamArgs& args, cudaStream_t stream);

// Signals of this side and its counter to zero.
cudaError_t launch_reset(const Side& side, cudaStream_t stream);

// Waits for exactly so many of the main signal, or of this side's counter, on each context; more is
// counted as wrong.
struct AwaitArgs {
  Side side;
  bool counters;
  std::uint64_t expected[kMaxContexts];
  std::uint64_t wait_ns;
  Outcome* outcome;
};
cudaError_t launch_await(const AwaitArgs& args, cudaStream_t stream);

cudaError_t launch_fill(std::uint64_t* data, std::size_t words, std::uint64_t seed,
                        cudaStream_t stream);

// Adds the number of words that differ from the pattern to *wrong (device memory).  `stamped`:
// first and last word are `stamp` instead.
struct VerifyArgs {
  const std::uint64_t* data;
  std::size_t words;
  std::uint64_t seed;
  bool stamped;
  std::uint64_t stamp;
  unsigned long long* wrong;
};
cudaError_t launch_verify(const VerifyArgs& args, cudaStream_t stream);

// Loads all kernels on the current device: a kernel that is loaded at its first launch waits for
// those that run, and so would never start while its partner waits for it.
cudaError_t load_latency_kernels();
cudaError_t load_get_kernel();
cudaError_t load_stream_kernels();
cudaError_t load_data_kernels();

}  // namespace twinpath::gda_perf
