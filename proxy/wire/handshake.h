#pragma once
// The bytes of the handshake: encode and decode, pure and bounds-checked.
//
// Every frame is a 28-byte header {magic, version, type, body length, nonce of the listen handle}
// and a body.  The header and the body of a refusal never change between versions, so that two
// versions can tell each other why they part.
//
//   connector            acceptor
//   hello        ->               who I am, my rails, how many queues I want
//                <-      hello
//   queues       ->               QP numbers and PSNs, what the other end may write to, and what
//   the
//                                 adapter offers beyond the standard
//                <-      queues   the same, once the acceptor's queues can receive and send
//   ready       <->      ready    all my queues can receive
//   refuse      <->      refuse   at any point, with a text
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "plugin/base/limits.h"
#include "plugin/base/wire.h"
#include "plugin/fabric/verbs.h"
#include "plugin/rdma/handle.h"
#include "plugin/rdma/path.h"
#include "proxy/wire/paths.h"
#include "topology/decide/record.h"

namespace twinpath {

inline constexpr std::uint32_t kFrameMagic = 0x46505457;  // "WTPF"
inline constexpr std::size_t kFrameHeaderBytes = 28;
inline constexpr std::size_t kMaxFrameBody = 8192;
// After the handshake the socket carries single bytes, and few of them; unknown ones are ignored.
// "I close in good order."
inline constexpr std::uint8_t kGoodbye = 'G';
// "This connection failed at my end": adapters do not always tell both.
inline constexpr std::uint8_t kBroken = 'B';
// Sent when the sender's end lost another connection of the same communicator.
inline constexpr std::uint8_t kFailure = 'F';

// `other_sets`: the acceptor's answer to `queues` that name shared queue pairs which have failed
// there.  The connector then sends `queues` again, with others.
enum class FrameType : std::uint16_t { hello = 1, queues, ready, refuse, other_sets };

struct FrameHeader {
  std::uint32_t magic = kFrameMagic;
  std::uint16_t version = kProtocolVersion;
  FrameType type = FrameType::hello;
  std::uint32_t body_bytes = 0;
  Nonce nonce{};
};
FrameHeader decode_header(std::span<const std::uint8_t, kFrameHeaderBytes> bytes);
std::vector<std::uint8_t> make_frame(FrameType type, const Nonce& nonce,
                                     std::span<const std::uint8_t> body);

struct Hello {
  std::string version;  // plugin version text
  std::string host;
  std::uint32_t pid = 0;
  std::string device;
  std::uint16_t qps_per_connection = 1;
  std::uint32_t capabilities = 0;  // kCanFailOver (failover.h); unknown ones are ignored
  // 1..kMaxRails; the last `standby` of them are in reserve (paths.h).
  std::vector<HelloRail> rails;
  int standby = 0;
  EndRails ends() const { return {static_cast<int>(rails.size()) - standby, standby}; }
  std::string gpu;            // "GPU3", for messages
  PlacementRecord placement;  // of that GPU and the rails
  // Behind all that older versions know: who shares queue pairs, and how many pairs of each path;
  // 0: every connection has its own.
  std::uint64_t session = 0;
  std::uint8_t shared_pairs = 0;
};
std::vector<std::uint8_t> encode_hello(const Hello& hello);
bool decode_hello(std::span<const std::uint8_t> body, Hello& hello, std::string& why);

// What an adapter would use on a queue pair beyond the standard, or both ends do (ibv_ece).  The
// bits mean something to adapters of that vendor only; vendor 0: nothing.
struct QueueExtras {
  std::uint32_t vendor = 0, options = 0, mask = 0;
  friend bool operator==(const QueueExtras&, const QueueExtras&) = default;
};
struct Queues {
  std::vector<QueueAddress> queues;  // of the regular queues, 1..kMaxQps
  // The connector's offer; the acceptor's part of it that its adapter has put to use.  None, or one
  // per queue.
  std::vector<QueueExtras> extras;
  // The connection's own memory at this end: the sender's CTS ring, the receiver's box.
  std::uint64_t address = 0;
  std::vector<std::uint32_t> rkeys;  // one per rail of this end, standby ones too
  // Which set the connection shares, as which member, and the addresses of its pairs: one per
  // queue, or none.  The acceptor says the same set and member.
  struct Share {
    std::uint32_t set = 0;
    std::uint8_t member = 0;
    std::vector<QueueAddress> pairs;
  };
  std::vector<Share> shares;
};
std::vector<std::uint8_t> encode_queues(const Queues& queues);
bool decode_queues(std::span<const std::uint8_t> body, Queues& queues, std::string& why);

std::vector<std::uint8_t> encode_refusal(std::string_view text);
// Printable text whatever the bytes are.
std::string decode_refusal(std::span<const std::uint8_t> body);

}  // namespace twinpath
