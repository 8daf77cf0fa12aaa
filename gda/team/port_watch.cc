#include "gda/team/port_watch.h"

#include "plugin/rdma/completion_text.h"

namespace twinpath::gda {

PortWatch::PortWatch(const Rail& rail, const Devices& devices, const void* team)
    : rail_(rail), devices_(devices), team_(team) {
  rail_.port.adapter->events.forget_completions(team_);
}

bool PortWatch::told() {
  AsyncEvents& events = rail_.port.adapter->events;
  events.poll();
  return events.port_changes() != this->changes() || events.device_failed();
}

std::string PortWatch::look(std::int64_t at) {
  const std::int64_t now = ran_.look(at);
  AsyncEvents& events = rail_.port.adapter->events;
  const Port& port = *rail_.port.port;
  events.poll();
  if (events.device_failed())
    return "the local device " + port.device + " failed; see the kernel log (dmesg)";
  if (events.completions_failed(team_)) return failed_completions_text(port.device);
  const std::uint32_t changes = events.port_changes();
  // Asking is a system call.
  if (changes == this->changes() && !down() && now - looked_ < kSecond) return {};
  changes_.store(changes, std::memory_order_relaxed);
  looked_ = now;
  if (devices_.port_active(rail_.port).value_or(true)) {
    down_since_.store(0, std::memory_order_relaxed);
    return {};
  }
  if (!down()) down_since_.store(now, std::memory_order_relaxed);
  const std::int64_t since = down_since_.load(std::memory_order_relaxed);
  if (now - since < std::int64_t{devices_.config().failover_hold_ms} * kMillisecond) return {};
  return "the local port " + port.device + ":" + std::to_string(port.number) +
         " has been down for " + std::to_string((now - since) / kMillisecond) +
         " ms (TWINPATH_FAILOVER_HOLD_MS), check its cable and switch port (ip link, ibstat)";
}

}  // namespace twinpath::gda
