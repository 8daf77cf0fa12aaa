#include "tools/softhca/pci/subnet.h"

#include <utility>

namespace twinpath::softhca::pci {
namespace {

constexpr std::size_t kMostWaiting = 4096;  // what comes then is lost
constexpr std::uint32_t kServices = 1;      // queue pair number

}  // namespace

Subnet::Port& Subnet::join(std::uint16_t lid, std::uint64_t guid) {
  const std::lock_guard hold(lock_);
  const PortNames names{lid, guid};
  ports_.push_back(std::make_unique<Port>(*this, names));
  manager_.add(names);
  return *ports_.back();
}

void Subnet::Port::send(mlx5::Datagram&& datagram) {
  {
    const std::lock_guard hold(lock_);
    if (!up_) return;
  }
  datagram.from.lid = names_.lid;
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

void Subnet::Port::take(const mlx5::Datagram& datagram) {
  const std::lock_guard hold(lock_);
  if (up_ && arrived_.size() < kMostWaiting) arrived_.push_back(datagram);
}

void Subnet::carry(const Port& from, const mlx5::Datagram& d) {
  const std::lock_guard hold(lock_);
  if (d.to_lid == kManagerLid) {
    if (d.to_qpn != kServices) return;
    auto answer = manager_.answer(d.data);
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
  for (const auto& port : ports_) {
    if (d.to_group() || port->names_.lid == d.to_lid) port->take(d);
  }
}

}  // namespace twinpath::softhca::pci
