#include "tools/coll_perf/gpu_bench.h"

#include <algorithm>
#include <cstdio>
#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "tools/coll_perf/error.h"
#include "tools/coll_perf/gpu_data.h"
#include "tools/coll_perf/gpu_graph.h"
#include "tools/common/units.h"

namespace twinpath::coll {
namespace {

// Behind each receive buffer, to find writes past its end.
constexpr std::size_t kGuardBytes = 4096;

class Table {
 public:
  explicit Table(GpuJob& job)
      : job_(job),
        stream_(job.apis.cuda),
        start_(job.apis.cuda),
        stop_(job.apis.cuda),
        send_(job.apis, buffer_bytes(), !job.options.cuda_malloc),
        recv_(job.apis, buffer_bytes(), !job.options.cuda_malloc),
        data_(job.apis, stream_.get(), job.options.timeout_s),
        comm_(job.apis.nccl, job.group.rank(), job.group.size(), shared_id(job)) {
    if (!job.options.registered) return;
    for (const DeviceBuffer* buffer : {&send_, &recv_})
      registered_.emplace_back(job.apis.nccl, comm_.get(), *buffer);
  }

  void run() {
    const Options& o = job_.options;
    const std::size_t total = o.collectives.size() * o.types.size() * o.sizes.size();
    std::size_t done = 0;
    for (const Collective c : o.collectives) {
      job_.report.begin_table(strf("%s, %d ranks", collective_name(c), job_.group.size()));
      for (const DataType type : o.types) {
        Pattern pattern(type, o.op, job_.group.size());
        for (const std::size_t size : o.sizes) {
          job_.report.progress(static_cast<double>(done++) / static_cast<double>(total),
                               strf("%s %s %s", collective_name(c), type_info(type).name,
                                    tools::format_bytes(size).c_str()));
          line(c, pattern, size);
        }
      }
    }
    job_.watchdog.step(job_.group.rank(), "ncclCommDeregister");
    for (Registration& registration : registered_) registration.end();
    job_.watchdog.step(job_.group.rank(), "ncclCommDestroy");
    comm_.destroy();
  }

 private:
  std::size_t buffer_bytes() const {
    // Sizes below one element per rank are rounded up.
    const auto ranks = static_cast<std::size_t>(job_.group.size());
    return std::max(job_.options.max_bytes(), ranks * 8) + kGuardBytes;
  }

  Plan plan(Collective c, const Pattern& pattern, std::size_t size, std::size_t shift) const {
    return make_plan(c, size, pattern.element_bytes(), job_.group.rank(), job_.group.size(), shift);
  }

  void line(Collective c, Pattern& pattern, std::size_t size) {
    Row row;
    row.what = collective_name(c);
    row.type = pattern.type();
    row.op = job_.options.op;
    row.plan = plan(c, pattern, size, 0);
    row.checked = job_.options.checks > 0;
    row.out_of_place = measure(row.plan, pattern, size, false);
    if (row.plan.can_be_in_place) row.in_place = measure(row.plan, pattern, size, true);
    job_.report.row(row);
  }

  void start(const Plan& p, DataType type, bool in_place) {
    const std::size_t element = type_info(type).bytes;
    const CuDevicePtr send =
        in_place ? recv_.address() + p.in_place_send * element : send_.address();
    const CuDevicePtr recv = recv_.address() + (in_place ? p.in_place_recv * element : 0);
    start_collective(job_.apis.nccl, p, type, job_.options.op, send, recv, comm_.get(),
                     job_.group.rank(), job_.group.size(), stream_.get());
  }

  void finish(const Plan& p) {
    NcclResult error = kNcclSuccess;
    const Waited waited =
        wait_stream(job_.apis, stream_.get(), comm_.get(), job_.options.timeout_s, error);
    if (waited == Waited::done) return;
    const std::string what =
        strf("rank %d, %s of %zu bytes", job_.group.rank(), collective_name(p.collective), p.bytes);
    if (waited == Waited::failed) {
      throw ToolError(kExitFailed, what + ": " + job_.apis.nccl.describe(error, comm_.get()) +
                                       "; set NCCL_DEBUG=WARN to see the cause");
    }
    throw ToolError(kExitFailed, strf("%s: not finished after %g s; raise --timeout, or see "
                                      "NCCL_DEBUG=INFO",
                                      what.c_str(), job_.options.timeout_s));
  }

  // Times, then checks, and combines with the other ranks (rank 0 gets the whole).
  Measured measure(const Plan& p, Pattern& pattern, std::size_t size, bool in_place) {
    Measured mine;
    job_.watchdog.step(job_.group.rank(), collective_name(p.collective));
    job_.group.barrier();
    // The same each time, of the rounds of checking too: only what the buffers hold is another.
    std::optional<Recorded> recorded;
    const std::function<void()> start_once = [&] { start(p, pattern.type(), in_place); };
    if (job_.options.graph) recorded.emplace(job_.apis.cuda, stream_.get(), start_once);
    const auto go = [&] { recorded ? recorded->launch() : start_once(); };
    for (int i = 0; i < job_.options.warmup; ++i) go();
    finish(p);
    job_.watchdog.step(job_.group.rank(), collective_name(p.collective));
    job_.group.barrier();
    // One more before the clock starts: ranks leave the barrier at different times.
    go();
    const CudaApi& cuda = job_.apis.cuda;
    cuda.check(cuda.event_record(start_.get(), stream_.get()), "recording an event");
    for (int i = 0; i < job_.options.iterations; ++i) go();
    cuda.check(cuda.event_record(stop_.get(), stream_.get()), "recording an event");
    finish(p);
    float ms = 0;
    cuda.check(cuda.event_elapsed(&ms, start_.get(), stop_.get()), "reading a time");
    mine.time_us = static_cast<double>(ms) * 1e3 / job_.options.iterations;
    for (int i = 0; i < job_.options.checks; ++i) {
      mine.wrong += check(p.collective, pattern, size, in_place, go);
    }
    std::vector<Measured> all(static_cast<std::size_t>(job_.group.size()));
    job_.group.gather(&mine, sizeof mine, all.data());
    if (job_.group.rank() != 0) return mine;
    Measured sum;
    for (const Measured& m : all) {
      sum.time_us += m.time_us / static_cast<double>(all.size());
      sum.wrong += m.wrong;
    }
    return sum;
  }

  std::uint64_t check(Collective c, Pattern& pattern, std::size_t size, bool in_place,
                      const std::function<void()>& go) {
    const std::size_t shift = round_shift(++round_);
    const Plan p = plan(c, pattern, size, shift);
    const std::size_t element = pattern.element_bytes();
    const int rank = job_.group.rank();
    data_.poison(recv_.address(), recv_.bytes());
    const bool sends = p.root < 0 || p.root == rank;
    const Segment input[] = {{in_place ? p.in_place_send : 0, p.send_count, rank, shift}};
    if (in_place ? sends : true) {
      data_.fill(in_place ? recv_.address() : send_.address(), pattern, input);
    }
    data_.wait("preparing data");
    job_.watchdog.step(rank, collective_name(c));
    go();
    finish(p);
    const CuDevicePtr result = recv_.address() + (in_place ? p.in_place_recv * element : 0);
    std::string first;
    std::uint64_t wrong = data_.count_wrong(result, pattern, p.expected, first);
    const std::size_t used = std::max(in_place ? p.send_count : 0, p.recv_count) * element;
    const std::uint64_t past = data_.count_touched(recv_.address() + used, kGuardBytes);
    if (past != 0 && first.empty())
      first = strf("%zu bytes past the end were written", static_cast<std::size_t>(past));
    wrong += past;
    if (wrong != 0 && reported_++ < 5) {
      std::fprintf(stderr, "coll_perf: rank %d: %s %s of %zu bytes, %s: %llu wrong: %s\n", rank,
                   collective_name(c), type_info(pattern.type()).name, p.bytes,
                   in_place ? "in place" : "out of place", static_cast<unsigned long long>(wrong),
                   first.c_str());
    }
    return wrong;
  }

  GpuJob& job_;
  Stream stream_;
  Event start_, stop_;
  DeviceBuffer send_, recv_;
  GpuData data_;
  Communicator comm_;
  std::deque<Registration> registered_;
  std::uint64_t round_ = 0;
  int reported_ = 0;
};

}  // namespace

NcclUniqueId shared_id(GpuJob& job) {
  job.watchdog.step(job.group.rank(), "ncclCommInitRank");
  NcclUniqueId id{};
  if (job.group.rank() == 0) {
    job.apis.nccl.check(job.apis.nccl.GetUniqueId(&id), nullptr, "ncclGetUniqueId");
  }
  job.group.broadcast(&id, sizeof id);
  return id;
}

void run_gpu_table(GpuJob& job) {
  Table table(job);
  table.run();
}

}  // namespace twinpath::coll
