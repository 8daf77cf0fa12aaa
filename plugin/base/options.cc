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
        "Which adapters carry traffic: real ones (verbs) or the software HCA (soft), which works "
        "between processes of one host. auto takes real adapters only."),
    option<&Config::ib_disable>("NCCL_IB_DISABLE", "Fabric", "0, 1",
                                "1 offers no adapter at all, real or software."),
    option<&Config::ib_hca>(
        "NCCL_IB_HCA", "Fabric", "[^][=]name[:port[:rail[:plane]]],...",
        "Adapters to use. Names are prefixes; a leading = matches exact names, a leading ^ "
        "excludes the named ones. At most 32 entries. Rail (0..32767) and plane (0..16383) choose "
        "nothing: NCCL 2.30 and newer is told them and keeps to rails, and within planes."),
    option<&Config::ib_merge_nics, in_range<-1, 1>>(
        "NCCL_IB_MERGE_NICS", "Fabric", "-1..1",
        "1 lets NCCL merge ports into one NIC that uses all of them for every message, 0 does not. "
        "-1 lets it for ports that have a PCI path: NCCL's topology loses a merged one without."),
    option<&Config::ib_data_direct, in_range<0, 2>>(
        "NCCL_IB_DATA_DIRECT", "Fabric", "0..2",
        "For adapters with a data-direct function, which moves GPU memory past the CPU's root "
        "complex. 1 offers a port by that function (as name_dma), 0 by the usual one, 2 both "
        "ways."),
    option<&Config::ib_merge_vfs>(
        "NCCL_IB_MERGE_VFS", "Fabric", "0, 1",
        "1 shows a virtual function to NCCL at the PCI place of its physical function, so that "
        "NCCL "
        "takes those of one adapter for its ports; 0, and where the kernel does not tell (in "
        "virtual machines), it has its own place."),
    option<&Config::soft_hcas>(
        "TWINPATH_SOFT_HCAS", "Soft HCA", "count, or name[,key=value...],...",
        "Software adapters to show. Keys: speed in Gb/s (1..6400), ports (1..8), pci (address or "
        "sysfs path); place (below=ADDRESS, bridge=ADDRESS or numa=N: for decisions only); mtu "
        "(256..4096), state (up, down), link (roce, ib), ece (1..255), pkeys (value:value...); "
        "peermem (yes, no: CUDA memory by its address, too, else by dma-buf only); mlx5 (words: "
        "plugin/fabric/soft/mlx5/variant.h); like (mlx5, mlx5-ib, bnxt_re, irdma, ionic, mana, "
        "...: another adapter's limits, names and answers)."),
    option<&Config::soft_job, is_job_name>(
        "TWINPATH_SOFT_JOB", "Soft HCA", "up to 48 of A-Z a-z 0-9 . _ -",
        "Name of the job: only processes with the same name find each other."),
    option<&Config::soft_engine>("TWINPATH_SOFT_ENGINE", "Soft HCA", "auto, spin, sleep",
                                 "How long the adapter's thread waits between looks at queues that "
                                 "nobody polls. auto: 50 us while there is work, else 1 ms; sleep: "
                                 "always 1 ms; spin: not at all (keeps a core busy)."),
    option<&Config::soft_direct>(
        "TWINPATH_SOFT_DIRECT", "Soft HCA", "0, 1",
        "Copies host memory straight between processes where the kernel allows it."),
    option<&Config::soft_copy_threads, in_range<-1, 16>>(
        "TWINPATH_SOFT_COPY_THREADS", "Soft HCA", "-1..16",
        "Threads that help with large copies of host memory; they start with the first and sleep "
        "while there is none. -1 chooses by the processors that the process may use: none on small "
        "machines."),
    option<&Config::tune>(
        "TWINPATH_TUNE", "Soft HCA", "auto, off",
        "auto sets what NCCL needs to be fast over the software HCA (GDR level, channels, sizes, "
        "a tuner; an INFO line names them) in the process's environment, where the user has not. "
        "All ranks must have the same."),
    option<&Config::soft_faults>("TWINPATH_SOFT_FAULTS", "Soft HCA",
                                 "fail_send=N, delay_us=T, late_us=T, split_us=T, fail_init=N, "
                                 "fail_rtr=N, fail_rts=N, down_device=N, down_at_ms=T, down_ms=T, "
                                 "down_every_ms=T, slow_device=N, slow_mbps=R",
                                 "Faults to inject, for tests: the N-th send of the process "
                                 "fails; every send starts T us late; data for GPU memory is "
                                 "placed up to T us after what follows it into host memory; "
                                 "atomics on host memory are not atomic with what CPUs do in T "
                                 "us; the first N moves of queue pairs to INIT, RTR or RTS time "
                                 "out; the N-th device's port goes down, when, for how long, and "
                                 "how often; or sends at no more than R Mb/s."),
    option<&Config::soft_record>("TWINPATH_SOFT_RECORD", "Soft HCA", "file",
                                 "Every command that a program sends the soft HCA's libmlx5 "
                                 "(tools/softhca) is appended there, a JSON line each. The plugin "
                                 "sends none."),
    option<&Config::connect_timeout_ms, in_range<100, 600000>>(
        "TWINPATH_CONNECT_TIMEOUT_MS", "Connections", "ms, 100..600000",
        "How long a peer's host may not answer while a connection is set up before that is an "
        "error; and how long a caller has to say who he is. A peer whose host answers is waited "
        "for: a warning names it after this time, and again after twice as long each time. "
        "Kernels' "
        "networks (GIN, RMA) wait for all ranks this long."),
    option<&Config::peer_timeout_ms, in_range<4000, 3600000>>(
        "TWINPATH_PEER_TIMEOUT_MS", "Connections", "ms, 4000..3600000",
        "How long a peer may neither answer on the control network nor move data before its "
        "connection is given up as lost. A peer whose process ends is noticed at once, and an "
        "idle peer may be silent for ever."),
    option<&Config::failover>(
        "TWINPATH_FAILOVER", "Connections", "0, 1",
        "1 keeps a connection over several ports (a merged device, or TWINPATH_STANDBY) alive "
        "while one of them works. Both ends stop, send again over the others what had not arrived, "
        "and use a port again that comes back. 0 ends the connection with its first failed "
        "transfer."),
    option<&Config::standby_ports, in_range<0, 2>>(
        "TWINPATH_STANDBY", "Connections", "0..2",
        "How many other ports of the host, fast and near ones first, a connection may use when "
        "none of its device's own works. Until then they cost a page or two of registered memory "
        "for each connection."),
    option<&Config::failover_hold_ms, in_range<0, 3600000>>(
        "TWINPATH_FAILOVER_HOLD_MS", "Connections", "ms, 0..3600000",
        "How long such a connection waits for a port when none works, and GIN for its port before "
        "it lets kernels go. A connection over one port waits at least as long as its adapter "
        "tries."),
    option<&Config::stall_ms, in_range<0, 600000>>(
        "TWINPATH_STALL_MS", "Connections", "ms, 0..600000",
        "After how long without an acknowledgement a port is given up although no error was "
        "reported, if another port of the connection answers meanwhile. 0 waits for the adapter's "
        "own error."),
    option<&Config::measure_rails>(
        "TWINPATH_MEASURE_RAILS", "Connections", "0, 1",
        "1 cuts messages over several ports (TWINPATH_STRIPE_MIN) by how much each has brought "
        "through of late. So one that is slower than its speed says does not hold up the others; "
        "the log names it. 0 cuts by the ports' speeds."),
    option<&Config::ib_gid_index, in_range<-1, 65535>>(
        "NCCL_IB_GID_INDEX", "Connections", "-1..65535",
        "GID table entry to use on RoCE ports. -1 chooses by family, range and RoCE version."),
    option<&Config::ib_flid_gid_index, in_range<-1, 255>>(
        "NCCL_IB_ROUTABLE_FLID_GID_INDEX", "Connections", "-1..255",
        "GID table entry of InfiniBand ports that may hold a routable address (with a floating "
        "LID), by which peers behind an InfiniBand router are reached. Without one there, entry 0 "
        "is used."),
    option<&Config::ib_roce_version, in_range<1, 2>>(
        "NCCL_IB_ROCE_VERSION_NUM", "Connections", "1..2",
        "RoCE version that the automatic GID choice prefers."),
    option<&Config::ib_addr_family, is_address_family>(
        "NCCL_IB_ADDR_FAMILY", "Connections", "AF_INET, AF_INET6",
        "Address family that the automatic GID choice takes."),
    option<&Config::ib_addr_range, is_address_range>(
        "NCCL_IB_ADDR_RANGE", "Connections", "address/prefix",
        "Address range that the automatic GID choice is limited to, for example 10.1.0.0/16."),
    option<&Config::ib_subnet_aware>(
        "NCCL_IB_SUBNET_AWARE_ROUTING", "Connections", "0, 1",
        "1 connects over a device whose ports share a network with the peer's where the one that "
        "NCCL names does not: for RoCE networks without routes between them. Not set, it is 1 "
        "where each port has a network of its own and no router, as in a ring of hosts."),
    option<&Config::ib_subnet_prefix, in_range<1, 32>>(
        "NCCL_IB_SUBNET_PREFIX_LEN", "Connections", "1..32",
        "How many bits of IPv4 addresses tell those networks apart; of IPv6 the first 64 do. Not "
        "set, where the choice by network is not either, the interfaces' own number holds."),
    option<&Config::ib_timeout, in_range<0, 31>>(
        "NCCL_IB_TIMEOUT", "Connections", "0..31",
        "Time before a lost packet is sent again: 4.096 us times 2 to this power; 0 is for ever."),
    option<&Config::ib_retry_cnt, in_range<0, 7>>(
        "NCCL_IB_RETRY_CNT", "Connections", "0..7",
        "How often a packet is sent again before the connection fails."),
    option<&Config::ib_mqp_retry_cnt, in_range<0, 1000>>(
        "NCCL_IB_MQP_RETRY_CNT", "Connections", "0..1000",
        "How often a queue pair is moved to its next state again when the adapter gives a timeout "
        "(the peer's address does not resolve yet). TWINPATH_CONNECT_TIMEOUT_MS bounds all of it."),
    option<&Config::ib_mqp_retry_sleep_ms, in_range<0, 60000>>(
        "NCCL_IB_MQP_RETRY_SLEEP_MSEC", "Connections", "ms, 0..60000",
        "How long before the first such try, before the n-th n times as long. Nothing sleeps."),
    option<&Config::ib_mqp_retry_all>("NCCL_IB_MQP_RETRY_ALL", "Connections", "0, 1",
                                      "1 tries again after any error, not after timeouts alone."),
    option<&Config::ib_ece_enable>(
        "NCCL_IB_ECE_ENABLE", "Connections", "0, 1",
        "Lets two adapters of one vendor agree on what they do beyond the standard (enhanced "
        "connection establishment). Both ends need it; adapters without it connect as ever."),
    option<&Config::ib_pkey, in_range<0, 65535>>("NCCL_IB_PKEY", "Connections", "0..65535",
                                                 "Index into the partition key table."),
    option<&Config::ib_pkey_value, in_range<-1, 65535>>(
        "NCCL_IB_PKEY_VALUE", "Connections", "-1..65535",
        "The partition key itself (its low 15 bits count), whatever index it has on each port; "
        "goes before NCCL_IB_PKEY. -1 takes the index."),
    option<&Config::ib_sl, in_range<-1, 15>>("NCCL_IB_SL", "Connections", "-1..15",
                                             "Service level. -1 takes the communicator's "
                                             "traffic class on InfiniBand, else 0."),
    option<&Config::ib_tc, in_range<-1, 255>>(
        "NCCL_IB_TC", "Connections", "-1..255",
        "Traffic class of data. -1 takes the communicator's on RoCE, else 0."),
    option<&Config::ib_fifo_tc, in_range<-1, 255>>(
        "NCCL_IB_FIFO_TC", "Connections", "-1..255",
        "Traffic class of clear-to-send messages. -1 takes that of data."),
    option<&Config::flow_labels>(
        "TWINPATH_FLOW_LABELS", "Connections", "0, 1",
        "1 gives every queue pair on RoCE v2 a flow label of its own, out of which adapters make "
        "the UDP source port by which switches choose among equal paths; those of one connection "
        "all differ. 0 leaves it to the driver, as NCCL's transport does."),
    option<&Config::ib_qps_per_connection, in_range<1, kMaxQps>>(
        "NCCL_IB_QPS_PER_CONNECTION", "Data path", "1..32",
        "Queue pairs of a connection on each port."),
    option<&Config::ib_split_data_on_qps>(
        "NCCL_IB_SPLIT_DATA_ON_QPS", "Data path", "0, 1",
        "1 splits every message over the queue pairs of its port; 0 takes them in turn."),
    option<&Config::ib_adaptive_routing, in_range<-1, 1>>(
        "NCCL_IB_ADAPTIVE_ROUTING", "Data path", "-1..1",
        "1 sends the data of long messages and their completion notice as two work requests, so "
        "that switches may spread the data over paths; 0 sends both as one. -1 is 1 on "
        "InfiniBand and 0 on RoCE."),
    option<&Config::ib_ar_threshold, in_range<0, 1 << 30>>(
        "NCCL_IB_AR_THRESHOLD", "Data path", "bytes, 0..1073741824",
        "Messages longer than this are long in that sense."),
    option<&Config::stripe_min, is_stripe_min>(
        "TWINPATH_STRIPE_MIN", "Data path", "bytes; k, m, g allowed",
        "Messages smaller than this travel whole on one queue pair."),
    option<&Config::net_hints>(
        "TWINPATH_NET_HINTS", "Data path", "0, 1",
        "1 heeds what NCCL (2.28 and later) says of coming operations. Connections to one peer "
        "that serve only sends and receives between two ranks share the queue pairs of a "
        "collective's connection. And while a transfer has twice as many messages under way as "
        "rails, those below four times TWINPATH_STRIPE_MIN travel whole."),
    option<&Config::optional_recv_completion>(
        "TWINPATH_OPTIONAL_RECV_COMPLETION", "Data path", "0, 1",
        "Skips the notice to the receiver where NCCL says that it does not need it (LL, LL128)."),
    option<&Config::net_optional_recv>(
        "NCCL_NET_OPTIONAL_RECV_COMPLETION", "Data path", "0, 1",
        "The same under NCCL's name; NCCL reads it, too. 0 in either switches it off."),
    option<&Config::ib_use_inline, in_range<-1, 1>>(
        "NCCL_IB_USE_INLINE", "Data path", "-1..1",
        "Whether work requests hold short data themselves: 0 never; 1 wherever the adapter grants "
        "it, except where its provider is known to ignore it; -1 where its provider is known to "
        "honour it (NCCL's own transport does it with 1 only)."),
    option<&Config::ib_pci_relaxed_ordering, in_range<0, 2>>(
        "NCCL_IB_PCI_RELAXED_ORDERING", "Data path", "0..2",
        "PCIe relaxed ordering of registered memory: 0 off, 1 on, 2 where the adapter offers it."),
    option<&Config::counters>(
        "TWINPATH_COUNTERS", "Counters", "0, 1",
        "Counts bytes, messages and waits by peer in memory that twinpath-top and "
        "twinpath-exporter of the same user read. 0 shows them nothing."),
    option<&Config::metrics_dir>(
        "TWINPATH_METRICS_DIR", "Counters", "folder",
        "A copy of the counters is left there when a connection is lost and when the last one "
        "closes; twinpath-top --post-mortem reads it. Empty leaves none."),
    option<&Config::mode>(
        "TWINPATH_MODE", "GPU", "auto, stage, proxy, gda-cpu, gda",
        "The best path that peers may use. stage copies GPU buffers through host memory; proxy "
        "lets the adapter reach them; gda-cpu and gda have the GPU issue work; auto takes the best "
        "that works and has been tried. Queues that a real adapter reads itself are used only "
        "where gda-cpu or gda asks for them. Of two ends that differ the lesser holds."),
    option<&Config::gin>("TWINPATH_GIN", "GPU", "0, 1",
                         "Offers NCCL a GIN plugin: kernels that communicate by themselves. 0 "
                         "leaves that to NCCL's own transports."),
    option<&Config::rma, in_range<-1, 1>>(
        "TWINPATH_RMA", "GPU", "-1..1",
        "Offers NCCL (2.30.7 on) an RMA plugin: ncclPutSignal and its likes, collectives without "
        "SMs, and kernels that communicate through NCCL's own proxy (GIN type PROXY). 0 leaves "
        "them to NCCL's own transports; set it alike at all ranks. -1 offers it on real adapters "
        "only. The soft HCA cannot have GPU memory that NCCL makes for it, and windows fail there, "
        "except between threads of one process with TWINPATH_SOFT_CUDA=inprocess."),
    option<&Config::gin_depth, is_queue_depth>(
        "TWINPATH_GIN_DEPTH", "GPU", "64..32768, power of two",
        "Work requests that a queue between a kernel and one peer holds, where NCCL does not say "
        "how many. Each takes 128 bytes of pinned host memory, twice that with counters."),
    option<&Config::gin_engine>(
        "TWINPATH_GIN_ENGINE", "GPU", "auto, spin, sleep",
        "How the thread that serves kernels' queues waits for work; auto: it looks again at once "
        "for 10 ms (0.2 ms on up to 4 cores) and then sleeps 20 to 200 us; sleep: it always "
        "sleeps; spin: it never does (keeps a core busy)."),
    option<&Config::gin_cq>("TWINPATH_GIN_CQ", "GPU", "host, gpu",
                            "Where the completions are stored that kernels poll. gpu takes some 7 "
                            "us longer for one completion, but many threads may poll there without "
                            "slowing each other. It is worth it for kernels of 16 blocks or more."),
    option<&Config::gin_atomics>(
        "TWINPATH_GIN_ATOMICS", "GPU", "0, 1",
        "0 sends signals without the adapter's atomics, as for an adapter that has none: the "
        "sender writes its running sum, and the peer's thread adds it up."),
    option<&Config::gin_nic_handler>(
        "NCCL_GIN_GDAKI_NIC_HANDLER", "GPU", "0, 1, 2",
        "Who rings an adapter that serves kernels' queues itself. 1: a CPU thread; 2: the GPU and "
        "nobody else; 0: the GPU where it may, else a CPU thread."),
    option<&Config::peer_mode, is_peer_modes>(
        "TWINPATH_PEER_MODE", "GPU", "rank[-rank]:mode,...",
        "TWINPATH_MODE for single peers, for example 3:proxy,7-9:gda, where NCCL tells the peer's "
        "rank; for collectives it does not."),
    option<&Config::platform_file>("TWINPATH_PLATFORM_FILE", "GPU", "path",
                                   "Distances and measured rates of GPU and adapter pairs, for "
                                   "machines that hide them; topology/README.md has the format."),
    option<&Config::topology>("TWINPATH_TOPOLOGY", "GPU", "path",
                              "A topology to read in place of this machine's (hwloc or NCCL XML, "
                              "or a folder with sys and "
                              "proc), for containers that hide the PCI tree."),
    option<&Config::topo_file>(
        "NCCL_TOPO_FILE", "GPU", "path",
        "NCCL's topology file; laid over what was read, so that both judge by one tree."),
    option<&Config::net_gdr_level, is_gdr_level>(
        "NCCL_NET_GDR_LEVEL", "GPU", "LOC, PIX, PXB, C2C, PHB, NODE, SOCK, SYS, 0..5",
        "How far GPU and adapter may be apart for the adapter to reach GPU memory. NCCL applies it "
        "itself, too."),
    option<&Config::net_gdr_read, in_range<-1, 1>>(
        "NCCL_NET_GDR_READ", "GPU", "-1..1",
        "Whether the adapter reads GPU memory when it sends: 0 never, 1 wherever it may write it, "
        "-1 automatic. NCCL applies it itself, too."),
    option<&Config::soft_cuda>(
        "TWINPATH_SOFT_CUDA", "GPU", "0, inprocess, process",
        "Whether the software HCA moves CUDA memory: process has a process of its own do it "
        "(twinpath-copier), which takes some 500 MiB of each GPU; inprocess does it in the "
        "program, where a cudaFree, a first kernel launch or a copy to pageable memory behind a "
        "collective may hang for ever; 0 offers host memory only."),
    option<&Config::copier>("TWINPATH_COPIER", "GPU", "path",
                            "The executable of that process. Empty: twinpath-copier beside the "
                            "plugin."),
    option<&Config::helper_cpus>(
        "TWINPATH_HELPER_CPUS", "GPU", "near, inherit",
        "Where twinpath-copier and helping threads run, if a rank's binding has fewer than four "
        "processors; near: on all that the cpuset allows, or on those of the GPU's NUMA node if "
        "four of them are; inherit: in the binding, beside NCCL's threads."),
    option<&Config::gdr_flush_disable>(
        "NCCL_GDR_FLUSH_DISABLE", "GPU", "0, 1",
        "1 skips the read that makes received data visible to the GPU."),
    option<&Config::socket_ifname>(
        "NCCL_SOCKET_IFNAME", "Sockets", "[^][=]name,...",
        "Network interfaces of the control connections. Names are prefixes; = matches exact "
        "names, ^ excludes the named ones."),
    option<&Config::socket_family, is_address_family>(
        "NCCL_SOCKET_FAMILY", "Sockets", "AF_INET, AF_INET6",
        "Address family of the control connections. Empty: any."),
    option<&Config::comm_id>(
        "NCCL_COMM_ID", "Sockets", "address:port, [address]:port",
        "Where NCCL meets rank 0. Without NCCL_SOCKET_IFNAME and InfiniBand's own interfaces the "
        "control connections take one on that address's network, as NCCL does."),
};

constexpr std::string_view kNoFailover =
    "see TWINPATH_FAILOVER, which is on by itself and has no such steps";
constexpr std::string_view kOwnCounters =
    "waits are counted by peer and cause always; twinpath-top shows them";
constexpr std::string_view kReads = "as many reads are under way as both adapters take, 16 at most";
constexpr std::string_view kNoWeights =
    "shares follow the ports' speeds as they were when the connection was made";

// Every variable that NCCL's InfiniBand transport of 2.19 to 2.32 reads and this plugin does not.
constexpr std::array kUnsupported{
    UnsupportedOption{"NCCL_IBVERBS_LIB", "libibverbs.so.1 is always the library opened"},
    UnsupportedOption{"NCCL_IB_CUDA_SUPPORT", "use NCCL_NET_GDR_LEVEL"},
    UnsupportedOption{"NCCL_IB_DEVICE_PCI_ORDER", "devices always come in PCI order"},
    UnsupportedOption{"NCCL_IB_EVENT_BASED_LB", kNoWeights},
    UnsupportedOption{"NCCL_IB_EVENT_BASED_LB_REMOTE", kNoWeights},
    UnsupportedOption{"NCCL_IB_OOO_RQ", "out-of-order receive queues are not implemented"},
    UnsupportedOption{"NCCL_IB_PREPOST_RECEIVE_WORK_REQUESTS", "receives are always pre-posted"},
    UnsupportedOption{"NCCL_IB_QUERY_PORT_SPEED", "the library is always asked for the speed"},
    UnsupportedOption{"NCCL_IB_RAIL_POLICY", "rails are those that NCCL_IB_HCA names"},
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
    UnsupportedOption{"NCCL_IB_WARN_RAIL_LOCAL", "NCCL is told the rails and keeps to them itself"},
    UnsupportedOption{"NCCL_IB_WQE_LATENCY_REPORT", kOwnCounters},
    UnsupportedOption{"NCCL_IB_WQE_LATENCY_THRESHOLD_NS", kOwnCounters},
    UnsupportedOption{"NCCL_GIN_ERROR_QUERY_SEC", "errors of kernels' queues are told at once"},
    UnsupportedOption{"NCCL_GIN_GDAKI_MAX_DEST_RD_ATOMIC", kReads},
    UnsupportedOption{"NCCL_GIN_GDAKI_MAX_QP_RD_ATOMIC", kReads},
    UnsupportedOption{"NCCL_GIN_GDAKI_QP_DEPTH", "use TWINPATH_GIN_DEPTH"},
    UnsupportedOption{"NCCL_GIN_IB_TC", "NCCL_IB_TC holds for kernels' queues, too"},
};

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

std::optional<UnreadSetting> unread(std::string_view option) {
  const std::string name(option);
  // The test programs' own settings (seeds and the like) are theirs, and so is NCCL's place, which
  // tools/demo.sh and tools/test.sh hand on.
  if (name.starts_with("TWINPATH_TEST_") || name == "TWINPATH_NCCL") return std::nullopt;
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
    const char* text = lookup(std::string(o.name).c_str());
    // An empty variable counts as not set, as in NCCL, and so does one of blanks alone.
    if (text != nullptr && !trimmed(text).empty()) {
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
    if (name.size() + 1 >= setting.size()) continue;  // empty: not set
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
  for (const UnsupportedOption& u : kUnsupported)
    out += "| `" + std::string(u.name) + "` | " + cell(u.reason) + " |\n";
  return out;
}

}  // namespace twinpath
