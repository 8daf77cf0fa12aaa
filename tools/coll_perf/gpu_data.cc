#include "tools/coll_perf/gpu_data.h"

#include <algorithm>
#include <cstring>

#include "tools/coll_perf/error.h"

namespace twinpath::coll {
namespace {

// -1 in the integers, a negative number in the floats; data are not negative.
constexpr unsigned char kPoison = 0xff;

}  // namespace

GpuData::GpuData(const Apis& apis, CuStream stream, double timeout_s)
    : apis_(apis), stream_(stream), timeout_s_(timeout_s), pinned_(apis.cuda, 2 * kChunkBytes) {}

const std::byte* GpuData::source(Pattern& pattern, const Segment& s, std::size_t offset,
                                 std::span<const int> members) {
  if (s.source != kReduced) return pattern.data(s.source, s.from + offset);
  return members.empty() ? pattern.reduced(s.from + offset)
                         : pattern.reduced(members, s.from + offset);
}

void GpuData::wait(const char* what) {
  NcclResult unused = kNcclSuccess;
  if (wait_stream(apis_, stream_, nullptr, timeout_s_, unused) != Waited::done) {
    throw ToolError(kExitFailed,
                    strf("%s did not finish within %g s; raise --timeout", what, timeout_s_));
  }
}

void GpuData::fill(CuDevicePtr to, Pattern& pattern, std::span<const Segment> segments) {
  const std::size_t element = pattern.element_bytes();
  const std::size_t step = kChunkBytes / element;
  for (const Segment& s : segments) {
    for (std::size_t done = 0; done < s.count; done += step) {
      const std::size_t bytes = std::min(step, s.count - done) * element;
      std::memcpy(pinned_.data(), source(pattern, s, done, {}), bytes);
      apis_.cuda.check(
          apis_.cuda.copy_in_async(to + (s.at + done) * element, pinned_.data(), bytes, stream_),
          "copying test data to the GPU");
      wait("copying test data to the GPU");
    }
  }
}

void GpuData::poison(CuDevicePtr to, std::size_t bytes) {
  apis_.cuda.check(apis_.cuda.set_bytes_async(to, kPoison, bytes, stream_), "filling GPU memory");
}

std::uint64_t GpuData::count_wrong(CuDevicePtr from, Pattern& pattern,
                                   std::span<const Segment> segments, std::string& first,
                                   std::span<const int> members) {
  const std::size_t element = pattern.element_bytes();
  const std::size_t step = kChunkBytes / element;
  std::uint64_t wrong = 0;
  for (const Segment& s : segments) {
    const auto fetch = [&](std::size_t done) {
      const std::size_t count = std::min(step, s.count - done);
      apis_.cuda.check(
          apis_.cuda.copy_out_async(pinned_.data() + (done / step % 2) * kChunkBytes,
                                    from + (s.at + done) * element, count * element, stream_),
          "copying results from the GPU");
    };
    fetch(0);
    for (std::size_t done = 0; done < s.count; done += step) {
      wait("copying results from the GPU");
      if (done + step < s.count) fetch(done + step);  // runs while this piece is compared
      wrong += coll::count_wrong(pattern.type(), pinned_.data() + (done / step % 2) * kChunkBytes,
                                 source(pattern, s, done, members), std::min(step, s.count - done),
                                 s.at + done, first);
    }
  }
  return wrong;
}

std::uint64_t GpuData::count_touched(CuDevicePtr from, std::size_t bytes) {
  apis_.cuda.check(apis_.cuda.copy_out_async(pinned_.data(), from, bytes, stream_),
                   "copying results from the GPU");
  wait("copying results from the GPU");
  return static_cast<std::uint64_t>(std::count_if(
      pinned_.data(), pinned_.data() + bytes, [](std::byte b) { return b != std::byte{kPoison}; }));
}

void start_collective(const NcclApi& nccl, const Plan& plan, DataType type, ReduceOp op,
                      CuDevicePtr send, CuDevicePtr recv, NcclComm comm, int rank, int ranks,
                      CuStream stream) {
  const int t = static_cast<int>(type);
  const int o = static_cast<int>(op);
  const auto* in = reinterpret_cast<const std::byte*>(send);
  auto* out = reinterpret_cast<std::byte*>(recv);
  const auto check = [&](NcclResult result) {
    nccl.check(
        result, comm,
        strf("rank %d, %s of %zu bytes", rank, collective_name(plan.collective), plan.bytes));
  };
  switch (plan.collective) {
    case Collective::all_reduce:
      return check(nccl.AllReduce(in, out, plan.count, t, o, comm, stream));
    case Collective::all_gather:
      return check(nccl.AllGather(in, out, plan.count, t, comm, stream));
    case Collective::reduce_scatter:
      return check(nccl.ReduceScatter(in, out, plan.count, t, o, comm, stream));
    case Collective::broadcast:
      return check(nccl.Broadcast(in, out, plan.count, t, plan.root, comm, stream));
    case Collective::sendrecv:
      check(nccl.GroupStart());
      check(nccl.Send(in, plan.count, t, (rank + 1) % ranks, comm, stream));
      check(nccl.Recv(out, plan.count, t, (rank + ranks - 1) % ranks, comm, stream));
      return check(nccl.GroupEnd());
    case Collective::alltoall: {
      const std::size_t block = plan.count * type_info(type).bytes;
      check(nccl.GroupStart());
      for (int peer = 0; peer < ranks; ++peer) {
        const std::size_t at = static_cast<std::size_t>(peer) * block;
        check(nccl.Send(in + at, plan.count, t, peer, comm, stream));
        check(nccl.Recv(out + at, plan.count, t, peer, comm, stream));
      }
      return check(nccl.GroupEnd());
    }
  }
}

}  // namespace twinpath::coll
