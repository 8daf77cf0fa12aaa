#include "proxy/receive/staged_recv.h"

#include "proxy/receive/arrivals.h"

namespace twinpath {

StagedReceives::~StagedReceives() {
  if (!wait_for_copies(copying_, "a connection closed")) (void)landings_.release();
}

void StagedReceives::expect(int slot, int sub, const ProxyMemory& memory, std::uint64_t address,
                            std::size_t capacity) {
  Landing& l = landing(slot, sub);
  l.mirror = memory.mirror;
  l.address = address;
  l.capacity = capacity;
  l.arrived = l.started = 0;
  l.all = false;
  l.copying = &copying_;
  l.state.store(State::idle, std::memory_order_relaxed);
}

bool StagedReceives::arrived(int slot, int sub, std::size_t bytes, bool all) {
  Landing& l = landing(slot, sub);
  if (bytes > l.capacity) return false;
  l.arrived = bytes;
  l.all = all;
  if (!l.busy) {
    l.busy = true;
    busy_[busy_count_++] = static_cast<std::uint16_t>(slot * kMaxRecvs + sub);
  }
  return true;
}

// On the copy thread.  The landing may be used again, and its mirror freed, from each step on.
void StagedReceives::copy_done(gpu::CopyJob* base, Status status) {
  auto* l = static_cast<Landing*>(base);
  std::atomic<int>* copying = l->copying;
  Mirror* mirror = l->mirror.get();
  mirror->leave();
  // Partner of the acquire in advance(): whoever sees it may tell that the GPU has the bytes.
  l->state.store(status == Status::ok ? State::copied : State::failed, std::memory_order_release);
  copying->fetch_sub(1);
}

bool StagedReceives::start_copy(Landing& l) {
  if (!l.mirror->enter()) return false;
  const std::uint64_t to = l.address + l.started;
  l.to = {to, l.mirror->gpu()};
  l.from = {reinterpret_cast<std::uintptr_t>(l.mirror->at(to)), -1};
  l.bytes = l.arrived - l.started;
  l.executor = l.mirror->gpu();
  l.order = reinterpret_cast<std::uintptr_t>(&l);
  l.done = copy_done;
  l.state.store(State::copying, std::memory_order_relaxed);
  copying_.fetch_add(1);
  if (gpu::submit_copy(&l) != Status::ok) {
    copying_.fetch_sub(1);
    l.mirror->leave();
    return false;
  }
  l.started = l.arrived;
  return true;
}

StagedReceives::Progress StagedReceives::advance(int slot, int sub) {
  Landing& l = landing(slot, sub);
  switch (l.state.load(std::memory_order_acquire)) {
    case State::copying:
      return Progress::waiting;
    case State::failed:
      return Progress::copy_failed;
    case State::idle:
    case State::copied:
      break;
  }
  if (l.started < l.arrived) return start_copy(l) ? Progress::waiting : Progress::taken_away;
  if (!l.all) return Progress::waiting;
  l.mirror.reset();
  return Progress::done;
}

// --- what arrivals do with them -------------------------------------------------------------

void Arrivals::stage(RecvRequest& r, std::size_t index, const ProxyMemory& memory) {
  // Memory may have been registered on another comm of the device.
  if (staged_ == nullptr) staged_ = std::make_unique<StagedReceives>();
  RecvRequest::Sub& sub = r.subs_[index];
  const auto address = reinterpret_cast<std::uintptr_t>(sub.to);
  staged_->expect(r.slot(), static_cast<int>(index), memory, address, sub.capacity);
  sub.to = memory.mirror->at(address);
}

bool Arrivals::land(RecvRequest& r, std::size_t index, bool in_order) {
  const RecvRequest::Sub& sub = r.subs_[index];
  const bool all = sub.state.arrived == sub.state.expected;
  // Chunks of several queues may leave holes until the last has come.
  if (!all && !in_order) return true;
  landed_ = true;
  return staged_->arrived(r.slot(), static_cast<int>(index), r.sizes_[index], all);
}

bool Arrivals::land_parcel(RecvRequest& r, std::size_t index, const std::uint8_t* from,
                           std::uint32_t bytes) {
  RecvRequest::Sub& sub = r.subs_[index];
  if (sub.state.awaits(RecvRequest::Copied::gone))
    return refuse("%u bytes arrived for a receive whose memory was deregistered meanwhile", bytes);
  if (!sub.state.awaits(RecvRequest::Copied::to_mirror)) return false;
  sub.state = RecvRequest::Sub::State::whole();
  r.sizes_[index] = bytes;
  Mirror& mirror = staged_->mirror(r.slot(), static_cast<int>(index));
  if (!mirror.enter())
    return refuse("%u bytes arrived for memory of GPU %d that was deregistered meanwhile", bytes,
                  mirror.gpu());
  copy_words(sub.to, from, bytes);
  mirror.leave();
  return land(r, index, true);
}

bool Arrivals::copy_on(CtsWriter& cells) {
  landed_ = false;
  bool going = true;
  staged_->for_busy([&](int slot, int sub) {
    if (!going) return false;
    switch (staged_->advance(slot, sub)) {
      case StagedReceives::Progress::waiting:
        return false;
      case StagedReceives::Progress::done: {
        RecvRequest& r = requests_.at(static_cast<std::size_t>(slot));
        counts_.staged_bytes.add(r.sizes_[static_cast<std::size_t>(sub)]);
        sub_complete(r, counts_.rails[0], cells);
        return true;
      }
      case StagedReceives::Progress::copy_failed:
        going = refuse(
            "received data cannot be copied from host memory to GPU %d: the lines of the copy "
            "thread before this one name the CUDA error",
            staged_->mirror(slot, sub).gpu());
        return false;
      case StagedReceives::Progress::taken_away:
        going = refuse(
            "received data cannot be copied from host memory to GPU %d: the CUDA driver takes no "
            "copies, or the memory was deregistered while the receive was under way",
            staged_->mirror(slot, sub).gpu());
        return false;
    }
    return false;
  });
  return going;
}

}  // namespace twinpath
