#include "test/abi/rma_fake.h"

#include <algorithm>
#include <stdexcept>

namespace twinpath::test {
namespace {

Status rma_answer() {
  if (rma().throws) throw std::runtime_error("planted");
  return rma().answer;
}

class FakeRmaRequest final : public gda::RmaRequest {
 public:
  Status test(bool& done) override {
    done = rma().done;
    return rma_answer();
  }
};

class FakeRmaContext final : public gda::RmaContext {
 public:
  FakeRmaContext() { ++rma().contexts; }
  ~FakeRmaContext() override {
    --rma().contexts;
    rma().gone.push_back("context");
  }
  Result<gda::RmaRequest*> put(int context, int rank, const gda::RmaTransfer& transfer,
                               const gda::RmaSignal* signal) override {
    rma().signals = signal != nullptr;
    if (signal != nullptr) rma().signal = *signal;
    return note("put", context, rank, transfer);
  }
  Result<gda::RmaRequest*> get(int context, int rank, const gda::RmaTransfer& transfer) override {
    return note("get", context, rank, transfer);
  }
  Result<gda::RmaRequest*> flush(int context, int rank) override {
    if (rma().nothing_to_flush) return static_cast<gda::RmaRequest*>(nullptr);
    return note("flush", context, rank, {});
  }
  Status progress() override {
    rma().call = "progress";
    return rma_answer();
  }
  bool failed() const override { return rma().failed; }

 private:
  Result<gda::RmaRequest*> note(const char* call, int context, int rank,
                                const gda::RmaTransfer& transfer) {
    rma().call = call;
    rma().context = context;
    rma().rank = rank;
    rma().transfer = transfer;
    TP_TRY(rma_answer());
    return static_cast<gda::RmaRequest*>(&request_);
  }
  FakeRmaRequest request_;
};

class FakeRmaWindow final : public gda::RmaWindow {};

class FakeRmaComm final : public gda::RmaComm {
 public:
  FakeRmaComm() { ++rma().comms; }
  ~FakeRmaComm() override {
    --rma().comms;
    rma().gone.push_back("comm");
  }
  Result<std::unique_ptr<gda::RmaContext>> create_context(
      const gda::RmaSettings& settings) override {
    rma().settings = settings;
    TP_TRY(rma_answer());
    return std::unique_ptr<gda::RmaContext>(std::make_unique<FakeRmaContext>());
  }
  Result<gda::RmaWindow*> register_window(void*, std::size_t bytes, MemoryType type,
                                          std::uint64_t offset, int fd,
                                          const gda::WindowTraits& traits) override {
    rma().bytes = bytes;
    rma().type = type;
    rma().offset = offset;
    rma().fd = fd;
    rma().traits = traits;
    TP_TRY(rma_answer());
    return static_cast<gda::RmaWindow*>(&window_);
  }
  Status deregister_window(gda::RmaWindow* window) override {
    rma().deregistered = window;
    return rma_answer();
  }
  bool any_signal_shows_all() const override { return rma().shows_all; }

 private:
  FakeRmaWindow window_;
};

class FakeRmaListener final : public gda::OneSidedListener {
 public:
  FakeRmaListener() { ++rma().listeners; }
  ~FakeRmaListener() override { --rma().listeners; }
};

class FakeRma final : public gda::RmaTransport {
 public:
  bool reaches_gpus() const override { return rma().reaches_gpus; }
  Result<std::unique_ptr<gda::OneSidedListener>> listen(
      int device, std::span<std::uint8_t, kHandleBytes> handle) override {
    rma().device = device;
    TP_TRY(rma_answer());
    std::fill(handle.begin(), handle.end(), std::uint8_t{0x77});
    return std::unique_ptr<gda::OneSidedListener>(std::make_unique<FakeRmaListener>());
  }
  Result<std::unique_ptr<gda::RmaComm>> connect(
      std::span<const std::array<std::uint8_t, kHandleBytes>>, int rank, gda::OneSidedListener&,
      const CommSettings& settings) override {
    rma().rank = rank;
    rma().comm_id = settings.comm_id;
    TP_TRY(rma_answer());
    return std::unique_ptr<gda::RmaComm>(std::make_unique<FakeRmaComm>());
  }
};

}  // namespace

RmaState& rma() {
  static RmaState state;
  return state;
}

Result<std::unique_ptr<gda::RmaTransport>> make_fake_rma() {
  return std::unique_ptr<gda::RmaTransport>(std::make_unique<FakeRma>());
}

}  // namespace twinpath::test
