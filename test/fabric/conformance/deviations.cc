// The table of deviations, which listing.py prints.
#include "test/fabric/conformance/deviations.h"

#include <sys/utsname.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "test/fabric/conformance/endpoint.h"

namespace twinpath::conformance {
namespace {

constexpr Deviation kDeviations[] = {
    // clang-format off
    {"unsignalled-frees-queue", Fabric::rxe,
     "unsignalled work requests never fill the send queue",
     "10.8.6: their slots come back with a later signalled completion only"},
    {"bad-lkey-status", Fabric::rxe,
     "a work request with an invalid lkey ends as LOC_QP_OP_ERR",
     "9.9.2 and 11.6.2: local protection error"},
    {"bad-receive-status", Fabric::rxe,
     "a receive with an invalid lkey ends as LOC_QP_OP_ERR",
     "9.9.3 and 11.6.2: local protection error"},
    {"receive-too-short", Fabric::rxe,
     "a SEND longer than its receive ends as REM_OP_ERR, its receive as LOC_QP_OP_ERR",
     "9.9.3 and 11.6.2: remote invalid request error, local length error"},
    {"error-not-solicited", Fabric::rxe,
     "a receive that ends in error wakes no CQ armed for solicited completions",
     "11.4, Request Completion Notification: an unsuccessful completion wakes it too"},
    {"sqd-needs-a-post", Fabric::rxe,
     "work that was posted in SQD begins at the first post after the return to RTS",
     "10.3.1, send queue drain: processing resumes with the transition"},
    {"message-size-not-enforced", Fabric::rxe,
     "messages above the port's max_msg_sz are sent",
     "11.6.2: local length error"},
    {"pkey-index-not-checked", Fabric::rxe,
     "a P_Key index beyond the table is taken",
     "11.2, Modify Queue Pair: invalid P_Key index"},
    {"responder-depth-not-checked", Fabric::rxe,
     "a max_dest_rd_atomic above the device's limit is taken",
     "11.2, Modify Queue Pair: more responder resources than the adapter has"},
    {"err-receive-not-flushed", Fabric::rxe,
     "a receive posted in ERR stays where it is: libibverbs' driver does not tell the kernel",
     "10.3.1, error state: it completes as flushed"},
    {"no-error-events", Fabric::rxe,
     "a responder that refuses a request enters ERR without an asynchronous event",
     "9.9.3 and 11.6.3: local access violation, or invalid request, work queue error"},
    {"no-last-wqe-event", Fabric::rxe,
     "a queue pair with an SRQ enters ERR without a last-WQE event",
     "10.3.1 and 11.6.3: last WQE reached"},
    {"no-established-event", Fabric::rxe,
     "the first message in RTR raises no event",
     "11.6.3: communication established"},
    {"wr-inline-needs-flag", Fabric::rxe,
     "ibv_wr_set_inline_data needs IBV_SEND_INLINE in wr_flags (libibverbs 44)",
     "nothing; ibv_wr_post(3): the call itself makes the data inline"},
    {"wr-list-length", Fabric::rxe,
     "ibv_wr_set_sge_list takes every SGE to be as long as the first (libibverbs 44)",
     "10.7: a gather list is as long as its SGEs together"},
    {"inline-ignored", Fabric::mana,
     "IBV_SEND_INLINE means nothing: data are read by their local key once the work is begun",
     "nothing; ibv_post_send(3): the buffer can be used again at once, the lkey is not looked at"},
    {"inline-never-refused", Fabric::mana,
     "any size of inline data is granted, the flag being ignored",
     "nothing; ibv_create_qp(3): max_inline_data is a size that can be posted inline"},
    {"inline-never-refused", Fabric::hns,
     "as much inline data are granted as there is room for",
     "nothing; ibv_create_qp(3): values are greater than or equal to those asked for"},
    {"no-errno-from-create", Fabric::bnxt_re,
     "a queue pair that is refused leaves errno as it was",
     "nothing; all other calls of libibverbs that give no object say why"},
    {"error-refuses-posts", Fabric::mana,
     "posting in ERR is refused with EINVAL",
     "10.3.1, error state: work requests are taken and completed as flushed"},
    {"error-refuses-posts", Fabric::erdma,
     "posting in ERR is refused with EIO",
     "10.3.1, error state: work requests are taken and completed as flushed"},
    {"negative-errno", Fabric::erdma,
     "ibv_post_send and ibv_post_recv return errno values below 0",
     "nothing; ibv_post_send(3): 0, or the value of errno"},
    {"no-right-to-atomics", Fabric::mana,
     "a region with the right to remote atomics is refused",
     "nothing; ibv_reg_mr(3): a right that is given if supported"},
    {"lid-on-ethernet", Fabric::irdma,
     "an Ethernet port shows a LID",
     "nothing; annex A16 (RoCE) addresses by GIDs alone"},
    {"no-message-size", Fabric::mana,
     "the port shows no longest message",
     "11.2, Query HCA: maximum message size"},
    {"no-sqd", Fabric::mlx5,
     "to SQD is refused: mlx5_ib of Linux 6.1 knows no such change of state",
     "10.3.1, send queue drain"},
    {"read-right-needs-depth", Fabric::mlx5,
     "rights to read and to atomics are kept back until the responder depth is set (mlx5_ib)",
     "11.2, Query Queue Pair: the rights that were set"},
    {"timeout-not-checked", Fabric::mlx5,
     "a timeout code above 31 is taken, less its high bits (mlx5_ib)",
     "11.2, Modify Queue Pair: a code of 5 bits"},
    {"refused-sends-are-enomem", Fabric::mlx5,
     "a send that the queue pair cannot take, and a receive beside an SRQ, is ENOMEM (libmlx5)",
     "nothing; ibv_post_send(3): EINVAL is a wrong work request, ENOMEM a full queue"},
    {"atomic-ignores-length", Fabric::mlx5,
     "an atomic's local SGE counts as eight bytes, whatever its length (libmlx5)",
     "11.6.2: local length error"},
    {"arming-overtaken", Fabric::mlx5,
     "an arming right behind another takes its place: softhca --pci polls the register",
     "11.4, Request Completion Notification: one for all is not weakened"},
    {"rounded-sges", Fabric::mlx5,
     "a few SGEs more than shown are granted, as many as a work request has room for (libmlx5)",
     "11.2, Create Queue Pair: the maximum is exceeded"},
    {"receives-beyond-shown", Fabric::mlx5,
     "four times the receives shown are taken: Linux shows what sends of four blocks allow (mlx5_ib)",
     "11.2, Create Queue Pair: the maximum is exceeded", 6012},
    // clang-format on
};

// Linux 6.12 is 6012.
int kernel() {
  utsname names{};
  int major = 0, minor = 0;
  REQUIRE(uname(&names) == 0);
  REQUIRE(std::sscanf(names.release, "%d.%d", &major, &minor) == 2);
  return major * 1000 + minor;
}

}  // namespace

Fabric fabric() {
  constexpr std::pair<const char*, Fabric> kNames[] = {
      {"rxe", Fabric::rxe},   {"bnxt_re", Fabric::bnxt_re}, {"erdma_", Fabric::erdma},
      {"hns_", Fabric::hns},  {"irdma", Fabric::irdma},     {"mana_", Fabric::mana},
      {"mlx5_", Fabric::mlx5}};
  const std::string device = device_name(0);
  for (const auto& [begin, fabric] : kNames)
    if (device.rfind(begin, 0) == 0) return fabric;
  return Fabric::soft;
}

bool deviates(const std::string& id) {
  bool known = false, here = false;
  for (const Deviation& d : kDeviations) {
    known = known || d.id == id;
    here = here || (d.id == id && d.fabric == fabric() && d.since <= kernel());
  }
  INFO("deviation " << id << " is not in the table");
  REQUIRE(known);
  return here;
}

int posting_error(int error) { return deviates("negative-errno") ? -error : error; }
int send_refusal() { return deviates("refused-sends-are-enomem") ? ENOMEM : posting_error(EINVAL); }
bool without_sqd(ibv_qp* qp) {
  if (!deviates("no-sqd")) return false;
  CHECK(to_state(qp, IBV_QPS_SQD) == EINVAL);
  CHECK(state_of(qp) == IBV_QPS_RTS);
  return true;
}
int creation_error(int error) { return deviates("no-errno-from-create") ? 0 : error; }

ibv_wc_status bad_lkey_status() {
  return deviates("bad-lkey-status") ? IBV_WC_LOC_QP_OP_ERR : IBV_WC_LOC_PROT_ERR;
}
ibv_wc_status bad_receive_status() {
  return deviates("bad-receive-status") ? IBV_WC_LOC_QP_OP_ERR : IBV_WC_LOC_PROT_ERR;
}
ibv_wc_status too_long_status() {
  return deviates("receive-too-short") ? IBV_WC_REM_OP_ERR : IBV_WC_REM_INV_REQ_ERR;
}
ibv_wc_status too_short_status() {
  return deviates("receive-too-short") ? IBV_WC_LOC_QP_OP_ERR : IBV_WC_LOC_LEN_ERR;
}

}  // namespace twinpath::conformance
