// Queue pairs of the device model: made, led through their states, asked.
#include <algorithm>
#include <vector>

#include "plugin/fabric/soft/mlx5/device.h"

namespace twinpath::soft::mlx5 {
namespace {

constexpr bool is_kernels(Service service) {
  return service == Service::datagram || service == Service::management ||
         service == Service::general_services || service == Service::key_changes;
}
Service service_of(std::span<const std::uint8_t> command) {
  return static_cast<Service>(get(command, qp::kService));
}
// Of the receive queue (rq_type).
constexpr std::uint64_t kOwnQueue = 0, kSharedQueue = 1, kNoQueue = 3;
// What a queue pair says before it was told: programs ask at once, and refuse what is no MTU.
constexpr std::uint64_t kSmallestMtu = 1;
constexpr std::uint64_t kLargestMtu = 5;
constexpr std::uint64_t kLogLongestMessage = 30;
constexpr std::uint64_t kFirstUdpPort = 0xc000;

// Bits of the option mask: which of the rights a transition changes.
constexpr std::uint64_t kChangesRre = 1u << 1, kChangesRae = 1u << 2, kChangesRwe = 1u << 3,
                        kChangesQkey = 1u << 5, kChangesMinRnrNak = 1u << 6;

struct Transition {
  Opcode opcode;
  State from;
  State to;
};
constexpr Transition kTransitions[] = {
    {Opcode::rst2init_qp, State::reset, State::init},
    {Opcode::init2init_qp, State::init, State::init},
    {Opcode::init2rtr_qp, State::init, State::ready_to_receive},
    {Opcode::rtr2rts_qp, State::ready_to_receive, State::ready_to_send},
    {Opcode::rts2rts_qp, State::ready_to_send, State::ready_to_send},
};

void copy(std::span<std::uint8_t> to, std::span<const std::uint8_t> from,
          std::initializer_list<Field> fields) {
  for (const Field& f : fields) set(to, f, get(from, f));
}

}  // namespace

Refusal Device::check_receive_side(Bytes in) const {
  switch (get(in, qp::kRqType)) {
    case kNoQueue:
    case kOwnQueue:
      return Refusal::none;
    case kSharedQueue:
      return objects_.has({Kind::srq, static_cast<std::uint32_t>(get(in, qp::kSrq))})
                 ? Refusal::none
                 : Refusal::no_srq;
    default:
      return Refusal::rq_type;
  }
}

// What the adapter may not have, or have reserved.
Refusal Device::check_features(Bytes in) const {
  constexpr std::uint64_t kFreeRunning = 0, kOwnChoice = 1, kRealTime = 2;
  const std::uint64_t clock = get(in, qp::kClock);
  bool offered = false;
  switch (facts_.variant.clocks) {
    case Clocks::free_running:
      offered = clock == kFreeRunning;
      break;
    case Clocks::real_time:
      offered = clock == kOwnChoice || clock == kRealTime;
      break;
    case Clocks::both:
      offered = clock <= kRealTime;
      break;
  }
  if (!offered) return Refusal::clock;
  if (get(in, qp::kCdMaster) != 0 && !facts_.variant.waits) return Refusal::cross_channel;
  const bool sends = get(in, qp::kNoSq) == 0;
  return sends && get(in, qp::kLogSqSize) > limits_of(facts_.variant).qp ? Refusal::queue_size
                                                                         : Refusal::none;
}

Refusal Device::create_qp(Bytes in, Answer out) {
  if (in.size() < qp::kBytes) return Refusal::short_command;
  if (get(in, kOpMod) != 0) return Refusal::no_modifier;
  if (get(in, qp::kState) != 0) return Refusal::new_state;
  const Service service = service_of(in);
  if (service != Service::reliable && service != Service::dynamic &&
      !(facts_.kernel && is_kernels(service)))
    return Refusal::service;
  if (get(in, qp::kDbrMode) != 0) return Refusal::record_mode;
  if (const Refusal r = check_features(in); r != Refusal::none) return r;

  const auto name = [&](Kind kind, Field field) {
    return Name{kind, static_cast<std::uint32_t>(get(in, field))};
  };
  std::vector<Name> uses{name(Kind::uar, qp::kUarPage), name(Kind::pd, qp::kPd)};
  if (!objects_.has(uses[0])) return Refusal::no_uar;
  if (!objects_.has(uses[1])) return Refusal::no_pd;
  const bool sends = get(in, qp::kNoSq) == 0;
  const bool receives = get(in, qp::kRqType) != kNoQueue;
  for (const auto& [needed, field] :
       {std::pair{sends, qp::kSendCq}, std::pair{receives, qp::kReceiveCq}}) {
    if (!needed) continue;
    uses.push_back(name(Kind::cq, field));
    if (!objects_.has(uses.back())) return Refusal::no_cq;
  }
  if (const Refusal r = check_receive_side(in); r != Refusal::none) return r;
  if (get(in, qp::kRqType) == kSharedQueue) uses.push_back(name(Kind::srq, qp::kSrq));

  // Receives lie before sends in one memory.
  const std::uint64_t receive_bytes =
      get(in, qp::kRqType) == kOwnQueue
          ? std::uint64_t{16} << (get(in, qp::kLogRqStride) + get(in, qp::kLogRqSize))
          : 0;
  const std::uint64_t send_bytes = sends ? std::uint64_t{64} << get(in, qp::kLogSqSize) : 0;
  const Name queue = name(Kind::umem, qp::kUmem), record = name(Kind::umem, qp::kDbrUmem);
  if (const Refusal r =
          check_queue(queue.number, get(in, qp::kUmemOffset), receive_bytes + send_bytes);
      r != Refusal::none)
    return r;
  if (const Refusal r = check_record(record.number, get(in, qp::kDbrAddress)); r != Refusal::none)
    return r;
  uses.push_back(queue);
  uses.push_back(record);

  std::uint32_t number = 0;
  if (queues_ == nullptr) {
    number = next_number();
  } else {
    QueuePairFacts facts;
    facts.service = service;
    facts.pd = uses[1].number;
    facts.uar = uses[0].number;
    facts.send_cq = sends ? name(Kind::cq, qp::kSendCq).number : 0;
    facts.receive_cq = receives ? name(Kind::cq, qp::kReceiveCq).number : 0;
    facts.receives = address(queue.number, get(in, qp::kUmemOffset));
    facts.sends = facts.receives + receive_bytes;
    facts.record = address(record.number, get(in, qp::kDbrAddress));
    facts.receive_bytes = receive_bytes == 0 ? 0 : std::uint64_t{16} << get(in, qp::kLogRqStride);
    facts.receive_entries = receive_bytes == 0 ? 0 : receive_bytes / facts.receive_bytes;
    facts.send_blocks = send_bytes / 64;
    facts.user_index = static_cast<std::uint32_t>(get(in, qp::kUserIndex));
    facts.srq = get(in, qp::kRqType) == kSharedQueue ? name(Kind::srq, qp::kSrq).number : 0;
    number = queues_->make(facts);
    if (number == 0) return Refusal::no_room;
  }
  objects_.add({Kind::qp, number}, uses);
  QueuePair& made = queue_pairs_[number];
  std::copy_n(in.begin(), qp::kBytes, made.context.begin());
  set(made.context, qp::kMtu, kSmallestMtu);
  set(out, kNumber, number);
  return Refusal::none;
}

Refusal Device::check_init(Bytes in) const {
  const std::uint64_t port = get(in, qp::kPort);
  if (port == 0 || port > facts_.ports) return Refusal::no_port;
  if (get(in, qp::kPkeyIndex) != 0) return Refusal::no_pkey;
  if (get(in, qp::kRae) != 0 && get(in, qp::kAtomicMode) == 0) return Refusal::atomic_mode;
  return Refusal::none;
}

Refusal Device::check_address(Bytes in) const {
  const bool routed = facts_.ethernet || get(in, qp::kGrh) != 0;
  if (!routed) return get(in, qp::kRemoteLid) == 0 ? Refusal::remote_lid : Refusal::none;
  if (get(in, qp::kGidIndex) >= facts_.gid_entries) return Refusal::no_gid;
  if (get(in, qp::kRemoteGidHigh) == 0 && get(in, qp::kRemoteGidLow) == 0)
    return Refusal::remote_gid;
  if (!facts_.ethernet) return Refusal::none;
  if (get(in, qp::kRemoteMac) == 0) return Refusal::remote_mac;
  return get(in, qp::kUdpPort) < kFirstUdpPort ? Refusal::udp_port : Refusal::none;
}

Refusal Device::check_ready_to_receive(const QueuePair& qp, Bytes in) const {
  const std::uint64_t mtu = get(in, qp::kMtu);
  if (mtu < kSmallestMtu || mtu > kLargestMtu) return Refusal::mtu;
  if (get(in, qp::kLogMessage) > kLogLongestMessage) return Refusal::message;
  if (get(in, qp::kLogRraMax) > limits_of(facts_.variant).reads) return Refusal::reads;
  // A dynamic queue pair has the address in each work request.
  if (service_of(qp.context) == Service::dynamic) return Refusal::none;
  return check_address(in);
}

Refusal Device::modify_qp(Opcode opcode, Bytes in) {
  auto it = queue_pairs_.find(static_cast<std::uint32_t>(get(in, kNumber)));
  if (it == queue_pairs_.end()) return Refusal::no_object;
  QueuePair& changed = it->second;
  if (get(in, kOpMod) != 0) return Refusal::no_modifier;
  if (opcode == Opcode::qp_2err || opcode == Opcode::qp_2rst) {  // from anywhere
    changed.state = opcode == Opcode::qp_2err ? State::error : State::reset;
    if (queues_ != nullptr) (void)queues_->change(it->first, changed.state, changed.context);
    return Refusal::none;
  }
  if (in.size() < qp::kBytes) return Refusal::short_command;
  const auto* const transition =
      std::find_if(std::begin(kTransitions), std::end(kTransitions),
                   [&](const Transition& t) { return t.opcode == opcode; });
  if (changed.state != transition->from) return Refusal::state;

  if (facts_.kernel && is_kernels(service_of(changed.context))) {
    const bool begins = opcode == Opcode::rst2init_qp;
    if (begins) copy(changed.context, in, {qp::kPort, qp::kPkeyIndex});
    if (begins || (get(in, qp::kOptions) & kChangesQkey) != 0)
      copy(changed.context, in, {qp::kQkey});
    if (opcode == Opcode::rtr2rts_qp) copy(changed.context, in, {qp::kNextSendPsn});
    if (queues_ != nullptr && !queues_->change(it->first, transition->to, changed.context))
      return Refusal::not_done;
    changed.state = transition->to;
    return Refusal::none;
  }
  const std::span<std::uint8_t> context(changed.context);
  Refusal refusal = Refusal::none;
  switch (opcode) {
    case Opcode::rst2init_qp:
      // The first transition sets the rights without being told by the mask; later ones change only
      // what the mask names, and what they carry beside is no matter.
      if (refusal = check_init(in); refusal != Refusal::none) return refusal;
      copy(context, in,
           {qp::kPort, qp::kPkeyIndex, qp::kMigration, qp::kRre, qp::kRwe, qp::kRae,
            qp::kAtomicMode});
      break;
    case Opcode::init2rtr_qp:
      if (refusal = check_ready_to_receive(changed, in); refusal != Refusal::none) return refusal;
      copy(context, in,
           {qp::kMtu, qp::kLogMessage, qp::kLogRraMax, qp::kMinRnrNak, qp::kNextReceivePsn,
            qp::kRemoteQpn, qp::kGrh, qp::kRemoteLid, qp::kGidIndex, qp::kHopLimit,
            qp::kTrafficClass, qp::kRemoteGidHigh, qp::kRemoteGidLow, qp::kDscp, qp::kUdpPort,
            qp::kServiceLevel, qp::kRemoteMac});
      break;
    case Opcode::rtr2rts_qp:
      if (get(in, qp::kLogSraMax) > limits_of(facts_.variant).reads) return Refusal::reads;
      copy(context, in,
           {qp::kAckTimeout, qp::kRetryCount, qp::kRnrRetry, qp::kNextSendPsn, qp::kLogSraMax});
      break;
    default:
      break;
  }
  const std::uint64_t mask = get(in, qp::kOptions);
  if ((mask & kChangesRre) != 0) copy(context, in, {qp::kRre});
  if ((mask & kChangesRwe) != 0) copy(context, in, {qp::kRwe});
  if ((mask & kChangesMinRnrNak) != 0) copy(context, in, {qp::kMinRnrNak});
  if ((mask & kChangesRae) != 0) copy(context, in, {qp::kRae, qp::kAtomicMode});
  if (queues_ != nullptr && !queues_->change(it->first, transition->to, changed.context))
    return Refusal::not_done;
  changed.state = transition->to;
  return Refusal::none;
}

Refusal Device::query_qp(Bytes in, Answer out) const {
  auto it = queue_pairs_.find(static_cast<std::uint32_t>(get(in, kNumber)));
  if (it == queue_pairs_.end()) return Refusal::no_object;
  if (out.size() < qp::kBytes) return Refusal::short_answer;
  const auto& context = it->second.context;
  std::copy_n(context.begin() + qp::kContext, qp::kContextBytes, out.begin() + qp::kContext);
  const bool failed = queues_ != nullptr && queues_->failed(it->first);
  set(out, qp::kState, static_cast<std::uint64_t>(failed ? State::error : it->second.state));
  return Refusal::none;
}

}  // namespace twinpath::soft::mlx5
