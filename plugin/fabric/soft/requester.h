#pragma once
// Pieces of the requester shared by its files.  All with the QP's lock held.
#include <array>
#include <atomic>

#include "plugin/fabric/soft/hca.h"

namespace twinpath::soft {

enum class Step {
  done,    // the WQE has begun; go on with the next
  wait,    // cannot go on now
  more,    // a slice of it was copied; the next look goes on
  failed,  // entry.status is set
};

// The status that a peer refused with; what is none says that much.
inline ibv_wc_status refusal(std::uint32_t nak) {
  return nak <= IBV_WC_GENERAL_ERR ? static_cast<ibv_wc_status>(nak) : IBV_WC_REM_OP_ERR;
}

inline Step fail(SendEntry& e, ibv_wc_status status) {
  e.status = static_cast<std::uint8_t>(status);
  return Step::failed;
}

inline std::uint32_t needed_right(const SendEntry& e) {
  return is_read(e) ? std::uint32_t{IBV_ACCESS_REMOTE_READ}
                    : std::uint32_t{IBV_ACCESS_REMOTE_WRITE};
}

// The peer's table of keys, or ours when the destination is in this process; not valid() until
// the peer has greeted.
KeyView remote_keys(SoftQp& qp);

// The remote range of a WRITE or READ, held for a copy by us; none: the peer's QP or key refuses.
HeldKey hold_remote(SoftQp& qp, const SendEntry& e);
// After that: the peer must learn of the violation too, and the WQE fails.
Step refused(SoftQp& qp, SendEntry& e);

// The address of an SGE's first byte: its MR may have been registered under another iova.
std::uint64_t shifted_address(SoftQp& qp, const ibv_sge& sge);
inline std::uint64_t local_address(SoftQp& qp, const SendEntry& e, const ibv_sge& sge) {
  return e.shifted ? shifted_address(qp, sge) : sge.addr;
}

// The memory here that has the message's bytes from `offset` on, as far as it is one piece.
struct LocalPiece {
  std::uint64_t address = 0, bytes = 0;  // 0: there are no more
};
LocalPiece local_piece(SoftQp& qp, const SendEntry& e, std::uint64_t offset);

// What one look at a queue copies of a message: a poll, or a post, of a large one must not take as
// long as the message.
inline constexpr std::uint64_t kSlice = std::uint64_t{1} << 20;

// Whether all data that travel in packets are in place at the far end: what does not may follow.
inline bool packets_in_place(const SoftQp& qp) {
  return qp.link.theirs->acked.load(std::memory_order_acquire) >= qp.requester.last_data_message;
}

// direct.cc: the initiator copies by itself, by memcpy inside the process and by
// process_vm_readv/writev between processes.  The key is already held by the caller.
// Moves a slice of what is left of the WQE; false when the system refuses (then packets must do).
bool copy_direct(SoftQp& qp, SendEntry& e, const Region& remote, bool to_remote);
// What a team may help with, when there is one: a large WRITE or READ in one piece.
bool may_help(SoftQp& qp, const SendEntry& e);
Step copy_with_team(SoftQp& qp, SendEntry& e, const Region& remote, bool to_remote);
// The keys of an entry's own memory, held for one step of it: deregistration waits for the step,
// and the next one is refused.
class LocalKeys {
 public:
  LocalKeys() = default;
  ~LocalKeys() {
    for (int i = 0; i < count_; ++i) KeyView::drop(held_[static_cast<std::size_t>(i)]);
  }
  LocalKeys(const LocalKeys&) = delete;
  LocalKeys& operator=(const LocalKeys&) = delete;
  // True when every SGE is memory registered with `access`; `cuda` says whether one is CUDA memory.
  // False: a bad lkey.  Sets e.shifted.
  bool hold(SoftQp& qp, SendEntry& e, std::uint32_t access, bool& cuda);

 private:
  static constexpr int kMost = 32;  // no personality's work requests have more SGEs
  std::array<std::atomic<std::uint32_t>*, kMost> held_;
  int count_ = 0;
};

// The key of an SGE of the entry, held; none when it is not, or no longer, registered for it.
HeldKey hold_sge(SoftQp& qp, const SendEntry& e, const ibv_sge& sge);

// shared_copy.cc: a large write copied by both ends at once.
bool may_share(SoftQp& qp, const SendEntry& e);
Step start_shared(SoftQp& qp, SendEntry& e, const Region& remote);
inline bool shares(const SendEntry& e) { return e.pull_id != 0 && !e.no_direct; }
Step go_on_sharing(SoftQp& qp, SendEntry& e);
// direct.cc: makes qp.copies.out that of this message, up to `bytes`.
void begin_sending(SoftQp& qp, SendEntry& e, const Region& remote, std::uint32_t id,
                   std::uint64_t bytes, Claim& claim);
// Writes the chunk that the peer could not read, if there is one.
void fix_shared(SoftQp& qp);

// cuda_transfer.cc: RDMA WRITE and READ with CUDA memory at either end, by the copy engine.
Step start_cuda(SoftQp& qp, SendEntry& e);
// The GPU that an SGE's memory is on; -1: host memory.
int gpu_of(SoftQp& qp, const SendEntry& e, const ibv_sge& sge);
// late_transfer.cc, with the fault late_us: whether this one ends in GPU memory and so is placed
// later; begins it, as start_cuda; ends its first step when no job of it is left, or does nothing.
bool comes_late(SoftQp& qp, const SendEntry& e, CopyEnd far);
Step start_late(SoftQp& qp, SendEntry& e, const HeldKey& k, CopyEnd far, QpCopyJob* jobs);
void end_late(SoftQp& qp, SendEntry& e);
// The entry's jobs, one for each SGE; how one is made (all but its executor), and submitted: false,
// and not counted, when nobody takes it, or the SGE, if it is at one (`own`), is no longer
// registered.  Its key is held until the job has ended: deregistration waits.
using CopyDone = void (*)(CopyJob* job, Status status);
void make_job(SoftQp& qp, SendEntry& e, QpCopyJob& job, CopyEnd to, CopyEnd from,
              std::uint64_t bytes, CopyDone done);
bool submit(QpCopyJob& job, const ibv_sge* own);
// Copy thread: one SGE of a transfer is where it belongs; so is one of what was fetched, by an
// atomic or a READ, whose answer came in packets.
void copied(CopyJob* job, Status status);
void fetched(CopyJob* job, Status status);
// Sends what follows finished copies (immediate data), in order.
bool finish_moved(SoftQp& qp);
// Of an atomic whose answer has come: whether what it fetched goes to memory of a GPU; and brings
// it there, after which the entry can end.  False: it cannot.
bool lands_on_gpu(SoftQp& qp, const SendEntry& e);
bool place_fetched(SoftQp& qp, SendEntry& e, const std::uint8_t* value, std::uint64_t bytes);

// relay.cc: between GPU memory here and host memory of another process.
bool needs_relay(const SoftQp& qp, const Region& remote);
// done: it is there, for a WRITE with all bytes.  Until then the entry waits.
Step fill_relay(SoftQp& qp, SendEntry& e);
// Begins to put what a READ has brought where it belongs, `done` with each part.  False: e.status
// says why not all of it; some may be under way.
bool empty_relay(SoftQp& qp, SendEntry& e, CopyDone done);

// Announces a message whose data is in place already.
bool send_imm(SoftQp& qp, SendEntry& e);

}  // namespace twinpath::soft
