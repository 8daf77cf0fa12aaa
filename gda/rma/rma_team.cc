// See rma_team.h.
#include "gda/rma/rma_team.h"

#include "plugin/base/log.h"

namespace twinpath::gda::rma {

Status Team::agree_on_atomics() {
  const std::vector<std::uint8_t> mine{static_cast<std::uint8_t>(limits.atomics ? 1 : 0)};
  auto all = gather_or_fail(*mesh, mine, "agreeing on atomics");
  if (!all) return all.status();
  for (std::size_t r = 0; r < all->size(); ++r) {
    const auto& theirs = (*all)[r];
    if (theirs.size() != 1) {
      TP_WARN(
          "%s sent a damaged description of its adapter; use one version of Twinpath everywhere",
          mesh->peer_text(static_cast<int>(r)).c_str());
      return Status::remote;
    }
    // A word has one kind of writer: an adapter's atomics, or a CPU's sums.
    counted_ |= theirs[0] == 0;
  }
  return Status::ok;
}

void Team::add(std::uint32_t number, const KeyedMemory& memory) {
  const std::lock_guard hold(windows_mutex_);
  windows_[number] = memory;
}

void Team::remove(std::uint32_t number) {
  const std::lock_guard hold(windows_mutex_);
  windows_.erase(number);
}

bool Team::find(std::uint32_t number, KeyedMemory& out) const {
  const std::lock_guard hold(windows_mutex_);
  const auto at = windows_.find(number);
  if (at == windows_.end()) return false;
  out = at->second;
  return true;
}

void Team::warn_of_lost_port(const std::string& why) const {
  TP_WARN("RMA of rank %d: %s; its requests fail", rank(), why.c_str());
}

}  // namespace twinpath::gda::rma
