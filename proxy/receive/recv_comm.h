#pragma once
// The receiving end of a connection: offers buffers to the sender by clear-to-send cells and
// counts what arrives by the immediates of the sender's writes (arrivals.h).
//
// When cells leave: in their irecv if the sender has no other, and always those of a group, of GPU
// memory, of a large buffer and of a receive without completion.  A small host receive's cell else
// goes with what the session's next poll finds waiting, or a little later while the sender has more
// cells than wait here: until something arrives, kCtsPatience polls have passed, or kHoldBoundUs at
// the latest, by the session's thread.
//
// Threads: irecv, iflush and tests from one thread at a time; all state is under the hub's lock
// because any comm that polls a shared CQ, and the session's thread, may deliver our completions.
// But for the test of a receive that is done: RecvRequest::left_ says so without the lock, and
// which requests are free is the caller's own affair.  Registration: any thread.
#include <array>
#include <memory>

#include "proxy/connect/connection_parts.h"
#include "proxy/connect/session_core.h"
#include "proxy/receive/arrivals.h"
#include "proxy/receive/cell_keys.h"
#include "proxy/receive/cts_writer.h"
#include "proxy/receive/flushes.h"
#include "proxy/receive/recv_request.h"

namespace twinpath {

// Receives of up to this may have their cells wait for company: what they bring is cheaper than
// the write of a cell.
inline constexpr std::size_t kPatientReceive = 4096;
// Polls of the session during which a cell may wait.
inline constexpr int kCtsPatience = 64;

class ProxyRecvComm final : public RecvComm,
                            private CompletionSink,
                            private HeldWork,
                            private FailoverComm,
                            private MemoryUser {
 public:
  ProxyRecvComm(std::shared_ptr<SessionCore> core, int device, ConnectionParts parts);
  // What was accepted is offered first, and what is on its way taken in, as far as that takes a
  // moment.
  ~ProxyRecvComm() override;

  Status irecv(const RecvBuffers& buffers, bool completion_optional, Request** request) override;
  using RecvComm::irecv;
  Status iflush(std::span<const RecvBuffer> buffers, Request** request) override;
  Result<Memory*> register_memory(void* data, std::size_t bytes, MemoryType type,
                                  std::uint64_t dmabuf_offset, int dmabuf_fd) override;
  Status deregister_memory(Memory* memory) override;

 private:
  friend class RecvRequest;
  friend class FlushRequest;
  // Of one that was not done, or without completion: polls.
  TP_APART Status test_pending(RecvRequest& request, int& done, int* sizes);
  Status test(FlushRequest& request, int& done);
  void on_completion(const ibv_wc& wc) override;
  bool post_held(bool overdue) override;
  void give_up(const ProxyMemory& memory) override;

  TP_APART RecvRequest* make_request();
  // Whether the buffers may be received into; the bits of those that go through host memory.
  Status check(const RecvBuffers& buffers, bool watched, std::uint8_t& staged) const;
  // Whether it is host memory and registered here: what check() need not look at.
  bool plain(const void* data, std::size_t bytes, const Memory* memory) const;
  // Such a buffer, and what its cell says.
  struct Plain {
    void* data;
    std::size_t bytes;
    int tag;
    Memory* memory;
    std::uint32_t meta;
    std::uint64_t seq;
  };
  // Fills its part of the request and its cell.
  void offer_plain(const Plain& buffer, RecvRequest::Sub& sub, const CtsLayout& layout,
                   std::uint8_t* cell, int first_key);
  TP_APART Status irecv_group(const RecvBuffers& buffers, Request** request);
  // Whatever irecv's short way is not for.
  TP_APART Status irecv_any(const RecvBuffers& buffers, bool completion_optional,
                            Request** request);
  RecvRequest* begin(unsigned count, unsigned staged, bool optional);
  // Fills part `index` of the request and its cell.
  void offer(RecvRequest& request, unsigned index, const RecvBuffers& buffers);
  // The cell of a lone small receive, while the sender has others.
  TP_APART Status wait_or_post();
  TP_APART Status no_room_yet();
  // Looks how many cells the sender has used.
  TP_APART void look_in_box();
  TP_APART void post_cells();
  void post_new_cells();  // the same where there are some and the link is whole
  TP_APART void not_posted(int error);
  bool finished(const RecvRequest& r) const {
    return r.left() == 0 && (!r.optional_ || cts_.posted(r.first_cell_));
  }
  Waiting waiting(int more);
  // Since the caller's last call in vain: whether anything was accepted or finished.
  std::uint64_t moved() const { return cts_.added() << 16 ^ arrivals_.requests().next(); }
  // A call could achieve nothing; `accepted`: for a receive that was.
  [[gnu::noinline]] void in_vain(bool accepted);

  // --- recv_completions.cc
  TP_APART void on_other(const ibv_wc& wc);
  TP_APART void on_data(const ibv_wc& wc, int queue);
  TP_APART void repost(int queue);
  // What has landed in mirrors goes on to the GPU.
  void copy_on();

  // --- when queues are replaced (recv_failover.cc)
  AtRisk at_risk() override;
  bool drained(QueueMask gone) override;
  bool settled() override { return !arrivals_.copying_parts(); }
  HeldState held() override;
  void receives_posted() override { unposted_.fill(0); }
  Status reach(FencedNote& note, std::string& why) override;
  bool reachable(int rail);
  int resume(const FencedNote& theirs) override;
  std::uint64_t progress() override;

  CompletionHub* const hub_;
  const int device_;
  int patience_ = 0;  // polls since cells began to wait
  bool optional_allowed_ = true;
  CellKeys keys_;
  std::shared_ptr<SessionCore> core_;  // outlives the link, whose queue pairs it may have
  std::unique_ptr<RegisteredBuffer> box_;
  std::unique_ptr<RegisteredBuffer> shadow_;  // null where cells go inline
  std::unique_ptr<PeerLink> link_;
  CtsWriter cts_;
  std::array<std::uint16_t, kMaxQps> unposted_{};  // receive work requests used up, by queue
  counters::Connection* const counts_;

  const EndPlan plan_;
  Flushes flushes_;
  Arrivals arrivals_;  // ends before the link: copies out of mirrors are waited for
};

}  // namespace twinpath
