#include "tools/softhca/pci/port.h"

#include <algorithm>

#include "plugin/fabric/soft/mlx5/layout.h"
#include "tools/softhca/pci/capabilities.h"

namespace twinpath::softhca::pci {
namespace {

using mlx5::Field;
using mlx5::get;
using mlx5::Refusal;
using mlx5::set;

constexpr std::uint32_t kAll = 0xffff;  // an index that means the whole table
constexpr std::uint64_t kActive = 4, kDown = 1;
constexpr std::uint64_t kLinkUp = 5, kPolling = 2;

constexpr Field in_context(std::uint32_t bit, std::uint32_t width) {
  return Field{bit, width}.at(mlx5::vport::kContext);
}
constexpr Field kHasSmi = in_context(257, 1);
constexpr Field kPhysicalState = in_context(272, 4);
constexpr Field kPortState = in_context(280, 4), kVportState = in_context(284, 4);
constexpr Field kSystemGuid = in_context(320, 64), kPortGuid = in_context(384, 64);
constexpr Field kNodeGuid = in_context(448, 64);
constexpr Field kCapMask = in_context(512, 32);
constexpr Field kLid = in_context(768, 16), kSmLid = in_context(800, 16);
constexpr Field kSubnetTimeout = in_context(795, 5);
constexpr Field kCapMaskMay = in_context(544, 32);  // cap_mask1_field_select
// IBTA PortInfo:CapabilityMask.  The last one the driver sets when it can manage connections.
constexpr std::uint64_t kTraps = 1u << 2, kAutomaticMigration = 1u << 3, kCm = 1u << 16;
constexpr std::uint64_t kCapabilities = kTraps | kAutomaticMigration;
constexpr Field kSelect = in_context(0, 32);  // further fields, none of which can be set

// ACCESS_REG: registers by their numbers, whose fields begin behind the header.
constexpr Field kRegister{80, 16};
constexpr std::uint64_t kRead = 1;
constexpr std::uint64_t kPmtu = 0x5003, kPtys = 0x5004, kPvlc = 0x500f, kNodeDescription = 0x6001,
                        kHostEndianness = 0x7004;

struct Value {
  std::uint64_t number;
  Field field;
  std::uint64_t value;
};
constexpr std::uint64_t kFourLanes = 4, kEdr = 1u << 5;  // 4x, 25 Gb/s a lane
constexpr Value kRegisterValues[] = {
    {kPmtu, {32, 16}, 4096},  // max_mtu
    {kPmtu, {64, 16}, 4096},  // admin_mtu
    {kPmtu, {96, 16}, 4096},  // oper_mtu
    {kPtys, {128, 16}, kFourLanes},
    {kPtys, {144, 16}, kEdr},
    {kPtys, {224, 16}, kFourLanes},
    {kPtys, {240, 16}, kEdr},
    {kPtys, {320, 16}, kFourLanes},
    {kPtys, {336, 16}, kEdr},
    {kPvlc, {60, 4}, 1},  // vl_hw_cap
    {kPvlc, {92, 4}, 1},
    {kPvlc, {124, 4}, 1},
};

}  // namespace

Refusal Port::query_context(Answer out) const {
  set(out, kHasSmi, 1);
  set(out, kPhysicalState, up_ ? kLinkUp : kPolling);
  set(out, kPortState, up_ ? kActive : kDown);
  set(out, kVportState, up_ ? kActive : kDown);
  set(out, kSystemGuid, names_.guid);
  set(out, kPortGuid, names_.guid);
  set(out, kNodeGuid, names_.guid);
  set(out, kCapMask, kCapabilities | set_capabilities_);
  set(out, kCapMaskMay, kCm);
  set(out, kLid, names_.lid);
  set(out, kSmLid, kManagerLid);
  set(out, kSubnetTimeout, 18);
  return Refusal::none;
}

Refusal Port::modify_context(Bytes in) {
  const std::uint64_t may = get(in, kCapMaskMay);
  if (get(in, kSelect) != 0 || (may & ~kCm) != 0) return Refusal::no_field;
  if (may != 0) set_capabilities_ = static_cast<std::uint32_t>(get(in, kCapMask) & kCm);
  return Refusal::none;
}

Refusal Port::query_state(Answer out) const {
  set(out, {120, 4}, 1);  // admin_state
  set(out, {124, 4}, up_ ? 1 : 0);
  return Refusal::none;
}

Refusal Port::query_gids(Bytes in, Answer out) const {
  const std::uint64_t index = get(in, {112, 16});
  if (index != kAll && index >= kGids) return Refusal::no_gid;
  const std::uint64_t entries = index == kAll ? kGids : 1;
  if (out.size() < 16 + 16 * entries) return Refusal::short_answer;
  set(out, {96, 16}, entries);
  if (index != kAll && index != 0) return Refusal::none;  // the others are empty
  set(out, {128, 64}, kLinkLocal);
  set(out, {192, 64}, names_.guid);
  return Refusal::none;
}

Refusal Port::query_pkeys(Bytes in, Answer out) const {
  const std::uint64_t index = get(in, {112, 16});
  if (index != kAll && index >= kPkeys) return Refusal::no_pkey;
  const std::uint64_t entries = index == kAll ? kPkeys : 1;
  if (out.size() < 16 + 4 * entries) return Refusal::short_answer;
  if (index == kAll || index == 0) set(out, {144, 16}, 0xffff);  // the default partition
  return Refusal::none;
}

Refusal Port::access_register(Bytes in, Answer out) {
  const std::uint64_t number = get(in, kRegister);
  const bool read = get(in, mlx5::kOpMod) == kRead;
  const std::size_t bytes = std::min(in.size(), out.size());
  std::copy(in.begin() + 16, in.begin() + static_cast<std::ptrdiff_t>(bytes), out.begin() + 16);
  switch (number) {
    case kPmtu:
    case kPtys:
    case kPvlc:
      for (const Value& v : kRegisterValues) {
        if (v.number == number) set(out, v.field.at(16), v.value);
      }
      return Refusal::none;
    case kNodeDescription:
      if (bytes < 16 + sizeof description_) return Refusal::short_command;
      if (read) {
        std::copy_n(description_, sizeof description_, out.begin() + 16);
      } else {
        std::copy_n(in.begin() + 16, sizeof description_, description_);
      }
      return Refusal::none;
    case kHostEndianness:  // that of both sides is told by this: nothing to do
      return Refusal::none;
    default:
      return Refusal::no_register;
  }
}

Refusal Port::answer_mad(Bytes in, Answer out) {
  constexpr std::uint64_t kResponse = 0x80, kNoSuchAttribute = 0x0c;
  std::copy_n(in.begin() + 16, 256, out.begin() + 16);
  set(out, Field{24, 8}.at(16), get(in, Field{24, 8}.at(16)) | kResponse);
  set(out, Field{32, 16}.at(16), kNoSuchAttribute);
  return Refusal::none;
}

}  // namespace twinpath::softhca::pci
