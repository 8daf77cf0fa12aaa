#include "test/abi/one_sided_comm.h"

#include <algorithm>
#include <deque>

#include "gda/abi/gin_kernel.h"
#include "test/abi/random_side.h"

namespace twinpath::test {
namespace {

std::uint64_t load(const void* word) {
  return std::atomic_ref(*const_cast<std::uint64_t*>(static_cast<const std::uint64_t*>(word)))
      .load(std::memory_order_acquire);
}

// --- RMA: NCCL's thread asks, tests and makes progress.

class RmaLane final : public SidedLane {
 public:
  RmaLane(RmaHost& host, int context, const Lane& out, std::uint64_t word_at)
      : host_(host), context_(context), out_(out), word_at_(word_at), random_(1 + context) {}

  bool put(const SidedWindows& w, const SidedPut& p) override {
    RmaMove move;
    if (p.bytes != 0) move = {p.from, w.out.handle, p.bytes, p.to, w.in.handle};
    void* request = nullptr;
    const auto r = p.add == 0 ? host_.t_.iput(host_.ctx, context_, move, peer(), &request)
                              : host_.t_.iput_signal(host_.ctx, context_, move, peer(),
                                                     word(w, p.add), &request);
    return add(r, request);
  }
  bool get(const SidedWindows& w, std::uint64_t from, std::uint64_t to,
           std::uint64_t bytes) override {
    void* request = nullptr;
    const auto r = host_.t_.iget(host_.ctx, context_, {from, w.out.handle, bytes, to, w.in.handle},
                                 peer(), &request);
    return add(r, request);
  }
  bool step() override {
    if (host_.t_.progress(host_.ctx) != abi::ncclSuccess) return false;
    for (auto n = std::min<std::size_t>(asked_.size(), 8); n > 0; --n)
      if (!look_at(asked_[random_() % asked_.size()])) return false;
    for (; !asked_.empty() && asked_.front() == nullptr; asked_.pop_front()) ++ended_;
    return true;
  }
  std::uint64_t begun() const override { return ended_ + asked_.size(); }
  std::uint64_t ended() override { return ended_; }
  bool settle() override {
    (void)host_.t_.progress(host_.ctx);
    for (void*& request : asked_)
      if (!look_at(request)) request = nullptr;  // it has failed, which is an end
    std::erase(asked_, nullptr);
    return asked_.empty();
  }
  std::uint64_t received(const void* word) override {
    return word != nullptr ? load(word) : host_.signal(context_ * 2 + static_cast<int>(peer()));
  }

 private:
  std::uint32_t peer() const { return static_cast<std::uint32_t>(1 - host_.rank_); }
  RmaWord word(const SidedWindows& w, std::uint64_t value) const {
    const std::uint32_t op = value == 1 ? abi::kSignalInc : abi::kSignalAdd;
    if (out_.word_in_window) return {word_at_, w.in.handle, value, op, true};
    return {static_cast<std::uint64_t>(context_ * 2 + host_.rank_) * 8, host_.signals_mh, value, op,
            true};
  }
  bool add(abi::ncclResult_t result, void* request) {
    must(result != abi::ncclSuccess || request != nullptr, "a call gives a request");
    if (result != abi::ncclSuccess) return false;
    asked_.push_back(request);
    return true;
  }
  // Null once it has ended.
  bool look_at(void*& request) {
    int done = 0;
    if (request != nullptr && host_.t_.test(host_.comm, request, &done) != abi::ncclSuccess)
      return false;
    if (done != 0) request = nullptr;
    return true;
  }

  RmaHost& host_;
  const int context_;
  const Lane& out_;
  const std::uint64_t word_at_;
  std::minstd_rand random_;
  std::deque<void*> asked_;
  std::uint64_t ended_ = 0;
};

class RmaSided final : public SidedComm {
 public:
  RmaSided(SidedPlugin& plugin, const SidedSetup& s, AllGather& boot)
      : t_(*plugin.rmas[static_cast<std::size_t>(s.table)]), setup_(s) {
    must(t_.init(&ctx_, 0x5eed, s.log), "RMA init");
    try {
      host_ =
          std::make_unique<RmaHost>(t_, boot, s.rank, ctx_, ctx_, static_cast<int>(s.out.size()));
    } catch (...) {
      (void)t_.finalize(ctx_);
      throw;
    }
    std::uint64_t at = 0;
    for (std::size_t c = 0; c < s.out.size(); ++c) {
      lanes_.push_back(std::make_unique<RmaLane>(*host_, static_cast<int>(c), setup_.out[c], at));
      at += kLaneHead + setup_.out[c].bytes();
    }
  }
  ~RmaSided() override {
    host_.reset();
    (void)t_.finalize(ctx_);
  }
  SidedLane& lane(int context) override { return *lanes_[static_cast<std::size_t>(context)]; }
  SidedWindow reg(void* data, std::size_t bytes) override {
    void* handle = nullptr;
    const auto r = t_.reg(host_->comm, data, bytes, abi::kPtrHost, 0, &handle);
    must((r == abi::ncclSuccess) == (handle != nullptr), "a window or an error");
    return {handle, 0};
  }
  void dereg(const SidedWindow& w) override { must(t_.dereg(host_->comm, w.handle), "deregMrSym"); }
  bool failed() override {
    bool failed = false;
    must(t_.query_last_error(host_->ctx, &failed), "queryLastError");
    return failed;
  }
  void destroy_contexts() override {
    must(t_.destroy_context(std::exchange(host_->ctx, nullptr)), "destroyContext");
  }
  void close() override {
    if (host_->ctx != nullptr) {  // before its context, which NCCL does when a program aborts
      must(t_.close_coll(std::exchange(host_->comm, nullptr)), "closeColl");
      host_->signals_mh = nullptr;
    }
    host_->close();
  }

 private:
  AnyRma& t_;
  const SidedSetup setup_;
  void* ctx_ = nullptr;
  std::unique_ptr<RmaHost> host_;
  std::vector<std::unique_ptr<RmaLane>> lanes_;
};

// --- GIN: a CPU thread in the place of a kernel.

template <class Kernel>
class GinLane final : public SidedLane {
 public:
  GinLane(std::uint64_t context, int rank, int number, const Lane& out, std::uint64_t word_at)
      : kernel_(context, rank, kStuck),
        peer_(1 - rank),
        id_(number),
        out_(out),
        word_at_(word_at),
        signals_before_(kernel_.read_signal(signal_id())),
        counter_before_(kernel_.read_counter(signal_id())) {}

  bool put(const SidedWindows& w, const SidedPut& p) override {
    gda::PutExtras extras;
    if (p.add != 0 && out_.word_in_window) {
      extras.signal_window = w.in.device;
      extras.signal_offset = word_at_;
    } else if (p.add != 0) {
      extras.signal = static_cast<std::int64_t>(signal_id());
    }
    extras.add = p.add;
    // VA signals have none in their own call.
    if (out_.counted && (p.bytes != 0 || !out_.word_in_window))
      extras.counter = static_cast<std::int64_t>(signal_id());
    ++begun_;
    if (extras.counter >= 0) counted_.push_back(begun_);
    if (p.bytes == 0 && out_.word_in_window)
      return took(kernel_.signal_word(peer_, w.in.device, word_at_, p.add));
    if (p.bytes == 0) return took(kernel_.signal(peer_, extras.signal, p.add, extras.counter));
    return took(kernel_.put(peer_, w.in.device, p.to, w.out.device, p.from, p.bytes, extras));
  }
  bool get(const SidedWindows& w, std::uint64_t from, std::uint64_t to,
           std::uint64_t bytes) override {
    ++begun_;
    if constexpr (Kernel::kGets)
      return took(kernel_.get(peer_, w.out.device, from, w.in.device, to, bytes)) && flush();
    return false;
  }
  bool step() override { return !lost_; }
  std::uint64_t begun() const override { return begun_; }
  std::uint64_t ended() override {
    if (out_.counted && !counted_.empty() && counted_.back() == begun_) {
      const std::uint64_t count = kernel_.read_counter(signal_id()) - counter_before_;
      if (count > counts_seen_ + counted_.size()) lost_ = true;  // let go, or wrong: failed() says
      for (; !lost_ && counts_seen_ < count; ++counts_seen_) {
        ended_ = counted_.front();
        counted_.pop_front();
      }
    } else if (ended_ < begun_) {
      (void)flush();
    }
    return ended_;
  }
  bool settle() override {
    (void)took(kernel_.flush(peer_));
    return true;
  }
  std::uint64_t received(const void* word) override {
    return word != nullptr ? load(word) : kernel_.read_signal(signal_id()) - signals_before_;
  }

 private:
  std::uint64_t signal_id() const { return static_cast<std::uint64_t>(id_); }
  bool took(int error) {
    must(error != -ETIMEDOUT, "a kernel's wait ends");
    must(error == 0 || error == -EIO, "a completion of another work request");
    lost_ = lost_ || error != 0;
    return !lost_;
  }
  bool flush() {
    if (!took(kernel_.flush(peer_))) return false;
    ended_ = begun_;
    counts_seen_ += counted_.size();
    counted_.clear();
    return true;
  }

  Kernel kernel_;
  const int peer_, id_;
  const Lane& out_;
  const std::uint64_t word_at_, signals_before_, counter_before_;
  std::uint64_t begun_ = 0, ended_ = 0, counts_seen_ = 0;
  std::deque<std::uint64_t> counted_;  // calls whose counts have not been seen
  bool lost_ = false;
};

template <class Kernel, class Context>
class GinSided final : public SidedComm {
 public:
  GinSided(AnyGin& t, const SidedSetup& s, AllGather& boot, const abi::ncclGinConfig_v14_t& config)
      : t_(t), setup_(s), rank_(t, s.log, boot, s.rank, 1, s.number == 0, config) {
    std::uint64_t at = 0;
    for (std::size_t c = 0; c < s.out.size(); ++c) {
      lanes_.push_back(std::make_unique<GinLane<Kernel>>(
          rank_.devices[0] + c * sizeof(Context), s.rank, static_cast<int>(c), setup_.out[c], at));
      at += kLaneHead + setup_.out[c].bytes();
    }
  }
  SidedLane& lane(int context) override { return *lanes_[static_cast<std::size_t>(context)]; }
  SidedWindow reg(void* data, std::size_t bytes) override {
    void *handle = nullptr, *device = nullptr;
    const auto r = t_.reg(rank_.comms[0], data, bytes, abi::kPtrHost, 0, &handle, &device);
    must((r == abi::ncclSuccess) == (handle != nullptr && device != nullptr),
         "a window or an error");
    return {handle, reinterpret_cast<std::uintptr_t>(device)};
  }
  void dereg(const SidedWindow& w) override {
    must(t_.dereg(rank_.comms[0], w.handle), "deregMrSym");
  }
  bool failed() override { return rank_.failed(); }
  void destroy_contexts() override { rank_.destroy_contexts(); }
  void close() override {
    if (!rank_.contexts.empty()) {
      must(t_.close_coll(rank_.comms[0]), "closeColl");
      rank_.comms.clear();
    }
    rank_.close();
  }

 private:
  AnyGin& t_;
  const SidedSetup setup_;
  GinRank rank_;
  std::vector<std::unique_ptr<GinLane<Kernel>>> lanes_;
};

}  // namespace

std::unique_ptr<SidedComm> join(SidedPlugin& plugin, const SidedSetup& s, AllGather& boot) {
  using gda::DeviceContext72;
  using gda::DeviceContext88;
  abi::ncclGinConfig_v14_t config{.nSignals = 16,
                                  .nCounters = 16,
                                  .nContexts = static_cast<int>(s.out.size()),
                                  .queueDepth = 64,
                                  .trafficClass = -1,
                                  .backendVersion = 2,
                                  .rankStride = 1};
  AnyGin& gin = *plugin.gins[s.table == Sided::gin11 ? 0 : 1];
  switch (s.table) {
    case Sided::gin11:
      return std::make_unique<GinSided<gda::GinKernel28, DeviceContext72>>(gin, s, boot, config);
    case Sided::gin14_old:
      config.backendVersion = 1;
      return std::make_unique<
          GinSided<gda::GinKernel<gda::DeviceQp30, DeviceContext72>, DeviceContext72>>(gin, s, boot,
                                                                                       config);
    case Sided::gin14:
      return std::make_unique<GinSided<gda::GinKernel30, DeviceContext88>>(gin, s, boot, config);
    default:
      return std::make_unique<RmaSided>(plugin, s, boot);
  }
}

}  // namespace twinpath::test
