// Joining a QP to its destination: links are offered by the lower QP number and accepted by the
// higher one (link.h).
#include <unistd.h>

#include "plugin/base/log.h"
#include "plugin/fabric/soft/hca.h"

namespace twinpath::soft {
namespace {

// The QP's end in LinkWords and Link.
std::size_t end_of(const SoftQp& qp) { return qp.qp_num <= qp.attr.dest_qp_num ? 0 : 1; }

// Lock held.  Ports that say InfiniBand and are told apart by GIDs alone take any LID.
void show_lids(SoftQp& qp) {
  const SoftDevice& device = *qp.soft_context->soft_device;
  if (!device.like().ports.infiniband) return;
  qp.link.mine->lid.store(device.lid(qp.attr.port_num), std::memory_order_relaxed);
  qp.link.mine->to_lid.store(qp.attr.ah_attr.dlid, std::memory_order_relaxed);
}

// Lock held: the other half is there.
void set_far(SoftQp& qp, const LinkHalf& far) {
  qp.link.see(far);
  rouse_if_asleep(qp);  // the peer may have sent already
  if (!qp.soft_context->soft_device->carries(qp.attr.port_num)) set_carrier(qp, false);
  take_losses(qp);
}

void give_up(SoftQp& qp) {
  const std::lock_guard hold(qp.lock);
  qp.link.unreachable = true;  // the timers turn this into retry-exceeded, as with a dead host
}

}  // namespace

void Hca::bind_link(SoftQp& qp, std::shared_ptr<Link> link) {
  std::lock_guard hold(qp.lock);
  if (qp.state != IBV_QPS_RTR && qp.state != IBV_QPS_RTS) return;
  const std::size_t me = end_of(qp), other = qp.qp_num == qp.attr.dest_qp_num ? me : 1 - me;
  qp.link.join(std::move(link), me, other);
  qp.link.mine->rnr_timer.store(qp.attr.min_rnr_timer, std::memory_order_relaxed);
  qp.link.mine->pd.store(static_cast<SoftPd*>(qp.pd)->number, std::memory_order_relaxed);
  qp.link.mine->access.store(qp.attr.qp_access_flags, std::memory_order_relaxed);
  show_lids(qp);
  // Pairs with the acquire in start(): who sees `ready` sees pd, access and LID.
  qp.link.show(EndState::ready);
  if (qp.link.peer == nullptr)
    qp.link.mine->can_mark.store(may_sleep() ? 1 : 0, std::memory_order_release);
  if (const LinkHalf* far = qp.link.memory->far(other); far != nullptr) set_far(qp, *far);
}

Status Hca::attach(SoftQp& qp) {
  const std::uint32_t own = qp.qp_num, dest = qp.attr.dest_qp_num;
  const std::uint32_t slot = dest >> kSlotShift;
  if (slot == this->slot()) return attach_here(qp);
  auto peer = sockets_.reach(slot);
  {
    std::lock_guard hold(qp.lock);
    qp.link.unreachable = !peer;
    if (peer) qp.link.peer = *peer;
  }
  if (!peer) return Status::ok;  // the timers say it, as of a dead host
  if (own < dest) return offer_link(qp, *peer);
  std::shared_ptr<Link> link;
  {
    std::lock_guard hold(lock_);
    link = offers_.take(own, dest);
  }
  if (link == nullptr) return Status::ok;  // it will come: on_offer accepts it
  return accept_link(qp, link);
}

// Both in this process: the first of the two makes the link, the second finds it.
Status Hca::attach_here(SoftQp& qp) {
  const std::uint32_t own = qp.qp_num, dest = qp.attr.dest_qp_num;
  std::shared_ptr<Link> link;
  {
    std::lock_guard hold(lock_);
    link = offers_.take(own, dest);
    if (link == nullptr) {
      auto made = Link::create_local();
      if (!made) return made.status();
      link = std::move(made).take();
      if (own != dest) offers_.add(dest, own, link);
    }
  }
  bind_link(qp, std::move(link));
  return Status::ok;
}

Status Hca::offer_link(SoftQp& qp, const std::shared_ptr<Peer>& peer) {
  auto made = Link::create_shared(end_of(qp), next_link_.fetch_add(1));
  if (!made) return made.status();
  const std::shared_ptr<Link> link = std::move(made).take();
  Message m{};
  m.kind = MessageKind::offer;
  m.slot = slot();
  m.pid = getpid();
  m.a = qp.qp_num;
  m.b = qp.attr.dest_qp_num;
  m.link = link->number();
  // First: the answer may be here before send() is back.
  bind_link(qp, link);
  if (!peer->wire.send(m, {link->half_fd(), link->words_fd()})) give_up(qp);
  link->close_fds();
  return Status::ok;
}

Status Hca::accept_link(SoftQp& qp, const std::shared_ptr<Link>& link) {
  TP_TRY(link->make_half());
  Message m{};
  m.kind = MessageKind::acceptance;
  m.slot = slot();
  m.pid = getpid();
  m.link = link->number();
  std::shared_ptr<Peer> peer;
  {
    const std::lock_guard hold(qp.lock);
    m.a = qp.qp_num;
    m.b = qp.attr.dest_qp_num;
    peer = qp.link.peer;
  }
  bind_link(qp, link);
  if (peer && !peer->wire.send(m, {link->half_fd(), -1})) give_up(qp);
  link->close_fds();
  return Status::ok;
}

Status Hca::on_offer(const Caller& caller, Received& r) {
  const auto own = static_cast<std::uint32_t>(r.message.b),
             theirs = static_cast<std::uint32_t>(r.message.a);
  // Only the lower number offers.
  if (theirs >> kSlotShift != caller.slot || own >> kSlotShift != slot() || theirs >= own)
    return Status::bad_argument;
  std::string why;
  auto mapped = Link::map_shared(1, r.message.link, r.fds[0].get(), r.fds[1].get(), why);
  if (!mapped) {
    TP_WARN("soft HCA: process %d offers a connection, but %s", caller.holder->pid, why.c_str());
    return mapped.status();
  }
  const std::shared_ptr<Link> link = std::move(mapped).take();
  const std::lock_guard hold(lock_);
  SoftQp* qp = qps_.find(own);
  if (qp == nullptr) return Status::ok;  // it was destroyed since
  bool waiting = false;
  {
    const std::lock_guard hold_qp(qp->lock);
    // Without `peer` it is on its way to attach(), which will look for the offer.
    waiting = qp->attr.dest_qp_num == theirs && qp->link.mine == nullptr &&
              qp->link.peer != nullptr && (qp->state == IBV_QPS_RTR || qp->state == IBV_QPS_RTS);
  }
  if (waiting) {
    if (accept_link(*qp, link) != Status::ok) give_up(*qp);
  } else if (!offers_.is_full()) {
    offers_.add(own, theirs, link);  // held until it asks
  }
  return Status::ok;
}

Status Hca::on_acceptance(const Caller& caller, Received& r) {
  const auto own = static_cast<std::uint32_t>(r.message.b),
             theirs = static_cast<std::uint32_t>(r.message.a);
  if (theirs >> kSlotShift != caller.slot || own >> kSlotShift != slot())
    return Status::bad_argument;
  const std::lock_guard hold(lock_);
  SoftQp* qp = qps_.find(own);
  if (qp == nullptr) return Status::ok;
  std::string why;
  {
    const std::lock_guard hold_qp(qp->lock);
    // An answer to an offer of before it was reset is nobody's.
    if (qp->attr.dest_qp_num != theirs || qp->link.memory == nullptr ||
        qp->link.memory->number() != r.message.link || qp->link.memory->far(1) != nullptr)
      return Status::ok;
    if (qp->link.memory->map_half(r.fds[0].get(), why) == Status::ok) {
      set_far(*qp, *qp->link.memory->far(1));
      return Status::ok;
    }
    qp->link.unreachable = true;
  }
  TP_WARN("soft HCA: process %d accepts a connection, but %s", caller.holder->pid, why.c_str());
  return Status::bad_argument;
}

}  // namespace twinpath::soft
