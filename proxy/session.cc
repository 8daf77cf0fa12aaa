#include "proxy/session.h"

#include <unistd.h>

#include <algorithm>
#include <limits>

#include "plugin/base/clock.h"
#include "plugin/base/host.h"
#include "plugin/base/log.h"
#include "proxy/connect/subnet_choice.h"
#include "proxy/listener.h"
#include "proxy/send/send_comm.h"

namespace twinpath {
namespace {

// A class that an InfiniBand port cannot have as a service level.
void warn_of_class(const Devices& devices, const CommSettings& settings) {
  if (settings.traffic_class <= kMostServiceLevel || devices.config().ib_sl >= 0) return;
  for (std::size_t d = 0; d < devices.count(); ++d) {
    for (const RailPort& rail : devices.rails(static_cast<int>(d))) {
      if (rail.port->roce) continue;
      TP_WARN(
          "the communicator's traffic class %d is no service level of %s (InfiniBand has 0..%d): "
          "level 0 is used; correct ncclConfig_t::trafficClass, or set NCCL_IB_SL",
          settings.traffic_class, rail.port->name.c_str(), kMostServiceLevel);
      return;
    }
  }
}

}  // namespace

ProxySession::ProxySession(std::shared_ptr<Devices> devices, const CommSettings& settings)
    : core_(std::make_shared<SessionCore>(devices->config().connect_timeout_ms * kMillisecond)),
      clock_(RunClock::until(devices->config().connect_timeout_ms * kMillisecond)) {
  core_->devices = std::move(devices);
  core_->hub = std::make_shared<CompletionHub>(core_->devices->verbs(), settings.comm_id != 0);
  core_->settings = settings;
  warn_of_class(*core_->devices, settings);
}

Status ProxySession::listen(int device, std::span<std::uint8_t, kHandleBytes> handle,
                            std::unique_ptr<Listener>& listener) {
  drop_forgotten();
  auto rails = choose_rails(*core_->devices, device);
  if (!rails) return rails.status();
  auto interface = control_interface(core_->devices->config());
  if (!interface) return interface.status();
  auto socket = TcpListener::open(*interface);
  if (!socket) return socket.status();
  Handle h;
  h.nonce = random_nonce();
  h.address = socket->address();
  h.host_hash = host_hash();
  h.pid = static_cast<std::uint32_t>(::getpid());
  // Told by a host with nothing to choose, too: one port, while the peer may have several.
  h.gids = addresses_of(*rails);
  if (core_->devices->config().ib_subnet_aware) h.others = other_addresses(*core_->devices, device);
  encode_handle(h, handle);
  listener = std::make_unique<ProxyListener>(core_, device, std::move(socket).take(), h.nonce);
  return Status::ok;
}

void ProxySession::drop_forgotten() {
  std::vector<std::unique_ptr<Connection>> forgotten;  // ended without the lock
  std::lock_guard hold(mutex_);
  const std::int64_t now = clock_.look(now_ns());
  if (now < next_look_) return;
  const std::int64_t limit = core_->devices->config().connect_timeout_ms * kMillisecond;
  next_look_ = std::numeric_limits<std::int64_t>::max();
  for (auto at = connecting_.begin(); at != connecting_.end();) {
    const std::int64_t end = at->second.gone_on_at + limit;
    if (end > now) {
      next_look_ = std::min(next_look_, end);
      ++at;
      continue;
    }
    forgotten.push_back(std::move(at->second.connection));
    at = connecting_.erase(at);
  }
  if (!forgotten.empty())
    TP_INFO(net, "%zu connections were begun and not gone on with for %d ms; they are dropped",
            forgotten.size(), core_->devices->config().connect_timeout_ms);
}

Status ProxySession::start(int device, std::span<std::uint8_t, kHandleBytes> handle,
                           std::unique_ptr<Connection>& connection) {
  Handle h;
  std::string why;
  if (!decode_handle(handle, h, why)) {
    TP_WARN("cannot connect: %s", why.c_str());
    return Status::bad_argument;
  }
  device = device_for(*core_->devices, device, h.gids, h.others);
  auto rails = choose_rails(*core_->devices, device);
  if (!rails) return rails.status();
  use_own_scope(h.address, core_->devices->config());
  auto socket = TcpSocket::connect(h.address);
  if (!socket) return socket.status();
  connection =
      std::make_unique<Connection>(Connection::Role::connector, core_, device,
                                   std::move(rails).take(), h.nonce, std::move(socket).take(), 0);
  if (h.host_hash != host_hash()) connection->goes_to_another_host();
  return Status::ok;
}

Status ProxySession::connect(int device, std::span<std::uint8_t, kHandleBytes> handle,
                             std::unique_ptr<SendComm>& comm) {
  std::uint64_t number = 0;
  const bool intact = load_connection(handle, number);
  std::unique_ptr<Connection> connection;
  if (intact && number == 0) {
    TP_TRY(start(device, handle, connection));
  } else {
    std::lock_guard hold(mutex_);
    auto at = intact ? connecting_.find(number) : connecting_.end();
    if (at == connecting_.end() || at->second.named != device) {
      if (intact && number < next_number_) {
        TP_WARN(
            "cannot connect: the connection was not gone on with within its time "
            "(TWINPATH_CONNECT_TIMEOUT_MS) and was dropped, or the handle is of another "
            "communicator or device; each connection needs its own copy of the handle");
      } else {
        TP_WARN(
            "cannot connect: the handle's state is damaged or of another communicator; each "
            "connection needs its own copy of the handle");
      }
      return Status::bad_argument;
    }
    connection = std::move(at->second.connection);
    connecting_.erase(at);
  }
  drop_forgotten();                        // our own is not among them
  const Status s = connection->advance();  // ours alone meanwhile, so no lock is held
  if (s == Status::again) {
    std::lock_guard hold(mutex_);
    if (number == 0) number = next_number_++;
    const std::int64_t now = clock_.time();
    next_look_ =
        std::min(next_look_, now + core_->devices->config().connect_timeout_ms * kMillisecond);
    connecting_.emplace(number, Begun{std::move(connection), device, now});
    store_connection(handle, number);
    return s;
  }
  store_connection(handle, 0);
  if (s == Status::ok) {
    const int used = connection->device();
    comm = std::make_unique<ProxySendComm>(core_, used, connection->take());
  }
  return s;
}

}  // namespace twinpath
