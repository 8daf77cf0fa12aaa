#include "tools/gda_perf/rank.h"

#include <algorithm>

#include "tools/gda_perf/error.h"

namespace twinpath::gda_perf {
namespace {

// Windows are made of whole pages; the last has a word of each half, on a line of its own.
constexpr std::size_t kPage = 4096, kLine = 128;

std::string on_gpu(const char* what, int device) {
  return std::string(what) + " on GPU " + std::to_string(device);
}

ncclDevCommRequirements requirements(int contexts, bool window_signals) {
  ncclDevCommRequirements out =
      gin_requirements(contexts, static_cast<int>(kSignals), window_signals);
  out.ginCounterCount = static_cast<int>(kCounters);
  return out;
}

// The member has another name in later releases.
template <class Comm>
int type_of(const Comm& comm) {
  if constexpr (requires { comm.ginTypes[0]; }) {
    return comm.ginTypes[0];
  } else {
    return comm.ginNetDeviceTypes[0];
  }
}

}  // namespace

void check(cudaError_t error, const std::string& what) {
  if (error == cudaSuccess) return;
  throw ToolError(kExitFailed, what + ": " + cudaGetErrorString(error) + " (" +
                                   cudaGetErrorName(error) +
                                   "); see nvidia-smi and the kernel log");
}

Rank::Rank(const NcclApi& nccl, int rank, int ranks, const ncclUniqueId& id, std::size_t area,
           int halves, int contexts, bool window_signals)
    : nccl_(nccl), device_(rank), area_(area), halves_(halves) {
  check(cudaSetDevice(device_), on_gpu("cudaSetDevice", device_));
  check(load_latency_kernels(), on_gpu("loading kernels", device_));
  check(load_get_kernel(), on_gpu("loading kernels", device_));
  check(load_stream_kernels(), on_gpu("loading kernels", device_));
  check(load_data_kernels(), on_gpu("loading kernels", device_));
  nccl_.check(nccl_.comm_init_rank(&comm_, ranks, id, rank), on_gpu("ncclCommInitRank", device_));
  const std::size_t bytes = words_at() + kPage;
  nccl_.check(nccl_.mem_alloc(&memory_, bytes), on_gpu("ncclMemAlloc", device_), comm_);
  nccl_.check(nccl_.window_register(comm_, memory_, bytes, &window_, NCCL_WIN_COLL_SYMMETRIC),
              on_gpu("ncclCommWindowRegister", device_), comm_);
  if (window_ == nullptr) {
    throw ToolError(kExitFailed,
                    on_gpu("ncclCommWindowRegister", device_) +
                        " made no window: NCCL has no symmetric memory here; unset NCCL_WIN_ENABLE "
                        "and NCCL_CUMEM_ENABLE, and see that the GPUs can reach each other");
  }
  const ncclDevCommRequirements wanted = requirements(contexts, window_signals);
  nccl_.check(nccl_.dev_comm_create(comm_, &wanted, &device_comm_),
              on_gpu("ncclDevCommCreate with GIN", device_), comm_);
}

Rank::~Rank() {
  // After an error the process ends without coming here: peers might not take part.
  (void)cudaSetDevice(device_);
  if (contexts() > 0) (void)nccl_.dev_comm_destroy(comm_, &device_comm_);
  if (window_ != nullptr) (void)nccl_.window_deregister(comm_, window_);
  if (memory_ != nullptr) (void)nccl_.mem_free(memory_);
  if (comm_ != nullptr) (void)nccl_.comm_destroy(comm_);
}

const char* Rank::backend() const {
  switch (type_of(device_comm_)) {
    case NCCL_NET_DEVICE_GIN_PROXY:
      return "PROXY";
    case NCCL_NET_DEVICE_GIN_GDAKI:
      return "GDAKI";
    default:
      return "unknown";
  }
}

Side Rank::side(unsigned my_half, int peer) const {
  // A GPU that works with itself has a pair of areas for each half, in order.
  const auto base = [&](unsigned of) { return halves_ == 2 ? of * 2 * area_ : 0; };
  const auto word = [&](unsigned of) { return words_at() + of * kLine; };
  auto* memory = static_cast<std::byte*>(memory_);
  return {.comm = device_comm_,
          .window = window_,
          .peer = peer,
          .contexts = std::min(contexts(), kMaxContexts),
          .half = my_half,
          .send_at = base(my_half),
          .receive_at = base(my_half) + area_,
          .peer_send_at = base(my_half ^ 1),
          .peer_receive_at = base(my_half ^ 1) + area_,
          .peer_word_at = word(my_half ^ 1),
          .send = reinterpret_cast<std::uint64_t*>(memory + base(my_half)),
          .receive = reinterpret_cast<std::uint64_t*>(memory + base(my_half) + area_),
          .word = reinterpret_cast<std::uint64_t*>(memory + word(my_half))};
}

Player::Player(const Rank& rank, unsigned my_half, int peer, const NcclApi& nccl,
               unsigned iterations)
    : rank_(rank), nccl_(nccl), side_(rank.side(my_half, peer)) {
  use();
  const std::string what = on_gpu("memory for results", rank_.device());
  int khz = 0;
  check(cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, rank_.device()), what);
  clock_khz_ = khz;
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), what);
  check(cudaMalloc(&ticks_, iterations * sizeof(std::uint64_t)), what);
  check(cudaMalloc(&gate_, sizeof *gate_), what);
  check(cudaMalloc(&wrong_, sizeof *wrong_), what);
  check(cudaMallocHost(&outcomes_, kMaxBlocks * sizeof(Outcome)), what);
  clear_outcomes();
}

Player::~Player() {
  use();
  (void)cudaFreeHost(outcomes_);
  (void)cudaFree(wrong_);
  (void)cudaFree(gate_);
  (void)cudaFree(ticks_);
  (void)cudaStreamDestroy(stream_);
}

void Player::use() const { check(cudaSetDevice(rank_.device()), "cudaSetDevice"); }

void Player::clear_outcomes() { std::fill_n(outcomes_, kMaxBlocks, Outcome{}); }

void Player::finish(int blocks, const std::string& what) {
  const std::string where = what + ", GPU " + std::to_string(rank_.device());
  check(cudaStreamSynchronize(stream_), where);
  // Other blocks may only have waited for the one that failed: its fault says more.
  const Outcome* worst = nullptr;
  for (const Outcome* o = outcomes_; o != outcomes_ + blocks; ++o) {
    if (o->fault == Fault::none) continue;
    if (worst == nullptr || worst->fault == Fault::gate) worst = o;
  }
  if (worst != nullptr) {
    throw ToolError(kExitFailed, where + ": " + fault_text(*worst) + nccl_.complaint(rank_.comm()) +
                                     "; see the log with NCCL_DEBUG=INFO, or give more time with "
                                     "--wait");
  }
}

std::string Player::fault_text(const Outcome& o) const {
  if (o.fault == Fault::gate) {
    return "only " + std::to_string(o.seen) + " of " + std::to_string(o.wanted) +
           " blocks arrived at the start";
  }
  const char* what = o.fault == Fault::signal    ? "signal "
                     : o.fault == Fault::counter ? "counter "
                                                 : "window word ";
  return std::string("waited in vain for ") + what + std::to_string(o.id) + " to reach " +
         std::to_string(o.wanted) + ", saw " + std::to_string(o.seen) + " (at operation " +
         std::to_string(o.at) + ")";
}

std::vector<double> Player::times_us(unsigned count) const {
  std::vector<std::uint64_t> ticks(count);
  check(cudaMemcpy(ticks.data(), ticks_, count * sizeof ticks[0], cudaMemcpyDeviceToHost),
        "copying times");
  // The multiprocessor's clock is fine but of no known rate; the timer has a rate but may advance
  // in steps of a microsecond.  Over a millisecond that no longer matters.
  constexpr std::uint64_t kLongNs = 1000000;
  const Outcome& o = outcomes_[0];
  const std::uint64_t ns = o.end_ns - o.start_ns, clocks = o.end_clock - o.start_clock;
  double us_per_tick = 1e3 / clock_khz_;
  if (ns >= kLongNs && clocks > 0)
    us_per_tick = static_cast<double>(ns) / 1e3 / static_cast<double>(clocks);
  std::vector<double> out;
  out.reserve(count);
  for (const std::uint64_t t : ticks) out.push_back(static_cast<double>(t) * us_per_tick);
  return out;
}

}  // namespace twinpath::gda_perf
