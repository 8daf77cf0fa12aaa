#pragma once
// A real connection and 1 MiB over each pair of rails of each two hosts, through the plugin as NCCL
// calls it.  Pairs of two hosts at once, so that those that do not answer are waited for together:
// those first that may be on one network, then the others that a job may take.  For a kernel that
// looks for an address which no neighbour has keeps the caller for a second, and whoever tries it
// among others keeps these from ending in time.  Last, each pair that works once more alone, for
// its time.
//
// Threads: one.  Every rank of the group calls try_rails() with the same arguments.
#include <functional>

#include "tools/common/group.h"
#include "tools/common/net_plugin.h"
#include "tools/topo/compare.h"

namespace twinpath::tools::topo {

// More rails than these are not tried: each pair has a buffer of 1 MiB.
inline constexpr int kMostRails = 16;

// Opens the plugin so that a pair of rails is that pair: no other port steps in for one that fails,
// no other device for one on another network, and a pair that fails ends no other.  Changes the
// environment.  Throws Failure.
std::unique_ptr<NetPlugin> open_for_tries(const std::string& path, double patience_s);

// What a pair is good for: host, rail, peer, its rail; those that no job takes are left out.
using UseOfPair = std::function<PairUse(int, int, int, int)>;

// `ends`: the ranks that stand for a host, in the order of the cards; `rails`: how many of the
// plugin's devices each tries.  `plugin` may be null where that is none.  All ranks get all tries.
std::vector<PairTry> try_rails(NetPlugin* plugin, Group& group, const std::vector<int>& ends,
                               const std::vector<int>& rails, const UseOfPair& use,
                               double patience_s);

// Who meets whom in a round, of n - 1 rounds (n for an odd n); -1: nobody.  Pure.
int partner(int who, int round, int n);

// Texts of all ranks, by rank.
std::vector<std::string> gather_texts(Group& group, const std::string& mine);

}  // namespace twinpath::tools::topo
