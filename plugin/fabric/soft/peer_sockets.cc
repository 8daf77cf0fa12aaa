// The sockets between processes: who is let in, and what becomes of one that ends.
#include "plugin/fabric/soft/peer_sockets.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <random>
#include <utility>
#include <vector>

#include "plugin/base/clock.h"
#include "plugin/base/log.h"
#include "plugin/base/refused.h"
#include "plugin/fabric/soft/slow_step.h"

namespace twinpath::soft {
namespace {

// Of one socket, or of callers, at a time: one that floods us must not keep the others waiting.
constexpr int kAtATime = 64;
constexpr std::int64_t kAcceptPause = 100 * kMillisecond;
constexpr std::int64_t kWarningsApart = 60 * kSecond;

std::uint64_t random_word() {
  return (std::uint64_t{std::random_device{}()} << 32) | std::random_device{}();
}

}  // namespace

PeerSockets::PeerSockets(const std::string& job, std::uint32_t slots, bool direct)
    : rendezvous_(job, slots), direct_(direct), probe_value_(random_word()) {}

Status PeerSockets::start(KeyTable& keys, std::string& why) {
  keys_ = &keys;
  auto listening = rendezvous_.claim(slot_, why);
  if (!listening) return listening.status();
  listener_ = std::move(listening).take();
  epoll_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  bell_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll_ || !bell_) {
    why = "epoll_create1 or eventfd: " + why_no_memory(errno);
    return Status::system;
  }
  return watch(listener_.get(), why) && watch(bell_.get(), why) ? Status::ok : Status::system;
}

void PeerSockets::before_fork() {
  fork_lock_.lock();
  lock_.lock();
}

void PeerSockets::after_fork(bool in_child) {
  if (in_child) {
    for (int fd : {listener_.get(), epoll_.get(), bell_.get()}) ::close(fd);
    for (auto& [fd, peer] : outgoing_) ::close(fd);
    for (auto& [fd, caller] : incoming_) ::close(fd);
  }
  lock_.unlock();
  fork_lock_.unlock();
}

void PeerSockets::wake() const {
  const std::uint64_t one = 1;
  (void)!write(bell_.get(), &one, sizeof one);
}

bool PeerSockets::watch(int socket, std::string& why) const {
  epoll_event e{};
  e.events = EPOLLIN;
  e.data.fd = socket;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, socket, &e) == 0) return true;
  why = "epoll_ctl: " + why_not_watched(errno);
  return false;
}

std::shared_ptr<Peer> PeerSockets::known(std::uint32_t slot) {
  const std::lock_guard hold(lock_);
  const auto it = peers_.find(slot);
  return it != peers_.end() && !it->second->dead.load() ? it->second : nullptr;
}

void PeerSockets::tell(const Message& message) {
  std::vector<std::shared_ptr<Peer>> all;
  {
    const std::lock_guard hold(lock_);
    for (auto& [slot, peer] : peers_) all.push_back(peer);
  }
  for (auto& peer : all) {
    if (!peer->dead.load()) (void)peer->wire.send(message);
  }
}

Result<std::shared_ptr<Peer>> PeerSockets::reach(std::uint32_t slot) {
  // Without lock_, because connecting may take long.
  const std::lock_guard one(connecting_);
  if (auto peer = known(slot)) return peer;
  return connect(slot);
}

Result<std::shared_ptr<Peer>> PeerSockets::connect(std::uint32_t slot) {
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

void PeerSockets::accept_callers() {
  for (int i = 0; i < kAtATime; ++i) {
    const std::shared_lock no_fork(fork_lock_);
    UniqueFd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
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
void PeerSockets::pause_accepting(std::int64_t now) {
  const std::string why = why_no_memory(errno);
  (void)epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listener_.get(), nullptr);
  accept_again_ = now + kAcceptPause;
  if (warned_of_limit_ != 0 && now - warned_of_limit_ < kWarningsApart) return;
  warned_of_limit_ = now;
  TP_WARN("soft HCA: another process wants to connect, and waits until it can be accepted: %s",
          why.c_str());
}

void PeerSockets::drop(int socket) {
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

void PeerSockets::serve_socket(int socket, bool has_room, MessageHandler& handler) {
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
    drop(socket);
    return;
  }
  for (int i = 0; i < kAtATime; ++i) {
    Received r;
    Status s = wire.receive(r);
    if (s == Status::again) return;
    if (s == Status::ok) {
      SlowStep slow("serving a peer's message");
      s = peer ? hear(*peer, r, handler) : hear(*caller, r, handler);
      if (s == Status::ok) continue;
      if (s != Status::closed)
        TP_WARN("soft HCA: the connections of process %d end: it does not keep to the protocol",
                r.message.pid);
    }
    drop(socket);
    return;
  }
}

void PeerSockets::serve(EventWait& wait, int limit_us, MessageHandler& handler) {
  epoll_event events[32];
  const int n = wait.wait(epoll_.get(), events, limit_us);
  for (int i = 0; i < n; ++i) {
    const int fd = events[i].data.fd;
    if (fd == bell_.get()) {
      std::uint64_t rung = 0;
      (void)!read(fd, &rung, sizeof rung);
    } else if (fd == listener_.get()) {
      accept_callers();
    } else {
      serve_socket(fd, (events[i].events & EPOLLOUT) != 0, handler);
    }
  }
  if (accept_again_ != 0 && now_ns() >= accept_again_) {
    if (std::string why; watch(listener_.get(), why)) accept_again_ = 0;
  }
}

}  // namespace twinpath::soft
