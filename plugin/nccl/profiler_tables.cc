// ncclProfiler_v4 to _v6: NCCL's profiler interface, only to learn what no net table is told: a
// communicator's name, and which rank of how many this process is in it.  Readers of the counters
// show connections with them.  No event is asked for, so NCCL makes none: with the mask at 0 it
// compares one integer where it would.
//
// Who calls (NCCL 2.28.3 to 2.30.7, read in its sources):
// - NCCL takes the profiler that NCCL_PROFILER_PLUGIN names, else a libnccl-profiler.so, else the
//   net plugin's library: the user's own wins, and "none" says that there is to be none.  NCCL 2.27
//   does not look into the net plugin, and releases before it know no v4: nothing is named then.
// - init comes once for each communicator and rank, behind the net table's init for it and on the
//   same thread, and before the thread that makes its connections is started.  Ranks and
//   communicators of one process may do so at the same time on several threads.  A communicator
//   that shares its parent's resources has no net init of its own: its data goes over the parent's
//   connections, which keep the parent's name.
// - finalize comes on any thread behind the end of the communicator's connections, and only where
//   init left a context.  A communicator that fails before or in init is counted out by NCCL
//   nevertheless, so that others' finalize may not come: no error is ever returned here, and a name
//   whose end was not told keeps its place, one of kMaxCommunicators, as long as the process lives.
// - The events' functions may be called for networks' own events, whatever the mask.
//
// Two ranks of one process in one communicator have one commId, so the id does not say whose a
// connection is.  The session does, which the Context finds by the thread.
//
// Without the page of counters (TWINPATH_COUNTERS=0, or no memory), and where another network was
// chosen and the plugin never opened, the calls do nothing.
#include <cstddef>
#include <cstdint>

#include "plugin/nccl/abi/profiler.h"
#include "plugin/nccl/boundary.h"
#include "plugin/nccl/context.h"

namespace twinpath {
namespace {

using abi::ncclDebugLogger_t;
using abi::ncclResult_t;
using counters::CommunicatorIdentity;

// Names are for looking at: nothing in here may fail a communicator, nor write to a parent's page.
template <class Body>
ncclResult_t quietly(const char* entry, Body&& body) noexcept {
  if (in_forked_child()) return abi::ncclSuccess;
  try {
    body();
  } catch (...) {
    (void)thrown(entry);
  }
  return abi::ncclSuccess;
}

// Cut, and printable: its user may have written anything.
void put_printable(decltype(CommunicatorIdentity::name)& to, const char* text) {
  if (text == nullptr) return;
  for (std::size_t i = 0; i + 1 < to.size() && text[i] != 0; ++i)
    to[i] = text[i] >= ' ' && text[i] <= '~' ? text[i] : '?';
}

void tell(const CommunicatorIdentity& who) {
  const bool named = who.name[0] != 0;
  TP_INFO(init, "communicator %s%s0x%llx%s: rank %u of %u, on %u node%s", who.name.data(),
          named ? " (" : "", static_cast<unsigned long long>(who.id), named ? ")" : "", who.rank,
          who.ranks, who.nodes, who.nodes == 1 ? "" : "s");
}

ncclResult_t init(void** context, std::uint64_t id, int* mask, const char* name, int nodes,
                  int ranks, int rank, ncclDebugLogger_t) {  // v5, v6
  if (context != nullptr) *context = nullptr;
  // Written, too, where it is 0 already: an earlier profiler of the process may have set it.
  if (mask != nullptr) *mask = 0;
  return quietly("profiler init", [&] {
    Context* const open = Context::get();
    if (open == nullptr) return;
    open->note_own_profiler();
    if (context == nullptr) return;
    CommunicatorIdentity who;
    who.id = id;
    put_printable(who.name, name);
    who.nodes = nodes > 0 ? static_cast<std::uint32_t>(nodes) : 0;
    if (rank >= 0 && rank < ranks) {
      who.rank = static_cast<std::uint32_t>(rank);
      who.ranks = static_cast<std::uint32_t>(ranks);
      tell(who);
    }
    *context = open->begin_communicator(who);
  });
}
ncclResult_t init(void** context, int* mask, const char* name, std::uint64_t id, int nodes,
                  int ranks, int rank, ncclDebugLogger_t log) {  // v4
  return init(context, id, mask, name, nodes, ranks, rank, log);
}

ncclResult_t start_event(void*, void** event, void*) {
  if (event != nullptr) *event = nullptr;
  return abi::ncclSuccess;
}
ncclResult_t stop_event(void*) { return abi::ncclSuccess; }
ncclResult_t record_event_state(void*, int, void*) { return abi::ncclSuccess; }

ncclResult_t finalize(void* context) {
  return quietly("profiler finalize", [&] {
    Context* const open = Context::get();
    if (open != nullptr && context != nullptr) open->end_communicator(context);
  });
}

}  // namespace
}  // namespace twinpath

#define TP_PROFILER_TABLE(v)                                                            \
  [[gnu::visibility(                                                                    \
      "default")]] extern const twinpath::abi::ncclProfiler_v##v##_t ncclProfiler_v##v; \
  const twinpath::abi::ncclProfiler_v##v##_t ncclProfiler_v##v
#define TP_PROFILER_ENTRIES                                                \
  "Twinpath", twinpath::init, twinpath::start_event, twinpath::stop_event, \
      twinpath::record_event_state, twinpath::finalize

extern "C" {
TP_PROFILER_TABLE(4) = {TP_PROFILER_ENTRIES};
TP_PROFILER_TABLE(5) = {TP_PROFILER_ENTRIES};
TP_PROFILER_TABLE(6) = {{TP_PROFILER_ENTRIES}};
}
