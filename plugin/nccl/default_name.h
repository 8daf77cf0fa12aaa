#pragma once
// Lets NCCL 2.28.3 to 2.29.7 find this plugin again.
//
// Those releases unload a net plugin with their last communicator and forget its name with it: for
// the next communicator they open "libnccl-net.so" (plugin/net.cc, ncclNetPluginUnload clears the
// entry; plugin/plugin_open.cc).  A plugin that NCCL_NET_PLUGIN named by path or as "twinpath" is
// not found so, and the job goes on over sockets, or with NCCL_NET=Twinpath not at all.
// NCCL_NET_PLUGIN_REF_COUNT=1 keeps it loaded, but NCCL reads that before it opens a plugin.
#include <string>

namespace twinpath {

// `nccl`: as ncclGetVersion counts.
constexpr bool forgets_names(int nccl) { return nccl >= 22803 && nccl <= 22907; }

// From now on dlopen("libnccl-net.so") finds `folder`/libnccl-net-again.so wherever the loader
// looks else: its soname is that name, and it holds nothing but a dependency on this library, in
// which dlsym then looks.  Our own soname must be another one, see meson.build.  If nothing, or
// another library, is found under that name, the log says so: a warning where `nccl` (caller.h, 0:
// not known) needs it.  Calls dlopen.
void keep_default_name(const std::string& folder, int nccl);

}  // namespace twinpath
