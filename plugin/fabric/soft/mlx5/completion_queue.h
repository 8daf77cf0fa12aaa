#pragma once
// A completion queue as the device sees it: where the next completion goes, how many the program
// has not taken, and whether it wants to be told of the next.
//
// Threads: one at a time.
#include <cstdint>

#include "plugin/fabric/soft/mlx5/completion.h"
#include "plugin/fabric/soft/mlx5/queues.h"
#include "plugin/fabric/soft/mlx5/surroundings.h"

namespace twinpath::soft::mlx5 {

class CompletionQueue {
 public:
  // `around` outlives it.
  CompletionQueue(const Surroundings& around, const CompletionQueueFacts& facts);

  const CompletionQueueFacts& facts() const { return facts_; }
  // Completions since it was made.
  std::uint64_t written() const { return written_; }

  // Whether a completion is not to be held back.
  bool has_room();
  // Tells who has armed it.  False: it had no place and is lost, as all that follow will be, which
  // is said this once.
  bool write(const Completion& completion);
  // Goes on in other memory; the last entry in the old one says so.  False: what waits has no room
  // there, and nothing is changed.
  bool resize(const CompletionQueueFacts& to);
  // A word came to where it is armed, which named it or another of that page.
  void look_at_arming(bool named);

 private:
  std::uint64_t waiting();
  void arm(std::uint32_t word);
  void notify(bool urgent);

  const Surroundings& around_;
  CompletionQueueFacts facts_;
  std::uint64_t written_ = 0;
  std::uint64_t consumed_ = 0;  // as the program last told
  // As it last stood in the record; the program's first may be that which stood there before.
  std::uint32_t arm_word_ = 0;
  enum class Armed : std::uint8_t { no, urgent, any } armed_ = Armed::no;
  // Completions up to the last that wakes also who waits for solicited ones only.
  std::uint64_t urgent_ = 0;
  bool overflowed_ = false;
};

}  // namespace twinpath::soft::mlx5
