// The sockets between processes: who is let in, and what becomes of one that ends.
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <shared_mutex>

#include "plugin/base/clock.h"
#include "plugin/base/log.h"
#include "plugin/base/refused.h"
#include "plugin/fabric/soft/hca.h"
#include "plugin/fabric/soft/slow_step.h"

namespace twinpath::soft {
namespace {

// Of one socket, or of callers, at a time: one that floods us must not keep the others waiting.
constexpr int kAtATime = 64;
constexpr std::int64_t kAcceptPause = 100 * kMillisecond;
constexpr std::int64_t kWarningsApart = 60 * kSecond;

}  // namespace

bool Hca::watch(int socket, std::string& why) const {
  epoll_event e{};
  e.events = EPOLLIN;
  e.data.fd = socket;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, socket, &e) == 0) return true;
  why = "epoll_ctl: " + why_not_watched(errno);
  return false;
}

Message Hca::introduction(MessageKind kind) const {
  Message m{};
  m.kind = kind;
  m.slot = slot_;
  m.pid = getpid();
  m.probe = reinterpret_cast<std::uint64_t>(&probe_value_);
  m.probe_value = probe_value_;
  return m;
}

Result<std::shared_ptr<Peer>> Hca::peer_of(std::uint32_t slot) {
  // One at a time, so that who waited finds what the other made; without lock_, because reaching
  // a process may take long.
  const std::lock_guard one(connecting_);
  {
    const std::lock_guard hold(lock_);
    if (auto it = peers_.find(slot); it != peers_.end() && !it->second->dead.load())
      return it->second;
  }
  const std::shared_lock no_fork(fork_lock_);
  std::string why;
  auto socket = rendezvous_.reach(slot, why);
  if (!socket) {
    if (socket.status() == Status::closed) {
      TP_INFO(net, "soft HCA: no process answers for slot %u: %s", slot, why.c_str());
    } else {
      TP_WARN("soft HCA: no process answers for slot %u: %s", slot, why.c_str());
    }
    return socket.status();
  }
  auto holds = SharedMemory::create("twinpath-holds", sizeof(Holds), Writers::creator);
  if (!holds) return holds.status();
  auto peer = std::make_shared<Peer>(slot_, slot, std::move(socket).take(), epoll_.get(),
                                     std::move(holds).take());
  const int fd = peer->wire.fd();
  {
    const std::lock_guard hold(lock_);
    if (!watch(fd, why)) {
      TP_WARN("soft HCA: the process of slot %u cannot be heard: %s", slot, why.c_str());
      return Status::system;
    }
    outgoing_[fd] = peer;
    peers_[slot] = peer;
  }
  if (!peer->wire.send(introduction(MessageKind::greeting), {peer->own_holds.fd(), -1}))
    return Status::closed;
  (void)peer->own_holds.take_fd();
  return peer;
}

void Hca::accept_callers() {
  for (int i = 0; i < kAtATime; ++i) {
    const std::shared_lock no_fork(fork_lock_);
    UniqueFd fd(accept4(listen_socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS ||
          is_refusal(errno))
        pause_accepting(now_ns());
      return;
    }
    uid_t user = 0;
    if (!is_own_user(fd.get(), user)) continue;  // not ours to talk to
    const int raw = fd.get();
    auto caller = std::make_shared<Caller>(std::move(fd), epoll_.get());
    const std::lock_guard hold(lock_);
    if (std::string why; !watch(raw, why)) {
      TP_WARN("soft HCA: a process that connects cannot be heard: %s", why.c_str());
      continue;
    }
    incoming_[raw] = std::move(caller);
  }
}

// The caller stays in the backlog, where epoll would report it without end.
void Hca::pause_accepting(std::int64_t now) {
  const std::string why = why_no_memory(errno);
  (void)epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listen_socket_.get(), nullptr);
  accept_again_ = now + kAcceptPause;
  if (warned_of_limit_ != 0 && now - warned_of_limit_ < kWarningsApart) return;
  warned_of_limit_ = now;
  TP_WARN("soft HCA: another process wants to connect, and waits until it can be accepted: %s",
          why.c_str());
}

void Hca::drop_socket(int socket) {
  std::shared_ptr<Peer> gone;
  std::shared_ptr<Caller> caller;
  {
    std::lock_guard hold(lock_);
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, socket, nullptr);
    if (auto it = outgoing_.find(socket); it != outgoing_.end()) {
      gone = it->second;
      outgoing_.erase(it);
      if (auto p = peers_.find(gone->slot); p != peers_.end() && p->second == gone) peers_.erase(p);
    }
    if (auto it = incoming_.find(socket); it != incoming_.end()) {
      caller = std::move(it->second);
      incoming_.erase(it);
    }
  }
  if (caller && caller->holder) keys_->remove_holder(caller->holder);
  if (!gone) return;
  gone->dead.store(true);
  std::lock_guard hold(gone->lock);
  gone->allocations.clear();
}

void Hca::serve(int socket, bool has_room) {
  // Until both pointers are gone: the last may close a socket that is in no table any more.
  const std::shared_lock no_fork(fork_lock_);
  std::shared_ptr<Peer> peer;
  std::shared_ptr<Caller> caller;
  {
    // Ours and whole: whoever made it put it into the tables under this lock.
    std::lock_guard hold(lock_);
    if (auto it = outgoing_.find(socket); it != outgoing_.end()) peer = it->second;
    if (auto it = incoming_.find(socket); it != incoming_.end()) caller = it->second;
    if (!peer && !caller) return;
  }
  Wire& wire = peer ? peer->wire : caller->wire;
  if (has_room && !wire.flush()) {
    drop_socket(socket);
    return;
  }
  for (int i = 0; i < kAtATime; ++i) {
    Received r;
    Status s = wire.receive(r);
    if (s == Status::again) return;
    if (s == Status::ok) {
      SlowStep slow("serving a peer's message");
      s = peer ? hear_peer(*peer, r) : hear_caller(*caller, r);
      if (s == Status::ok) continue;
      if (s != Status::closed)
        TP_WARN("soft HCA: the connections of process %d end: it does not keep to the protocol",
                r.message.pid);
    }
    drop_socket(socket);
    return;
  }
}

}  // namespace twinpath::soft
