#include "test/abi/fake_transport.h"

#include <new>
#include <stdexcept>
#include <system_error>

#include "plugin/nccl/transports.h"
#include "test/abi/gin_fake.h"
#include "test/abi/rma_fake.h"

namespace twinpath::test {
namespace {

Status answer() {
  if (fake().throws) {
    switch (fake().throw_kind) {
      case 0:
        throw std::bad_alloc();
      case 1:
        throw std::runtime_error("planted");
      case 3:  // as std::thread does
        throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
      case 4:  // the same under a security profile
        throw std::system_error(std::make_error_code(std::errc::operation_not_permitted));
      default:
        throw 42;
    }
  }
  return fake().answer;
}

class FakeRequest : public Request {
 public:
  Status test(int& done, int* sizes) override {
    const Status s = answer();
    const Completion& c = fake().completion;
    done = s == Status::ok && c.done ? 1 : 0;
    for (std::size_t i = 0; done != 0 && sizes != nullptr && i < static_cast<std::size_t>(c.count);
         ++i)
      sizes[i] = told_size(c.bytes[i]);
    return s;
  }
};
class FakeMemory : public Memory {};

// The comms answer alike; Base is SendComm or RecvComm.
template <class Base>
class FakeComm : public Base {
 public:
  FakeComm() { ++fake().comms_alive; }
  ~FakeComm() override { --fake().comms_alive; }
  Result<Memory*> register_memory(void*, std::size_t bytes, MemoryType type, std::uint64_t offset,
                                  int fd) override {
    fake().last_registered = bytes;
    fake().last_type = type;
    fake().last_offset = offset;
    fake().last_fd = fd;
    if (const Status s = answer(); s != Status::ok) return s;
    return static_cast<Memory*>(&memory_);
  }
  Status deregister_memory(Memory* memory) override {
    return memory == &memory_ ? answer() : Status::bad_argument;
  }

 protected:
  Status start(Request** request) {
    const Status s = answer();
    *request = s == Status::ok && !fake().null_request ? &request_ : nullptr;
    return s;
  }
  FakeRequest request_;
  FakeMemory memory_;
};

class FakeSend final : public FakeComm<SendComm> {
 public:
  Status isend(void*, std::size_t bytes, int tag, Memory*, Request** request) override {
    fake().last_bytes = bytes;
    fake().last_tag = tag;
    return start(request);
  }
};

class FakeRecv final : public FakeComm<RecvComm> {
 public:
  Status irecv(const RecvBuffers& buffers, bool optional, Request** request) override {
    fake().last_buffers.clear();
    for (std::size_t i = 0; i < buffers.count; ++i)
      fake().last_buffers.push_back(
          {buffers.data[i], buffers.bytes[i], buffers.tags[i], buffers.memory(i)});
    fake().last_optional = optional;
    return start(request);
  }
  Status iflush(std::span<const RecvBuffer> buffers, Request** request) override {
    fake().last_buffers.assign(buffers.begin(), buffers.end());
    return start(request);
  }
};

class FakeListener final : public Listener {
 public:
  FakeListener() { ++fake().listeners_alive; }
  ~FakeListener() override { --fake().listeners_alive; }
  Status accept(std::unique_ptr<RecvComm>& comm) override {
    TP_TRY(answer());
    comm = std::make_unique<FakeRecv>();
    return Status::ok;
  }
};

class FakeSession final : public Session {
 public:
  explicit FakeSession(int traffic_class) : traffic_class_(traffic_class) {
    ++fake().sessions_alive;
  }
  ~FakeSession() override { --fake().sessions_alive; }
  void expect(const TrafficHints& hints) override { fake().last_hints = hints; }
  Status listen(int device, std::span<std::uint8_t, kHandleBytes> handle,
                std::unique_ptr<Listener>& listener) override {
    note(device);
    TP_TRY(answer());
    handle.front() = 0x11;
    handle.back() = 0x99;
    listener = std::make_unique<FakeListener>();
    return Status::ok;
  }
  Status connect(int device, std::span<std::uint8_t, kHandleBytes> handle,
                 std::unique_ptr<SendComm>& comm) override {
    note(device);
    ++handle[64];  // counts the calls with this buffer
    TP_TRY(answer());
    comm = std::make_unique<FakeSend>();
    return Status::ok;
  }

 private:
  void note(int device) {
    fake().last_device = device;
    fake().last_session_class = traffic_class_;
  }
  int traffic_class_;
};

class FakeTransport final : public Transport {
 public:
  std::size_t device_count() const override { return fake().physical + merged_.size(); }
  Result<DeviceProps> device(int index) const override {
    if (index < 0 || static_cast<std::size_t>(index) >= device_count()) return Status::bad_argument;
    DeviceProps props;
    props.name = "fake" + std::to_string(index);
    if (index == 1) props.pci_path = "/sys/devices/pci0000:00/0000:00:1f.0";
    props.guid = 100 + static_cast<std::uint64_t>(index);
    if (index == 1) props.rail_id = 5;
    if (index == 1) props.plane_id = 0x4006;
    props.gpu_direct = index == 1 && !fake().gpu_refused;
    props.dmabuf = index == 1 && !fake().gpu_refused;
    props.speed_mbps = 400000;
    props.max_message_bytes = std::size_t{1} << 41;  // more than NCCL allows
    props.force_flush = index == 1;
    props.members = {index};
    const auto virtual_index = static_cast<std::size_t>(index) - fake().physical;
    if (static_cast<std::size_t>(index) >= fake().physical) props.members = merged_[virtual_index];
    return props;
  }
  Result<int> make_virtual_device(std::span<const int> members) override {
    merged_.emplace_back(members.begin(), members.end());
    return static_cast<int>(device_count()) - 1;
  }
  Result<std::unique_ptr<Session>> open_session(const CommSettings& settings) override {
    fake().last_session = settings;
    if (const Status s = answer(); s != Status::ok) return s;
    return std::unique_ptr<Session>(std::make_unique<FakeSession>(settings.traffic_class));
  }

 private:
  std::vector<std::vector<int>> merged_;
};

}  // namespace

FakeState& fake() {
  static FakeState state;
  return state;
}

}  // namespace twinpath::test

namespace twinpath {

Result<Transports> open_transports(const Config&) {
  if (const Status s = test::fake().open_fabric; s != Status::ok) return s;
  Transports transports;
  transports.proxy = std::make_unique<test::FakeTransport>();
  transports.make_gin = test::make_fake_gin;
  transports.make_rma = test::make_fake_rma;
  transports.counters = test::fake().counters;
  return transports;
}

}  // namespace twinpath
