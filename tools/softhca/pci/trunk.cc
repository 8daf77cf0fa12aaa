#include "tools/softhca/pci/trunk.h"

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "plugin/base/refused.h"
#include "plugin/fabric/soft/rendezvous.h"

namespace twinpath::softhca::pci {
namespace {

constexpr std::uint32_t kProcesses = 32;
constexpr std::uint32_t kMagic = 0x54504455;  // changes with the layout
constexpr std::size_t kMostPorts = 32, kMostData = 4096;
constexpr std::size_t kMostUnsent = 4096;  // datagrams that come then are lost
constexpr int kAtATime = 64;               // of one process, so that no other waits for it

constexpr std::uint8_t kImmediate = 1, kSolicited = 2;  // flags

// In front of a datagram's data, or of ports and groups.
struct Head {
  std::uint32_t magic, slot;    // the sender's
  std::uint32_t ports, groups;  // how many; of a datagram none
  std::uint32_t is_datagram;
  std::uint32_t from_qpn, to_qpn, qkey, immediate;
  std::uint16_t from_lid, to_lid;
  std::uint8_t service_level, path_bits, routed, flags;
  std::array<std::uint8_t, mlx5::kRouteBytes> route;
};

struct Packet {
  Head head;
  std::array<std::uint8_t,
             std::max(kMostData, kMostPorts * sizeof(PortNames) + kMostGroups * sizeof(Gid))>
      rest;
};

void append(std::vector<std::uint8_t>& packet, const void* bytes, std::size_t count) {
  const auto* const from = static_cast<const std::uint8_t*>(bytes);
  packet.insert(packet.end(), from, from + count);
}

// False: there is no room now.
bool send_packet(int socket, std::span<const std::uint8_t> packet) {
  return ::send(socket, packet.data(), packet.size(), MSG_NOSIGNAL | MSG_DONTWAIT) >= 0 ||
         (errno != EAGAIN && errno != ENOBUFS);
}

mlx5::Datagram datagram_of(const Packet& packet, std::size_t bytes) {
  const Head& h = packet.head;
  mlx5::Datagram d;
  d.from = {h.from_qpn, h.from_lid, h.service_level, h.path_bits, h.routed != 0};
  d.to_lid = h.to_lid;
  d.to_qpn = h.to_qpn;
  d.qkey = h.qkey;
  d.has_immediate = (h.flags & kImmediate) != 0;
  d.solicited = (h.flags & kSolicited) != 0;
  d.immediate = h.immediate;
  d.route = h.route;
  d.data.assign(packet.rest.begin(), packet.rest.begin() + static_cast<std::ptrdiff_t>(bytes));
  return d;
}

// Nothing when there are not as many as it says.
std::optional<Members> members_of(const Packet& packet, std::size_t bytes) {
  const std::size_t ports = packet.head.ports, groups = packet.head.groups;
  if (ports > kMostPorts || groups > kMostGroups ||
      bytes != ports * sizeof(PortNames) + groups * sizeof(Gid))
    return std::nullopt;
  Members told;
  told.ports.resize(ports);
  std::memcpy(told.ports.data(), packet.rest.data(), ports * sizeof(PortNames));
  for (std::size_t i = 0; i < groups; ++i) {
    Gid group;
    std::memcpy(group.data(), packet.rest.data() + ports * sizeof(PortNames) + i * sizeof group,
                sizeof group);
    told.groups.insert(group);
  }
  return told;
}

bool has_lid(const Members& members, std::uint16_t lid) {
  return std::any_of(members.ports.begin(), members.ports.end(),
                     [lid](const PortNames& port) { return port.lid == lid; });
}

}  // namespace

Result<std::unique_ptr<Trunk>> Trunk::join(const std::string& job, std::string& why) {
  std::unique_ptr<Trunk> trunk(new Trunk);
  const soft::Rendezvous meeting("/" + job, kProcesses);
  auto listening = meeting.claim(trunk->slot_, why);
  if (!listening) return listening.status();
  trunk->listening_ = std::move(listening).take();
  trunk->woken_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!trunk->woken_) {
    why = "eventfd: " + why_no_memory(errno);
    return Status::system;
  }
  for (std::uint32_t slot = 0; slot < kProcesses; ++slot) {
    std::string why_not;
    if (slot == trunk->slot_) continue;
    if (auto reached = meeting.reach(slot, why_not)) {
      trunk->lines_.push_back({std::move(reached).take(), std::nullopt, {}, {}});
    }
  }
  return trunk;
}

std::vector<pollfd> Trunk::watched() const {
  std::vector<pollfd> watched{{listening_.get(), POLLIN, 0}, {woken_.get(), POLLIN, 0}};
  for (const Line& line : lines_) {
    const int events = line.waiting.empty() ? POLLIN : POLLIN | POLLOUT;
    watched.push_back({line.socket.get(), static_cast<short>(events), 0});
  }
  return watched;
}

void Trunk::wake() const { (void)eventfd_write(woken_.get(), 1); }

bool Trunk::accept_others() {
  bool came = false;
  for (;;) {
    UniqueFd socket(accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket) return came;
    uid_t user = 0;
    if (!soft::is_own_user(socket.get(), user)) continue;
    lines_.push_back({std::move(socket), std::nullopt, {}, {}});
    came = true;
  }
}

bool Trunk::take_what_came(const std::function<void(const mlx5::Datagram&)>& deliver) {
  bool changed = false;
  eventfd_t wakes = 0;
  (void)eventfd_read(woken_.get(), &wakes);
  if (accept_others()) tell(own_);
  for (std::size_t i = 0; i < lines_.size();) {
    flush(lines_[i]);
    Taken taken = Taken::datagram;
    for (int n = 0; n < kAtATime && taken != Taken::nothing && taken != Taken::end; ++n) {
      taken = take(lines_[i], deliver);
      changed |= taken == Taken::members;
    }
    if (taken != Taken::end) {
      ++i;
      continue;
    }
    lines_.erase(lines_.begin() + static_cast<std::ptrdiff_t>(i));
    changed = true;
  }
  return changed;
}

Trunk::Taken Trunk::take(Line& line, const std::function<void(const mlx5::Datagram&)>& deliver) {
  Packet packet;
  const ssize_t got = recv(line.socket.get(), &packet, sizeof packet, MSG_DONTWAIT | MSG_TRUNC);
  if (got < 0) return errno == EAGAIN || errno == EINTR ? Taken::nothing : Taken::end;
  const auto bytes = static_cast<std::size_t>(got);
  if (bytes < sizeof packet.head || packet.head.magic != kMagic) return Taken::end;
  const std::size_t rest = bytes - sizeof packet.head;
  if (packet.head.is_datagram != 0) {
    if (rest > kMostData) return Taken::end;
    deliver(datagram_of(packet, rest));
    return Taken::datagram;
  }
  auto told = members_of(packet, rest);
  return told && learn(line, packet.head.slot, std::move(*told)) ? Taken::members : Taken::end;
}

bool Trunk::learn(Line& line, std::uint32_t slot, Members told) const {
  if (slot >= kProcesses) return false;
  for (const PortNames& port : told.ports) {
    if (!has_lid(own_, port.lid)) continue;
    std::fprintf(stderr,
                 "softhca: LID %u is another process's of this TWINPATH_SOFT_JOB, too, which "
                 "datagrams do not reach; give one of the two --first, or a job of its own\n",
                 port.lid);
    return false;
  }
  line.slot = slot;
  line.members = std::move(told);
  return true;
}

Members Trunk::others() const {
  Members all;
  for (const Line& line : lines_) {
    all.ports.insert(all.ports.end(), line.members.ports.begin(), line.members.ports.end());
    all.groups.insert(line.members.groups.begin(), line.members.groups.end());
  }
  return all;
}

void Trunk::tell(Members own) {
  own_ = std::move(own);
  Head head{};
  head.magic = kMagic;
  head.slot = slot_;
  head.ports = static_cast<std::uint32_t>(std::min(own_.ports.size(), kMostPorts));
  head.groups = static_cast<std::uint32_t>(own_.groups.size());
  std::vector<std::uint8_t> packet;
  append(packet, &head, sizeof head);
  append(packet, own_.ports.data(), head.ports * sizeof(PortNames));
  for (const Gid& group : own_.groups) append(packet, group.data(), group.size());
  for (Line& line : lines_) send_on(line, packet, ~std::size_t{0});
}

void Trunk::send_on(Line& line, std::span<const std::uint8_t> packet, std::size_t most_waiting) {
  if (line.waiting.empty() && send_packet(line.socket.get(), packet)) return;
  if (line.waiting.size() < most_waiting) line.waiting.emplace_back(packet.begin(), packet.end());
  wake();  // it watches for room now
}

void Trunk::flush(Line& line) {
  while (!line.waiting.empty() && send_packet(line.socket.get(), line.waiting.front()))
    line.waiting.pop_front();
}

void Trunk::send(const mlx5::Datagram& d) {
  Head head{};
  head.magic = kMagic;
  head.slot = slot_;
  head.is_datagram = 1;
  head.from_qpn = d.from.qpn, head.from_lid = d.from.lid;
  head.service_level = d.from.service_level, head.path_bits = d.from.path_bits;
  head.routed = d.from.routed ? 1 : 0;
  head.to_qpn = d.to_qpn, head.to_lid = d.to_lid, head.qkey = d.qkey;
  head.flags = static_cast<std::uint8_t>((d.has_immediate ? kImmediate : 0) |
                                         (d.solicited ? kSolicited : 0));
  head.immediate = d.immediate;
  head.route = d.route;
  std::vector<std::uint8_t> packet;
  append(packet, &head, sizeof head);
  append(packet, d.data.data(), d.data.size());
  std::uint32_t sent = 0;  // a bit for each process
  for (Line& line : lines_) {
    if (!line.slot || (sent >> *line.slot & 1) != 0) continue;
    if (!d.to_group() && !has_lid(line.members, d.to_lid)) continue;
    send_on(line, packet, kMostUnsent);
    sent |= 1u << *line.slot;
  }
}

}  // namespace twinpath::softhca::pci
