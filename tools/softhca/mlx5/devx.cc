// Commands: objects made, changed, asked and destroyed by bytes in the adapter's own format.
#include <infiniband/mlx5dv.h>

#include <atomic>
#include <cerrno>
#include <memory>
#include <span>
#include <vector>

#include "plugin/fabric/soft/mlx5/layout.h"
#include "plugin/fabric/soft/mlx5/opcode.h"
#include "tools/softhca/mlx5/answers.h"
#include "tools/softhca/mlx5/objects.h"
#include "tools/softhca/mlx5/recorder.h"

namespace model = twinpath::soft::mlx5;
using namespace twinpath::softhca::mlx5;
using model::Opcode;

// Opaque in mlx5dv.h.
struct mlx5dv_devx_obj {
  ibv_context* context;
  Name name;
  Opcode made_by;
  std::atomic<unsigned> state{0};  // of a queue pair, as the device numbers states
};

namespace {

using Bytes = std::span<const std::uint8_t>;

Opcode opcode_of(Bytes in) { return static_cast<Opcode>(model::get(in, model::kOpcode)); }

std::uint32_t number_at(Bytes in, model::Field field) {
  return static_cast<std::uint32_t>(model::get(in, field));
}

// States as the device numbers them.
enum State : unsigned { kReset = 0, kInit = 1, kReceive = 2, kSend = 3, kError = 6 };

void change_state(mlx5dv_devx_obj& object, Opcode opcode) {
  switch (opcode) {
    case Opcode::rst2init_qp:
    case Opcode::init2init_qp:
      object.state = kInit;
      break;
    case Opcode::init2rtr_qp:
      object.state = kReceive;
      break;
    case Opcode::rtr2rts_qp:
    case Opcode::rts2rts_qp:
      object.state = kSend;
      break;
    case Opcode::qp_2err:
      object.state = kError;
      break;
    case Opcode::qp_2rst:
      object.state = kReset;
      break;
    default:
      break;
  }
}

Name make_object(ibv_context* context, Opcode opcode, Bytes in) {
  if (opcode == Opcode::create_cq) {
    return objects().add(Kind::cq, context,
                         {{Kind::uar, number_at(in, model::cq::kUarPage)},
                          {Kind::umem, number_at(in, model::cq::kUmem)},
                          {Kind::umem, number_at(in, model::cq::kDbrUmem)}});
  }
  if (opcode == Opcode::create_qp) {
    return objects().add(Kind::qp, context,
                         {{Kind::uar, number_at(in, model::qp::kUarPage)},
                          {Kind::umem, number_at(in, model::qp::kUmem)},
                          {Kind::umem, number_at(in, model::qp::kDbrUmem)},
                          {Kind::cq, number_at(in, model::qp::kSendCq)},
                          {Kind::cq, number_at(in, model::qp::kReceiveCq)}});
  }
  return objects().add(Kind::other, context);
}

// A command under way: checked, answered and recorded.
class Command {
 public:
  Command(const char* call, ibv_context* context, const void* asked, std::size_t asked_bytes,
          void* answered, std::size_t answered_bytes)
      : record_(call, context), good_(well_formed(asked, asked_bytes, answered, answered_bytes)) {
    // A copy, because the answer may go where the command came from.
    const auto* const begin = static_cast<const std::uint8_t*>(asked);
    if (begin != nullptr && asked_bytes <= kLongest) in.assign(begin, begin + asked_bytes);
    if (!good_) return;
    out = {static_cast<std::uint8_t*>(answered), answered_bytes};
    answer(context, in, out);
  }

  bool good() const { return good_; }
  Opcode opcode() const { return opcode_of(in); }
  // Records, and gives `result` back.
  int end(int result) {
    if (good_) {
      record_.number("opcode", static_cast<std::uint64_t>(opcode()));
      if (const char* name = name_of(opcode())) record_.text("name", name);
    }
    record_.bytes("in", in).bytes("out", out).write(result);
    return result;
  }
  int end() { return end(good_ ? 0 : EINVAL); }
  void about(const mlx5dv_devx_obj& object) { record_.number("object", object.name.number); }

  std::vector<std::uint8_t> in;
  std::span<std::uint8_t> out;

 private:
  Record record_;
  bool good_;
};

}  // namespace

extern "C" {

mlx5dv_devx_obj* mlx5dv_devx_obj_create(ibv_context* context, const void* in, std::size_t in_bytes,
                                        void* out, std::size_t out_bytes) {
  Command command("devx_obj_create", context, in, in_bytes, out, out_bytes);
  if (!command.good()) {
    errno = command.end();
    return nullptr;
  }
  auto object = std::make_unique<mlx5dv_devx_obj>();
  object->context = context;
  object->made_by = command.opcode();
  object->name = make_object(context, object->made_by, command.in);
  model::set(command.out, model::kNumber, object->name.number);
  command.end();
  return object.release();
}

int mlx5dv_devx_obj_modify(mlx5dv_devx_obj* object, const void* in, std::size_t in_bytes, void* out,
                           std::size_t out_bytes) {
  Command command("devx_obj_modify", object->context, in, in_bytes, out, out_bytes);
  command.about(*object);
  if (command.good() && object->name.kind == Kind::qp) change_state(*object, command.opcode());
  return command.end();
}

int mlx5dv_devx_obj_query(mlx5dv_devx_obj* object, const void* in, std::size_t in_bytes, void* out,
                          std::size_t out_bytes) {
  Command command("devx_obj_query", object->context, in, in_bytes, out, out_bytes);
  command.about(*object);
  if (command.good() && command.opcode() == Opcode::query_qp)
    model::set(command.out, model::qp::kState, object->state);
  return command.end();
}

int mlx5dv_devx_obj_destroy(mlx5dv_devx_obj* object) {
  // There are no bytes: the kernel keeps those of each object's destruction since it was made.
  Record record("devx_obj_destroy", object->context);
  record.number("object", object->name.number)
      .number("made_by", static_cast<std::uint64_t>(object->made_by));
  const int result = objects().remove(object->name);
  record.write(result);
  if (result == 0) delete object;
  return result;
}

int mlx5dv_devx_general_cmd(ibv_context* context, const void* in, std::size_t in_bytes, void* out,
                            std::size_t out_bytes) {
  Command command("devx_general_cmd", context, in, in_bytes, out, out_bytes);
  return command.end();
}

int mlx5dv_devx_query_eqn(ibv_context* context, std::uint32_t vector, std::uint32_t* eqn) {
  constexpr std::uint32_t kFirst = 8;  // the numbers below are the kernel's own queues
  Record record("devx_query_eqn", context);
  record.number("vector", vector);
  const bool exists = vector < static_cast<std::uint32_t>(context->num_comp_vectors);
  if (exists) record.number("eqn", *eqn = kFirst + vector);
  const int result = exists ? 0 : EINVAL;
  record.write(result);
  return result;
}

}  // extern "C"
