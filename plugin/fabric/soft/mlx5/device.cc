#include "plugin/fabric/soft/mlx5/device.h"

#include <algorithm>
#include <utility>

namespace twinpath::soft::mlx5 {

Device::Device(const DeviceFacts& facts, GidLookup gids, std::atomic<std::uint32_t>& numbers,
               Queues* queues)
    : facts_(facts), gids_(std::move(gids)), numbers_(numbers), queues_(queues) {}

std::uint32_t Device::next_number() { return ++numbers_ & 0xffffff; }

std::uint32_t Device::add_uar() {
  std::lock_guard hold(lock_);
  const std::uint32_t number = next_number();
  objects_.add({Kind::uar, number});
  return number;
}

std::uint32_t Device::add_umem(const Umem& umem) {
  std::lock_guard hold(lock_);
  const std::uint32_t number = next_number();
  objects_.add({Kind::umem, number});
  umems_[number] = umem;
  return number;
}

void Device::add_verbs_object(Name name) {
  std::lock_guard hold(lock_);
  if (!objects_.has(name)) objects_.add(name);
}

Refusal Device::remove(Name name) {
  std::lock_guard hold(lock_);
  if (!objects_.has(name)) return Refusal::no_object;
  if (objects_.in_use(name)) return Refusal::in_use;
  objects_.remove(name);
  if (queues_ != nullptr && name.kind == Kind::cq) queues_->destroy_cq(name.number);
  if (queues_ != nullptr && name.kind == Kind::qp) queues_->destroy_qp(name.number);
  if (name.kind == Kind::umem) umems_.erase(name.number);
  if (name.kind == Kind::qp) queue_pairs_.erase(name.number);
  if (name.kind == Kind::cq) completion_memories_.erase(name.number);
  return Refusal::none;
}

Refusal Device::execute(Bytes in, Answer out) {
  std::fill(out.begin(), out.end(), std::uint8_t{0});
  std::lock_guard hold(lock_);
  const Refusal refusal = dispatch(in, out);
  if (refusal != Refusal::none) refuse(refusal, out);
  return refusal;
}

Refusal Device::dispatch(Bytes in, Answer out) {
  const auto opcode = static_cast<Opcode>(get(in, kOpcode));
  switch (opcode) {
    case Opcode::query_hca_cap:
      return query_capabilities(in, out);
    case Opcode::query_roce_address:
      return query_roce_address(in, out);
    case Opcode::query_hca_vport_context:
      return query_vport(in, out);
    case Opcode::create_cq:
      return create_cq(in, out);
    case Opcode::modify_cq:
      return resize_cq(in);
    case Opcode::create_qp:
      return create_qp(in, out);
    case Opcode::rst2init_qp:
    case Opcode::init2init_qp:
    case Opcode::init2rtr_qp:
    case Opcode::rtr2rts_qp:
    case Opcode::rts2rts_qp:
    case Opcode::qp_2err:
    case Opcode::qp_2rst:
      return modify_qp(opcode, in);
    case Opcode::query_qp:
      return query_qp(in, out);
    default:
      return Refusal::no_command;
  }
}

Refusal Device::query_capabilities(Bytes in, Answer out) const {
  const auto kind = static_cast<unsigned>(get(in, kOpMod) >> 1);
  return write_capabilities(kind, facts_, out) ? Refusal::none : Refusal::no_modifier;
}

Refusal Device::query_roce_address(Bytes in, Answer out) const {
  if (get(in, kOpMod) != 0) return Refusal::no_modifier;
  if (out.size() < kHeaderBytes + 32) return Refusal::short_answer;
  const auto asked = static_cast<unsigned>(get(in, roce::kPort));
  const unsigned port = asked == 0 ? 1 : asked;
  if (port > facts_.ports) return Refusal::no_port;
  std::array<std::uint8_t, 16> gid{};
  if (!gids_(port, static_cast<unsigned>(get(in, roce::kIndex)), gid)) return Refusal::no_gid;
  set(out, roce::kGidHigh, get(gid, {0, 64}));
  set(out, roce::kGidLow, get(gid, {64, 64}));
  set(out, roce::kL3Type, gid[0] == 0xfe ? 1 : 0);
  set(out, roce::kVersion, 2);
  return Refusal::none;
}

Refusal Device::query_vport(Bytes in, Answer out) const {
  if (get(in, kOpMod) != 0) return Refusal::no_modifier;
  if (out.size() < vport::kBytes) return Refusal::short_answer;
  const auto asked = static_cast<std::size_t>(get(in, vport::kPort));
  const std::size_t port = asked == 0 ? 1 : asked;
  if (port > facts_.ports) return Refusal::no_port;
  constexpr std::uint64_t kActive = 4;
  set(out, vport::kPortState, kActive);
  if (port <= facts_.lids.size()) set(out, vport::kLid, facts_.lids[port - 1]);
  return Refusal::none;
}

Refusal Device::check_queue(std::uint32_t umem, std::uint64_t offset, std::uint64_t bytes) const {
  auto it = umems_.find(umem);
  if (it == umems_.end()) return Refusal::no_umem;
  // Places in a page are told in 64ths of it.
  if (offset % (it->second.page_bytes / 64) != 0) return Refusal::queue_alignment;
  if (offset > it->second.bytes || bytes > it->second.bytes - offset) return Refusal::queue_end;
  return Refusal::none;
}

Refusal Device::check_record(std::uint32_t umem, std::uint64_t offset) const {
  constexpr std::uint64_t kRecordBytes = 8;
  auto it = umems_.find(umem);
  if (it == umems_.end()) return Refusal::no_record_umem;
  if (offset % kRecordBytes != 0) return Refusal::record_alignment;
  if (offset > it->second.bytes || kRecordBytes > it->second.bytes - offset)
    return Refusal::record_end;
  return Refusal::none;
}

std::uint64_t Device::address(std::uint32_t umem, std::uint64_t offset) const {
  return umems_.at(umem).address + offset;
}

Refusal Device::create_cq(Bytes in, Answer out) {
  if (in.size() < cq::kBytes) return Refusal::short_command;
  if (get(in, kOpMod) != 0) return Refusal::no_modifier;
  const Name uar{Kind::uar, static_cast<std::uint32_t>(get(in, cq::kUarPage))};
  const Name queue{Kind::umem, static_cast<std::uint32_t>(get(in, cq::kUmem))};
  const Name record{Kind::umem, static_cast<std::uint32_t>(get(in, cq::kDbrUmem))};
  if (!objects_.has(uar)) return Refusal::no_uar;
  const std::uint64_t eqn = get(in, cq::kEqn);
  if (!has_event_queue(eqn)) return Refusal::no_eqn;
  if (get(in, cq::kCqeSize) > 1) return Refusal::cqe_size;
  const std::uint64_t entry = get(in, cq::kCqeSize) == 0 ? 64 : 128;
  if (get(in, cq::kLogSize) > limits_of(facts_.variant).cq) return Refusal::cq_size;
  // A collapsed queue writes its first entry only.
  const bool collapsed = get(in, cq::kCollapsed) != 0;
  const std::uint64_t entries = collapsed ? 1 : std::uint64_t{1} << get(in, cq::kLogSize);
  // The bits that say whether the memories are valid are no matter: the kernel sets them.
  if (const Refusal r = check_queue(queue.number, get(in, cq::kUmemOffset), entries * entry);
      r != Refusal::none)
    return r;
  if (const Refusal r = check_record(record.number, get(in, cq::kDbrAddress)); r != Refusal::none)
    return r;
  const std::uint32_t number = next_number();
  objects_.add({Kind::cq, number}, std::array{uar, queue, record});
  completion_memories_.insert_or_assign(number, queue);
  if (queues_ != nullptr) {
    CompletionQueueFacts facts;
    facts.number = number;
    facts.address = address(queue.number, get(in, cq::kUmemOffset));
    facts.record = address(record.number, get(in, cq::kDbrAddress));
    facts.log_entries = static_cast<unsigned>(get(in, cq::kLogSize));
    facts.entry_bytes = static_cast<unsigned>(entry);
    facts.collapsed = collapsed;
    facts.ignores_overrun = get(in, cq::kIgnoreOverrun) != 0;
    facts.uar = uar.number;
    if (facts_.notify) {
      facts.notify = [tell = facts_.notify,
                      eqn = static_cast<std::uint32_t>(eqn)](std::uint32_t cqn) { tell(eqn, cqn); };
    }
    facts.overflowed = facts_.overflow;
    queues_->make(facts);
  }
  set(out, kNumber, number);
  return Refusal::none;
}

// MODIFY_CQ, as far as it gives a queue another memory.
Refusal Device::resize_cq(Bytes in) {
  constexpr std::uint64_t kResize = 1;                   // op_mod
  constexpr std::uint64_t kSizeOffsetAndPageSize = 0x7;  // resize_field_select
  if (in.size() < cq::kBytes) return Refusal::short_command;
  if (get(in, kOpMod) != kResize) return Refusal::no_modifier;
  if (get(in, cq::kResizes) != kSizeOffsetAndPageSize) return Refusal::no_field;
  const Name name{Kind::cq, static_cast<std::uint32_t>(get(in, kNumber))};
  const Name queue{Kind::umem, static_cast<std::uint32_t>(get(in, cq::kUmem))};
  if (!objects_.has(name)) return Refusal::no_object;
  if (get(in, cq::kCqeSize) > 1) return Refusal::cqe_size;
  CompletionQueueFacts to;
  to.number = name.number;
  to.log_entries = static_cast<unsigned>(get(in, cq::kLogSize));
  to.entry_bytes = get(in, cq::kCqeSize) == 0 ? 64 : 128;
  if (to.log_entries > limits_of(facts_.variant).cq) return Refusal::cq_size;
  const std::uint64_t bytes = std::uint64_t{to.entry_bytes} << to.log_entries;
  if (const Refusal r = check_queue(queue.number, get(in, cq::kUmemOffset), bytes);
      r != Refusal::none)
    return r;
  to.address = address(queue.number, get(in, cq::kUmemOffset));
  if (queues_ != nullptr && !queues_->resize(to)) return Refusal::outstanding;
  objects_.use_instead(name, completion_memories_.at(name.number), queue);
  completion_memories_.at(name.number) = queue;
  return Refusal::none;
}

}  // namespace twinpath::soft::mlx5
