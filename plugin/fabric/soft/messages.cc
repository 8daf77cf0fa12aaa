// What the engine thread does with the messages of other processes, and what they are told.
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "plugin/base/log.h"
#include "plugin/fabric/soft/hca.h"

namespace twinpath::soft {
namespace {

// The kernel's word for a process's pid is right across PID namespaces; its own may not be.
int process_of(int socket) {
  ucred who{};
  socklen_t length = sizeof who;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &length) == 0 ? who.pid : 0;
}

}  // namespace

Status Hca::hear_caller(Caller& caller, Received& r) {
  const Message& m = r.message;
  if (m.kind == MessageKind::greeting) return on_greeting(caller, r);
  if (!caller.holder || m.slot != caller.slot) return Status::bad_argument;
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

Status Hca::hear_peer(Peer& peer, Received& r) {
  if (r.message.slot != peer.slot) return Status::bad_argument;
  if (r.message.kind == MessageKind::welcome) return on_welcome(peer, r);
  if (r.message.kind != MessageKind::export_reply) return Status::bad_argument;
  on_export_reply(peer, r);
  return Status::ok;
}

Status Hca::on_greeting(Caller& caller, Received& r) {
  if (caller.holder) return Status::bad_argument;  // once is enough
  const int pid = process_of(caller.wire.fd());
  std::string why;
  auto holds = SharedMemory::map(r.fds[0].get(), sizeof(Holds), Writers::creator, why);
  if (!holds) {
    TP_WARN("soft HCA: process %d connects, but %s", pid, why.c_str());
    return Status::bad_argument;
  }
  caller.slot = r.message.slot;
  caller.holder = std::make_shared<Holder>(std::move(holds).take(), pid);
  // Before the welcome: it cannot hold a key without our table.
  keys_->add_holder(caller.holder);
  const bool sent =
      caller.wire.send(introduction(MessageKind::welcome), {keys_->keys_fd(), keys_->board_fd()});
  return sent ? Status::ok : Status::closed;
}

Status Hca::on_welcome(Peer& peer, Received& r) {
  if (peer.greeted.load()) return Status::bad_argument;
  peer.pid = process_of(peer.wire.fd());
  std::string why;
  auto keys = SharedMemory::map(r.fds[0].get(), sizeof(KeyTableMemory), Writers::creator, why);
  auto board = SharedMemory::map(r.fds[1].get(), sizeof(Board), Writers::both, why);
  if (!keys || !board) {
    TP_WARN("soft HCA: process %d answers, but %s", peer.pid, why.c_str());
    return Status::bad_argument;
  }
  peer.key_memory = std::move(keys).take();
  peer.board_memory = std::move(board).take();
  peer.keys = KeyView(*peer.key_memory.as<const KeyTableMemory>(), *peer.own_holds.as<Holds>());
  peer.board = peer.board_memory.as<Board>();
  std::uint64_t seen = 0;
  iovec near{&seen, sizeof seen}, far{reinterpret_cast<void*>(r.message.probe), sizeof seen};
  peer.direct =
      config_.soft_direct && peer.pid > 0 &&
      process_vm_readv(peer.pid, &near, 1, &far, 1, 0) == static_cast<ssize_t>(sizeof seen) &&
      seen == r.message.probe_value;
  if (config_.soft_direct && !peer.direct) {
    TP_INFO(net,
            "soft HCA: process %d cannot be reached with process_vm_readv (%s): its data goes "
            "through shared memory in two copies",
            peer.pid, std::strerror(errno));
  }
  {
    const std::lock_guard hold(lock_);
    team_.know_processes(static_cast<int>(peers_.size()) + 1);
  }
  peer.greeted.store(true, std::memory_order_release);
  return Status::ok;
}

void Hca::on_gone(std::uint32_t slot, std::uint64_t alloc_id) {
  std::shared_ptr<Peer> owner;
  {
    std::lock_guard hold(lock_);
    if (auto it = peers_.find(slot); it != peers_.end()) owner = it->second;
  }
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
  m.slot = slot_;
  m.a = alloc_id;
  std::vector<std::shared_ptr<Peer>> tell;
  {
    std::lock_guard hold(lock_);
    for (auto& [slot, peer] : peers_) tell.push_back(peer);
  }
  for (auto& peer : tell) {
    if (!peer->dead.load()) (void)peer->wire.send(m);
  }
}

Status Hca::on_export_request(Caller& caller, const Message& m) {
  Message reply{};
  reply.kind = MessageKind::export_reply;
  reply.slot = slot_;
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
