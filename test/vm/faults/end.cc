#include "test/vm/faults/end.h"

#include <grp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>

#include "plugin/base/clock.h"
#include "plugin/base/log.h"
#include "plugin/fabric/fabric.h"
#include "proxy/transport.h"
#include "test/vm/faults/network.h"

namespace twinpath::test {
namespace {

constexpr std::size_t kGuard = 64;  // bytes after a message that must stay as they were
constexpr std::uint64_t kLast = std::uint64_t{1} << 63;
constexpr std::uint64_t kGuardWord = 0xA5A5A5A5A5A5A5A5;
constexpr gid_t kNobody = 65534;

// The log sink is a plain function without a context argument, hence a pointer of the process.
EndState* log_state = nullptr;

__attribute__((format(printf, 5, 6))) void keep_warning(LogLevel level, unsigned long, const char*,
                                                        int, const char* format, ...) {
  if (level != LogLevel::warn) return;
  const int at = log_state->warnings.load();
  if (at >= EndState::kMaxWarnings) return;
  LoggedWarning& w = log_state->warning[static_cast<std::size_t>(at)];
  w.at = now_ns();
  va_list arguments;
  va_start(arguments, format);
  (void)std::vsnprintf(w.text.data(), w.text.size(), format, arguments);
  va_end(arguments);
  log_state->warnings.store(at + 1);
}

// Message number `seq` in 64-bit words.  The first one carries the number itself, so that a
// message in the wrong place is told from damaged bytes.
constexpr std::uint64_t word_of(std::uint64_t seq, std::size_t i) {
  return (seq + 1) * 0x9E3779B97F4A7C15u + i * 0xD1B54A32D192ED03u;
}

class End {
 public:
  End(Shared& shared, Side side, const EndPlan& plan, const std::vector<std::size_t>& sizes)
      : shared_(shared), mine_(shared.end(side)), side_(side), plan_(plan), sizes_(sizes) {}

  void run() {
    if (!open()) return;
    if (side_ == Side::sender) {
      if (connect()) send();
    } else {
      if (listen()) receive();
    }
  }

 private:
  struct Slot {
    Request* request = nullptr;
    std::uint64_t seq = 0;
    bool last = false;
    bool filled = false;
  };

  bool open() {
    auto fabric = open_fabric(plan_.config);
    if (!fabric) return failed("open", fabric.status());
    auto transport = make_proxy_transport(std::move(fabric).take(), plan_.config);
    if (!transport) return failed("open", transport.status());
    transport_ = std::move(transport).take();
    if (transport_->device_count() == 0) return failed("open", Status::unsupported);
    if (plan_.merge) {
      std::vector<int> all(transport_->device_count());
      std::iota(all.begin(), all.end(), 0);
      auto merged = transport_->make_virtual_device(all);
      if (!merged) return failed("merge", merged.status());
      device_ = *merged;
    }
    auto session = transport_->open_session({7, -1});
    if (!session) return failed("session", session.status());
    session_ = std::move(session).take();
    return true;
  }

  bool connect() {
    while (!shared_.handle_ready.load()) {
      if (shared_.quit.load()) return false;
      rest_ms(1);
    }
    std::array<std::uint8_t, kHandleBytes> handle = shared_.handle;
    Status s = Status::again;
    while (s == Status::again && !shared_.quit.load()) {
      s = session_->connect(device_, handle, send_);
      if (s == Status::again) ::sched_yield();
    }
    if (s != Status::ok) return failed("connect", s);
    return ready(*send_);
  }

  bool listen() {
    std::array<std::uint8_t, kHandleBytes> handle;
    if (const Status s = session_->listen(device_, handle, listener_); s != Status::ok)
      return failed("listen", s);
    shared_.handle = handle;
    shared_.handle_ready.store(true);
    Status s = Status::again;
    while (s == Status::again && !shared_.quit.load()) {
      s = listener_->accept(recv_);
      if (s == Status::again) ::sched_yield();
    }
    if (s != Status::ok) return failed("accept", s);
    return ready(*recv_);
  }

  bool ready(Comm& comm) {
    const std::size_t bytes = kMaxWindow * stride();
    storage_.assign(bytes / sizeof(std::uint64_t), kGuardWord);
    auto memory = comm.register_memory(storage_.data(), bytes, MemoryType::host, 0, -1);
    if (!memory) return failed("register", memory.status());
    memory_ = *memory;
    last_progress_ = now_ns();
    mine_.phase.store(Phase::connected);
    return true;
  }

  static constexpr std::size_t stride() { return kMaxMessage + kGuard; }
  std::uint64_t* slot_words(std::uint64_t seq) {
    return storage_.data() + seq % plan_.window * (stride() / sizeof(std::uint64_t));
  }
  Slot& slot(std::uint64_t seq) { return slots_[seq % plan_.window]; }
  std::size_t size_of(std::uint64_t seq) const { return sizes_[seq % sizes_.size()]; }

  void send() {
    std::uint64_t next = 0, oldest = 0;
    bool last_started = false;
    while (!shared_.quit.load(std::memory_order_relaxed)) {
      bool progress = false;
      Slot& s = slot(next);
      if (!last_started && s.request == nullptr) {
        if (!s.filled) fill(s, next);
        const Status status = send_->isend(slot_words(next), size_of(next), 0, memory_, &s.request);
        if (status != Status::ok && status != Status::again) {
          (void)failed("isend", status);
          return;
        }
        if (s.request != nullptr) {
          last_started = s.last;
          ++next;
          progress = true;
        }
      }
      for (std::uint64_t seq = oldest; seq < next; ++seq) {
        Slot& busy = slot(seq);
        if (busy.request == nullptr) continue;
        Completion c;
        if (const Status status = busy.request->test(c); status != Status::ok) {
          (void)failed("test", status);
          return;
        }
        if (!c.done) continue;
        busy = {};
        count(size_of(seq));
        progress = true;
      }
      while (oldest < next && slot(oldest).request == nullptr) ++oldest;
      if (last_started && oldest == next) {
        ended(Phase::done);
        return;
      }
      if (!progress) ::sched_yield();
    }
  }

  void fill(Slot& s, std::uint64_t seq) {
    s.last = shared_.finish.load();
    s.filled = true;
    std::uint64_t* words = slot_words(seq);
    words[0] = seq | (s.last ? kLast : 0);
    for (std::size_t i = 1; i < size_of(seq) / sizeof *words; ++i) words[i] = word_of(seq, i);
  }

  void receive() {
    std::uint64_t next = 0, oldest = 0;
    while (!shared_.quit.load(std::memory_order_relaxed)) {
      if (next < oldest + plan_.window) {
        const RecvBuffer buffer{slot_words(next), kMaxMessage, 0, memory_};
        const Status status = recv_->irecv({&buffer, 1}, false, &slot(next).request);
        if (status != Status::ok && status != Status::again) {
          (void)failed("irecv", status);
          return;
        }
        if (slot(next).request != nullptr) ++next;
      }
      if (oldest == next) continue;
      Completion c;
      if (const Status status = slot(oldest).request->test(c); status != Status::ok) {
        (void)failed("test", status);
        return;
      }
      if (!c.done) {
        ::sched_yield();
        continue;
      }
      slot(oldest).request = nullptr;
      if (!verify(oldest, c.bytes[0])) return;
      count(c.bytes[0]);
      if ((slot_words(oldest)[0] & kLast) != 0) {
        ended(Phase::done);
        return;
      }
      clear(oldest);
      ++oldest;
    }
  }

  bool verify(std::uint64_t seq, std::size_t bytes) {
    const std::uint64_t* words = slot_words(seq);
    const std::size_t size = size_of(seq);
    const auto wrong = [&](const char* what, std::size_t at, std::uint64_t value) {
      (void)std::snprintf(mine_.wrong.data(), mine_.wrong.size(),
                          "message %llu of %zu bytes: %s (byte %zu, 0x%llx)",
                          static_cast<unsigned long long>(seq), size, what, at,
                          static_cast<unsigned long long>(value));
      return failed("verify", Status::internal);
    };
    if (bytes != size) return wrong("another size was reported", 0, bytes);
    if ((words[0] & ~kLast) != seq) return wrong("another message's number", 0, words[0]);
    for (std::size_t i = 1; i < size / sizeof *words; ++i)
      if (words[i] != word_of(seq, i)) return wrong("wrong data", i * sizeof *words, words[i]);
    for (std::size_t i = size / sizeof *words; i < (size + kGuard) / sizeof *words; ++i)
      if (words[i] != kGuardWord) return wrong("written past the end", i * sizeof *words, words[i]);
    return true;
  }

  // Nothing of this message may pass for the next one.
  void clear(std::uint64_t seq) {
    std::fill_n(slot_words(seq), size_of(seq) / sizeof(std::uint64_t), kGuardWord);
  }

  void count(std::size_t bytes) {
    mine_.messages.fetch_add(1);
    mine_.bytes.fetch_add(bytes);
    const std::int64_t now = now_ns();
    if (now - last_progress_ > mine_.longest_pause.load())
      mine_.longest_pause.store(now - last_progress_);
    last_progress_ = now;
  }

  bool failed(const char* call, Status status) {
    if (shared_.quit.load()) return false;
    (void)std::snprintf(mine_.call.data(), mine_.call.size(), "%s", call);
    mine_.status.store(status);
    ended(Phase::failed);
    return false;
  }
  void ended(Phase phase) {
    mine_.ended_at.store(now_ns());
    mine_.phase.store(phase);
  }

  Shared& shared_;
  EndState& mine_;
  const Side side_;
  const EndPlan& plan_;
  const std::vector<std::size_t>& sizes_;
  std::vector<std::uint64_t> storage_;  // outlives the queues below
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Session> session_;
  int device_ = 0;
  std::unique_ptr<Listener> listener_;
  std::unique_ptr<SendComm> send_;
  std::unique_ptr<RecvComm> recv_;
  Memory* memory_ = nullptr;
  std::array<Slot, kMaxWindow> slots_;
  std::int64_t last_progress_ = 0;
};

bool drop_privileges(long memlock_kib) {
  const auto bytes = static_cast<rlim_t>(memlock_kib) * 1024;
  const rlimit limit{bytes, bytes};
  return ::setrlimit(RLIMIT_MEMLOCK, &limit) == 0 && ::setgroups(0, nullptr) == 0 &&
         ::setgid(kNobody) == 0 && ::setuid(kNobody) == 0;
}

}  // namespace

void run_end(Shared& shared, Side side, const EndPlan& plan,
             const std::vector<std::size_t>& sizes) {
  EndState& mine = shared.end(side);
  log_state = &mine;
  (void)set_log_sink(&keep_warning);
  if (plan.memlock_kib >= 0 && !drop_privileges(plan.memlock_kib)) _exit(3);
  (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);  // after setuid, which clears it
  {
    End end(shared, side, plan, sizes);
    end.run();
    // An end whose data path failed holds its connection until the parent has seen what the other
    // end makes of it: frameworks need seconds until they abort a communicator.  A failed set-up
    // is given up at once.
    const bool moving = std::strcmp(mine.call.data(), "register") != 0;
    while (moving && !shared.quit.load()) rest_ms(1);
  }
  _exit(0);
}

}  // namespace twinpath::test
