#pragma once
// Verbs of the software HCA beyond the table that the plugin uses (plugin/fabric/verbs.h): what
// programs that others wrote need of a libibverbs.  Used by tools/softhca and by tests.
//
// Contexts are members of a verbs_context, so that a caller may turn one into an extended context
// (abi_compat, function pointers); load_soft_hca leaves abi_compat null.
//
// Shapes, ownership and errors are those of the libibverbs calls of the same name.  Threads: any,
// except that an object must not be used while it is destroyed.
#include <infiniband/verbs.h>

#include <cstdint>
#include <vector>

#include "plugin/fabric/soft/mlx5/variant.h"

namespace twinpath::soft {

// Completion channels.  `fd` of a channel becomes readable when an armed CQ gets a completion
// (ibv_context::ops.req_notify_cq arms it once, for any or for solicited completions);
// get_cq_event reads one event, and blocks unless the caller made `fd` non-blocking.
// destroy_cq waits until every event of that CQ has been acknowledged.
ibv_comp_channel* create_comp_channel(ibv_context* context);
int destroy_comp_channel(ibv_comp_channel* channel);  // EBUSY while CQs use it
int get_cq_event(ibv_comp_channel* channel, ibv_cq** cq, void** cq_context);
void ack_cq_events(ibv_cq* cq, unsigned count);

// Shared receive queues (basic type).  Receives are posted with ibv_context::ops.post_srq_recv;
// the limit event IBV_EVENT_SRQ_LIMIT_REACHED fires once after each arming.
ibv_srq* create_srq(ibv_pd* pd, ibv_srq_init_attr* attr);
int modify_srq(ibv_srq* srq, ibv_srq_attr* attr, int mask);
int query_srq(ibv_srq* srq, ibv_srq_attr* attr);
int destroy_srq(ibv_srq* srq);  // EBUSY while QPs use it
// The next receive, for a datagram that the caller places; false: there is none.
bool take_receive(ibv_srq* srq, std::uint64_t& id, std::vector<ibv_sge>& pieces);

// 24 bits, one space a process.
std::uint32_t pd_number(const ibv_pd* pd);

// Gives a region that nobody was told of yet keys with another low byte.
void rename_keys(ibv_mr* mr, std::uint8_t low);
// Makes a region another one, of host memory of this process, with the same keys but for their low
// byte, as an adapter's work requests do (UMR).  Without bytes it is nobody's until it is changed
// again.  Afterwards nothing is under way by what it was before.
void change_region(ibv_mr* mr, ibv_pd* pd, void* address, std::size_t bytes, std::uint64_t iova,
                   unsigned access, std::uint8_t low);

// Copies from host memory under a local key, or to it, as an adapter does for datagrams.  False: no
// such memory of that domain, or no right to write.
bool read_region(ibv_pd* pd, std::uint64_t address, std::uint32_t lkey, void* to,
                 std::size_t bytes);
bool write_region(ibv_pd* pd, std::uint64_t address, std::uint32_t lkey, const void* from,
                  std::size_t bytes);

// What its adapter says in answer to commands of mlx5 adapters (mlx5=WORDS).
mlx5::Variant mlx5_variant(const ibv_context* context);

// RoCE v2, all of them.  errno value.
int query_gid_entry(ibv_context* context, std::uint32_t port, std::uint32_t index,
                    ibv_gid_entry* entry);
int query_pkey(ibv_context* context, std::uint8_t port, int index, __be16* pkey);
// Rights and address may not change after registration here: EOPNOTSUPP.
int resize_cq(ibv_cq* cq, int cqe);  // grows or shrinks above what is queued

// Takes a port down or up, as pulling its cable would: the device's contexts get
// IBV_EVENT_PORT_ERR or IBV_EVENT_PORT_ACTIVE, and work posted while it is down runs into the
// transport's retry limit.
int set_port_state(ibv_context* context, std::uint8_t port, bool up);

// What a port loses without a word: no event, and it says that it is active.
enum class PortLoss : std::uint8_t {
  none,
  all,       // whatever it sends and what is sent to it
  incoming,  // what is sent to it, acknowledgements too: the peer gets what it sends
  answers,   // acknowledgements of what it sends: the peer has it all
};
int set_port_loss(ibv_context* context, std::uint8_t port, PortLoss loss);

// Gives an InfiniBand port another LID, as a subnet manager does: the device's contexts get
// IBV_EVENT_LID_CHANGE, and what peers send to the one that it had is lost, their acknowledgements
// too.  EINVAL for what is none of the device's eight (those that its ports would have if it had as
// many), and for that of another port.
int set_port_lid(ibv_context* context, std::uint8_t port, std::uint16_t lid);

// Places what adapters of this process have written to that GPU's memory and the fault late_us
// keeps on its way, as a call of the GPU's driver does; returns when it is there.
void place_posted_writes(int gpu);

// What a port sends takes as long as at that many Mb/s, without a word; 0: as fast as it goes.
int set_port_rate(ibv_context* context, std::uint8_t port, std::uint32_t mbps);

}  // namespace twinpath::soft
