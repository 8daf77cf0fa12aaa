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

 private:
  void quiesce();

  const std::shared_ptr<Team> team_;
  std::vector<std::unique_ptr<Window>> windows_;
};

}  // namespace twinpath::gda::rma
