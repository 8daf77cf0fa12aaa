// What the engine thread does with a peer's messages.
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstring>

#include "plugin/base/log.h"
#include "plugin/fabric/soft/hca.h"

namespace twinpath::soft {

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
    case MessageKind::wake:
      return;  // the look at all queues that follows is what was wanted
  }
}

void Hca::on_greeting(Peer& peer, const Message& m, UniqueFd fd) {
  struct stat st {};
  if (peer.greeted.load() || fstat(fd.get(), &st) != 0 ||
      st.st_size < static_cast<off_t>(sizeof(SharedTables)))
    return;
  void* p = mmap(nullptr, sizeof(SharedTables), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (p == MAP_FAILED) return;
  peer.shared = static_cast<SharedTables*>(p);
  peer.keys = KeyView(peer.shared->keys);
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

}  // namespace twinpath::soft
