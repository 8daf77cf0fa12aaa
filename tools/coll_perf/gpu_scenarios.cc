// Scenarios: what an application may do to NCCL, and so to the plugin, besides collectives that
// end well.  Each ends with one PASS or FAIL line of rank 0.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

#include "plugin/base/clock.h"
#include "tools/coll_perf/error.h"
#include "tools/coll_perf/gpu_bench.h"
#include "tools/coll_perf/gpu_data.h"

namespace twinpath::coll {
namespace {

constexpr DataType kType = DataType::float32;
constexpr std::size_t kElement = 4;
constexpr double kDetectLimitS = 10;

// What one all-reduce needs, on a stream of its own.
struct Lane {
  Lane(GpuJob& job, std::size_t bytes)
      : stream(job.apis.cuda),
        send(job.apis, bytes, !job.options.cuda_malloc),
        recv(job.apis, bytes, !job.options.cuda_malloc),
        data(job.apis, stream.get(), job.options.timeout_s) {}
  Stream stream;
  DeviceBuffer send, recv;
  GpuData data;
};

// `rank` and `pattern` are those of the whole job; `members` of the communicator.
void start_checked(GpuJob& job, Lane& lane, Pattern& pattern, std::size_t bytes, NcclComm comm,
                   std::size_t shift) {
  const int rank = job.group.rank();
  const Segment input[] = {{0, bytes / kElement, rank, shift}};
  lane.data.poison(lane.recv.address(), bytes);
  lane.data.fill(lane.send.address(), pattern, input);
  const Plan plan =
      make_plan(Collective::all_reduce, bytes, kElement, rank, job.group.size(), shift);
  start_collective(job.apis.nccl, plan, kType, ReduceOp::sum, lane.send.address(),
                   lane.recv.address(), comm, rank, job.group.size(), lane.stream.get());
}

std::uint64_t finish_checked(GpuJob& job, Lane& lane, Pattern& pattern, std::size_t bytes,
                             NcclComm comm, std::size_t shift, std::span<const int> members) {
  NcclResult error = kNcclSuccess;
  const Waited waited =
      wait_stream(job.apis, lane.stream.get(), comm, job.options.timeout_s, error);
  if (waited == Waited::failed) job.apis.nccl.check(error, comm, "all_reduce");
  if (waited == Waited::timed_out)
    throw ToolError(kExitFailed, strf("all_reduce did not finish within %g s; raise --timeout",
                                      job.options.timeout_s));
  std::string first;
  const Segment expected[] = {{0, bytes / kElement, kReduced, shift}};
  return lane.data.count_wrong(lane.recv.address(), pattern, expected, first, members);
}

// Sums `mine` over the ranks, for everyone.
std::uint64_t total(GpuJob& job, std::uint64_t mine) {
  std::vector<std::uint64_t> all(static_cast<std::size_t>(job.group.size()));
  job.group.all_gather(&mine, sizeof mine, all.data());
  return std::accumulate(all.begin(), all.end(), std::uint64_t{0});
}

void run_split(GpuJob& job) {
  const NcclApi& nccl = job.apis.nccl;
  if (nccl.CommSplit == nullptr) {
    throw ToolError(kExitMissing, nccl.file + " has no ncclCommSplit; use NCCL 2.18 or newer");
  }
  const int rank = job.group.rank(), size = job.group.size();
  constexpr std::size_t kBytes = 1U << 20;
  Pattern pattern(kType, ReduceOp::sum, size);
  Lane lane(job, kBytes);
  Communicator parent(nccl, rank, size, shared_id(job));
  std::vector<int> everyone(static_cast<std::size_t>(size));
  std::iota(everyone.begin(), everyone.end(), 0);
  const int half = rank < (size + 1) / 2 ? 0 : 1;
  std::vector<int> mates;
  for (const int r : everyone) {
    if ((r < (size + 1) / 2 ? 0 : 1) == half) mates.push_back(r);
  }
  job.watchdog.step(rank, "ncclCommSplit");
  NcclComm raw = nullptr;
  nccl.check(nccl.CommSplit(parent.get(), half, rank, &raw, nullptr), parent.get(),
             "ncclCommSplit into halves");
  Communicator halves(nccl, raw);
  // All ranks in reverse order: with two ranks the halves have nobody to talk to.
  nccl.check(nccl.CommSplit(parent.get(), 0, size - rank, &raw, nullptr), parent.get(),
             "ncclCommSplit in reverse order");
  Communicator reversed(nccl, raw);
  std::uint64_t wrong = 0;
  for (std::uint64_t round = 1; round <= 5; ++round) {
    const auto once = [&](NcclComm comm, std::span<const int> members, std::uint64_t k) {
      const std::size_t shift = round_shift(round * 3 + k);
      start_checked(job, lane, pattern, kBytes, comm, shift);
      wrong += finish_checked(job, lane, pattern, kBytes, comm, shift, members);
    };
    once(parent.get(), everyone, 0);
    once(halves.get(), mates, 1);
    once(reversed.get(), everyone, 2);
  }
  job.watchdog.step(rank, "ncclCommDestroy");
  halves.destroy();
  reversed.destroy();
  parent.destroy();
  wrong = total(job, wrong);
  job.report.verdict("split", wrong == 0,
                     strf("halves, all in reverse order, and the parent, 5 rounds of 1 MiB: %llu "
                          "wrong elements",
                          static_cast<unsigned long long>(wrong)));
}

void run_many_comms(GpuJob& job) {
  const int rank = job.group.rank(), size = job.group.size();
  // Small enough that the kernels of all communicators fit on the GPU together.
  constexpr std::size_t kBytes = 256U << 10;
  Pattern pattern(kType, ReduceOp::sum, size);
  std::vector<std::unique_ptr<Lane>> lanes;
  std::vector<std::unique_ptr<Communicator>> comms;
  for (int k = 0; k < job.options.comms; ++k) {
    job.report.progress(static_cast<double>(k) / job.options.comms, "making communicators");
    lanes.push_back(std::make_unique<Lane>(job, kBytes));
    comms.push_back(std::make_unique<Communicator>(job.apis.nccl, rank, size, shared_id(job)));
  }
  constexpr std::uint64_t kRounds = 10;
  std::uint64_t wrong = 0;
  for (std::uint64_t round = 0; round < kRounds; ++round) {
    job.watchdog.step(rank, "all_reduce on many communicators");
    const auto shift = [&](std::size_t k) { return round_shift(round * 64 + k); };
    for (std::size_t k = 0; k < comms.size(); ++k) {
      start_checked(job, *lanes[k], pattern, kBytes, comms[k]->get(), shift(k));
    }
    for (std::size_t k = 0; k < comms.size(); ++k) {
      wrong += finish_checked(job, *lanes[k], pattern, kBytes, comms[k]->get(), shift(k), {});
    }
  }
  job.watchdog.step(rank, "ncclCommDestroy");
  for (auto& comm : comms) comm->destroy();
  wrong = total(job, wrong);
  job.report.verdict("many-comms", wrong == 0,
                     strf("%d communicators at once, %llu rounds of 256 KiB: %llu wrong elements",
                          job.options.comms, static_cast<unsigned long long>(kRounds),
                          static_cast<unsigned long long>(wrong)));
}

// NCCL lets go of the plugin with the last communicator; 2.28 and 2.29 forget its name then.
void run_again(GpuJob& job) {
  const int rank = job.group.rank(), size = job.group.size();
  constexpr std::size_t kBytes = 1U << 20;
  constexpr std::uint64_t kLives = 4;
  Pattern pattern(kType, ReduceOp::sum, size);
  Lane lane(job, kBytes);
  std::uint64_t wrong = 0;
  for (std::uint64_t life = 0; life < kLives; ++life) {
    Communicator comm(job.apis.nccl, rank, size, shared_id(job));
    start_checked(job, lane, pattern, kBytes, comm.get(), round_shift(life));
    wrong += finish_checked(job, lane, pattern, kBytes, comm.get(), round_shift(life), {});
    job.watchdog.step(rank, "ncclCommDestroy");
    comm.destroy();
    // Of ranks in one process the last frees all.
    job.group.barrier();
  }
  wrong = total(job, wrong);
  job.report.verdict(
      "again", wrong == 0,
      strf("%llu communicators, each made when the last was gone: %llu wrong "
           "elements of 1 MiB",
           static_cast<unsigned long long>(kLives), static_cast<unsigned long long>(wrong)));
}

// Enough queued all-reduces that they are still running when the test acts.
void start_traffic(GpuJob& job, Lane& lane, std::size_t bytes, NcclComm comm) {
  const Plan plan =
      make_plan(Collective::all_reduce, bytes, kElement, job.group.rank(), job.group.size(), 0);
  for (int i = 0; i < 300; ++i) {
    start_collective(job.apis.nccl, plan, kType, ReduceOp::sum, lane.send.address(),
                     lane.recv.address(), comm, job.group.rank(), job.group.size(),
                     lane.stream.get());
  }
}

void run_abort(GpuJob& job) {
  const int rank = job.group.rank(), size = job.group.size();
  constexpr std::size_t kBytes = 256U << 20;
  Pattern pattern(kType, ReduceOp::sum, size);
  Lane lane(job, kBytes);
  Communicator comm(job.apis.nccl, rank, size, shared_id(job));
  start_checked(job, lane, pattern, 1U << 20, comm.get(), 1);
  std::uint64_t wrong = finish_checked(job, lane, pattern, 1U << 20, comm.get(), 1, {});
  job.group.barrier();
  start_traffic(job, lane, kBytes, comm.get());
  usleep(30000);
  const bool running = job.apis.cuda.stream_query(lane.stream.get()) == gpu::cuda::kNotReady;
  job.watchdog.step(rank, "ncclCommAbort");
  const std::int64_t begin = now_ns();
  comm.abort();
  NcclResult unused = kNcclSuccess;
  const bool idle = wait_stream(job.apis, lane.stream.get(), nullptr, job.options.timeout_s,
                                unused) == Waited::done;
  const double took_s = static_cast<double>(now_ns() - begin) / 1e9;
  // The plugin has to be as good as new afterwards.
  Communicator again(job.apis.nccl, rank, size, shared_id(job));
  start_checked(job, lane, pattern, 1U << 20, again.get(), 2);
  wrong += finish_checked(job, lane, pattern, 1U << 20, again.get(), 2, {});
  again.destroy();
  wrong = total(job, wrong);
  const std::uint64_t over = total(job, running ? 0 : 1);
  const std::uint64_t stuck = total(job, idle ? 0 : 1);
  job.report.verdict(
      "abort", wrong == 0 && over == 0 && stuck == 0,
      strf("aborted in the middle of 300 x 256 MiB in %.2f s on rank 0; %llu ranks had nothing "
           "running, %llu did not come to rest; a new communicator: %llu wrong elements",
           took_s, static_cast<unsigned long long>(over), static_cast<unsigned long long>(stuck),
           static_cast<unsigned long long>(wrong)));
}

void run_kill(GpuJob& job) {
  const int rank = job.group.rank(), size = job.group.size();
  const int victim = size - 1;
  constexpr std::size_t kBytes = 64U << 20;
  Pattern pattern(kType, ReduceOp::sum, size);
  Lane lane(job, kBytes);
  Communicator comm(job.apis.nccl, rank, size, shared_id(job));
  start_checked(job, lane, pattern, kBytes, comm.get(), 1);
  std::uint64_t wrong = finish_checked(job, lane, pattern, kBytes, comm.get(), 1, {});
  wrong = total(job, wrong);
  if (rank == victim) {
    start_traffic(job, lane, kBytes, comm.get());
    usleep(30000);
    const std::int64_t now = now_ns();  // one clock for all processes of a host
    job.group.send_to(0, &now, sizeof now);
    kill(getpid(), SIGKILL);
  }
  job.watchdog.step(rank, "waiting for the error after a rank was killed");
  // Without end: only the error may end it.
  start_traffic(job, lane, kBytes, comm.get());
  NcclResult error = kNcclSuccess;
  const Waited waited =
      wait_stream(job.apis, lane.stream.get(), comm.get(), kDetectLimitS + 5, error);
  struct Seen {
    std::int64_t at;
    std::int32_t waited, error;
  };
  const Seen mine{now_ns(), static_cast<std::int32_t>(waited), error};
  job.watchdog.step(rank, "ncclCommAbort after a rank was killed");
  comm.abort();
  if (rank != 0) {
    job.group.send_to(0, &mine, sizeof mine);
    return;
  }
  std::int64_t killed_at = 0;
  job.group.receive_from(victim, &killed_at, sizeof killed_at);
  bool passed = wrong == 0;
  std::string detail = strf("rank %d was killed;", victim);
  for (int r = 0; r < victim; ++r) {
    Seen seen = mine;
    if (r != 0) job.group.receive_from(r, &seen, sizeof seen);
    const double after_s = static_cast<double>(seen.at - killed_at) / 1e9;
    const bool noticed = seen.waited == static_cast<std::int32_t>(Waited::failed);
    passed = passed && noticed && after_s <= kDetectLimitS;
    detail += noticed ? strf(" rank %d: \"%s\" after %.2f s;", r,
                             job.apis.nccl.GetErrorString(seen.error), after_s)
                      : strf(" rank %d: no error within %.0f s;", r, kDetectLimitS + 5);
  }
  job.report.verdict("kill", passed, detail + strf(" limit %.0f s", kDetectLimitS));
}

}  // namespace

void run_gpu_scenario(GpuJob& job) {
  switch (job.options.scenario) {
    case Scenario::none:
      return;
    case Scenario::split:
      return run_split(job);
    case Scenario::many_comms:
      return run_many_comms(job);
    case Scenario::again:
      return run_again(job);
    case Scenario::abort:
      return run_abort(job);
    case Scenario::kill:
      return run_kill(job);
  }
}

}  // namespace twinpath::coll
