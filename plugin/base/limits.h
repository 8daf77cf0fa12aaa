#pragma once
// Every fixed bound of the plugin, with its reason.
#include <cstddef>
#include <cstdint>

namespace twinpath {

// NCCL asks for at most NCCL_NET_MAX_REQUESTS (32) requests per comm and direction.
inline constexpr int kMaxRequests = 32;
// Receives grouped into one irecv (NCCL's own IB transport offers 8).
inline constexpr int kMaxRecvs = 8;
// Physical ports merged into one NIC (NCCL_NET_MAX_DEVS_PER_NIC of v12).
inline constexpr int kMaxRails = 8;
// QPs of one connection, over all its rails (NCCL_IB_QPS_PER_CONNECTION * rails).
inline constexpr int kMaxQps = 32;
// Physical ports and, with the merged ones, devices shown to NCCL.
inline constexpr int kMaxPorts = 32;
inline constexpr int kMaxDevices = 128;
// NCCL_NET_HANDLE_MAXSIZE.
inline constexpr std::size_t kHandleBytes = 128;
// Messages are split between QPs at multiples of this; NCCL's LL128 protocol needs its
// 128-byte lines unbroken.
inline constexpr std::size_t kStripeAlign = 128;

}  // namespace twinpath
