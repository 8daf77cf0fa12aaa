#include "plugin/fabric/soft/mlx5/refusal.h"

#include <algorithm>
#include <cerrno>

#include "plugin/fabric/soft/mlx5/layout.h"

namespace twinpath::soft::mlx5 {

int errno_of(Status status) {
  switch (status) {
    case Status::ok:
      return 0;
    case Status::busy:
      return EBUSY;
    case Status::no_resources:
      return EAGAIN;
    case Status::bad_input_length:
    case Status::bad_output_length:
      return EIO;
    case Status::bad_operation:
    case Status::bad_parameter:
    case Status::bad_resource:
    case Status::bad_index:
    case Status::bad_qp_state:
    case Status::bad_size:
      return EINVAL;
  }
  return EIO;
}

Status status_of(Refusal refusal) {
  switch (refusal) {
#define TP_REFUSAL_STATUS(name, status, text) \
  case Refusal::name:                         \
    return Status::status;
    TP_REFUSALS(TP_REFUSAL_STATUS)
#undef TP_REFUSAL_STATUS
    case Refusal::none:
    case Refusal::first_:
      break;
  }
  return Status::ok;
}

const char* text_of(Refusal refusal) {
  switch (refusal) {
#define TP_REFUSAL_TEXT(name, status, text) \
  case Refusal::name:                       \
    return text;
    TP_REFUSALS(TP_REFUSAL_TEXT)
#undef TP_REFUSAL_TEXT
    case Refusal::none:
    case Refusal::first_:
      break;
  }
  return "";
}

void refuse(Refusal refusal, std::span<std::uint8_t> answer) {
  std::fill(answer.begin(), answer.end(), std::uint8_t{0});
  set(answer, kStatus, static_cast<std::uint64_t>(status_of(refusal)));
  set(answer, kSyndrome, static_cast<std::uint64_t>(refusal));
}

}  // namespace twinpath::soft::mlx5
