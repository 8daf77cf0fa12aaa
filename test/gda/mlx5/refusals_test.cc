// What the driver or the adapter refuses becomes one warning with object, port, peer and remedy,
// and a Status.
#include "test/gda/mlx5/hooked.h"
#include "test/support/log_capture.h"

using namespace twinpath;
using namespace twinpath::gda::mlx5;
using namespace twinpath::test;

TEST_CASE("a refused command names object, port, peer, status, syndrome and remedy") {
  struct Case {
    Refused refused;
    const char* words[3];
  };
  const Case making[] = {
      {{0x400, 0x0f, EREMOTEIO},
       {"making the completion queue of the queue to rank 3 (host7)",
        "no resources (status 0xf, syndrome 0xbeef)", "fewer contexts"}},
      {{0x500, 0x03, EREMOTEIO},
       {"making the queue pair of the queue to rank 3 (host7)",
        "bad parameter (status 0x3, syndrome 0xbeef)", "report it"}},
      {{0x500, 0, EOPNOTSUPP}, {"the driver refused", "UCTX", "uverbs"}},
      {{0x502, 0x0a, EREMOTEIO}, {"RST2INIT of queue pair 0x", "bad index", "NCCL_IB_PKEY"}},
  };
  for (const Case& one : making) {
    Hooked h;
    REQUIRE(h.open() == Status::ok);
    refused = one.refused;
    LogCapture log;
    CHECK(h.make() != Status::ok);
    REQUIRE(log.warnings().size() == 1);  // and none from what had been made and goes again
    for (const char* word : one.words) {
      CAPTURE(word, log.warnings()[0]);
      CHECK(log.has(LogLevel::warn, word));
    }
    CHECK(log.has(h.rail.port.port->name));
  }
}

TEST_CASE("a queue pair that cannot be joined names both ends") {
  Hooked h;
  REQUIRE(h.open() == Status::ok);
  REQUIRE(h.make() == Status::ok);
  const auto far = h.queues->end(0);
  for (const auto& [opcode, step] : {std::pair{0x503u, "INIT2RTR"}, std::pair{0x504u, "RTR2RTS"}}) {
    refused = {opcode, 0x09, EREMOTEIO};
    LogCapture log;
    CHECK(h.queues->raise(0, &far, true) == Status::system);
    REQUIRE(log.warnings().size() == 1);
    CHECK(log.has(step));
    CHECK(log.has("queue to rank 3 (host7), to " + far.rail.port));
    CHECK(log.has("status 0x9"));
    REQUIRE(h.make() == Status::ok);  // anew, for the next
  }

  refused = {};
  LogCapture log;
  auto wrong = far;
  wrong.rail.roce = !wrong.rail.roce;
  CHECK(h.queues->raise(0, &wrong, true) == Status::system);
  CHECK(log.has("cannot be joined"));
  if (!far.rail.roce) return;
  log.clear();
  CHECK(h.queues->raise(0, &far, false) == Status::system);  // another host with our address
  CHECK(log.has("have the same address"));
  log.clear();
  Hooked old;
  old.rail.gid.roce_version = 1;
  REQUIRE(old.open() == Status::ok);
  REQUIRE(old.make() == Status::ok);
  CHECK(old.queues->raise(0, nullptr, true) == Status::unsupported);
  CHECK(log.has("RoCE v1"));
}

TEST_CASE("no queue pair is joined to itself: loops have one that answers") {
  static std::vector<std::pair<std::uint32_t, std::uint32_t>> joined;
  joined.clear();
  Hooked h;
  h.mlx5.devx_obj_modify = [](mlx5dv_devx_obj* o, const void* in, std::size_t n, void* out,
                              std::size_t m) {
    const std::span bytes(static_cast<const std::uint8_t*>(in), n);
    if (read_bits(bytes, kOpcode) == 0x503)
      joined.emplace_back(read_bits(bytes, kNumber),
                          read_bits(bytes, qp::kContext[qp::remote_qpn]));
    return real.devx_obj_modify(o, in, n, out, m);
  };
  REQUIRE(h.open() == Status::ok);
  REQUIRE(h.make() == Status::ok);
  REQUIRE(h.queues->raise(0, nullptr, true) == Status::ok);
  REQUIRE(joined.size() == 4);  // the main queue and its companion, and who answers them
  for (std::size_t i = 0; i < joined.size(); i += 2) {
    CHECK(joined[i].first != joined[i].second);
    CHECK(joined[i].first == joined[i + 1].second);
    CHECK(joined[i].second == joined[i + 1].first);
  }
}

TEST_CASE("what an adapter says of itself is asked for, and must suffice") {
  Hooked h;
  for (const unsigned status : {0x02u, 0x00u}) {
    refused = {0x100, status, status == 0 ? EPERM : EREMOTEIO};
    LogCapture log;
    CHECK(h.open() != Status::ok);
    CHECK(log.warnings().size() == 1);
    CHECK(log.has("asking for its capabilities"));
    CHECK(log.has(status == 0 ? "DevX" : "update the adapter's firmware"));
  }
  refused = {};
  REQUIRE(h.open() == Status::ok);
  LogCapture log;
  CHECK(h.make(16) == Status::unsupported);
  CHECK(log.has("its queues hold 32768 entries, not 65536"));
  CHECK(log.has("TWINPATH_MODE=proxy"));
}

TEST_CASE("no mlx5 adapter, no address handles: said, and left to proxy") {
  Hooked h;
  h.mlx5.is_supported = [](ibv_device*) { return false; };
  {
    LogCapture log;
    CHECK(h.open() == Status::unsupported);
    CHECK(log.has("is no mlx5 adapter"));
  }
  h.mlx5.is_supported = real.is_supported;
  h.fabric->verbs.create_ah = nullptr;
  LogCapture log;
  CHECK(h.open() == Status::unsupported);
  CHECK(log.has("ibv_create_ah@IBVERBS_1.1"));
}

TEST_CASE("an address that does not resolve names both GIDs") {
  Hooked h;
  if (!h.rail.port.port->roce) return;
  REQUIRE(h.open() == Status::ok);
  REQUIRE(h.make() == Status::ok);
  h.fabric->verbs.create_ah = [](ibv_pd*, ibv_ah_attr*) {
    errno = ETIMEDOUT;
    return static_cast<ibv_ah*>(nullptr);
  };
  LogCapture log;
  const auto far = h.queues->end(0);
  CHECK(h.queues->raise(0, &far, true) == Status::system);
  REQUIRE(log.warnings().size() == 1);
  CHECK(log.has("finds no way to"));
  CHECK(log.has("the queue to rank 3 (host7)"));
  CHECK(log.has("check routes and VLANs"));
  CHECK(log.has(gid_text(far.rail.gid)));
}
