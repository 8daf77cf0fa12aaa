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
#include "test/vm/faults/once.h"
#include "test/vm/faults/payload.h"

namespace twinpath::test {
namespace {

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

// Where the transport has that option.
template <class C>
void set_peer_timeout(C& config, int ms) {
  if constexpr (requires { config.peer_timeout_ms; })
    if (ms >= 0) config.peer_timeout_ms = ms;
}

class End {
 public:
  End(Shared& shared, Side side, const EndPlan& plan, const std::vector<std::size_t>& sizes)
      : shared_(shared), mine_(shared.end(side)), side_(side), plan_(plan), sizes_(sizes) {
    set_peer_timeout(plan_.config, plan.peer_timeout_ms);
  }

  void run() {
    mine_.pid.store(::getpid());
    if (!open()) return;
    for (;;) {
      if (side_ == Side::sender) {
        if (connect()) send();
      } else {
        if (listen()) receive();
      }
      // An end whose data path failed holds its connection until the parent has seen what the
      // other end makes of it: frameworks need seconds until they abort a communicator.  A failed
      // set-up is given up at once.
      if (std::strcmp(mine_.call.data(), "register") == 0) return;
      while (!leaving()) rest_ms(1);
      if (shared_.quit.load()) return;
      begin_again();
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
    watch_posts(**fabric, mine_.posted_twice);
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

  // Told to leave, or to make a new connection.
  bool leaving() const {
    return shared_.quit.load(std::memory_order_relaxed) ||
           shared_.round.load(std::memory_order_relaxed) != mine_.round.load();
  }

  // Everything of the connection goes; fabric, transport and session stay as they are.
  void begin_again() {
    for (Comm* comm : {static_cast<Comm*>(send_.get()), static_cast<Comm*>(recv_.get())})
      if (comm != nullptr && memory_ != nullptr) (void)comm->deregister_memory(memory_);
    memory_ = nullptr;
    send_.reset();
    recv_.reset();
    listener_.reset();
    slots_ = {};
    mine_.messages.store(0);
    mine_.bytes.store(0);
    mine_.longest_pause.store(0);
    mine_.call = {};
    mine_.warnings.store(0);
    mine_.phase.store(Phase::starting);
    mine_.round.store(shared_.round.load());
  }

  bool connect() {
    while (!shared_.handle_ready.load()) {
      if (leaving()) return false;
      rest_ms(1);
    }
    std::array<std::uint8_t, kHandleBytes> handle = shared_.handle;
    Status s = Status::again;
    while (s == Status::again && !leaving()) {
      s = session_->connect(device_, handle, send_);
      if (s == Status::again) rest_ms(1);
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
    while (s == Status::again && !leaving()) {
      s = listener_->accept(recv_);
      if (s == Status::again) rest_ms(1);
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
    while (!leaving()) {
      bool progress = false;
      Slot& s = slot(next);
      if (!last_started && s.request == nullptr && !shared_.pause.load()) {
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
      rest(progress);
    }
  }

  // An end that has nothing to do leaves the core to those that have; emulated switches are dear.
  void rest(bool progress) {
    idle_ = progress ? 0 : idle_ + 1;
    if (idle_ > 50)
      rest_ms(1);
    else if (!progress)
      ::sched_yield();
  }

  void fill(Slot& s, std::uint64_t seq) {
    s.last = shared_.finish.load();
    s.filled = true;
    fill_payload(slot_words(seq), seq, size_of(seq), s.last);
  }

  void receive() {
    std::uint64_t next = 0, oldest = 0;
    while (!leaving()) {
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
      rest(c.done);
      if (!c.done) continue;
      slot(oldest).request = nullptr;
      if (!verify(oldest, c.bytes[0])) return;
      count(c.bytes[0]);
      if (is_last(slot_words(oldest))) {
        ended(Phase::done);
        return;
      }
      clear_payload(slot_words(oldest), size_of(oldest));
      ++oldest;
    }
  }

  bool verify(std::uint64_t seq, std::size_t bytes) {
    const std::string wrong = payload_problem(slot_words(seq), seq, size_of(seq), bytes);
    if (wrong.empty()) return true;
    (void)std::snprintf(mine_.wrong.data(), mine_.wrong.size(), "%s", wrong.c_str());
    return failed("verify", Status::internal);
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
    if (leaving()) return false;
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
  EndPlan plan_;
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
  int idle_ = 0;  // rounds without progress
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
  }
  _exit(0);
}

}  // namespace twinpath::test
