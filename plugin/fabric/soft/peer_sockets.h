#pragma once
// The sockets between the processes of a job: who is let in, who is reached, how the two greet each
// other, and what becomes of a socket that ends.  What their messages are for is MessageHandler's.
//
// A forked child must not hold a socket open: peers would take the dead for living.  So nobody
// makes one, or takes it out of the tables, while the process forks, and the child closes what they
// have.
//
// Threads: any, unless said.  Who calls holds no lock that he takes after before_fork(), too; while
// the tables are locked nobody else is called.
#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <unordered_map>

#include "plugin/base/event_wait.h"
#include "plugin/base/owned.h"
#include "plugin/base/status.h"
#include "plugin/fabric/soft/peer.h"
#include "plugin/fabric/soft/rendezvous.h"
#include "plugin/fabric/soft/wire.h"

namespace twinpath::soft {

// What comes once two processes have greeted each other.  closed: the sender takes no answer;
// bad_argument: it is none of this version.  Both end what we have with it.
class MessageHandler {
 public:
  // Of a process that has connected to us.  Its `slot` and `holder` are set.
  virtual Status on_request(Caller& caller, Received& r) = 0;
  // Of one that we have connected to.
  virtual Status on_reply(Peer& peer, Received& r) = 0;
  // So many have been reached by now.
  virtual void on_peers(int count) = 0;

 protected:
  ~MessageHandler() = default;
};

class PeerSockets {
 public:
  // Of the processes of a job.  `direct`: peers' memory is to be reached with process_vm_readv, if
  // the system lets us.
  PeerSockets(const std::string& job, std::uint32_t slots, bool direct);
  // Takes a slot and listens.  `keys`, which peers are sent, must outlive this.  `why`: for the
  // user.
  Status start(KeyTable& keys, std::string& why);

  // What is the same for all processes of this user and job.
  const std::string& prefix() const { return rendezvous_.prefix(); }
  std::uint32_t slot() const { return slot_; }

  // The process of another slot, which is asked for if it is not known yet: that may take seconds.
  // Not greeted yet, perhaps.
  Result<std::shared_ptr<Peer>> reach(std::uint32_t slot);
  // The same if it has been reached and lives as far as we know; null otherwise.
  std::shared_ptr<Peer> known(std::uint32_t slot);
  // All that are known.
  void tell(const Message& message);
  // Ends the present wait of serve(), or the next.
  void wake() const;

  // Waits for up to `limit_us` microseconds and does what has come.  One thread.
  void serve(EventWait& wait, int limit_us, MessageHandler& handler);

  // Around fork(), by the thread that forks.
  void before_fork();
  void after_fork(bool in_child);

 private:
  bool watch(int socket, std::string& why) const;  // false: nothing that comes there is heard
  Message introduction(MessageKind kind) const;
  Result<std::shared_ptr<Peer>> connect(std::uint32_t slot);
  // The rest: whoever serves.
  void accept_callers();
  void pause_accepting(std::int64_t now);
  void serve_socket(int socket, bool has_room, MessageHandler& handler);
  void drop(int socket);
  Status hear(Caller& caller, Received& r, MessageHandler& handler);
  Status hear(Peer& peer, Received& r, MessageHandler& handler);
  Status on_greeting(Caller& caller, Received& r);
  Status on_welcome(Peer& peer, Received& r, MessageHandler& handler);

  const Rendezvous rendezvous_;
  const bool direct_;
  std::uint32_t slot_ = 0;
  const std::uint64_t probe_value_;
  KeyTable* keys_ = nullptr;
  UniqueFd listener_, epoll_, bell_;

  // Locks, outermost first.  One reach() at a time, so that who waited finds what the other made.
  std::mutex connecting_;
  // Exclusive while the process forks, shared while a socket is open that is in no table.
  std::shared_mutex fork_lock_;
  std::mutex lock_;                                                 // the tables
  std::unordered_map<std::uint32_t, std::shared_ptr<Peer>> peers_;  // by slot
  std::unordered_map<int, std::shared_ptr<Peer>> outgoing_;         // by socket
  std::unordered_map<int, std::shared_ptr<Caller>> incoming_;

  std::int64_t accept_again_ = 0;  // when, after descriptors ran out; 0: it does
  std::int64_t warned_of_limit_ = 0;
};

}  // namespace twinpath::soft
