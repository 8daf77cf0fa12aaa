#pragma once
// What tests share of RMA's signals to words in GPU memory, which the adapter of rank 0 adds to
// (looped_words.h) while its port fails; on late adapters (late_adapter.h).
//
// Threads: ranks are threads; what a run has is set before they begin.
#include <atomic>
#include <initializer_list>
#include <string>

#include "test/gda/late_completions.h"
#include "test/gda/late_moves.h"
#include "test/gda/rma_moves.h"

#define TRY_TEXT(wrong) \
  if (std::string text = (wrong); !text.empty()) return text

namespace twinpath::test {

// Of a run: what NCCL says of the words, and the queue pair at rank 0 that was asked for them.
inline bool never_reset = true;
inline std::atomic<std::uint32_t> word_loop{0};

// The first READ of words; no get is asked for here, and READs that flush have numbers.
inline bool is_first_read(const ibv_wc& wc) {
  std::uint32_t none = 0;
  return wc.opcode == IBV_WC_RDMA_READ && wc.wr_id == 0 &&
         word_loop.compare_exchange_strong(none, wc.qp_num);
}
inline std::atomic<bool> wrote{false};

// A port of rank 0 that is lost at one of its completions.
inline std::atomic<const Port*> to_lose{nullptr};
inline std::int64_t lose() {
  if (const Port* port = to_lose.exchange(nullptr); port != nullptr) set(*port, false);
  return 0;
}
// `by` sees the completions of that device of rank 0.
inline void look_at_rank_0(Rank& r, LateCompletions::Pause by, int device = 0) {
  if (r.rank == 0) {
    to_lose = nullptr;
    word_loop = 0;
    wrote = false;
    LateCompletions::hold(r, by, device);
  }
  r.meeting->barrier();
}

inline void meet(Rank& r, std::initializer_list<gda::RmaContext*> contexts) {
  driven(contexts, [&r] { return r.meeting->barrier(), true; });
}

// Rank 1 signals to rank 0's word, which comes to `value`.
inline std::string one_signal(Rank& r, gda::RmaContext& context, RmaGpuMemory& words,
                              std::uint64_t value) {
  if (r.rank == 1) {
    const gda::RmaSignal signal{words.at(8), 1};
    auto put = context.put(0, 0, {}, &signal);
    EXPECT_GIN(put);
    EXPECT_RMA_OK(rma_wait(*put));
  } else {
    EXPECT_GIN(rma_await(context, words, 8, value), static_cast<std::int64_t>(value));
  }
  meet(r, {&context});
  return {};
}

}  // namespace twinpath::test
