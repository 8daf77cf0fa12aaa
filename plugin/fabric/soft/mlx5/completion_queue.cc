#include "plugin/fabric/soft/mlx5/completion_queue.h"

#include "plugin/fabric/soft/mlx5/memory_access.h"

namespace twinpath::soft::mlx5 {
namespace {

constexpr std::uint32_t kArmWord = 4;  // in the record, behind the consumer index
// What the kernel writes there before anybody has armed the queue.  Programs leave zero, which is
// also what the first to arm writes; then this model writes it for them, before they know of the
// queue.
constexpr std::uint32_t kNeverArmed = 2u << 28;
constexpr std::uint32_t kSolicitedOnly = 1u << 24;

}  // namespace

CompletionQueue::CompletionQueue(const Surroundings& around, const CompletionQueueFacts& facts)
    : around_(around), facts_(facts) {
  const std::uint64_t at = facts_.record + kArmWord;
  if (facts_.notify && read_record(around_, at, arm_word_) && arm_word_ == 0 &&
      write_record(at, kNeverArmed))
    arm_word_ = kNeverArmed;
}

bool CompletionQueue::has_room() {
  if (facts_.ignores_overrun || facts_.collapsed || facts_.overflowed) return true;
  return waiting() >> facts_.log_entries == 0;
}

// Completions that the program has not taken.
std::uint64_t CompletionQueue::waiting() {
  (void)follow_record(around_, facts_.record, 24, written_ - consumed_, consumed_);
  return written_ - consumed_;
}

bool CompletionQueue::write(const Completion& completion) {
  if (overflowed_) return true;
  const bool may_overflow = facts_.overflowed && !facts_.ignores_overrun && !facts_.collapsed;
  overflowed_ = may_overflow && waiting() >> facts_.log_entries != 0;
  if (overflowed_) return false;
  Completion stamped = completion;
  if (around_.clock != nullptr) stamped.time = around_.clock();
  const auto bytes = completion_bytes(stamped, written_, facts_.log_entries);
  const std::uint64_t mask = (std::uint64_t{1} << facts_.log_entries) - 1;
  const std::uint64_t place = facts_.collapsed ? 0 : written_ & mask;
  const std::uint64_t at =
      facts_.address + place * facts_.entry_bytes + facts_.entry_bytes - bytes.size();
  (void)write_entry(around_, at, bytes);  // to memory that is gone: nobody waits there
  ++written_;
  // An error counts as solicited (IB specification vol. 1, 11.4.2.2).
  const bool urgent = completion.solicited || completion.error();
  if (urgent) urgent_ = written_;
  notify(urgent);
  return true;
}

bool CompletionQueue::resize(const CompletionQueueFacts& to) {
  const std::uint64_t waits = waiting();
  // With the entry that says so.
  if (waits >> facts_.log_entries != 0 || (waits + 1) >> to.log_entries != 0) return false;
  Completion last;
  last.kind = CompletionKind::resized;
  (void)write(last);
  facts_.address = to.address;
  facts_.log_entries = to.log_entries;
  facts_.entry_bytes = to.entry_bytes;
  return true;
}

// Others of the page may have been named by words that this one has overwritten, and have another
// arm word in their record then.  A queue that was never armed must not be taken for armed: the
// kernel has nobody to call.
void CompletionQueue::look_at_arming(bool named) {
  std::uint32_t told = 0;
  if (!facts_.notify || !read_record(around_, facts_.record + kArmWord, told)) return;
  if (named || (told != arm_word_ && told != kNeverArmed)) arm(told);
}

void CompletionQueue::arm(std::uint32_t word) {
  arm_word_ = word;
  // An arming for any completion is not weakened.
  if ((word & kSolicitedOnly) == 0) {
    armed_ = Armed::any;
  } else if (armed_ == Armed::no) {
    armed_ = Armed::urgent;
  }
  // It tells how far the program has looked: what has come since does not wait for the next.
  consumed_ =
      extend_index(consumed_, word & 0xffffff, 24, written_ - consumed_).value_or(consumed_);
  if (written_ != consumed_) notify(urgent_ > consumed_);
}

void CompletionQueue::notify(bool urgent) {
  if (armed_ == Armed::no || (armed_ == Armed::urgent && !urgent)) return;
  armed_ = Armed::no;
  facts_.notify(facts_.number);
}

}  // namespace twinpath::soft::mlx5
