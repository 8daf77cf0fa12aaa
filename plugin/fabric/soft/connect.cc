// Joining a QP to its destination, and the sockets between processes.
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "plugin/base/log.h"
#include "plugin/fabric/soft/hca.h"
#include "plugin/fabric/soft/slow_step.h"

namespace twinpath::soft {

void Hca::bind_link(SoftQp& qp, std::shared_ptr<Link> link) {
  std::lock_guard hold(qp.lock);
  if (qp.state != IBV_QPS_RTR && qp.state != IBV_QPS_RTS) return;
  LinkMemory& m = link->memory();
  const std::size_t me = qp.qp_num <= qp.attr.dest_qp_num ? 0 : 1;
  const std::size_t other = qp.qp_num == qp.attr.dest_qp_num ? 0 : 1 - me;
  qp.link = std::move(link);
  qp.mine = &m.end[me];
  qp.theirs = &m.end[other];
  qp.out_ring = m.ring[me];
  qp.in_ring = m.ring[other];
  qp.out_claim = &m.claim[me];
  qp.in_claim = &m.claim[other];
  qp.mine->rnr_timer.store(qp.attr.min_rnr_timer, std::memory_order_relaxed);
  qp.mine->pd.store(static_cast<SoftPd*>(qp.pd)->number, std::memory_order_relaxed);
  qp.mine->access.store(qp.attr.qp_access_flags, std::memory_order_relaxed);
  // Pairs with the acquire in start(): who sees `ready` sees pd and access.
  qp.mine->state.store(static_cast<std::uint32_t>(EndState::ready), std::memory_order_release);
  if (qp.peer == nullptr) qp.mine->can_mark.store(can_fence_ ? 1 : 0, std::memory_order_release);
  rouse_if_asleep(qp);  // the peer may have sent already
  if (!qp.soft_context->soft_device->port_up(qp.attr.port_num)) set_carrier(qp, false);
}

Status Hca::attach(SoftQp& qp) {
  const std::uint32_t own = qp.qp_num, dest = qp.attr.dest_qp_num;
  const std::uint32_t slot = dest >> kSlotShift;
  std::shared_ptr<Link> link;
  if (slot == slot_) {
    // Same process: the first of the two makes the link, the second finds it.
    std::lock_guard hold(lock_);
    auto offered = offers_.find({own, dest});
    if (offered != offers_.end()) {
      link = std::move(offered->second);
      offers_.erase(offered);
    } else {
      auto made = Link::create_local();
      if (!made) return made.status();
      link = std::move(made).take();
      if (own != dest) offers_[{dest, own}] = link;
    }
  } else {
    auto peer = peer_of(slot);
    {
      std::lock_guard hold(qp.lock);
      qp.unreachable = !peer;  // the timers turn this into retry-exceeded, as with a dead host
      if (peer) qp.peer = *peer;
    }
    if (!peer) return Status::ok;
    if (own < dest) {
      UniqueFd fd;
      auto made = Link::create_shared(fd);
      if (!made) return made.status();
      link = std::move(made).take();
      Message m{};
      m.kind = MessageKind::offer;
      m.slot = slot_;
      m.pid = getpid();
      m.a = own;
      m.b = dest;
      // Without lock_: the send may wait for the peer's engine, and the peer's for ours.
      if (!send_message((*peer)->socket.get(), m, fd.get())) {
        std::lock_guard hold(qp.lock);
        qp.unreachable = true;
      }
    } else {
      std::lock_guard hold(lock_);
      auto offered = offers_.find({own, dest});
      if (offered == offers_.end()) return Status::ok;  // it will come: on_message binds it
      link = std::move(offered->second);
      offers_.erase(offered);
    }
  }
  bind_link(qp, std::move(link));
  return Status::ok;
}

Message Hca::greeting() const {
  Message m{};
  m.kind = MessageKind::greeting;
  m.slot = slot_;
  m.pid = getpid();
  m.probe = reinterpret_cast<std::uint64_t>(&probe_value_);
  m.probe_value = probe_value_;
  return m;
}

Result<std::shared_ptr<Peer>> Hca::peer_of(std::uint32_t slot) {
  std::lock_guard hold(lock_);
  if (auto it = peers_.find(slot); it != peers_.end() && !it->second->dead.load())
    return it->second;
  // A blocking connect: it waits only while the peer's backlog of 1024 is full.
  UnsharedFd fd =
      UnsharedFd::make([] { return ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0); });
  const SlotAddress a = address_of(slot);
  if (!fd || connect(fd.get(), reinterpret_cast<const sockaddr*>(&a.address), a.length) != 0) {
    TP_INFO(net, "soft HCA: no process answers for slot %u (%s): it has ended or runs elsewhere",
            slot, std::strerror(errno));
    return Status::closed;
  }
  if (!send_message(fd.get(), greeting(), keys_->fd())) return Status::closed;
  auto peer = std::make_shared<Peer>();
  peer->slot = slot;
  epoll_event e{};
  e.events = EPOLLIN;
  e.data.fd = fd.get();
  epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd.get(), &e);
  outgoing_[fd.get()] = peer;
  peer->socket = std::move(fd);
  peers_[slot] = peer;
  return peer;
}

void Hca::accept_peer() {
  // It does not wait: the socket is non-blocking.
  UnsharedFd fd = UnsharedFd::make(
      [&] { return ::accept4(listen_socket_.get(), nullptr, nullptr, SOCK_CLOEXEC); });
  if (!fd) return;
  ucred who{};
  socklen_t length = sizeof who;
  if (getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &who, &length) != 0 || who.uid != getuid())
    return;  // another user: not ours to talk to
  epoll_event e{};
  e.events = EPOLLIN;
  e.data.fd = fd.get();
  epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd.get(), &e);
  std::lock_guard hold(lock_);
  int raw = fd.get();
  incoming_[raw] = std::move(fd);
}

void Hca::drop_socket(int socket) {
  std::shared_ptr<Peer> gone;
  {
    std::lock_guard hold(lock_);
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, socket, nullptr);
    if (auto it = outgoing_.find(socket); it != outgoing_.end()) {
      gone = it->second;
      outgoing_.erase(it);
      if (auto p = peers_.find(gone->slot); p != peers_.end() && p->second == gone) peers_.erase(p);
    }
    incoming_.erase(socket);
  }
  if (!gone) return;
  gone->dead.store(true);
  std::lock_guard hold(gone->lock);
  gone->allocations.clear();
}

void Hca::serve(int socket) {
  {
    // Ours and whole: whoever made it put it into the tables under this lock.
    std::lock_guard hold(lock_);
    if (!outgoing_.contains(socket) && !incoming_.contains(socket)) return;
  }
  for (;;) {
    Message m{};
    UniqueFd fd;
    Status s = receive_message(socket, m, fd);
    if (s == Status::again) return;
    if (s != Status::ok) {
      drop_socket(socket);
      return;
    }
    SlowStep slow("serving a peer's message");
    on_message(socket, m, std::move(fd));
  }
}

}  // namespace twinpath::soft
