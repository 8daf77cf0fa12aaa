#pragma once
// A tap between the transport and the soft HCA: sees what queues are made and posted, and lets
// single calls and completions go wrong.
//
// Hand Tap::on to World.  The verbs table holds plain function pointers, so the tap's state is
// static; on() begins it anew.  Threads: the test's and those of the sessions, which post what was
// held; who looks at `posted` while something may be held takes `mutex`.
#include <arpa/inet.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "plugin/fabric/fabric.h"
#include "proxy/wire/cts.h"
#include "proxy/wire/wr_id.h"

namespace twinpath::test {

struct Tap {
  // A queue pair as the device reports it after it went to RTR.
  struct Raised {
    std::uint32_t qpn = 0;
    std::uint32_t send_depth = 0;
    ibv_qp_attr attr{};
  };
  struct Posted {
    WrKind kind = WrKind::none;
    std::uint32_t qpn = 0;
    unsigned flags = 0;
    std::uint32_t bytes = 0;
    bool notice = false;  // with an immediate
  };
  static inline std::mutex mutex;
  static inline std::vector<Raised> raised;
  static inline std::vector<Posted> posted;
  static inline std::map<std::uint32_t, std::uint32_t> inline_bytes;  // granted, by QP
  static inline std::uint32_t inline_limit = 0;                       // more is refused,
  static inline int inline_error = EINVAL;   // for that errno; 0: errno stays as it was
  static inline bool ignore_inline = false;  // the adapter fetches what it was to take inline
  // The next completion of that kind is made an error; `failed_qpn` is then its QP.
  static inline WrKind fail_completion = WrKind::none;
  static inline ibv_wc_status fail_status = IBV_WC_REM_ACCESS_ERR;
  static inline bool fail_all = false;  // and each one after it
  static inline std::uint32_t failed_qpn = 0;
  static inline WrKind fail_post = WrKind::none;  // posts of that kind give ENOMEM
  // As many of the next writes with an immediate are executed twice, the second time without bytes,
  // as soft-RoCE may; after those, as many pass, and as many are taken and never sent.
  static inline int repeat_writes = 0, pass_writes = 0, lose_writes = 0;
  // Bits that the meta word of the next cell is sent with turned over.
  static inline std::uint32_t spoil_cell = 0;
  // The same of the next message's immediate.
  static inline std::uint32_t spoil_notice = 0;
  static inline int poll_result = 0;  // not 0: what polling gives
  // What that adapter's receives complete with is told to nobody.
  static inline std::atomic<ibv_context*> dumb = nullptr;
  static inline bool no_memory = false;  // registrations give ENOMEM
  static inline int create_error = 0;    // not 0: no queue pair, for that errno; < 0: for none
  // Moves to that state that are still to fail, and with what; any number below 0 for all.
  static inline std::map<ibv_qp_state, int> failing_moves;
  static inline int move_error = ETIMEDOUT;
  static inline std::atomic<int> destroy_ms = 0;  // how long the adapter takes to destroy a queue
  static inline int moves = 0;                    // tried, of any kind

  // The adapter of that name, of the last fabric that on() saw.
  static ibv_context* context_of(const std::string& device) {
    auto at = contexts_.find(device);
    return at != contexts_.end() ? at->second : nullptr;
  }

  // The table that on() found.
  static const Verbs& real() { return real_; }

  static void on(Fabric& fabric) {
    contexts_.clear();
    for (const Port& port : fabric.ports) contexts_[port.device] = port.context;
    raised.clear();
    posted.clear();
    inline_bytes.clear();
    inline_limit = 1u << 16;
    inline_error = EINVAL;
    ignore_inline = false;
    fail_completion = fail_post = WrKind::none;
    fail_status = IBV_WC_REM_ACCESS_ERR;
    fail_all = false;
    repeat_writes = pass_writes = lose_writes = 0;
    spoil_cell = spoil_notice = 0;
    poll_result = 0;
    dumb = nullptr;
    no_memory = false;
    create_error = 0;
    failing_moves.clear();
    move_error = ETIMEDOUT;
    destroy_ms = 0;
    moves = 0;
    real_ = fabric.verbs;
    fabric.verbs.modify_qp = modify_qp;
    fabric.verbs.create_qp = create_qp;
    fabric.verbs.destroy_qp = destroy_qp;
    fabric.verbs.reg_mr_iova2 = reg_mr_iova2;
    for (const Port& port : fabric.ports) {
      ibv_context_ops& ops = port.context->ops;
      if (ops.post_send == post_send) continue;  // another port of this context
      post_send_ = ops.post_send;
      poll_cq_ = ops.poll_cq;
      ops.post_send = post_send;
      ops.poll_cq = poll_cq;
    }
  }

 private:
  static inline Verbs real_;
  static inline std::map<std::string, ibv_context*> contexts_;
  static inline decltype(ibv_context_ops::post_send) post_send_ = nullptr;
  static inline decltype(ibv_context_ops::poll_cq) poll_cq_ = nullptr;

  static int modify_qp(ibv_qp* qp, ibv_qp_attr* attr, int mask) {
    std::unique_lock hold(mutex);  // queues are also replaced on threads of the sessions
    ++moves;
    if ((mask & IBV_QP_STATE) != 0)
      if (auto at = failing_moves.find(attr->qp_state);
          at != failing_moves.end() && at->second != 0) {
        if (at->second > 0) --at->second;
        return move_error;
      }
    hold.unlock();
    const int error = real_.modify_qp(qp, attr, mask);
    if (error == 0 && (mask & IBV_QP_AV) != 0) {
      Raised r;
      ibv_qp_init_attr init{};
      r.qpn = qp->qp_num;
      (void)real_.query_qp(qp, &r.attr, IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN, &init);
      r.send_depth = init.cap.max_send_wr;
      hold.lock();
      raised.push_back(r);
    }
    return error;
  }

  static ibv_qp* create_qp(ibv_pd* pd, ibv_qp_init_attr* init) {
    if (init->cap.max_inline_data > inline_limit || create_error != 0) {
      const int error = create_error != 0 ? create_error : inline_error;
      if (error > 0) errno = error;
      return nullptr;
    }
    ibv_qp* qp = real_.create_qp(pd, init);
    std::lock_guard hold(mutex);
    if (qp != nullptr) inline_bytes[qp->qp_num] = init->cap.max_inline_data;
    return qp;
  }

  static int destroy_qp(ibv_qp* qp) {
    std::this_thread::sleep_for(std::chrono::milliseconds(destroy_ms.load()));
    return real_.destroy_qp(qp);
  }

  static ibv_mr* reg_mr_iova2(ibv_pd* pd, void* addr, std::size_t bytes, std::uint64_t iova,
                              unsigned access) {
    if (!no_memory) return real_.reg_mr_iova2(pd, addr, bytes, iova, access);
    errno = ENOMEM;
    return nullptr;
  }

  static int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) {
    const WrKind kind = decode_wr_id(wr->wr_id).kind;
    std::unique_lock hold(mutex);
    if (kind == fail_post) {
      *bad = wr;
      return ENOMEM;
    }
    for (ibv_send_wr* w = wr; w != nullptr; w = w->next) {
      if (ignore_inline) w->send_flags &= ~unsigned{IBV_SEND_INLINE};
      std::uint32_t bytes = 0;
      for (int i = 0; i < w->num_sge; ++i) bytes += w->sg_list[i].length;
      posted.push_back({decode_wr_id(w->wr_id).kind, qp->qp_num, w->send_flags, bytes,
                        w->opcode == IBV_WR_RDMA_WRITE_WITH_IMM});
    }
    if (kind == WrKind::cts && spoil_cell != 0) {
      auto* meta = reinterpret_cast<std::uint8_t*>(wr->sg_list->addr) + offsetof(NarrowCell, meta);
      std::uint32_t word;
      std::memcpy(&word, meta, sizeof word);
      word ^= std::exchange(spoil_cell, 0);
      std::memcpy(meta, &word, sizeof word);
    }
    if (kind == WrKind::send_data && wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM)
      wr->imm_data ^= htonl(std::exchange(spoil_notice, 0));
    if (wr->opcode != IBV_WR_RDMA_WRITE_WITH_IMM || repeat_writes + lose_writes == 0) {
      hold.unlock();
      return post_send_(qp, wr, bad);
    }
    if (repeat_writes == 0 && pass_writes > 0) {
      --pass_writes;
      hold.unlock();
      return post_send_(qp, wr, bad);
    }
    if (repeat_writes == 0) return --lose_writes, 0;
    --repeat_writes;
    hold.unlock();
    if (const int error = post_send_(qp, wr, bad); error != 0) return error;
    ibv_send_wr again = *wr;
    again.next = nullptr;
    again.num_sge = 0;
    again.send_flags = 0;
    return post_send_(qp, &again, bad);
  }

  static int poll_cq(ibv_cq* cq, int most, ibv_wc* wc) {
    if (poll_result != 0) return poll_result;
    int n = poll_cq_(cq, most, wc);
    if (cq->context == dumb)
      n = static_cast<int>(
          std::remove_if(wc, wc + n,
                         [](const ibv_wc& w) { return (w.opcode & IBV_WC_RECV) != 0; }) -
          wc);
    std::lock_guard hold(mutex);
    for (int i = 0; i < n; ++i) {
      if (fail_completion == WrKind::none || decode_wr_id(wc[i].wr_id).kind != fail_completion)
        continue;
      // Of a failed completion only these four fields mean anything; the others lie.
      ibv_wc lie{};
      lie.wr_id = wc[i].wr_id;
      lie.qp_num = failed_qpn = wc[i].qp_num;
      lie.status = fail_status;
      lie.vendor_err = 0x5a;
      lie.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
      lie.wc_flags = IBV_WC_WITH_IMM;
      lie.imm_data = wc[i].imm_data;
      lie.byte_len = wc[i].byte_len;
      wc[i] = lie;
      if (!fail_all) fail_completion = WrKind::none;
    }
    return n;
  }
};

}  // namespace twinpath::test
