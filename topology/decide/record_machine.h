#pragma once
// From a machine to the facts of one (GPU, HCA) pair and to the candidates of a GPU: the one place
// where the model of the machine meets the decision.
//
// Pure.  Threads: any.
#include <cstdint>
#include <vector>

#include "topology/decide/hca_order.h"
#include "topology/decide/overrides.h"
#include "topology/decide/policy.h"
#include "topology/model/machine.h"

namespace twinpath {

// What the machine and the platform file tell of a pair.  The caller adds what only it knows:
// probes, DevX, whether it stages.  A null GPU or HCA (one that no source saw) gives a pair of
// unknown distance.  With no probe the static hints stand in: EndFacts::gdr_expected.
EndFacts pair_facts(const Machine& machine, const Gpu* gpu, const Hca* hca,
                    const PlatformFile& platform);

// What holds where memory is registered with the physical function, so that the data-direct one
// moves none of it (NCCL_IB_DATA_DIRECT).
void without_data_direct(EndFacts& facts);

// Every HCA as the GPU sees it; candidate.hca is the index into machine.hcas.
std::vector<HcaCandidate> hca_candidates(const Machine& machine, const Gpu& gpu,
                                         const PlatformFile& platform);
// The HCA of each GPU of the machine: indices into machine.hcas, -1 for none.
std::vector<int> best_hcas(const Machine& machine, const PlatformFile& platform);

// Equal for equal hosts: both ends of a connection on one host have the same.
std::uint64_t host_hash(const Machine& machine);
// Of devices, distances and what decides about them; changes when hardware moves.
std::uint64_t topology_hash(const Machine& machine);

}  // namespace twinpath
