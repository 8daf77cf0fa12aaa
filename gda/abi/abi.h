#pragma once
// Structures that NCCL's GIN kernels (device type GDAKI) read, in the layouts those kernels were
// compiled with.  We fill them; device code follows their pointers.  Two generations exist: NCCL
// 2.28.7 to 2.29.x, and 2.30.3 on.
//
// Pointers are addresses as device code sees them, kept as numbers: the CPU must not follow them,
// except where a CPU thread plays the GPU (producer.h).  Names ending in _be hold big-endian
// values.
#include <cstddef>
#include <cstdint>

namespace twinpath::gda {

// DeviceQp*::nic_handler.  Kernels take 2 (and, from 2.30, 10) for an adapter's doorbell and
// everything else for a word in memory.
enum class NicHandler : std::uint32_t {
  cpu_proxy = 1,    // doorbell: 64-bit count, host order, only ever raised
  gpu_sm_db = 2,    // doorbell: what an adapter's register takes; rung twice, DBR in between
  gpu_no_dbr = 10,  // 2.30: the same, once, and no DBR
};

enum class DeviceMemoryType : std::uint32_t { any = 0, host = 1, gpu = 2 };

struct DeviceCq {
  std::uint64_t cqes;          // address of CQE 0
  std::uint32_t number;        // CQN; WAIT names it
  std::uint32_t depth;         // power of two; kernels rely on its being the SQ's
  std::uint64_t dbrec;         // never written
  std::uint64_t consumed;      // kept by kernels: all CQEs before it have been seen
  std::uint32_t mask;          // depth - 1
  std::uint8_t log_cqe_bytes;  // 6
  std::uint8_t zero0[3];
  std::uint64_t index_offset;  // 2.30 adds it to every index; 0
  std::uint32_t memory;        // DeviceMemoryType
  std::uint32_t zero1;
};
static_assert(sizeof(DeviceCq) == 56);
static_assert(offsetof(DeviceCq, cqes) == 0);
static_assert(offsetof(DeviceCq, number) == 8);
static_assert(offsetof(DeviceCq, depth) == 12);
static_assert(offsetof(DeviceCq, dbrec) == 16);
static_assert(offsetof(DeviceCq, consumed) == 24);
static_assert(offsetof(DeviceCq, mask) == 32);
static_assert(offsetof(DeviceCq, log_cqe_bytes) == 36);
static_assert(offsetof(DeviceCq, index_offset) == 40);
static_assert(offsetof(DeviceCq, memory) == 48);

struct DeviceCq30 {
  std::uint64_t cqes;
  std::uint32_t number;
  std::uint32_t depth;
  std::uint64_t dbrec;
  std::uint64_t consumed;
  std::uint32_t mask;
  std::uint8_t log_cqe_bytes;
  std::uint8_t zero0[3];
  std::uint64_t index_offset;
  std::uint32_t memory;
  std::uint8_t zero1[12];
};
static_assert(sizeof(DeviceCq30) == 64);
static_assert(offsetof(DeviceCq30, cqes) == 0);
static_assert(offsetof(DeviceCq30, number) == 8);
static_assert(offsetof(DeviceCq30, depth) == 12);
static_assert(offsetof(DeviceCq30, dbrec) == 16);
static_assert(offsetof(DeviceCq30, consumed) == 24);
static_assert(offsetof(DeviceCq30, mask) == 32);
static_assert(offsetof(DeviceCq30, log_cqe_bytes) == 36);
static_assert(offsetof(DeviceCq30, index_offset) == 40);
static_assert(offsetof(DeviceCq30, memory) == 48);

// NCCL 2.28.7 to 2.29.x.  Arrays of them are indexed by the peer's rank.
struct DeviceQp28 {
  std::uint64_t reserved;  // next WQE nobody has asked for
  std::uint64_t ready;     // all WQEs before it are written
  std::uint64_t rung;      // last count rung (adapter doorbells only)
  std::uint32_t qpn;
  std::uint32_t qpn_shift8;
  std::uint32_t qpn_shift8_be;
  std::uint32_t qpn_ds_be[4];  // second dword of a WQE of 1, 2, 3, 4 segments
  std::int32_t lock;
  std::uint16_t depth;  // power of two, at most 32768
  std::uint16_t mask;   // depth - 1
  std::uint32_t zero0;
  std::uint64_t sq;        // address of WQE 0
  std::uint64_t dbrec;     // address of the send half of the doorbell record
  std::uint64_t doorbell;  // address of the doorbell word
  std::uint8_t zero_rq[72];
  DeviceCq cq;
  DeviceCq zero_cq;
  std::uint32_t nic_handler;
  std::uint32_t memory;  // DeviceMemoryType

  static constexpr bool kAddsIndexOffset = false;
};
static_assert(sizeof(DeviceQp28) == 280 && alignof(DeviceQp28) == 8);
static_assert(offsetof(DeviceQp28, reserved) == 0);
static_assert(offsetof(DeviceQp28, ready) == 8);
static_assert(offsetof(DeviceQp28, rung) == 16);
static_assert(offsetof(DeviceQp28, qpn) == 24);
static_assert(offsetof(DeviceQp28, qpn_shift8) == 28);
static_assert(offsetof(DeviceQp28, qpn_shift8_be) == 32);
static_assert(offsetof(DeviceQp28, qpn_ds_be) == 36);
static_assert(offsetof(DeviceQp28, lock) == 52);
static_assert(offsetof(DeviceQp28, depth) == 56);
static_assert(offsetof(DeviceQp28, mask) == 58);
static_assert(offsetof(DeviceQp28, sq) == 64);
static_assert(offsetof(DeviceQp28, dbrec) == 72);
static_assert(offsetof(DeviceQp28, doorbell) == 80);
static_assert(offsetof(DeviceQp28, zero_rq) == 88);
static_assert(offsetof(DeviceQp28, cq) == 160);
static_assert(offsetof(DeviceQp28, zero_cq) == 216);
static_assert(offsetof(DeviceQp28, nic_handler) == 272);
static_assert(offsetof(DeviceQp28, memory) == 276);

// NCCL 2.30.3 on.
struct DeviceQp30 {
  std::uint64_t reserved;
  std::uint64_t ready;
  std::uint64_t rung;
  std::uint32_t qpn;
  std::uint32_t qpn_shift8;
  std::uint32_t qpn_shift8_be;
  std::uint32_t qpn_ds_be[5];
  std::int32_t lock;
  std::uint16_t depth;
  std::uint16_t mask;
  std::uint64_t sq;
  std::uint64_t dbrec;
  std::uint64_t doorbell;
  std::uint8_t zero_rq[72];
  DeviceCq30 cq;
  std::uint8_t zero_cq[64];
  std::uint32_t nic_handler;
  std::uint32_t memory;

  static constexpr bool kAddsIndexOffset = true;
};
static_assert(sizeof(DeviceQp30) == 296 && alignof(DeviceQp30) == 8);
static_assert(offsetof(DeviceQp30, reserved) == 0);
static_assert(offsetof(DeviceQp30, ready) == 8);
static_assert(offsetof(DeviceQp30, rung) == 16);
static_assert(offsetof(DeviceQp30, qpn) == 24);
static_assert(offsetof(DeviceQp30, qpn_shift8) == 28);
static_assert(offsetof(DeviceQp30, qpn_shift8_be) == 32);
static_assert(offsetof(DeviceQp30, qpn_ds_be) == 36);
static_assert(offsetof(DeviceQp30, lock) == 56);
static_assert(offsetof(DeviceQp30, depth) == 60);
static_assert(offsetof(DeviceQp30, mask) == 62);
static_assert(offsetof(DeviceQp30, sq) == 64);
static_assert(offsetof(DeviceQp30, dbrec) == 72);
static_assert(offsetof(DeviceQp30, doorbell) == 80);
static_assert(offsetof(DeviceQp30, zero_rq) == 88);
static_assert(offsetof(DeviceQp30, cq) == 160);
static_assert(offsetof(DeviceQp30, zero_cq) == 224);
static_assert(offsetof(DeviceQp30, nic_handler) == 288);
static_assert(offsetof(DeviceQp30, memory) == 292);

// Signals or counters of one context.
struct DeviceTable {
  std::uint64_t buffer;    // address of this rank's values, 8 bytes each
  std::uint64_t rkeys_be;  // address of one u32 a rank
  std::uint32_t lkey_be;
  std::uint32_t offset;  // 2.29.7 on: added to an id for the remote address, not for `buffer`
};
static_assert(sizeof(DeviceTable) == 24);
static_assert(offsetof(DeviceTable, buffer) == 0 && offsetof(DeviceTable, rkeys_be) == 8);
static_assert(offsetof(DeviceTable, lkey_be) == 16 && offsetof(DeviceTable, offset) == 20);

struct DeviceContext72 {
  std::uint64_t queues;      // address of one DeviceQp* a rank
  std::uint64_t companions;  // the same, for counters; 0 without counters
  DeviceTable counters;      // rkeys are looked up by the own rank
  DeviceTable signals;
  std::uint32_t sink_lkey_be;  // where fetched values go, at offset 0
  std::uint32_t zero;
};
static_assert(sizeof(DeviceContext72) == 72);
static_assert(offsetof(DeviceContext72, queues) == 0);
static_assert(offsetof(DeviceContext72, companions) == 8);
static_assert(offsetof(DeviceContext72, counters) == 16);
static_assert(offsetof(DeviceContext72, signals) == 40);
static_assert(offsetof(DeviceContext72, sink_lkey_be) == 64);

struct DeviceContext88 {
  std::uint64_t queues;
  std::uint64_t companions;
  DeviceTable counters;
  DeviceTable signals;
  std::uint32_t sink_lkey_be;
  // 1: a flush of gets has the adapter read the sink, which makes visible what they brought.  Since
  // NCCL 2.32 (use_mcst); before that kernels did it always, and the byte was padding.
  std::uint8_t reads_sink;
  std::uint8_t zero[3];
  std::uint64_t last_issued_get;  // addresses of one u64 a rank, zeroed; kept by kernels
  std::uint64_t last_visible_get;
};
static_assert(sizeof(DeviceContext88) == 88);
static_assert(offsetof(DeviceContext88, queues) == 0);
static_assert(offsetof(DeviceContext88, companions) == 8);
static_assert(offsetof(DeviceContext88, counters) == 16);
static_assert(offsetof(DeviceContext88, signals) == 40);
static_assert(offsetof(DeviceContext88, sink_lkey_be) == 64);
static_assert(offsetof(DeviceContext88, reads_sink) == 68);
static_assert(offsetof(DeviceContext88, last_issued_get) == 72);
static_assert(offsetof(DeviceContext88, last_visible_get) == 80);

// What a kernel's ncclGinWindow_t points to.
struct DeviceWindow {
  std::uint64_t rkeys_be;  // address of one u32 a rank
  std::uint32_t lkey_be;
  std::uint32_t zero;
};
static_assert(sizeof(DeviceWindow) == 16);
static_assert(offsetof(DeviceWindow, rkeys_be) == 0 && offsetof(DeviceWindow, lkey_be) == 8);

}  // namespace twinpath::gda
