#pragma once
// The queue pairs of a process and their numbers: the process's slot above, an index below.
//
// Threads: whoever holds Hca::lock_.
#include <cstdint>
#include <vector>

#include "plugin/fabric/soft/board.h"
#include "plugin/fabric/soft/objects.h"

namespace twinpath::soft {

inline constexpr std::uint32_t kSlotShift = kQpIndexBits;  // QPN = slot:10 | index:14
inline constexpr std::uint32_t kSlots = 1u << 10;

class QpTable {
 public:
  // Gives it a number, which no other has; false: none is left.
  bool add(SoftQp& qp, std::uint32_t slot) {
    // Numbers go round, so that a late packet for a destroyed QP does not meet its successor.
    for (std::uint32_t i = 0; i < kQpsPerProcess; ++i) {
      const std::uint32_t index = next_++ % kQpsPerProcess;
      const std::uint32_t number = (slot << kSlotShift) | index;
      if (number < 16 || by_index_[index] != nullptr) continue;  // 0 and 1 are the management QPs
      qp.qp_num = number;
      by_index_[index] = &qp;
      live_.push_back(&qp);
      return true;
    }
    return false;
  }
  void remove(SoftQp& qp) {
    by_index_[qp.qp_num % kQpsPerProcess] = nullptr;
    std::erase(live_, &qp);
  }
  // Null: there is none of that number, or it is another process's.
  SoftQp* find(std::uint32_t number) const {
    SoftQp* qp = by_index_[number % kQpsPerProcess];
    return qp != nullptr && qp->qp_num == number ? qp : nullptr;
  }
  const std::vector<SoftQp*>& live() const { return live_; }
  // By the lower part of their numbers; null where there is none.
  const std::vector<SoftQp*>& by_index() const { return by_index_; }

 private:
  std::vector<SoftQp*> by_index_ = std::vector<SoftQp*>(kQpsPerProcess, nullptr);
  std::vector<SoftQp*> live_;
  std::uint32_t next_ = 0;
};

}  // namespace twinpath::soft
