#pragma once
// Queues to all ranks, and who drives them: the caller.
//
// Threads: see rma.h.  One lock, nearly always free: it keeps a window's end, and only that, from
// the data path.
#include <array>
#include <atomic>
#include <memory>
#include <vector>

#include "gda/memory/device_memory.h"
#include "gda/rma/rma_inbox.h"
#include "gda/rma/rma_moves.h"
#include "gda/rma/rma_port_side.h"
#include "gda/rma/rma_queue.h"
#include "gda/rma/rma_team.h"
#include "gda/rma/rma_window.h"
#include "plugin/base/peer_watch.h"
#include "plugin/base/sync.h"

namespace twinpath::gda::rma {

class Context final : public RmaContext {
 public:
  // Collective.
  static Result<std::unique_ptr<Context>> make(std::shared_ptr<Team> team,
                                               const RmaSettings& settings);
  ~Context() override;
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  Result<RmaRequest*> put(int context, int rank, const RmaTransfer& transfer,
                          const RmaSignal* signal) override;
  Result<RmaRequest*> get(int context, int rank, const RmaTransfer& transfer) override;
  Result<RmaRequest*> flush(int context, int rank) override;
  Status progress() override;
  bool failed() const override { return failed_.load(std::memory_order_acquire); }

  Status test(Request& request, bool& done);
  // For who has closed a window: until nothing is under way that began before, or until the
  // deadline; then what is left of that fails.
  void settle(RunClock& waited, std::int64_t limit);

 private:
  using Bytes = std::vector<std::uint8_t>;
  // What another rank has: memory that probes may name, and whether queues to it can move.
  struct Far {
    bool moves = false;
    std::uint64_t memory = 0;
    PortKeys rkeys{};
  };

  Context(std::shared_ptr<Team> team, const RmaSettings& settings);

  // Setup, in rma_setup.cc.
  Result<std::vector<Bytes>> prepare();
  Status check_settings() const;
  Status make_memory();
  Status make_sides();
  Status make_flush(std::uint64_t sink);
  Status connect(const std::vector<Bytes>& from);
  Status raise(std::size_t queue, const Far& far, bool has_second, Reader& in);
  void make_queues(const std::vector<Far>& there);

  // Where peers say that a queue pair was made anew, and what is said to them; then what this rank
  // counts as its caller goes on, and what each queue's peer has.
  std::size_t beats_at() const { return 2 * queue_count() * sizeof(QueueWord); }
  std::size_t words_bytes() const {
    constexpr std::size_t kLine = 64;
    const std::size_t end = beats_at() + (1 + queue_count()) * sizeof(std::uint64_t);
    return team_->second != nullptr ? (end + kLine - 1) / kLine * kLine : 0;
  }
  std::uint64_t* beats() const {
    return reinterpret_cast<std::uint64_t*>(memory_->host() + beats_at());
  }
  // What a queue to that end has, by way.
  WayPorts ways(std::size_t queue, const Far& far) const;
  PortRenewals::Ends ends_of(std::size_t queue, const Far& far) const;

  int ranks() const { return team_->ranks(); }
  std::size_t queue_count() const {
    return static_cast<std::size_t>(ranks()) * static_cast<std::size_t>(settings_.contexts);
  }
  std::size_t number(int context, int rank) const {
    return static_cast<std::size_t>(context) * static_cast<std::size_t>(ranks()) +
           static_cast<std::size_t>(rank);
  }
  int rank_of(std::size_t queue) const {
    return static_cast<int>(queue % static_cast<std::size_t>(ranks()));
  }
  bool used(int rank) const {
    return rank % settings_.rank_stride == team_->rank() % settings_.rank_stride;
  }

  // Null: that cannot be asked for, which was logged.
  Queue* find(const char* what, int context, int rank);
  bool place(const char* what, const RmaPlace& place, std::uint64_t bytes, int rank,
             std::uint64_t& address, PortKeys& keys) const;
  Result<RmaRequest*> start(Queue& queue, Work& work);

  // Under the lock.
  void turn();
  void poll();
  bool poll(int port);
  void look_around(std::int64_t now);
  void look_at(int rank, std::int64_t now);
  void fail_queues(int rank);  // -1: all

  const std::shared_ptr<Team> team_;
  const RmaSettings settings_;
  SpinLock lock_;
  // What the adapter uses goes after what uses the adapter.
  std::unique_ptr<DeviceBlock> memory_;             // scratch of all queues, the inbox, a sink
  std::array<std::unique_ptr<PortSide>, 2> sides_;  // the second: null where nothing can move
  std::unique_ptr<GpuFlush> flush_;                 // null: none is needed
  std::unique_ptr<Inbox> inbox_;                    // null: adapters add
  Chain chain_;
  Requests requests_;
  std::vector<std::unique_ptr<Queue>> queues_;  // null: not spoken to
  std::unique_ptr<Moves> moves_;                // null: nothing can move
  std::vector<PeerWatch> watches_;              // by rank
  std::vector<bool> gone_;
  std::uint32_t slots_ = 0;
  std::int64_t looked_ = 0;
  std::uint64_t flushed_ = 0;
  bool serving_ = false;
  bool given_up_ = false;
  std::atomic<bool> failed_{false};
};

}  // namespace twinpath::gda::rma
