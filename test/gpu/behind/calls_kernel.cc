// Waiting, streams, kernels and graphs.
#include <memory>

#include "test/gpu/behind/calls.h"
#include "test/gpu/behind/gpu.h"
#include "test/gpu/behind/kernels.h"

namespace twinpath::behind {
namespace {

// A word of the GPU that a kernel writes.
struct Word {
  DeviceMemory memory{sizeof(unsigned)};
  unsigned* on_gpu() const { return memory.data<unsigned>(); }
  std::uint64_t wrong(unsigned expected_value) const {
    unsigned value = ~expected_value;
    check(cudaMemcpy(&value, on_gpu(), sizeof value, cudaMemcpyDeviceToHost), "cudaMemcpy");
    return value == expected_value ? 0 : 1;
  }
};

Action just_sync(const Place& place) {
  return {[=](int) { check(cudaStreamSynchronize(place.stream), "cudaStreamSynchronize"); }};
}

Action sync_device(const Place&) {
  return {[](int) { check(cudaDeviceSynchronize(), "cudaDeviceSynchronize"); }};
}

Action sync_event(const Place& place) {
  return {[=](int) {
    cudaEvent_t event = nullptr;
    check(cudaEventCreate(&event), "cudaEventCreate");
    check(cudaEventRecord(event, place.stream), "cudaEventRecord");
    check(cudaEventSynchronize(event), "cudaEventSynchronize");
    check(cudaEventDestroy(event), "cudaEventDestroy");
  }};
}

Action make_streams(const Place&) {
  return {[](int) {
    cudaStream_t stream = nullptr;
    check(cudaStreamCreate(&stream), "cudaStreamCreate");
    check(cudaStreamDestroy(stream), "cudaStreamDestroy");
  }};
}

Action default_stream_kernel(const Place&) {
  auto word = std::make_shared<Word>();
  return {[=](int round) {
            launch_store(word->on_gpu(), static_cast<unsigned>(round), cudaStreamLegacy);
            check(cudaGetLastError(), "a kernel on the default stream");
            check(cudaStreamSynchronize(cudaStreamLegacy), "synchronizing the default stream");
          },
          [=](int round) { return word->wrong(static_cast<unsigned>(round)); }};
}

// Which of the kernels nobody has launched, by device: another case of this process may have gone
// before.  Each rank's own thread asks for its own device.
int next_lazy(int device) {
  static int next[64] = {};
  int& mine = next[device % 64];
  if (mine == kLazyKernels) {
    throw tools::Failure("all " + std::to_string(kLazyKernels) +
                         " kernels have been loaded; fewer --rounds, or --fresh");
  }
  return mine++;
}

Action lazy_kernel(const Place& place) {
  auto word = std::make_shared<Word>();
  return {[=](int round) {
            launch_lazy(next_lazy(place.device), word->on_gpu(), static_cast<unsigned>(round),
                        place.stream);
            check(cudaGetLastError(), "the first launch of a kernel");
          },
          [=](int round) { return word->wrong(static_cast<unsigned>(round)); }};
}

// The same on another stream: nothing orders it behind the all-reduce but the driver.
Action lazy_kernel_elsewhere(const Place& place) {
  auto word = std::make_shared<Word>();
  auto stream = std::make_shared<Stream>(cudaStreamNonBlocking);
  return {[=](int round) {
            launch_lazy(next_lazy(place.device), word->on_gpu(), static_cast<unsigned>(round),
                        stream->get());
            check(cudaGetLastError(), "the first launch of a kernel");
            check(cudaStreamSynchronize(stream->get()), "synchronizing the other stream");
          },
          [=](int round) { return word->wrong(static_cast<unsigned>(round)); }};
}

Action graph(const Place& place) {
  auto word = std::make_shared<Word>();
  auto stream = std::make_shared<Stream>(cudaStreamNonBlocking);
  return {[=](int round) {
            // Captured on a stream of its own: the all-reduce is not part of it.
            cudaGraph_t captured = nullptr;
            cudaGraphExec_t ready = nullptr;
            check(cudaStreamBeginCapture(stream->get(), cudaStreamCaptureModeThreadLocal),
                  "cudaStreamBeginCapture");
            launch_store(word->on_gpu(), static_cast<unsigned>(round), stream->get());
            check(cudaStreamEndCapture(stream->get(), &captured), "cudaStreamEndCapture");
            check(cudaGraphInstantiate(&ready, captured, 0), "cudaGraphInstantiate");
            check(cudaGraphLaunch(ready, place.stream), "cudaGraphLaunch");
            check(cudaGraphExecDestroy(ready), "cudaGraphExecDestroy");
            check(cudaGraphDestroy(captured), "cudaGraphDestroy");
          },
          [=](int round) { return word->wrong(static_cast<unsigned>(round)); }};
}

constexpr Call kKernelCalls[] = {
    {"sync", "cudaStreamSynchronize", just_sync},
    {"device-sync", "cudaDeviceSynchronize", sync_device},
    {"event-sync", "cudaEventCreate, Record, Synchronize, Destroy", sync_event},
    {"stream-create", "cudaStreamCreate, cudaStreamDestroy", make_streams},
    {"default-stream-kernel", "a kernel on the default stream, and waiting for it",
     default_stream_kernel},
    {"lazy-kernel", "first launch of a kernel, on the all-reduce's stream", lazy_kernel},
    {"lazy-kernel-elsewhere", "first launch of a kernel, on another stream", lazy_kernel_elsewhere},
    {"graph", "capture, instantiate, launch and destroy a graph", graph},
};

}  // namespace

std::span<const Call> kernel_calls() { return kKernelCalls; }

}  // namespace twinpath::behind
