// What the engine thread does with the messages of other processes, and what they are told.
#include <unistd.h>

#include <cstring>

#include "plugin/base/log.h"
#include "plugin/fabric/soft/hca.h"

namespace twinpath::soft {

Status Hca::on_request(Caller& caller, Received& r) {
  const Message& m = r.message;
  switch (m.kind) {
    case MessageKind::offer:
      return on_offer(caller, r);
    case MessageKind::acceptance:
      return on_acceptance(caller, r);
    case MessageKind::export_request:
      return on_export_request(caller, m);
    case MessageKind::gone:
      on_gone(caller.slot, m.a);
      return Status::ok;
    case MessageKind::wake:
      return Status::ok;  // the look at all queues that follows is what was wanted
    default:
      return Status::bad_argument;
  }
}

Status Hca::on_reply(Peer& peer, Received& r) {
  if (r.message.kind != MessageKind::export_reply) return Status::bad_argument;
  on_export_reply(peer, r);
  return Status::ok;
}

void Hca::on_peers(int count) { team_.know_processes(count + 1); }

void Hca::on_gone(std::uint32_t slot, std::uint64_t alloc_id) {
  const std::shared_ptr<Peer> owner = sockets_.known(slot);
  if (!owner) return;
  std::shared_ptr<RemoteAllocation> drop;
  std::lock_guard hold(owner->lock);
  if (auto it = owner->allocations.find(alloc_id); it != owner->allocations.end()) {
    drop = std::move(it->second);
    owner->allocations.erase(it);
  }
}

void Hca::release_allocation(std::uint64_t alloc_id) {
  if (!allocations_.release(alloc_id)) return;
  Message m{};
  m.kind = MessageKind::gone;
  m.slot = slot();
  m.a = alloc_id;
  sockets_.tell(m);
}

Status Hca::on_export_request(Caller& caller, const Message& m) {
  Message reply{};
  reply.kind = MessageKind::export_reply;
  reply.slot = slot();
  reply.pid = getpid();
  reply.a = m.a;
  const std::shared_ptr<const ExportedAllocation> made = allocations_.exported(m.a);
  reply.export_kind = static_cast<std::uint32_t>(made->kind);
  reply.bytes = made->bytes;
  std::memcpy(reply.gpu, made->gpu.bytes, sizeof reply.gpu);
  std::memcpy(reply.ipc, made->ipc_handle, sizeof reply.ipc);
  return caller.wire.send(reply, {made->fd.get(), -1}) ? Status::ok : Status::closed;
}

void Hca::on_export_reply(Peer& peer, Received& r) {
  const Message& m = r.message;
  std::shared_ptr<RemoteAllocation> wanted;
  {
    std::lock_guard hold(peer.lock);
    if (auto it = peer.allocations.find(m.a); it != peer.allocations.end()) wanted = it->second;
  }
  if (!wanted) return;
  ExportedAllocation e;
  e.kind = static_cast<ExportedAllocation::Kind>(m.export_kind);
  e.fd = std::move(r.fds[0]);
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
