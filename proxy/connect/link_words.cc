// What a link hears from its peer and says to it over the control socket, and how it takes part in
// the failover of its queues.
#include <bit>
#include <mutex>
#include <utility>

#include "plugin/base/clock.h"
#include "plugin/base/log.h"
#include "plugin/rdma/staging.h"
#include "proxy/connect/peer_link.h"

namespace twinpath {
namespace {

const Rail& rail_of(PeerLink& link, int rail) {
  return link.set().rails()[static_cast<std::size_t>(rail)];
}

}  // namespace

void PeerLink::read_words(std::int64_t now) {
  if (const std::string said = hear(now); !said.empty() && !broken_)
    lost_with_peer(said + paths_text(*queues_, peer_));
}

std::string PeerLink::hear(std::int64_t now) {
  std::string said;
  control_.receive([&](const ControlMessage& message) {
    switch (message.kind) {
      case ControlMessage::Kind::goodbye:
        left_at_ = now;
        break;
      case ControlMessage::Kind::failure:
        said = "the peer lost another rank of this communicator; its log names that rank";
        break;
      case ControlMessage::Kind::broken:
        said = "the peer lost this connection at its end; its log says why";
        break;
      case ControlMessage::Kind::frame:
        if (!broken_ && !failover_->hear(message.frame, message.body))
          said = "it says something that makes no sense about its queues";
        break;
      case ControlMessage::Kind::nonsense:
        said = "it says something that makes no sense on the control connection";
        break;
      case ControlMessage::Kind::unknown:
        break;
    }
  });
  return said;
}

void PeerLink::exchange_words(std::int64_t now) {
  control_.send({});
  if (!broken_ && left_at_ == 0) read_words(now);
}

// --- failover -----------------------------------------------------------------------------

void PeerLink::serve(FailoverComm* comm) {
  if (failover_ == nullptr) return;
  if (comm == nullptr) hub().thread().unwatch(*this);
  {
    std::lock_guard hold(hub().lock);
    failover_->serve(comm);
  }
  if (comm == nullptr) return;
  std::vector<int> fds{control_.socket().fd()};
  for (const Rail& rail : queues_->rails())
    if (const int fd = rail.port.port->context->async_fd; fd >= 0) fds.push_back(fd);
  hub().thread().watch(*this, fds);
}

std::int64_t PeerLink::attend(std::int64_t now) {
  if (broken_) return 0;
  for (const Rail& rail : queues_->rails()) rail.port.adapter->events.poll();
  if (failover_->running() || control_.socket().next_byte() == kFailoverByte) {
    // What the peer did before it spoke counts: take every completion first.
    while (poll() > 0) {
    }
    if (!broken_) read_words(now);
  }
  if (!broken_ && failover_->looks_after(now)) {
    while (poll() > 0) {
    }
    if (!broken_) failover_->look_for_stalls(now);
  }
  if (!broken_) failover_->look_at_ports(now, true);
  if (failover_->running()) failover_->go_on(now);
  return failover_->next_look();
}

bool PeerLink::excuses(const ibv_wc& wc) {
  if (failover_ == nullptr) return false;
  if (of_the_path(wc.status) || !down_texts(*queues_).empty()) return true;
  for (const Rail& rail : queues_->rails())
    if (!queues_->devices().absence_text(rail.port).empty())
      return failover_->outlives_adapters(now_ns());
  // Nobody else takes the memory that a flush reads.
  return wc.status != IBV_WC_REM_ACCESS_ERR && errors_.blamed(wc.status, now_ns());
}

void PeerLink::stopped(bool stopped) {
  halted_ = stopped || broken_;
  only_ = queues_->engines().size() == 1 ? queues_->engines().front() : nullptr;
  if (!stopped) return;
  probes_.renew();
}

bool PeerLink::tell(const std::string& text, std::size_t topic, bool must) {
  const bool aloud = must || hub().time_to_tell(topic, now_ns());
  if (aloud)
    TP_WARN("connection to %s %s", peer_.text.c_str(), text.c_str());
  else
    TP_INFO(net, "connection to %s %s", peer_.text.c_str(), text.c_str());
  return aloud;
}

Result<Memory*> if_reached(PeerLink& link, Result<Memory*> made) {
  if (!made || !link.has_reserve()) return made;
  const auto& memory = static_cast<const ProxyMemory&>(**made);
  int rail = -1;
  {
    const std::lock_guard hold(link.hub().lock);
    rail = link.set().reserve_rail();
  }
  if (rail < 0 || (memory.direct ? memory : memory.mirror->memory).lkey(rail) != 0) return made;
  (void)link.set().devices().deregister_memory(*made);
  TP_WARN("connection to %s: %s", link.peer().text.c_str(),
          not_registered_text(rail_of(link, rail)).c_str());
  return Status::system;
}

void tell_pace(PeerLink& link, int rail, int remote_rail, bool slow, std::uint32_t permille) {
  const HelloRail& remote = link.peer().rails[static_cast<std::size_t>(remote_rail)];
  const int which = std::popcount(link.set().regular_rails()) == 1 ? remote_rail : rail;
  const std::size_t topic = 2 * static_cast<std::size_t>(which) + (slow ? 1 : 2);
  link.tell(pace_text(rail_of(link, rail), remote, slow, permille), topic);
}

}  // namespace twinpath
