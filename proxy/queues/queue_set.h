#pragma once
// The RC queue pairs of one connection, over all its rails.  Queue q lies on local rail
// q % (local rails) and talks to remote rail q % (remote rails).
//
// Made in INIT, raised to RTR and RTS once the peer's addresses are known.  Owns its place in
// the hub's table of comms and its share of the CQs; gives both back when destroyed.
// Threads: made, raised and destroyed by one thread; posting needs the hub's lock.
#include <memory>
#include <string>
#include <vector>

#include "proxy/memory/devices.h"
#include "proxy/queues/completion_engine.h"
#include "proxy/wire/handshake.h"

namespace twinpath {

// The local end of a rail, its addresses as they were when the connection began.
struct Rail {
  RailPort port;
  GidEntry gid;
  ibv_mtu mtu = IBV_MTU_1024;
  std::uint16_t lid = 0;
  // What the peer is told of it.
  HelloRail hello() const;
};

// Attributes that are the same on all queues of a connection.
struct QueueSettings {
  int send_depth = 1;
  int recv_depth = 1;
  int inline_bytes = 0;  // wanted; what the device grants is in Queue::inline_bytes
  int access = 0;
  std::uint8_t traffic_class = 0;
  std::uint8_t service_level = 0;
  std::uint16_t pkey_index = 0;
  std::uint8_t timeout = 20;
  std::uint8_t retry_count = 7;
};

struct Queue {
  CompletionEngine* engine = nullptr;
  Owned<ibv_qp> qp;
  int rail = 0;         // local
  int remote_rail = 0;  // 0 until raised
  std::uint32_t psn = 0;
  std::uint32_t inline_bytes = 0;
  std::uint32_t speed_mbps = 0;  // of the slower end, 0 until raised
};

// Address vector and path of one queue, out of both ends.  Pure.
ibv_qp_attr path_attributes(const Rail& local, const HelloRail& remote, QueueAddress to,
                            const QueueSettings& settings);

class QueueSet {
 public:
  static Result<std::unique_ptr<QueueSet>> make(std::shared_ptr<CompletionHub> hub,
                                                std::shared_ptr<Devices> devices,
                                                std::vector<Rail> rails, int count,
                                                const QueueSettings& settings);
  ~QueueSet();
  QueueSet(const QueueSet&) = delete;
  QueueSet& operator=(const QueueSet&) = delete;

  // To RTR and RTS.  On failure `why` names port, GID, errno and what to do.
  Status raise(const std::vector<HelloRail>& remote, const std::vector<QueueAddress>& to,
               std::string& why);

  std::vector<Queue>& queues() { return queues_; }
  const std::vector<Queue>& queues() const { return queues_; }
  const std::vector<Rail>& rails() const { return rails_; }
  const std::vector<CompletionEngine*>& engines() const { return engines_; }  // each once
  int receive_depth() const { return settings_.recv_depth; }
  CompletionHub& hub() { return *hub_; }
  Devices& devices() { return *devices_; }
  CompletionHub::CommId comm_id() const { return comm_; }
  std::vector<QueueAddress> addresses() const;
  // The queue with that number, or null.
  const Queue* find(std::uint32_t qpn) const;

 private:
  QueueSet(std::shared_ptr<CompletionHub> hub, std::shared_ptr<Devices> devices,
           std::vector<Rail> rails, const QueueSettings& settings)
      : devices_(std::move(devices)),
        hub_(std::move(hub)),
        rails_(std::move(rails)),
        settings_(settings) {}
  Status add_queue(int index);

  std::shared_ptr<Devices> devices_;  // before the hub: CQs go before their context
  std::shared_ptr<CompletionHub> hub_;
  std::vector<Rail> rails_;
  QueueSettings settings_;
  bool registered_ = false;
  CompletionHub::CommId comm_;
  std::vector<CompletionEngine*> engines_;
  std::vector<Queue> queues_;
};

// GIDs as text.
std::string gid_text(const ibv_gid& gid);

}  // namespace twinpath
