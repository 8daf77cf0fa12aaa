#include "tools/gda_perf/nccl_api.h"

#include "tools/common/nccl_library.h"
#include "tools/gda_perf/error.h"

namespace twinpath::gda_perf {
namespace {

constexpr const char* kGinAdvice =
    "; NCCL has a GIN plugin when NCCL_NET_PLUGIN=/path/to/libnccl-net.so (or --plugin) names one, "
    "a device when that finds an adapter or TWINPATH_FABRIC=soft makes one, and nothing else "
    "interferes (NCCL_GIN_ENABLE=0, NCCL_GIN_TYPE, NCCL_CUMEM_ENABLE=0); NCCL_DEBUG=INFO and "
    "NCCL_DEBUG_SUBSYS=INIT,NET tell which";

}  // namespace

NcclApi NcclApi::open(const std::string& path) {
  const tools::NcclLibrary library(path, "2.28",
                                   "install NCCL " + tools::nccl_version_text(NCCL_VERSION_CODE) +
                                       ", set LD_LIBRARY_PATH or give --nccl PATH");
  NcclApi api{};
  api.file = library.file();
  library.find("ncclGetVersion", api.get_version);
  if (api.get_version(&api.version) != ncclSuccess) api.version = 0;
  // GIN is looked up from 2.28.7 on; device structures change from minor to minor release.
  if (api.version < 22807 || api.version / 100 != NCCL_VERSION_CODE / 100) {
    throw ToolError(kExitMissing,
                    api.file + " is NCCL " + tools::nccl_version_text(api.version) +
                        ", but these kernels were compiled for the device structures "
                        "of " +
                        tools::nccl_version_text(NCCL_VERSION_CODE) +
                        "; give another library with --nccl PATH, or compile with its "
                        "headers");
  }
  library.find("ncclGetUniqueId", api.get_unique_id);
  library.find("ncclGetErrorString", api.get_error_string);
  library.find("ncclGetLastError", api.get_last_error);
  library.find("ncclCommInitRank", api.comm_init_rank);
  library.find("ncclCommDestroy", api.comm_destroy);
  library.find("ncclCommGetAsyncError", api.comm_get_async_error);
  library.find("ncclMemAlloc", api.mem_alloc);
  library.find("ncclMemFree", api.mem_free);
  library.find("ncclCommWindowRegister", api.window_register);
  library.find("ncclCommWindowDeregister", api.window_deregister);
  library.find("ncclDevCommCreate", api.dev_comm_create);
  library.find("ncclDevCommDestroy", api.dev_comm_destroy);
  return api;
}

std::string NcclApi::version_text() const { return tools::nccl_version_text(version); }

void NcclApi::check(ncclResult_t result, const std::string& what, ncclComm_t comm) const {
  if (result == ncclSuccess) return;
  throw ToolError(
      kExitFailed,
      what + ": " + tools::nccl_error_text(result, get_error_string(result), get_last_error(comm)) +
          kGinAdvice);
}

std::string NcclApi::complaint(ncclComm_t comm) const {
  ncclResult_t state = ncclSuccess;
  if (comm == nullptr || comm_get_async_error(comm, &state) != ncclSuccess) return "";
  if (state == ncclSuccess || state == ncclInProgress) return "";
  return std::string("; NCCL reports: ") + get_error_string(state);
}

ncclDevCommRequirements gin_requirements(int contexts, int signals,
                                         [[maybe_unused]] bool window_signals) {
#ifdef NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER  // since 2.29
  ncclDevCommRequirements out = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
#else
  ncclDevCommRequirements out{};
#endif
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 29, 7)
  out.ginConnectionType = NCCL_GIN_CONNECTION_FULL;
#else
  out.ginForceEnable = true;
#endif
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 30, 7)
  out.ginVaSignalsRequired = window_signals;
#endif
  out.ginContextCount = contexts;
  out.ginSignalCount = signals;
  return out;
}

}  // namespace twinpath::gda_perf
