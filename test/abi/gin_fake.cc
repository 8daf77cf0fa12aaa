#include "test/abi/gin_fake.h"

#include <algorithm>
#include <stdexcept>

namespace twinpath::test {
namespace {

Status answer() {
  if (gin().throws) throw std::runtime_error("planted");
  return gin().answer;
}

class FakeWindow final : public gda::GinWindow {
 public:
  std::uint64_t device_handle() const override { return kFakeWindowAddress; }
};

class FakeContext final : public gda::GinContext {
 public:
  FakeContext() { ++gin().contexts; }
  ~FakeContext() override {
    --gin().contexts;
    gin().gone.push_back("context");
  }
  std::uint64_t device_handle() const override { return kFakeContextAddress; }
  bool failed() const override { return gin().failed; }
};

class FakeComm final : public gda::GinComm {
 public:
  FakeComm() { ++gin().comms; }
  ~FakeComm() override {
    --gin().comms;
    gin().gone.push_back("comm");
  }
  Result<std::unique_ptr<gda::GinContext>> create_context(
      const gda::ContextSettings& settings) override {
    gin().settings = settings;
    TP_TRY(answer());
    return std::unique_ptr<gda::GinContext>(std::make_unique<FakeContext>());
  }
  Result<gda::GinWindow*> register_window(void* data, std::size_t bytes, MemoryType type,
                                          std::uint64_t offset, int fd,
                                          const gda::WindowTraits& traits) override {
    gin().data = data;
    gin().bytes = bytes;
    gin().type = type;
    gin().offset = offset;
    gin().fd = fd;
    gin().traits = traits;
    TP_TRY(answer());
    return static_cast<gda::GinWindow*>(&window_);
  }
  Status deregister_window(gda::GinWindow* window) override {
    gin().deregistered = window;
    return answer();
  }

 private:
  FakeWindow window_;
};

class FakeListener final : public gda::OneSidedListener {
 public:
  FakeListener() { ++gin().listeners; }
  ~FakeListener() override { --gin().listeners; }
};

class FakeGin final : public gda::GinTransport {
 public:
  std::size_t device_count() const override { return 2; }
  Result<DeviceProps> device(int) const override { return Status::internal; }
  Result<std::unique_ptr<gda::OneSidedListener>> listen(
      int device, std::span<std::uint8_t, kHandleBytes> handle) override {
    gin().device = device;
    TP_TRY(answer());
    std::fill(handle.begin(), handle.end(), std::uint8_t{0x77});
    return std::unique_ptr<gda::OneSidedListener>(std::make_unique<FakeListener>());
  }
  Result<std::unique_ptr<gda::GinComm>> connect(
      std::span<const std::array<std::uint8_t, kHandleBytes>> handles, int rank,
      gda::OneSidedListener&, const CommSettings& settings) override {
    gin().handles.assign(handles.begin(), handles.end());
    gin().rank = rank;
    gin().comm_id = settings.comm_id;
    TP_TRY(answer());
    return std::unique_ptr<gda::GinComm>(std::make_unique<FakeComm>());
  }
};

}  // namespace

GinState& gin() {
  static GinState state;
  return state;
}

Result<std::unique_ptr<gda::GinTransport>> make_fake_gin() {
  ++gin().made;
  if (gin().make != Status::ok) return gin().make;
  return std::unique_ptr<gda::GinTransport>(std::make_unique<FakeGin>());
}

}  // namespace twinpath::test
