#pragma once
// One or more queues with their memory, a back end that records and completes on command, and keys
// for two windows: what the tests of the front end share.
#include <atomic>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "gda/abi/abi.h"
#include "gda/abi/cqe.h"
#include "gda/abi/producer.h"
#include "gda/served/front/host_cq.h"
#include "gda/served/front/key_table.h"
#include "gda/served/front/work_queue.h"

namespace twinpath::gda {

inline constexpr std::uint64_t kPoison = 0x9d3c5a7e1b2f4861u;
inline constexpr std::uint64_t kLocalAt = 0x100000;   // of the windows, as the fabric sees them
inline constexpr std::uint64_t kRemoteAt = 0x900000;  // of rank 1
inline constexpr std::uint64_t kWindowBytes = 0x10000;

// Accepts everything (or `room` operations) and remembers it.
class RecordingBackEnd final : public BackEnd {
 public:
  struct Seen {
    std::uint64_t index;
    Operation operation;
  };
  Issued issue(std::uint64_t index, const Operation& operation) override {
    ++offers;
    if (refuse) return Issued::failed;
    if (room == 0) return Issued::full;
    --room;
    seen.push_back({index, operation});
    return Issued::accepted;
  }
  void flush() override { ++flushes; }

  std::deque<Seen> seen;
  std::uint64_t room = ~std::uint64_t{0};
  bool refuse = false;
  int offers = 0;
  int flushes = 0;
};

struct Rig;

struct Queue {
  Queue(Rig& rig, std::uint32_t qpn, std::uint32_t depth, BackEnd& back_end, DoorbellKind kind,
        std::int64_t patience_ns, std::uint64_t first);

  // Writes at the next index and rings.
  std::uint64_t post(const std::function<Wqe(std::uint64_t index)>& make) {
    Producer<DeviceQp28> producer(device);
    std::uint64_t first = 0;
    (void)producer.reserve(1, first);
    producer.write(first, make(first));
    (void)producer.submit(first, 1);
    return first;
  }
  const CqeBytes& cqe(std::uint64_t index) const {
    return *reinterpret_cast<const CqeBytes*>(cqes + index % depth * kCqeBytes);
  }
  std::uint32_t last_dword(std::uint64_t index) const {
    std::uint32_t value = 0;
    std::memcpy(&value, cqe(index) + 60, sizeof value);
    return value;
  }
  // Syndrome of a finished WQE; `none` for success; 0xff while there is no CQE.
  Syndrome result(std::uint64_t index) const {
    const std::uint32_t last = last_dword(index);
    if (cqe_opcode(last) == CqeOpcode::invalid || !cqe_is_of_lap(last, index, depth) ||
        cqe_counter(last) != (index & 0xffff))
      return static_cast<Syndrome>(0xff);
    return cqe_opcode(last) == CqeOpcode::error ? cqe_syndrome(cqe(index)) : Syndrome::none;
  }
  void raw_doorbell(std::uint64_t value) {
    std::atomic_ref<std::uint64_t>(*doorbell).store(value, std::memory_order_release);
  }

  const std::uint32_t depth;
  std::unique_ptr<std::uint8_t[]> memory;
  std::uint8_t* sq;
  std::uint8_t* cqes;
  std::uint64_t* doorbell;
  std::uint32_t* dbrec;
  DeviceQp28 device;
  std::unique_ptr<HostCq> cq;
  std::unique_ptr<WorkQueue> front;
};

struct Rig {
  Rig() : keys(2) {
    const std::uint32_t all = kLocalRead | kLocalWrite | kRemoteWrite | kRemoteRead | kRemoteAtomic;
    data = add(kWindowBytes, all & ~kRemoteAtomic);
    table = add(4096, kRemoteAtomic);
    sink = add(8, kLocalRead | kLocalWrite);
    read_only = add(kWindowBytes, kLocalRead | kRemoteRead);
  }
  std::uint32_t add(std::uint64_t bytes, std::uint32_t rights) {
    const KeyedMemory local{kLocalAt, bytes, 71};
    const KeyedMemory remote[2] = {{kLocalAt, bytes, 72}, {kRemoteAt, bytes, 73}};
    return *keys.add(local, remote, rights);
  }
  Queue& make(std::uint32_t depth = 16, BackEnd* other = nullptr,
              DoorbellKind kind = DoorbellKind::count, std::int64_t patience_ns = 0,
              std::uint64_t first = 0) {
    const auto qpn = static_cast<std::uint32_t>(0x100 + queues.size());
    queues.push_back(std::make_unique<Queue>(
        *this, qpn, depth, other != nullptr ? *other : back_end, kind, patience_ns, first));
    return *queues.back();
  }
  static std::uint32_t cqn_of(const Queue& queue) { return queue.device.cq.number; }

  KeyTable keys;
  RecordingBackEnd back_end;
  std::int64_t data_patience_ns = -1;  // of queues made from now on; below 0: as the other
  std::uint32_t data, table, sink, read_only;
  std::vector<std::unique_ptr<Queue>> queues;
};

inline Queue::Queue(Rig& rig, std::uint32_t qpn, std::uint32_t queue_depth, BackEnd& back_end,
                    DoorbellKind kind, std::int64_t patience_ns, std::uint64_t first)
    : depth(queue_depth), memory(std::make_unique<std::uint8_t[]>(depth * 128 + 192)) {
  const auto address = (reinterpret_cast<std::uintptr_t>(memory.get()) + 63) & ~std::uintptr_t{63};
  sq = reinterpret_cast<std::uint8_t*>(address);
  cqes = sq + std::size_t{depth} * 64;
  doorbell = reinterpret_cast<std::uint64_t*>(cqes + std::size_t{depth} * 64);
  dbrec = reinterpret_cast<std::uint32_t*>(doorbell + 1);
  const std::uint32_t cqn = qpn + 0x1000;
  device = make_device_qp<DeviceQp28>(
      qpn, cqn, depth, address, address + std::uint64_t{depth} * 64,
      reinterpret_cast<std::uintptr_t>(doorbell), reinterpret_cast<std::uintptr_t>(dbrec),
      kind == DoorbellKind::adapter ? NicHandler::gpu_sm_db : NicHandler::cpu_proxy,
      DeviceMemoryType::host);
  cq = std::make_unique<HostCq>(cqes, depth);
  WorkQueueSetup setup;
  setup.qpn = qpn;
  setup.cqn = cqn;
  setup.depth = depth;
  setup.sq = sq;
  setup.doorbell = doorbell;
  setup.doorbell_kind = kind;
  setup.keys = &rig.keys;
  setup.peer = 1;
  setup.poison = kPoison;
  setup.patience_ns = patience_ns;
  setup.data_patience_ns = rig.data_patience_ns < 0 ? patience_ns : rig.data_patience_ns;
  setup.first = device.reserved = device.ready = device.rung = device.cq.consumed = first;
  *doorbell = kind == DoorbellKind::count ? first : 0;
  front = std::make_unique<WorkQueue>(setup, back_end, *cq,
                                      [&rig](std::uint32_t wanted) -> const WorkQueue* {
                                        for (const auto& queue : rig.queues)
                                          if (queue->device.cq.number == wanted)
                                            return queue->front.get();
                                        return nullptr;
                                      });
}

}  // namespace twinpath::gda
