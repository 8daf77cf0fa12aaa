#include "tools/coll_perf/nccl_api.h"

#include <dlfcn.h>

#include "tools/coll_perf/error.h"

namespace twinpath::coll {
namespace {

template <class F>
void look_up(void* library, const char* name, F& function, bool required, const std::string& file) {
  function = reinterpret_cast<F>(dlsym(library, name));
  if (function == nullptr && required) {
    throw ToolError(kExitMissing, file + " has no " + name +
                                      ": it is not NCCL, or older than 2.19; give another one "
                                      "with --nccl PATH");
  }
}

}  // namespace

NcclApi NcclApi::open(const std::string& path) {
  const std::string file = path.empty() ? "libnccl.so.2" : path;
  // Never closed: NCCL keeps threads until the process ends.
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    throw ToolError(kExitMissing,
                    strf("NCCL cannot be opened (%s); install libnccl2, set LD_LIBRARY_PATH or "
                         "give --nccl PATH; without GPUs use --cpu 4",
                         why != nullptr ? why : file.c_str()));
  }
  NcclApi api{};
  api.file = file;
  look_up(library, "ncclGetVersion", api.GetVersion, true, file);
  const NcclResult result = api.GetVersion(&api.version);
  if (result != kNcclSuccess || api.version < 21900) {
    throw ToolError(kExitMissing, strf("%s is NCCL %s, too old: 2.19 or newer is needed; give "
                                       "another one with --nccl PATH",
                                       file.c_str(), api.version_text().c_str()));
  }
  look_up(library, "ncclGetUniqueId", api.GetUniqueId, true, file);
  look_up(library, "ncclCommInitRank", api.CommInitRank, true, file);
  look_up(library, "ncclCommDestroy", api.CommDestroy, true, file);
  look_up(library, "ncclCommAbort", api.CommAbort, true, file);
  look_up(library, "ncclCommGetAsyncError", api.CommGetAsyncError, true, file);
  look_up(library, "ncclGetErrorString", api.GetErrorString, true, file);
  look_up(library, "ncclAllReduce", api.AllReduce, true, file);
  look_up(library, "ncclAllGather", api.AllGather, true, file);
  look_up(library, "ncclReduceScatter", api.ReduceScatter, true, file);
  look_up(library, "ncclBroadcast", api.Broadcast, true, file);
  look_up(library, "ncclSend", api.Send, true, file);
  look_up(library, "ncclRecv", api.Recv, true, file);
  look_up(library, "ncclGroupStart", api.GroupStart, true, file);
  look_up(library, "ncclGroupEnd", api.GroupEnd, true, file);
  look_up(library, "ncclGetLastError", api.GetLastError, false, file);
  look_up(library, "ncclCommSplit", api.CommSplit, false, file);
  look_up(library, "ncclMemAlloc", api.MemAlloc, false, file);
  look_up(library, "ncclMemFree", api.MemFree, false, file);
  return api;
}

std::string NcclApi::version_text() const {
  // From 2.9 on a release is major * 10000 + minor * 100 + patch, before that 1000.
  if (version >= 10000) {
    return strf("%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
  }
  return strf("%d.%d.%d", version / 1000, version / 100 % 10, version % 100);
}

std::string NcclApi::describe(NcclResult result, NcclComm comm) const {
  std::string text = strf("NCCL error %d (%s)", result, GetErrorString(result));
  const char* last = GetLastError != nullptr ? GetLastError(comm) : nullptr;
  if (last != nullptr && last[0] != '\0') text += std::string(", last: ") + last;
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

void NcclApi::check(NcclResult result, NcclComm comm, const std::string& what) const {
  if (result == kNcclSuccess) return;
  throw ToolError(kExitFailed,
                  what + ": " + describe(result, comm) + "; set NCCL_DEBUG=WARN to see the cause");
}

}  // namespace twinpath::coll
