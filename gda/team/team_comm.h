#pragma once
// A comm and its windows, for GIN and RMA alike.
//
// Seam: GinComm or RmaComm.  Window: what it registers, with make(), close() and the destructor
// that releases.  Core: the team, whose contexts settle().
//
// Threads: one at a time.
#include <algorithm>
#include <memory>
#include <vector>

#include "gda/one_sided.h"
#include "plugin/base/clock.h"
#include "plugin/base/log.h"
#include "plugin/base/run_clock.h"

namespace twinpath::gda {

template <class Seam, class Window, class Core>
class TeamComm : public Seam {
 public:
  explicit TeamComm(std::shared_ptr<Core> team) : team_(std::move(team)) {}
  ~TeamComm() override {
    for (auto& window : windows_) window->close();
    quiesce();
  }

  Result<typename Seam::Window*> register_window(void* data, std::size_t bytes, MemoryType type,
                                                 std::uint64_t dmabuf_offset, int dmabuf_fd,
                                                 const WindowTraits& traits) override {
    windows_.push_back(std::make_unique<Window>(*team_));
    Window* const window = windows_.back().get();
    const Status announced =
        window->announce({data, bytes, type, dmabuf_offset, dmabuf_fd, traits});
    if (announced == Status::ok) return static_cast<typename Seam::Window*>(window);
    (void)deregister_window(window);
    return announced;
  }

  Status deregister_window(typename Seam::Window* window) override {
    const auto at = std::find_if(windows_.begin(), windows_.end(),
                                 [&](const auto& w) { return w.get() == window; });
    if (at == windows_.end()) {
      TP_WARN("%p is no window (given back twice?)", static_cast<void*>(window));
      return Status::bad_argument;
    }
    (*at)->close();
    quiesce();
    windows_.erase(at);
    return Status::ok;
  }

 protected:
  const std::shared_ptr<Core>& team() const { return team_; }

 private:
  // What is under way when a window goes: a healthy fabric ends it in far less; a peer that does
  // not answer must not hold up teardown.
  static constexpr std::int64_t kSettleLimit = 3 * kSecond;

  // After it nothing that was asked for before uses a window that was closed before.
  void quiesce() {
    if (team_->contexts.empty()) return;
    team_->pass_round();
    RunClock waited(kSettleLimit / 10);
    for (auto* context : team_->contexts) context->settle(waited, kSettleLimit);
  }

  const std::shared_ptr<Core> team_;
  std::vector<std::unique_ptr<Window>> windows_;
};

}  // namespace twinpath::gda
