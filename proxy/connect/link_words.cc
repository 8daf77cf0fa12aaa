// What a link hears from its peer and says to it over the control socket, and how it takes part in
// the recovery of its queues.
#include <bit>
#include <mutex>
#include <utility>

#include "plugin/base/clock.h"
#include "plugin/base/log.h"
#include "plugin/rdma/staging.h"
#include "proxy/connect/peer_link.h"

namespace twinpath {
namespace {

// What the path may be blamed for.  Others are somebody's mistake, and would be so again.
bool of_the_path(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_RETRY_EXC_ERR:
    case IBV_WC_WR_FLUSH_ERR:
    case IBV_WC_RESP_TIMEOUT_ERR:
    case IBV_WC_REM_ABORT_ERR:
    case IBV_WC_GENERAL_ERR:
      return true;
    default:
      return false;
  }
}

// A mistake that is made again after the queues were replaced comes within this.
constexpr std::int64_t kMistakeAgain = 500 * kMillisecond;

}  // namespace

void PeerLink::read_words(std::int64_t now) {
  if (const std::string said = hear(now); !said.empty() && !broken_)
    lost_with_peer(said + down_texts() + "; " + ends_text());
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
        if (!broken_ && !recovery_->hear(message.frame, message.body))
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
  send({});
  if (!broken_ && left_at_ == 0) read_words(now);
}

// --- recovery -----------------------------------------------------------------------------

void PeerLink::serve(Recoverable* comm) {
  if (recovery_ == nullptr) return;
  if (comm == nullptr) attendant_->remove(*this);
  {
    std::lock_guard hold(hub().lock);
    recovery_->serve(comm);
  }
  if (comm == nullptr) return;
  std::vector<int> fds{control_.socket().fd()};
  for (const Rail& rail : queues_->rails())
    if (const int fd = rail.port.port->context->async_fd; fd >= 0) fds.push_back(fd);
  attendant_->add(*this, fds);
}

std::int64_t PeerLink::attend(std::int64_t now) {
  if (broken_) return 0;
  for (const Rail& rail : queues_->rails()) rail.port.adapter->events.poll();
  if (recovery_->running() || control_.socket().next_byte() == kRecoveryByte) {
    // What the peer did before it spoke counts: take every completion first.
    while (poll() > 0) {
    }
    if (!broken_) read_words(now);
  }
  if (!broken_ && recovery_->looks_after(now)) {
    while (poll() > 0) {
    }
    if (!broken_) recovery_->look_for_stalls(now);
  }
  if (!broken_) recovery_->look_at_ports(now, true);
  if (recovery_->running()) recovery_->go_on(now);
  return recovery_->next_look();
}

bool PeerLink::excuses(const ibv_wc& wc) {
  if (recovery_ == nullptr) return false;
  return of_the_path(wc.status) || !down_texts().empty() || ahead_of_event(wc);
}

// Of a port that goes down adapters say so (soft-RoCE does: it has lost its route) some moments
// before they tell that it does, or before its state says so.  The same status is what they have
// for mistakes: those would be made again at once, over whichever queues there are then.
bool PeerLink::ahead_of_event(const ibv_wc& wc) {
  if (wc.status != IBV_WC_LOC_QP_OP_ERR) return false;
  const std::int64_t now = now_ns(), last = std::exchange(local_error_at_, now);
  return last == 0 || now - last > kMistakeAgain;
}

bool PeerLink::recovers(const WrId& id, const ibv_wc& wc, const Queue& queue) {
  if (recovery_ == nullptr || !recovery_->ready() || left_at_ != 0 || !death_text().empty())
    return false;
  const Rail& rail = queues_->rails()[static_cast<std::size_t>(queue.rail)];
  std::string why = completion_text(id, wc) + " on " + rail.port.port->name;
  // Of a port that is down adapters say various things.
  if (const std::string down = down_text(rail); !down.empty())
    why += ", " + down;
  else if (!of_the_path(wc.status) && !ahead_of_event(wc))
    return false;
  recovery_->queue_failed(number_of(queue), why);
  return true;
}

void PeerLink::stopped(bool stopped) {
  halted_ = stopped || broken_;
  only_ = queues_->engines().size() == 1 ? queues_->engines().front() : nullptr;
  if (!stopped) return;
  ++incarnation_;
}

bool PeerLink::tell(const std::string& text, std::size_t topic, bool must) {
  const bool aloud = must || hub().time_to_tell(topic, now_ns());
  if (aloud)
    TP_WARN("connection to %s %s", peer_.text.c_str(), text.c_str());
  else
    TP_INFO(net, "connection to %s %s", peer_.text.c_str(), text.c_str());
  return aloud;
}

std::string PeerLink::not_registered(int rail) const {
  return queues_->rails()[static_cast<std::size_t>(rail)].port.port->name +
         ", in reserve (TWINPATH_STANDBY), cannot register what messages under way need, or takes "
         "less inline; warnings before this one say why";
}

Result<Memory*> PeerLink::if_reached(Result<Memory*> made) {
  if (!made || !has_reserve()) return made;
  const auto& memory = static_cast<const ProxyMemory&>(**made);
  int rail = -1;
  {
    const std::lock_guard hold(hub().lock);
    rail = set().reserve_rail();
  }
  if (rail < 0 || (memory.direct ? memory : memory.mirror->memory).lkey(rail) != 0) return made;
  (void)set().devices().deregister_memory(*made);
  TP_WARN("connection to %s: %s", peer_.text.c_str(), not_registered(rail).c_str());
  return Status::system;
}

void PeerLink::tell_pace(int rail, int remote_rail, bool slow, std::uint32_t permille) {
  const std::string ours = queues_->rails()[static_cast<std::size_t>(rail)].port.port->name;
  const std::string& theirs = peer_.rails[static_cast<std::size_t>(remote_rail)].port;
  const std::string share = std::to_string((permille + 5) / 10) + " % of each message";
  const int which = std::popcount(set().regular_rails()) == 1 ? remote_rail : rail;
  const std::size_t topic = 2 * static_cast<std::size_t>(which) + (slow ? 1 : 2);
  if (slow)
    tell("finds rail " + ours + " (to " + theirs + ") slow beside the others: it now gets " +
             share +
             "; look at the link's speed and width, the adapter's PCIe slot, and congestion "
             "(TWINPATH_MEASURE_RAILS=0 cuts messages by the ports' speeds)",
         topic);
  else
    tell("finds rail " + ours + " (to " + theirs + ") as fast as its port again: it gets " + share,
         topic);
}

}  // namespace twinpath
