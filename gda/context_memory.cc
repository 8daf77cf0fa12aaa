// See context_memory.h.
#include "gda/context_memory.h"

#include <cstddef>
#include <cstring>

#include "gda/abi.h"
#include "gda/cqe.h"
#include "gda/host_device.h"
#include "gda/producer.h"
#include "gda/signal_release.h"

namespace twinpath::gda {
namespace {

constexpr std::size_t kLine = 64;
std::size_t round_up(std::size_t n) { return (n + kLine - 1) / kLine * kLine; }

static_assert(offsetof(DeviceQp28, cq) + offsetof(DeviceCq, consumed) ==
              offsetof(DeviceQp30, cq) + offsetof(DeviceCq30, consumed));

}  // namespace

struct ContextMemory::Layout {
  std::size_t qp_bytes = 0, context_bytes = 0;
  std::size_t queues = 0, companions = 0, contexts = 0;
  std::size_t signal_keys = 0, counter_keys = 0;
  std::size_t gets = 0;  // last_issued_get, then last_visible_get, of each context
  std::size_t end = 0;
};

ContextMemory::Layout ContextMemory::layout() const {
  Layout l;
  l.qp_bytes = shape_.layout == DeviceLayout::v2_28 ? sizeof(DeviceQp28) : sizeof(DeviceQp30);
  l.context_bytes =
      shape_.layout == DeviceLayout::v2_30_88 ? sizeof(DeviceContext88) : sizeof(DeviceContext72);
  const std::size_t keys = static_cast<std::size_t>(shape_.ranks) * sizeof(std::uint32_t);
  l.companions = l.queues + round_up(shape_.pairs() * l.qp_bytes);
  l.contexts = l.companions + round_up((shape_.queues() - shape_.pairs()) * l.qp_bytes);
  l.signal_keys = l.contexts + round_up(contexts() * l.context_bytes);
  l.counter_keys = l.signal_keys + round_up(keys);
  l.gets = l.counter_keys + round_up(keys);
  l.end = l.gets + 2 * shape_.pairs() * sizeof(std::uint64_t);
  return l;
}

// One more word: what KernelRelease copies from.
std::size_t ContextMemory::bells_bytes() const { return round_up((shape_.queues() + 1) * 8); }

Result<std::unique_ptr<ContextMemory>> ContextMemory::make(int gpu, const ContextShape& shape,
                                                           bool share) {
  std::unique_ptr<ContextMemory> memory(new ContextMemory(shape));
  const std::size_t cqs = shape.queues() * memory->queue_bytes();
  const std::size_t queues = memory->bells_bytes() + (shape.gpu_cqs ? cqs : 2 * cqs);
  const std::size_t tables = memory->signals_bytes() + memory->counters_bytes() + kLine +
                             shape.pairs() * shape.depth * kScratchSlot + memory->inbox_bytes();
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
       {Part{memory->queues_, Place::shared, queues}, Part{memory->tables_, Place::shared, tables},
        Part{memory->device_, Place::gpu, memory->layout().end}}) {
    if (part.block != nullptr) continue;
    auto block = DeviceBlock::make(gpu, part.place, part.bytes);
    if (!block) return block.status();
    part.block = std::move(block).take();
  }
  if (shape.gpu_cqs) {
    auto block = DeviceBlock::make(gpu, Place::gpu, cqs);
    if (!block) return block.status();
    memory->cqs_ = std::move(block).take();
  }
  return memory;
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
std::uint64_t ContextMemory::cq_address(std::size_t queue) const {
  if (cqs_ != nullptr) return cqs_->device_address() + queue * queue_bytes();
  return std::uint64_t{reinterpret_cast<std::uintptr_t>(cq(queue))};  // one address for both sides
}

Status ContextMemory::fill_cqs() {
  if (cqs_ == nullptr) return Status::ok;
  const std::vector<std::uint8_t> fill(queue_bytes(), kCqeFill);
  for (std::size_t q = 0; q < shape_.queues(); ++q)
    TP_TRY(cqs_->copy_in(q * queue_bytes(), fill.data(), fill.size()));
  return Status::ok;
}

void ContextMemory::release_waiters() const {
  gda::release_waiters(reinterpret_cast<std::uint64_t*>(tables_->host()),
                       (shape_.signals + shape_.counters) * contexts());
}

void ContextMemory::free_gpu_memory() {
  device_.reset();
  cqs_.reset();
}

// Shared memory has one address for both sides.
std::uint64_t ContextMemory::signals_address() const { return tables_->device_address(); }
std::uint64_t ContextMemory::counters_address() const {
  return signals_address() + signals_bytes();
}
std::uint64_t ContextMemory::sink_address() const { return counters_address() + counters_bytes(); }

std::uint64_t ContextMemory::inbox_address() const {
  return sink_address() + kLine + shape_.pairs() * shape_.depth * kScratchSlot;
}

std::uint8_t* ContextMemory::scratch(std::size_t pair) const {
  return tables_->host() + (sink_address() - signals_address()) + kLine +
         pair * shape_.depth * kScratchSlot;
}

std::uint64_t ContextMemory::device_handle() const {
  return device_->device_address() + layout().contexts;
}

std::vector<std::size_t> ContextMemory::consumed_offsets() const {
  const Layout l = layout();
  std::vector<std::size_t> out;
  for (std::size_t q = 0; q < shape_.queues(); ++q) {
    const bool companion = q >= shape_.pairs();
    out.push_back(
        (companion ? l.companions + (q - shape_.pairs()) * l.qp_bytes : l.queues + q * l.qp_bytes) +
        offsetof(DeviceQp28, cq) + offsetof(DeviceCq, consumed));
  }
  return out;
}

template <class Qp>
void ContextMemory::fill_queues(std::uint8_t* to, const ContextNumbers& numbers,
                                const std::vector<bool>& used) const {
  const Layout l = layout();
  for (std::size_t q = 0; q < shape_.queues(); ++q) {
    const std::size_t pair = q % shape_.pairs();
    if (!used[pair % static_cast<std::size_t>(shape_.ranks)]) continue;
    const auto number = numbers.first_queue + static_cast<std::uint32_t>(q);
    const auto address = [](const void* p) {
      return std::uint64_t{reinterpret_cast<std::uintptr_t>(p)};
    };
    const Qp qp = make_device_qp<Qp>(number, number, shape_.depth, address(sq(q)), cq_address(q),
                                     address(doorbell(q)), 0);
    std::memcpy(to + (q < shape_.pairs() ? l.queues : l.companions) + pair * sizeof(Qp), &qp,
                sizeof qp);
  }
}

Status ContextMemory::fill(const ContextNumbers& numbers, const std::vector<bool>& used) {
  const Layout l = layout();
  const std::uint64_t base = device_->device_address();
  std::vector<std::uint8_t> image(l.end);
  if (shape_.layout == DeviceLayout::v2_28) {
    fill_queues<DeviceQp28>(image.data(), numbers, used);
  } else {
    fill_queues<DeviceQp30>(image.data(), numbers, used);
  }
  for (int r = 0; r < shape_.ranks; ++r) {
    const std::size_t at = static_cast<std::size_t>(r) * sizeof(std::uint32_t);
    const std::uint32_t signals = swap32(numbers.signals_key);
    const std::uint32_t counters = swap32(numbers.counters_key);
    std::memcpy(image.data() + l.signal_keys + at, &signals, sizeof signals);
    std::memcpy(image.data() + l.counter_keys + at, &counters, sizeof counters);
  }
  const auto ranks = static_cast<std::uint64_t>(shape_.ranks);
  for (std::uint64_t c = 0; c < contexts(); ++c) {
    DeviceContext88 context{};  // the 72-byte one is its beginning
    static_assert(offsetof(DeviceContext88, sink_lkey_be) ==
                  offsetof(DeviceContext72, sink_lkey_be));
    context.queues = base + l.queues + c * ranks * l.qp_bytes;
    if (shape_.counters != 0) context.companions = base + l.companions + c * ranks * l.qp_bytes;
    context.signals = {signals_address() + c * shape_.signals * 8, base + l.signal_keys,
                       swap32(numbers.signals_key), static_cast<std::uint32_t>(c * shape_.signals)};
    context.counters = {counters_address() + c * shape_.counters * 8, base + l.counter_keys,
                        swap32(numbers.counters_key),
                        static_cast<std::uint32_t>(c * shape_.counters)};
    context.sink_lkey_be = swap32(numbers.sink_key);
    context.last_issued_get = base + l.gets + 2 * c * ranks * 8;
    context.last_visible_get = context.last_issued_get + ranks * 8;
    std::memcpy(image.data() + l.contexts + c * l.context_bytes, &context, l.context_bytes);
  }
  return device_->copy_in(0, image.data(), image.size());
}

}  // namespace twinpath::gda
