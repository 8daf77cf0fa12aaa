#include "tools/softhca/pci/subnet_manager.h"

#include <algorithm>
#include <utility>

namespace twinpath::softhca::pci {
namespace {

using mlx5::Field;
using mlx5::get;
using mlx5::set;

constexpr std::size_t kMadBytes = 256, kRecordAt = 56;
constexpr Field kClass{8, 8}, kMethod{24, 8}, kMadStatus{32, 16}, kAttribute{128, 16};
constexpr Field kAttributeOffset{352, 16};  // of a record, in 8 bytes
constexpr std::uint64_t kAdministration = 3;
constexpr std::uint64_t kGet = 1, kSet = 2, kGetTable = 0x12, kDelete = 0x15, kResponse = 0x80;
constexpr std::uint64_t kClassInfo = 1, kPath = 0x35, kGroup = 0x38;
// Statuses: of any class, and of this one.
constexpr std::uint64_t kFine = 0, kNoSuchMethod = 8, kNoSuchAttribute = 0xc, kNoResources = 0x100,
                        kNoRecords = 0x300;

// PathRecord.
constexpr std::uint32_t kToGidByte = 8, kFromGidByte = 24;
constexpr Field kToLid{320, 16}, kFromLid{336, 16}, kHopLimit{376, 8};
constexpr Field kReversible{392, 1}, kPaths{393, 7}, kPartition{400, 16}, kPathLevel{428, 4};
constexpr Field kMtuExactly{432, 8}, kRateExactly{440, 8}, kLifeExactly{448, 8};
// MCMemberRecord.
constexpr Field kGroupQkey{256, 32}, kGroupLid{288, 16}, kGroupMtu{304, 8},
    kGroupPartition{320, 16};
constexpr Field kGroupRate{336, 8}, kGroupLife{344, 8}, kGroupFlags{352, 32};
constexpr std::uint64_t kBroadcastQkey = 0x0b1b;
constexpr Field kJoinerGuid{192, 64};  // the last half of PortGID

constexpr std::uint64_t kExactly = 2 << 6;  // a selector beside a value
constexpr std::uint64_t kMtu4096 = 5, kMtu2048 = 4, kRate100 = 16, kLife = 18;
constexpr std::uint64_t kPartitionKey = 0xffff;

std::uint64_t lid_of_group(const Gid& group) {
  constexpr std::uint64_t kFirst = 0xc000, kLids = 0x3ffe;
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const std::uint8_t byte : group) hash = (hash ^ byte) * 0x100000001b3;
  return kFirst + hash % kLids;
}

}  // namespace

std::optional<std::vector<std::uint8_t>> SubnetManager::answer(Bytes question) {
  if (question.size() != kMadBytes || get(question, kClass) != kAdministration) return std::nullopt;
  const std::uint64_t method = get(question, kMethod), attribute = get(question, kAttribute);
  if ((method & kResponse) != 0) return std::nullopt;
  std::vector<std::uint8_t> mad(question.begin(), question.end());
  const Answer record = Answer(mad).subspan(kRecordAt);
  std::uint64_t status = kNoSuchAttribute;
  if (attribute == kClassInfo) {
    std::fill(record.begin(), record.end(), std::uint8_t{0});
    record[0] = 1, record[1] = 2;  // versions
    set(record, {59, 5}, kLife);   // it answers within
    status = kFine;
  } else if (attribute == kPath) {
    status = method == kGet || method == kGetTable ? answer_path(record) : kNoSuchMethod;
    set(mad, kAttributeOffset, 64 / 8);
  } else if (attribute == kGroup) {
    const bool known = method == kGet || method == kSet || method == kDelete;
    status = known ? answer_group(record, method == kSet) : kNoSuchMethod;
    set(mad, kAttributeOffset, 56 / 8);
  }
  set(mad, kMethod, method | kResponse);
  set(mad, kMadStatus, status);
  return mad;
}

const PortNames* SubnetManager::find(Bytes gid) const {
  if (get(gid, {0, 64}) != kLinkLocal) return nullptr;
  for (const auto* const ports : {&own_.ports, &other_ports_}) {
    for (const PortNames& port : *ports) {
      if (get(gid, {64, 64}) == port.guid) return &port;
    }
  }
  return nullptr;
}

void SubnetManager::change(const PortNames& port) {
  for (PortNames& own : own_.ports)
    if (own.guid == port.guid) own.lid = port.lid;
}

void SubnetManager::set_others(Members others) {
  other_ports_ = std::move(others.ports);
  for (const Gid& group : others.groups) {
    if (own_.groups.size() < kMostGroups) own_.groups.insert(group);
  }
}

std::uint64_t SubnetManager::answer_path(Answer record) const {
  const PortNames* const to = find(record.subspan(kToGidByte, 16));
  const PortNames* const from = find(record.subspan(kFromGidByte, 16));
  if (to == nullptr || from == nullptr) return kNoRecords;
  set(record, kToLid, to->lid);
  set(record, kFromLid, from->lid);
  set(record, kHopLimit, 0);
  set(record, kReversible, 1);
  set(record, kPaths, 1);
  set(record, kPartition, kPartitionKey);
  set(record, kPathLevel, 0);
  set(record, kMtuExactly, kExactly | kMtu4096);
  set(record, kRateExactly, kExactly | kRate100);
  set(record, kLifeExactly, kExactly | kLife);
  return kFine;
}

std::uint64_t SubnetManager::answer_group(Answer record, bool joins) {
  Gid group;
  std::copy_n(record.begin(), group.size(), group.begin());
  constexpr Gid kNone{};
  if (joins && group == kNone) {  // one is to be made up
    set(group, {0, 32}, 0xff12a01b);
    set(group, {32, 64}, get(record, kJoinerGuid));  // no other process makes the same up
    set(group, {96, 32}, own_.groups.size() + 1);
    std::copy(group.begin(), group.end(), record.begin());
  }
  if (own_.groups.count(group) == 0) {
    if (!joins) return kNoRecords;
    if (own_.groups.size() >= kMostGroups) return kNoResources;
    own_.groups.insert(group);
  }
  if (get(record, kGroupQkey) == 0) set(record, kGroupQkey, kBroadcastQkey);
  set(record, kGroupLid, lid_of_group(group));
  set(record, kGroupMtu, kExactly | kMtu2048);
  set(record, kGroupPartition, kPartitionKey);
  set(record, kGroupRate, kExactly | kRate100);
  set(record, kGroupLife, kExactly | kLife);
  set(record, kGroupFlags, 0);
  return kFine;
}

}  // namespace twinpath::softhca::pci
