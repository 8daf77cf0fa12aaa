#pragma once
// One end's judgement of its own (GPU, HCA) pair: the landing rows (W) and source rows (R) of the
// decision table, and the user's settings (U), written into the placement record.
//
// Pure.  Threads: any.
#include <cstdint>
#include <optional>

#include "plugin/base/config.h"
#include "topology/decide/record.h"
#include "topology/model/distance.h"
#include "topology/probe/probe.h"

namespace twinpath {

// Limits of the table.  The two shares are to be confirmed by measurement; nobody publishes reads
// through the root complex of a recent CPU.
inline constexpr std::uint8_t kRootLog2 = 16;    // W4, R3: 64 KiB
inline constexpr std::uint8_t kSocketLog2 = 13;  // W5, R4: 8 KiB
inline constexpr double kGoodWriteShare = 0.8;
inline constexpr double kGoodReadShare = 0.6;

struct EndFacts {
  std::uint64_t host = 0;
  std::uint64_t topology = 0;
  std::optional<int> gpu, hca, rail;
  // Of the HCA's physical (or virtual) function, and of its data-direct function if it has one.
  Distance distance = Distance::unknown;
  std::optional<Distance> data_direct;
  bool data_direct_refused = false;  // it exists, and an MR on it failed
  bool from_platform_file = false;   // the distance is the user's
  bool without_place = false;        // an HCA that is no PCIe device (the software HCA)
  bool virtual_machine = false;
  bool virtual_function = false;
  bool root_good = false;  // see root_complex_good()
  // ACS on the way: of requests of the HCA, and of answers of the GPU.
  bool acs_requests = false;
  bool acs_answers = false;

  ProbeResults probes;
  bool gdr_expected = false;  // what static hints say while the probe was not tried
  bool mlx5 = false;
  bool devx = false;
  bool soft_queues = false;    // software that reads mlx5 work queues; only a CPU rings for it
  bool gpu_queues = false;     // queues in GPU memory can be made
  bool gpu_ordered = false;    // CUDA's writes-ordering attribute is at least OWNER
  bool stages = false;         // the plugin stages GPU buffers itself
  int compute_capability = 0;  // 90 is 9.0; 0 not known
  bool nvlink = false;

  double port_gbps = 0;      // 0 in rates: not known
  double pcie_gbs = 0;       // GB/s
  double measured_read = 0;  // GB/s
  double measured_write = 0;
};

struct EndSettings {
  std::optional<Distance> gdr_level;  // NCCL_NET_GDR_LEVEL
  int gdr_read = -1;                  // NCCL_NET_GDR_READ
  ModeChoice wish = ModeChoice::automatic;
};

PlacementRecord make_record(const EndFacts& facts, const EndSettings& settings);

// Whether a CPU is known to carry peer-to-peer writes between root ports at full rate: AMD since
// Zen (family 0x17), Intel since Ice Lake (family 6, model 0x6a), Grace.
bool root_complex_good(std::string_view vendor, int family, int model);

}  // namespace twinpath
