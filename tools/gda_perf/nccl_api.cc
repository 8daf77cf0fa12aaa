#include "tools/gda_perf/nccl_api.h"

#include <dlfcn.h>

#include "tools/gda_perf/error.h"

namespace twinpath::gda_perf {
namespace {

constexpr const char* kGinAdvice =
    "; NCCL has a GIN plugin when NCCL_NET_PLUGIN=/path/to/libnccl-net.so (or --plugin) names one, "
    "a device when that finds an adapter or TWINPATH_FABRIC=soft makes one, and nothing else "
    "interferes (NCCL_GIN_ENABLE=0, NCCL_GIN_TYPE, NCCL_CUMEM_ENABLE=0); NCCL_DEBUG=INFO and "
    "NCCL_DEBUG_SUBSYS=INIT,NET tell which";

template <class F>
void look_up(void* library, const char* name, F& function, const std::string& file) {
  function = reinterpret_cast<F>(dlsym(library, name));
  if (function == nullptr) {
    throw Failed(kExitMissing, file + " has no " + name +
                                   ": it is not NCCL, or older than 2.28; give another one with "
                                   "--nccl PATH");
  }
}

std::string text_of(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

}  // namespace

NcclApi NcclApi::open(const std::string& path) {
  NcclApi api{};
  api.file = path.empty() ? "libnccl.so.2" : path;
  void* library = dlopen(api.file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    throw Failed(kExitMissing, std::string("NCCL cannot be opened (") +
                                   (why != nullptr ? why : api.file.c_str()) + "); install NCCL " +
                                   text_of(NCCL_VERSION_CODE) +
                                   ", set LD_LIBRARY_PATH or give --nccl PATH");
  }
  look_up(library, "ncclGetVersion", api.get_version, api.file);
  if (api.get_version(&api.version) != ncclSuccess) api.version = 0;
  // GIN is looked up from 2.28.7 on; device structures change from minor to minor release.
  if (api.version < 22807 || api.version / 100 != NCCL_VERSION_CODE / 100) {
    throw Failed(kExitMissing, api.file + " is NCCL " + text_of(api.version) +
                                   ", but these kernels were compiled for the device structures "
                                   "of " +
                                   text_of(NCCL_VERSION_CODE) +
                                   "; give another library with --nccl PATH, or compile with its "
                                   "headers");
  }
  look_up(library, "ncclGetUniqueId", api.get_unique_id, api.file);
  look_up(library, "ncclGetErrorString", api.get_error_string, api.file);
  look_up(library, "ncclGetLastError", api.get_last_error, api.file);
  look_up(library, "ncclCommInitRank", api.comm_init_rank, api.file);
  look_up(library, "ncclCommDestroy", api.comm_destroy, api.file);
  look_up(library, "ncclCommGetAsyncError", api.comm_get_async_error, api.file);
  look_up(library, "ncclMemAlloc", api.mem_alloc, api.file);
  look_up(library, "ncclMemFree", api.mem_free, api.file);
  look_up(library, "ncclCommWindowRegister", api.window_register, api.file);
  look_up(library, "ncclCommWindowDeregister", api.window_deregister, api.file);
  look_up(library, "ncclDevCommCreate", api.dev_comm_create, api.file);
  look_up(library, "ncclDevCommDestroy", api.dev_comm_destroy, api.file);
  return api;
}

std::string NcclApi::version_text() const { return text_of(version); }

void NcclApi::check(ncclResult_t result, const std::string& what, ncclComm_t comm) const {
  if (result == ncclSuccess) return;
  std::string text =
      what + ": NCCL error " + std::to_string(result) + " (" + get_error_string(result) + ")";
  const char* last = get_last_error(comm);
  if (last != nullptr && *last != '\0') text += std::string(", last: ") + last;
  while (text.back() == '\n') text.pop_back();
  throw Failed(kExitFailed, text + kGinAdvice);
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
