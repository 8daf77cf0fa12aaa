// See rma_window.h.
#include "gda/rma/rma_window.h"

#include "plugin/base/log.h"

namespace twinpath::gda::rma {

Status Window::announce(const WindowRequest& request) {
  // Also by ranks that fail: the next window has the next number everywhere.
  number_ = team_.next_number();
  const auto mine = prepare(request);
  auto theirs = gather_or_fail(*team_.mesh, mine, "registering a window");
  if (!theirs) return theirs.status();
  return publish(*theirs);
}

Result<std::vector<std::uint8_t>> Window::prepare(const WindowRequest& request) {
  const auto address = reinterpret_cast<std::uintptr_t>(request.data);
  if (request.data == nullptr || request.bytes == 0 || address + request.bytes < address) {
    TP_WARN("cannot register %zu bytes at %p as a window: not a range of memory", request.bytes,
            request.data);
    return Status::bad_argument;
  }
  Team& core = team_;
  cache_ = &core.rail.port.adapter->mrs;
  auto region = cache_->acquire(registration(core, request));
  if (!region) return region.status();
  region_ = *region;
  auto second = register_on_second(core, request);
  if (!second) return second.status();
  second_ = *second;
  local_ = {address, request.bytes, region_->mr->lkey, second_ != nullptr ? second_->mr->lkey : 0};
  // Before anybody has heard of it, and may signal.
  const PortKeys rkeys{region_->mr->rkey, second_ != nullptr ? second_->mr->rkey : 0};
  if (request.type == MemoryType::cuda)
    flush_source_ = team_.flush_sources.add({local_.address, rkeys});
  team_.add(number_, {.address = local_.address,
                      .bytes = local_.bytes,
                      .fabric_key = rkeys[0],
                      .second_key = rkeys[1],
                      .gpu = gpu_of(request),
                      .never_reset = request.traits.never_reset});
  listed_ = true;
  Writer w;
  w.integer(number_);
  w.integer(std::uint64_t{address});
  w.integer(std::uint64_t{request.bytes});
  for (const std::uint32_t key : rkeys) w.integer(key);
  return w.take();
}

Status Window::publish(const std::vector<std::vector<std::uint8_t>>& from) {
  Team& core = team_;
  for (const auto& bytes : from) {
    Reader in(bytes);
    const auto number = in.integer<std::uint32_t>();
    const KeyedMemory memory = take_memory(core, in);
    if (!in.ok() || number != number_) {
      TP_WARN("%s registers window %u where this rank registers %u: all must in one order",
              core.mesh->peer_text(static_cast<int>(remote_.size())).c_str(), number, number_);
      return Status::remote;
    }
    remote_.push_back(memory);
  }
  return Status::ok;
}

void Window::close() {
  if (listed_) team_.remove(number_);
  listed_ = false;
  if (flush_source_ != nullptr) team_.flush_sources.remove(flush_source_);
  flush_source_ = nullptr;
}

Window::~Window() {
  close();
  if (region_ != nullptr) cache_->release(region_);
  if (second_ != nullptr) team_.second->rail.port.adapter->mrs.release(second_);
}

}  // namespace twinpath::gda::rma
