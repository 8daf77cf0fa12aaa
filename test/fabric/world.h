#pragma once
// Two sessions of one transport over the soft HCA, and how to connect them: what every test of
// this folder starts from.
#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "plugin/base/clock.h"
#include "plugin/fabric/fabric.h"
#include "plugin/rdma/devices.h"
#include "proxy/transport.h"
#include "test/support/catch.h"
#include "test/support/like.h"
#include "test/support/log_capture.h"
#include "test/support/numbers.h"
#include "test/support/pattern.h"

namespace twinpath::test {

using HandleArray = std::array<std::uint8_t, kHandleBytes>;

// Of real ports so many are one end's; 0: the soft HCA has as many as a test asks for.
inline int real_rails() { return static_cast<int>(number_from("TWINPATH_TEST_RAILS", 0)); }

// The first two of the machine's instead, or NCCL_IB_HCA's, where there are real ones.
inline Config soft_config(const std::string& hcas = "soft0,soft1") {
  Config c;
  c.fabric = real_rails() > 0 ? FabricChoice::verbs : FabricChoice::soft;
  c.soft_hcas = as_like(hcas);
  c.soft_cuda = SoftCuda::off;
  c.socket_ifname = "lo";
  c.connect_timeout_ms = 5000;
  c.qps_per_peer = static_cast<int>(number_from("TWINPATH_TEST_QPS_PER_PEER", 0));
  return c;
}

// Calls `step` until it is true; false after the limit.
template <class F>
bool eventually(F step, std::int64_t limit_ms = 30000) {
  const std::int64_t end = now_ns() + limit_ms * kMillisecond;
  while (now_ns() < end) {
    if (step()) return true;
    std::this_thread::yield();
  }
  return false;
}

struct Link {
  std::unique_ptr<SendComm> send;
  std::unique_ptr<RecvComm> recv;
};

// Bytes of a known pattern, registered on a comm.
class Buffer {
 public:
  Buffer(Comm& comm, std::size_t bytes, unsigned seed = 0) : comm_(&comm), bytes_(bytes) {
    storage_.resize(bytes + 1);
    fill(seed, bytes);
    auto m = comm.register_memory(storage_.data(), storage_.size(), MemoryType::host, 0, -1);
    // No assertion: tests make buffers in threads of their own.
    if (!m) throw std::runtime_error("a buffer cannot be registered");
    memory = *m;
  }
  ~Buffer() {
    if (comm_ != nullptr) (void)comm_->deregister_memory(memory);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  static KnownBytes pattern(unsigned seed) { return KnownBytes(seed * 31); }
  void fill(unsigned seed, std::size_t bytes) { pattern(seed).fill(data(), bytes); }
  bool holds(unsigned seed, std::size_t bytes, std::size_t at = 0) const {
    return pattern(seed).differs_at(storage_.data() + at, bytes) == bytes;
  }
  void clear() { std::fill(storage_.begin(), storage_.end(), std::uint8_t{0}); }
  // The comm goes first: leave the registration to the transport.
  void forget() { comm_ = nullptr; }
  std::uint8_t* data() { return storage_.data(); }
  std::size_t size() const { return bytes_; }
  RecvBuffer receive(int tag) { return {data(), bytes_, tag, memory}; }
  RecvBuffer receive(int tag, std::size_t at, std::size_t n) {
    return {data() + at, n, tag, memory};
  }
  Memory* memory = nullptr;

 private:
  Comm* comm_;
  std::size_t bytes_;
  std::vector<std::uint8_t> storage_;
};

// Connects a device with a listener of another session (or its own), in turn as NCCL would.
inline void connect_in_turn(Session& from, int device, HandleArray handle, Listener& listener,
                            Link& link) {
  REQUIRE(eventually([&] {
    if (!link.send) {
      const Status s = from.connect(device, handle, link.send);
      REQUIRE(s == (link.send ? Status::ok : Status::again));
    }
    if (!link.recv) {
      const Status s = listener.accept(link.recv);
      REQUIRE(s == (link.recv ? Status::ok : Status::again));
    }
    return link.send && link.recv;
  }));
}

inline Link connect(Session& from, int from_device, Session& to, int to_device) {
  Link link;
  HandleArray handle;
  std::unique_ptr<Listener> listener;
  REQUIRE(to.listen(to_device, handle, listener) == Status::ok);
  connect_in_turn(from, from_device, handle, *listener, link);
  return link;
}

// The device made of these.
inline int merge_devices(Transport& transport, const std::vector<int>& members) {
  auto device = transport.make_virtual_device(members);
  REQUIRE(device);
  return *device;
}

struct World {
  Config config;
  std::unique_ptr<Transport> transport;
  std::unique_ptr<Session> a, b;  // senders, receivers

  // `adjust` may change the fabric before the transport gets it (see tap.h).
  explicit World(const Config& c = soft_config(), int traffic_class = -1,
                 void (*adjust)(Fabric&) = nullptr, std::shared_ptr<CounterPage> counters = nullptr)
      : config(c) {
    auto fabric = open_fabric(config);
    REQUIRE(fabric);
    if (adjust != nullptr) adjust(**fabric);
    transport = make_proxy_transport(std::make_shared<Devices>(std::move(fabric).take(), config,
                                                               std::nullopt, std::move(counters)));
    a = open(1, traffic_class);
    b = open(2, traffic_class);
  }
  std::unique_ptr<Session> open(std::uint64_t id, int traffic_class) {
    auto s = transport->open_session({id, traffic_class});
    REQUIRE(s);
    return std::move(s).take();
  }
  Link connect(int from = 0, int to = 1) { return test::connect(*a, from, *b, to); }
  void connect_to(int from, Listener& listener, HandleArray handle, Link& link) {
    connect_in_turn(*a, from, handle, listener, link);
  }
  int merge(const std::vector<int>& members) { return merge_devices(*transport, members); }
};

// Until done; the completion.
inline Completion finish(Request* request) {
  Completion c;
  REQUIRE(request != nullptr);
  REQUIRE(eventually([&] {
    REQUIRE(request->test(c) == Status::ok);
    return c.done;
  }));
  return c;
}

// Starts a send, letting the receiver's request make progress meanwhile (it posts its cell).
template <class AnyBuffer>
Request* start_send(SendComm& comm, AnyBuffer& buffer, std::size_t bytes, int tag, Request* receive,
                    std::size_t at = 0) {
  Request* request = nullptr;
  Completion early;
  REQUIRE(eventually([&] {
    if (receive != nullptr && !early.done) REQUIRE(receive->test(early) == Status::ok);
    const Status s = comm.isend(buffer.data() + at, bytes, tag, buffer.memory, &request);
    REQUIRE((s == Status::ok || s == Status::again));
    return request != nullptr;
  }));
  REQUIRE_FALSE(early.done);
  return request;
}

inline Request* start_recv(RecvComm& comm, std::vector<RecvBuffer> buffers, bool optional = false) {
  Request* request = nullptr;
  REQUIRE(comm.irecv(buffers, optional, &request) == Status::ok);
  REQUIRE(request != nullptr);
  return request;
}

// One message into a buffer that is larger by `beyond`, and stays as it was there.
inline void exchange(Link& link, std::size_t bytes = 1000, unsigned seed = 1,
                     std::size_t beyond = 0) {
  Buffer from(*link.send, bytes, seed), to(*link.recv, bytes + beyond);
  to.clear();
  Request* receive = start_recv(*link.recv, {to.receive(0)});
  CHECK(finish(start_send(*link.send, from, bytes, 0, receive)).bytes[0] == bytes);
  const Completion received = finish(receive);
  CHECK(received.count == 1);
  CHECK(received.bytes[0] == bytes);
  CHECK(to.holds(seed, bytes));
  CHECK(std::all_of(to.data() + bytes, to.data() + bytes + beyond,
                    [](std::uint8_t b) { return b == 0; }));
}

}  // namespace twinpath::test
