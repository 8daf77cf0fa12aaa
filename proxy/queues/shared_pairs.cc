#include "proxy/queues/shared_pairs.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "proxy/queues/receive_queue.h"

namespace twinpath {
namespace {

// One in so many is signalled at least, so that the adapter gives the places back.
constexpr std::uint32_t kSignalPeriod = 32;
static_assert(SharedPairs::kDepth % kRecvChain == 0);
static_assert(SharedPairs::kMostChain + kSignalPeriod < SharedPairs::kDepth);
// A place in the send queue fits into the generation of a wr_id.
static_assert((SharedPairs::kDepth & (SharedPairs::kDepth - 1)) == 0 &&
              SharedPairs::kDepth <= 0x10000);

bool has_immediate(const ibv_send_wr& wr) { return wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM; }

std::uint32_t length_of(const ibv_send_wr& wr) { return wr.num_sge > 0 ? wr.sg_list[0].length : 0; }

bool in_order(const ibv_send_wr& wr) {
  const std::uint32_t bits = ntohl(wr.imm_data);
  Immediate immediate;
  return has_immediate(wr) && !is_parcel(bits) && decode_immediate(bits, immediate) &&
         immediate.in_order;
}

}  // namespace

Result<std::unique_ptr<SharedPairs>> SharedPairs::make(std::shared_ptr<CompletionHub> hub,
                                                       std::shared_ptr<Devices> devices,
                                                       const Rail& rail, QueueSettings settings,
                                                       int pairs) {
  const bool receives = settings.recv_depth > 1;
  settings.send_depth = static_cast<int>(kDepth);
  if (receives) settings.recv_depth = static_cast<int>(kDepth);
  std::unique_ptr<SharedPairs> made(new SharedPairs(hub, receives));
  auto place = CommPlace::take(hub);
  if (!place) return place.status();
  made->place_ = std::move(place).take();
  QueuePaths paths;
  paths.regular = pairs;
  paths.queues.resize(static_cast<std::size_t>(pairs), {0, 0});
  auto set = QueueSet::make(std::move(hub), std::move(devices), {rail}, paths, settings,
                            QueueSet::Engines::one);
  if (!set) return set.status();
  made->set_ = std::move(set).take();
  made->pairs_.resize(static_cast<std::size_t>(pairs));
  for (Pair& pair : made->pairs_) pair.sent = std::make_unique_for_overwrite<Sent[]>(kDepth);
  made->passing_.ops.post_send = post_send;
  made->passing_.ops.post_recv = post_recv;
  made->hub_->attach(made->place_.id(), made.get());
  return made;
}

SharedPairs::~SharedPairs() {
  // From here on completions find nobody.
  place_ = CommPlace();
}

Status SharedPairs::init(std::string& why) {
  const std::lock_guard hold(making_);
  if (inited_) return Status::ok;
  TP_TRY(set_->init(why));
  inited_ = true;
  return Status::ok;
}

bool SharedPairs::learn(const std::vector<QueueAddress>& to) {
  const std::lock_guard hold(making_);
  if (to.size() != pairs_.size()) return false;
  if (to_.empty()) to_ = to;
  return std::equal(to.begin(), to.end(), to_.begin(), [](QueueAddress a, QueueAddress b) {
    return a.qpn == b.qpn && a.psn == b.psn;
  });
}

Status SharedPairs::raise(const HelloRail& remote, std::string& why) {
  const std::lock_guard hold(making_);
  if (raised_) return Status::ok;
  TP_TRY(set_->raise({remote}, to_, why));
  const std::lock_guard quiet(hub_->lock);
  for (std::size_t p = 0; receives_ && p < pairs_.size(); ++p) {
    for (std::uint32_t i = 0; i < kDepth; i += kRecvChain) {
      if (post_receives(p) == 0) continue;
      why = "the receive queues cannot be filled";
      return Status::system;
    }
  }
  raised_ = true;
  return Status::ok;
}

Owned<ibv_qp> SharedPairs::attach(int number, CompletionHub::CommId id) {
  auto member = std::make_unique<Member>();
  Member& m = *member;
  m.pairs = this;
  m.number = number;
  m.id = id;
  const ibv_qp& like = *first().qp;
  m.qp.context = &passing_;
  m.qp.qp_context = &m;
  m.qp.qp_num = like.qp_num;
  m.qp.send_cq = like.send_cq;
  m.qp.recv_cq = like.recv_cq;
  m.qp.qp_type = IBV_QPT_RC;
  const std::lock_guard hold(hub_->lock);
  members_[static_cast<std::size_t>(number)] = std::move(member);
  return own(&m.qp, leave);
}

// Its completions find its comm, or nobody.
int SharedPairs::leave(ibv_qp* qp) {
  member_of(qp).left.store(true, std::memory_order_relaxed);
  return 0;
}

bool SharedPairs::any_event_failed() const {
  return std::any_of(set_->queues().begin(), set_->queues().end(),
                     [&](const Queue& q) { return set_->event_failed(q); });
}

bool SharedPairs::room(const ibv_qp* qp) {
  const Member& member = member_of(qp);
  for (const Pair& pair : member.pairs->pairs_) {
    if (pair.under_way() + kMostChain > kDepth || pair.bytes >= kMostBytes) return false;
    if (member.sends >= kOwn && pair.under_way() > kDepth / 4 * 3) return false;
  }
  return true;
}

std::uint64_t SharedPairs::wr_id(WrKind kind, std::size_t pair, std::uint32_t position) const {
  const CompletionHub::CommId id = place_.id();
  return encode(WrId{id.index, id.epoch, kind, static_cast<std::uint16_t>(pair),
                     static_cast<std::uint16_t>(position)});
}

int SharedPairs::post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) {
  Member& member = member_of(qp);
  return member.pairs->post(member, wr, bad);
}

// The pairs' receives are posted by themselves.
int SharedPairs::post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr**) {
  Member& member = member_of(qp);
  member.receive_id = wr->wr_id;
  for (; wr != nullptr; wr = wr->next) ++member.receives;
  return 0;
}

// The chain goes with our wr_ids, signals and the member's number, and is as it was afterwards: the
// caller may post it again.
int SharedPairs::post(Member& member, ibv_send_wr* wr, ibv_send_wr** bad) {
  std::uint32_t count = 0;
  std::size_t longest = 0;
  bool ordered = false;
  for (const ibv_send_wr* w = wr; w != nullptr; w = w->next, ++count) {
    longest = std::max<std::size_t>(longest, length_of(*w));
    ordered = ordered || in_order(*w);
  }
  const auto p = static_cast<std::size_t>(
      pair_for(static_cast<int>(pairs_.size()), member.number, longest, ordered));
  Pair& pair = pairs_[p];
  *bad = wr;
  if (qp(p) == nullptr) return ENODEV;
  if (pair.under_way() + count > kDepth) return kNoRoom;
  const bool signal = pair.unsignalled + count >= kSignalPeriod;
  std::uint32_t at = pair.head;
  for (ibv_send_wr* w = wr; w != nullptr; w = w->next, ++at) {
    pair.sent[at % kDepth] = {w->wr_id, length_of(*w), static_cast<std::uint8_t>(member.number),
                              (w->send_flags & IBV_SEND_SIGNALED) != 0};
    w->wr_id = wr_id(kind_of(w->wr_id), p, at);
    if (has_immediate(*w)) w->imm_data |= htonl(with_member(0, member.number));
    if (signal && w->next == nullptr) w->send_flags |= IBV_SEND_SIGNALED;
  }
  ibv_send_wr* refused = nullptr;
  const int error = ibv_post_send(qp(p), wr, &refused);
  bool taken = true;
  at = pair.head;
  for (ibv_send_wr* w = wr; w != nullptr; w = w->next, ++at) {
    const Sent& sent = pair.sent[at % kDepth];
    w->wr_id = sent.wr_id;
    if (has_immediate(*w)) w->imm_data &= htonl(~kMemberBits);
    if (error != 0 && w == refused) taken = false;
    if (taken) {
      pair.unsignalled = (w->send_flags & IBV_SEND_SIGNALED) != 0 ? 0 : pair.unsignalled + 1;
      pair.bytes += sent.bytes;
      ++member.sends;
      ++pair.head;
    }
    if (!sent.signalled) w->send_flags &= ~unsigned{IBV_SEND_SIGNALED};
  }
  if (error != 0) *bad = refused;
  return error;
}

int SharedPairs::post_receives(std::size_t p) {
  const int error = twinpath::post_receives(set_->queues()[p], place_.id(), static_cast<int>(p));
  if (error == 0) pairs_[p].receives += kRecvChain;
  return error;
}

void SharedPairs::deliver(std::uint64_t id, ibv_wc wc) {
  wc.wr_id = id;
  hub_->deliver(wc);
}

void SharedPairs::on_completion(const ibv_wc& wc) {
  if (wc.status != IBV_WC_SUCCESS && !halted_) failed_ = true;
  const std::size_t pair = slot_of(wc.wr_id);
  if (kind_of(wc.wr_id) == WrKind::receive)
    received(pair, wc);
  else
    sent(pairs_[pair], wc);
}

// RC completes in order (IB spec vol. 1, 9.7): those before it are done, too.
void SharedPairs::sent(Pair& pair, const ibv_wc& wc) {
  const std::uint16_t position = generation_of(wc.wr_id);
  if (static_cast<std::uint16_t>(position - pair.tail) >= pair.under_way()) return;
  Sent last;
  bool found = false;
  while (!found) {
    found = static_cast<std::uint16_t>(pair.tail) == position;
    last = pair.sent[pair.tail++ % kDepth];
    pair.bytes -= last.bytes;
    --members_[last.member]->sends;
  }
  if (wc.status == IBV_WC_SUCCESS) {
    if (!last.signalled) return;
    ibv_wc told = wc;
    told.qp_num = members_[last.member]->qp.qp_num;
    return deliver(last.wr_id, told);
  }
  deliver(last.wr_id, wc);
  broke(wc, last.member);
}

void SharedPairs::received(std::size_t p, const ibv_wc& wc) {
  Pair& pair = pairs_[p];
  --pair.receives;
  if (wc.status != IBV_WC_SUCCESS) {
    broke(wc, -1);
    if (std::all_of(pairs_.begin(), pairs_.end(), [](const Pair& x) { return x.receives == 0; }))
      give_back_receives();
    return;
  }
  const std::uint32_t bits = ntohl(wc.imm_data);
  Member* const member = members_[static_cast<std::size_t>(twinpath::member_of(bits))].get();
  if (member != nullptr && member->receives > 0 && !member->left.load(std::memory_order_relaxed)) {
    --member->receives;
    ibv_wc told = wc;
    told.imm_data = htonl(without_member(bits));
    told.qp_num = member->qp.qp_num;
    deliver(member->receive_id, told);
  }
  if (++pair.used < kRecvChain || halted_) return;
  pair.used -= kRecvChain;
  ibv_wc refused = wc;
  refused.status = IBV_WC_LOC_QP_OP_ERR;
  if (post_receives(p) != 0) broke(refused, -1);
}

// Once.  Members have no completion of their own to learn it from, if they have nothing under way.
void SharedPairs::broke(const ibv_wc& wc, int told) {
  if (!halted_) failed_ = true;
  if (broken_.exchange(true)) return;
  (void)halt();
  for (const auto& member : members_) {
    if (member == nullptr || member->number == told) continue;
    const bool receives = member->receives > 0;
    if (receives) --member->receives;
    deliver(receives ? member->receive_id
                     : encode(WrId{member->id.index, member->id.epoch, WrKind::none, 0, 0}),
            wc);
  }
}

// What the pairs had brought was delivered before: all receives are back.
void SharedPairs::give_back_receives() {
  ibv_wc wc{};
  wc.status = IBV_WC_WR_FLUSH_ERR;
  wc.qp_num = first().qp != nullptr ? first().qp->qp_num : 0;
  for (const auto& member : members_)
    while (member != nullptr && member->receives > 0) {
      --member->receives;
      deliver(member->receive_id, wc);
    }
}

bool SharedPairs::halt() {
  if (!std::exchange(halted_, true)) {
    set_->halt();
    confirmed_ = std::all_of(set_->queues().begin(), set_->queues().end(),
                             [](const Queue& q) { return q.halted; });
    ibv_wc wc{};
    wc.status = IBV_WC_WR_FLUSH_ERR;
    wc.qp_num = first().qp->qp_num;
    broke(wc, -1);
  }
  return confirmed_;
}

void SharedPairs::leave_engines() {
  for (Queue& q : set_->queues())
    if (q.engine != nullptr) set_->leave_engine(q);
  for (Pair& pair : pairs_) pair.receives = 0;
  give_back_receives();
}

}  // namespace twinpath
