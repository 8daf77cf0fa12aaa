#include "proxy/connect/link_text.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <optional>

#include "plugin/base/clock.h"

namespace twinpath {
namespace {

constexpr std::array<const char*, counters::kWaits> kFor{
    "the peer's clear-to-send",           "the peer's data", "the network", "a flush",
    "a copy between GPU and host memory", "free requests"};

constexpr std::uint64_t kTenth = 100'000'000;  // s, in ns

// "; it had waited 0.4 s for the peer's data": all causes that took a tenth of a second or more.
std::string waited_text(const counters::Connection& c) {
  std::string text;
  for (std::size_t w = 0; w < counters::kWaits; ++w) {
    const std::uint64_t tenths = c.waited_ns[w].get() / kTenth;
    if (tenths == 0) continue;
    text += (text.empty() ? "; it had waited " : ", ") + std::to_string(tenths / 10) + "." +
            std::to_string(tenths % 10) + " s for " + kFor[w];
  }
  return text.empty() ? text : text + " in all";
}

constexpr std::int64_t kStill = 100 * kMillisecond;

// Of several rails: " (3000 bytes over soft0, 0 over soft1)".
std::string carried_text(const counters::Connection& counts, const std::vector<Rail>& rails,
                         std::uint32_t regular) {
  std::string text;
  bool several = false;
  for (std::size_t r = 0; r < rails.size() && r < kMaxRails; ++r) {
    const std::uint64_t bytes = counts.rails[r].bytes.get();
    if (bytes == 0 && (regular >> r & 1) == 0) continue;  // in reserve
    several = !text.empty();
    text += (several ? ", " : " (") + std::to_string(bytes) +
            (several ? " over " : " bytes over ") + rails[r].port.port->name;
  }
  return several ? text + ")" : std::string();
}

}  // namespace

std::string rail_text(const Rail& rail) {
  return rail.port.port->name + " GID index " + std::to_string(rail.gid.index) + " " +
         gid_text(rail.gid.gid) + " (port " + std::to_string(rail.port.port->number) + ")";
}

std::string rail_text(const HelloRail& rail) {
  return rail.port + " GID index " + std::to_string(rail.gid_index) + " " + gid_text(rail.gid);
}

std::string ends_text(const std::vector<Rail>& rails, std::uint32_t regular, const PeerName& peer) {
  std::string text = "from " + rail_text(rails[0]) + " to " + rail_text(peer.rails[0]);
  const int more = std::max(std::popcount(regular), peer.regular) - 1;
  if (more > 0) text += " and " + std::to_string(more) + (more == 1 ? " more rail" : " more rails");
  return text;
}

std::string down_text(const Devices& devices, const Rail& rail) {
  const Port& port = *rail.port.port;
  AsyncEvents& events = rail.port.adapter->events;
  events.poll();
  const std::optional<bool> active = devices.port_active(rail.port);
  if (!active) return {};
  const std::string name = "the local port " + port.device + ":" + std::to_string(port.number);
  if (*active) {
    if (devices.address_stands(rail.port, rail.gid)) return {};
    return name + " has lost the address " + gid_text(rail.gid.gid) + " at GID index " +
           std::to_string(rail.gid.index) + ", or has it at another index (ip addr)";
  }
  std::string text = name + " is down";
  if (const std::int64_t at = events.port_went_down(port.number); at != 0)
    text += " since " + std::to_string((now_ns() - at) / kMillisecond) + " ms or more";
  return text + ", check its cable and switch port (ip link, ibstat)";
}

std::string down_texts(QueueSet& set) {
  const std::uint32_t counted = set.rails_in_use() | set.regular_rails();
  std::string all;
  for (std::size_t r = 0; r < set.rails().size(); ++r)
    if (const std::string down =
            (counted >> r & 1) != 0 ? down_text(set.devices(), set.rails()[r]) : std::string();
        !down.empty())
      all += "; " + down;
  return all;
}

std::string paths_text(QueueSet& set, const PeerName& peer) {
  return down_texts(set) + "; " + ends_text(set.rails(), set.regular_rails(), peer);
}

std::string death_text(const TcpSocket& socket) {
  const char* const see =
      "; see the peer's own log, and its host's kernel log (dmesg) if that tells nothing";
  switch (socket.look()) {
    case PeerSign::ended:
      return std::string("the peer's process ended without closing the connection") + see;
    case PeerSign::reset:
      return "the peer's host reset the control connection (" + socket.end_text() +
             "): the peer's process was killed, or its host was started anew" + see;
    case PeerSign::quiet:
    case PeerSign::talking:
    case PeerSign::unreachable:
      break;
  }
  return {};
}

std::string silence_text(const TcpSocket& socket) {
  const std::string why = socket.end_text();
  return "the peer's host does not answer: no sign of life on the control connection for " +
         std::to_string(socket.silence_ms()) + " ms" + (why.empty() ? "" : " (" + why + ")") +
         ", and no data moved; it has crashed or is cut off; if it lives, look at the control "
         "network, here " +
         socket.local_text() + " (NCCL_SOCKET_IFNAME chooses it), and at the data network";
}

std::string completion_text(const WrId& id, const ibv_wc& wc, const char* status) {
  std::array<char, 200> text;
  (void)std::snprintf(text.data(), text.size(), "%s failed with %s (status %d, vendor error 0x%x)",
                      work_name(static_cast<int>(id.kind)), status, static_cast<int>(wc.status),
                      wc.vendor_err);
  return text.data();
}

std::string last_text(const counters::Connection& counts, const std::vector<Rail>& rails,
                      std::uint32_t regular, std::int64_t now) {
  const std::int64_t looked = counts.looked_at.get(), still = looked - counts.since.get();
  if (looked == 0 || now - looked > kSecond || still < kStill) return {};
  return "; before that nothing had moved for " + std::to_string(still / kMillisecond) +
         " ms while " + std::to_string(counts.in_flight.get()) + " requests waited for " +
         kFor[counts.waits_for.get() % kFor.size()] + ", after " +
         std::to_string(counts.messages()) + " messages" + carried_text(counts, rails, regular) +
         waited_text(counts);
}

std::string not_registered_text(const Rail& rail) {
  return rail.port.port->name +
         ", in reserve (TWINPATH_STANDBY), cannot register what messages under way need, or takes "
         "less inline; warnings before this one say why";
}

std::string pace_text(const Rail& rail, const HelloRail& remote, bool slow,
                      std::uint32_t permille) {
  const std::string& ours = rail.port.port->name;
  const std::string& theirs = remote.port;
  const std::string share = std::to_string((permille + 5) / 10) + " % of each message";
  if (!slow)
    return "finds rail " + ours + " (to " + theirs + ") as fast as its port again: it gets " +
           share;
  return "finds rail " + ours + " (to " + theirs + ") slow beside the others: it now gets " +
         share +
         "; look at the link's speed and width, the adapter's PCIe slot, and congestion "
         "(TWINPATH_MEASURE_RAILS=0 cuts messages by the ports' speeds)";
}

}  // namespace twinpath
