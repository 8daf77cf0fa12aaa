#pragma once
// The boundary to NCCL's C ABI: Status becomes ncclResult_t here and nowhere else, no exception
// passes, and void* becomes an object.
//
// Casts: a comm's void* is always the address of its Comm base, because regMr gets either kind;
// isend and irecv go down from there.
#include <algorithm>
#include <array>
#include <cerrno>
#include <exception>
#include <new>
#include <span>
#include <system_error>
#include <vector>

#include "plugin/base/log.h"
#include "plugin/base/refused.h"
#include "plugin/base/sync.h"
#include "plugin/nccl/abi/types.h"
#include "plugin/nccl/context.h"
#include "plugin/transport.h"

namespace twinpath {

constexpr abi::ncclResult_t to_nccl(Status status) noexcept {
  // Before the switch: one comparison on the data path.
  if (status == Status::ok) [[likely]]
    return abi::ncclSuccess;
  switch (status) {
    case Status::ok:
    case Status::again:  // told by a null comm, a null request or done == 0
      return abi::ncclSuccess;
    case Status::bad_argument:
      return abi::ncclInvalidArgument;
    case Status::no_memory:
    case Status::system:
      return abi::ncclSystemError;
    case Status::remote:
    case Status::closed:
      return abi::ncclRemoteError;
    case Status::unsupported:
      return abi::ncclInvalidUsage;
    case Status::internal:
      return abi::ncclInternalError;
  }
  return abi::ncclInternalError;
}

// Memory may be too short for words of its own.
[[gnu::cold]] inline void tell_no_thread(const char* entry, int error) noexcept {
  try {
    TP_WARN("%s: no thread can be started: %s", entry, why_no_thread(error).c_str());
  } catch (...) {
    TP_WARN("%s: no thread can be started, and memory is short", entry);
  }
}

// What became of the exception that is being handled.
[[gnu::cold, gnu::noinline]] inline abi::ncclResult_t thrown(const char* entry) noexcept {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    TP_WARN(
        "%s: out of memory; free some, or raise the limits of address space and data (ulimit -v, "
        "ulimit -d)",
        entry);
    return to_nccl(Status::no_memory);
  } catch (const std::system_error& error) {
    // What threads and their locks throw; the first of them for want of a thread.
    const int code = error.code().value();
    if (code == EAGAIN || code == EPERM || code == EACCES || code == ENOSYS) {
      tell_no_thread(entry, code);
      return to_nccl(Status::system);
    }
    TP_WARN("%s: unexpected exception: %s; this is a defect, please report it", entry,
            error.what());
  } catch (const std::exception& error) {
    TP_WARN("%s: unexpected exception: %s; this is a defect, please report it", entry,
            error.what());
  } catch (...) {
    TP_WARN("%s: unexpected exception; this is a defect, please report it", entry);
  }
  return to_nccl(Status::internal);
}

// Runs the body of an entry point.  In a forked child nothing runs: the threads and queues of
// the adapter stayed with the parent, so that a call would wait for ever.
template <class Body>
TP_ALWAYS_INLINE inline abi::ncclResult_t guarded(const char* entry, Body&& body) noexcept {
  if (in_forked_child()) [[unlikely]] {
    report_forked_child(entry);
    return to_nccl(Status::unsupported);
  }
  try {
    return to_nccl(body());
  } catch (...) {
    return thrown(entry);
  }
}

[[gnu::cold]] inline Status refuse(const char* entry, const char* what) {
  TP_WARN("%s: %s", entry, what);
  return Status::bad_argument;
}

inline Status opened(const char* entry, Context*& context) {
  context = Context::get();
  if (context != nullptr) return Status::ok;
  TP_WARN("%s: called before init, or after an init that failed", entry);
  return Status::unsupported;
}

inline std::span<std::uint8_t, kHandleBytes> handle_bytes(void* handle) {
  return std::span<std::uint8_t, kHandleBytes>(static_cast<std::uint8_t*>(handle), kHandleBytes);
}
// The handles of all ranks of a team, for a collective connect of the rank.
inline Status handles_of_team(const char* entry, void* const* handles, int nranks, int rank,
                              std::vector<std::array<std::uint8_t, kHandleBytes>>& all) {
  if (nranks < 1 || rank < 0 || rank >= nranks) {
    TP_WARN("%s: rank %d of %d", entry, rank, nranks);
    return Status::bad_argument;
  }
  all.resize(static_cast<std::size_t>(nranks));
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (handles[r] == nullptr) return refuse(entry, "null handle");
    const auto bytes = handle_bytes(handles[r]);
    std::copy(bytes.begin(), bytes.end(), all[r].begin());
  }
  return Status::ok;
}
// Of memory that is to be registered: what NCCL calls its type.
inline Status memory_type(const char* entry, int type, MemoryType& out) {
  if (type != abi::kPtrHost && type != abi::kPtrCuda) {
    TP_WARN("%s: memory type %d; known are %d (host) and %d (CUDA)", entry, type, abi::kPtrHost,
            abi::kPtrCuda);
    return Status::bad_argument;
  }
  out = type == abi::kPtrCuda ? MemoryType::cuda : MemoryType::host;
  return Status::ok;
}

inline void* comm_to_nccl(Comm* comm) { return comm; }
inline Comm* comm_of(void* p) { return static_cast<Comm*>(p); }
inline SendComm* send_comm_of(void* p) { return static_cast<SendComm*>(comm_of(p)); }
inline RecvComm* recv_comm_of(void* p) { return static_cast<RecvComm*>(comm_of(p)); }
inline Listener* listener_of(void* p) { return static_cast<Listener*>(p); }
// What NCCL calls ctx.  NCCL 2.30.7 takes any plugin's for that of its own transports, which begins
// with a traffic class, and writes one there when it sets up GIN on a machine with adapters: so the
// beginning is NCCL's to write, and ours comes behind it.
template <class T>
struct Instance {
  std::array<int, 16> nccls{};
  T ours{};
};
// A communicator's session, and whom NCCL gave to be told of events; either may be null.
struct NetOurs {
  Session* session = nullptr;
  abi::ncclProfilerCallback_t events = nullptr;
};
using NetInstance = Instance<NetOurs>;
inline NetOurs ours_of(void* p) {
  return p != nullptr ? static_cast<NetInstance*>(p)->ours : NetOurs{};
}
inline Session* session_of(void* p) { return ours_of(p).session; }
inline Memory* memory_of(void* p) { return static_cast<Memory*>(p); }

}  // namespace twinpath
