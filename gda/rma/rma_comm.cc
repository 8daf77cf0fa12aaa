// See rma_comm.h.
#include "gda/rma/rma_comm.h"

#include <algorithm>

#include "gda/rma/rma_context.h"
#include "plugin/base/clock.h"
#include "plugin/base/log.h"
#include "plugin/base/run_clock.h"

namespace twinpath::gda::rma {
namespace {

// What is under way when a window goes: a healthy fabric ends it in far less; a peer that does not
// answer must not hold up teardown.
constexpr std::int64_t kSettleLimit = 3 * kSecond;

}  // namespace

Comm::~Comm() {
  for (auto& window : windows_) window->close();
  quiesce();
}

Result<std::unique_ptr<RmaContext>> Comm::create_context(const RmaSettings& settings) {
  auto context = Context::make(team_, settings);
  if (!context) return context.status();
  return std::unique_ptr<RmaContext>(std::move(context).take());
}

Result<RmaWindow*> Comm::register_window(void* data, std::size_t bytes, MemoryType type,
                                         std::uint64_t dmabuf_offset, int dmabuf_fd, bool strict) {
  auto window = Window::make(*team_, {data, bytes, type, dmabuf_offset, dmabuf_fd, strict});
  if (!window) return window.status();
  windows_.push_back(std::move(window).take());
  return static_cast<RmaWindow*>(windows_.back().get());
}

Status Comm::deregister_window(RmaWindow* window) {
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

// After it nothing that was asked for before uses a window that was closed before.
void Comm::quiesce() {
  RunClock waited(kSettleLimit / 10);
  for (Context* context : team_->contexts) context->settle(waited, kSettleLimit);
}

}  // namespace twinpath::gda::rma
