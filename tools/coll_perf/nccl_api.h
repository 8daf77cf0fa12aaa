#pragma once
// The few NCCL functions this tool calls, looked up at run time so that it builds and starts
// where NCCL is absent.  Names, numbers and signatures are NCCL's public ones (2.19 and later).
//
// Threads: the table is read-only after open().
#include <cstddef>
#include <string>

#include "tools/coll_perf/cuda_api.h"  // CuStream

namespace twinpath::coll {

struct NcclUniqueId {
  char bytes[128];
};
using NcclComm = struct NcclCommOpaque*;
using NcclResult = int;  // 0 success, 7 in progress
inline constexpr NcclResult kNcclSuccess = 0;
inline constexpr NcclResult kNcclInProgress = 7;

struct NcclApi {
  NcclResult (*GetVersion)(int*);
  NcclResult (*GetUniqueId)(NcclUniqueId*);
  NcclResult (*CommInitRank)(NcclComm*, int ranks, NcclUniqueId, int rank);
  NcclResult (*CommDestroy)(NcclComm);
  NcclResult (*CommAbort)(NcclComm);
  NcclResult (*CommGetAsyncError)(NcclComm, NcclResult*);
  const char* (*GetErrorString)(NcclResult);
  NcclResult (*AllReduce)(const void*, void*, std::size_t, int type, int op, NcclComm, CuStream);
  NcclResult (*AllGather)(const void*, void*, std::size_t, int type, NcclComm, CuStream);
  NcclResult (*ReduceScatter)(const void*, void*, std::size_t, int type, int op, NcclComm,
                              CuStream);
  NcclResult (*Broadcast)(const void*, void*, std::size_t, int type, int root, NcclComm, CuStream);
  NcclResult (*Send)(const void*, std::size_t, int type, int peer, NcclComm, CuStream);
  NcclResult (*Recv)(void*, std::size_t, int type, int peer, NcclComm, CuStream);
  NcclResult (*GroupStart)();
  NcclResult (*GroupEnd)();
  // May be null.
  const char* (*GetLastError)(NcclComm);
  NcclResult (*CommSplit)(NcclComm, int color, int key, NcclComm*, void* config);
  NcclResult (*MemAlloc)(void**, std::size_t);
  NcclResult (*MemFree)(void*);
  NcclResult (*CommRegister)(NcclComm, void*, std::size_t, void** handle);
  NcclResult (*CommDeregister)(NcclComm, void* handle);

  int version = 0;   // 2.28.9 = 22809
  std::string file;  // what was opened

  // Empty path: libnccl.so.2 of the loader's search path.  Throws ToolError when it is missing,
  // not NCCL, or older than 2.19.
  static NcclApi open(const std::string& path);
  std::string version_text() const;
  // Throws for anything but success; `what` names the object and the operation.
  void check(NcclResult result, NcclComm comm, const std::string& what) const;
  std::string describe(NcclResult result, NcclComm comm) const;
};

}  // namespace twinpath::coll
