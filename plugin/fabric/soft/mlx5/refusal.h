#pragma once
// Why the device refuses a command: a status, as the adapter's reference manual numbers them, and a
// syndrome that tells the cases of one status apart.  An adapter's syndromes are its firmware's
// business; these are ours, and have a text.
#include <cstdint>
#include <span>

namespace twinpath::soft::mlx5 {

enum class Status : std::uint8_t {
  ok = 0x00,
  bad_operation = 0x02,
  bad_parameter = 0x03,
  bad_resource = 0x05,
  busy = 0x06,
  bad_index = 0x0a,
  no_resources = 0x0f,
  bad_qp_state = 0x10,
  bad_size = 0x40,  // more completions wait than the new queue has room for
  bad_input_length = 0x50,
  bad_output_length = 0x51,
};

// What the driver makes of a status, where it tells it by errno: 0 for ok.
int errno_of(Status status);

// X(name, status, text)
#define TP_REFUSALS(X)                                                                            \
  X(short_command, bad_input_length, "the command is shorter than its layout")                    \
  X(short_answer, bad_output_length, "the answer is shorter than its layout")                     \
  X(no_command, bad_operation, "there is no such command")                                        \
  X(reserved, bad_parameter, "a bit is set that the command's layout reserves")                   \
  X(no_register, bad_parameter, "there is no such register")                                      \
  X(no_field, bad_parameter, "that field cannot be set (field_select)")                           \
  X(no_function, bad_parameter, "there is no such function (function_id, vport_number)")          \
  X(no_page, bad_parameter, "a page lies outside the machine's memory")                           \
  X(key_mode, bad_parameter, "keys of that kind are not made (access_mode, free, log_page_size)") \
  X(key_pages, bad_parameter, "the memory has not as many pages as its length")                   \
  X(eq_size, bad_parameter, "the event queue is longer than its pages, or the device has them")   \
  X(no_vector, bad_parameter, "there is no such interrupt vector (intr)")                         \
  X(no_number, no_resources, "the device has no further object of that kind")                     \
  X(no_modifier, bad_parameter, "the command has no such modifier (op_mod)")                      \
  X(no_port, bad_parameter, "there is no such port")                                              \
  X(no_gid, bad_index, "the port has no such GID")                                                \
  X(no_pkey, bad_index, "the port has no such partition key")                                     \
  X(no_uar, bad_resource, "there is no such doorbell page (uar_page)")                            \
  X(no_umem, bad_resource, "there is no such memory (umem of the queue)")                         \
  X(no_record_umem, bad_resource, "there is no such memory (umem of the doorbell record)")        \
  X(no_eqn, bad_resource, "there is no such event queue (c_eqn)")                                 \
  X(no_pd, bad_resource, "there is no such protection domain")                                    \
  X(no_cq, bad_resource, "there is no such completion queue (cqn_snd, cqn_rcv)")                  \
  X(no_srq, bad_resource, "there is no such shared receive queue")                                \
  X(no_object, bad_resource, "there is no such object")                                           \
  X(group, bad_parameter, "the queue pair takes no datagrams, or is (not) in the group already")  \
  X(in_use, busy, "another object uses it")                                                       \
  X(cq_size, bad_parameter, "the completion queue is longer than the device has them")            \
  X(outstanding, bad_size, "more completions wait than the new queue has room for")               \
  X(srq_size, bad_parameter,                                                                      \
    "shared receives are a list of 1 to 32768 entries of 32 to 512 bytes")                        \
  X(srq_limit, bad_parameter, "the limit is beyond the queue's entries (lwm)")                    \
  X(cqe_size, bad_parameter, "completions have 64 or 128 bytes")                                  \
  X(queue_alignment, bad_parameter, "the queue does not begin at a 64th of its memory's page")    \
  X(queue_end, bad_parameter, "the queue ends behind its memory")                                 \
  X(record_alignment, bad_parameter, "the doorbell record does not begin at 8 bytes")             \
  X(record_end, bad_parameter, "the doorbell record ends behind its memory")                      \
  X(clock, bad_parameter,                                                                         \
    "completions are not stamped by that clock (ts_format); TWINPATH_SOFT_HCAS=...,"              \
    "mlx5=both-clocks has an adapter that can")                                                   \
  X(cross_channel, bad_parameter, "no queue waits for another (cd_master)")                       \
  X(queue_size, bad_parameter, "the send queue is longer than the device has them")               \
  X(record_mode, bad_parameter, "queues without doorbell records are not offered")                \
  X(service, bad_parameter, "the service is neither RC nor DCI")                                  \
  X(rq_type, bad_parameter, "there is no such kind of receive queue")                             \
  X(new_state, bad_parameter, "a queue pair is made in reset")                                    \
  X(state, bad_qp_state, "the queue pair is in another state")                                    \
  X(mtu, bad_parameter, "the MTU is none of 256 to 4096 bytes")                                   \
  X(message, bad_parameter, "messages are longer than 1 GiB (log_msg_max)")                       \
  X(remote_mac, bad_parameter, "no MAC of the destination, on Ethernet")                          \
  X(remote_gid, bad_parameter, "no GID of the destination")                                       \
  X(remote_lid, bad_parameter, "no LID of the destination, on InfiniBand without a GRH")          \
  X(udp_port, bad_parameter, "the UDP source port is not of those for RoCE")                      \
  X(reads, bad_parameter,                                                                         \
    "more reads and atomics under way than the device can (log_rra_max, "                         \
    "log_sra_max)")                                                                               \
  X(no_room, no_resources, "the software HCA makes no further queue pair")                        \
  X(not_done, bad_parameter, "the software HCA's queue pair refuses the transition")              \
  X(atomic_mode, bad_parameter, "remote atomics are allowed, of no size (atomic_mode)")

enum class Refusal : std::uint32_t {
  none = 0,
  first_ = 0x54500000,  // so that they are not taken for somebody else's
#define TP_REFUSAL_NAME(name, status, text) name,
  TP_REFUSALS(TP_REFUSAL_NAME)
#undef TP_REFUSAL_NAME
};

Status status_of(Refusal refusal);
const char* text_of(Refusal refusal);
// Makes the answer one that says nothing else.
void refuse(Refusal refusal, std::span<std::uint8_t> answer);

}  // namespace twinpath::soft::mlx5
