// The function's objects: made, changed, asked, destroyed.
#include <algorithm>
#include <array>

#include "plugin/fabric/soft/mlx5/capabilities.h"
#include "plugin/fabric/soft/mlx5/layout.h"
#include "tools/softhca/pci/capabilities.h"
#include "tools/softhca/pci/function.h"

namespace twinpath::softhca::pci {
namespace {

using mlx5::Field;
using mlx5::get;
using mlx5::Kind;
using mlx5::Opcode;
using mlx5::Refusal;
using mlx5::set;

struct Maker {
  Opcode opcode;
  Kind kind;
  std::uint32_t first, end;  // of its numbers
};
constexpr std::uint32_t kQueuesEnd = 1u << kLogMostQueues, kDomainsEnd = 1u << kLogMostDomains;
constexpr Maker kMakers[] = {
    {Opcode::create_eq, Kind::eq, mlx5::kFirstEventQueue, 1u << kLogMostEventQueues},
    {Opcode::create_mkey, Kind::mkey, 0x10, 1u << kLogMostKeys},
    {Opcode::create_cq, Kind::cq, 1, kQueuesEnd},
    {Opcode::create_qp, Kind::qp, 0x40, kQueuesEnd},  // 0 and 1 are the management's
    // One space of numbers: a queue pair names any of them in one field.
    {Opcode::create_srq, Kind::srq, 1, kQueuesEnd},
    {Opcode::create_xrc_srq, Kind::srq, 1, kQueuesEnd},
    {Opcode::create_rmp, Kind::srq, 1, kQueuesEnd},
    {Opcode::create_umem, Kind::umem, 1, kDomainsEnd},
    {Opcode::create_uctx, Kind::user_context, 1, 1u << 10},
    {Opcode::alloc_uar, Kind::uar, 0, 0},  // make_doorbell_pages
    {Opcode::alloc_pd, Kind::pd, 1, kDomainsEnd},
    {Opcode::alloc_xrcd, Kind::xrcd, 1, kDomainsEnd},
    {Opcode::alloc_transport_domain, Kind::transport_domain, 1, kDomainsEnd},
    {Opcode::alloc_q_counter, Kind::counter_set, 1, 0x100},
};
constexpr Field kMadeSet{88, 8};  // the number of a counter set in an answer
constexpr Field kMadeEq{88, 8};
constexpr Field kMadeUid{80, 16};

struct Use {
  Opcode opcode;
  Kind kind;
  Field field;
  Refusal missing;
  bool optional = false;  // 0 is none
};
constexpr Use kUses[] = {
    {Opcode::create_eq, Kind::uar, {232, 24}, Refusal::no_uar},
    {Opcode::create_cq, Kind::uar, {232, 24}, Refusal::no_uar},
    {Opcode::create_cq, Kind::eq, {312, 8}, Refusal::no_eqn},
    {Opcode::create_mkey, Kind::pd, {232, 24}, Refusal::no_pd, true},
    {Opcode::create_qp, Kind::pd, mlx5::qp::kPd, Refusal::no_pd, true},
    {Opcode::create_qp, Kind::uar, mlx5::qp::kUarPage, Refusal::no_uar},
    {Opcode::create_qp, Kind::cq, mlx5::qp::kSendCq, Refusal::no_cq, true},
    {Opcode::create_qp, Kind::cq, mlx5::qp::kReceiveCq, Refusal::no_cq, true},
    {Opcode::create_qp, Kind::srq, mlx5::qp::kSrq, Refusal::no_srq, true},
    {Opcode::create_srq, Kind::pd, {328, 24}, Refusal::no_pd},
    {Opcode::create_xrc_srq, Kind::pd, {328, 24}, Refusal::no_pd},
    {Opcode::create_xrc_srq, Kind::xrcd, {168, 24}, Refusal::no_object, true},
    {Opcode::create_xrc_srq, Kind::cq, {200, 24}, Refusal::no_cq, true},
    {Opcode::create_rmp, Kind::pd, {712, 24}, Refusal::no_pd},
};

// Of a queue pair: a receive queue that is shared (rq_type); the kernel's own service (st) whose
// work requests change keys of any protection domain.
constexpr std::uint64_t kSharedQueue = 1, kKeyUpdates = 12;

constexpr std::uint64_t kRecordBytes = 8;
constexpr std::size_t kUmemList = 48;
constexpr Field kQueueLogPageSize = Field{163, 5}.at(mlx5::qp::kContext);

struct Destroyer {
  Opcode opcode;
  Kind kind;
  Field number = mlx5::kNumber;
};
constexpr Destroyer kDestroyers[] = {
    {Opcode::destroy_eq, Kind::eq, kMadeEq},
    {Opcode::destroy_mkey, Kind::mkey},
    {Opcode::destroy_cq, Kind::cq},
    {Opcode::destroy_qp, Kind::qp},
    {Opcode::destroy_srq, Kind::srq},
    {Opcode::destroy_xrc_srq, Kind::srq},
    {Opcode::destroy_rmp, Kind::srq},
    {Opcode::destroy_umem, Kind::umem},
    {Opcode::destroy_uctx, Kind::user_context, kMadeUid},
    {Opcode::dealloc_uar, Kind::uar},
    {Opcode::dealloc_pd, Kind::pd},
    {Opcode::dealloc_xrcd, Kind::xrcd},
    {Opcode::dealloc_transport_domain, Kind::transport_domain},
    {Opcode::dealloc_q_counter, Kind::counter_set, kMadeSet},
};

Field made_number(Kind kind) {
  for (const Destroyer& d : kDestroyers) {
    if (d.kind == kind) return d.number;
  }
  return mlx5::kNumber;
}

}  // namespace

// `many` times the next that nobody has, from the last one on: a number that has just been given
// back is not given again at once.  0: there is none.
std::uint32_t Function::free_number(Kind kind, std::uint32_t first, std::uint32_t end,
                                    std::uint32_t many) {
  std::uint32_t& last = last_numbers_[kind];
  for (std::uint32_t tries = end - first; tries != 0; --tries) {
    last = last + 1 < first || last + 1 >= end ? first : last + 1;
    if (!objects_.has({kind, last * many})) return last * many;
  }
  return 0;
}

Refusal Function::make(Opcode opcode, Bytes in, Answer out) {
  const auto* const maker = std::find_if(std::begin(kMakers), std::end(kMakers),
                                         [&](const Maker& m) { return m.opcode == opcode; });
  if (maker == std::end(kMakers)) return Refusal::no_command;
  std::vector<mlx5::Name> uses;
  for (const Use& use : kUses) {
    if (use.opcode != opcode) continue;
    const mlx5::Name used{use.kind, static_cast<std::uint32_t>(get(in, use.field))};
    if (used.number == 0 && use.optional) continue;
    if (opcode == Opcode::create_qp && use.kind == Kind::srq &&
        get(in, mlx5::qp::kRqType) != kSharedQueue)
      continue;  // the driver names one in any case
    if (!objects_.has(used)) return use.missing;
    uses.push_back(used);
  }
  if (opcode == Opcode::create_qp && get(in, mlx5::qp::kPd) == 0 &&
      get(in, mlx5::qp::kService) != kKeyUpdates)
    return Refusal::no_pd;
  std::uint32_t number = 0;
  Refusal refusal = Refusal::none;
  if (maker->kind == Kind::cq || maker->kind == Kind::qp) {
    refusal = make_queue(maker->kind, in, out, number);
  } else if (maker->kind == Kind::umem) {
    refusal = make_umem(in, number);
  } else if (maker->kind == Kind::mkey && data_ != nullptr) {
    refusal = data_->keys().add(in, number);
  } else if (maker->kind == Kind::uar) {
    refusal = make_doorbell_pages(number);
  } else {
    number = free_number(maker->kind, maker->first, maker->end);
    refusal = number == 0                ? Refusal::no_number
              : maker->kind == Kind::srq ? make_shared(opcode, number, in)
                                         : make_numbered(maker->kind, number, in);
  }
  if (refusal != Refusal::none) return refusal;
  objects_.add({maker->kind, number}, uses);
  set(out, made_number(maker->kind), number);
  return Refusal::none;
}

// Those that queues are made of are told to the device model.
Refusal Function::make_numbered(Kind kind, std::uint32_t number, Bytes in) {
  switch (kind) {
    case Kind::eq:
      return events_.make(number, in);
    case Kind::pd:
      if (data_ != nullptr && !data_->add_domain(number)) return Refusal::no_number;
      break;
    case Kind::srq:
      break;  // made already
    default:
      return Refusal::none;
  }
  device_->add_verbs_object({kind, number});
  return Refusal::none;
}

// The pages that the command lists, as a memory of the device model; a command that names such a
// memory already is left as it is.
Refusal Function::map_queue(Kind kind, std::span<std::uint8_t> command,
                            std::optional<QueueMemory>& memory) {
  const bool cq = kind == Kind::cq;
  if (get(command, cq ? mlx5::cq::kUmemValid : mlx5::qp::kUmemValid) != 0) return Refusal::none;
  const std::uint64_t page = kGuestPage
                             << get(command, cq ? mlx5::cq::kLogPageSize : kQueueLogPageSize);
  const std::uint64_t place = get(command, cq ? mlx5::cq::kPageOffset : mlx5::qp::kPageOffset);
  auto view = GuestView::map(memory_, page_list(command, kPageListAt), page);
  if (!view) return Refusal::no_page;
  const std::uint32_t umem =
      device_->add_umem({reinterpret_cast<std::uintptr_t>(view->begin()), view->bytes(), page});
  set(command, cq ? mlx5::cq::kUmem : mlx5::qp::kUmem, umem);
  set(command, cq ? mlx5::cq::kUmemOffset : mlx5::qp::kUmemOffset, place * page / 64);
  memory.emplace(QueueMemory{umem, std::move(*view)});
  return Refusal::none;
}

// Likewise the doorbell record at its address in the guest.
Refusal Function::make_queue(Kind kind, Bytes in, Answer out, std::uint32_t& number) {
  const bool cq = kind == Kind::cq;
  std::vector<std::uint8_t> command(in.begin(), in.end());
  if (get(in, cq ? mlx5::cq::kDbrUmemValid : mlx5::qp::kDbrUmemValid) == 0) {
    const Field address = cq ? mlx5::cq::kDbrAddress : mlx5::qp::kDbrAddress;
    const std::uint8_t* const record = memory_.at(get(in, address), kRecordBytes);
    if (record == nullptr) return Refusal::no_page;
    set(command, address, memory_.offset_of(record));
    set(command, cq ? mlx5::cq::kDbrUmem : mlx5::qp::kDbrUmem, whole_memory_);
  }
  std::optional<QueueMemory> memory;
  if (const Refusal r = map_queue(kind, command, memory); r != Refusal::none) return r;
  const Refusal refusal = device_->execute(command, out);
  if (refusal != Refusal::none) {
    if (memory) (void)device_->remove({Kind::umem, memory->umem});
    return refusal;
  }
  number = static_cast<std::uint32_t>(get(out, mlx5::kNumber));
  if (memory) queue_memory_.emplace(mlx5::Name{kind, number}, std::move(*memory));
  return Refusal::none;
}

Refusal Function::resize_cq(Bytes in, Answer out) {
  const mlx5::Name name{Kind::cq, static_cast<std::uint32_t>(get(in, mlx5::kNumber))};
  if (!objects_.has(name)) return Refusal::no_object;
  std::vector<std::uint8_t> command(in.begin(), in.end());
  std::optional<QueueMemory> memory;
  if (const Refusal r = map_queue(Kind::cq, command, memory); r != Refusal::none) return r;
  const Refusal refusal = device_->execute(command, out);
  if (refusal != Refusal::none) {
    if (memory) (void)device_->remove({Kind::umem, memory->umem});
    return refusal;
  }
  let_go(name);
  if (memory) queue_memory_.emplace(name, std::move(*memory));
  return Refusal::none;
}

// The pages of what does not use them any more.
void Function::let_go(mlx5::Name name) {
  auto it = queue_memory_.find(name);
  if (it == queue_memory_.end()) return;
  if (it->second.umem != 0) (void)device_->remove({Kind::umem, it->second.umem});
  queue_memory_.erase(it);
}

Refusal Function::make_umem(Bytes in, std::uint32_t& number) {
  const std::uint64_t page = kGuestPage << get(in, {283, 5});
  const std::uint64_t offset = get(in, {288, 32}), count = get(in, {320, 64});
  std::vector<std::uint64_t> pages = page_list(in, kUmemList);
  if (count > pages.size() || offset >= page) return Refusal::short_command;
  pages.resize(count);
  auto view = GuestView::map(memory_, pages, page);
  if (!view) return Refusal::no_page;
  number = device_->add_umem(
      {reinterpret_cast<std::uintptr_t>(view->begin()) + offset, view->bytes() - offset, page});
  queue_memory_.emplace(mlx5::Name{Kind::umem, number}, QueueMemory{0, std::move(*view)});
  return Refusal::none;
}

Refusal Function::destroy(Opcode opcode, Bytes in) {
  const auto* const found = std::find_if(std::begin(kDestroyers), std::end(kDestroyers),
                                         [&](const Destroyer& d) { return d.opcode == opcode; });
  if (found == std::end(kDestroyers)) return Refusal::no_command;
  const mlx5::Name name{found->kind, static_cast<std::uint32_t>(get(in, found->number))};
  if (!objects_.has(name)) return Refusal::no_object;
  if (objects_.in_use(name)) return Refusal::in_use;
  switch (name.kind) {
    case Kind::eq:
      events_.destroy(name.number);
      break;
    case Kind::uar:
      if (const Refusal r = remove_doorbell_pages(name.number); r != Refusal::none) return r;
      break;
    case Kind::mkey:
      if (data_ != nullptr) data_->keys().remove(name.number);
      break;
    case Kind::cq:
    case Kind::qp:
    case Kind::umem:
    case Kind::pd:
    case Kind::srq:
      if (const Refusal r = device_->remove(name); r != Refusal::none) return r;
      if (data_ != nullptr && name.kind == Kind::pd) data_->remove_domain(name.number);
      if (name.kind == Kind::srq) {
        shared_receives_.erase(name.number);
        if (data_ != nullptr) data_->remove_shared_receives(name.number);
      }
      break;
    default:
      break;
  }
  objects_.remove(name);
  let_go(name);
  return Refusal::none;
}

}  // namespace twinpath::softhca::pci
