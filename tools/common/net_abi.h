#pragma once
// NCCL's net tables v8 to v12, declared once more for the tools.
//
// Why not plugin/nccl/abi: the tools open any plugin, and they check ours; a mistake in the
// plugin's own declarations must not be repeated here unseen.  The five tables differ in few
// members, so each member's type is computed from the version.  Offsets are asserted below
// against the published layout.
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace twinpath::tools::abi {

inline constexpr int kOldest = 8, kNewest = 12;
inline constexpr int kPtrHost = 1, kPtrCuda = 2, kPtrDmabuf = 4;
inline constexpr std::size_t kHandleBytes = 128;

using Result = int;  // ncclResult_t; 0 is success
using Logger = void (*)(int level, unsigned long flags, const char* where, int line,
                        const char* format, ...);
using Profiler = Result (*)(void** event, int type, void* handle, std::int64_t plugin, void* data);

template <int V>
struct VirtualProps {
  int count;
  int devices[V >= 12 ? 8 : 4];
};

struct PropsHead {
  char* name;
  char* pci_path;
  std::uint64_t guid;
  int ptr_support;
  int reg_is_global;
};
struct PropsMiddle {
  int speed;
  int port;
  float latency;
  int max_comms;
  int max_recvs;
  int device_type;
  int device_version;
};

template <int V>
struct Props;
template <>
struct Props<8> : PropsHead, PropsMiddle {};
template <int V>
struct PropsV9 : PropsHead {
  int force_flush;
  PropsMiddle middle;
  VirtualProps<V> members;
  std::size_t max_p2p_bytes;
  std::size_t max_coll_bytes;
};
template <>
struct Props<9> : PropsV9<9> {};
template <>
struct Props<10> : PropsV9<10> {};
template <>
struct Props<11> : PropsV9<11> {
  int max_multi_request;
};
template <>
struct Props<12> : PropsV9<12> {
  int max_multi_request;
  std::int16_t rail;
  std::int16_t plane;
};
static_assert(sizeof(Props<8>) == 64 && sizeof(Props<9>) == 104 && sizeof(Props<10>) == 104);
static_assert(sizeof(Props<11>) == 112 && sizeof(Props<12>) == 128);

struct CommConfig {
  int traffic_class;
};

template <int V>
struct Net {
  using Size = std::conditional_t<V >= 9, std::size_t, int>;
  using Init = std::conditional_t<
      V >= 11, Result (*)(void**, std::uint64_t, CommConfig*, Logger, Profiler),
      std::conditional_t<V == 10, Result (*)(Logger, Profiler), Result (*)(Logger)>>;
  using Listen = std::conditional_t<V >= 11, Result (*)(void*, int, void*, void**),
                                    Result (*)(int, void*, void**)>;
  using Connect = std::conditional_t<
      V >= 11, Result (*)(void*, int, void*, void**, void**),
      std::conditional_t<V == 10, Result (*)(int, CommConfig*, void*, void**, void**),
                         Result (*)(int, void*, void**, void**)>>;
  using Send =
      std::conditional_t<V >= 10, Result (*)(void*, void*, Size, int, void*, void*, void**),
                         Result (*)(void*, void*, Size, int, void*, void**)>;
  using Recv =
      std::conditional_t<V >= 10,
                         Result (*)(void*, int, void**, Size*, int*, void**, void**, void**),
                         Result (*)(void*, int, void**, Size*, int*, void**, void**)>;

  const char* name;
  Init init;
  Result (*devices)(int*);
  Result (*properties)(int, Props<V>*);
  Listen listen;
  Connect connect;
  Result (*accept)(void*, void**, void**);
  Result (*reg_mr)(void*, void*, std::size_t, int, void**);
  Result (*reg_mr_dmabuf)(void*, void*, std::size_t, int, std::uint64_t, int, void**);
  Result (*dereg_mr)(void*, void*);
  Send isend;
  Recv irecv;
  Result (*iflush)(void*, int, void**, int*, void**, void**);
  Result (*test)(void*, int*, int*);
  Result (*close_send)(void*);
  Result (*close_recv)(void*);
  Result (*close_listen)(void*);
  Result (*device_mr)(void*, void*, void**);
  Result (*recv_consumed)(void*, int, void*);
  // Members that v8 (the first) and v10 (the last two) lack.  A table is only ever read
  // through a pointer, and nobody reads these of an older one.
  Result (*make_virtual_device)(int*, void*);
  Result (*finalize)(void*);
  Result (*set_attributes)(void*, void*);
};
static_assert(offsetof(Net<12>, listen) == 32 && offsetof(Net<12>, isend) == 80);
static_assert(offsetof(Net<8>, test) == 104 && offsetof(Net<11>, finalize) == 160);

}  // namespace twinpath::tools::abi
