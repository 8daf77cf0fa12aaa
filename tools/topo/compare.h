#pragma once
// Several hosts together: what differs between them, and what was found when each rail of one was
// tried with each of another.
//
// Pure.  Threads: any.
#include "tools/topo/host_card.h"

namespace twinpath::tools::topo {

// One connection and 1 MiB from a rail of one host to a rail of another.
struct PairTry {
  int host = 0, peer = 0;  // indices of cards; host < peer
  int rail = 0, peer_rail = 0;
  double connect_ms = 0;
  double us = 0;    // of 1 MiB, alone
  std::string why;  // it failed; empty: all bytes came, and right
};

// Whether the connections of a job take this pair of rails: `near` ones are on one network, and
// `never` is one that is not, between hosts that choose by network and have near ones.
enum class PairUse { near, maybe, never };
PairUse use_of(const HostCard& host, int rail, const HostCard& peer, int peer_rail);

// What each host has found at itself that is not OK, what differs, and the pairs.
Checks check_hosts(const std::vector<HostCard>& cards, const std::vector<PairTry>& tries);

// --- its parts
void compare_cards(const std::vector<HostCard>& cards, Checks& out);
void judge_tries(const std::vector<HostCard>& cards, const std::vector<PairTry>& tries,
                 Checks& out);  // compare_tries.cc

Json tries_json(const std::vector<HostCard>& cards, const std::vector<PairTry>& tries);

}  // namespace twinpath::tools::topo
