#pragma once
// What one end of a connection tells the other about its (GPU, HCA) pair: 64 bytes that travel in
// the handshake.  Everything that the choice of a mode depends on is in the two records, the
// user's settings included, so both ends compute the same answer from them.
//
// Layout, little endian: magic 2, version 1, length 1; GPU, HCA, rail, wish 4; host 8; topology 8;
// distance, distance of the PF, flags 4; capabilities 4; limits 2, their rules 2; reasons 3,
// compute capability 1; errors 4; port and PCIe rate 4; measured rates 4; zero 8; CRC-32 4.
//
// Threads: plain values.
#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "plugin/base/config.h"
#include "topology/model/distance.h"
#include "topology/model/reason.h"

namespace twinpath {

inline constexpr std::size_t kRecordBytes = 64;
inline constexpr std::uint16_t kRecordMagic = 0x5054;  // "TP"
inline constexpr std::uint8_t kRecordVersion = 1;

// The row of the decision table (DECISIONS.md) that fixed a part; W landing, R source, I issue, U
// the user's settings.
// clang-format off
enum class Rule : std::uint8_t {
  none,
  w1, w2, w3, w4, w5, w6,
  r1, r2, r3, r4, r5, r6,
  i1, i2, i3, i4, i5, i6, i7,
  u1, u2, u3,
};
// clang-format on
inline constexpr int kRules = static_cast<int>(Rule::u3) + 1;
std::string_view name_of(Rule rule);  // "W1"; "-" for none

// Things an end can do.  More is never worse (tested).
enum Capability : std::uint32_t {
  kCanLand = 1u << 0,       // the HCA writes GPU memory: an MR was made
  kCanSource = 1u << 1,     // the HCA reads GPU memory
  kCanGpuRing = 1u << 2,    // the GPU maps the HCA's doorbell page
  kCanCpuRing = 1u << 3,    // a CPU thread may ring for the GPU
  kCanDevx = 1u << 4,       // work queues in the mlx5 format
  kCanAtomics = 1u << 5,    // HCA atomics on GPU memory
  kCanOrder = 1u << 6,      // data is visible to the GPU without a flush
  kCanStage = 1u << 7,      // the plugin itself stages GPU buffers through host memory
  kCanGpuQueues = 1u << 8,  // queues in GPU memory
  kCanGpuIssue = 1u << 9,   // the GPU can write work requests (compute capability 7.0)
};

enum RecordFlag : std::uint16_t {
  kFlagDataDirect = 1u << 0,         // distance is that of the data-direct function
  kFlagDataDirectRefused = 1u << 1,  // it exists and refused an MR
  kFlagVm = 1u << 2,
  kFlagRootGood = 1u << 3,  // the CPU's root complex carries peer-to-peer writes at full rate
  kFlagNvlink = 1u << 4,
  kFlagAcs = 1u << 5,       // ACS redirects traffic of the pair
  kFlagVirtual = 1u << 6,   // an HCA without a PCIe place
  kFlagUntried = 1u << 7,   // GDR is expected, not probed
  kFlagPlatform = 1u << 8,  // the distance is the platform file's
};

// Up to which message size an end's GPU memory is used directly, as log2 of bytes.
inline constexpr std::uint8_t kNeverDirect = 0;
inline constexpr std::uint8_t kAlwaysDirect = 255;
inline constexpr std::uint64_t kAnySize = ~std::uint64_t{0};
constexpr std::uint64_t direct_bytes(std::uint8_t log2) {
  if (log2 == kNeverDirect) return 0;
  return log2 > 62 ? kAnySize : std::uint64_t{1} << log2;
}

// How far an end's GPU memory is used directly in one direction, and what fixed that.
struct DirectUse {
  std::uint8_t log2 = kNeverDirect;
  Rule rule = Rule::none;
  Reason reason = Reason::none;
  friend bool operator==(const DirectUse&, const DirectUse&) = default;
};

inline constexpr std::uint8_t kNoIndex = 255;  // of a GPU, HCA or rail: not known

// The default is the record of an end that can do nothing: everything staged.
struct PlacementRecord {
  std::uint64_t host = 0;      // hash of the host's identity; equal: same host
  std::uint64_t topology = 0;  // hash of the machine as read
  std::uint8_t gpu = kNoIndex;
  std::uint8_t hca = kNoIndex;
  std::uint8_t rail = kNoIndex;
  ModeChoice wish = ModeChoice::automatic;
  Distance distance = Distance::unknown;     // of the function that moves the data
  Distance pf_distance = Distance::unknown;  // of the function that has the queues
  std::uint16_t flags = 0;
  std::uint32_t capabilities = 0;
  DirectUse land{kNeverDirect, Rule::w1, Reason::gdr_untried};    // as a receiver's memory
  DirectUse source{kNeverDirect, Rule::r1, Reason::gdr_untried};  // as a sender's
  Reason ring_reason = Reason::uar_untried;  // why the GPU cannot ring; none if it can
  std::uint8_t compute_capability = 0;       // 90 is 9.0; 0 not known
  std::uint16_t gdr_error = 0;               // errno of the probe
  std::uint16_t ring_error = 0;              // CUDA error or errno
  std::uint16_t port_gbps = 0;               // 0 in rates: not known
  std::uint16_t pcie_dgbs = 0;               // tenths of GB/s
  std::uint16_t read_dgbs = 0;               // measured, GPU to HCA
  std::uint16_t write_dgbs = 0;              // measured, HCA to GPU

  bool can(std::uint32_t capabilities_wanted) const {
    return (capabilities & capabilities_wanted) == capabilities_wanted;
  }
  friend bool operator==(const PlacementRecord&, const PlacementRecord&) = default;
};

std::array<std::uint8_t, kRecordBytes> encode_record(const PlacementRecord& record);
// False and `why` for bytes that are not a record of this version; `record` is then the default.
bool decode_record(std::span<const std::uint8_t> bytes, PlacementRecord& record, std::string& why);

// CRC-32 (IEEE 802.3), of records and of decision tables.
std::uint32_t crc32(std::span<const std::uint8_t> bytes, std::uint32_t seed = 0);
// FNV-1a, for host and topology hashes.
std::uint64_t hash64(std::string_view text);

}  // namespace twinpath
