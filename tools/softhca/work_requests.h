#pragma once
// The ibv_wr_* calls of one queue pair: collects work requests between ibv_wr_start and
// ibv_wr_complete and posts them as one chain of ibv_send_wr.
//
// A queue pair of the soft HCA is a plain ibv_qp, so the ibv_qp_ex is an object of its own beside
// it; ibv_qp_to_qp_ex finds it.  Its qp_base is a copy made at creation.
//
// Threads: ibv_wr_start takes the lock that ibv_wr_complete or ibv_wr_abort gives back, as
// libibverbs' providers do, so that several threads may build in turn.
#include <infiniband/verbs.h>

#include <cstdint>
#include <mutex>
#include <vector>

namespace twinpath::softhca {

struct WorkRequests : ibv_qp_ex {
  // `ops` are the send operations (IBV_QP_EX_WITH_*) asked for at creation.
  WorkRequests(ibv_qp* qp, std::uint64_t ops);

  // Where a request's list stands in `sges`, or its bytes in `inline_bytes` (both may move while
  // requests are added: addresses are filled in at the end).
  struct Item {
    ibv_send_wr wr{};
    std::size_t first_sge = 0;
    bool has_inline = false;
  };

  ibv_qp* const qp;
  std::mutex building;
  std::vector<Item> items;
  std::vector<ibv_sge> sges;
  std::vector<std::uint8_t> inline_bytes;
  int error = 0;  // the first thing wrong since wr_start, told by wr_complete

  ibv_send_wr* add(ibv_wr_opcode opcode);
  void add_rdma(ibv_wr_opcode opcode, std::uint32_t rkey, std::uint64_t address);
  void add_atomic(ibv_wr_opcode opcode, std::uint32_t rkey, std::uint64_t address,
                  std::uint64_t compare_add, std::uint64_t swap);
  Item* data_of_last();  // null, and `error` set, when there is no request to give data to
  void set_sges(const ibv_sge* list, std::size_t count);
  void set_inline(const ibv_data_buf* list, std::size_t count);
  void start();
  int complete();
  void abort();
};

}  // namespace twinpath::softhca
