#include "tools/softhca/pci/capabilities.h"

#include "plugin/fabric/soft/mlx5/layout.h"

namespace twinpath::softhca::pci {
namespace {

struct Capability {
  const char* name;
  mlx5::Field field;  // counted from the end of the header
  std::uint64_t value;
};

constexpr mlx5::Field kLogMostContexts{0x463, 5};
constexpr Capability kGeneral[] = {
    {"log_max_qp", {0x09b, 5}, kLogMostQueues},
    {"log_max_srq", {0x0ab, 5}, kLogMostQueues},
    {"log_max_cq", {0x0db, 5}, kLogMostQueues},
    {"log_max_eq_sz", {0x0e0, 8}, 20},
    {"log_max_mkey", {0x0ea, 6}, kLogMostKeys},
    {"log_max_eq", {0x0fc, 4}, kLogMostEventQueues},
    {"max_indirection", {0x100, 8}, 4},
    {"log_max_mrw_sz", {0x109, 7}, 63},
    {"log_max_klm_list_size", {0x11a, 6}, 16},
    {"gid_table_size", {0x170, 16}, 0},  // kGids, coded
    {"max_qp_cnt", {0x186, 10}, 16},
    {"pkey_table_size", {0x190, 16}, 0},  // kPkeys, coded
    {"ib_virt", {0x1a2, 1}, 1},
    {"dct", {0x21a, 1}, 0},
    {"umr_indirect_mkey_disabled", {0x209, 1}, 1},
    {"cq_resize", {0x221, 1}, 1},
    {"pkv", {0x237, 1}, 1},
    {"qkv", {0x236, 1}, 1},
    {"xrc", {0x23c, 1}, 1},
    {"ud", {0x23d, 1}, 1},
    {"uc", {0x23e, 1}, 0},
    {"uar_sz", {0x24a, 6}, 5},  // of BAR 0, in MiB, as a logarithm
    {"bf", {0x260, 1}, 0},      // else the driver waits for a completion to find out how to write
    {"max_qp_mcg", {0x2e7, 25}, 8},
    {"log_max_mcg", {0x318, 8}, 8},
    {"log_max_transport_domain", {0x323, 5}, kLogMostDomains},
    {"log_max_pd", {0x32b, 5}, kLogMostDomains},
    {"log_max_xrcd", {0x33b, 5}, kLogMostDomains},
    {"log_max_rmp", {0x383, 5}, kLogMostQueues},
    {"log_max_uctx", kLogMostContexts, 10},
    {"log_max_umem", {0x46b, 5}, kLogMostDomains},
    {"device_frequency_mhz", {0x4c0, 32}, 156},
    {"device_frequency_khz", {0x4e0, 32}, 156250},
    {"uctx_cap", {0x6a0, 32}, 0},
};
constexpr mlx5::Field kVhcaId{0x030, 16}, kRoceSupported{0x21d, 1}, kDoorbellPages{0x520, 32};
// Whether work requests may not change a key's size and place, and its atomic rights.
constexpr mlx5::Field kKeepsSize{0x207, 1}, kKeepsAtomic{0x208, 1};

}  // namespace

mlx5::DeviceFacts device_facts(const Offers& offers) {
  mlx5::DeviceFacts facts;
  facts.ethernet = false;
  facts.gid_entries = kGids;
  facts.completion_vectors = (1u << kLogMostEventQueues) - mlx5::kFirstEventQueue;
  // What libmlx5 asks for today and what it asked for before it could choose.
  facts.variant.clocks = offers.free_running ? mlx5::Clocks::both : mlx5::Clocks::real_time;
  facts.kernel = true;
  return facts;
}

bool write_capabilities(unsigned kind, unsigned function, const Offers& offers,
                        unsigned log_doorbell_page, Answer answer) {
  if (!mlx5::write_capabilities(kind, device_facts(offers), answer)) return false;
  if (static_cast<mlx5::CapabilityKind>(kind) != mlx5::CapabilityKind::general) return true;
  for (const Capability& c : kGeneral) mlx5::set(answer, c.field.at(mlx5::kHeaderBytes), c.value);
  mlx5::set(answer, kVhcaId.at(mlx5::kHeaderBytes), function + 1);
  mlx5::set(answer, kLogDoorbellPage.at(mlx5::kHeaderBytes), log_doorbell_page);
  mlx5::set(answer, kDoorbellPages.at(mlx5::kHeaderBytes), 1u << log_doorbell_page);
  for (const mlx5::Field& keeps : {kKeepsSize, kKeepsAtomic})
    mlx5::set(answer, keeps.at(mlx5::kHeaderBytes), offers.key_changes ? 0 : 1);
  if (!offers.free_running) mlx5::set(answer, kRoceSupported.at(mlx5::kHeaderBytes), 1);
  if (!offers.devx) mlx5::set(answer, kLogMostContexts.at(mlx5::kHeaderBytes), 0);
  return true;
}

}  // namespace twinpath::softhca::pci
