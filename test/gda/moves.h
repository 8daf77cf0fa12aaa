#pragma once
// Kernels of a team whose first port fails while they run, for tests: each rank puts to all, with
// signals, in turn of the table and of a window, and counters, gets in between, and writes over
// what it has taken.  CPU threads play them.
//
// Threads: ranks are threads or processes; `fault` and `alone` are set before they begin.
#include <array>
#include <atomic>
#include <cstdarg>
#include <cstring>
#include <map>
#include <random>
#include <thread>

#include "plugin/base/clock.h"
#include "plugin/base/counters.h"
#include "plugin/fabric/soft/extended.h"
#include "test/gda/gin_ranks.h"
#include "test/support/log_capture.h"

namespace twinpath::test {

inline constexpr std::size_t kSlot = 24 * 1024, kSlots = 4;
inline constexpr std::uint64_t kRounds = 150;
// How many each sender makes, and how far one of this process has come.
inline std::atomic<std::uint64_t> rounds{kRounds}, furthest{0};
inline constexpr std::uint64_t kForAsLong = std::uint64_t{1} << 40;  // as faults go on, and more
inline constexpr int kData = 0, kCredit = 16;  // signals: the first of those from each rank

// What becomes of the first port, and when; the same for all ranks of a run.
struct Fault {
  const char* what = "";
  bool down = false;
  soft::PortLoss loss = soft::PortLoss::none;
  std::int64_t after_us = 0;
  unsigned seed = 0;
  std::int64_t back_us = 0;         // the port comes back so much later; 0: it does not
  bool last_late = false;           // a queue pair's last send comes back long after its receives
  int times = 1;                    // that it does all this; of more the log must be given
  const LogCapture* log = nullptr;  // it tells where that many queues are
  std::size_t queues = 0;
  bool flaps = false;                               // without waiting for any queue
  bool returns = false;                             // each queue's way back, too
  std::string (*plan)(const Port& port) = nullptr;  // all this itself, with the log
};
inline Fault fault;
// False: senders stand still half way until the first port has failed once.
inline std::atomic<bool> has_struck{true};
// For as long as this lives, of runs each of which loses the port: no processor is too quick for
// it.
struct UntilStruck {
  UntilStruck() { has_struck = false; }
  ~UntilStruck() { has_struck = true; }
  UntilStruck(const UntilStruck&) = delete;
  UntilStruck& operator=(const UntilStruck&) = delete;
};
inline bool alone = false;  // the team's device has one port, and the other one is in reserve
// The device, of two, whose port fails: soft0, and with crossed_join() perhaps soft1.
inline int struck = 0;
inline std::string struck_port() { return "soft" + std::to_string(struck); }
inline std::string other_port() { return "soft" + std::to_string(1 - struck); }

inline std::size_t bytes_of(int from, int to, std::uint64_t round) {
  std::minstd_rand random(fault.seed * 7919 + static_cast<unsigned>(from * 64 + to) +
                          static_cast<unsigned>(round) * 4096);
  (void)random();
  const unsigned kind = static_cast<unsigned>(random()) % 4;
  const std::size_t most = kind == 0 ? 16 : kind == 1 ? 700 : kSlot - 16;
  return 1 + random() % most;
}
inline unsigned seed_of(int from, int to, std::uint64_t round) {
  return static_cast<unsigned>(round) * 64 + static_cast<unsigned>(from * 8 + to);
}

// All memory that the kernels of a rank use.  `Words`: that of signals in windows; `Data`: of the
// rest.
template <class Words, class Data = WindowMemory>
struct Windows {
  Windows(gda::GinComm& comm, int ranks)
      : words(comm, 4096),
        out(comm, kSlot * kSlots * static_cast<std::size_t>(ranks)),
        in(comm, kSlot * kSlots * static_cast<std::size_t>(ranks)),
        fetched(comm, 4096 * static_cast<std::size_t>(ranks)),
        fixed(comm, 4096) {}
  explicit operator bool() const { return words && out && in && fixed && fetched; }
  Words words;
  Data out, in, fetched;
  Data fixed;  // the last one, of which flushes read a byte, as nobody writes there
};
// Every second signal of a kind is in the window, or none.
inline bool words_in_windows = true;
inline bool in_window(std::uint64_t round) { return words_in_windows && round % 2 != 0; }
// Of the signals of that many rounds, those of the table.
inline std::uint64_t in_table(std::uint64_t round) {
  return words_in_windows ? (round + 1) / 2 : round;
}
inline gda::PutExtras signal_of(int id, std::uint64_t round, std::uint64_t words) {
  gda::PutExtras extras;
  if (in_window(round)) {
    extras.signal_window = words;
    extras.signal_offset = static_cast<std::uint64_t>(id) * 8;
  } else {
    extras.signal = id;
  }
  return extras;
}
// Until that round's has come.
template <class All>
int wait_for(int id, std::uint64_t round, const gda::GinKernel30& kernel, All& w) {
  const std::uint64_t least = in_window(round) ? round / 2 + 1 : in_table(round + 1);
  const auto at = static_cast<std::size_t>(id);
  return in_window(round) ? wait_word(w.words, 8 * at, least) : kernel.wait_signal(at, least);
}
// All rounds' and no more.
template <class All>
bool has_all(int id, const gda::GinKernel30& kernel, All& w) {
  const auto at = static_cast<std::size_t>(id);
  const std::uint64_t table = in_table(rounds);
  return kernel.read_signal(at) == table && w.words.word(8 * at) == rounds - table;
}
inline std::size_t slot_of(int rank, std::uint64_t round) {
  return (static_cast<std::size_t>(rank) * kSlots + round % kSlots) * kSlot;
}

// Puts to one rank, each when its slot there is free again; sometimes a get between them.
template <class All>
std::string send_to(int to, int me, const gda::GinKernel30& shared, All& w) {
  gda::GinKernel30 kernel = shared;
  for (std::uint64_t round = 0; round < rounds; ++round) {
    for (std::uint64_t far = furthest;
         far < round && !furthest.compare_exchange_weak(far, round);) {
    }
    while (round >= rounds / 2 && !has_struck) std::this_thread::yield();
    if (round >= kSlots) TRY_GIN(wait_for(kCredit + to, round - kSlots, kernel, w));
    const std::size_t bytes = bytes_of(me, to, round), at = slot_of(to, round);
    w.out.fill(seed_of(me, to, round), at, bytes);
    gda::PutExtras extras = signal_of(kData + me, round, w.words.handle());
    extras.counter = to;
    TRY_GIN(kernel.put(to, w.in.handle(), slot_of(me, round), w.out.handle(), at, bytes, extras));
    if (round % 16 != 5) continue;
    const std::size_t mine = 4096 * static_cast<std::size_t>(to);
    std::memset(w.fetched.data() + mine, 0, 4096);
    TRY_GIN(kernel.get(to, w.fixed.handle(), 0, w.fetched.handle(), mine, 4096));
    TRY_GIN(kernel.flush(to));
    const std::int64_t bad = w.fetched.mismatch(static_cast<unsigned>(1000 + to), mine, 4096);
    EXPECT_GIN(bad == -1, bad, to, static_cast<std::int64_t>(round));
  }
  TRY_GIN(kernel.flush(to));
  TRY_GIN(kernel.flush_counters(to));
  return {};
}

// Takes what one rank puts, has the memory for itself for a while, and gives it back.
template <class All>
std::string take_from(int from, int me, const gda::GinKernel30& shared, All& w) {
  gda::GinKernel30 kernel = shared;
  for (std::uint64_t round = 0; round < rounds; ++round) {
    TRY_GIN(wait_for(kData + from, round, kernel, w));
    const std::size_t bytes = bytes_of(from, me, round), at = slot_of(from, round);
    const std::int64_t bad = w.in.mismatch(seed_of(from, me, round), at, bytes);
    EXPECT_GIN(bad == -1, bad, from, static_cast<std::int64_t>(round));
    w.in.fill(77, at, bytes);
    for (int i = 0; i < 20; ++i) std::this_thread::yield();
    EXPECT_GIN(w.in.mismatch(77, at, bytes) == -1, from, static_cast<std::int64_t>(round));
    if (in_window(round))
      TRY_GIN(
          kernel.signal_word(from, w.words.handle(), 8 * static_cast<std::size_t>(kCredit + me)));
    else
      TRY_GIN(kernel.signal(from, kCredit + me));
  }
  return {};
}

inline void set(const Port& port, bool well) {
  if (fault.down)
    (void)soft::set_port_state(port.context, port.number, well);
  else
    (void)soft::set_port_loss(port.context, port.number, well ? soft::PortLoss::none : fault.loss);
}

// Until that is so, a minute at most.
template <class F>
bool comes(F so) {
  const std::int64_t end = now_ns() + 60 * kSecond;
  while (!so()) {
    if (now_ns() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

// All queues are over that port, or all `of_them`, by what each told last.
inline bool all_are_on(const std::string& port, bool of_them = false) {
  return comes([&port, of_them] {
    const std::string word = " goes on over ";
    std::map<std::string, bool> there;
    for (const LogLine& line : fault.log->lines())
      if (const auto at = line.text.find(word); at != std::string::npos)
        there[line.text.substr(0, at)] = line.text.compare(at + word.size(), 5, port) == 0;
    std::size_t count = 0;
    for (const auto& [queue, is] : there) count += is ? 1 : 0;
    return count == (of_them ? there.size() : fault.queues);
  });
}

inline std::size_t passed() {
  std::size_t count = 0;
  for (const LogLine& line : fault.log->lines())
    count += line.text.find("does not stay on soft0") != std::string::npos ? 1 : 0;
  return count;
}

// The port is lost in the very moment at which a queue leaves the other one for it, which it says.
inline const char* leaving = "goes back to soft0";
inline LogSink sink_behind = nullptr;  // of losing_sink(), both set before kernels run
inline const Port* lost_on_return = nullptr;
inline std::atomic<bool> armed{false};
__attribute__((format(printf, 5, 6))) inline void losing_sink(LogLevel level, unsigned long subsys,
                                                              const char* where, int line,
                                                              const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const std::string text = text_of(format, arguments);
  va_end(arguments);
  sink_behind(level, subsys, where, line, "%s", text.c_str());
  const bool returns =
      text.find(leaving) != text.npos && text.find("to itself") == text.npos;  // which nobody tells
  if (returns && armed.exchange(false)) set(*lost_on_return, false);
}

inline std::string strike_returns(const Port& port) {
  lost_on_return = &port;
  bool all = all_are_on("soft1");
  for (int time = 1; all && time <= fault.times; ++time) {
    const std::size_t before = passed();
    armed = true;
    set(port, true);
    all = comes([] { return !armed; }) && comes([before] { return passed() > before; }) &&
          all_are_on("soft1");
  }
  armed = false;
  set(port, true);
  EXPECT_GIN(all);
  EXPECT_GIN(all_are_on("soft0"));
  return {};
}

inline std::string strike_often(const Port& port) {
  std::minstd_rand random(fault.seed);
  for (int time = 1; time <= fault.times; ++time) {
    std::this_thread::sleep_for(std::chrono::microseconds(fault.after_us));
    set(port, false);
    if (fault.returns) return strike_returns(port);
    if (fault.flaps) {
      const auto most = static_cast<unsigned>(fault.back_us);
      std::this_thread::sleep_for(std::chrono::microseconds(random() % most));
      set(port, true);
      std::this_thread::sleep_for(std::chrono::microseconds(random() % most));
      continue;
    }
    EXPECT_GIN(all_are_on(other_port()), time);
    std::this_thread::sleep_for(std::chrono::microseconds(fault.back_us));
    set(port, true);
    EXPECT_GIN(all_are_on(struck_port()), time);
  }
  EXPECT_GIN(!fault.flaps || all_are_on(struck_port(), true));  // that ever left it
  return {};
}

inline std::string strike(const Port& port) {
  if (fault.log != nullptr) {
    std::string wrong = fault.plan != nullptr ? fault.plan(port) : strike_often(port);
    if (rounds > kForAsLong)
      rounds = furthest + scaled<std::uint64_t>(1000);  // which nobody has come to
    return wrong;
  }
  std::this_thread::sleep_for(std::chrono::microseconds(fault.after_us));
  set(port, false);
  has_struck = true;
  if (fault.back_us == 0) return {};
  std::this_thread::sleep_for(std::chrono::microseconds(fault.back_us));
  set(port, true);
  return {};
}

template <class Words = WindowMemory, class Data = WindowMemory>
std::string play(Rank& r, Member& member) {
  Windows<Words, Data> w(*member.comm, r.ranks);
  EXPECT_GIN(w);
  w.fixed.fill(static_cast<unsigned>(1000 + r.rank), 0, 4096);
  const Port& lost = *r.devices->rails(struck).front().port;
  r.meeting->barrier();
  const auto kernel = member.kernel<gda::GinKernel30>();
  std::vector<std::string> wrong(static_cast<std::size_t>(2 * r.ranks + 1));
  std::vector<std::thread> threads;
  for (int p = 0; p < r.ranks; ++p) {
    const auto at = static_cast<std::size_t>(2 * p);
    threads.emplace_back([&, p, at] { wrong[at] = send_to(p, r.rank, kernel, w); });
    threads.emplace_back([&, p, at] { wrong[at + 1] = take_from(p, r.rank, kernel, w); });
  }
  if (r.rank == 0) threads.emplace_back([&] { wrong.back() = strike(lost); });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& one : wrong)
    if (!one.empty()) return one;
  for (int p = 0; p < r.ranks; ++p)  // nobody has waited for the last ones
    for (const std::uint64_t last : {rounds - 2, rounds - 1})
      TRY_GIN(wait_for(kCredit + p, last, kernel, w));
  r.meeting->barrier();  // all has come: nothing more may
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  for (int p = 0; p < r.ranks; ++p) {
    const std::uint64_t counter = kernel.read_counter(static_cast<std::uint64_t>(p));
    EXPECT_GIN(counter == rounds, static_cast<std::int64_t>(counter));
    EXPECT_GIN(has_all(kData + p, kernel, w) && has_all(kCredit + p, kernel, w), p);
    for (std::uint64_t slot = 0; slot < kSlots; ++slot) {
      const std::uint64_t last = rounds - kSlots + slot;
      EXPECT_GIN(w.in.mismatch(77, slot_of(p, last), bytes_of(p, r.rank, last)) == -1, p,
                 static_cast<std::int64_t>(slot));
    }
  }
  EXPECT_GIN(!member.context->failed());
  r.meeting->barrier();
  return {};
}

// The merged device, made last.
inline int last_device(const Rank& r) { return static_cast<int>(r.devices->count()) - 1; }
// Of a rank that is a process; false: it is not to be had.
inline bool merge_apart(Rank& r, const Config& config) {
  return r.use(open_devices(config)) && r.devices->merge(std::array{0, 1});
}

inline Member join_first(Rank& r) {
  const bool merged = alone || r.rank != 0 || r.devices->merge(std::array{0, 1});
  r.meeting->barrier();
  return merged ? join(r, settings30(), alone ? 0 : last_device(r)) : Member{};
}

// Each rank's device is a port of its own, one of two, and the other one is in reserve.
inline Member crossed_join(Rank& r) { return join(r, settings30(), r.rank % 2); }

// A signal to the other of two ranks and from it, the n-th.
inline std::string talk(Member& member, std::uint64_t n) {
  auto kernel = member.kernel<gda::GinKernel30>();
  TRY_GIN(kernel.signal(1 - member.rank, 0));
  TRY_GIN(kernel.wait_signal(0, n));
  EXPECT_GIN(!member.context->failed(), static_cast<std::int64_t>(n));
  return {};
}

inline Config merged_config() {
  Config config = gin_config();
  config.soft_hcas = "soft0,soft1,soft2";
  config.mode = ModeChoice::proxy;
  config.gin_atomics = AtomicsChoice::never;
  config.ib_timeout = 10;  // 4 ms
  return config;
}

// Adapters that place in order what goes to one memory only, as those behind PCIe.
inline void unordered(Fabric& fabric) { fabric.verbs.ordered = false; }

// Moves of this process, as readers of the counters learn of them.
inline std::uint64_t moves_counted = 0;

inline std::string count_moves(const counters::MoveCounts& of) {
  moves_counted = of.moves.load();
  const std::uint64_t longest = of.longest_ns.load(), all = of.stopped_ns.load();
  EXPECT_GIN(moves_counted == 0 ? longest == 0 && all == 0 : longest > 0 && longest <= all,
             static_cast<std::int64_t>(longest), static_cast<std::int64_t>(all));
  return {};
}

// What a fault did to the ports of this process; run_threads() does so at the end, too.
inline void mend(Rank& r) { mend_ports(*r.devices); }

// A team plays, and its ports are well again.
template <class Words = WindowMemory, class Data = WindowMemory>
std::string play_and_mend(Rank& r, Member& member) {
  EXPECT_GIN(member.context);
  std::string wrong = play<Words, Data>(r, member);
  mend(r);
  return wrong;
}

}  // namespace twinpath::test
