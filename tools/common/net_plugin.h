#pragma once
// Any libnccl-net.so, opened by path as NCCL opens it, behind one interface for all versions of
// its table (v8 to v12).
//
// Threads: as the plugin allows; the object itself is immutable after open().
// Ownership: the library stays loaded and the context initialised until the destructor.
// The wrapper adds one virtual call per operation and nothing else.
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace twinpath::tools {

// ncclResult_t by value: 0 is success.
using NetResult = int;
const char* net_result_name(NetResult r);

using NetHandle = std::array<std::uint8_t, 128>;  // what listen() fills and connect() takes
inline constexpr int kMemoryHost = 1, kMemoryCuda = 2, kMemoryDmabuf = 4;
// Preset of *request: "I need not learn when this receive completes" (v9 and newer).
inline void* optional_completion() { return reinterpret_cast<void*>(std::uintptr_t{1}); }

struct NetProperties {
  std::string name;
  std::string pci_path;  // empty: none
  std::uint64_t guid = 0;
  int memory = 0;  // kMemory* bits
  bool force_flush = false;
  int speed_mbps = 0;
  int port = 0;
  float latency_us = 0;
  int max_comms = 0;
  int max_recvs = 1;
  std::size_t max_bytes = 0;  // one message
  int members = 1;            // ports merged into this device
};

enum class NetLog { kept, warnings, info };  // kept: take_warning() has them, nothing is printed
// The plugin's last warning during this thread's calls since it was last taken; empty: none.
std::string take_warning();
// What the plugin is told of its connections, from net ABI v11 on: that they are those of one
// communicator, and so end together when one fails; or nothing, and each stands alone.
enum class NetJob { communicator, none };

class NetPlugin {
 public:
  // `abi` 0 takes the newest table that exists, as NCCL does.  Null and `why` (object, cause,
  // remedy) when the library cannot be loaded, has no such table or fails to initialise.
  static std::unique_ptr<NetPlugin> open(const std::string& path, int abi, NetLog log,
                                         std::string& why, NetJob job = NetJob::communicator);
  virtual ~NetPlugin() = default;

  virtual int abi() const = 0;
  virtual const char* name() const = 0;

  virtual NetResult devices(int& count) = 0;
  virtual NetResult properties(int device, NetProperties& out) = 0;
  // One device of several, as NCCL merges ports; invalid usage where the table (v8) or the plugin
  // cannot.
  virtual NetResult merge(const std::vector<int>& members, int& device) = 0;
  virtual NetResult listen(int device, NetHandle& handle, void** listen_comm) = 0;
  // Both give success and a null comm while the peer is not ready: call again.
  virtual NetResult connect(int device, NetHandle& handle, void** send_comm) = 0;
  virtual NetResult accept(void* listen_comm, void** recv_comm) = 0;
  virtual NetResult reg_mr(void* comm, void* data, std::size_t bytes, int type, void** memory) = 0;
  virtual NetResult reg_mr_dmabuf(void* comm, void* data, std::size_t bytes, int type,
                                  std::uint64_t offset, int fd, void** memory) = 0;
  virtual NetResult dereg_mr(void* comm, void* memory) = 0;
  // Success and a null request: no room yet, call again with the same arguments.
  virtual NetResult isend(void* comm, void* data, std::size_t bytes, int tag, void* memory,
                          void** request) = 0;
  virtual NetResult irecv(void* comm, int n, void** data, std::size_t* bytes, int* tags,
                          void** memories, void** request) = 0;
  virtual NetResult iflush(void* comm, int n, void** data, int* bytes, void** memories,
                           void** request) = 0;
  virtual NetResult test(void* request, int* done, int* bytes) = 0;
  virtual NetResult close_send(void* comm) = 0;
  virtual NetResult close_recv(void* comm) = 0;
  virtual NetResult close_listen(void* comm) = 0;
};

// The device that `wanted` names: an index, a name, or several of these joined by '+', which are
// merged into one.  -1 and `why` (object, cause, remedy) when there is none.
int find_net_device(NetPlugin& plugin, const std::string& wanted, std::string& why);

// Where the plugin is: `wanted` as NCCL_NET_PLUGIN gives it (path, file name, or the X of
// libnccl-net-X.so).  Empty: $NCCL_NET_PLUGIN, else the libnccl-net.so of the build or the
// installation that this program belongs to, else our name for the dynamic loader to search.
std::string find_plugin(const std::string& wanted);

}  // namespace twinpath::tools
