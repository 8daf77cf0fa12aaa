// See device_image.h.
#include "gda/context/device_image.h"

#include <cstddef>
#include <cstring>

#include "gda/abi/host_device.h"
#include "gda/abi/producer.h"

namespace twinpath::gda {
namespace {

constexpr std::size_t kCacheLine = 64;
std::size_t lines(std::size_t n) { return (n + kCacheLine - 1) / kCacheLine * kCacheLine; }

static_assert(offsetof(DeviceQp28, cq) + offsetof(DeviceCq, consumed) ==
              offsetof(DeviceQp30, cq) + offsetof(DeviceCq30, consumed));

}  // namespace

DeviceImage::DeviceImage(const ContextShape& shape) : shape_(shape) {
  const auto contexts = static_cast<std::size_t>(shape.contexts);
  const std::size_t keys = static_cast<std::size_t>(shape.ranks) * sizeof(std::uint32_t);
  qp_bytes_ = shape.layout == DeviceLayout::v2_28 ? sizeof(DeviceQp28) : sizeof(DeviceQp30);
  context_bytes_ =
      shape.layout == DeviceLayout::v2_30_88 ? sizeof(DeviceContext88) : sizeof(DeviceContext72);
  companions_ = lines(shape.pairs() * qp_bytes_);
  contexts_ = companions_ + lines((shape.queues() - shape.pairs()) * qp_bytes_);
  signal_keys_ = contexts_ + lines(contexts * context_bytes_);
  counter_keys_ = signal_keys_ + lines(keys);
  gets_ = counter_keys_ + lines(keys);
  end_ = gets_ + 2 * shape.pairs() * sizeof(std::uint64_t);
}

std::size_t DeviceImage::offset_of(std::size_t queue) const {
  return queue < shape_.pairs() ? queue * qp_bytes_
                                : companions_ + (queue - shape_.pairs()) * qp_bytes_;
}

std::vector<std::size_t> DeviceImage::consumed_offsets() const {
  std::vector<std::size_t> out;
  for (std::size_t q = 0; q < shape_.queues(); ++q)
    out.push_back(offset_of(q) + offsetof(DeviceQp28, cq) + offsetof(DeviceCq, consumed));
  return out;
}

template <class Qp>
void DeviceImage::fill_queues(std::uint8_t* to, std::span<const DeviceQueue> queues) const {
  for (std::size_t q = 0; q < queues.size(); ++q) {
    const DeviceQueue& queue = queues[q];
    if (!queue.used) continue;
    const Qp qp = make_device_qp<Qp>(queue.qpn, queue.cqn, shape_.depth, queue.sq, queue.cqes,
                                     queue.doorbell, queue.record, queue.handler);
    std::memcpy(to + offset_of(q), &qp, sizeof qp);
  }
}

std::vector<std::uint8_t> DeviceImage::fill(std::uint64_t base, std::span<const DeviceQueue> queues,
                                            const DeviceKeys& keys,
                                            const DeviceTables& tables) const {
  std::vector<std::uint8_t> image(end_);
  if (shape_.layout == DeviceLayout::v2_28) {
    fill_queues<DeviceQp28>(image.data(), queues);
  } else {
    fill_queues<DeviceQp30>(image.data(), queues);
  }
  const auto ranks = static_cast<std::size_t>(shape_.ranks);
  for (std::size_t r = 0; r < ranks; ++r) {
    const std::size_t at = r * sizeof(std::uint32_t);
    const std::uint32_t signals = swap32(keys.signals_there[r]);
    const std::uint32_t counters = swap32(keys.counters_here);
    std::memcpy(image.data() + signal_keys_ + at, &signals, sizeof signals);
    std::memcpy(image.data() + counter_keys_ + at, &counters, sizeof counters);
  }
  for (std::uint64_t c = 0; c < static_cast<std::uint64_t>(shape_.contexts); ++c) {
    DeviceContext88 context{};  // the 72-byte one is its beginning
    static_assert(offsetof(DeviceContext88, sink_lkey_be) ==
                  offsetof(DeviceContext72, sink_lkey_be));
    context.queues = base + c * ranks * qp_bytes_;
    if (shape_.counters != 0) context.companions = base + companions_ + c * ranks * qp_bytes_;
    context.signals = {tables.signals + c * shape_.signals * 8, base + signal_keys_,
                       swap32(keys.signals), static_cast<std::uint32_t>(c * shape_.signals)};
    context.counters = {tables.counters + c * shape_.counters * 8, base + counter_keys_,
                        swap32(keys.counters), static_cast<std::uint32_t>(c * shape_.counters)};
    context.sink_lkey_be = swap32(keys.sink);
    // GPUs before Hopper, and adapters with two ways to the GPU, show data of gets no sooner; where
    // it is not needed it costs a work request a flush, as it did before there was a choice.
    if (shape_.layout == DeviceLayout::v2_30_88) context.reads_sink = 1;
    context.last_issued_get = base + gets_ + 2 * c * ranks * 8;
    context.last_visible_get = context.last_issued_get + ranks * 8;
    std::memcpy(image.data() + contexts_ + c * context_bytes_, &context, context_bytes_);
  }
  return image;
}

}  // namespace twinpath::gda
