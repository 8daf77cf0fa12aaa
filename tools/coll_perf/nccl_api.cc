#include "tools/coll_perf/nccl_api.h"

#include "tools/coll_perf/error.h"
#include "tools/common/nccl_library.h"

namespace twinpath::coll {

NcclApi NcclApi::open(const std::string& path) {
  const tools::NcclLibrary library(path, "2.19",
                                   "install libnccl2, set LD_LIBRARY_PATH or give --nccl PATH; "
                                   "without GPUs use --cpu 4");
  NcclApi api{};
  api.file = library.file();
  library.find("ncclGetVersion", api.GetVersion);
  const NcclResult result = api.GetVersion(&api.version);
  if (result != kNcclSuccess || api.version < 21900) {
    throw ToolError(kExitMissing, strf("%s is NCCL %s, too old: 2.19 or newer is needed; give "
                                       "another one with --nccl PATH",
                                       api.file.c_str(), api.version_text().c_str()));
  }
  library.find("ncclGetUniqueId", api.GetUniqueId);
  library.find("ncclCommInitRank", api.CommInitRank);
  library.find("ncclCommDestroy", api.CommDestroy);
  library.find("ncclCommAbort", api.CommAbort);
  library.find("ncclCommGetAsyncError", api.CommGetAsyncError);
  library.find("ncclGetErrorString", api.GetErrorString);
  library.find("ncclAllReduce", api.AllReduce);
  library.find("ncclAllGather", api.AllGather);
  library.find("ncclReduceScatter", api.ReduceScatter);
  library.find("ncclBroadcast", api.Broadcast);
  library.find("ncclSend", api.Send);
  library.find("ncclRecv", api.Recv);
  library.find("ncclGroupStart", api.GroupStart);
  library.find("ncclGroupEnd", api.GroupEnd);
  library.find_optional("ncclGetLastError", api.GetLastError);
  library.find_optional("ncclCommSplit", api.CommSplit);
  library.find_optional("ncclMemAlloc", api.MemAlloc);
  library.find_optional("ncclMemFree", api.MemFree);
  library.find_optional("ncclCommRegister", api.CommRegister);
  library.find_optional("ncclCommDeregister", api.CommDeregister);
  return api;
}

std::string NcclApi::version_text() const { return tools::nccl_version_text(version); }

std::string NcclApi::describe(NcclResult result, NcclComm comm) const {
  return tools::nccl_error_text(result, GetErrorString(result),
                                GetLastError != nullptr ? GetLastError(comm) : nullptr);
}

void NcclApi::check(NcclResult result, NcclComm comm, const std::string& what) const {
  if (result == kNcclSuccess) return;
  throw ToolError(kExitFailed,
                  what + ": " + describe(result, comm) + "; set NCCL_DEBUG=WARN to see the cause");
}

}  // namespace twinpath::coll
