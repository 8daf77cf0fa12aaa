// See context_memory.h.
#include "gda/context/context_memory.h"

#include <cstring>

#include "gda/abi/cqe.h"
#include "gda/memory/signal_release.h"
#include "plugin/base/log.h"
#include "plugin/base/page_size.h"

namespace twinpath::gda {
namespace {

constexpr std::size_t kLine = 64;
constexpr std::int64_t kStopLimit = 2'000'000'000;  // a copy that takes longer does not end
std::size_t round_up(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }

}  // namespace

// One more word: what KernelRelease copies from.
std::size_t ContextMemory::bells_bytes() const {
  return round_up((shape_.queues() + 1) * 8, kLine);
}

std::size_t ContextMemory::part(std::size_t bytes) const {
  return shape_.adapter ? round_up(bytes, page_size()) : bytes;
}

std::size_t ContextMemory::tables_size() const {
  const std::size_t signals = signals_ != nullptr ? 0 : part(signals_bytes());
  const std::size_t words = signals + part(counters_bytes()) + part(kLine);
  return shape_.adapter ? words
                        : words + shape_.pairs() * shape_.depth * kScratchSlot + inbox_bytes();
}

Result<std::unique_ptr<ContextMemory>> ContextMemory::make(int gpu, const ContextShape& shape,
                                                           bool share,
                                                           std::unique_ptr<DeviceBlock> signals) {
  std::unique_ptr<ContextMemory> memory(new ContextMemory(shape));
  memory->signals_ = std::move(signals);
  const std::size_t cqs = shape.queues() * memory->queue_bytes();
  std::size_t queues = memory->bells_bytes();
  if (!shape.adapter) queues += shape.gpu_cqs ? cqs : 2 * cqs;
  const std::size_t tables = memory->tables_size();
  memory->offer_ = own_offer();
  if (share) {
    if (auto shared = SharedTables::make(gpu, tables)) {
      memory->offer_ = (*shared)->offer();
      memory->tables_ = std::move(shared).take();
    }
  }
  struct Part {
    std::unique_ptr<DeviceBlock>& block;
    Place place;
    std::size_t bytes;
  };
  for (const Part& part :
       {Part{memory->queues_, Place::shared, queues},
        Part{memory->tables_, shape.adapter ? Place::gpu : Place::shared, tables},
        Part{memory->device_, Place::gpu, memory->image_.bytes()}}) {
    if (part.block != nullptr) continue;
    auto block = DeviceBlock::make(gpu, part.place, part.bytes);
    if (!block) return block.status();
    part.block = std::move(block).take();
  }
  // What of the words the CPU does not reach.
  const bool apart = memory->gpu_signals();
  if (apart || memory->tables_->host() == nullptr) {
    auto release = TableRelease::make(
        gpu, apart ? *memory->signals_ : *memory->tables_,
        apart ? static_cast<std::size_t>(memory->signals_bytes()) : memory->words_bytes());
    if (!release) return release.status();
    memory->table_release_ = std::move(release).take();
  }
  const auto words_of = [](const DeviceBlock& block, std::size_t bytes) {
    auto* const first = reinterpret_cast<std::uint64_t*>(block.host());
    return std::span(first, first == nullptr ? 0 : bytes / sizeof(std::uint64_t));
  };
  memory->host_words_ = words_of(*memory->tables_, memory->words_bytes());
  if (memory->signals_ != nullptr)
    memory->host_signals_ =
        words_of(*memory->signals_, static_cast<std::size_t>(memory->signals_bytes()));
  if (shape.gpu_cqs && !shape.adapter) TP_TRY(memory->place_cqs(gpu));
  return memory;
}

Status ContextMemory::place_cqs(int gpu) {
  const std::size_t bytes = shape_.queues() * queue_bytes();
  // GDRCopy maps pages of the GPU, which nothing else may lie on.
  const std::size_t room =
      shape_.gdrcopy ? gpu::gdr_page_end(bytes) + std::size_t{gpu::kGdrPage} : bytes;
  auto block = DeviceBlock::make(gpu, Place::gpu, room);
  if (!block) return block.status();
  cqs_ = std::move(block).take();
  if (cqs_->host() != nullptr) return Status::ok;
  if (shape_.gdrcopy) {
    const std::uint64_t begin = gpu::gdr_page_end(cqs_->device_address());
    cqs_at_ = begin - cqs_->device_address();
    std::string said;
    cqs_mapping_ = gpu::GdrMapping::map(begin, bytes, said);
    TP_INFO(net, "GPU %d: completions go to its memory %s: %s", gpu,
            cqs_mapping_ != nullptr ? "through GDRCopy" : "by copies, not through GDRCopy",
            said.c_str());
    if (cqs_mapping_ != nullptr) return Status::ok;
  }
  auto reach = reach_block(gpu, *cqs_);
  if (!reach) return reach.status();
  cqs_reach_ = std::move(reach).take();
  return Status::ok;
}

std::uint64_t* ContextMemory::doorbell(std::size_t queue) const {
  return reinterpret_cast<std::uint64_t*>(queues_->host()) + queue;
}
std::uint64_t* ContextMemory::release_source() const { return doorbell(shape_.queues()); }

std::uint8_t* ContextMemory::sq(std::size_t queue) const {
  return queues_->host() + bells_bytes() + queue * queue_bytes();
}
std::uint8_t* ContextMemory::cq(std::size_t queue) const {
  if (cqs_ == nullptr) return sq(shape_.queues() + queue);
  return cqs_->host() == nullptr ? nullptr : cqs_->host() + queue * queue_bytes();
}
std::uint8_t* ContextMemory::cq_mapping(std::size_t queue) const {
  return cqs_mapping_ == nullptr ? nullptr : cqs_mapping_->data() + queue * queue_bytes();
}
std::uint64_t ContextMemory::cq_address(std::size_t queue) const {
  if (cqs_ != nullptr) return cqs_->device_address() + cqs_at_ + queue * queue_bytes();
  return std::uint64_t{reinterpret_cast<std::uintptr_t>(cq(queue))};  // one address for both sides
}

Status ContextMemory::fill_cqs() {
  if (cqs_ == nullptr) return Status::ok;
  const std::vector<std::uint8_t> fill(queue_bytes(), kCqeFill);
  for (std::size_t q = 0; q < shape_.queues(); ++q)
    TP_TRY(cqs_->copy_in(cqs_at_ + q * queue_bytes(), fill.data(), fill.size()));
  return Status::ok;
}

void ContextMemory::release_waiters() const {
  if (table_release_ != nullptr) table_release_->begin();
  for (const std::span<std::uint64_t> words : {host_signals_, host_words_})
    gda::release_waiters(words.data(), words.size());
}

void ContextMemory::free_gpu_memory() {
  device_.reset();
  cqs_reach_.reset();
  cqs_mapping_.reset();
  cqs_.reset();
  if (table_release_ == nullptr) return;
  // No kernel runs any more, so nobody waits for their words.
  std::unique_ptr<DeviceBlock>& released = gpu_signals() ? signals_ : tables_;
  if (table_release_->stop(kStopLimit)) {
    released.reset();
  } else {
    (void)released.release();
    (void)table_release_.release();
  }
}

// Shared memory has one address for both sides.
std::uint64_t ContextMemory::signals_address() const {
  return (signals_ != nullptr ? signals_ : tables_)->device_address();
}
std::uint64_t ContextMemory::counters_address() const {
  return tables_->device_address() + (signals_ != nullptr ? 0 : part(signals_bytes()));
}
std::uint64_t ContextMemory::tables_end() const {
  return counters_address() + part(counters_bytes());
}
std::uint64_t ContextMemory::inbox_address() const {
  return tables_end() + kLine + shape_.pairs() * shape_.depth * kScratchSlot;
}

std::uint8_t* ContextMemory::scratch(std::size_t pair) const {
  return tables_->host() + words_bytes() + kLine + pair * shape_.depth * kScratchSlot;
}

DeviceQueue ContextMemory::device_queue(std::size_t queue, std::uint32_t number) const {
  DeviceQueue out;
  out.used = true;
  out.qpn = out.cqn = number;
  out.sq = reinterpret_cast<std::uintptr_t>(sq(queue));
  out.cqes = cq_address(queue);
  out.doorbell = reinterpret_cast<std::uintptr_t>(doorbell(queue));
  return out;
}

Status ContextMemory::fill(std::span<const DeviceQueue> queues, const DeviceKeys& keys) {
  const auto image =
      image_.fill(device_->device_address(), queues, keys, {signals_address(), counters_address()});
  return device_->copy_in(0, image.data(), image.size());
}

}  // namespace twinpath::gda
