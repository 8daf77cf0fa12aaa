// Where memory behind keys lies; see soft::Reach (plugin/fabric/soft_hca.h).
#include <mutex>

#include "plugin/fabric/soft/entry.h"
#include "plugin/fabric/soft/hca.h"
#include "plugin/fabric/soft/ordered_write.h"
#include "plugin/fabric/soft/team_copy.h"

namespace twinpath::soft {
namespace {

bool ready(const LinkEnd& end) {
  // Who sees `ready` sees the end's protection domain and rights (bind_link).
  return end.state.load(std::memory_order_acquire) == static_cast<std::uint32_t>(EndState::ready);
}

std::uint64_t in_owner(const Region& e, std::uint64_t address) {
  return e.base + (address - e.iova);
}

class QpReach final : public Reach {
 public:
  explicit QpReach(ibv_qp* qp) : qp_(*soft(qp)) {}
  Reached remote(std::uint32_t rkey, std::uint64_t address, std::uint64_t bytes,
                 std::uint32_t access, Place& out) override;
  Reached local(std::uint32_t lkey, std::uint64_t address, std::uint64_t bytes,
                std::uint32_t access, Place& out) const override;
  bool copy(const Place& to, const Place& from, std::uint64_t bytes) const override;
  bool down() override;
  std::uint64_t order() const override { return qp_.qp_num; }

 private:
  bool bind();
  bool port_up() const { return qp_.soft_context->soft_device->port_up(qp_.attr.port_num); }

  SoftQp& qp_;
  // Of the joined queue pair; null before.
  std::shared_ptr<Link> link_;
  std::shared_ptr<Peer> peer_;  // null: the peer is in this process
  LinkEnd* mine_ = nullptr;
  const LinkEnd* theirs_ = nullptr;
};

bool QpReach::bind() {
  if (theirs_ != nullptr) return true;
  const std::lock_guard hold(qp_.lock);
  // `theirs` is null also while the port is down.
  if (qp_.link.memory == nullptr || qp_.link.theirs == nullptr) return false;
  link_ = qp_.link.memory;
  peer_ = qp_.link.peer;
  mine_ = qp_.link.mine;
  theirs_ = qp_.link.theirs;
  return true;
}

Reached QpReach::remote(std::uint32_t rkey, std::uint64_t address, std::uint64_t bytes,
                        std::uint32_t access, Place& out) {
  if (!bind() || !ready(*mine_) || !ready(*theirs_) || !port_up()) return Reached::no;
  if (peer_ != nullptr && (peer_->dead.load(std::memory_order_relaxed) ||
                           !peer_->greeted.load(std::memory_order_acquire)))
    return Reached::no;
  if ((theirs_->access.load(std::memory_order_relaxed) & access) != access) return Reached::no;
  const KeyView keys = peer_ != nullptr ? peer_->keys : qp_.hca->keys().view();
  const HeldKey e =
      keys.hold(rkey, address, bytes, access, theirs_->pd.load(std::memory_order_relaxed));
  if (!e) return Reached::no;
  out = {{}, 0, e.count};
  if (e.kind == static_cast<std::uint32_t>(MemoryKind::host)) {
    out.end = {in_owner(e, address), -1};
    if (peer_ == nullptr) return Reached::yes;
    out.pid = peer_->pid;
    if (peer_->direct) return Reached::yes;
    drop(out);
    return Reached::no;
  }
  bool failed = false;
  const auto mapping = peer_ != nullptr ? peer_->allocation(e.alloc_id, rkey, failed)
                                        : qp_.hca->allocations().mapping(e.alloc_id, failed);
  // A peer may say anything of its addresses, but the mapping's bounds are ours.
  const std::uint64_t offset = in_owner(e, address) - e.alloc_base;
  if (mapping != nullptr && offset <= mapping->bytes() && bytes <= mapping->bytes() - offset) {
    out.end = {mapping->address() + offset, mapping->gpu()};
    if (peer_ == nullptr) out.own = in_owner(e, address);
    return Reached::yes;
  }
  drop(out);
  return failed || mapping != nullptr ? Reached::no : Reached::later;
}

Reached QpReach::local(std::uint32_t lkey, std::uint64_t address, std::uint64_t bytes,
                       std::uint32_t access, Place& out) const {
  const HeldKey e = qp_.hca->keys().view().hold(lkey, address, bytes, access,
                                                static_cast<SoftPd*>(qp_.pd)->number);
  if (!e) return Reached::no;
  const bool cuda = e.kind == static_cast<std::uint32_t>(MemoryKind::cuda);
  out = {{in_owner(e, address), cuda ? e.gpu : -1}, 0, nullptr};
  KeyView::drop(e);
  return Reached::yes;
}

bool QpReach::copy(const Place& to, const Place& from, std::uint64_t bytes) const {
  if (to.pid == 0 && from.pid == 0) {
    write_ordered(reinterpret_cast<void*>(to.end.address),
                  reinterpret_cast<const void*>(from.end.address), bytes);
    return true;
  }
  const bool write = to.pid != 0;
  const Place& near = write ? from : to;
  const Place& far = write ? to : from;
  return move_host(far.pid, near.end.address, far.end.address, bytes, write);
}

// An end is not ready while its port is down (QpLink::set_carrier).  Before the two have met
// nothing is known but the own port.
bool QpReach::down() {
  const auto waits = [](const LinkEnd& end) {
    return end.state.load(std::memory_order_acquire) == static_cast<std::uint32_t>(EndState::unset);
  };
  return !port_up() || (bind() && (waits(*mine_) || waits(*theirs_)));
}

}  // namespace

std::unique_ptr<Reach> make_reach(ibv_qp* qp) { return std::make_unique<QpReach>(qp); }

}  // namespace twinpath::soft
