#pragma once
// The software adapter of one process: its devices, its slot among the processes of this user
// and job, the peers it talks to, and the engine thread that serves what no caller polls for.
//
// There is one per process, as there is one kernel driver per machine: ibv_get_device_list has
// no argument to carry it.  It is made by the first load_soft_hca and never destroyed.
//
// Threads: any, unless said.
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "plugin/base/clock.h"
#include "plugin/base/config.h"
#include "plugin/base/run_clock.h"
#include "plugin/fabric/soft/activity.h"
#include "plugin/fabric/soft/allocations.h"
#include "plugin/fabric/soft/copy_team.h"
#include "plugin/fabric/soft/device_list.h"
#include "plugin/fabric/soft/engine_rest.h"
#include "plugin/fabric/soft/extended.h"
#include "plugin/fabric/soft/faults.h"
#include "plugin/fabric/soft/objects.h"
#include "plugin/fabric/soft/offers.h"
#include "plugin/fabric/soft/peer_sockets.h"
#include "plugin/fabric/soft/port_addresses.h"
#include "plugin/fabric/soft/posted_writes.h"
#include "plugin/fabric/soft/qp_table.h"

namespace twinpath::soft {

class Hca final : private MessageHandler {
 public:
  // The process's adapter; made on first use.
  static Result<Hca*> instance(const Config& config, std::string& why);
  static Hca* existing();

  // Replaces what get_device_list shows from now on (devices that are open stay valid).
  bool set_devices(const std::string& spec, std::string& why);
  std::vector<SoftDevice*> devices();

  // Contexts that are told of port events.
  void add_context(SoftContext* context);
  void remove_context(SoftContext* context);
  // The link of a port goes or comes back, for all QPs that use it.
  void set_port(SoftDevice& device, int port, bool up);
  void set_loss(SoftDevice& device, int port, PortLoss loss);
  void set_lid(SoftDevice& device, int port, std::uint16_t lid);
  // Has the engine thread look at all queues now.
  void wake_engine() { sockets_.wake(); }

  // For polls: gets those queue pairs up that were given something to do.  Takes no lock that
  // somebody holds: what it leaves is found by the next poll or by the engine.
  void look_at_board() {
    if (keys_->board().any()) [[unlikely]]
      look_at_marks();
  }

  KeyTable& keys() { return *keys_; }
  const Config& config() const { return config_; }
  Faults& faults() { return faults_; }
  PostedWrites& posted() { return posted_; }
  CopyTeam& team() { return team_; }
  bool may_sleep() const { return activity_.may_sleep(); }
  std::uint32_t slot() const { return sockets_.slot(); }
  const PortAddresses& addresses() const { return addresses_; }

  bool add_qp(SoftQp* qp);  // sets its number; false: none left
  void remove_qp(SoftQp* qp);

  // Joins the QP (attributes set, at RTR) to its destination: finds or offers the link.  Called
  // without the QP's lock.
  Status attach(SoftQp& qp);

  Allocations& allocations() { return allocations_; }
  // One MR of it less; peers learn that it has gone.
  void release_allocation(std::uint64_t alloc_id);

 private:
  explicit Hca(const Config& config);
  Status start(std::string& why);
  static void before_fork();
  static void after_fork(bool in_child);
  void engine_loop();
  void keep_failing_port(std::int64_t now);
  static bool unattended(const SoftQp& qp);
  // Looks at the queue pairs that are awake; microseconds until the next look.
  int sweep(std::int64_t now);
  void look_at_marks();
  void tell(const SoftDevice& device, int port, ibv_event_type type);
  // links.cc: joining a QP to its destination.
  Status attach_here(SoftQp& qp);
  Status offer_link(SoftQp& qp, const std::shared_ptr<Peer>& peer);
  Status accept_link(SoftQp& qp, const std::shared_ptr<Link>& link);
  void bind_link(SoftQp& qp, std::shared_ptr<Link> link);
  Status on_offer(const Caller& caller, Received& r);
  Status on_acceptance(const Caller& caller, Received& r);
  // messages.cc: what the engine does with a message.
  Status on_request(Caller& caller, Received& r) override;
  Status on_reply(Peer& peer, Received& r) override;
  void on_peers(int count) override;
  Status on_export_request(Caller& caller, const Message& m);
  void on_export_reply(Peer& peer, Received& r);
  void on_gone(std::uint32_t slot, std::uint64_t alloc_id);

  Config config_;
  Faults faults_;
  PostedWrites posted_;
  CopyTeam team_;
  PortAddresses addresses_{0};  // of the job, since start()
  std::unique_ptr<KeyTable> keys_;
  PeerSockets sockets_;

  std::mutex lock_;
  DeviceList devices_;
  QpTable qps_;
  Activity activity_;
  std::vector<SoftContext*> contexts_;
  Offers offers_;
  std::atomic<std::uint64_t> next_link_{1};

  Allocations allocations_;
  EngineRest rest_;
  RunClock ran_{20 * kMillisecond};  // what retries go by: an adapter is not stopped with a process
  std::thread engine_;
};

// Nanoseconds that a QP waits before it gives up, from its timeout and retry_cnt; 0 = for ever.
std::int64_t retry_limit_ns(const SoftQp& qp);

}  // namespace twinpath::soft
