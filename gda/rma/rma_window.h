#pragma once
// Memory of all ranks, registered with the fabric: this rank's with its keys, and where everybody
// else's lies.
//
// Threads: made and destroyed by setup calls; read by who drives a context, whose caller does not
// destroy a window that it uses.
#include <memory>
#include <vector>

#include "gda/rma/rma.h"
#include "gda/rma/rma_team.h"
#include "gda/team/window.h"

namespace twinpath::gda::rma {

class Window final : public RmaWindow {
 public:
  explicit Window(Team& team) : team_(team) {}
  // Collective.  Where it fails the window is closed as any other: something may have seen it.
  Status announce(const WindowRequest& request);
  ~Window() override;
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  // Signals of peers find it no more, and it is no source of flushes.
  void close();

  bool of(const Team& team) const { return &team == &team_; }
  std::uint32_t number() const { return number_; }
  // fabric_key: the lkey; second_key: over the team's second port.
  const KeyedMemory& local() const { return local_; }
  // The same, of rkeys.
  const KeyedMemory& remote(int rank) const { return remote_[static_cast<std::size_t>(rank)]; }

 private:
  Result<std::vector<std::uint8_t>> prepare(const WindowRequest& request);
  Status publish(const std::vector<std::vector<std::uint8_t>>& from);

  Team& team_;
  std::uint32_t number_ = 0;
  KeyedMemory local_;
  std::vector<KeyedMemory> remote_;
  MrCache* cache_ = nullptr;
  MrRegion* region_ = nullptr;
  MrRegion* second_ = nullptr;                 // over the team's second port, if there is one
  const FlushSource* flush_source_ = nullptr;  // it is GPU memory
  bool listed_ = false;
};

}  // namespace twinpath::gda::rma
