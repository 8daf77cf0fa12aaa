// How two processes greet each other: each sends what the other needs to reach its memory.
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "plugin/base/log.h"
#include "plugin/fabric/soft/peer_sockets.h"

namespace twinpath::soft {
namespace {

// The kernel's word for a process's pid is right across PID namespaces; its own may not be.
int process_of(int socket) {
  ucred who{};
  socklen_t length = sizeof who;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &length) == 0 ? who.pid : 0;
}

}  // namespace

Message PeerSockets::introduction(MessageKind kind) const {
  Message m{};
  m.kind = kind;
  m.slot = slot_;
  m.pid = getpid();
  m.probe = reinterpret_cast<std::uint64_t>(&probe_value_);
  m.probe_value = probe_value_;
  return m;
}

Status PeerSockets::hear(Caller& caller, Received& r, MessageHandler& handler) {
  if (r.message.kind == MessageKind::greeting) return on_greeting(caller, r);
  if (!caller.holder || r.message.slot != caller.slot) return Status::bad_argument;
  return handler.on_request(caller, r);
}

Status PeerSockets::hear(Peer& peer, Received& r, MessageHandler& handler) {
  if (r.message.slot != peer.slot) return Status::bad_argument;
  return r.message.kind == MessageKind::welcome ? on_welcome(peer, r, handler)
                                                : handler.on_reply(peer, r);
}

Status PeerSockets::on_greeting(Caller& caller, Received& r) {
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

Status PeerSockets::on_welcome(Peer& peer, Received& r, MessageHandler& handler) {
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
      direct_ && peer.pid > 0 &&
      process_vm_readv(peer.pid, &near, 1, &far, 1, 0) == static_cast<ssize_t>(sizeof seen) &&
      seen == r.message.probe_value;
  if (direct_ && !peer.direct) {
    TP_INFO(net,
            "soft HCA: process %d cannot be reached with process_vm_readv (%s): its data goes "
            "through shared memory in two copies",
            peer.pid, std::strerror(errno));
  }
  std::size_t reached = 0;
  {
    const std::lock_guard hold(lock_);
    reached = peers_.size();
  }
  handler.on_peers(static_cast<int>(reached));
  peer.greeted.store(true, std::memory_order_release);
  return Status::ok;
}

}  // namespace twinpath::soft
