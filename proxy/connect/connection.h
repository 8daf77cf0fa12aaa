#pragma once
// The handshake of one connection as a state machine, the same for both ends.  advance() is
// called until it stops saying `again`; it never blocks.  Whatever was made is released by the
// destructor, at any step.
//
// Threads: one at a time.
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "plugin/base/socket.h"
#include "proxy/connect/expected_traffic.h"
#include "proxy/connect/making_clock.h"
#include "proxy/connect/peer_link.h"
#include "proxy/connect/stranger_log.h"
#include "proxy/queues/registered_buffer.h"
#include "proxy/wire/cts.h"
#include "proxy/wire/handshake.h"
#include "topology/decide/decision.h"

namespace twinpath {

// Says each decision once per peer: connections are many more.  Threads: any.
class DecisionLog {
 public:
  // `peer` tells peers apart.
  void tell(const std::string& peer, const Decision& decision, const PlacementRecord& local,
            const PlacementRecord& remote, const EndNames& here, const EndNames& there);

 private:
  std::mutex mutex_;
  std::set<std::string> told_;
};

// What the comms of one session share; kept alive by each of them.
struct SessionCore {
  explicit SessionCore(std::int64_t wait_pause) : waits(wait_pause) {}
  std::shared_ptr<Devices> devices;
  std::shared_ptr<CompletionHub> hub;
  CommSettings settings;
  ExpectedTraffic expected;
  DecisionLog decisions;
  StrangerLog strangers;
  WaitLog waits;
  SpareFd spare;                         // for a listener that has no descriptor left
  std::unique_ptr<Attendant> attendant;  // of the hub; last, so that it ends first
};

// Everything a comm is made of.
struct ConnectionParts {
  // What the peer writes to.  Sender: the ring of clear-to-send cells; receiver: the box of parcels
  // and sizes (wire/parcel.h).
  std::unique_ptr<RegisteredBuffer> ring;
  // Receiver: where cells lie until they are written, on adapters that take too little inline.
  std::unique_ptr<RegisteredBuffer> shadow;
  CtsLayout layout;
  std::uint64_t remote_memory = 0;                      // the peer's
  std::array<std::uint32_t, kMaxRails> remote_rkeys{};  // by rail of the peer
  std::unique_ptr<PeerLink> link;                       // destroyed before the ring
  // Sender: longer messages leave their immediate to a write of its own (adaptive routing).
  std::size_t split_above = SIZE_MAX;
  // What this end does with GPU memory: the sender's source, the receiver's landing.
  EndPlan plan{kAnySize};
  // The sender may cut a staged message into several writes on one queue.
  bool peer_stages = false;
  // Own rails near the GPU: messages that are not cut over all rails keep to them.
  std::vector<int> near_rails;
};

// Depths of the queues of each role; the reasons stand at the definitions.
QueueSettings queue_settings(bool sender, const Config& config, const CommSettings& settings,
                             bool sender_stages = false, bool splits = false);

// From which size on a sender splits data and immediate (ConnectionParts::split_above), as NCCL's
// own transport does: where switches may route adaptively, which without the user's word is on
// InfiniBand.
std::size_t split_above(const Config& config, bool roce);

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
  bool peer_known() const { return peer_known_; }
  // Who it is, as far as that is known.
  std::string peer_text() const;

 private:
  Status run();
  Status wait_on();
  Status give_up();
  void tell_wait() const;
  std::string unheard_text() const;
  Status connect_socket();
  Status send_hello();
  Status recv_hello();
  // What is this end's by its device.
  void use(int device, std::vector<Rail> rails);
  // The device for this peer, where it is another.
  Status choose_device();
  // Whether each end's rails can reach the other's, as far as the hellos tell.
  Status check_rails();
  // How GPU memory of this connection is used, from both ends' records.
  void decide_mode();
  Status make_queues();
  bool both_can_recover() const;
  // Whether it survives the failure of a queue.
  bool recoverable() const;
  QueuePaths paths(int queues) const;
  Status create_queues();
  Status register_own_memory();
  Status moved(Status s);
  Status send_queues();
  Status recv_queues();
  Status raise_queues();

  Status send_frame(FrameType type, const std::vector<std::uint8_t>& body);
  Status recv_frame(FrameType type);  // into body_
  Status check_header();
  bool call_again();
  Status socket_ended(Status s);
  Status refuse(Status s, const std::string& text);  // tells the peer, logs, returns s
  const char* waiting_for() const;
  std::string remedy(Status s) const;

  const Role role_;
  std::shared_ptr<SessionCore> core_;
  int device_ = -1;
  std::vector<Rail> rails_;
  const Nonce nonce_;
  const std::int64_t hello_limit_;
  RunClock hello_clock_ = RunClock::until(hello_limit_);
  MakingClock clock_;
  TcpSocket socket_;
  Step step_;
  bool peer_known_ = false;
  bool another_host_ = false;
  int unheard_ = 0;                    // calls that the listener closed without a word,
  std::int64_t first_unheard_ms_ = 0;  // and when the first was, by our clock
  std::string turned_away_;
  std::string unreached_;  // why the last try to connect, or to move a queue pair, failed

  std::vector<std::uint8_t> out_;
  std::size_t sent_ = 0;
  std::array<std::uint8_t, kFrameHeaderBytes> header_bytes_{};
  std::size_t header_got_ = 0;
  FrameHeader header_;
  std::vector<std::uint8_t> body_;
  std::size_t body_got_ = 0;

  // Who this connection is, for whoever reads the counters.
  counters::Identity identity() const;

  Placement::End end_;
  Hello mine_, theirs_;
  Queues their_queues_;
  counters::Identity path_;  // how data goes, and why
  ConnectionParts parts_;
  std::unique_ptr<QueueSet> queues_;  // until the link has them; destroyed before the ring
};

}  // namespace twinpath
