#pragma once
// The handshake of one connection as a state machine, the same for both ends.  advance() is
// called until it stops saying `again`; it never blocks.  Whatever was made is released by the
// destructor, at any step.
//
// Threads: one at a time.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "plugin/base/socket.h"
#include "proxy/connect/connection_parts.h"
#include "proxy/connect/frame_exchange.h"
#include "proxy/connect/making_clock.h"
#include "proxy/connect/session_core.h"
#include "proxy/connect/unheard_calls.h"
#include "proxy/wire/handshake.h"
#include "proxy/wire/hello_pair.h"

namespace twinpath {

class Connection {
 public:
  enum class Role { connector, acceptor };
  enum class Step {
    connect_socket,
    send_hello,
    recv_hello,
    make_queues,
    send_queues,
    recv_queues,
    raise_queues,
    send_other_sets,
    send_ready,
    recv_ready,
    done
  };

  // `socket` is connecting (connector) or accepted (acceptor); `rails` are the device's.  An
  // acceptor may take another device (subnet_choice.h) once it has heard the connector.
  // `hello_limit`: for how long (ns) an acceptor waits for the caller's hello.
  Connection(Role role, std::shared_ptr<SessionCore> core, int device, std::vector<Rail> rails,
             const Nonce& nonce, TcpSocket socket, std::int64_t hello_limit);

  // ok when done (take the parts then), again, or the error that ended it, already logged.
  Status advance();
  ConnectionParts take() { return std::move(parts_); }
  int device() const { return device_; }
  // Of a connector, by what the handle says.
  void goes_to_another_host() { another_host_ = true; }
  // As soon as the peer has shown that it holds the handle it is refused, with this text.
  void turn_away(std::string text) { turned_away_ = std::move(text); }
  bool turned_away() const { return !turned_away_.empty(); }
  // Whether the other end has shown that it holds the handle; before that it is anybody.
  bool peer_known() const { return role_ == Role::connector || frames_.heard(); }
  // Who it is, as far as that is known.
  std::string peer_text() const;

 private:
  Status run();
  Status wait_on();
  Status give_up();
  void tell_wait() const;
  Status connect_socket();
  Status send_hello();
  Status recv_hello();
  // What is this end's by its device.
  void use(int device, std::vector<Rail> rails);
  // The device for this peer, where it is another.
  Status choose_device();
  // How GPU memory of this connection is used, from both ends' records.
  void decide_mode();
  Status make_queues();
  Status create_queues();
  Status join_shared(const QueuePaths& paths, const QueueSettings& settings);
  // Whether the connector has chosen a set that has failed here.
  bool names_failed_sets() const;
  // It has failed at the acceptor: back to where sets are chosen, once.
  Status choose_other_sets();
  Status check_queues();
  Status register_own_memory();
  Status moved(Status s);
  Status send_queues();
  Status recv_queues();
  Status raise_queues();

  Status send_frame(FrameType type, const std::vector<std::uint8_t>& body);
  // Into frames_.body(); `or_else`: may come instead.
  Status recv_frame(FrameType type, FrameType or_else);
  Status recv_frame(FrameType type) { return recv_frame(type, type); }
  bool call_again();
  Status socket_ended(Status s);
  Status refuse(Status s, const std::string& text);  // tells the peer, logs, returns s
  const char* waiting_for() const;
  std::string remedy(Status s) const;

  const Role role_;
  std::shared_ptr<SessionCore> core_;
  int device_ = -1;
  std::vector<Rail> rails_;
  FrameExchange frames_;
  HelloClock hello_clock_;
  MakingClock clock_;
  TcpSocket socket_;
  Step step_;
  bool another_host_ = false;
  UnheardCalls unheard_;
  std::string turned_away_;
  std::string unreached_;  // why the last try to connect, or to move a queue pair, failed

  // Who this connection is, for whoever reads the counters.
  counters::Identity identity() const;

  Placement::End end_;
  HelloPair hellos_;
  struct {
    Queues theirs;
    std::vector<SharedSets::Place> shared;  // own regular queues' places, or none
    bool other_sets = false;                // they were others before
  } said_;
  counters::Identity path_;  // how data goes, and why
  ConnectionParts parts_;
  // Until the link has them; destroyed before the ring, the place first.
  std::unique_ptr<QueueSet> queues_;
  CommPlace place_;
};

}  // namespace twinpath
