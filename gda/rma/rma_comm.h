#pragma once
// One team of ranks: its windows, and the contexts made on it.
//
// Threads: see rma.h.
#include <memory>
#include <vector>

#include "gda/rma/rma_team.h"
#include "gda/rma/rma_window.h"

namespace twinpath::gda::rma {

class Comm final : public RmaComm {
 public:
  explicit Comm(std::shared_ptr<Team> team) : team_(std::move(team)) {}
  ~Comm() override;

  Result<std::unique_ptr<RmaContext>> create_context(const RmaSettings& settings) override;
  Result<RmaWindow*> register_window(void* data, std::size_t bytes, MemoryType type,
                                     std::uint64_t dmabuf_offset, int dmabuf_fd,
                                     bool strict) override;
  Status deregister_window(RmaWindow* window) override;
  // Where completion means that data is there, whatever comes after.  An adapter's signal pushes
  // only what goes to the memory in which it lies itself: puts to the host's are not ordered with
  // signals in a GPU's, nor the reverse, and which windows there will be nobody knows yet.
  bool any_signal_shows_all() const override { return team_->core().verbs().ordered; }

 private:
  void quiesce();

  const std::shared_ptr<Team> team_;
  std::vector<std::unique_ptr<Window>> windows_;
};

}  // namespace twinpath::gda::rma
