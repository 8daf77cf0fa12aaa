#pragma once
// The 128 bytes that NCCL carries from a listener to the peer that connects to it.
//
//   0  magic 4 | version 2 | GIDs 1, others 1 | nonce 16 | family 2 | port 2 | address 16 | scope 4
//      | host hash 8 | pid 4 | GID 16 (3 times)
//      | checksum 4 over all before                                  = 112 bytes, written once
// 112  connection 8 | check 8    the connector's: zero until it begins; NCCL hands the same
//                                buffer to every retry, so the number finds the state again
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "plugin/base/limits.h"
#include "plugin/base/random.h"
#include "plugin/base/socket.h"
#include "plugin/fabric/verbs.h"

namespace twinpath {

// Of the handle, and of what is said over the control connection.
inline constexpr std::uint16_t kProtocolVersion = 8;

using HandleBytes = std::span<std::uint8_t, kHandleBytes>;

struct Handle {
  Nonce nonce{};
  SocketAddress address;
  std::uint64_t host_hash = 0;
  std::uint32_t pid = 0;
  // Of the listener's ports on Ethernet, for a connector that chooses its device by them: of the
  // device that NCCL named, and, from a listener that chooses, too, of its others, as far as
  // kMostHandleGids goes.
  std::vector<ibv_gid> gids, others;
};
inline constexpr std::size_t kMostHandleGids = 3;

// Also clears the connector's part.
void encode_handle(const Handle& handle, HandleBytes out);
// False and why for bytes that no listener of this protocol version wrote (truncated, foreign).
bool decode_handle(std::span<const std::uint8_t> bytes, Handle& handle, std::string& why);

// The connector's number in the handle: 0 when there is none.  False when the bytes there are
// neither zero nor a number that store_connection wrote into this very handle.
bool load_connection(std::span<const std::uint8_t, kHandleBytes> bytes, std::uint64_t& connection);
void store_connection(HandleBytes bytes, std::uint64_t connection);

}  // namespace twinpath
