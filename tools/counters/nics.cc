#include "tools/counters/nics.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <tuple>

#include "plugin/base/file.h"
#include "plugin/base/text.h"

namespace twinpath::tools {
namespace {

namespace fs = std::filesystem;

struct Known {
  const char* name;
  NicTrouble trouble;
};
// Of mlx5, bnxt_re and rxe, and of the InfiniBand specification; a name means the same for all.
constexpr std::array kKnown{
    Known{"local_ack_timeout_err", NicTrouble::retransmission},
    Known{"packet_seq_err", NicTrouble::retransmission},
    Known{"implied_nak_seq_err", NicTrouble::retransmission},
    Known{"roce_adp_retrans", NicTrouble::retransmission},
    Known{"to_retransmits", NicTrouble::retransmission},
    Known{"seq_err_naks_rcvd", NicTrouble::retransmission},
    Known{"completer_retry_err", NicTrouble::retransmission},
    Known{"rcvd_seq_err", NicTrouble::retransmission},
    Known{"out_of_sequence", NicTrouble::out_of_sequence},
    Known{"out_of_seq_request", NicTrouble::out_of_sequence},
    Known{"duplicate_request", NicTrouble::out_of_sequence},
    Known{"res_oos_drop_count", NicTrouble::out_of_sequence},
    Known{"rnr_nak_retry_err", NicTrouble::rnr},
    Known{"rcvd_rnr_err", NicTrouble::rnr},
    Known{"rnr_naks_rcvd", NicTrouble::rnr},
    Known{"out_of_buffer", NicTrouble::rnr},
    Known{"retry_exceeded_err", NicTrouble::retry_exceeded},
    Known{"send_retry_exceeded_err", NicTrouble::retry_exceeded},
    Known{"max_retry_exceeded", NicTrouble::retry_exceeded},
    Known{"symbol_error", NicTrouble::link},
    Known{"link_error_recovery", NicTrouble::link},
    Known{"link_downed", NicTrouble::link},
    Known{"port_rcv_errors", NicTrouble::link},
    Known{"port_xmit_discards", NicTrouble::link},
    Known{"rx_icrc_encapsulated", NicTrouble::link},
    Known{"np_cnp_sent", NicTrouble::congestion},
    Known{"rp_cnp_handled", NicTrouble::congestion},
    Known{"np_ecn_marked_roce_packets", NicTrouble::congestion},
    Known{"port_xmit_wait", NicTrouble::congestion},
};

const Known* listed(const std::string& name) {
  const auto* at =
      std::find_if(kKnown.begin(), kKnown.end(), [&](const Known& k) { return name == k.name; });
  return at == kKnown.end() ? nullptr : at;
}

// Nothing where the adapter lacks it, of which the file may say "N/A".  The folder may be a copy of
// anybody's (--sysfs).
std::optional<std::uint64_t> value_of(const std::string& path) {
  std::string why;
  const auto text = read_head(path, 64, why);
  const auto digits = text ? leading_digits(trimmed(*text)) : std::nullopt;
  return digits ? std::optional(digits->value) : std::nullopt;
}

auto place_of(const NicCounter& n) { return std::tie(n.hca, n.port, n.name); }

}  // namespace

const char* name_of(NicTrouble trouble) {
  constexpr std::array kNames{"retransmission", "out_of_sequence", "rnr", "retry_exceeded",
                              "link",           "congestion"};
  return kNames[static_cast<std::size_t>(trouble)];
}

std::vector<NicCounter> nic_counters(const std::string& sysfs) {
  std::vector<NicCounter> out;
  std::error_code error;
  for (fs::directory_iterator hca(sysfs + "/class/infiniband", error), end; !error && hca != end;
       hca.increment(error)) {
    std::error_code none;
    for (fs::directory_iterator port(hca->path() / "ports", none); !none && port != end;
         port.increment(none)) {
      for (const char* folder : {"counters", "hw_counters"}) {
        std::error_code no;
        for (fs::directory_iterator file(port->path() / folder, no); !no && file != end;
             file.increment(no)) {
          const std::string name = file->path().filename();
          const Known* const known = listed(name);
          const auto value = known != nullptr ? value_of(file->path()) : std::nullopt;
          if (value)
            out.push_back(
                {hca->path().filename(), port->path().filename(), name, known->trouble, *value});
        }
      }
    }
  }
  std::sort(out.begin(), out.end(),
            [](const NicCounter& a, const NicCounter& b) { return place_of(a) < place_of(b); });
  // In both folders of some drivers.
  out.erase(std::unique(out.begin(), out.end(),
                        [](const NicCounter& a, const NicCounter& b) {
                          return place_of(a) == place_of(b);
                        }),
            out.end());
  return out;
}

std::vector<NicChange> nic_changes(const std::vector<NicCounter>& before,
                                   const std::vector<NicCounter>& after) {
  std::vector<NicChange> out;
  for (const NicCounter& now : after) {
    const auto was = std::find_if(before.begin(), before.end(), [&](const NicCounter& b) {
      return place_of(b) == place_of(now);
    });
    // One that is smaller was set back meanwhile.
    const bool grew = was != before.end() && now.value > was->value;
    out.push_back({now, grew ? now.value - was->value : 0});
  }
  return out;
}

}  // namespace twinpath::tools
