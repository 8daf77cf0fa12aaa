// What was rung: which queues have new work, which completion queues are armed.
#include <atomic>

#include "plugin/base/clock.h"
#include "plugin/fabric/soft/mlx5/execution.h"
#include "plugin/fabric/soft/mlx5/memory_access.h"

namespace twinpath::soft::mlx5 {
namespace {

constexpr std::uint32_t kSendWord = 4;  // of a queue pair's record

}  // namespace

bool Execution::look_at_doorbells() {
  bool rung = false;
  for (const auto& [number, page] : pages_) {
    if (page.arm != nullptr) {
      // As below.
      const std::uint64_t word =
          std::atomic_ref<std::uint64_t>(*page.arm).exchange(0, std::memory_order_acquire);
      if (word != 0) look_at_arming(number, word);
      rung |= word != 0;
    }
    // Taken, not read: a page of memory keeps the last word only, and the same word may be stored
    // twice.  Acquire: the records were written before the word.
    for (std::uint64_t* const doorbell : page.registers) {
      const std::uint64_t word =
          std::atomic_ref<std::uint64_t>(*doorbell).exchange(0, std::memory_order_acquire);
      if (word == 0) continue;
      rung = true;
      take_word(number, word);
    }
  }
  return rung;
}

// The word is the head of an entry and names its queue, whose record is read at once.  The words of
// others may have been overwritten by it, and each has its record written before its last one: all
// of the page are owed a look.  A queue may ring at any register of its page.
void Execution::take_word(std::uint32_t page, std::uint64_t word) {
  for (auto& [number, qp] : qps_) qp.owed |= qp.facts.uar == page;
  const auto named = static_cast<std::uint32_t>(__builtin_bswap64(word)) >> 8;
  if (auto it = qps_.find(named); it != qps_.end() && it->second.facts.uar == page)
    look_at_record(it->second);
}

// In turns, and one at a time where that takes long: a record in GPU memory takes 10 us and more,
// in which the queues that were named wait.
bool Execution::look_at_unnamed() {
  constexpr std::int64_t kShort = 5'000;
  const std::int64_t begun = now_ns();
  bool looked = false;
  auto it = qps_.upper_bound(last_owed_);
  for (std::size_t i = 0; i < qps_.size(); ++i, ++it) {
    if (it == qps_.end()) it = qps_.begin();
    if (!it->second.owed) continue;
    look_at_record(it->second);
    last_owed_ = it->first;
    looked = true;
    if (now_ns() - begun > kShort) break;
  }
  return looked;
}

void Execution::look_at_arming(std::uint32_t page, std::uint64_t word) {
  const auto named = static_cast<std::uint32_t>(__builtin_bswap64(word)) & 0xffffff;
  for (auto& [number, cq] : cqs_) {
    if (cq.facts().uar == page) cq.look_at_arming(number == named);
  }
}

void Execution::look_at_record(QueuePair& qp) {
  qp.owed = false;
  if (!qp.reachable || qp.facts.send_blocks == 0) return;
  (void)follow_record(around_, qp.facts.record + kSendWord, 16,
                      qp.facts.send_blocks - (qp.rung - qp.fetched), qp.rung);
}

}  // namespace twinpath::soft::mlx5
