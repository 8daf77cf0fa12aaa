// Receives that queue pairs share, which are made by three commands with three layouts: RMP is what
// the driver takes for programs' SRQs, XRC_SRQ for those of XRC, SRQ before there was an
// interface 1.
#include <algorithm>
#include <array>

#include "plugin/fabric/soft/mlx5/layout.h"
#include "tools/softhca/pci/function.h"

namespace twinpath::softhca::pci {
namespace {

using mlx5::Field;
using mlx5::get;
using mlx5::Kind;
using mlx5::Opcode;
using mlx5::Refusal;
using mlx5::set;

struct SharedLayout {
  Opcode make, query, arm;
  std::uint32_t context_at, context_bytes;  // in the command that makes, and in the query's answer
  Field pd, page_offset, page_size, log_entries, log_entry;
  std::uint32_t entry_unit;  // bytes of an entry whose logarithm is 0
  Field record, limit;
};
constexpr SharedLayout classic(Opcode make, Opcode query, Opcode arm) {
  constexpr std::uint32_t kAt = 16;
  return {make,
          query,
          arm,
          kAt,
          64,
          Field{200, 24}.at(kAt),
          Field{64, 6}.at(kAt),
          Field{130, 6}.at(kAt),
          Field{4, 4}.at(kAt),
          Field{37, 3}.at(kAt),
          16,
          Field{320, 64}.at(kAt),
          Field{224, 16}.at(kAt)};
}
constexpr std::uint32_t kRmpAt = 32, kRmpQueueAt = kRmpAt + 48;
constexpr SharedLayout kShared[] = {
    classic(Opcode::create_srq, Opcode::query_srq, Opcode::arm_rq),
    classic(Opcode::create_xrc_srq, Opcode::query_xrc_srq, Opcode::arm_xrc_srq),
    {Opcode::create_rmp, Opcode::query_rmp, Opcode::modify_rmp, kRmpAt, 240,
     Field{72, 24}.at(kRmpQueueAt), Field{43, 5}.at(kRmpQueueAt), Field{275, 5}.at(kRmpQueueAt),
     Field{283, 5}.at(kRmpQueueAt), Field{268, 4}.at(kRmpQueueAt), 1,
     Field{128, 64}.at(kRmpQueueAt), Field{48, 16}.at(kRmpQueueAt)},
};
// Of an RMP: a list of entries (wq_type), in memory that the command lists.
constexpr Field kQueueType = Field{0, 4}.at(kRmpQueueAt),
                kQueueUmem = Field{288, 2}.at(kRmpQueueAt);
constexpr Field kRmpState{64, 4}, kRmpSetsLimit{191, 1}, kRmpNewState = Field{8, 4}.at(kRmpAt);
constexpr std::uint64_t kReady = 1;
// ARM_RQ, ARM_XRC_SRQ.
constexpr Field kArmLimit{112, 16};
constexpr std::uint64_t kArmsShared = 1;  // op_mod

constexpr std::uint64_t kMostEntries = 32768, kLeastEntryBytes = 32, kMostEntryBytes = 512;
constexpr std::uint64_t kCounterBytes = 4, kMostLogPage = 31;

// The layout of which one opcode is `opcode`.
const SharedLayout& layout_with(Opcode SharedLayout::*which, Opcode opcode) {
  return *std::find_if(std::begin(kShared), std::end(kShared),
                       [&](const SharedLayout& l) { return l.*which == opcode; });
}

}  // namespace

Refusal Function::make_shared(Opcode opcode, std::uint32_t number, Bytes in) {
  const SharedLayout& layout = layout_with(&SharedLayout::make, opcode);
  if (opcode == Opcode::create_rmp && (get(in, kQueueType) != 0 || get(in, kQueueUmem) != 0))
    return Refusal::rq_type;
  const std::uint64_t entries = std::uint64_t{1} << get(in, layout.log_entries);
  const std::uint64_t entry = std::uint64_t{layout.entry_unit} << get(in, layout.log_entry);
  if (entries > kMostEntries || entry < kLeastEntryBytes || entry > kMostEntryBytes)
    return Refusal::srq_size;
  const std::uint64_t limit = get(in, layout.limit);
  if (limit > entries) return Refusal::srq_limit;
  const std::uint64_t log_page = get(in, layout.page_size);
  if (log_page > kMostLogPage) return Refusal::no_page;
  const std::uint64_t page = kGuestPage << log_page;
  auto view = GuestView::map(memory_, page_list(in, kPageListAt), page);
  std::uint8_t* const record = memory_.at(get(in, layout.record), kCounterBytes);
  if (!view || record == nullptr) return Refusal::no_page;
  if (get(in, layout.record) % kCounterBytes != 0) return Refusal::record_alignment;
  const std::uint64_t offset = get(in, layout.page_offset) * page / 64;
  if (offset > view->bytes() || entries * entry > view->bytes() - offset) return Refusal::queue_end;
  if (data_ != nullptr) {
    mlx5::SharedReceivesFacts facts;
    facts.number = number;
    facts.pd = static_cast<std::uint32_t>(get(in, layout.pd));
    facts.receives = reinterpret_cast<std::uintptr_t>(view->begin()) + offset;
    facts.record = reinterpret_cast<std::uintptr_t>(record);
    facts.entries = static_cast<std::uint32_t>(entries);
    facts.entry_bytes = static_cast<std::uint32_t>(entry);
    if (!data_->add_shared_receives(facts)) return Refusal::no_room;
    if (limit != 0) (void)data_->set_limit(number, static_cast<std::uint32_t>(limit));
  }
  queue_memory_.emplace(mlx5::Name{Kind::srq, number}, QueueMemory{0, std::move(*view)});
  const Bytes context = in.subspan(layout.context_at, layout.context_bytes);
  shared_receives_.insert_or_assign(number, SharedReceives{opcode,
                                                           {context.begin(), context.end()},
                                                           static_cast<std::uint32_t>(entries),
                                                           static_cast<std::uint32_t>(limit)});
  return make_numbered(Kind::srq, number, in);
}

Refusal Function::set_limit(Opcode opcode, Bytes in) {
  const SharedLayout& layout = layout_with(&SharedLayout::arm, opcode);
  const bool rmp = opcode == Opcode::modify_rmp;
  if (!rmp && get(in, mlx5::kOpMod) != kArmsShared) return Refusal::no_modifier;
  auto it = shared_receives_.find(static_cast<std::uint32_t>(get(in, mlx5::kNumber)));
  if (it == shared_receives_.end() || it->second.made_by != layout.make) return Refusal::no_object;
  if (rmp && (get(in, kRmpState) != kReady || get(in, kRmpNewState) != kReady))
    return Refusal::no_field;
  if (rmp && get(in, kRmpSetsLimit) == 0) return Refusal::none;
  const auto limit = static_cast<std::uint32_t>(get(in, rmp ? layout.limit : kArmLimit));
  if (limit > it->second.entries) return Refusal::srq_limit;
  it->second.limit = limit;
  return data_ == nullptr || data_->set_limit(it->first, limit) ? Refusal::none
                                                                : Refusal::srq_limit;
}

Refusal Function::query_shared(Opcode opcode, Bytes in, Answer out) {
  const SharedLayout& layout = layout_with(&SharedLayout::query, opcode);
  auto it = shared_receives_.find(static_cast<std::uint32_t>(get(in, mlx5::kNumber)));
  if (it == shared_receives_.end() || it->second.made_by != layout.make) return Refusal::no_object;
  std::copy(it->second.context.begin(), it->second.context.end(), out.begin() + layout.context_at);
  // Zero again when its event has been told.
  set(out, layout.limit, data_ == nullptr ? it->second.limit : data_->limit(it->first));
  return Refusal::none;
}

}  // namespace twinpath::softhca::pci
