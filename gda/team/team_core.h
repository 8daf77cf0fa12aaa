#pragma once
// What each team is made of, of GIN as of RMA: its ranks, its port, its settings.  Each context
// holds its team, so that it outlives them all.
//
// Threads: made by connect (meeting.h); afterwards only `flush_sources` changes, by the comm's
// callers, one at a time.  lost_port, lost and down: any.
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "gda/connect/mesh.h"
#include "gda/connect/queue_pair.h"
#include "gda/team/flush_sources.h"
#include "gda/team/port_watch.h"
#include "gda/team/second_port.h"
#include "plugin/rdma/devices.h"
#include "plugin/transport.h"

namespace twinpath::gda {

struct TeamCore {
  // `of`: "GIN" or "RMA", for the log.
  explicit TeamCore(const char* of) : name(of) {}
  virtual ~TeamCore() = default;

  const char* const name;
  std::shared_ptr<Devices> devices;  // first: what is made on its adapters goes before it
  int device = -1;                   // of the Devices: where the team's ranks listened
  Rail rail;                         // one of the device's: rail_turns.h
  AdapterLimits limits;
  CommSettings settings;
  int gpu = -1;  // CUDA ordinal; -1: CPU threads play the GPU
  std::unique_ptr<Mesh> mesh;
  std::optional<PortWatch> port;
  std::unique_ptr<SecondPort> second;  // null: there is none to move to
  FlushSources flush_sources;
  // Over which port the last WRITE to words in GPU memory went; of who has their turn.
  int words_port = 0;

  // Of the first port (0) or the second, which there is.
  PortWatch& watch(int of) { return of == 0 ? *port : second->watch; }
  // Whether a port of the team is lost for good, and with it the team: then that is told here,
  // once, and to all other ranks.  The first: or where either would do, both.
  bool lost_port(std::int64_t now);
  bool lost(PortWatch& watched, std::int64_t now);
  // Whether it is down, looked at now.
  bool down(PortWatch& watched, std::int64_t now);

  // Of the CQs that its parts make.
  const void* owner() const { return this; }
  const Config& config() const { return devices->config(); }
  const Verbs& verbs() const { return devices->verbs(); }
  int rank() const { return mesh->rank(); }
  int ranks() const { return mesh->ranks(); }

 private:
  bool end(const std::string& why);
  virtual void warn_of_lost_port(const std::string& why) const = 0;

  std::mutex port_mutex_;
  bool port_lost_ = false;  // under port_mutex_, as end()
};

// What the rail's adapter can, and may be used for (TWINPATH_GIN_ATOMICS).
Result<AdapterLimits> usable_limits(const Devices& devices, const Rail& rail);

// A collective step in which each rank also says whether it got this far: when one did not, all
// fail, at once and naming it, instead of waiting until time is up.  `mine` is what this rank has
// for all, or its failure.
Result<std::vector<std::vector<std::uint8_t>>> gather_or_fail(
    Mesh& mesh, const Result<std::vector<std::uint8_t>>& mine, const char* what);
// The same with a piece for each rank.
Result<std::vector<std::vector<std::uint8_t>>> exchange_or_fail(
    Mesh& mesh, const Result<std::vector<std::vector<std::uint8_t>>>& mine, const char* what);

}  // namespace twinpath::gda
