#pragma once
// One team of ranks: its mesh of control connections, its windows, and the contexts made on it.
//
// Threads: see gin.h.
#include <memory>
#include <vector>

#include "gda/gin.h"
#include "gda/team/gin_core.h"
#include "gda/team/window.h"

namespace twinpath::gda {

class Comm final : public GinComm {
 public:
  explicit Comm(std::shared_ptr<GinCore> core) : core_(std::move(core)) {}
  ~Comm() override;

  Result<std::unique_ptr<GinContext>> create_context(const ContextSettings& settings) override;
  Result<GinWindow*> register_window(void* data, std::size_t bytes, MemoryType type,
                                     std::uint64_t dmabuf_offset, int dmabuf_fd,
                                     bool strict) override;
  Status deregister_window(GinWindow* window) override;

 private:
  void quiesce();

  const std::shared_ptr<GinCore> core_;
  std::vector<std::unique_ptr<Window>> windows_;
};

}  // namespace twinpath::gda
