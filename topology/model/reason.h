#pragma once
// Why a peer got its mode: every reason that a decision, the log and the report tool can give, in
// one table of code, sentence and remedy.  A decision carries only the enumerator; the sentence
// is put together when somebody reads it.
//
// The numbers travel in placement records: add new ones before `foreign`, keep the others.
//
// Threads: plain values and a constant table.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace twinpath {

enum class Reason : std::uint8_t {
  none,
  // Nothing stands in the way.
  ok_self,
  ok_pix,
  ok_pxb,
  c2c_near,
  ok_root,
  ok_measured,
  ok_virtual,
  dd_used,
  level_allows,
  read_forced,
  // GPU memory cannot be registered.
  gdr_none,
  gdr_untried,
  gdr_perm,
  gdr_bar1,
  gdr_enotsupp,
  gdr_failed,
  dd_refused,
  // It could be, but is better left alone, or beyond a size.
  gdr_acs,
  gdr_far,
  root_unproven,
  read_slow,
  read_unproven,
  write_slow,
  socket_far,
  place_hidden,
  numa_unknown,
  read_old_gpu,
  read_off,
  // Who issues.
  gpu_rings,
  cpu_moves,
  host_driven,
  devx_none,
  uar_vendor,
  uar_perm,
  uar_vf,
  uar_untried,
  uar_failed,
  gpu_old,
  qbuf_host,
  atomic_emul,
  flush_needed,
  // The user's wish.
  mode_set,
  mode_impossible,
  mode_conflict,
  peer_mismatch,
  // HCAs that are not used, and machines that hide or lack something.
  mgmt_nic,
  port_down,
  hca_excluded,
  link_degraded,
  vm_flat,
  hwloc_blind,
  relay_possible,
  uar_soft,
  // What this version does not serve or do, whatever the hardware allows.
  hca_transport,
  gpu_vendor,
  not_asked,
  never_staged,
  dd_off,
  foreign,  // from a newer peer
};
inline constexpr int kReasons = static_cast<int>(Reason::foreign) + 1;

struct ReasonText {
  Reason reason;
  std::string_view code;      // "UAR_PERM", stable: scripts match on it
  std::string_view sentence;  // with {facts}
  std::string_view remedy;    // with {facts}; empty: nothing to do
};

// Total: a number that is none gives foreign's row.
const ReasonText& text_of(Reason reason);
std::string_view code_of(Reason reason);
std::span<const ReasonText> reason_catalogue();

// What stands for {name} in a sentence.  One that is not given is filled with a general word.
struct Fact {
  std::string_view name;
  std::string value;
};
std::string sentence(Reason reason, std::span<const Fact> facts);
std::string remedy(Reason reason, std::span<const Fact> facts);

}  // namespace twinpath
