// Execution's datagrams: of programs (UD), of the management (QP0, QP1).  The software HCA has no
// such queue pairs; they are sent and taken here, by its keys.
#include <algorithm>

#include "plugin/fabric/soft/mlx5/execution.h"
#include "plugin/fabric/soft/mlx5/field.h"
#include "plugin/fabric/soft/mlx5/memory_access.h"

namespace twinpath::soft::mlx5 {
namespace {

constexpr std::size_t kMostBytes = 4096;        // the port's MTU
constexpr std::uint32_t kOwnQkey = 0x80000000;  // asks for the queue pair's own
constexpr int kMostAtOnce = 64;

// The header in front, without the sender's GID.
std::array<std::uint8_t, kRouteBytes> route_of(const DatagramAddress& to, std::size_t bytes) {
  constexpr std::uint64_t kVersion = 6, kTransport = 0x1b;
  std::array<std::uint8_t, kRouteBytes> route{};
  set(route, {0, 4}, kVersion);
  set(route, {4, 8}, to.traffic_class);
  set(route, {12, 20}, to.flow_label);
  set(route, {32, 16}, bytes);
  set(route, {48, 8}, kTransport);
  set(route, {56, 8}, to.hop_limit);
  std::copy(to.gid.begin(), to.gid.end(), route.begin() + 24);
  return route;
}

// Room for the header comes first, and is left as it was when there is none.
Syndrome scatter(const Surroundings& around, ibv_pd* pd, const std::vector<Piece>& pieces,
                 const Datagram& d) {
  std::vector<std::uint8_t> all(d.route.begin(), d.route.end());
  all.insert(all.end(), d.data.begin(), d.data.end());
  std::size_t at = 0;
  for (const Piece& piece : pieces) {
    const std::size_t bytes = std::min<std::size_t>(piece.bytes, all.size() - at);
    const std::size_t skipped =
        d.from.routed || at >= kRouteBytes ? 0 : std::min(bytes, kRouteBytes - at);
    if (bytes != skipped && !around.write_region(pd, piece.address + skipped, piece.key,
                                                 all.data() + at + skipped, bytes - skipped))
      return Syndrome::local_protection;
    at += bytes;
  }
  return at == all.size() ? Syndrome::none : Syndrome::local_length;
}

// The kernel's own two have numbers that everybody knows.
std::uint32_t well_known_number(Service service, std::uint32_t number) {
  if (service == Service::management) return 0;
  return service == Service::general_services ? 1 : number;
}

}  // namespace

Syndrome Execution::send_datagram(const QueuePair& qp, const Work& work) {
  Datagram d;
  d.data = work.inline_data;
  for (const Piece& piece : work.pieces) {
    const std::size_t before = d.data.size();
    if (piece.bytes > kMostBytes - std::min(before, kMostBytes)) return Syndrome::local_length;
    d.data.resize(before + piece.bytes);
    if (!around_.read_region(pds_.at(qp.facts.pd), piece.address, piece.key, d.data.data() + before,
                             piece.bytes))
      return Syndrome::local_protection;
  }
  d.to_lid = work.to.lid;
  d.to_qpn = work.to.qpn;
  d.qkey = (work.to.qkey & kOwnQkey) != 0 ? qp.qkey : work.to.qkey;
  d.has_immediate = work.operation == Operation::send_immediate;
  d.immediate = work.immediate;
  d.solicited = work.solicited;
  d.from.qpn = well_known_number(qp.facts.service, qp.carrier->number());
  d.from.service_level = work.to.service_level;
  d.from.routed = work.to.routed;
  if (d.from.routed) d.route = route_of(work.to, d.data.size());
  if (around_.datagrams != nullptr) around_.datagrams->send(std::move(d));
  return Syndrome::none;
}

bool Execution::take_datagrams() {
  if (around_.datagrams == nullptr) return false;
  bool moved = false;
  for (int i = 0; i < kMostAtOnce; ++i) {
    const auto datagram = around_.datagrams->receive();
    if (!datagram) break;
    moved = true;
    const bool to_group = datagram->to_group();
    std::array<std::uint8_t, 16> group{};
    std::copy_n(datagram->route.begin() + 24, group.size(), group.begin());
    for (auto& [number, qp] : qps_) {
      if (!is_datagram(qp.facts.service)) continue;
      if (to_group ? qp.groups.count(group) != 0
                   : well_known_number(qp.facts.service, qp.carrier->number()) == datagram->to_qpn)
        deliver(qp, *datagram);
    }
  }
  return moved;
}

// Into the next receive.  What there is none for, and what has another key than the queue pair, is
// lost, as on the wire.
void Execution::deliver(QueuePair& qp, const Datagram& d) {
  const bool takes = qp.state == State::ready_to_receive || qp.state == State::ready_to_send;
  const bool has_key = qp.facts.service != Service::management;
  CompletionQueue* const cq = find_cq(qp.facts.receive_cq);
  if (!takes || qp.failed || cq == nullptr || (has_key && d.qkey != qp.qkey)) return;
  if (!cq->has_room()) return;
  const std::optional<Receive> receive = take_receive(qp);
  if (!receive) return;
  Completion c;
  c.kind = d.has_immediate ? CompletionKind::send_immediate : CompletionKind::send;
  c.qpn = qp.carrier->number();
  c.index = receive->index;
  c.user_index = qp.facts.user_index;
  c.bytes = static_cast<std::uint32_t>(kRouteBytes + d.data.size());
  c.immediate = d.has_immediate ? d.immediate : kDefaultPartition;
  c.solicited = d.solicited;
  c.sender = d.from;
  c.syndrome = scatter(around_, pds_.at(qp.facts.pd), receive->pieces, d);
  if (c.syndrome != Syndrome::none) c.kind = CompletionKind::responder_error;
  complete(*cq, c);
  if (c.syndrome != Syndrome::none) fail(qp);
}

bool Execution::change_member(std::uint32_t qpn, const Group& group, bool joins) {
  const std::lock_guard hold(lock_);
  auto it = qps_.find(qpn);
  if (it == qps_.end()) return false;
  if (!joins) return it->second.groups.erase(group) != 0;
  return it->second.facts.service == Service::datagram && it->second.groups.insert(group).second;
}

}  // namespace twinpath::soft::mlx5
