#pragma once
// Two ends with a GPU each, which use its memory directly, through host memory, or either by size:
// what the tests of host staging start from.
#include "plugin/rdma/devices.h"
#include "test/fabric/fake_gpu.h"
#include "test/fabric/world.h"
#include "topology/model/place.h"
#include "topology/read/read_machine.h"

namespace twinpath::test {

// What an end's decision says about GPU memory.
enum class Use { direct, up_to_64k, staged };
inline const char* name_of(Use use) {
  return use == Use::direct ? "direct" : use == Use::staged ? "staged" : "direct up to 64 KiB";
}

inline Config gpu_config(const std::string& hcas = "soft0,soft1") {
  Config c = soft_config(hcas);
  c.soft_cuda = SoftCuda::inprocess;
  return c;
}

// A captured machine with all soft HCAs beside GPU 0, or behind another root port.
inline PlacementSource source_for(Use use, int hcas) {
  PlacementSource s;
  std::string why;
  auto m = read_machine(
      {std::string(TWINPATH_SOURCE_ROOT) + "/test/golden/topology/two-sockets.hwloc.xml",
       false,
       {},
       0},
      why);
  INFO(why);
  REQUIRE(m);
  s.machine = std::move(*m);
  for (Gpu& g : s.machine.gpus) g.cuda_index = g.index;
  for (int i = 0; i < hcas; ++i)
    REQUIRE(place_soft_hca(s.machine, "soft" + std::to_string(i),
                           use == Use::up_to_64k ? "below=0000:20:00.0" : "below=0000:13:00.0",
                           why));
  s.current_gpu = [] { return std::optional(0); };
  s.probes.dmabuf = s.probes.peermem = [](int, ibv_pd*) {
    return Probe{Answer::yes, 0, Reason::none, "asked by the test"};
  };
  return s;
}

// Its first half of the soft HCAs is the sender's, the second the receiver's; several are merged.
struct Ends {
  explicit Ends(Use source, Use landing, Config config = gpu_config(), int rails = 1,
                void (*adjust)(Fabric&) = nullptr) {
    a = open(source, config, rails, 0, from, adjust);
    b = open(landing, config, rails, rails, to, adjust);
    sender = session(*a, 1);
    receiver = session(*b, 2);
  }
  // Each end uses the first of adapters of its own, the others are in reserve.
  Ends(Use source, Use landing, Config config, const std::string& here, const std::string& there,
       void (*adjust)(Fabric&) = nullptr) {
    config.ib_hca = "=" + here;
    a = open(source, config, 1, 0, from, adjust);
    config.ib_hca = "=" + there;
    b = open(landing, config, 1, 0, to, adjust);
    sender = session(*a, 1);
    receiver = session(*b, 2);
  }
  static std::unique_ptr<Session> session(Transport& t, std::uint64_t id) {
    auto s = t.open_session({id, -1});
    REQUIRE(s);
    return std::move(s).take();
  }
  static std::unique_ptr<Transport> open(Use use, Config config, int rails, int first, int& device,
                                         void (*adjust)(Fabric&) = nullptr) {
    if (use == Use::staged) config.net_gdr_level = "LOC";
    auto fabric = open_fabric(config);
    REQUIRE(fabric);
    if (adjust != nullptr) adjust(**fabric);
    auto t = make_proxy_transport(
        std::make_shared<Devices>(std::move(fabric).take(), config, source_for(use, 4)));
    device = first;
    if (rails > 1) {
      std::vector<int> members(static_cast<std::size_t>(rails));
      std::iota(members.begin(), members.end(), first);
      device = merge_devices(*t, members);
    }
    return t;
  }
  Link connect() { return test::connect(*sender, from, *receiver, to); }
  std::unique_ptr<Transport> a, b;
  std::unique_ptr<Session> sender, receiver;
  int from = 0, to = 0;
};

// Memory of the fake GPU with guard bytes around, registered on a comm.
class GpuBuffer {
 public:
  static constexpr std::size_t kGuard = 64;
  static constexpr std::uint8_t kBlank = 0xee;

  GpuBuffer(FakeGpu& fake, Comm& comm, std::size_t bytes) : fake_(&fake), comm_(&comm) {
    storage_.assign(bytes + 2 * kGuard, kBlank);
    fake.own(data(), bytes);
    bytes_ = bytes;
    auto m = register_gpu_memory(comm, data(), bytes);
    if (m) memory = *m;
    status = m.status();
  }
  ~GpuBuffer() {
    if (comm_ != nullptr && memory != nullptr) (void)comm_->deregister_memory(memory);
    fake_->disown(data());
  }
  GpuBuffer(const GpuBuffer&) = delete;
  GpuBuffer& operator=(const GpuBuffer&) = delete;
  std::uint8_t* data() { return storage_.data() + kGuard; }
  void fill(unsigned seed, std::size_t at, std::size_t n) {
    Buffer::pattern(seed).fill(data() + at, n);
  }
  void blank() { std::fill(storage_.begin(), storage_.end(), kBlank); }
  bool holds(unsigned seed, std::size_t at, std::size_t n) {
    return Buffer::pattern(seed).differs_at(data() + at, n) == n;
  }
  bool is_blank(std::size_t at, std::size_t n) { return other_than(kBlank, data() + at, n) == n; }
  bool guards_intact() {
    return other_than(kBlank, storage_.data(), kGuard) == kGuard &&
           other_than(kBlank, storage_.data() + storage_.size() - kGuard, kGuard) == kGuard;
  }
  RecvBuffer receive(int tag, std::size_t at, std::size_t n) {
    return {data() + at, n, tag, memory};
  }
  // The comm goes first: leave the registration to the transport.
  void forget() { comm_ = nullptr; }
  Memory* memory = nullptr;
  Status status = Status::ok;

 private:
  FakeGpu* fake_;
  Comm* comm_;
  std::size_t bytes_ = 0;
  std::vector<std::uint8_t> storage_;
};

// Until the receive is done; the send goes on meanwhile, as in a process of its own: what a sender
// has to copy needs its own polls.  Both completions.
struct Both {
  Completion sent, received;
};
inline Both finish_both(Request* send, Request* receive) {
  Both c;
  REQUIRE(eventually([&] {
    if (!c.sent.done) REQUIRE(send->test(c.sent) == Status::ok);
    if (!c.received.done) REQUIRE(receive->test(c.received) == Status::ok);
    return c.sent.done && c.received.done;
  }));
  return c;
}

}  // namespace twinpath::test
