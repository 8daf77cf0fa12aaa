#pragma once
// What the plugin keeps for the whole process: the transports, the sessions that NCCL did not ask
// for by name, and what it told NCCL about devices.
//
// Threads: any; one lock, taken on the control path only.  Lifetime: opened by the first init
// and never closed.  NCCL finalizes and unloads the plugin with its last communicator and may
// load it again; the library is linked with -z nodelete, so the Context is still there.  It is
// not destroyed at exit either: threads of the application may still be inside a call then.
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <tuple>
#include <vector>

#include "plugin/base/counter_page.h"
#include "plugin/nccl/transports.h"
#include "plugin/transport.h"

namespace twinpath {

class Context {
 public:
  // The process's Context, opened by the first call.  A failed opening is tried anew next time;
  // its cause was logged below, settings that cannot be used give Status::unsupported.
  static Result<Context*> open();
  // Null before open().
  static Context* get();

  // Devices to report.  Physical ones, and those merged since NCCL last started from none: NCCL
  // takes the first answer of a life for physical devices, and a Context may see several lives.
  int device_count();
  // Only the physical ones, whatever was merged.
  int physical_count() const { return physical_; }
  // Called by each init; starts a new life when no session is left.
  void note_init();
  // Points into the Context: NCCL keeps the strings for ever.
  Result<const DeviceProps*> device(int index);
  // Merges devices, or finds the earlier merge of the same members.
  Result<int> merge(std::span<const int> members);

  // A communicator's own session (v11 and later); given back by close_session.
  // It gets a serial number.
  Result<Session*> open_session(CommSettings settings);
  void close_session(Session* session);
  // The session for calls without a context: one per traffic class, kept for ever.
  Result<Session*> shared_session(int traffic_class);

  // Shows readers of the counters a communicator's name.  It gets the session that the calling
  // thread has opened for that id and that has no name yet, if there is one.  Null: not shown.
  counters::Communicator* begin_communicator(counters::CommunicatorIdentity who);
  void end_communicator(const void* communicator);

  // NCCL's profiler is ours, which wants no events: then nobody else can.
  void note_own_profiler() { own_profiler_.store(true, std::memory_order_relaxed); }
  bool own_profiler() const { return own_profiler_.load(std::memory_order_relaxed); }

  // Whether devices are offered to kernels, too (TWINPATH_GIN).
  bool offers_gin() const { return offers_gin_; }
  // Made by the first call; a failed attempt is repeated by the next.
  Result<gda::GinTransport*> gin();
  // Whether devices are offered for RMA, too (TWINPATH_RMA).  By itself not on the soft HCA: its
  // processes cannot share the memory for signals that NCCL makes without a handle, and NCCL would
  // fail each window of a program that never asked for RMA.
  bool offers_rma() const { return offers_rma_; }
  Result<gda::RmaTransport*> rma();

 private:
  Context(Transports transports, const Config& config);
  Status check_member(int member);
  Status check_merge(std::span<const int> members);

  std::mutex mutex_;
  const std::shared_ptr<CounterPage> counters_;  // may be null
  const std::unique_ptr<Transport> transport_;
  const int may_merge_;  // NCCL_IB_MERGE_NICS
  const int physical_;
  int visible_;
  struct Opened {
    std::uint64_t comm_id;
    std::uint16_t serial;
    std::thread::id by;
    bool named;
  };
  std::map<const Session*, Opened> open_sessions_;
  std::uint16_t serials_ = 0;
  // Of this life: NCCL loads a profiler with its first communicator, and lets it go with the last.
  std::atomic<bool> own_profiler_{false};
  // As they were shown to NCCL, which keeps pointers into them: each once for each verdict on the
  // calling thread's GPU (whether its memory is offered by address, and by dma-buf).
  std::map<std::tuple<int, bool, bool>, std::unique_ptr<DeviceProps>> devices_;
  std::map<std::vector<int>, int> merged_;
  std::map<int, std::unique_ptr<Session>> shared_;

  const bool offers_gin_;
  std::mutex gin_mutex_;
  const decltype(Transports::make_gin) make_gin_;
  std::unique_ptr<gda::GinTransport> gin_;
  const bool offers_rma_;
  std::mutex rma_mutex_;
  const decltype(Transports::make_rma) make_rma_;
  std::unique_ptr<gda::RmaTransport> rma_;
};

namespace detail {
// context.cc.  Here so that the data path reads it without a call, and hidden so that it does
// without an address to load first.
[[gnu::visibility("hidden")]] extern std::atomic<bool> forked;
}  // namespace detail

// Whether this process is a fork of the one that opened the Context.  One relaxed load.
inline bool in_forked_child() { return detail::forked.load(std::memory_order_relaxed); }
// Warns once per process.
void report_forked_child(const char* entry);

}  // namespace twinpath
