// See path_blame.h.
#include "gda/served/back/path_blame.h"

namespace twinpath::gda {

Syndrome syndrome_of(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_SUCCESS:
      return Syndrome::none;
    case IBV_WC_LOC_LEN_ERR:
      return Syndrome::local_length;
    case IBV_WC_LOC_PROT_ERR:
      return Syndrome::local_protection;
    case IBV_WC_WR_FLUSH_ERR:
      return Syndrome::flushed;
    case IBV_WC_BAD_RESP_ERR:
      return Syndrome::bad_response;
    case IBV_WC_LOC_ACCESS_ERR:
      return Syndrome::local_access;
    case IBV_WC_REM_INV_REQ_ERR:
      return Syndrome::remote_invalid_request;
    case IBV_WC_REM_ACCESS_ERR:
      return Syndrome::remote_access;
    case IBV_WC_REM_OP_ERR:
      return Syndrome::remote_operation;
    case IBV_WC_RETRY_EXC_ERR:
      return Syndrome::retry_exceeded;
    case IBV_WC_RNR_RETRY_EXC_ERR:
      return Syndrome::rnr_exceeded;
    case IBV_WC_REM_ABORT_ERR:
    case IBV_WC_RESP_TIMEOUT_ERR:
    case IBV_WC_FATAL_ERR:
    case IBV_WC_GENERAL_ERR:
      return Syndrome::aborted;
    default:
      return Syndrome::local_qp_operation;
  }
}

}  // namespace twinpath::gda
