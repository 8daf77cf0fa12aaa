// Who a connection is for readers of the counters; what a link that breaks leaves there, and takes
// from there for its message.
#include <algorithm>
#include <array>

#include "plugin/base/clock.h"
#include "proxy/connect/connection.h"
#include "proxy/connect/peer_link.h"

namespace twinpath {

counters::Identity Connection::identity() const {
  counters::Identity id = path_;
  put_name(id.peer_host, theirs_.host);
  put_name(id.peer_device, theirs_.device);
  if (theirs_.placement.gpu != kNoIndex) put_name(id.peer_gpu, theirs_.gpu);
  put_name(id.device, mine_.device);
  if (end_.record.gpu != kNoIndex) put_name(id.gpu, mine_.gpu);
  id.communicator = core_->settings.comm_id;
  id.session = core_->settings.serial;
  id.peer_pid = theirs_.pid;
  id.role = role_ == Role::connector ? counters::Role::sender : counters::Role::receiver;
  id.rails = static_cast<std::uint8_t>(rails_.size());
  id.standby = static_cast<std::uint8_t>(mine_.standby);
  for (std::size_t i = 0; i < rails_.size(); ++i)
    id.ports[i] = core_->devices->counted_port(rails_[i].port.port->name);
  return id;
}

void PeerLink::count_error(const ibv_wc& wc) {
  const auto status = static_cast<std::size_t>(wc.status);
  counts()->errors[std::min(status, counters::kStatuses - 1)].add(1);
}

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

}  // namespace

// Of several rails: " (3000 bytes over soft0, 0 over soft1)".
std::string PeerLink::carried_text() const {
  const std::vector<Rail>& rails = queues_->rails();
  std::string text;
  bool several = false;
  for (std::size_t r = 0; r < rails.size() && r < kMaxRails; ++r) {
    const std::uint64_t bytes = counts()->rails[r].bytes.get();
    if (bytes == 0 && (queues_->regular_rails() >> r & 1) == 0) continue;  // in reserve
    several = !text.empty();
    text += (several ? ", " : " (") + std::to_string(bytes) +
            (several ? " over " : " bytes over ") + rails[r].port.port->name;
  }
  return several ? text + ")" : std::string();
}

// Empty, or what its caller was waiting for when nothing moved any more, and what it has waited for
// and carried in all: bounded by the number of causes and rails.
std::string PeerLink::last_text() const {
  const counters::Connection& c = *counts();
  const std::int64_t looked = c.looked_at.get(), still = looked - c.since.get();
  if (looked == 0 || now_ns() - looked > kSecond || still < kWatchPeriod) return {};
  return "; before that nothing had moved for " + std::to_string(still / kMillisecond) +
         " ms while " + std::to_string(c.in_flight.get()) + " requests waited for " +
         kFor[c.waits_for.get() % kFor.size()] + ", after " + std::to_string(c.messages()) +
         " messages" + carried_text() + waited_text(c);
}

}  // namespace twinpath
