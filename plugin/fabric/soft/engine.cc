// The engine thread: greets peers, passes links and CUDA handles, notices deaths, keeps the
// retry clocks, and advances QPs whose owners are not polling.
//
// It sleeps most of the time.  A process that polls its CQs moves its own QPs; the engine only
// looks in once a millisecond then, so that two polling processes keep two cores for themselves.
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "plugin/base/clock.h"
#include "plugin/base/log.h"
#include "plugin/fabric/soft/hca.h"
#include "plugin/fabric/soft/slow_step.h"

namespace twinpath::soft {

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
  UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
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
  UniqueFd fd(accept4(listen_socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
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

void Hca::on_message(int socket, const Message& m, UniqueFd fd) {
  std::shared_ptr<Peer> peer;
  {
    std::lock_guard hold(lock_);
    if (auto it = outgoing_.find(socket); it != outgoing_.end()) peer = it->second;
  }
  switch (m.kind) {
    case MessageKind::greeting:
      if (peer) {
        on_greeting(*peer, m, std::move(fd));
      } else {
        (void)send_message(socket, greeting(), keys_->fd());  // the answer to theirs
      }
      return;
    case MessageKind::offer: {
      auto link = Link::map_shared(fd.get());
      if (!link) return;
      auto own = static_cast<std::uint32_t>(m.b), theirs = static_cast<std::uint32_t>(m.a);
      std::unique_lock hold(lock_);
      SoftQp* qp = own >> kSlotShift == slot_ ? qps_[own % kQpsPerProcess] : nullptr;
      bool waiting = false;
      if (qp != nullptr) {
        std::lock_guard hold_qp(qp->lock);
        waiting = qp->qp_num == own && qp->attr.dest_qp_num == theirs && qp->mine == nullptr &&
                  (qp->state == IBV_QPS_RTR || qp->state == IBV_QPS_RTS);
      }
      if (waiting) {
        bind_link(*qp, std::move(link).take());
      } else {
        offers_[{own, theirs}] = std::move(link).take();
      }
      return;
    }
    case MessageKind::export_request:
      on_export_request(socket, m);
      return;
    case MessageKind::export_reply:
      if (peer) on_export_reply(*peer, m, std::move(fd));
      return;
    case MessageKind::gone: {
      std::shared_ptr<Peer> owner;
      {
        std::lock_guard hold(lock_);
        if (auto it = peers_.find(m.slot); it != peers_.end()) owner = it->second;
      }
      std::shared_ptr<RemoteAllocation> drop;
      if (owner) {
        std::lock_guard hold(owner->lock);
        if (auto it = owner->allocations.find(m.a); it != owner->allocations.end()) {
          drop = std::move(it->second);
          owner->allocations.erase(it);
        }
      }
      return;  // `drop` unmaps here, on the engine thread
    }
  }
}

void Hca::on_greeting(Peer& peer, const Message& m, UniqueFd fd) {
  struct stat st {};
  if (peer.greeted.load() || fstat(fd.get(), &st) != 0 ||
      st.st_size < static_cast<off_t>(KeyTable::bytes()))
    return;
  void* p = mmap(nullptr, KeyTable::bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (p == MAP_FAILED) return;
  peer.keys_map = p;
  peer.keys = KeyView(static_cast<KeyEntry*>(p));
  // The kernel's word for the peer's pid is right across PID namespaces; its own may not be.
  ucred who{};
  socklen_t length = sizeof who;
  if (getsockopt(peer.socket.get(), SOL_SOCKET, SO_PEERCRED, &who, &length) == 0)
    peer.pid = who.pid;
  std::uint64_t seen = 0;
  iovec near{&seen, sizeof seen}, far{reinterpret_cast<void*>(m.probe), sizeof seen};
  peer.direct =
      config_.soft_direct && peer.pid > 0 &&
      process_vm_readv(peer.pid, &near, 1, &far, 1, 0) == static_cast<ssize_t>(sizeof seen) &&
      seen == m.probe_value;
  if (config_.soft_direct && !peer.direct) {
    TP_INFO(net,
            "soft HCA: process %d cannot be reached with process_vm_readv (%s): its data goes "
            "through shared memory in two copies",
            peer.pid, std::strerror(errno));
  }
  peer.greeted.store(true, std::memory_order_release);
}

void Hca::on_export_request(int socket, const Message& m) {
  Message reply{};
  reply.kind = MessageKind::export_reply;
  reply.slot = slot_;
  reply.a = m.a;
  ExportedAllocation made;
  PointerInfo info;
  {
    std::lock_guard hold(allocations_lock_);
    if (auto it = allocations_.find(m.a); it != allocations_.end()) info = it->second.info;
  }
  if (info.kind == MemoryKind::cuda) {
    auto exported = export_allocation(info);
    if (exported) made = std::move(exported).take();
  }
  reply.export_kind = static_cast<std::uint32_t>(made.kind);
  reply.bytes = made.bytes;
  std::memcpy(reply.gpu, made.gpu.bytes, sizeof reply.gpu);
  std::memcpy(reply.ipc, made.ipc_handle, sizeof reply.ipc);
  (void)send_message(socket, reply, made.fd.get());
}

void Hca::on_export_reply(Peer& peer, const Message& m, UniqueFd fd) {
  std::shared_ptr<RemoteAllocation> wanted;
  {
    std::lock_guard hold(peer.lock);
    if (auto it = peer.allocations.find(m.a); it != peer.allocations.end()) wanted = it->second;
  }
  if (!wanted) return;
  ExportedAllocation e;
  e.kind = static_cast<ExportedAllocation::Kind>(m.export_kind);
  e.fd = std::move(fd);
  e.bytes = m.bytes;
  std::memcpy(e.gpu.bytes, m.gpu, sizeof e.gpu.bytes);
  std::memcpy(e.ipc_handle, m.ipc, sizeof e.ipc_handle);
  if (e.kind != ExportedAllocation::Kind::none) {
    auto mapped = import_allocation(std::move(e));
    if (mapped) {
      wanted->mapping = std::move(mapped).take();
      wanted->state.store(RemoteAllocation::State::ready, std::memory_order_release);
      return;
    }
  }
  TP_WARN(
      "soft HCA: GPU memory of process %d cannot be mapped here; see its log for the reason, or "
      "keep GPU memory out with NCCL_NET_GDR_LEVEL=LOC",
      peer.pid);
  wanted->state.store(RemoteAllocation::State::failed, std::memory_order_release);
}

bool Hca::sweep(std::int64_t now) {
  std::lock_guard hold(lock_);
  bool moved = false;
  for (SoftQp* qp : live_) {
    moved = advance(*qp) || moved;
    check_timers(*qp, now);
  }
  return moved;
}

int Hca::engine_wait_us(std::int64_t now, bool moved) {
  if (config_.soft_engine == EngineChoice::spin) return 0;
  if (moved) last_moved_ = now;
  // Work found by us means that its owner does not poll: look again soon, for a while.
  if (config_.soft_engine == EngineChoice::automatic && now - last_moved_ < 5 * kMillisecond)
    return 50;
  return 1000;
}

void Hca::engine_loop() {
  int wait_us = 1000;
  for (;;) {
    epoll_event events[32];
    timespec limit{0, wait_us * 1000L};
    int n = epoll_pwait2(epoll_.get(), events, 32, &limit, nullptr);
    if (n < 0 && errno == ENOSYS) n = epoll_wait(epoll_.get(), events, 32, wait_us > 0 ? 1 : 0);
    for (int i = 0; i < n; ++i) {
      int fd = events[i].data.fd;
      if (fd == listen_socket_.get()) {
        accept_peer();
      } else {
        serve(fd);
      }
    }
    std::int64_t now = now_ns();
    wait_us = engine_wait_us(now, sweep(now));
  }
}

}  // namespace twinpath::soft
