// ncclTunerPlugin_v3 and _v4: a library of its own, because a tuner in the plugin itself would be
// NCCL's on real adapters, too, where it has nothing to say and switches off what NCCL does only
// without one (2.27 on: NCCL_CTA_POLICY).  On the soft HCA the plugin names it to NCCL (tuning.cc).
//
// Threads: one communicator's calls come one at a time; nothing is shared between communicators.
#include <cstdlib>
#include <new>

#include "plugin/base/options.h"
#include "plugin/nccl/tuner/choice.h"

namespace twinpath::tuner {
namespace {

using namespace twinpath::abi;

struct Communicator {
  std::size_t ranks = 0;
  Memory memory = Memory::gpu;
};

// By the setting, which all ranks share, and not by what this one's adapter has: ranks that choose
// differently hang.
Memory configured() {
  const Config config = read_config([](const char* name) { return std::getenv(name); });
  return config.soft_cuda == SoftCuda::off ? Memory::host : Memory::gpu;
}

// Where ranks share a node NCCL's own choice stays: its rings are not all network.
ncclResult_t init(std::size_t ranks, std::size_t nodes, ncclDebugLogger_t, void** context) {
  if (context == nullptr) return ncclInvalidArgument;
  *context = nullptr;
  if (ranks == nodes) *context = new (std::nothrow) Communicator{ranks, configured()};
  return ncclSuccess;
}

ncclResult_t advise_v3(void* context, ncclFunc_t function, std::size_t bytes, int, float** costs,
                       int algorithms, int protocols, int* channels) {
  if (context == nullptr || costs == nullptr) return ncclSuccess;
  const auto& c = *static_cast<const Communicator*>(context);
  const Choice choice = choose(function, bytes, c.ranks, c.memory);
  rule_out(choice, reinterpret_cast<float*>(costs), algorithms, protocols);
  if (channels != nullptr && choice.channels != 0) *channels = choice.channels;
  return ncclSuccess;
}

ncclResult_t advise_v4(void* context, ncclFunc_t function, std::size_t bytes, int pipelined,
                       float** costs, int algorithms, int protocols, int, int* channels) {
  return advise_v3(context, function, bytes, pipelined, costs, algorithms, protocols, channels);
}

ncclResult_t destroy(void* context) {
  delete static_cast<Communicator*>(context);
  return ncclSuccess;
}

}  // namespace
}  // namespace twinpath::tuner

extern "C" {
[[gnu::visibility("default")]] extern const twinpath::abi::ncclTuner_v3_t ncclTunerPlugin_v3;
[[gnu::visibility("default")]] extern const twinpath::abi::ncclTuner_v4_t ncclTunerPlugin_v4;
const twinpath::abi::ncclTuner_v3_t ncclTunerPlugin_v3 = {
    "Twinpath soft HCA", twinpath::tuner::init, twinpath::tuner::advise_v3,
    twinpath::tuner::destroy};
const twinpath::abi::ncclTuner_v4_t ncclTunerPlugin_v4 = {
    "Twinpath soft HCA", twinpath::tuner::init, twinpath::tuner::advise_v4,
    twinpath::tuner::destroy};
}
