// Commands: objects made, changed, asked and destroyed by bytes in the adapter's own format.
#include <infiniband/mlx5dv.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "tools/softhca/mlx5/devices.h"
#include "tools/softhca/mlx5/recorder.h"

using namespace twinpath::softhca::mlx5;
using model::Opcode;
using model::Refusal;

// Opaque in mlx5dv.h.
struct mlx5dv_devx_obj {
  ibv_context* context;
  std::uint32_t number;
  Opcode made_by;
  std::optional<model::Kind> kind;  // none: the device does not know it (SOFTHCA_DEVX=accept)
};

namespace {

constexpr std::size_t kLongest = 0xffff;  // the kernel's limit of a command, and of an answer

// The kernel knows which commands are of which call, and sends the others nowhere.
enum class Call { create, modify, query, general };

bool belongs(Call call, Opcode opcode) {
  switch (opcode) {
    case Opcode::create_mkey:
    case Opcode::create_cq:
    case Opcode::create_qp:
    case Opcode::create_srq:
    case Opcode::create_dct:
    case Opcode::create_xrq:
    case Opcode::create_rmp:
    case Opcode::create_general_object:
      return call == Call::create;
    case Opcode::modify_cq:
    case Opcode::rst2init_qp:
    case Opcode::init2init_qp:
    case Opcode::init2rtr_qp:
    case Opcode::rtr2rts_qp:
    case Opcode::rts2rts_qp:
    case Opcode::qp_2err:
    case Opcode::qp_2rst:
      return call == Call::modify;
    case Opcode::query_cq:
    case Opcode::query_qp:
      return call == Call::query;
    case Opcode::destroy_mkey:
    case Opcode::destroy_cq:
    case Opcode::destroy_qp:
      return false;  // the kernel's own
    default:
      return call == Call::general || model::name_of(opcode) == nullptr;
  }
}

// SOFTHCA_DEVX=accept: what the device refuses succeeds, so that a whole sequence is recorded.
bool accepts_all() {
  const char* const value = std::getenv("SOFTHCA_DEVX");
  return value != nullptr && std::string_view(value) == "accept";
}

// On stderr, each kind of refusal of each command once: programs tell the status at most.
void say(Opcode opcode, Refusal refusal) {
  struct Said {
    std::mutex lock;
    std::set<std::pair<Opcode, Refusal>> kinds;
  };
  static auto* const said = new Said;
  std::lock_guard hold(said->lock);
  if (!said->kinds.emplace(opcode, refusal).second) return;
  const char* const name = model::name_of(opcode);
  std::fprintf(stderr, "soft HCA: command %s (0x%x) was refused: %s (status 0x%x)%s\n",
               name == nullptr ? "of no name" : name, static_cast<unsigned>(opcode),
               model::text_of(refusal), static_cast<unsigned>(model::status_of(refusal)),
               accepts_all() ? "; it succeeds all the same (SOFTHCA_DEVX=accept)" : "");
}

// A command under way: checked, carried out and recorded.
class Command {
 public:
  Command(const char* call, ibv_context* context, const void* asked, std::size_t asked_bytes,
          void* answered, std::size_t answered_bytes)
      : record_(call, context), context_(context) {
    const auto fits = [](const void* bytes, std::size_t size) {
      return bytes != nullptr && size >= model::kHeaderBytes && size <= kLongest;
    };
    // A copy, because the answer may go where the command came from.
    const auto* const begin = static_cast<const std::uint8_t*>(asked);
    if (begin != nullptr && asked_bytes <= kLongest) in_.assign(begin, begin + asked_bytes);
    good_ = fits(asked, asked_bytes) && fits(answered, answered_bytes);
    if (good_) out_ = {static_cast<std::uint8_t*>(answered), answered_bytes};
  }

  Opcode opcode() const { return static_cast<Opcode>(model::get(in_, model::kOpcode)); }
  std::uint32_t asked_number() const { return number_in(in_); }
  std::uint32_t answered_number() const { return number_in(out_); }
  void about(std::uint32_t object) { record_.number("object", object); }

  // 0, or an errno value: the command is none of `call`, or the device refused it.  Once.
  int carry_out(Call call, bool of_object = true) {
    if (!good_ || !of_object || !belongs(call, opcode())) return end(EINVAL, Refusal::none);
    const Refusal refusal = device_of(context_).execute(in_, out_);
    if (refusal != Refusal::none) say(opcode(), refusal);
    if (refusal == Refusal::none || !accepts_all())
      return end(model::errno_of(model::status_of(refusal)), refusal);
    std::fill(out_.begin(), out_.end(), std::uint8_t{0});
    if (call == Call::create) model::set(out_, model::kNumber, next_number());
    accepted_ = true;
    return end(0, refusal);
  }
  // Whether it succeeded only because everything does.
  bool only_accepted() const { return accepted_; }

 private:
  static std::uint32_t number_in(std::span<const std::uint8_t> bytes) {
    return static_cast<std::uint32_t>(model::get(bytes, model::kNumber));
  }

  int end(int result, Refusal refusal) {
    if (in_.size() >= model::kHeaderBytes) {
      record_.number("opcode", static_cast<std::uint64_t>(opcode()));
      if (const char* name = model::name_of(opcode())) record_.text("name", name);
    }
    if (refusal != Refusal::none) record_.text("refused", model::text_of(refusal));
    record_.bytes("in", in_).bytes("out", out_).write(result);
    return result;
  }

  Record record_;
  ibv_context* context_;
  std::vector<std::uint8_t> in_;
  std::span<std::uint8_t> out_;
  bool good_ = false;
  bool accepted_ = false;
};

}  // namespace

extern "C" {

mlx5dv_devx_obj* mlx5dv_devx_obj_create(ibv_context* context, const void* in, std::size_t in_bytes,
                                        void* out, std::size_t out_bytes) {
  Command command("devx_obj_create", context, in, in_bytes, out, out_bytes);
  if (const int why = command.carry_out(Call::create); why != 0) {
    errno = why;
    return nullptr;
  }
  auto object = std::make_unique<mlx5dv_devx_obj>();
  object->context = context;
  object->number = command.answered_number();
  object->made_by = command.opcode();
  if (!command.only_accepted())
    object->kind = object->made_by == Opcode::create_cq ? model::Kind::cq : model::Kind::qp;
  return object.release();
}

int mlx5dv_devx_obj_modify(mlx5dv_devx_obj* object, const void* in, std::size_t in_bytes, void* out,
                           std::size_t out_bytes) {
  Command command("devx_obj_modify", object->context, in, in_bytes, out, out_bytes);
  command.about(object->number);
  return command.carry_out(Call::modify, command.asked_number() == object->number);
}

int mlx5dv_devx_obj_query(mlx5dv_devx_obj* object, const void* in, std::size_t in_bytes, void* out,
                          std::size_t out_bytes) {
  Command command("devx_obj_query", object->context, in, in_bytes, out, out_bytes);
  command.about(object->number);
  return command.carry_out(Call::query, command.asked_number() == object->number);
}

int mlx5dv_devx_obj_destroy(mlx5dv_devx_obj* object) {
  // There are no bytes: the kernel keeps those of each object's destruction since it was made.
  Record record("devx_obj_destroy", object->context);
  record.number("object", object->number)
      .number("made_by", static_cast<std::uint64_t>(object->made_by));
  int result = 0;
  if (object->kind) {
    result = model::errno_of(
        model::status_of(device_of(object->context).remove({*object->kind, object->number})));
  }
  record.write(result);
  if (result == 0) delete object;
  return result;
}

int mlx5dv_devx_general_cmd(ibv_context* context, const void* in, std::size_t in_bytes, void* out,
                            std::size_t out_bytes) {
  Command command("devx_general_cmd", context, in, in_bytes, out, out_bytes);
  return command.carry_out(Call::general);
}

int mlx5dv_devx_query_eqn(ibv_context* context, std::uint32_t vector, std::uint32_t* eqn) {
  Record record("devx_query_eqn", context);
  record.number("vector", vector);
  const bool exists = vector < static_cast<std::uint32_t>(context->num_comp_vectors);
  if (exists) record.number("eqn", *eqn = model::kFirstEventQueue + vector);
  const int result = exists ? 0 : EINVAL;
  record.write(result);
  return result;
}

}  // extern "C"
