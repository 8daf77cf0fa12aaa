// Commands: objects made, changed, asked and destroyed by bytes in the adapter's own format.
#include <infiniband/mlx5dv.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <mutex>
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

namespace {

constexpr std::size_t kLongest = 0xffff;  // the kernel's limit of a command

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

// A command under way: what went in is kept, because the answer may go where it came from; what
// came out is recorded.
class Command {
 public:
  Command(const char* call, ibv_context* context, const void* asked, std::size_t asked_bytes,
          void* answered, std::size_t answered_bytes)
      : record_(call, context) {
    const auto fits = [](const void* bytes, std::size_t size) {
      return bytes != nullptr && size >= model::kHeaderBytes && size <= kLongest;
    };
    const auto* const begin = static_cast<const std::uint8_t*>(asked);
    if (begin != nullptr && asked_bytes <= kLongest) in_.assign(begin, begin + asked_bytes);
    if (fits(asked, asked_bytes) && fits(answered, answered_bytes)) {
      out_ = {static_cast<std::uint8_t*>(answered), answered_bytes};
      model::set(out_, model::kStatus, 0);  // until the device answers
    }
  }

  // What the library is given.
  const void* in() const { return in_.empty() ? nullptr : in_.data(); }
  Opcode opcode() const { return static_cast<Opcode>(model::get(in_, model::kOpcode)); }
  std::uint32_t answered_number() const { return model::number_in(out_); }
  void about(std::uint32_t object) { record_.number("object", object); }

  // `result`: of the library.  What the program is told.
  int end(int result) {
    const bool refused = result != 0 && model::get(out_, model::kStatus) != 0;
    const auto refusal =
        refused ? static_cast<Refusal>(model::get(out_, model::kSyndrome)) : Refusal::none;
    if (refused) say(opcode(), refusal);
    accepted_ = refused && accepts_all();
    if (accepted_) {
      std::fill(out_.begin(), out_.end(), std::uint8_t{0});
      result = 0;
    }
    if (in_.size() >= model::kHeaderBytes) {
      record_.number("opcode", static_cast<std::uint64_t>(opcode()));
      if (const char* name = model::name_of(opcode())) record_.text("name", name);
    }
    if (refused) record_.text("refused", model::text_of(refusal));
    result_ = result;
    return result;
  }
  // Whether it succeeded only because everything does.
  bool accepted() const { return accepted_; }
  void give(std::uint32_t number) { model::set(out_, model::kNumber, number); }
  void write() { record_.bytes("in", in_).bytes("out", out_).write(result_); }

 private:
  Record record_;
  std::vector<std::uint8_t> in_;
  std::span<std::uint8_t> out_;
  bool accepted_ = false;
  int result_ = 0;
};

}  // namespace

extern "C" {

mlx5dv_devx_obj* mlx5dv_devx_obj_create(ibv_context* context, const void* in, std::size_t in_bytes,
                                        void* out, std::size_t out_bytes) {
  Command command("devx_obj_create", context, in, in_bytes, out, out_bytes);
  mlx5dv_devx_obj* object = library().obj_create(context, command.in(), in_bytes, out, out_bytes);
  const int why = command.end(object == nullptr ? errno : 0);
  if (command.accepted()) {
    object = new mlx5dv_devx_obj{context, library().next_number(), command.opcode(), false};
    command.give(object->number);
  }
  command.write();
  if (object == nullptr) errno = why;
  return object;
}

int mlx5dv_devx_obj_modify(mlx5dv_devx_obj* object, const void* in, std::size_t in_bytes, void* out,
                           std::size_t out_bytes) {
  Command command("devx_obj_modify", object->context, in, in_bytes, out, out_bytes);
  command.about(object->number);
  const int result =
      command.end(library().obj_modify(object, command.in(), in_bytes, out, out_bytes));
  command.write();
  return result;
}

int mlx5dv_devx_obj_query(mlx5dv_devx_obj* object, const void* in, std::size_t in_bytes, void* out,
                          std::size_t out_bytes) {
  Command command("devx_obj_query", object->context, in, in_bytes, out, out_bytes);
  command.about(object->number);
  const int result =
      command.end(library().obj_query(object, command.in(), in_bytes, out, out_bytes));
  command.write();
  return result;
}

int mlx5dv_devx_obj_destroy(mlx5dv_devx_obj* object) {
  // There are no bytes: the kernel keeps those of each object's destruction since it was made.
  Record record("devx_obj_destroy", object->context);
  record.number("object", object->number)
      .number("made_by", static_cast<std::uint64_t>(object->made_by));
  const int result = library().obj_destroy(object);
  record.write(result);
  return result;
}

int mlx5dv_devx_general_cmd(ibv_context* context, const void* in, std::size_t in_bytes, void* out,
                            std::size_t out_bytes) {
  Command command("devx_general_cmd", context, in, in_bytes, out, out_bytes);
  const int result =
      command.end(library().general_cmd(context, command.in(), in_bytes, out, out_bytes));
  command.write();
  return result;
}

int mlx5dv_devx_query_eqn(ibv_context* context, std::uint32_t vector, std::uint32_t* eqn) {
  Record record("devx_query_eqn", context);
  record.number("vector", vector);
  const int result = model::Library::query_eqn(context, vector, eqn);
  if (result == 0) record.number("eqn", *eqn);
  record.write(result);
  return result;
}

}  // extern "C"
