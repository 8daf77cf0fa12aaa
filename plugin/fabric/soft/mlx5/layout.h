#pragma once
// Where the fields lie that the model of the device reads and writes.  Only the model's: the
// plugin's own commands are to be made from a table of their own, so that a slip in one shows
// against the other.
#include "plugin/fabric/soft/mlx5/field.h"

namespace twinpath::soft::mlx5 {

// Every command begins, and every answer begins, with these.
inline constexpr std::size_t kHeaderBytes = 16;
inline constexpr Field kOpcode{0, 16};
inline constexpr Field kUid{16, 16};
inline constexpr Field kOpMod{48, 16};
inline constexpr Field kStatus{0, 8};
inline constexpr Field kSyndrome{32, 32};
// The object of a command, and the number of the object made in an answer.
inline constexpr Field kNumber{72, 24};

// CREATE_CQ, MODIFY_CQ: the context at byte 16.
namespace cq {
inline constexpr std::uint32_t kContext = 16;
inline constexpr std::size_t kBytes = 272;
inline constexpr Field kResizes{96, 32};  // resize_field_select
inline constexpr Field kDbrUmemValid = Field{6, 1}.at(kContext);
inline constexpr Field kCqeSize = Field{8, 3}.at(kContext);
inline constexpr Field kCollapsed = Field{11, 1}.at(kContext);
inline constexpr Field kIgnoreOverrun = Field{14, 1}.at(kContext);
inline constexpr Field kDbrUmem = Field{32, 32}.at(kContext);
inline constexpr Field kPageOffset = Field{84, 6}.at(kContext);
inline constexpr Field kLogSize = Field{99, 5}.at(kContext);
inline constexpr Field kUarPage = Field{104, 24}.at(kContext);
inline constexpr Field kEqn = Field{184, 8}.at(kContext);
inline constexpr Field kLogPageSize = Field{195, 5}.at(kContext);
inline constexpr Field kDbrAddress = Field{448, 64}.at(kContext);
inline constexpr Field kUmemOffset{640, 64};
inline constexpr Field kUmem{704, 32};
inline constexpr Field kUmemValid{736, 1};
}  // namespace cq

// CREATE_QP and the transitions: option mask at byte 16, the context at byte 24.
namespace qp {
inline constexpr std::uint32_t kContext = 24;
inline constexpr std::uint32_t kContextBytes = 232;
inline constexpr std::size_t kBytes = 272;
inline constexpr Field kOptions{128, 32};
inline constexpr Field kState = Field{0, 4}.at(kContext);
inline constexpr Field kService = Field{8, 8}.at(kContext);
inline constexpr Field kMigration = Field{19, 2}.at(kContext);
inline constexpr Field kPd = Field{40, 24}.at(kContext);
inline constexpr Field kMtu = Field{64, 3}.at(kContext);
inline constexpr Field kLogMessage = Field{67, 5}.at(kContext);
inline constexpr Field kLogRqSize = Field{73, 4}.at(kContext);
inline constexpr Field kLogRqStride = Field{77, 3}.at(kContext);
inline constexpr Field kNoSq = Field{80, 1}.at(kContext);
inline constexpr Field kLogSqSize = Field{81, 4}.at(kContext);
inline constexpr Field kClock = Field{88, 2}.at(kContext);  // ts_format
inline constexpr Field kUarPage = Field{104, 24}.at(kContext);
inline constexpr Field kDbrMode = Field{128, 2}.at(kContext);
inline constexpr Field kUserIndex = Field{136, 24}.at(kContext);
inline constexpr Field kLogPageSize = Field{163, 5}.at(kContext);
inline constexpr Field kRemoteQpn = Field{168, 24}.at(kContext);
inline constexpr Field kLogSraMax = Field{904, 3}.at(kContext);
inline constexpr Field kRetryCount = Field{909, 3}.at(kContext);
inline constexpr Field kRnrRetry = Field{912, 3}.at(kContext);
inline constexpr Field kNextSendPsn = Field{968, 24}.at(kContext);
inline constexpr Field kSendCq = Field{1000, 24}.at(kContext);
inline constexpr Field kLogRraMax = Field{1160, 3}.at(kContext);
inline constexpr Field kAtomicMode = Field{1164, 4}.at(kContext);
inline constexpr Field kRre = Field{1168, 1}.at(kContext);
inline constexpr Field kRwe = Field{1169, 1}.at(kContext);
inline constexpr Field kRae = Field{1170, 1}.at(kContext);
inline constexpr Field kPageOffset = Field{1172, 6}.at(kContext);
inline constexpr Field kCdMaster = Field{1183, 1}.at(kContext);
inline constexpr Field kMinRnrNak = Field{1187, 5}.at(kContext);
inline constexpr Field kNextReceivePsn = Field{1192, 24}.at(kContext);
inline constexpr Field kReceiveCq = Field{1256, 24}.at(kContext);
inline constexpr Field kDbrAddress = Field{1280, 64}.at(kContext);
inline constexpr Field kQkey = Field{1344, 32}.at(kContext);
inline constexpr Field kRqType = Field{1381, 3}.at(kContext);
inline constexpr Field kSrq = Field{1384, 24}.at(kContext);
inline constexpr Field kDbrUmemValid = Field{1667, 1}.at(kContext);
inline constexpr Field kDbrUmem = Field{1824, 32}.at(kContext);
inline constexpr Field kUmemOffset{2048, 64};
inline constexpr Field kUmem{2112, 32};
inline constexpr Field kUmemValid{2144, 1};

// The primary address path, at byte 24 of the context.
inline constexpr std::uint32_t kPath = kContext + 24;
inline constexpr Field kPkeyIndex = Field{16, 16}.at(kPath);
inline constexpr Field kGrh = Field{40, 1}.at(kPath);
inline constexpr Field kRemoteLid = Field{48, 16}.at(kPath);
inline constexpr Field kAckTimeout = Field{64, 5}.at(kPath);
inline constexpr Field kGidIndex = Field{72, 8}.at(kPath);
inline constexpr Field kHopLimit = Field{88, 8}.at(kPath);
inline constexpr Field kTrafficClass = Field{100, 8}.at(kPath);
inline constexpr Field kRemoteGidHigh = Field{128, 64}.at(kPath);
inline constexpr Field kRemoteGidLow = Field{192, 64}.at(kPath);
inline constexpr Field kDscp = Field{266, 6}.at(kPath);
inline constexpr Field kUdpPort = Field{272, 16}.at(kPath);
inline constexpr Field kServiceLevel = Field{292, 4}.at(kPath);
inline constexpr Field kPort = Field{296, 8}.at(kPath);
inline constexpr Field kRemoteMac = Field{304, 48}.at(kPath);
}  // namespace qp

// QUERY_ROCE_ADDRESS.
namespace roce {
inline constexpr Field kIndex{64, 16};
inline constexpr Field kPort{92, 4};
inline constexpr Field kGidHigh{128, 64};
inline constexpr Field kGidLow{192, 64};
inline constexpr Field kL3Type{340, 4};   // 0 is IPv4, 1 is IPv6
inline constexpr Field kVersion{344, 8};  // 2 is RoCE v2
}  // namespace roce

// QUERY_HCA_VPORT_CONTEXT: the context at byte 16 of the answer.
namespace vport {
inline constexpr Field kPort{76, 4};
inline constexpr std::uint32_t kContext = 16;
inline constexpr std::size_t kBytes = 16 + 512;
inline constexpr Field kPortState = Field{280, 4}.at(kContext);  // 4 is active
inline constexpr Field kLid = Field{768, 16}.at(kContext);
}  // namespace vport

}  // namespace twinpath::soft::mlx5
