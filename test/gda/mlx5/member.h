#pragma once
// One rank of a small team whose queues an mlx5 adapter serves: our driver makes and joins them,
// the test lays out the structures that kernels read, and CPU threads play the kernels
// (gin_kernel.h). Nothing of ours looks at the queues afterwards.
#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "gda/abi/gin_kernel.h"
#include "gda/adapter/mlx5/doorbell_ringer.h"
#include "gda/adapter/mlx5/region.h"
#include "gda/team/engine.h"
#include "plugin/base/page_size.h"
#include "test/gda/mlx5/bench.h"

namespace twinpath::test {

inline constexpr int kRanks = 2;
inline constexpr std::size_t kTableEntries = 16, kWindowBytes = 256 * 1024;

// What a rank tells another of itself: plain, so that it may go through a socket.
struct Told {
  std::array<std::uint8_t, 256> end{};  // of its queue to that rank
  std::uint32_t signals_rkey = 0, window_rkey = 0;
};

struct MemberSettings {
  unsigned log_depth = 4;
  bool collapsed = false;
  bool companions = true;
  bool by_gid = false;          // as if the far end were in another subnet
  bool rung = false;            // mode gda-cpu: a thread rings for the kernels
  std::string variant, faults;  // Bench
};

// A thread that rings, as a process has one for each GPU.
class Ringing final : private gda::EngineClient {
 public:
  explicit Ringing(std::vector<gda::mlx5::DoorbellRinger::Queue> queues)
      : ringer_(std::move(queues)),
        engine_(gda::Engine::of(-1, EngineChoice::automatic, HelperCpus::near)) {
    engine_->add(*this);
  }
  ~Ringing() { engine_->remove(*this); }
  Ringing(const Ringing&) = delete;
  Ringing& operator=(const Ringing&) = delete;

 private:
  bool turn() override { return ringer_.turn(); }
  void look_around() override {}
  gda::mlx5::DoorbellRinger ringer_;
  std::shared_ptr<gda::Engine> engine_;
};

template <class Qp = gda::DeviceQp30, class DeviceContext = gda::DeviceContext88>
class Member {
 public:
  using Kernel = gda::GinKernel<Qp, DeviceContext>;

  Member(int rank, const MemberSettings& settings)
      : rank_(rank),
        settings_(settings),
        bench_(static_cast<std::size_t>(rank), settings.variant, settings.faults) {
    auto adapter = gda::mlx5::Adapter::make(bench_.fabric->verbs, bench_.mlx5, bench_.rail);
    REQUIRE(adapter);
    adapter_ = std::move(adapter).take();
    gda::mlx5::ContextQueuesSetup setup;
    setup.log_depth = settings.log_depth;
    setup.collapsed = settings.collapsed;
    setup.companions = settings.companions;
    setup.rung_by_cpu = settings.rung;
    for (int r = 0; r < kRanks; ++r) setup.peers.push_back("rank " + std::to_string(r));
    // Soon enough, when somebody is gone: 67 ms, and once again.
    setup.settings.timeout = 14;
    setup.settings.retry_count = 1;
    auto queues = gda::mlx5::ContextQueues::make(*adapter_, setup);
    REQUIRE(queues);
    queues_ = std::move(queues).take();
    signals_mr_ = reg(signals_.get(), kTableBytes);
    counters_mr_ = reg(counters_.get(), kTableBytes);
    sink_mr_ = reg(sink_.get(), sizeof(std::uint64_t));
    window_mr_ = reg(window_.get(), kWindowBytes);
  }

  Told tell(int to) const {
    Told told;
    auto end = queues_->end(static_cast<std::size_t>(to));
    if (settings_.by_gid) end.rail.lid = 0;
    Writer writer;
    encode_end(end, writer);
    const auto bytes = writer.take();
    REQUIRE(bytes.size() <= told.end.size());
    std::copy(bytes.begin(), bytes.end(), told.end.begin());
    told.signals_rkey = signals_mr_->rkey;
    told.window_rkey = window_mr_->rkey;
    return told;
  }

  // `told`: what each rank told this one.
  void join(const std::array<Told, kRanks>& told) {
    for (int r = 0; r < kRanks; ++r) {
      const auto at = static_cast<std::size_t>(r);
      const std::vector<std::uint8_t> bytes(told[at].end.begin(), told[at].end.end());
      Reader reader(bytes);
      const gda::QueueEnd far = gda::decode_end(reader);
      REQUIRE(queues_->raise(at, r == rank_ ? nullptr : &far, true) == Status::ok);
      signal_keys_[at] = gda::swap32(told[at].signals_rkey);
      counter_keys_[at] = gda::swap32(counters_mr_->rkey);
      window_keys_[at] = gda::swap32(told[at].window_rkey);
    }
    fill();
  }

  Kernel kernel(std::int64_t timeout_ns = 60 * kSecond) {
    return Kernel(reinterpret_cast<std::uintptr_t>(&context_), rank_, timeout_ns);
  }
  std::uint64_t window() const { return reinterpret_cast<std::uintptr_t>(&window_handle_); }
  std::uint8_t* data() { return window_.get(); }
  std::uint32_t* window_keys() { return window_keys_.data(); }
  gda::mlx5::ContextQueues& queues() { return *queues_; }
  Qp& queue(int peer) { return mains_[static_cast<std::size_t>(peer)]; }
  Qp& companion(int peer) { return companions_[static_cast<std::size_t>(peer)]; }
  gda::mlx5::Adapter& adapter() { return *adapter_; }
  std::uint32_t sink_key() const { return context_.sink_lkey_be; }
  const Port& port() const { return *bench_.rail.port.port; }

 private:
  // Registered from address 0, so it begins where a page does.
  struct Freed {
    void operator()(void* p) const { std::free(p); }
  };
  using Pages = std::unique_ptr<std::uint8_t, Freed>;
  static Pages pages(std::size_t bytes) {
    const std::size_t all = page_end(bytes);
    Pages p(static_cast<std::uint8_t*>(std::aligned_alloc(page_size(), all)));
    std::memset(p.get(), 0, all);
    return p;
  }
  static constexpr std::size_t kTableBytes = kTableEntries * sizeof(std::uint64_t);

  Owned<ibv_mr> reg(void* address, std::size_t bytes) {
    auto mr = gda::mlx5::register_region(*adapter_, {.data = address, .bytes = bytes});
    REQUIRE(mr);
    return std::move(mr).take();
  }

  void fill() {
    const auto address = [](const void* p) {
      return std::uint64_t{reinterpret_cast<std::uintptr_t>(p)};
    };
    const std::uint32_t depth = 1u << settings_.log_depth;
    std::vector<gda::mlx5::DoorbellRinger::Queue> rung;
    for (std::size_t q = 0; q < queues_->queues(); ++q) {
      const gda::mlx5::QueueView v = queues_->view(q);
      Qp& qp = q < kRanks ? mains_[q] : companions_[q - kRanks];
      if (!settings_.rung) {
        qp = gda::make_device_qp<Qp>(v.qpn, v.cqn, depth, v.sq, v.cqes, address(v.bell), v.record,
                                     gda::NicHandler::gpu_sm_db);
        continue;
      }
      qp = gda::make_device_qp<Qp>(v.qpn, v.cqn, depth, v.sq, v.cqes, address(&words_[q]), 0,
                                   gda::NicHandler::cpu_proxy);
      rung.push_back({&words_[q], reinterpret_cast<std::uint32_t*>(v.record),
                      static_cast<std::uint64_t*>(v.bell), v.qpn});
    }
    if (settings_.rung) ringing_ = std::make_unique<Ringing>(std::move(rung));
    context_.queues = address(mains_.data());
    if (settings_.companions) context_.companions = address(companions_.data());
    context_.signals = {address(signals_.get()), address(signal_keys_.data()),
                        gda::swap32(signals_mr_->lkey), 0};
    context_.counters = {address(counters_.get()), address(counter_keys_.data()),
                         gda::swap32(counters_mr_->lkey), 0};
    context_.sink_lkey_be = gda::swap32(sink_mr_->lkey);
    if constexpr (Kernel::kGets) {
      context_.reads_sink = 1;
      context_.last_issued_get = address(issued_.data());
      context_.last_visible_get = address(visible_.data());
    }
    window_handle_ = {address(window_keys_.data()), gda::swap32(window_mr_->lkey), 0};
  }

  const int rank_;
  const MemberSettings settings_;
  Bench bench_;
  std::unique_ptr<gda::mlx5::Adapter> adapter_;
  const Pages signals_ = pages(kTableBytes), counters_ = pages(kTableBytes),
              sink_ = pages(sizeof(std::uint64_t)), window_ = pages(kWindowBytes);
  Owned<ibv_mr> signals_mr_, counters_mr_, sink_mr_, window_mr_;
  std::unique_ptr<gda::mlx5::ContextQueues> queues_;
  std::array<Qp, kRanks> mains_{}, companions_{};
  std::array<std::uint32_t, kRanks> signal_keys_{}, counter_keys_{}, window_keys_{};
  std::array<std::uint64_t, kRanks> issued_{}, visible_{};
  DeviceContext context_{};
  gda::DeviceWindow window_handle_{};
  alignas(64) std::array<std::uint64_t, 2 * kRanks> words_{};
  std::unique_ptr<Ringing> ringing_;  // goes before the queues
};

// Both ranks in this process.
template <class Qp = gda::DeviceQp30, class DeviceContext = gda::DeviceContext88>
struct Pair {
  explicit Pair(const MemberSettings& settings = {}) : a(0, settings), b(1, settings) {
    a.join({a.tell(0), b.tell(0)});
    b.join({a.tell(1), b.tell(1)});
  }
  Member<Qp, DeviceContext> a, b;
};

}  // namespace twinpath::test
