#pragma once
// NCCL's tuner plugin ABI, versions 3 (NCCL 2.22, 2.23) and 4 (2.24 on; 2.32 still takes it).
// Source: NCCL's src/include/plugin/tuner/tuner_v3.h, tuner_v4.h (2.22: src/include/nccl_tuner.h).
#include <cstddef>
#include <cstdint>

#include "plugin/nccl/abi/types.h"

namespace twinpath::abi {

enum ncclFunc_t : int {
  ncclFuncBroadcast = 0,
  ncclFuncReduce = 1,
  ncclFuncAllGather = 2,
  ncclFuncReduceScatter = 3,
  ncclFuncAllReduce = 4,
};

// Protocols: columns of the cost table.
inline constexpr int kProtoLl = 0, kProtoLl128 = 1, kProtoSimple = 2;
// An entry that must not be chosen.
inline constexpr float kAlgoProtoIgnore = -1.0f;

// `costs` is numAlgo rows of numProto floats, microseconds, whatever its type says.  `nChannels`
// stays 0 where NCCL is to decide.  NCCL gives up the communicator for any result but success.
struct ncclTuner_v3_t {
  const char* name;
  ncclResult_t (*init)(std::size_t nRanks, std::size_t nNodes, ncclDebugLogger_t log,
                       void** context);
  ncclResult_t (*getCollInfo)(void* context, ncclFunc_t function, std::size_t nBytes,
                              int numPipeOps, float** costs, int numAlgo, int numProto,
                              int* nChannels);
  ncclResult_t (*destroy)(void* context);
};

struct ncclTuner_v4_t {
  const char* name;
  ncclResult_t (*init)(std::size_t nRanks, std::size_t nNodes, ncclDebugLogger_t log,
                       void** context);
  ncclResult_t (*getCollInfo)(void* context, ncclFunc_t function, std::size_t nBytes,
                              int numPipeOps, float** costs, int numAlgo, int numProto, int regBuff,
                              int* nChannels);
  ncclResult_t (*destroy)(void* context);
};

static_assert(sizeof(ncclTuner_v3_t) == 32 && sizeof(ncclTuner_v4_t) == 32);
static_assert(offsetof(ncclTuner_v4_t, getCollInfo) == 16 &&
              offsetof(ncclTuner_v4_t, destroy) == 24);

}  // namespace twinpath::abi
