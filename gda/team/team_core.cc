// See team_core.h.  Each piece starts with one byte: 1 for "here it is", 0 for "I failed".
#include "gda/team/team_core.h"

#include <algorithm>

#include "plugin/base/log.h"

namespace twinpath::gda {
namespace {

using Bytes = std::vector<std::uint8_t>;

Bytes marked(const Bytes* bytes) {
  if (bytes == nullptr) return Bytes(1);
  Bytes out(bytes->size() + 1);
  out[0] = 1;
  std::copy(bytes->begin(), bytes->end(), out.begin() + 1);
  return out;
}

// `own`: ok, or why this rank failed (already logged).
Result<std::vector<Bytes>> unmark(const Mesh& mesh, Result<std::vector<Bytes>> got, Status own,
                                  const char* what) {
  if (own != Status::ok) return own;
  if (!got) return got.status();
  int rank = 0;
  for (Bytes& bytes : *got) {
    if (bytes.empty() || bytes[0] != 1) {
      TP_WARN("%s failed at %s; its log says why", what, mesh.peer_text(rank).c_str());
      return Status::remote;
    }
    bytes.erase(bytes.begin());
    ++rank;
  }
  return got;
}

}  // namespace

bool TeamCore::lost(PortWatch& watched, std::int64_t now) {
  const std::lock_guard hold(port_mutex_);
  if (port_lost_) return true;
  return end(watched.look(now));
}

bool TeamCore::lost_port(std::int64_t now) {
  if (second == nullptr || !second->either()) return lost(*port, now);
  const std::lock_guard hold(port_mutex_);
  if (port_lost_) return true;
  const std::string first = port->look(now), other = second->watch.look(now);
  // What is lost is no port, but its adapter, or a CQ.
  if (!port->down() && !first.empty()) return end(first);
  if (!second->watch.down() && !other.empty()) return end(other);
  return end(first.empty() || other.empty() ? std::string() : first + "; " + other);
}

bool TeamCore::end(const std::string& why) {
  if (why.empty()) return false;
  warn_of_lost_port(why);
  mesh->give_up();
  return port_lost_ = true;
}

bool TeamCore::down(PortWatch& watched, std::int64_t now) {
  const std::lock_guard hold(port_mutex_);
  (void)watched.look(now);
  return watched.down();
}

Result<AdapterLimits> usable_limits(const Devices& devices, const Rail& rail) {
  auto limits = adapter_limits(devices.verbs(), rail);
  if (limits) limits->atomics &= devices.config().gin_atomics != AtomicsChoice::never;
  return limits;
}

Result<std::vector<Bytes>> gather_or_fail(Mesh& mesh, const Result<Bytes>& mine, const char* what) {
  auto got = mesh.all_gather(marked(mine ? &*mine : nullptr), what);
  return unmark(mesh, std::move(got), mine.status(), what);
}

Result<std::vector<Bytes>> exchange_or_fail(Mesh& mesh, const Result<std::vector<Bytes>>& mine,
                                            const char* what) {
  std::vector<Bytes> to;
  for (int r = 0; r < mesh.ranks(); ++r)
    to.push_back(marked(mine ? &(*mine)[static_cast<std::size_t>(r)] : nullptr));
  auto got = mesh.all_to_all(to, what);
  return unmark(mesh, std::move(got), mine.status(), what);
}

}  // namespace twinpath::gda
