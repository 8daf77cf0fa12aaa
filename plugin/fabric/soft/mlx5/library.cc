// Commands, and libmlx5's view of objects that verbs made.
#include "plugin/fabric/soft/mlx5/library.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

namespace twinpath::soft::mlx5 {
namespace {

constexpr std::size_t kLongest = 0xffff;  // the kernel's limit of a command, and of an answer

__be16 be16(std::uint16_t v) { return __builtin_bswap16(v); }
__be32 be32(std::uint32_t v) { return __builtin_bswap32(v); }

DeviceFacts facts_of(const Surroundings& around, ibv_context* context) {
  const Verbs& verbs = around.verbs;
  DeviceFacts facts;
  if (around.variant_of != nullptr) facts.variant = around.variant_of(context);
  ibv_device_attr device{};
  ibv_port_attr port{};
  if (verbs.query_device(context, &device) == 0) facts.ports = device.phys_port_cnt;
  for (unsigned i = 1; i <= facts.ports; ++i) {
    if (verbs.query_port(context, static_cast<std::uint8_t>(i), &port) != 0) break;
    facts.ethernet = port.link_layer == IBV_LINK_LAYER_ETHERNET;
    facts.gid_entries = static_cast<unsigned>(port.gid_tbl_len);
    facts.lids.push_back(port.lid);
  }
  facts.completion_vectors = static_cast<unsigned>(context->num_comp_vectors);
  return facts;
}

mlx5_wqe_av* vector_of(AddressHandle& handle) {
  static_assert(sizeof(mlx5_wqe_av) <= sizeof handle.vector);
  auto* const av = new (handle.vector) mlx5_wqe_av{};
  const ibv_ah_attr& attr = handle.attr;
  if (handle.ethernet) {
    av->rlid = be16(0xc000);  // there it stands for the UDP source port
    av->stat_rate_sl = static_cast<std::uint8_t>((attr.sl & 7) << 1);
    std::memcpy(av->rmac, handle.rmac, sizeof av->rmac);
  } else {
    av->fl_mlid = attr.src_path_bits & 0x7f;
    av->rlid = be16(attr.dlid);
    av->stat_rate_sl = attr.sl & 0xf;
  }
  if (attr.is_global != 0) {
    const std::uint32_t grh = handle.ethernet ? 0 : 1u << 30;
    av->tclass = attr.grh.traffic_class;
    av->hop_limit = attr.grh.hop_limit;
    av->grh_gid_fl =
        be32(grh | std::uint32_t{attr.grh.sgid_index} << 20 | (attr.grh.flow_label & 0xfffff));
    std::memcpy(av->rgid, attr.grh.dgid.raw, sizeof av->rgid);
  }
  return av;
}

}  // namespace

std::uint32_t number_in(std::span<const std::uint8_t> command) {
  return static_cast<std::uint32_t>(get(command, kNumber));
}

Library::Opened& Library::of(ibv_context* context) {
  std::lock_guard hold(lock_);
  Opened& opened = opened_[context];
  if (opened.device == nullptr) {
    const auto gids = [this, context](unsigned port, unsigned index,
                                      std::array<std::uint8_t, 16>& gid) {
      ibv_gid found{};
      if (around_.verbs.query_gid(context, static_cast<std::uint8_t>(port), static_cast<int>(index),
                                  &found) != 0)
        return false;
      std::copy_n(found.raw, gid.size(), gid.begin());
      return true;
    };
    opened.execution = std::make_unique<Execution>(around_);
    opened.device = std::make_unique<Device>(facts_of(around_, context), gids, last_number_,
                                             opened.execution.get());
    opened.pages =
        std::make_unique<DoorbellPages>(around_, context, *opened.device, *opened.execution);
  }
  return opened;
}

void Library::forget(ibv_context* context) {
  Opened gone;
  {
    std::lock_guard hold(lock_);
    auto it = opened_.find(context);
    if (it == opened_.end()) return;
    gone = std::move(it->second);
    opened_.erase(it);
  }
}

// The kernel knows which commands are of which call, and sends the others nowhere.
bool Library::belongs(Call call, Opcode opcode) {
  switch (opcode) {
    case Opcode::create_mkey:
    case Opcode::create_cq:
    case Opcode::create_qp:
    case Opcode::create_srq:
    case Opcode::create_dct:
    case Opcode::create_xrq:
    case Opcode::create_rmp:
    case Opcode::create_general_object:
    case Opcode::create_xrc_srq:
    case Opcode::alloc_pd:
    case Opcode::alloc_q_counter:
    case Opcode::alloc_transport_domain:
    case Opcode::alloc_xrcd:
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
    case Opcode::destroy_srq:
    case Opcode::destroy_xrc_srq:
    case Opcode::destroy_rmp:
    case Opcode::dealloc_pd:
    case Opcode::dealloc_q_counter:
    case Opcode::dealloc_transport_domain:
    case Opcode::dealloc_xrcd:
      return false;  // the kernel's own
    case Opcode::query_hca_cap:
    case Opcode::query_adapter:
    case Opcode::query_issi:
    case Opcode::query_vport_state:
    case Opcode::query_nic_vport_context:
    case Opcode::query_roce_address:
    case Opcode::query_hca_vport_context:
    case Opcode::query_lag:
      return call == Call::general;
    default:
      return false;  // the driver's own, or nobody's
  }
}

// Whether a change or a question is for objects that were made by `maker`.
bool Library::fits(Opcode opcode, Opcode maker) {
  const bool of_cq = opcode == Opcode::modify_cq || opcode == Opcode::query_cq;
  return of_cq == (maker == Opcode::create_cq);
}

// What a context without DevX may be sent.
bool Library::asks_only(Opcode opcode) {
  return opcode == Opcode::query_hca_cap || opcode == Opcode::query_hca_vport_context;
}

// 0, or an errno value: the command is none of `call` or of its object, or the device refused it.
int Library::carry_out(Call call, ibv_context* context, const mlx5dv_devx_obj* object,
                       const void* in, std::size_t in_bytes, void* out, std::size_t out_bytes) {
  const auto is_long_enough = [](const void* bytes, std::size_t size) {
    return bytes != nullptr && size >= kHeaderBytes && size <= kLongest;
  };
  if (!is_long_enough(in, in_bytes) || !is_long_enough(out, out_bytes)) return EINVAL;
  // A copy, because the answer may go where the command came from.
  const auto* const begin = static_cast<const std::uint8_t*>(in);
  const std::vector<std::uint8_t> command(begin, begin + in_bytes);
  const auto opcode = static_cast<Opcode>(get(command, kOpcode));
  if (object != nullptr && (number_in(command) != object->number || !fits(opcode, object->made_by)))
    return EINVAL;
  Device& device = device_of(context);
  if (!belongs(call, opcode) || (!device.variant().commands && !asks_only(opcode))) return EINVAL;
  // The driver enters a completion queue at its event queue, which it looks up first.
  if (opcode == Opcode::create_cq && in_bytes >= cq::kBytes &&
      !device.has_event_queue(get(command, cq::kEqn)))
    return ENOENT;
  std::vector<std::uint8_t> answer(out_bytes);
  const Refusal refusal = device.execute(command, answer);
  if (refusal == Refusal::none || device.variant().answers)
    std::memcpy(out, answer.data(), out_bytes);
  if (refusal == Refusal::none) return 0;
  return device.variant().answers ? EREMOTEIO : errno_of(status_of(refusal));
}

mlx5dv_devx_obj* Library::obj_create(ibv_context* context, const void* in, std::size_t in_bytes,
                                     void* out, std::size_t out_bytes) {
  const std::uint8_t* const command = static_cast<const std::uint8_t*>(in);
  const auto opcode = in == nullptr || in_bytes < kHeaderBytes
                          ? Opcode{}
                          : static_cast<Opcode>(get({command, in_bytes}, kOpcode));
  const int why = carry_out(Call::create, context, nullptr, in, in_bytes, out, out_bytes);
  if (why != 0) {
    errno = why;
    return nullptr;
  }
  auto object = std::make_unique<mlx5dv_devx_obj>();
  object->context = context;
  object->number = number_in({static_cast<const std::uint8_t*>(out), out_bytes});
  object->made_by = opcode;
  return object.release();
}

int Library::obj_modify(mlx5dv_devx_obj* object, const void* in, std::size_t in_bytes, void* out,
                        std::size_t out_bytes) {
  return carry_out(Call::modify, object->context, object, in, in_bytes, out, out_bytes);
}

int Library::obj_query(mlx5dv_devx_obj* object, const void* in, std::size_t in_bytes, void* out,
                       std::size_t out_bytes) {
  return carry_out(Call::query, object->context, object, in, in_bytes, out, out_bytes);
}

int Library::obj_destroy(mlx5dv_devx_obj* object) {
  if (object->known) {
    const Kind kind = object->made_by == Opcode::create_cq ? Kind::cq : Kind::qp;
    const Refusal refusal = device_of(object->context).remove({kind, object->number});
    if (refusal != Refusal::none) return errno_of(status_of(refusal));
  }
  delete object;
  return 0;
}

int Library::general_cmd(ibv_context* context, const void* in, std::size_t in_bytes, void* out,
                         std::size_t out_bytes) {
  return carry_out(Call::general, context, nullptr, in, in_bytes, out, out_bytes);
}

int Library::query_eqn(ibv_context* context, std::uint32_t vector, std::uint32_t* eqn) {
  if (vector >= static_cast<std::uint32_t>(context->num_comp_vectors)) return EINVAL;
  *eqn = kFirstEventQueue + vector;
  return 0;
}

int Library::query_device(ibv_context*, mlx5dv_context* attr) const {
  attr->version = 0;
  attr->flags = MLX5DV_CONTEXT_FLAGS_CQE_V1;
  attr->comp_mask = 0;  // nothing of what is asked for in it
  return 0;
}

std::uint32_t Library::number_of(Kind kind, ibv_context* context, const void* queue) {
  std::uint32_t number = 0;
  {
    std::lock_guard hold(lock_);
    std::uint32_t& entry = verbs_numbers_[queue];
    if (entry == 0) entry = next_number();
    number = entry;
  }
  device_of(context).add_verbs_object({kind, number});
  return number;
}

void Library::show(ibv_cq* in, mlx5dv_cq& out) {
  out = {};  // no buffer: the soft HCA keeps completions in a form of its own
  out.cqe_cnt = static_cast<std::uint32_t>(in->cqe);
  out.cqe_size = 64;
  out.cqn = number_of(Kind::cq, in->context, in);
}

void Library::show(ibv_srq* in, mlx5dv_srq& out) {
  const bool wants_number = (out.comp_mask & MLX5DV_SRQ_MASK_SRQN) != 0;
  out = {};
  if (!wants_number) return;
  out.comp_mask = MLX5DV_SRQ_MASK_SRQN;
  out.srqn = number_of(Kind::srq, in->context, in);
  execution_of(in->context).know_srq(out.srqn, in);
}

int Library::init_obj(mlx5dv_obj* obj, std::uint64_t types) {
  constexpr std::uint64_t kKnown = MLX5DV_OBJ_PD | MLX5DV_OBJ_AH | MLX5DV_OBJ_CQ | MLX5DV_OBJ_SRQ;
  if (types == 0) return EINVAL;
  if ((types & ~kKnown) != 0) return EOPNOTSUPP;
  if ((types & MLX5DV_OBJ_CQ) != 0) show(obj->cq.in, *obj->cq.out);
  if ((types & MLX5DV_OBJ_SRQ) != 0) show(obj->srq.in, *obj->srq.out);
  if ((types & MLX5DV_OBJ_AH) != 0) *obj->ah.out = {vector_of(*around_.address_of(obj->ah.in)), 0};
  if ((types & MLX5DV_OBJ_PD) != 0) {
    *obj->pd.out = {around_.pd_number(obj->pd.in), 0};
    // A program knows the number from here only.
    execution_of(obj->pd.in->context).know_pd(obj->pd.out->pdn, obj->pd.in);
    device_of(obj->pd.in->context).add_verbs_object({Kind::pd, obj->pd.out->pdn});
  }
  return 0;
}

}  // namespace twinpath::soft::mlx5
