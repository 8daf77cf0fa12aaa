#include "plugin/base/options.h"

#include <unistd.h>

#include <array>
#include <cstdlib>
#include <optional>
#include <type_traits>

#include "plugin/base/limits.h"
#include "plugin/base/log.h"
#include "plugin/base/option_values.h"
#include "plugin/base/text.h"

namespace twinpath {
namespace {

template <class T>
struct MemberType;
template <class T>
struct MemberType<T Config::*> {
  using Type = T;
};

// One row of the table: which member, and an optional check of the parsed value.
template <auto kMember, auto kCheck = nullptr>
constexpr Option option(std::string_view name, std::string_view group, std::string_view values,
                        std::string_view doc) {
  return {name,
          group,
          values,
          doc,
          [](Config& config, std::string_view text, std::string& why) {
            typename MemberType<decltype(kMember)>::Type value{};
            if (!parse_value(trimmed(text), value, why)) return false;
            if constexpr (!std::is_null_pointer_v<std::remove_cv_t<decltype(kCheck)>>) {
              if (!kCheck(value, why)) return false;
            }
            config.*kMember = std::move(value);
            return true;
          },
          [](const Config& config) { return print_value(config.*kMember); }};
}

static_assert(kMaxQps == 32, "the text of NCCL_IB_QPS_PER_CONNECTION below names the bound");

constexpr std::array kOptions{
    option<&Config::fabric>(
        "TWINPATH_FABRIC", "Fabric", "auto, verbs, soft",
        "Adapters that carry traffic: real ones (verbs), or the software HCA (soft) "
        "between processes of one host. auto uses real adapters only."),
    option<&Config::ib_disable>("NCCL_IB_DISABLE", "Fabric", "0, 1",
                                "1 offers no adapter, real or software."),
    option<&Config::ib_hca>(
        "NCCL_IB_HCA", "Fabric", "[^][=]name[:port[:rail[:plane]]],...",
        "Adapters to use. Names are prefixes; a leading = requires exact names, a "
        "leading ^ excludes. At most 32 entries. Rail (0..32767) and plane (0..16383) "
        "are passed to NCCL 2.30 and later, which keeps to rails and planes."),
    option<&Config::ib_merge_nics, in_range<-1, 1>>(
        "NCCL_IB_MERGE_NICS", "Fabric", "-1..1",
        "Whether NCCL may merge ports into one NIC that uses all of them for every "
        "message. -1 allows it for ports that have a PCI path: NCCL's topology loses "
        "merged ones without."),
    option<&Config::ib_data_direct, in_range<0, 2>>(
        "NCCL_IB_DATA_DIRECT", "Fabric", "0..2",
        "Adapters with a data-direct function, which moves GPU memory past the CPU's "
        "root complex. 1 offers the port by that function (as name_dma), 0 by the "
        "usual one, 2 by both."),
    option<&Config::ib_merge_vfs>(
        "NCCL_IB_MERGE_VFS", "Fabric", "0, 1",
        "1 gives a virtual function the PCI place of its physical function, so that "
        "NCCL takes those of one adapter for its ports. 0 gives it its own, as in "
        "virtual machines, where the kernel does not tell."),
    option<&Config::soft_hcas>(
        "TWINPATH_SOFT_HCAS", "Soft HCA", "count, or name[,key=value...],...",
        "Software adapters to create. Keys: speed in Gb/s (1..6400), ports (1..8), pci "
        "(address or sysfs path), place (below=ADDRESS, bridge=ADDRESS or numa=N: for "
        "decisions only); mtu (256..4096), state (up, down), link (roce, ib), ece "
        "(1..255), pkeys (value:value...); peermem (yes, no: CUDA memory by address "
        "too, else by dma-buf only); mlx5 (words: plugin/fabric/soft/mlx5/variant.h); "
        "like (mlx5, mlx5-ib, bnxt_re, irdma, ionic, mana, ...: limits, names and "
        "answers of such an adapter)."),
    option<&Config::soft_job, is_job_name>(
        "TWINPATH_SOFT_JOB", "Soft HCA", "up to 48 of A-Z a-z 0-9 . _ -",
        "Name of the job. Only processes with the same name connect to each other."),
    option<&Config::soft_engine>(
        "TWINPATH_SOFT_POLLING", "Soft HCA", "auto, spin, sleep",
        "How long the adapter's thread waits between looks at queues that nobody "
        "polls. auto: 50 us under load, else 1 ms (none for 10 us; 20 with five processors); "
        "sleep: 1 ms; spin: not at all (keeps a core busy)."),
    option<&Config::soft_direct>(
        "TWINPATH_SOFT_DIRECT", "Soft HCA", "0, 1",
        "Copies host memory directly between processes where the kernel allows it."),
    option<&Config::soft_copy_threads, in_range<-1, 16>>(
        "TWINPATH_SOFT_COPY_THREADS", "Soft HCA", "-1..16",
        "Threads that help with large copies of host memory, started by the first one. "
        "-1 chooses by the number of processors: none on small machines."),
    option<&Config::tune>(
        "TWINPATH_TUNE", "Soft HCA", "auto, off",
        "auto sets NCCL's variables for the software HCA (GDR level, channels, sizes, "
        "a tuner) unless the user has; an INFO line names them. Must be the same on "
        "all ranks."),
    option<&Config::soft_faults>(
        "TWINPATH_SOFT_FAULTS", "Soft HCA",
        "fail_send=N, delay_us=T, late_us=T, split_us=T, fail_init=N, "
        "fail_rtr=N, fail_rts=N, down_device=N, down_at_ms=T, down_ms=T, "
        "down_every_ms=T, slow_device=N, slow_mbps=R",
        "Faults to inject, for tests. fail_send: the N-th send of the process fails; "
        "delay_us: sends start late; late_us: data for GPU memory lands after what "
        "follows it into host memory; split_us: atomics on host memory are not atomic "
        "with CPUs; fail_init, fail_rtr, fail_rts: the first N such state changes time "
        "out; down_*: the N-th device's port goes down, when, for how long, how often; "
        "slow_*: it sends at most R Mb/s."),
    option<&Config::soft_record>(
        "TWINPATH_SOFT_RECORD", "Soft HCA", "file",
        "Appends every command sent to the soft HCA's libmlx5 (tools/softhca), a JSON "
        "line each. The plugin sends none."),
    option<&Config::connect_timeout_ms, in_range<100, 600000>>(
        "TWINPATH_CONNECT_TIMEOUT_MS", "Connections", "ms, 100..600000",
        "How long a peer's host may not answer during connection set-up, how long a "
        "caller may take to identify itself, and how long GIN and RMA wait for all "
        "ranks. A peer whose host answers is waited for, with a warning after this "
        "time, and again after twice as long each time."),
    option<&Config::peer_timeout_ms, in_range<4000, 3600000>>(
        "TWINPATH_PEER_TIMEOUT_MS", "Connections", "ms, 4000..3600000",
        "A connection is lost when the peer has neither answered on the control "
        "network nor moved data for this long. The end of a peer's process is noticed "
        "at once; an idle peer may be silent."),
    option<&Config::failover>(
        "TWINPATH_FAILOVER", "Connections", "0, 1",
        "1 keeps a connection over several ports (a merged device, or "
        "TWINPATH_STANDBY) alive while one of them works. Both ends stop, resend what "
        "had not arrived, and use a port again when it comes back. 0 ends the "
        "connection at its first failed transfer."),
    option<&Config::standby_ports, in_range<0, 2>>(
        "TWINPATH_STANDBY", "Connections", "0..2",
        "How many other ports of the host, fast and near ones first, a connection may "
        "use when none of its device's ports works. They cost a page or two of "
        "registered memory per connection."),
    option<&Config::failover_hold_ms, in_range<0, 3600000>>(
        "TWINPATH_FAILOVER_HOLD_MS", "Connections", "ms, 0..3600000",
        "How long a connection waits while no port works, and GIN for its port before "
        "it releases kernels. A connection over one port waits at least as long as its "
        "adapter retries."),
    option<&Config::stall_ms, in_range<0, 600000>>(
        "TWINPATH_STALL_MS", "Connections", "ms, 0..600000",
        "A port without an acknowledgement for this long is dropped if another port of "
        "the connection answers. 0 waits for the adapter's error."),
    option<&Config::measure_rails>(
        "TWINPATH_MEASURE_RAILS", "Connections", "0, 1",
        "1 stripes messages (TWINPATH_STRIPE_MIN) by each port's recent throughput, so "
        "that a slow port does not delay the others, and logs slow ones. 0 stripes by "
        "port speed."),
    option<&Config::ib_gid_index, in_range<-1, 65535>>(
        "NCCL_IB_GID_INDEX", "Connections", "-1..65535",
        "GID table entry of RoCE ports. -1 chooses by family, range and RoCE version."),
    option<&Config::ib_flid_gid_index, in_range<-1, 255>>(
        "NCCL_IB_ROUTABLE_FLID_GID_INDEX", "Connections", "-1..255",
        "GID table entry of InfiniBand ports that may hold a routable address "
        "(floating LID) for peers behind a router. Without one there, entry 0 is used."),
    option<&Config::ib_roce_version, in_range<1, 2>>(
        "NCCL_IB_ROCE_VERSION_NUM", "Connections", "1..2",
        "RoCE version that the automatic GID choice prefers."),
    option<&Config::ib_addr_family, is_address_family>(
        "NCCL_IB_ADDR_FAMILY", "Connections", "AF_INET, AF_INET6",
        "Address family of the automatic GID choice."),
    option<&Config::ib_addr_range, is_address_range>(
        "NCCL_IB_ADDR_RANGE", "Connections", "address/prefix",
        "Address range of the automatic GID choice, for example 10.1.0.0/16."),
    option<&Config::ib_subnet_aware>(
        "NCCL_IB_SUBNET_AWARE_ROUTING", "Connections", "0, 1",
        "1 replaces a device that shares no network with the peer by one that does, "
        "for RoCE networks without routes between them. Unset, it is 1 where each port "
        "has its own network and there is no router, as in a ring of hosts."),
    option<&Config::ib_subnet_prefix, in_range<1, 32>>(
        "NCCL_IB_SUBNET_PREFIX_LEN", "Connections", "1..32",
        "Prefix length of these networks in IPv4 (IPv6: 64). If this and "
        "NCCL_IB_SUBNET_AWARE_ROUTING are unset, the interfaces' own prefixes count."),
    option<&Config::ib_timeout, in_range<0, 31>>(
        "NCCL_IB_TIMEOUT", "Connections", "0..31",
        "Retransmission timeout: 4.096 us times 2 to this power; 0 is infinite."),
    option<&Config::ib_retry_cnt, in_range<0, 7>>("NCCL_IB_RETRY_CNT", "Connections", "0..7",
                                                  "Retransmissions before the connection fails."),
    option<&Config::ib_mqp_retry_cnt, in_range<0, 1000>>(
        "NCCL_IB_MQP_RETRY_CNT", "Connections", "0..1000",
        "How often a queue pair's state change is retried after a timeout (the peer's "
        "address does not resolve yet), within TWINPATH_CONNECT_TIMEOUT_MS."),
    option<&Config::ib_mqp_retry_sleep_ms, in_range<0, 60000>>(
        "NCCL_IB_MQP_RETRY_SLEEP_MSEC", "Connections", "ms, 0..60000",
        "Delay before the first such retry; n times as long before the n-th. No thread "
        "sleeps."),
    option<&Config::ib_mqp_retry_all>("NCCL_IB_MQP_RETRY_ALL", "Connections", "0, 1",
                                      "1 retries after any error, not only timeouts."),
    option<&Config::ib_ece_enable>(
        "NCCL_IB_ECE_ENABLE", "Connections", "0, 1",
        "Lets two adapters of one vendor agree on extensions of the standard (enhanced "
        "connection establishment). Both ends need it; other adapters connect without."),
    option<&Config::ib_pkey, in_range<0, 65535>>("NCCL_IB_PKEY", "Connections", "0..65535",
                                                 "Index into the partition key table."),
    option<&Config::ib_pkey_value, in_range<-1, 65535>>(
        "NCCL_IB_PKEY_VALUE", "Connections", "-1..65535",
        "The partition key itself (low 15 bits), at any index; overrides NCCL_IB_PKEY. "
        "-1 uses the index."),
    option<&Config::ib_sl, in_range<-1, 15>>(
        "NCCL_IB_SL", "Connections", "-1..15",
        "Service level. -1 uses the communicator's traffic class on InfiniBand, else "
        "0."),
    option<&Config::ib_tc, in_range<-1, 255>>(
        "NCCL_IB_TC", "Connections", "-1..255",
        "Traffic class of data. -1 uses the communicator's on RoCE, else 0."),
    option<&Config::ib_fifo_tc, in_range<-1, 255>>(
        "NCCL_IB_FIFO_TC", "Connections", "-1..255",
        "Traffic class of clear-to-send messages. -1 uses that of data."),
    option<&Config::flow_labels>(
        "TWINPATH_FLOW_LABELS", "Connections", "0, 1",
        "1 gives every queue pair on RoCE v2 its own flow label, hence UDP source port, by "
        "which switches choose a path. 0 leaves it to the driver."),
    option<&Config::ib_qps_per_connection, in_range<1, kMaxQps>>(
        "NCCL_IB_QPS_PER_CONNECTION", "Data path", "1..32", "Queue pairs per connection and port."),
    option<&Config::qps_per_peer, in_range<0, 16>>(
        "TWINPATH_QPS_PER_PEER", "Data path", "0..16",
        "Queue pairs that all connections to one process share, per port and direction; "
        "of several the first has short messages. 0 shares none."),
    option<&Config::ib_split_data_on_qps>(
        "NCCL_IB_SPLIT_DATA_ON_QPS", "Data path", "0, 1",
        "1 splits every message over the queue pairs of its port; 0 uses them in turn."),
    option<&Config::ib_adaptive_routing, in_range<-1, 1>>(
        "NCCL_IB_ADAPTIVE_ROUTING", "Data path", "-1..1",
        "1 sends long messages and their completion notice as two work requests, so "
        "that switches may spread the data over paths; 0 as one. -1 is 1 on InfiniBand "
        "and 0 on RoCE."),
    option<&Config::ib_ar_threshold, in_range<0, 1 << 30>>("NCCL_IB_AR_THRESHOLD", "Data path",
                                                           "bytes, 0..1073741824",
                                                           "Messages are long above this size."),
    option<&Config::stripe_min, is_stripe_min>("TWINPATH_STRIPE_MIN", "Data path",
                                               "bytes; k, m, g allowed",
                                               "Smaller messages use one queue pair."),
    option<&Config::net_hints>(
        "TWINPATH_NET_HINTS", "Data path", "0, 1",
        "1 follows NCCL's hints (2.28 and later). Connections for sends and receives "
        "between two ranks share a collective's queue pairs. While a transfer has "
        "twice as many messages in flight as rails, messages below four times "
        "TWINPATH_STRIPE_MIN are not striped."),
    option<&Config::optional_recv_completion>(
        "NCCL_NET_OPTIONAL_RECV_COMPLETION", "Data path", "0, 1",
        "Skips the receiver's notice where NCCL does not need it (LL, LL128)."),
    option<&Config::ib_use_inline, in_range<-1, 1>>(
        "NCCL_IB_USE_INLINE", "Data path", "-1..1",
        "Inline data in work requests: 0 never; 1 where the adapter grants it, unless "
        "its provider is known to ignore it; -1 where its provider is known to honour "
        "it (NCCL's own transport: with 1 only)."),
    option<&Config::ib_pci_relaxed_ordering, in_range<0, 2>>(
        "NCCL_IB_PCI_RELAXED_ORDERING", "Data path", "0..2",
        "PCIe relaxed ordering of registered memory: 0 off, 1 on, 2 where the adapter "
        "offers it."),
    option<&Config::counters>("TWINPATH_COUNTERS", "Counters", "0, 1",
                              "Counts bytes, messages and waits per peer, for twinpath-top and "
                              "twinpath-exporter of the same user. 0 shows them nothing."),
    option<&Config::metrics_dir>(
        "TWINPATH_METRICS_DIR", "Counters", "folder",
        "Where a copy of the counters is saved when a connection is lost and when the "
        "last one closes; twinpath-top --post-mortem reads it."),
    option<&Config::mode>(
        "TWINPATH_MODE", "GPU", "auto, stage, proxy, gda-cpu, gda",
        "The best path that peers may use. stage copies GPU buffers through host "
        "memory; proxy lets the adapter reach them; gda-cpu and gda let the GPU issue "
        "work. auto uses the best that works and has been tried. Queues that a real "
        "adapter reads itself are used only for gda-cpu and gda. If two ends differ, "
        "the lesser applies."),
    option<&Config::gin>(
        "TWINPATH_GIN", "GPU", "0, 1",
        "Offers NCCL a GIN plugin, for kernels that communicate themselves. 0 leaves "
        "GIN to NCCL's own transports."),
    option<&Config::rma, in_range<-1, 1>>(
        "TWINPATH_RMA", "GPU", "-1..1",
        "Offers NCCL (2.30.7 and later) an RMA plugin: ncclPutSignal and the like, "
        "collectives without SMs, kernels through NCCL's own proxy (GIN type PROXY). 0 "
        "leaves RMA to NCCL's own transports; set it on all ranks. -1 offers it on "
        "real adapters only. On the soft HCA windows fail, except between threads of "
        "one process with TWINPATH_SOFT_CUDA=inprocess."),
    option<&Config::gin_depth, is_queue_depth>(
        "TWINPATH_GIN_DEPTH", "GPU", "64..32768, power of two",
        "Work requests per queue between a kernel and a peer where NCCL names no "
        "depth. Each takes 128 bytes of pinned host memory, twice that with counters."),
    option<&Config::gin_engine>(
        "TWINPATH_GIN_POLLING", "GPU", "auto, spin, sleep",
        "How the thread that serves kernels' queues waits. auto: spins for 10 ms (0.2 ms "
        "on up to 4 cores), then sleeps 20 to 200 us at a time; sleep: always; spin: "
        "never (keeps a core busy)."),
    option<&Config::gin_cq>(
        "TWINPATH_GIN_CQ", "GPU", "host, gpu",
        "Where completions that kernels poll are stored. gpu takes some 7 us longer for "
        "each, but threads do not slow each other: for kernels of 16 blocks or more."),
    option<&Config::gin_atomics>(
        "TWINPATH_GIN_ATOMICS", "GPU", "auto, 0, 1",
        "0 sends signals without the adapter's atomics: the peer's thread adds them. auto: "
        "where GIN (TWINPATH_MODE=proxy) or RMA then survives a port."),
    option<&Config::gin_nic_handler>(
        "NCCL_GIN_GDAKI_NIC_HANDLER", "GPU", "0, 1, 2",
        "Who rings an adapter that reads kernels' queues itself. 1: a CPU thread; 2: the "
        "GPU only; 0: the GPU where possible, else a thread."),
    option<&Config::peer_mode, is_peer_modes>(
        "TWINPATH_PEER_MODE", "GPU", "rank[-rank]:mode,...",
        "TWINPATH_MODE per peer, for example 3:proxy,7-9:gda, where NCCL tells the "
        "peer's rank; for collectives it does not."),
    option<&Config::platform_file>(
        "TWINPATH_PLATFORM_FILE", "GPU", "path",
        "Distances and measured rates of GPU and adapter pairs, for machines that hide "
        "them; topology/DECISIONS.md has the format."),
    option<&Config::topology>(
        "TWINPATH_TOPOLOGY", "GPU", "path",
        "A topology to use in place of this machine's (hwloc or NCCL XML, or a folder "
        "with sys and proc), for containers that hide the PCI tree."),
    option<&Config::topo_file>(
        "NCCL_TOPO_FILE", "GPU", "path",
        "NCCL's topology file, laid over the machine's topology: NCCL and the plugin "
        "judge by one tree."),
    option<&Config::net_gdr_level, is_gdr_level>(
        "NCCL_NET_GDR_LEVEL", "GPU", "LOC, PIX, PXB, C2C, PHB, NODE, SOCK, SYS, 0..5",
        "The largest distance between GPU and adapter for GPUDirect RDMA. NCCL applies "
        "it too."),
    option<&Config::net_gdr_read, in_range<-1, 1>>(
        "NCCL_NET_GDR_READ", "GPU", "-1..1",
        "Whether the adapter reads GPU memory to send: 0 never, 1 wherever it may "
        "write it, -1 automatic. NCCL applies it too."),
    option<&Config::soft_cuda>(
        "TWINPATH_SOFT_CUDA", "GPU", "0, inprocess, process",
        "How the software HCA moves CUDA memory. process: by a process of its own "
        "(twinpath-copier), which takes some 500 MiB of each GPU; inprocess: in the "
        "program, where a cudaFree, a first kernel launch or a copy to pageable memory "
        "behind a collective may hang for ever; 0: host memory only."),
    option<&Config::copier>("TWINPATH_COPIER", "GPU", "path",
                            "That process's executable. Empty: twinpath-copier beside the plugin."),
    option<&Config::helper_cpus>(
        "TWINPATH_HELPER_CPUS", "GPU", "near, inherit",
        "Where twinpath-copier and helper threads run if a rank is bound to fewer than "
        "four processors; near: all that the cpuset allows, or on the GPU's NUMA node "
        "if it has four of them; inherit: within the binding."),
    option<&Config::gdr_flush_disable>(
        "NCCL_GDR_FLUSH_DISABLE", "GPU", "0, 1",
        "1 skips the read that makes received data visible to the GPU."),
    option<&Config::gdrcopy>(
        "NCCL_GDRCOPY_ENABLE", "GPU", "0, 1",
        "1 stores completions in GPU memory through GDRCopy if installed. NCCL uses it too."),
    option<&Config::socket_ifname>(
        "NCCL_SOCKET_IFNAME", "Sockets", "[^][=]name,...",
        "Network interfaces of the control connections. Names are prefixes; = requires "
        "exact names, ^ excludes."),
    option<&Config::socket_family, is_address_family>(
        "NCCL_SOCKET_FAMILY", "Sockets", "AF_INET, AF_INET6",
        "Address family of the control connections. Empty: any."),
    option<&Config::comm_id>(
        "NCCL_COMM_ID", "Sockets", "address:port, [address]:port",
        "Where NCCL meets rank 0. Without NCCL_SOCKET_IFNAME and InfiniBand interfaces "
        "the control connections use an interface on that address's network, as NCCL "
        "does."),
};

constexpr std::string_view kNoFailover = "use TWINPATH_FAILOVER, which is on by default";
constexpr std::string_view kOwnCounters = "twinpath-top shows waits by peer and cause";
constexpr std::string_view kReads = "as many reads are in flight as both adapters take, 16 at most";
constexpr std::string_view kNoWeights = "use TWINPATH_MEASURE_RAILS, which is on by default";

// Every variable that NCCL's InfiniBand transport of 2.19 to 2.32 reads and this plugin does not.
constexpr std::array kUnsupported{
    UnsupportedOption{"NCCL_IBVERBS_LIB", "the plugin always opens libibverbs.so.1"},
    UnsupportedOption{"NCCL_IB_CUDA_SUPPORT", "use NCCL_NET_GDR_LEVEL"},
    UnsupportedOption{"NCCL_IB_DEVICE_PCI_ORDER", "devices always come in PCI order"},
    UnsupportedOption{"NCCL_IB_EVENT_BASED_LB", kNoWeights},
    UnsupportedOption{"NCCL_IB_EVENT_BASED_LB_REMOTE", kNoWeights},
    UnsupportedOption{"NCCL_IB_OOO_RQ", "out-of-order receive queues are not implemented"},
    UnsupportedOption{"NCCL_IB_PREPOST_RECEIVE_WORK_REQUESTS", "receives are always pre-posted"},
    UnsupportedOption{"NCCL_IB_QUERY_PORT_SPEED",
                      "the plugin always asks the library for the speed"},
    UnsupportedOption{"NCCL_IB_RAIL_POLICY", "NCCL_IB_HCA names the rails"},
    UnsupportedOption{"NCCL_IB_RECEIVER_SIDE_MATCHING_SCHEME",
                      "messages are always matched by the slot in the immediate data"},
    UnsupportedOption{"NCCL_IB_RESILIENCY_PORT_FAILOVER", kNoFailover},
    UnsupportedOption{"NCCL_IB_RESILIENCY_PORT_FAILOVER_MAX_ATTEMPTS", kNoFailover},
    UnsupportedOption{"NCCL_IB_RESILIENCY_PORT_FAILOVER_PROBE_DELAY", kNoFailover},
    UnsupportedOption{"NCCL_IB_RESILIENCY_PORT_RECOVERY", kNoFailover},
    UnsupportedOption{"NCCL_IB_RESILIENCY_PORT_RECOVERY_ACK_TIMEOUT", kNoFailover},
    UnsupportedOption{"NCCL_IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_INTERVAL", kNoFailover},
    UnsupportedOption{"NCCL_IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_SIZE", kNoFailover},
    UnsupportedOption{"NCCL_IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_SEQUENCE_SIZE", kNoFailover},
    UnsupportedOption{"NCCL_IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_TIMEOUT", kNoFailover},
    UnsupportedOption{"NCCL_IB_RESILIENCY_PORT_RECOVERY_ATTEMPTS_MAX", kNoFailover},
    UnsupportedOption{"NCCL_IB_RESILIENCY_PORT_RECOVERY_START_DELAY", kNoFailover},
    UnsupportedOption{"NCCL_IB_RETURN_ASYNC_EVENTS", "fatal device events are always errors"},
    UnsupportedOption{"NCCL_IB_WARN_RAIL_LOCAL", "NCCL keeps to rails itself"},
    UnsupportedOption{"NCCL_IB_WQE_LATENCY_REPORT", kOwnCounters},
    UnsupportedOption{"NCCL_IB_WQE_LATENCY_THRESHOLD_NS", kOwnCounters},
    UnsupportedOption{"NCCL_GIN_ERROR_QUERY_SEC", "errors of kernels' queues are reported at once"},
    UnsupportedOption{"NCCL_GIN_GDAKI_MAX_DEST_RD_ATOMIC", kReads},
    UnsupportedOption{"NCCL_GIN_GDAKI_MAX_QP_RD_ATOMIC", kReads},
    UnsupportedOption{"NCCL_GIN_GDAKI_QP_DEPTH", "use TWINPATH_GIN_DEPTH"},
    UnsupportedOption{"NCCL_GIN_IB_TC", "use NCCL_IB_TC"},
};

// What an option was called in an earlier version: still read, with a warning, until the next one.
struct RenamedOption {
  std::string_view before, now;
};
constexpr std::array kRenamed{
    RenamedOption{"TWINPATH_GIN_ENGINE", "TWINPATH_GIN_POLLING"},
    RenamedOption{"TWINPATH_OPTIONAL_RECV_COMPLETION", "NCCL_NET_OPTIONAL_RECV_COMPLETION"},
    RenamedOption{"TWINPATH_SOFT_ENGINE", "TWINPATH_SOFT_POLLING"}};

// By its own name, or else by an earlier one.
const char* look_up(const EnvLookup& lookup, std::string_view name) {
  const char* text = lookup(std::string(name).c_str());
  for (const RenamedOption& r : kRenamed)
    if (r.now == name && !counts_as_set(text)) text = lookup(std::string(r.before).c_str());
  return text;
}

const Option* find_option(std::string_view name) {
  for (const Option& o : kOptions) {
    if (o.name == name) return &o;
  }
  return nullptr;
}

std::string_view nearest_name(std::string_view name) {
  std::string_view best = kOptions.front().name;
  std::size_t distance = edit_distance(name, best);
  for (const Option& o : kOptions) {
    const std::size_t d = edit_distance(name, o.name);
    if (o.name.starts_with("TWINPATH_") && d < distance) {
      best = o.name;
      distance = d;
    }
  }
  return best;
}

// The name that was meant by one that NCCL took from a file as it stands there: behind a shell's
// word, quotes or a byte order mark, with blanks around it, in small letters.  Nothing where a
// comment was meant, which for NCCL begins at the start of a line only.
std::string meant_by(std::string_view name) {
  name = trimmed(name);
  if (name.starts_with('#')) return {};
  std::string out;
  for (const char c : name) {
    const bool lower = c >= 'a' && c <= 'z';
    if (lower || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_') {
      out += lower ? static_cast<char>(c - 'a' + 'A') : c;
    } else if (c != '"' && c != '\'') {
      out.clear();
    }
  }
  return out;
}

std::optional<UnreadSetting> unread(std::string_view option) {
  const std::string name(option);
  if (const std::string meant = meant_by(option); meant != name) {
    const bool known = find_option(meant) != nullptr;
    if (known || (meant.starts_with("TWINPATH_") && name.find("TWINPATH_") != name.npos))
      return UnreadSetting{"'" + printable(name) + "' is set but nobody reads it; did you mean " +
                               (known ? meant : std::string(nearest_name(meant))) +
                               "? (NCCL's files have NAME=value, without blanks or export)",
                           true};
  }
  // The test programs' own settings (seeds and the like) are theirs, and so is NCCL's place, which
  // tools/demo.sh and tools/test.sh hand on.
  if (name.starts_with("TWINPATH_TEST_") || name == "TWINPATH_NCCL") return std::nullopt;
  for (const RenamedOption& r : kRenamed)
    if (r.before == name) {
      const std::string now(r.now);
      const bool both = counts_as_set(std::getenv(now.c_str()));
      return UnreadSetting{
          name +
              (both ? " is not read, as " + now + ", its new name, is set"
                    : " is called " + now + " now: this version still reads it, the next will not"),
          true};
    }
  if (name.starts_with("TWINPATH_"))
    return UnreadSetting{name + " is set but no such option exists; did you mean " +
                             std::string(nearest_name(name)) + "?",
                         true};
  for (const UnsupportedOption& u : kUnsupported)
    if (u.name == name)
      return UnreadSetting{name + " is set but has no effect here: " + std::string(u.reason),
                           false};
  if (name.starts_with("NCCL_IB_"))
    return UnreadSetting{name + " is set but this plugin does not know it: no effect", false};
  return std::nullopt;
}

// '|' would end a table cell, '[' begin a link or footnote.
std::string cell(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c == '|' || c == '[') out += '\\';
    out += c;
  }
  return out;
}

}  // namespace

std::span<const Option> options() { return kOptions; }
std::span<const UnsupportedOption> unsupported_options() { return kUnsupported; }

Config read_config(const EnvLookup& lookup, std::vector<OptionState>* states) {
  Config config;
  const Config defaults;
  for (const Option& o : kOptions) {
    OptionState state{&o, {}, o.get(defaults), false, {}};
    const char* text = look_up(lookup, o.name);
    if (counts_as_set(text)) {
      std::string why;
      if (o.set(config, text, why)) {
        state.from_environment = true;
      } else {
        state.error = "'" + printable(text) + "' is refused: " + why;
      }
    }
    state.value = o.get(config);
    if (states != nullptr) states->push_back(std::move(state));
  }
  return config;
}

Config config_from_environment() {
  std::vector<OptionState> states;
  Config config = read_config([](const char* name) { return std::getenv(name); }, &states);
  for (const OptionState& s : states) {
    if (s.error.empty()) continue;
    TP_WARN("%.*s=%s; keeping the default '%s'", static_cast<int>(s.option->name.size()),
            s.option->name.data(), s.error.c_str(), s.value.c_str());
  }
  for (const UnreadSetting& s : unread_settings()) {
    if (s.mistake) {
      TP_WARN("%s", s.text.c_str());
    } else {
      TP_INFO(env, "%s", s.text.c_str());
    }
  }
  return config;
}

std::vector<UnreadSetting> unread_settings() {
  std::vector<UnreadSetting> out;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view setting(*entry);
    const std::string_view name = setting.substr(0, setting.find('='));
    if (name.size() == setting.size() || !counts_as_set(*entry + name.size() + 1)) continue;
    if (find_option(name) != nullptr) continue;
    if (auto found = unread(name)) out.push_back(std::move(*found));
  }
  return out;
}

std::string options_markdown() {
  const Config defaults;
  std::string out;
  std::string_view group;
  for (const Option& o : kOptions) {
    if (o.group != group) {
      group = o.group;
      if (!out.empty()) out += '\n';
      out += "**" + std::string(group) + "**\n\n| Variable | Values | Default | Meaning |\n";
      out += "|---|---|---|---|\n";
    }
    const std::string value = o.get(defaults);
    out += "| `" + std::string(o.name) + "` | " + cell(o.values) + " | ";
    out += (value.empty() ? "(empty)" : "`" + cell(value) + "`") + " | " + cell(o.doc) + " |\n";
  }
  out += "\n**Without effect: what else NCCL's InfiniBand transport reads**\n\n";
  out += "| Variable | Why |\n|---|---|\n";
  for (auto u = kUnsupported.begin(); u != kUnsupported.end();) {
    const std::string_view reason = u->reason;  // neighbours with one reason share a row
    std::string names;
    for (; u != kUnsupported.end() && u->reason == reason; ++u)
      names += (names.empty() ? "`" : ", `") + std::string(u->name) + "`";
    out += "| " + names + " | " + cell(reason) + " |\n";
  }
  return out;
}

}  // namespace twinpath
