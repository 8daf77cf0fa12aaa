#pragma once
// One end of the streams of vm-gaps, in a process of its own: a plugin's table v12 and nothing else
// of it.  Every byte is looked at, and those behind a message.
#include <dlfcn.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "plugin/base/clock.h"
#include "plugin/nccl/abi/net.h"
#include "test/vm/faults/network.h"
#include "test/vm/faults/payload.h"

namespace twinpath::test {

inline constexpr std::array<std::size_t, 5> kSizes{262144, 8, 131072, 65536, 1000};
inline constexpr std::size_t kMost = 262144, kWindow = 4;

struct GapShared {
  std::atomic<bool> listening, finish, quit;
  std::array<std::uint8_t, abi::kHandleMaxSize> handle;
  std::atomic<std::uint64_t> messages;  // received, and right
  std::atomic<std::int64_t> failed_at;  // the fault; 0: not yet
  std::atomic<std::int64_t> longest;    // ns between two messages, since then
  std::int64_t gap;                     // the same, before the rail came back
  std::array<std::atomic<bool>, 2> done;
  std::atomic<int> sizes;  // how many messages were said to be of another size
  std::array<char, 160> wrong;
  std::array<char, 700> said;
};
inline GapShared* shared = nullptr;  // a logger has no argument of its own

inline void wrong(const char* what, int result) {
  if (shared->wrong[0] == 0)
    (void)std::snprintf(shared->wrong.data(), shared->wrong.size(), "%s gives %d", what, result);
}

__attribute__((format(printf, 5, 6))) inline void keep(LogLevel level, unsigned long, const char*,
                                                       int, const char* format, ...) {
  if (level != LogLevel::warn) return;
  const std::size_t at = std::strlen(shared->said.data());
  if (at + 2 >= shared->said.size()) return;
  va_list arguments;
  va_start(arguments, format);
  (void)std::vsnprintf(shared->said.data() + at, shared->said.size() - at, format, arguments);
  va_end(arguments);
  (void)std::strncat(shared->said.data(), "; ",
                     shared->said.size() - 1 - std::strlen(shared->said.data()));
}

class GapEnd {
 public:
  GapEnd(const std::string& plugin, bool sends) : sends_(sends) {
    (void)::setenv("NCCL_IB_HCA", sends ? "=rxe0,rxe1" : "=rxe2,rxe3", 1);
    void* const library = ::dlopen(plugin.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) std::fprintf(stderr, "%s\n", ::dlerror());
    if (library != nullptr)
      net_ = static_cast<const abi::ncclNet_v12_t*>(::dlsym(library, "ncclNetPlugin_v12"));
  }
  void run() {
    if (net_ == nullptr) return wrong("opening the plugin", 0);
    if (!begin()) return;
    for (Slot& s : slots_) {
      s.bytes.assign((kMost + kGuard) / 8, kGuardWord);
      if (!ok("regMr",
              net_->regMr(comm_, s.bytes.data(), s.bytes.size() * 8, abi::kPtrHost, &s.memory)))
        return;
    }
    sends_ ? send() : receive();
  }

 private:
  struct Slot {
    std::vector<std::uint64_t> bytes;
    void* memory = nullptr;
    void* request = nullptr;
    bool last = false;
  };
  static std::size_t size_of(std::uint64_t n) { return kSizes[n % kSizes.size()]; }
  Slot& slot(std::uint64_t n) { return slots_[n % kWindow]; }
  bool ok(const char* call, abi::ncclResult_t r) {
    if (r != abi::ncclSuccess) wrong(call, r);
    return r == abi::ncclSuccess;
  }
  bool begin() {
    abi::ncclNetCommConfig_t config{abi::kUndefined};
    if (!ok("init", net_->init(&context_, 7, &config, keep, nullptr))) return false;
    int count = 0, device = 0;
    if (!ok("devices", net_->devices(&count)) || count != 2) return wrong("devices", count), false;
    abi::ncclNetVDeviceProps_v12_t both{2, {0, 1}};
    if (!ok("makeVDevice", net_->makeVDevice(&device, &both))) return false;
    void* listener = nullptr;
    if (!sends_) {
      if (!ok("listen", net_->listen(context_, device, shared->handle.data(), &listener)))
        return false;
      shared->listening.store(true);
    }
    while (!shared->listening.load() && !shared->quit.load()) rest_ms(1);
    while (comm_ == nullptr && !shared->quit.load()) {
      abi::ncclNetDeviceHandle_t* none = nullptr;
      if (!ok("connecting",
              sends_ ? net_->connect(context_, device, shared->handle.data(), &comm_, &none)
                     : net_->accept(listener, &comm_, &none)))
        return false;
      if (comm_ == nullptr) rest_ms(1);
    }
    return comm_ != nullptr;
  }
  void rest(bool progress) {
    idle_ = progress ? 0 : idle_ + 1;
    if (idle_ > 50)
      rest_ms(1);
    else if (!progress)
      ::sched_yield();
  }
  void send() {
    std::uint64_t next = 0, oldest = 0;
    bool filled = false, last = false;
    while (!shared->quit.load()) {
      bool progress = false;
      if (next < oldest + kWindow && !last) {
        Slot& s = slot(next);
        if (!filled) {
          s.last = shared->finish.load();
          fill_payload(s.bytes.data(), next, size_of(next), s.last);
          filled = true;
        }
        if (!ok("isend", net_->isend(comm_, s.bytes.data(), size_of(next), 0, s.memory, nullptr,
                                     &s.request)))
          return;
        if (s.request != nullptr) last = s.last, filled = false, progress = true, ++next;
      }
      if (oldest < next) {
        int done = 0;
        if (!ok("test of a send", net_->test(slot(oldest).request, &done, nullptr))) return;
        if (done != 0) progress = true, ++oldest;
      }
      if (last && oldest == next) return;
      rest(progress);
    }
  }
  void receive() {
    std::uint64_t next = 0, oldest = 0;
    std::int64_t before = now_ns();
    while (!shared->quit.load()) {
      if (next < oldest + kWindow) {
        Slot& s = slot(next);
        void* data = s.bytes.data();
        std::size_t size = kMost;
        int tag = 0;
        s.request = nullptr;
        if (!ok("irecv", net_->irecv(comm_, 1, &data, &size, &tag, &s.memory, nullptr, &s.request)))
          return;
        if (s.request != nullptr) ++next;
      }
      if (oldest == next) continue;
      int done = 0, size = 0;
      if (!ok("test of a receive", net_->test(slot(oldest).request, &done, &size))) return;
      rest(done != 0);
      if (done == 0) continue;
      const std::int64_t now = now_ns(), failed = shared->failed_at.load();
      if (failed != 0 && now > failed)
        shared->longest.store(std::max(shared->longest.load(), now - std::max(before, failed)));
      before = now;
      const std::uint64_t* const words = slot(oldest).bytes.data();
      const std::size_t bytes = size_of(oldest);
      if (static_cast<std::size_t>(size) != bytes) shared->sizes.fetch_add(1);
      const std::string problem = payload_problem(words, oldest, bytes, bytes);
      if (!problem.empty()) return wrong(problem.c_str(), -1);
      shared->messages.store(oldest + 1);
      if (is_last(words)) return;
      clear_payload(slot(oldest).bytes.data(), size_of(oldest));
      ++oldest;
    }
  }

  const bool sends_;
  const abi::ncclNet_v12_t* net_ = nullptr;
  void* context_ = nullptr;
  void* comm_ = nullptr;
  std::array<Slot, kWindow> slots_;
  int idle_ = 0;
};

}  // namespace twinpath::test
