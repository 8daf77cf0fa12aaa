#pragma once
// One socket to another process (SOCK_SEQPACKET) and the messages on it: fixed size, same-host byte
// order, with up to two descriptors.
//
// Sending never blocks: a stopped or hostile process that reads nothing holds up nobody.  What its
// socket does not take is kept in order, and the engine sends it when there is room.
//
// Threads: any for sending; receive() belongs to the engine thread.
#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>

#include "plugin/base/owned.h"
#include "plugin/base/status.h"

namespace twinpath::soft {

enum class MessageKind : std::uint32_t {
  greeting = 1,    // of who connects; brings what it holds of the other's keys
  welcome,         // the answer; brings keys and notice board
  offer,           // of a link; brings the offering half, and the words that both write
  acceptance,      // of an offer; brings the other half
  export_request,  //
  export_reply,    // may bring a descriptor of the allocation
  gone,            // an allocation that was exported is no longer registered
  wake             // the engine is to look at its queues
};

struct Message {
  std::uint32_t magic;
  MessageKind kind;
  std::uint32_t slot;   // sender's
  std::int32_t pid;     // sender's own idea of it
  std::uint64_t a, b;   // offer, acceptance: the sender's QP and the other; export: allocation, key
  std::uint64_t link;   // offer: the sender's number for it; acceptance: the same
  std::uint64_t probe;  // greeting, welcome: address of `probe_value` in the sender
  std::uint64_t probe_value;
  // export_reply
  std::uint32_t export_kind;  // ExportedAllocation::Kind; none = refused
  std::uint32_t reserved;
  std::uint64_t bytes;
  std::uint8_t gpu[16];
  std::uint8_t ipc[64];
};
inline constexpr std::uint32_t kMessageMagic = 0x54505735;  // changes with the layout
inline constexpr std::size_t kMessageFds = 2;

struct Received {
  Message message{};
  std::array<UniqueFd, kMessageFds> fds;
};

class Wire {
 public:
  // `epoll`: of the engine, where the socket is or will be watched for reading.
  Wire(UniqueFd socket, int epoll) : socket_(std::move(socket)), epoll_(epoll) {}
  int fd() const { return socket_.get(); }

  // False: the other process is gone, or too much waits already.  Descriptors may be closed after.
  bool send(const Message& message, std::array<int, kMessageFds> fds = {-1, -1});
  // Only if there is room just now: for messages that any other replaces.
  void send_wake(std::uint32_t slot) const;
  // Whether the other process has read all that was sent.
  bool is_read() const;
  // The engine, when the socket has room again.  False: as send().
  bool flush();
  // ok, again, or closed: also for what is no message of ours, and when descriptors got lost
  // because this process has too many open.
  Status receive(Received& into) const;

 private:
  struct Waiting {
    Message message;
    std::array<UniqueFd, kMessageFds> fds;
  };
  bool keep(const Message& message, const std::array<int, kMessageFds>& fds);
  void watch(bool for_room) const;

  UniqueFd socket_;
  const int epoll_;
  std::mutex lock_;
  std::deque<Waiting> waiting_;
  bool broken_ = false;
};

}  // namespace twinpath::soft
