#include "tools/counters/communicators.h"

namespace twinpath::tools {

std::string Membership::brief() const {
  if (!rank) return name;
  return name + (name.empty() ? "" : " ") + std::to_string(*rank) +
         (ranks == 0 ? "" : "/" + std::to_string(ranks));
}

std::string Membership::in_words() const {
  if (!rank) return name.empty() ? "" : " (in " + name + ")";
  return " (rank " + std::to_string(*rank) + (ranks == 0 ? "" : " of " + std::to_string(ranks)) +
         (name.empty() ? "" : " in " + name) + ")";
}

Membership membership(const std::vector<CommunicatorSample>& communicators, std::uint64_t id,
                      std::uint16_t session) {
  Membership out;
  if (id == 0) return out;
  bool first = true;
  for (const CommunicatorSample& c : communicators) {
    if (c.id != id) continue;
    if (session != 0 && c.session == session) return {c.name, c.rank, c.ranks};
    // A rank whose connections are known to be others says nothing about whose this one is.
    const bool may_be_it = session == 0 || c.session == 0;
    const std::optional<std::uint32_t> rank = may_be_it ? c.rank : std::nullopt;
    if (first) {
      out = {c.name, rank, c.ranks};
      first = false;
      continue;
    }
    if (out.name != c.name) out.name.clear();
    if (out.rank != rank) out.rank.reset();
    if (out.ranks != c.ranks) out.ranks = 0;
  }
  return out;
}

std::uint64_t largest(const std::vector<CommunicatorSample>& communicators) {
  const CommunicatorSample* most = nullptr;
  for (const CommunicatorSample& c : communicators) {
    if (c.ended) continue;
    if (most == nullptr || c.ranks > most->ranks || (c.ranks == most->ranks && c.id < most->id))
      most = &c;
  }
  return most == nullptr ? 0 : most->id;
}

}  // namespace twinpath::tools
