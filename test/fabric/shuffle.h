#pragma once
// An adapter that takes its time: what is posted on a queue leaves in order, but later than posted,
// and queues overtake each other at random.  The soft HCA alone does this between processes only.
//
// Hand Shuffle::on to World.  What was held back leaves at the polls of whatever CQ, so a test with
// it must keep polling.  The verbs table holds plain function pointers, so the state is static;
// on() begins it anew.  Threads: any.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <utility>
#include <vector>

#include "plugin/fabric/fabric.h"

namespace twinpath::test {

struct Shuffle {
  static void on(Fabric& fabric) {
    std::lock_guard hold(mutex_);
    held_.clear();
    random_.seed(1);
    real_ = fabric.verbs;
    fabric.verbs.create_qp = create_qp;
    fabric.verbs.destroy_qp = destroy_qp;
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
  // A work request with all that it points to.
  struct Held {
    ibv_send_wr wr{};
    std::vector<ibv_sge> sges;
    std::vector<std::uint8_t> inlined;
  };
  static inline std::mutex mutex_;
  static inline std::map<ibv_qp*, std::deque<Held>> held_;
  static inline std::minstd_rand random_;
  static inline Verbs real_;
  static inline decltype(ibv_context_ops::post_send) post_send_ = nullptr;
  static inline decltype(ibv_context_ops::poll_cq) poll_cq_ = nullptr;

  static constexpr std::uint32_t kInline = 512;  // what the soft HCA takes

  static bool is_write(const ibv_send_wr& wr) {
    return wr.opcode == IBV_WR_RDMA_WRITE || wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  }

  static Held copy_of(const ibv_send_wr& wr) {
    Held h;
    h.wr = wr;
    h.wr.next = nullptr;
    h.sges.assign(wr.sg_list, wr.sg_list + wr.num_sge);
    // An adapter reads memory at any time between the post and the completion: now or when it
    // leaves.  What is inline has been read.
    std::size_t bytes = 0;
    for (const ibv_sge& s : h.sges) bytes += s.length;
    const bool now = bytes <= kInline && is_write(wr) && random_() % 2 == 0;
    if (now && bytes > 0) h.wr.send_flags |= IBV_SEND_INLINE;
    if ((h.wr.send_flags & IBV_SEND_INLINE) == 0) return h;
    for (const ibv_sge& s : h.sges) {
      const auto* from = reinterpret_cast<const std::uint8_t*>(s.addr);
      h.inlined.insert(h.inlined.end(), from, from + s.length);
    }
    return h;
  }

  static int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr**) {
    std::lock_guard hold(mutex_);
    auto& queue = held_[qp];
    for (; wr != nullptr; wr = wr->next) queue.push_back(copy_of(*wr));
    if (random_() % 4 == 0) release(qp, queue);
    return 0;
  }

  static void release(ibv_qp* qp, std::deque<Held>& queue) {
    while (!queue.empty()) {
      Held& h = queue.front();
      std::uint64_t at = reinterpret_cast<std::uint64_t>(h.inlined.data());
      for (ibv_sge& s : h.sges) {
        if (h.inlined.empty()) break;
        s.addr = at;
        at += s.length;
      }
      h.wr.sg_list = h.sges.data();
      ibv_send_wr* bad = nullptr;
      if (post_send_(qp, &h.wr, &bad) != 0) return;  // the queue is full, or broken
      queue.pop_front();
    }
  }

  static int poll_cq(ibv_cq* cq, int most, ibv_wc* wc) {
    {
      std::lock_guard hold(mutex_);
      std::vector<ibv_qp*> ready;
      for (auto& [qp, queue] : held_)
        if (!queue.empty()) ready.push_back(qp);
      std::shuffle(ready.begin(), ready.end(), random_);
      for (ibv_qp* qp : ready)
        if (random_() % 4 == 0) release(qp, held_[qp]);
    }
    return poll_cq_(cq, most, wc);
  }

  // With room for the copies, of which the caller learns nothing.
  static ibv_qp* create_qp(ibv_pd* pd, ibv_qp_init_attr* init) {
    const std::uint32_t asked = std::exchange(init->cap.max_inline_data, kInline);
    ibv_qp* qp = real_.create_qp(pd, init);
    init->cap.max_inline_data = asked;
    return qp;
  }

  static int destroy_qp(ibv_qp* qp) {
    {
      std::lock_guard hold(mutex_);
      held_.erase(qp);
    }
    return real_.destroy_qp(qp);
  }
};

}  // namespace twinpath::test
