#pragma once
// Every run-time setting as a plain value.  Defaults stand here; names, documentation and
// parsing stand in options.cc.  A Config is read once per process (config_from_environment)
// and passed down; tests build their own.
#include <cstdint>
#include <string>

namespace twinpath {

enum class FabricChoice { automatic, verbs, soft };
// Whether the software HCA moves CUDA memory, and in which process.
enum class SoftCuda : std::uint8_t { off, inprocess, process };
enum class TuneChoice : std::uint8_t { automatic, off };
enum class EngineChoice { automatic, spin, sleep };
// Where threads and processes that help a rank run which is bound to few processors.
enum class HelperCpus : std::uint8_t { near, inherit };
// Whether one-sided signals use an adapter's atomics; automatic: not where queues may then move.
enum class AtomicsChoice : std::uint8_t { automatic, never, always };
// Where that lies which kernels poll.
enum class QueuePlace : std::uint8_t { host, gpu };
// Who rings an adapter for kernels: the GPU where it can, else a CPU; a CPU; the GPU or nobody.
enum class BellChoice : std::uint8_t { automatic, cpu, gpu };
// A path to a peer, least to best after automatic: GPU buffers go through host memory (stage), the
// HCA reaches them (proxy), the GPU writes work requests for it (gda_cpu), and rings it (gda).
enum class ModeChoice : std::uint8_t { automatic, stage, proxy, gda_cpu, gda };
inline constexpr int kModeChoices = 5;

// A byte count that parses and prints with k/m/g (powers of 1024).
struct Bytes {
  std::uint64_t n = 0;
  friend bool operator==(Bytes, Bytes) = default;
};

// How patiently a connection deals with ports that fail (proxy/connect/failover.h).  No options:
// tests hasten it.
struct FailoverPace {
  int first_pause_ms = 1000;     // a queue that failed while its port is up is tried again then,
  int longest_pause_ms = 60000;  // and after twice as long each time, up to this
  int settle_ms = 100;           // how long a port must have been back
  int states_ms = 1000;          // ports are asked for their states that often at least
};

struct Config {
  // --- ours: TWINPATH_*
  FabricChoice fabric = FabricChoice::automatic;  // TWINPATH_FABRIC
  std::string soft_hcas = "soft0";                // TWINPATH_SOFT_HCAS, see soft/device_spec.h
  std::string soft_job;                           // TWINPATH_SOFT_JOB, part of the rendezvous name
  EngineChoice soft_engine = EngineChoice::automatic;  // TWINPATH_SOFT_POLLING
  std::string soft_faults;                             // TWINPATH_SOFT_FAULTS
  std::string soft_record;                             // TWINPATH_SOFT_RECORD
  TuneChoice tune = TuneChoice::automatic;             // TWINPATH_TUNE
  bool soft_direct = true;     // TWINPATH_SOFT_DIRECT: cross-process copies by process_vm_writev
  int soft_copy_threads = -1;  // TWINPATH_SOFT_COPY_THREADS: -1 automatic, 0 none
  SoftCuda soft_cuda = SoftCuda::process;     // TWINPATH_SOFT_CUDA
  std::string copier;                         // TWINPATH_COPIER: empty is beside the plugin
  HelperCpus helper_cpus = HelperCpus::near;  // TWINPATH_HELPER_CPUS
  int connect_timeout_ms = 20000;             // TWINPATH_CONNECT_TIMEOUT_MS
  int peer_timeout_ms = 40000;                // TWINPATH_PEER_TIMEOUT_MS
  bool failover = true;                       // TWINPATH_FAILOVER
  int standby_ports = 2;                      // TWINPATH_STANDBY
  int failover_hold_ms = 10000;               // TWINPATH_FAILOVER_HOLD_MS
  // No setting: how long after a port failed its writes may still be on their way into a GPU.  PCIe
  // takes some microseconds; tests whose PCIe is a thread give that thread time.
  int gone_rail_ms = 2;
  int stall_ms = 200;  // TWINPATH_STALL_MS: 0 never
  FailoverPace failover_pace;
  bool measure_rails = true;             // TWINPATH_MEASURE_RAILS
  bool flow_labels = true;               // TWINPATH_FLOW_LABELS
  bool optional_recv_completion = true;  // NCCL_NET_OPTIONAL_RECV_COMPLETION
  bool net_hints = true;                 // TWINPATH_NET_HINTS
  Bytes stripe_min{64 * 1024};           // TWINPATH_STRIPE_MIN: smaller messages go whole

  bool counters = true;     // TWINPATH_COUNTERS
  std::string metrics_dir;  // TWINPATH_METRICS_DIR

  ModeChoice mode = ModeChoice::automatic;  // TWINPATH_MODE: the best path that may be taken
  std::string peer_mode;      // TWINPATH_PEER_MODE: the same for single peers, see peer_modes.h
  std::string platform_file;  // TWINPATH_PLATFORM_FILE, see topology/decide/overrides.h
  std::string topology;       // TWINPATH_TOPOLOGY: what to read in place of this machine
  std::string topo_file;      // NCCL_TOPO_FILE: laid over what was read

  bool gin = true;      // TWINPATH_GIN: offer the devices to kernels (NCCL's GIN)
  int gin_depth = 256;  // TWINPATH_GIN_DEPTH: WQEs of a kernel's queue, power of two
  EngineChoice gin_engine = EngineChoice::automatic;     // TWINPATH_GIN_POLLING
  QueuePlace gin_cq = QueuePlace::host;                  // TWINPATH_GIN_CQ
  int rma = -1;                                          // TWINPATH_RMA (-1 automatic, 0, 1)
  AtomicsChoice gin_atomics = AtomicsChoice::automatic;  // TWINPATH_GIN_ATOMICS
  BellChoice gin_nic_handler = BellChoice::automatic;    // NCCL_GIN_GDAKI_NIC_HANDLER

  // --- NCCL's own, same meaning as in NCCL's IB transport
  bool ib_disable = false;                 // NCCL_IB_DISABLE
  std::string ib_hca;                      // NCCL_IB_HCA
  int ib_gid_index = -1;                   // NCCL_IB_GID_INDEX
  int ib_flid_gid_index = 1;               // NCCL_IB_ROUTABLE_FLID_GID_INDEX
  int ib_roce_version = 2;                 // NCCL_IB_ROCE_VERSION_NUM
  std::string ib_addr_family = "AF_INET";  // NCCL_IB_ADDR_FAMILY
  std::string ib_addr_range;               // NCCL_IB_ADDR_RANGE
  bool ib_subnet_aware = false;            // NCCL_IB_SUBNET_AWARE_ROUTING
  int ib_subnet_prefix = 24;               // NCCL_IB_SUBNET_PREFIX_LEN
  int ib_timeout = 20;                     // NCCL_IB_TIMEOUT
  int ib_retry_cnt = 7;                    // NCCL_IB_RETRY_CNT
  bool ib_ece_enable = true;               // NCCL_IB_ECE_ENABLE
  bool ib_mqp_retry_all = false;           // NCCL_IB_MQP_RETRY_ALL
  int ib_mqp_retry_cnt = 34;               // NCCL_IB_MQP_RETRY_CNT
  int ib_mqp_retry_sleep_ms = 100;         // NCCL_IB_MQP_RETRY_SLEEP_MSEC
  int ib_pkey = 0;                         // NCCL_IB_PKEY (an index)
  int ib_pkey_value = -1;                  // NCCL_IB_PKEY_VALUE (-1: by index)
  int ib_sl = -1;                          // NCCL_IB_SL
  int ib_tc = -1;                          // NCCL_IB_TC
  int ib_fifo_tc = -1;                     // NCCL_IB_FIFO_TC
  int ib_qps_per_connection = 1;           // NCCL_IB_QPS_PER_CONNECTION
  int qps_per_peer = 0;                    // TWINPATH_QPS_PER_PEER (0: none are shared)
  bool ib_split_data_on_qps = false;       // NCCL_IB_SPLIT_DATA_ON_QPS
  int ib_adaptive_routing = -1;            // NCCL_IB_ADAPTIVE_ROUTING (-1 automatic, 0, 1)
  int ib_ar_threshold = 8192;              // NCCL_IB_AR_THRESHOLD, bytes
  int ib_merge_nics = -1;                  // NCCL_IB_MERGE_NICS (-1 automatic, 0, 1)
  int ib_data_direct = 1;                  // NCCL_IB_DATA_DIRECT (0, 1, 2)
  bool ib_merge_vfs = true;                // NCCL_IB_MERGE_VFS
  int ib_use_inline = -1;                  // NCCL_IB_USE_INLINE (-1 not set, 0, 1)
  int ib_pci_relaxed_ordering = 2;         // NCCL_IB_PCI_RELAXED_ORDERING (0, 1, 2 = auto)
  std::string net_gdr_level;               // NCCL_NET_GDR_LEVEL (a word or 0..5)
  int net_gdr_read = -1;                   // NCCL_NET_GDR_READ (-1 automatic, 0, 1)
  bool gdr_flush_disable = false;          // NCCL_GDR_FLUSH_DISABLE
  bool gdrcopy = false;                    // NCCL_GDRCOPY_ENABLE
  std::string socket_ifname;               // NCCL_SOCKET_IFNAME
  std::string socket_family;               // NCCL_SOCKET_FAMILY (AF_INET, AF_INET6 or empty)
  std::string comm_id;                     // NCCL_COMM_ID (address of rank 0)
};

}  // namespace twinpath
