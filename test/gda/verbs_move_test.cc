// A back end leaves one queue pair for another: what was under way goes again as a whole, and a
// path that refuses it is left as well.
#include <cerrno>
#include <numeric>

#include "gda/served/back/verbs_back_end.h"
#include "test/gda/rig.h"
#include "test/support/catch.h"
#include "test/support/log_capture.h"

namespace twinpath::gda {
namespace {

// A queue pair and its far end, which answers nothing where it is not joined.
struct Way {
  std::unique_ptr<QueuePair> near, far;
};

constexpr std::size_t kFrom = 0, kTo = 8192, kSignals = 16384, kBytes = 32768;

struct Mover {
  static inline std::uint32_t refusing = 0;  // the queue pair that takes no more work requests
  static inline int (*below)(ibv_qp*, ibv_send_wr*, ibv_send_wr**) = nullptr;
  static int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) {
    const bool last = WorkRequestId::number(wr->wr_id) == WorkRequestId::kLastSend;
    if (qp->qp_num != refusing || last) return below(qp, wr, bad);
    *bad = wr;
    return ENOMEM;
  }

  explicit Mover(std::uint32_t slots, std::uint64_t max_bytes) : memory(kBytes) {
    config.fabric = FabricChoice::soft;
    config.soft_cuda = SoftCuda::off;
    auto fabric = open_fabric(config);
    REQUIRE(fabric);
    devices = std::make_unique<Devices>(std::move(fabric).take(), config);
    auto chosen = choose_rails(*devices, 0);
    REQUIRE(chosen);
    rails = std::move(chosen).take();
    const RailPort& port = rails[0].port;
    const Verbs& verbs = devices->verbs();
    cq = own(verbs.create_cq(port.adapter->context, 512, nullptr, nullptr, 0), verbs.destroy_cq);
    mr = own(verbs.reg_mr_iova2(port.adapter->pd, memory.data(), kBytes, at(0),
                                IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE),
             verbs.dereg_mr);
    REQUIRE((cq && mr));
    std::iota(memory.begin(), memory.begin() + kTo, std::uint8_t{1});
    refusing = 0;
    below = port.adapter->context->ops.post_send;
    port.adapter->context->ops.post_send = post_send;
    silent = way(false);
    second = way(true);
    third = way(true);
    VerbsBackEndSetup setup;
    setup.first = {silent.near.get(), mr->lkey, mr->rkey};
    setup.second = {second.near.get(), mr->lkey, mr->rkey};
    setup.kept = 128;
    setup.slots = slots;
    setup.max_bytes = max_bytes;
    setup.scratch = memory.data() + kSignals + 4096;
    setup.counted = CountedSender::Target{at(kSignals), 64, at(kSignals) + 64, 32};
    setup.name = "queue";
    back = std::make_unique<VerbsBackEnd>(setup);
    back->attach(*rig.make(16, back.get()).front);
  }
  ~Mover() { rails[0].port.adapter->context->ops.post_send = below; }

  std::uint64_t at(std::size_t offset) const {
    return reinterpret_cast<std::uintptr_t>(memory.data()) + offset;
  }
  Way way(bool joined) {
    QueueSettings settings = path_settings(config, {});
    settings.access = IBV_ACCESS_REMOTE_WRITE;
    settings.send_depth = 100;
    Way made;
    for (auto* end : {&made.near, &made.far}) {
      auto pair = QueuePair::make(devices->verbs(), rails[0], cq.get(), settings, AdapterLimits{});
      REQUIRE(pair);
      *end = std::move(pair).take();
    }
    REQUIRE(made.near->raise(made.far->end(), "far", true) == Status::ok);
    if (joined) REQUIRE(made.far->raise(made.near->end(), "near", true) == Status::ok);
    return made;
  }
  Operation write(std::size_t offset, std::uint32_t bytes) const {
    Operation operation;
    operation.kind = OperationKind::write;
    operation.bytes = bytes;
    operation.local = at(kFrom + offset);
    operation.remote = at(kTo + offset);
    operation.lkey = operation.second_lkey = mr->lkey;
    operation.rkey = operation.second_rkey = mr->rkey;
    return operation;
  }
  // Takes completions until that is so.
  template <class F>
  bool until(F so) {
    const std::int64_t end = now_ns() + 20 * kSecond;
    bool is = so();
    for (; !is && now_ns() < end; is = so()) {
      ibv_wc wc{};
      if (ibv_poll_cq(cq.get(), 1, &wc) == 1) back->on_completion(wc);
    }
    return is;
  }
  bool drained() {
    return until([this] { return back->drained(); });
  }
  bool arrived(std::size_t bytes) const {
    return std::equal(memory.begin(), memory.begin() + static_cast<std::ptrdiff_t>(bytes),
                      memory.begin() + kTo);
  }

  Config config;
  std::vector<std::uint8_t> memory;
  std::unique_ptr<Devices> devices;
  std::vector<Rail> rails;
  Owned<ibv_cq> cq;
  Owned<ibv_mr> mr;
  Way silent, second, third;
  Rig rig;
  std::unique_ptr<VerbsBackEnd> back;
};

}  // namespace

TEST_CASE("An operation that went in part over the path that is left goes again as a whole",
          "[once]") {
  test::LogCapture log;
  Mover m(2, 64);
  const Operation operation = m.write(0, 200);  // four pieces, of which two have room
  REQUIRE(m.back->issue(0, operation) == Issued::full);
  m.back->stop();
  REQUIRE(m.drained());
  REQUIRE(m.back->resume(0));
  CHECK_FALSE(m.arrived(64));
  CHECK(m.until([&] { return m.back->issue(0, operation) == Issued::accepted; }));
  m.back->flush();
  CHECK(m.until([&] { return m.back->finished() == 1; }));
  CHECK(m.arrived(200));
}

TEST_CASE("A queue pair's own error is of its path, unless it comes again at once", "[once]") {
  test::LogCapture log;
  Mover m(80, 1024);
  REQUIRE(m.back->issue(0, m.write(0, 100)) == Issued::accepted);
  m.back->flush();
  ibv_wc error{};
  error.status = IBV_WC_LOC_QP_OP_ERR;
  m.back->on_completion(error);
  CHECK(m.back->stopped());
  m.back->on_completion(error);  // of what was under way beside it
  REQUIRE(m.drained());
  m.back->let_move(true, m.third.near.get());
  REQUIRE(m.back->resume(0));
  const bool arrives = GENERATE(false, true);
  if (arrives) CHECK(m.until([&] { return m.back->finished() == 1; }));
  m.back->on_completion(error);
  CHECK(m.back->dead() != arrives);
}

TEST_CASE("A path that refuses what goes again is left for the next one", "[once]") {
  test::LogCapture log;
  // As many as are posted before the last of them has been seen, and more.
  const std::uint64_t count = GENERATE(3, 70);
  CAPTURE(count);
  Mover m(80, 1024);
  for (std::uint64_t i = 0; i < count; ++i)
    REQUIRE(m.back->issue(i, m.write(100 * i, 100)) == Issued::accepted);
  m.back->flush();
  m.back->stop();
  REQUIRE(m.drained());
  m.back->let_move(true, m.third.near.get());
  Mover::refusing = m.second.near->qp()->qp_num;
  REQUIRE(m.back->resume(0));
  CHECK(m.back->stopped());
  CHECK_FALSE(m.back->dead());
  REQUIRE(m.drained());
  CHECK_FALSE(m.arrived(1));
  REQUIRE(m.back->resume(0));
  CHECK(m.until([&] { return m.back->finished() == count; }));
  CHECK(m.arrived(100 * count));
}

}  // namespace twinpath::gda
