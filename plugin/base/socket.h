#pragma once
// Non-blocking TCP for the control connection of two peers: pick the interface as NCCL does,
// listen, connect, send and receive parts.  Nothing here blocks or sleeps.
//
// Threads: an object belongs to one thread at a time.
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "plugin/base/config.h"
#include "plugin/base/status.h"
#include "plugin/base/unshared_fd.h"

namespace twinpath {

struct SocketAddress {
  union {
    sockaddr sa;
    sockaddr_in in4;
    sockaddr_in6 in6;
  };
  SocketAddress() : in6{} {}
  socklen_t length() const;
  std::string text() const;  // "10.0.0.1:1234", "[fe80::1%eth0]:1234"
};

struct Interface {
  std::string name;
  SocketAddress address;  // port 0
  int prefix = -1;        // leading bits of the address that its network shares; -1: not known
  bool aside = false;     // a tunnel, a dummy, or a bridge without a way out of this host
};

// Interfaces that match NCCL_SOCKET_IFNAME ("eth", "=eth0", "^lo,docker", list) and
// NCCL_SOCKET_FAMILY, each with the address of it that reaches furthest (plugin/base/reach.h).
// Without names that are wanted: those alone that reach as far as any does, InfiniBand's first,
// then those on the network of NCCL_COMM_ID.  With them: all, those that reach furthest first.
// Pure: `all` is what the system has.
std::vector<Interface> choose_interfaces(const std::vector<Interface>& all, const Config& config);
// Those that are up and have a carrier.
std::vector<Interface> system_interfaces();

// First chosen interface; logs what was asked for and what exists when none fits, and once that
// its address is one that peers may not reach.
Result<Interface> control_interface(const Config& config);
// A peer's link-local IPv6 address names an interface by the peer's number of it.  Puts in ours: of
// the interface that control_interface() chooses, where it has nothing better either.
void use_own_scope(SocketAddress& to, const Config& config);
// "eth0 (10.0.0.1:40123)", for messages; the address alone when no interface has it.
std::string interface_text(const SocketAddress& local);

// A descriptor that is kept to be given up: with none left, a caller could neither be let in nor
// told why.  Threads: any.
class SpareFd {
 public:
  SpareFd() { restore(); }
  // Frees a descriptor for the next call that wants one.  False when there is no spare.
  bool lend();
  // To be called when that one is closed again.
  void restore();

 private:
  std::mutex mutex_;
  UnsharedFd fd_;
};

class TcpListener {
 public:
  // Binds an ephemeral port on the interface; backlog 1024; non-blocking, close-on-exec.
  static Result<TcpListener> open(const Interface& interface);
  const SocketAddress& address() const { return address_; }
  // The next waiting connection, or Status::again.  no_memory: somebody waits, and there is no
  // descriptor left for it.
  Result<class TcpSocket> accept();
  int fd() const { return fd_.get(); }

 private:
  UnsharedFd fd_;
  SocketAddress address_;
};

// What an established connection shows of its other end.
enum class PeerSign : std::uint8_t {
  quiet,       // nothing to read; TcpSocket::silence_ms() says whether the other host answers
  talking,     // bytes wait to be read
  ended,       // end of file
  reset,       // the other host answered that nobody has the connection (any more)
  unreachable  // the kernel has given up; that says nothing of the process at the other end
};

// Why a socket ended: the first thing that it said.  The kernel tells an error to one call only,
// and the next finds end of file.  Moves with the socket; any thread may note.
class SocketEnd {
 public:
  SocketEnd() = default;
  SocketEnd(SocketEnd&& o) noexcept : code_(o.code_.load(std::memory_order_relaxed)) {}
  SocketEnd& operator=(SocketEnd&& o) noexcept {
    // Plain copies: nobody uses a socket while it is moved.  Nothing else hangs on the number.
    code_.store(o.code_.load(std::memory_order_relaxed), std::memory_order_relaxed);
    return *this;
  }
  static constexpr int kEndOfFile = -1;
  // kEndOfFile or an errno; 0 while it lives.
  int code() const { return code_.load(std::memory_order_relaxed); }
  void note(int code) {
    int none = 0;
    (void)code_.compare_exchange_strong(none, code, std::memory_order_relaxed);
  }

 private:
  std::atomic<int> code_{0};
};

// A number that several threads may note, and nothing else hangs on; moves with its owner.
class LooseTime {
 public:
  LooseTime() = default;
  LooseTime(LooseTime&& o) noexcept : ns_(o.get()) {}
  LooseTime& operator=(LooseTime&& o) noexcept {
    set(o.get());
    return *this;
  }
  std::int64_t get() const { return ns_.load(std::memory_order_relaxed); }
  void set(std::int64_t ns) { ns_.store(ns, std::memory_order_relaxed); }

 private:
  std::atomic<std::int64_t> ns_{0};
};

class TcpSocket {
 public:
  TcpSocket() = default;
  explicit TcpSocket(UnsharedFd fd, const SocketAddress& peer) : fd_(std::move(fd)), peer_(peer) {}
  // Starts connecting; finish_connect() says when it is done.
  static Result<TcpSocket> connect(const SocketAddress& to);
  // ok, again, or remote (refused, unreachable; `why` gets the system's text).  Until `retry_until`
  // (now_ns()) a host that cannot be reached is tried anew every half second, and `why` says what
  // came of the last try; the socket is not open in between.  A refusal is an answer.
  Status finish_connect(std::string& why, std::int64_t retry_until = 0);
  // Gives the connection up; after a pause finish_connect() connects to the same address again.
  void connect_anew();
  // Sends/receives as much as goes; `done` counts bytes over calls.  ok when all went, again
  // when the rest must wait, closed on end of file, system when refused, remote on error.
  Status send_part(std::span<const std::uint8_t> bytes, std::size_t& done);
  Status recv_part(std::span<std::uint8_t> bytes, std::size_t& done);
  // Reads nothing.  Once ended, reset or unreachable it stays so, with the first reason.  May be
  // called while another thread sends or receives.
  PeerSign look() const;
  // The next byte to be read, which stays there; -1: none is.
  int next_byte() const;
  // Milliseconds since the other host last answered.  0 where the system does not tell.
  std::int64_t silence_ms() const;
  // Asks the other host whether it still has the connection, unless it has shown so within the last
  // second, or was asked within `every_ns` (within a second if it owes the answer).  For whoever
  // waits for the peer, after set_control_options(); its process learns nothing of it.  `now`:
  // now_ns().  Any thread.
  void ask(std::int64_t now, std::int64_t every_ns) const;
  // For how long it has owed an answer to such a question; 0: it owes none.
  std::int64_t owed_ms(std::int64_t now) const;
  // The system's text for the end that look() saw; empty before that, and for end of file.
  std::string end_text() const;
  // The interface and address of this end, for messages.
  std::string local_text() const;
  // For an established connection: TCP_NODELAY; the other host is asked every half minute whether
  // it still has the connection (keepalive), and when ask() says so.  Thousands of connections are
  // idle at a time.  However long there is no answer, the kernel does not give up for a day:
  // PeerWatch judges.
  void set_control_options();
  // The last words before it is closed, as far as they go at once.  The kernel tries to bring them
  // for half a minute, and not for the day that an open connection has.
  void leave(std::span<const std::uint8_t> words);
  // The peer finds the end behind what was sent so far.  Any thread.
  void end_words() const;
  const SocketAddress& peer() const { return peer_; }
  int fd() const { return fd_.get(); }
  bool is_open() const { return static_cast<bool>(fd_); }
  void close() { fd_.reset(); }

 private:
  UnsharedFd fd_;
  SocketAddress peer_;
  int connect_error_ = 0;      // errno of a connect that failed
  std::int64_t retry_at_ = 0;  // not 0: it is tried anew then
  mutable SocketEnd end_;
  mutable LooseTime asked_;       // the first question that was not answered; 0: none ever
  mutable LooseTime last_asked_;  // the last
};

}  // namespace twinpath
