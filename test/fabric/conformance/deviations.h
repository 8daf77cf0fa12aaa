#pragma once
// Where an adapter does something else than the IB specification says, or where the specification
// leaves it open: one row a deviation, and the only way for a test case to accept it.  A case that
// asks `deviates(...)` still asserts what the deviating side does.
#include <infiniband/verbs.h>

#include <string>

namespace twinpath::conformance {

// `soft`: the software HCA, also where it is like an adapter that has no row.
enum class Fabric { rxe, bnxt_re, erdma, hns, irdma, mana, mlx5, soft };

struct Deviation {
  const char* id;         // what cases name it by
  Fabric fabric;          // who deviates
  const char* does;       // what it does
  const char* specified;  // what the specification says instead, with the section
  int since = 0;          // which Linux was the first to be seen so, 6.12 is 6012; 0: all
};

Fabric fabric();  // by how the name of the first device begins
// Whether the fabric under test has the deviation `id`; the id must be in the table.
bool deviates(const std::string& id);

// What posting returns for an errno value; what create_qp leaves in errno.
int posting_error(int error);
int creation_error(int error);
// What posting a send that its queue pair cannot take returns.
int send_refusal();

// Whether the device has no state SQD, which it must say to a queue pair in RTS.
bool without_sqd(ibv_qp* qp);

// The status of a requester whose own SGE has no valid key; of a receive with such an SGE; of a
// SEND that is too long for its receive; and of that receive.
ibv_wc_status bad_lkey_status();
ibv_wc_status bad_receive_status();
ibv_wc_status too_long_status();
ibv_wc_status too_short_status();

}  // namespace twinpath::conformance
