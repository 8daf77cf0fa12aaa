#include "plugin/fabric/soft/mlx5/capabilities.h"

#include <array>

#include "plugin/fabric/soft/mlx5/layout.h"

namespace twinpath::soft::mlx5 {
namespace {

struct Capability {
  Field field;  // counted from the end of the header
  std::uint64_t value;
};

// General: what depends on the adapter is written below.
constexpr auto kGeneral = std::to_array<Capability>({
    {{0x020, 1}, 1},      // hca_cap_2: there is a second page
    {{0x080, 8}, 15},     // log_max_srq_sz
    {{0x09b, 5}, 18},     // log_max_qp
    {{0x0ab, 5}, 18},     // log_max_srq
    {{0x0db, 5}, 18},     // log_max_cq
    {{0x0ea, 6}, 20},     // log_max_mkey
    {{0x12a, 6}, 4},      // log_max_ra_req_dc
    {{0x13a, 6}, 4},      // log_max_ra_res_dc
    {{0x16a, 1}, 1},      // rts2rts_qp_dscp
    {{0x1ab, 5}, 16},     // local_ca_ack_delay
    {{0x1c3, 5}, 30},     // log_max_msg
    {{0x1fc, 4}, 1},      // cqe_version
    {{0x200, 1}, 1},      // compact_address_vector
    {{0x21a, 1}, 1},      // dct: objects are made, nothing is carried out
    {{0x21e, 1}, 1},      // atomic
    {{0x21f, 1}, 1},      // extended_retry_count
    {{0x220, 1}, 1},      // cq_oi
    {{0x23f, 1}, 1},      // rc
    {{0x240, 1}, 1},      // uar_4k
    {{0x258, 8}, 12},     // log_pg_sz
    {{0x260, 1}, 1},      // bf
    {{0x26b, 5}, 9},      // log_bf_reg_size
    {{0x290, 16}, 1024},  // max_wqe_sz_sq
    {{0x2b0, 16}, 512},   // max_wqe_sz_rq
    {{0x2d0, 16}, 1024},  // max_wqe_sz_sq_dc
    {{0x32b, 5}, 20},     // log_max_pd
    {{0x520, 32}, 1},     // num_of_uars_per_page
    {{0x580, 8}, 3},      // log_max_atomic_size_qp: 8 bytes
    {{0x598, 8}, 3},      // log_max_atomic_size_dc
});

constexpr std::uint64_t kFourAndEightBytes = 1u << 2 | 1u << 3;
constexpr auto kAtomic = std::to_array<Capability>({
    {{0x040, 2}, 1},     // requests of 8 bytes are in the host's order of bytes
    {{0x046, 1}, 1},     // which is supported
    {{0x090, 16}, 0xf},  // compare-and-swap, fetch-and-add, and both masked
    {{0x0b0, 16}, kFourAndEightBytes},
    {{0x0d0, 16}, kFourAndEightBytes},
});

constexpr auto kRoce = std::to_array<Capability>({
    {{0x004, 1}, 1},        // sw_r_roce_src_udp_port: the queue pair names its UDP port
    {{0x08c, 4}, 3},        // l3_type: IPv4 and IPv6
    {{0x098, 8}, 4},        // roce_version: bit 2 is v2
    {{0x0b0, 16}, 4791},    // r_roce_dest_udp_port
    {{0x0c0, 16}, 0xffff},  // r_roce_max_src_udp_port
    {{0x0d0, 16}, 0xc000},  // r_roce_min_src_udp_port
});

constexpr Field kLogMaxQpSize{0x088, 8};  // in basic blocks of 64 bytes
constexpr Field kLogMaxCqSize{0x0c8, 8};
constexpr Field kLogMaxReadsOut{0x14a, 6}, kLogMaxReadsIn{0x15a, 6};
constexpr Field kGidTableSize{0x170, 16};
constexpr Field kPortType{0x1b6, 2};
constexpr Field kNumPorts{0x1b8, 8};
constexpr Field kRoceSupported{0x21d, 1};
constexpr Field kCrossChannel{0x22c, 1};
constexpr Field kSqClocks{0x440, 2};    // sq_ts_format
constexpr Field kRoceClocks{0x01e, 2};  // qp_ts_format
constexpr Field kRoceAddressTableSize{0x0f0, 16};

void write(std::span<std::uint8_t> answer, Field field, std::uint64_t value) {
  set(answer, field.at(kHeaderBytes), value);
}

// The table's size is told as a power of two from 8.
unsigned coded_gid_entries(unsigned entries) {
  unsigned code = 0;
  while ((8u << code) < entries && code < 4) ++code;
  return code;
}

}  // namespace

bool write_capabilities(unsigned kind, const DeviceFacts& facts, std::span<std::uint8_t> answer) {
  const Limits limits = limits_of(facts.variant);
  const auto clocks = static_cast<std::uint64_t>(facts.variant.clocks);
  switch (static_cast<CapabilityKind>(kind)) {
    case CapabilityKind::general:
      for (const Capability& c : kGeneral) write(answer, c.field, c.value);
      write(answer, kLogMaxQpSize, limits.qp);
      write(answer, kLogMaxCqSize, limits.cq);
      write(answer, kLogMaxReadsOut, limits.reads);
      write(answer, kLogMaxReadsIn, limits.reads);
      write(answer, kCrossChannel, facts.variant.waits ? 1 : 0);
      write(answer, kSqClocks, clocks);
      write(answer, kGidTableSize, coded_gid_entries(facts.gid_entries));
      write(answer, kPortType, facts.ethernet ? 1 : 0);
      write(answer, kNumPorts, facts.ports);
      write(answer, kRoceSupported, facts.ethernet ? 1 : 0);
      return true;
    case CapabilityKind::atomic:
      for (const Capability& c : kAtomic) write(answer, c.field, c.value);
      return true;
    case CapabilityKind::roce:
      for (const Capability& c : kRoce) write(answer, c.field, c.value);
      write(answer, kRoceAddressTableSize, facts.gid_entries);
      write(answer, kRoceClocks, clocks);
      return true;
    case CapabilityKind::general_2:
      // All zero: doorbells without doorbell records are not offered, because an overwritten word
      // in a page of memory could not be found again without the record.
      return true;
  }
  return false;
}

}  // namespace twinpath::soft::mlx5
