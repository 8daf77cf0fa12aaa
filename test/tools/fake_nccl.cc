// Stands in for libnccl.so.2: loads, tells the version in FAKE_NCCL_VERSION (22809 = 2.28.9), or
// else the one that it was built as, and refuses everything else, so that what checks NCCL can be
// tested without one.
#include <cstdlib>

#ifndef FAKE_VERSION
#define FAKE_VERSION 22809
#endif

extern "C" int ncclGetVersion(int* version) {
  const char* text = std::getenv("FAKE_NCCL_VERSION");
  *version = text != nullptr ? std::atoi(text) : FAKE_VERSION;
  return 0;
}

extern "C" const char* ncclGetErrorString(int) { return "this NCCL is a stand-in"; }

#define FAKE_ENTRY(name) \
  extern "C" int name() { return 3; }  // ncclInternalError

FAKE_ENTRY(ncclGetUniqueId)
FAKE_ENTRY(ncclCommInitRank)
FAKE_ENTRY(ncclCommDestroy)
FAKE_ENTRY(ncclCommAbort)
FAKE_ENTRY(ncclCommGetAsyncError)
FAKE_ENTRY(ncclAllReduce)
FAKE_ENTRY(ncclAllGather)
FAKE_ENTRY(ncclReduceScatter)
FAKE_ENTRY(ncclBroadcast)
FAKE_ENTRY(ncclSend)
FAKE_ENTRY(ncclRecv)
FAKE_ENTRY(ncclGroupStart)
FAKE_ENTRY(ncclGroupEnd)
