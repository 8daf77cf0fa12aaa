#include "tools/softhca/pci/layouts.h"

#include <algorithm>
#include <vector>

#include "plugin/fabric/soft/mlx5/layout.h"
#include "tools/softhca/pci/contexts.h"

namespace twinpath::softhca::pci {
namespace {

using mlx5::Opcode;
using mlx5::Refusal;

namespace fields {
constexpr NamedField kFunction[] = {{"embedded_cpu_function", {64, 1}}, {"function_id", {80, 16}}};
constexpr NamedField kPages[] = {
    {"embedded_cpu_function", {64, 1}}, {"function_id", {80, 16}}, {"input_num_entries", {96, 32}}};
constexpr NamedField kIssi[] = {{"current_issi", {80, 16}}};
constexpr NamedField kRegister[] = {{"register_id", {80, 16}}, {"argument", {96, 32}}};
constexpr NamedField kCapabilities[] = {{"other_function", {64, 1}}, {"function_id", {80, 16}}};
constexpr NamedField kInit[] = {{"sw_vhca_id", {98, 14}}, {"sw_owner_id", {128, 32}}};
constexpr NamedField kTeardown[] = {{"profile", {80, 16}}};
constexpr NamedField kNumber[] = {{"number", {72, 24}}};
constexpr NamedField kArm[] = {{"srq_number", {72, 24}}, {"lwm", {112, 16}}};
constexpr NamedField kModifyRmp[] = {
    {"rmp_state", {64, 4}}, {"rmpn", {72, 24}}, {"bitmask.lwm", {191, 1}}};
constexpr NamedField kEqNumber[] = {{"eq_number", {88, 8}}};
constexpr NamedField kCounterSet[] = {{"counter_set_id", {88, 8}}};
constexpr NamedField kQueryCounters[] = {{"clear", {192, 1}}, {"counter_set_id", {248, 8}}};
constexpr NamedField kVport[] = {
    {"other_vport", {64, 1}}, {"port_num", {76, 4}}, {"vport_number", {80, 16}}};
constexpr NamedField kGid[] = {{"other_vport", {64, 1}},
                               {"port_num", {76, 4}},
                               {"vport_number", {80, 16}},
                               {"gid_index", {112, 16}}};
constexpr NamedField kPkey[] = {{"other_vport", {64, 1}},
                                {"port_num", {76, 4}},
                                {"vport_number", {80, 16}},
                                {"pkey_index", {112, 16}}};
constexpr NamedField kVportState[] = {{"other_vport", {64, 1}}, {"vport_number", {80, 16}}};
constexpr NamedField kMad[] = {{"remote_lid", {64, 16}}, {"port", {88, 8}}};
constexpr NamedField kGroup[] = {
    {"qpn", {72, 24}}, {"multicast_gid_high", {128, 64}}, {"multicast_gid_low", {192, 64}}};
constexpr NamedField kUserContext[] = {{"cap", {128, 32}}};
constexpr NamedField kUid[] = {{"uid", {80, 16}}};
constexpr NamedField kUmem[] = {{"ats", {256, 1}},
                                {"log_page_size", {283, 5}},
                                {"page_offset", {288, 32}},
                                {"num_of_mtt", {320, 64}}};
}  // namespace fields

constexpr Layout kLayouts[] = {
    {Opcode::query_hca_cap, 16, 16, 0x100, fields::kCapabilities},
    {Opcode::query_adapter, 16, 272, 1},
    {Opcode::init_hca, 32, 8, 1, fields::kInit},
    {Opcode::teardown_hca, 16, 8, 1, fields::kTeardown},
    {Opcode::enable_hca, 16, 8, 1, fields::kFunction},
    {Opcode::disable_hca, 16, 8, 1, fields::kFunction},
    {Opcode::query_pages, 16, 16, 4, fields::kFunction},
    {Opcode::manage_pages, 16, 16, 3, fields::kPages, {}, 0, 16},
    {Opcode::set_hca_cap, 16, 8, 0x100, fields::kCapabilities, {}, 0, 16},
    {Opcode::query_issi, 16, 112, 1},
    {Opcode::set_issi, 16, 8, 1, fields::kIssi},
    {Opcode::set_driver_version, 80, 8, 1, {}, {}, 0, 16},
    {Opcode::create_mkey, 272, 16, 1, contexts::kMkeyFields, contexts::kMkey, 16, 272},
    {Opcode::destroy_mkey, 16, 8, 1, fields::kNumber},
    {Opcode::query_special_contexts, 16, 16, 1},
    {Opcode::create_eq, 272, 16, 1, contexts::kEqFields, contexts::kEq, 16, 272},
    {Opcode::destroy_eq, 16, 8, 1, fields::kEqNumber},
    {Opcode::create_cq, 272, 16, 1, contexts::kCqFields, contexts::kCq, 16, 272},
    {Opcode::destroy_cq, 16, 8, 1, fields::kNumber},
    {Opcode::modify_cq, 272, 8, 2, contexts::kCqResizeFields, contexts::kCq, 16, 272},
    {Opcode::create_qp, 272, 16, 1, contexts::kQpFields, contexts::kQp, 24, 272},
    {Opcode::destroy_qp, 16, 8, 1, fields::kNumber},
    {Opcode::rst2init_qp, 272, 8, 1, contexts::kQpFields, contexts::kQp, 24},
    {Opcode::init2rtr_qp, 272, 8, 1, contexts::kQpFields, contexts::kQp, 24},
    {Opcode::rtr2rts_qp, 272, 8, 1, contexts::kQpFields, contexts::kQp, 24},
    {Opcode::rts2rts_qp, 272, 8, 1, contexts::kQpFields, contexts::kQp, 24},
    {Opcode::qp_2err, 16, 8, 1, fields::kNumber},
    {Opcode::qp_2rst, 16, 8, 1, fields::kNumber},
    {Opcode::query_qp, 16, 272, 1, fields::kNumber},
    {Opcode::mad_ifc, 272, 272, 4, fields::kMad, {}, 0, 16},
    {Opcode::init2init_qp, 272, 8, 1, contexts::kQpFields, contexts::kQp, 24},
    {Opcode::create_srq, 272, 16, 1, {}, contexts::kSrq, 16, 272},
    {Opcode::destroy_srq, 16, 8, 1, fields::kNumber},
    {Opcode::query_srq, 16, 272, 1, fields::kNumber},
    {Opcode::arm_rq, 16, 8, 2, fields::kArm},
    {Opcode::create_xrc_srq, 272, 16, 1, contexts::kXrcSrqFields, contexts::kXrcSrq, 16, 272},
    {Opcode::destroy_xrc_srq, 16, 8, 1, fields::kNumber},
    {Opcode::query_xrc_srq, 16, 272, 1, fields::kNumber},
    {Opcode::arm_xrc_srq, 16, 8, 2, fields::kArm},
    {Opcode::query_vport_state, 16, 16, 2, fields::kVportState},
    {Opcode::query_hca_vport_context, 16, 528, 1, fields::kVport},
    {Opcode::modify_hca_vport_context, 528, 16, 1, fields::kVport, contexts::kVport, 16},
    {Opcode::query_hca_vport_gid, 16, 32, 1, fields::kGid},
    {Opcode::query_hca_vport_pkey, 16, 20, 1, fields::kPkey},
    {Opcode::alloc_q_counter, 16, 16, 1},
    {Opcode::dealloc_q_counter, 16, 8, 1, fields::kCounterSet},
    {Opcode::query_q_counter, 32, 256, 1, fields::kQueryCounters},
    {Opcode::alloc_pd, 16, 16, 1},
    {Opcode::dealloc_pd, 16, 8, 1, fields::kNumber},
    {Opcode::alloc_uar, 16, 16, 1},
    {Opcode::dealloc_uar, 16, 8, 1, fields::kNumber},
    {Opcode::access_reg, 16, 16, 2, fields::kRegister, {}, 0, 16},
    {Opcode::attach_to_mcg, 32, 8, 1, fields::kGroup},
    {Opcode::detach_from_mcg, 32, 8, 1, fields::kGroup},
    {Opcode::alloc_xrcd, 16, 16, 1},
    {Opcode::dealloc_xrcd, 16, 8, 1, fields::kNumber},
    {Opcode::alloc_transport_domain, 16, 16, 1},
    {Opcode::dealloc_transport_domain, 16, 8, 1, fields::kNumber},
    {Opcode::create_rmp, 272, 16, 1, {}, contexts::kRmp, 32, 272},
    {Opcode::modify_rmp, 272, 8, 1, fields::kModifyRmp, contexts::kRmp, 32},
    {Opcode::destroy_rmp, 16, 8, 1, fields::kNumber},
    {Opcode::query_rmp, 16, 272, 1, fields::kNumber},
    {Opcode::create_uctx, 32, 16, 1, fields::kUserContext},
    {Opcode::destroy_uctx, 16, 8, 1, fields::kUid},
    {Opcode::create_umem, 48, 16, 1, fields::kUmem, {}, 0, 48},
    {Opcode::destroy_umem, 16, 8, 1, fields::kNumber},
};

constexpr NamedField kHeader[] = {
    {"opcode", mlx5::kOpcode}, {"uid", mlx5::kUid}, {"op_mod", mlx5::kOpMod}};

void clear(std::span<std::uint8_t> bytes, std::span<const NamedField> fields, std::uint32_t at) {
  for (const NamedField& f : fields) mlx5::set(bytes, f.field.at(at), 0);
}

void show(std::string& to, Bytes in, std::span<const NamedField> fields, std::uint32_t at) {
  for (const NamedField& f : fields) {
    const std::uint64_t value = mlx5::get(in, f.field.at(at));
    if (value == 0) continue;
    if (!to.empty()) to += ',';
    to += '"' + std::string(f.name) + "\":" + std::to_string(value);
  }
}

}  // namespace

std::span<const Layout> layouts() { return kLayouts; }

const Layout* layout_of(Opcode opcode) {
  const auto* const found =
      std::lower_bound(std::begin(kLayouts), std::end(kLayouts), opcode,
                       [](const Layout& layout, Opcode wanted) { return layout.opcode < wanted; });
  return found != std::end(kLayouts) && found->opcode == opcode ? found : nullptr;
}

Refusal check(const Layout& layout, Bytes in, std::size_t answer_bytes, std::uint32_t& at) {
  if (in.size() < layout.bytes) return Refusal::short_command;
  if (answer_bytes < layout.answer_bytes) return Refusal::short_answer;
  if (mlx5::get(in, mlx5::kOpMod) >= layout.modifiers) return Refusal::no_modifier;
  const std::size_t end = layout.list_at == 0 ? in.size() : layout.list_at;
  std::vector<std::uint8_t> rest(in.begin(), in.begin() + static_cast<std::ptrdiff_t>(end));
  clear(rest, kHeader, 0);
  clear(rest, layout.fields, 0);
  clear(rest, layout.context, layout.context_at);
  const auto left = std::find_if(rest.begin(), rest.end(), [](std::uint8_t b) { return b != 0; });
  if (left == rest.end()) return Refusal::none;
  at = static_cast<std::uint32_t>(left - rest.begin()) * 8 +
       static_cast<std::uint32_t>(__builtin_clz(*left)) - 24;
  return Refusal::reserved;
}

std::string show_fields(const Layout& layout, Bytes in) {
  std::string text;
  show(text, in, layout.fields, 0);
  show(text, in, layout.context, layout.context_at);
  return text;
}

}  // namespace twinpath::softhca::pci
