// The function's objects: made, changed, asked, destroyed.
#include <algorithm>
#include <array>

#include "plugin/fabric/soft/mlx5/capabilities.h"
#include "plugin/fabric/soft/mlx5/layout.h"
#include "plugin/fabric/soft/mlx5/queues.h"
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
using mlx5::State;

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
    {Opcode::alloc_uar, Kind::uar, kFirstDoorbellPage, 0},  // to the end of the BAR
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

struct Transition {
  Opcode opcode;
  State from, to;
};
constexpr Transition kTransitions[] = {
    {Opcode::rst2init_qp, State::reset, State::init},
    {Opcode::init2init_qp, State::init, State::init},
    {Opcode::init2rtr_qp, State::init, State::ready_to_receive},
    {Opcode::rtr2rts_qp, State::ready_to_receive, State::ready_to_send},
    {Opcode::rts2rts_qp, State::ready_to_send, State::ready_to_send},
};

}  // namespace

// The next that nobody has, from the last one on: a number that has just been given back is not
// given again at once.  0: there is none.
std::uint32_t Function::free_number(Kind kind, std::uint32_t first, std::uint32_t end) {
  std::uint32_t& last = last_numbers_[kind];
  for (std::uint32_t tries = end - first; tries != 0; --tries) {
    last = last + 1 < first || last + 1 >= end ? first : last + 1;
    if (!objects_.has({kind, last})) return last;
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
  const std::uint32_t number = free_number(maker->kind, maker->first,
                                           maker->kind == Kind::uar ? doorbell_pages_ : maker->end);
  if (number == 0) return Refusal::no_number;
  if (opcode == Opcode::create_eq) {
    if (const Refusal r = events_.make(number, in); r != Refusal::none) return r;
  }
  if (opcode == Opcode::create_qp) {
    if (get(in, mlx5::qp::kState) != 0) return Refusal::new_state;
    if (get(in, mlx5::qp::kPd) == 0 && get(in, mlx5::qp::kService) != kKeyUpdates)
      return Refusal::no_pd;
    queue_pairs_[number].assign(in.begin(), in.begin() + mlx5::qp::kBytes);
  }
  objects_.add({maker->kind, number}, uses);
  set(out, made_number(maker->kind), number);
  return Refusal::none;
}

Refusal Function::destroy(Opcode opcode, Bytes in) {
  const auto* const found = std::find_if(std::begin(kDestroyers), std::end(kDestroyers),
                                         [&](const Destroyer& d) { return d.opcode == opcode; });
  if (found == std::end(kDestroyers)) return Refusal::no_command;
  const mlx5::Name name{found->kind, static_cast<std::uint32_t>(get(in, found->number))};
  if (!objects_.has(name)) return Refusal::no_object;
  if (objects_.in_use(name)) return Refusal::in_use;
  objects_.remove(name);
  if (name.kind == Kind::eq) events_.destroy(name.number);
  if (name.kind == Kind::qp) queue_pairs_.erase(name.number);
  return Refusal::none;
}

Refusal Function::modify_qp(Opcode opcode, Bytes in) {
  auto it = queue_pairs_.find(static_cast<std::uint32_t>(get(in, mlx5::kNumber)));
  if (it == queue_pairs_.end()) return Refusal::no_object;
  const auto enter = [&](State to) {
    set(it->second, mlx5::qp::kState, static_cast<std::uint64_t>(to));
    return Refusal::none;
  };
  if (opcode == Opcode::qp_2err) return enter(State::error);  // from anywhere
  if (opcode == Opcode::qp_2rst) return enter(State::reset);
  const auto* const transition =
      std::find_if(std::begin(kTransitions), std::end(kTransitions),
                   [&](const Transition& t) { return t.opcode == opcode; });
  if (get(it->second, mlx5::qp::kState) != static_cast<std::uint64_t>(transition->from))
    return Refusal::state;
  return enter(transition->to);
}

Refusal Function::query_qp(Bytes in, Answer out) {
  auto it = queue_pairs_.find(static_cast<std::uint32_t>(get(in, mlx5::kNumber)));
  if (it == queue_pairs_.end()) return Refusal::no_object;
  std::copy_n(it->second.begin() + mlx5::qp::kContext, mlx5::qp::kContextBytes,
              out.begin() + mlx5::qp::kContext);
  return Refusal::none;
}

}  // namespace twinpath::softhca::pci
