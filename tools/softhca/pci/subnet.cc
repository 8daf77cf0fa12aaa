#include "tools/softhca/pci/subnet.h"

#include <poll.h>

#include <utility>

#include "plugin/base/blocked_signals.h"

namespace twinpath::softhca::pci {
namespace {

constexpr std::size_t kMostWaiting = 4096;  // what comes then is lost
constexpr std::uint32_t kServices = 1;      // queue pair number

}  // namespace

Subnet::~Subnet() {
  if (trunk_ == nullptr) return;
  listener_.request_stop();
  trunk_->wake();
}

bool Subnet::connect(const std::string& job, std::string& why) {
  auto trunk = Trunk::join(job, why);
  if (!trunk) return false;
  const std::lock_guard hold(lock_);
  trunk_ = std::move(trunk).take();
  trunk_->tell(manager_.own());
  const BlockedSignals blocked;
  listener_ = std::jthread([this](const std::stop_token& stop) { listen(stop); });
  return true;
}

void Subnet::listen(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    std::vector<pollfd> watched;
    {
      const std::lock_guard hold(lock_);
      watched = trunk_->watched();
    }
    (void)::poll(watched.data(), watched.size(), -1);
    const std::lock_guard hold(lock_);
    if (trunk_->take_what_came([this](const mlx5::Datagram& d) { deliver(d); }))
      manager_.set_others(trunk_->others());
  }
}

Subnet::Port& Subnet::join(std::uint16_t lid, std::uint64_t guid) {
  const std::lock_guard hold(lock_);
  const PortNames names{lid, guid};
  ports_.push_back(std::make_unique<Port>(*this, names));
  manager_.add(names);
  if (trunk_ != nullptr) trunk_->tell(manager_.own());
  return *ports_.back();
}

void Subnet::Port::send(mlx5::Datagram&& datagram) {
  {
    const std::lock_guard hold(lock_);
    if (!up_ || loss_ == soft::PortLoss::all) return;
    datagram.from.lid = names_.lid;
  }
  if (datagram.from.routed) {
    mlx5::set(datagram.route, {64, 64}, kLinkLocal);
    mlx5::set(datagram.route, {128, 64}, names_.guid);
  }
  subnet_.carry(*this, datagram);
}

std::optional<mlx5::Datagram> Subnet::Port::receive() {
  const std::lock_guard hold(lock_);
  if (arrived_.empty()) return std::nullopt;
  mlx5::Datagram next = std::move(arrived_.front());
  arrived_.pop_front();
  return next;
}

void Subnet::Port::set_up(bool up) {
  const std::lock_guard hold(lock_);
  up_ = up;
}

void Subnet::Port::set_lid(std::uint16_t lid) {
  const std::lock_guard hold_subnet(subnet_.lock_);
  const std::lock_guard hold(lock_);
  names_.lid = lid;
  subnet_.manager_.change(names_);
  if (subnet_.trunk_ != nullptr) subnet_.trunk_->tell(subnet_.manager_.own());
}

void Subnet::Port::lose(soft::PortLoss what) {
  const std::lock_guard hold(lock_);
  loss_ = what;
}

void Subnet::Port::take(const mlx5::Datagram& datagram) {
  const std::lock_guard hold(lock_);
  if (loss_ == soft::PortLoss::all || loss_ == soft::PortLoss::incoming) return;
  if (up_ && arrived_.size() < kMostWaiting) arrived_.push_back(datagram);
}

void Subnet::carry(const Port& from, const mlx5::Datagram& d) {
  const std::lock_guard hold(lock_);
  if (d.to_lid == kManagerLid) {
    if (d.to_qpn != kServices) return;
    const std::size_t groups = manager_.own().groups.size();
    auto answer = manager_.answer(d.data);
    if (trunk_ != nullptr && manager_.own().groups.size() != groups) trunk_->tell(manager_.own());
    if (!answer) return;
    mlx5::Datagram back;
    back.from = {kServices, kManagerLid};
    back.to_lid = from.names_.lid;
    back.to_qpn = d.from.qpn;
    back.qkey = d.qkey;
    back.data = std::move(*answer);
    for (const auto& port : ports_) {
      if (port.get() == &from) port->take(back);
    }
    return;
  }
  deliver(d);
  if (trunk_ != nullptr) trunk_->send(d);
}

// Lock held.
void Subnet::deliver(const mlx5::Datagram& d) {
  for (const auto& port : ports_) {
    if (d.to_group() || port->names_.lid == d.to_lid) port->take(d);
  }
}

}  // namespace twinpath::softhca::pci
