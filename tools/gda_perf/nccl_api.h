#pragma once
// The few NCCL calls of this tool, looked up in the library at run time: so it starts without
// NCCL, says which one it found, and runs on machines where it was not built.
//
// Threads: immutable after open().  The library stays loaded: NCCL keeps threads of its own.
#include <nccl.h>
#include <nccl_device.h>

#include <string>

namespace twinpath::gda_perf {

struct NcclApi {
  // `path` empty: libnccl.so.2.  Throws ToolError when there is none, or when its device structures
  // are not those that the kernels were compiled for.
  static NcclApi open(const std::string& path);

  std::string file;
  int version = 0;
  std::string version_text() const;
  // Throws ToolError with NCCL's words, and what to set where that is known.
  void check(ncclResult_t result, const std::string& what, ncclComm_t comm = nullptr) const;
  // What NCCL says of a communicator on which something went wrong; "" when nothing.
  std::string complaint(ncclComm_t comm) const;

  decltype(&ncclGetVersion) get_version;
  decltype(&ncclGetUniqueId) get_unique_id;
  decltype(&ncclGetErrorString) get_error_string;
  decltype(&ncclGetLastError) get_last_error;
  decltype(&ncclCommInitRank) comm_init_rank;
  decltype(&ncclCommDestroy) comm_destroy;
  decltype(&ncclCommGetAsyncError) comm_get_async_error;
  decltype(&ncclMemAlloc) mem_alloc;
  decltype(&ncclMemFree) mem_free;
  decltype(&ncclCommWindowRegister) window_register;
  decltype(&ncclCommWindowDeregister) window_deregister;
  decltype(&ncclDevCommCreate) dev_comm_create;
  decltype(&ncclDevCommDestroy) dev_comm_destroy;
};

// A device communicator that uses GIN, by the names of the NCCL this is built with.
ncclDevCommRequirements gin_requirements(int contexts, int signals, bool window_signals);

}  // namespace twinpath::gda_perf
