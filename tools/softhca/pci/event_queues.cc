#include "tools/softhca/pci/event_queues.h"

#include <algorithm>
#include <atomic>
#include <cstring>

namespace twinpath::softhca::pci {
namespace {

using mlx5::Field;
using mlx5::get;
using mlx5::Refusal;

constexpr std::size_t kEntryBytes = 64;
constexpr std::size_t kTypeByte = 1, kKindByte = 3, kData = 32, kOwnerByte = 63;
constexpr Field kLogSize = Field{99, 5}.at(16), kVector = Field{180, 12}.at(16);
constexpr Field kLogPageBytes = Field{195, 5}.at(16), kMask{704, 64};
constexpr unsigned kLogLongest = 20;

}  // namespace

Refusal EventQueues::make(std::uint32_t eqn, Bytes in) {
  Queue made;
  made.log_entries = static_cast<unsigned>(get(in, kLogSize));
  made.vector = static_cast<unsigned>(get(in, kVector));
  made.mask = get(in, kMask);
  if (made.vector >= vectors_) return Refusal::no_vector;
  made.page_bytes = kGuestPage << get(in, kLogPageBytes);
  for (const std::uint64_t page : page_list(in, kPageListAt)) {
    made.pages.push_back(memory_.at(page, made.page_bytes));
    if (made.pages.back() == nullptr) return Refusal::no_page;
  }
  if (made.log_entries > kLogLongest ||
      made.pages.size() * made.page_bytes < kEntryBytes << made.log_entries)
    return Refusal::eq_size;
  const std::lock_guard hold(lock_);
  queues_[eqn] = std::move(made);
  return Refusal::none;
}

void EventQueues::destroy(std::uint32_t eqn) {
  const std::lock_guard hold(lock_);
  queues_.erase(eqn);
}

void EventQueues::clear() {
  const std::lock_guard hold(lock_);
  queues_.clear();
}

bool EventQueues::takes(Event event) const {
  const std::lock_guard hold(lock_);
  return std::any_of(queues_.begin(), queues_.end(), [&](const auto& queue) {
    return (queue.second.mask >> static_cast<unsigned>(event) & 1) != 0;
  });
}

bool EventQueues::tell(Event event, std::uint8_t kind, std::span<const std::uint8_t> data) {
  const std::lock_guard hold(lock_);
  bool told = false;
  for (auto& [eqn, queue] : queues_) {
    if ((queue.mask >> static_cast<unsigned>(event) & 1) == 0) continue;
    write(queue, event, kind, data);
    told = true;
  }
  return told;
}

void EventQueues::tell_of_queue(Event event, std::uint32_t number) {
  std::array<std::uint8_t, 28> data{};
  mlx5::set(data, {200, 24}, number);
  (void)tell(event, 0, data);
}

void EventQueues::tell_of_overflow(std::uint32_t cqn) {
  constexpr std::uint64_t kOverrun = 1;
  std::array<std::uint8_t, 12> data{};
  mlx5::set(data, {8, 24}, cqn);
  mlx5::set(data, {88, 8}, kOverrun);
  (void)tell(Event::completions_lost, 0, data);
}

void EventQueues::tell_completion(std::uint32_t eqn, std::uint32_t cqn) {
  const std::lock_guard hold(lock_);
  auto it = queues_.find(eqn);
  if (it == queues_.end()) return;
  std::array<std::uint8_t, 28> data{};
  mlx5::set(data, {200, 24}, cqn);
  write(it->second, Event::completion, 0, data);
}

void EventQueues::write(Queue& queue, Event event, std::uint8_t kind,
                        std::span<const std::uint8_t> data) {
  const std::uint64_t mask = (std::uint64_t{1} << queue.log_entries) - 1;
  const std::uint64_t at = (queue.written & mask) * kEntryBytes;
  std::uint8_t* const entry = queue.pages[at / queue.page_bytes] + at % queue.page_bytes;
  std::array<std::uint8_t, kEntryBytes> bytes{};
  bytes[kTypeByte] = static_cast<std::uint8_t>(event);
  bytes[kKindByte] = kind;
  std::copy_n(data.begin(), std::min(data.size(), kOwnerByte - kData), bytes.begin() + kData);
  std::memcpy(entry, bytes.data(), kOwnerByte);
  // Release: the driver takes an entry whose lowest bit of the last byte tells this lap.
  std::atomic_ref<std::uint8_t>(entry[kOwnerByte])
      .store(static_cast<std::uint8_t>(queue.written >> queue.log_entries & 1),
             std::memory_order_release);
  ++queue.written;
  interrupt_(queue.vector);
}

}  // namespace twinpath::softhca::pci
