// What the driver or the adapter refuses becomes one warning with object, port, peer and remedy,
// and a Status; nothing is left behind.
#include <cerrno>
#include <cstring>
#include <vector>

#include "gda/mlx5/bell_ringer.h"
#include "gda/mlx5/region.h"
#include "gda/wqe.h"
#include "test/gda/mlx5/bench.h"
#include "test/support/log_capture.h"

using namespace twinpath;
using namespace twinpath::gda::mlx5;

namespace {

// The table's own calls, below those that a test puts before them.
Mlx5 real;
// Which command is refused: its opcode, the status byte, errno.
struct Refused {
  unsigned opcode = 0, status = 0;
  int error = 0;
} refused;
int uars_refused = 0, uars_asked = 0;
std::uint32_t last_uar_type = 0;

// Whether it is that command; the answer is the adapter's then.
bool refuses(const void* in, void* out) {
  const auto* const bytes = static_cast<const std::uint8_t*>(in);
  if (refused.opcode == 0 || bytes[0] * 256u + bytes[1] != refused.opcode) return false;
  auto* const answer = static_cast<std::uint8_t*>(out);
  std::memset(answer, 0, 16);
  answer[0] = static_cast<std::uint8_t>(refused.status);
  answer[6] = 0xbe;
  answer[7] = 0xef;
  return true;
}

// What was given back, in order: a queue pair, a completion queue, a page, memory.
std::string given_back;
std::vector<mlx5dv_devx_obj*> queue_pairs;

struct Hooked : test::Bench {
  Hooked() {
    refused = {};
    uars_refused = uars_asked = 0;
    given_back.clear();
    queue_pairs.clear();
    real = mlx5;
    mlx5.devx_general_cmd = [](ibv_context* c, const void* in, std::size_t n, void* out,
                               std::size_t m) {
      return refuses(in, out) ? refused.error : real.devx_general_cmd(c, in, n, out, m);
    };
    mlx5.devx_obj_create = [](ibv_context* c, const void* in, std::size_t n, void* out,
                              std::size_t m) {
      if (!refuses(in, out)) {
        mlx5dv_devx_obj* const made = real.devx_obj_create(c, in, n, out, m);
        if (static_cast<const std::uint8_t*>(in)[0] == 5) queue_pairs.push_back(made);
        return made;
      }
      errno = refused.error;
      return static_cast<mlx5dv_devx_obj*>(nullptr);
    };
    mlx5.devx_obj_modify = [](mlx5dv_devx_obj* o, const void* in, std::size_t n, void* out,
                              std::size_t m) {
      return refuses(in, out) ? refused.error : real.devx_obj_modify(o, in, n, out, m);
    };
    mlx5.devx_obj_destroy = [](mlx5dv_devx_obj* o) {
      given_back += std::erase(queue_pairs, o) != 0 ? 'Q' : 'C';  // addresses come again
      return real.devx_obj_destroy(o);
    };
    mlx5.devx_free_uar = [](mlx5dv_devx_uar* page) {
      given_back += 'P';
      real.devx_free_uar(page);
    };
    mlx5.devx_umem_dereg = [](mlx5dv_devx_umem* umem) {
      given_back += 'M';
      return real.devx_umem_dereg(umem);
    };
    mlx5.devx_alloc_uar = [](ibv_context* c, std::uint32_t type) {
      ++uars_asked;
      last_uar_type = type;
      if (uars_asked > uars_refused) return real.devx_alloc_uar(c, type);
      errno = EOPNOTSUPP;
      return static_cast<mlx5dv_devx_uar*>(nullptr);
    };
  }
  Status open() {
    auto made = gda::mlx5::Adapter::make(fabric->verbs, mlx5, rail);
    if (!made) return made.status();
    driven = std::move(made).take();
    return Status::ok;
  }
  Status make(unsigned log_depth = 4) {
    ContextQueuesSetup setup;
    setup.log_depth = log_depth;
    setup.companions = true;
    setup.peers = {"rank 3 (host7)"};
    auto made = ContextQueues::make(*driven, setup);
    if (!made) return made.status();
    queues = std::move(made).take();
    return Status::ok;
  }
  std::unique_ptr<gda::mlx5::Adapter> driven;
  std::unique_ptr<ContextQueues> queues;
};

}  // namespace

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
    test::LogCapture log;
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
    test::LogCapture log;
    CHECK(h.queues->raise(0, &far, true) == Status::system);
    REQUIRE(log.warnings().size() == 1);
    CHECK(log.has(step));
    CHECK(log.has("queue to rank 3 (host7), to " + far.rail.port));
    CHECK(log.has("status 0x9"));
    REQUIRE(h.make() == Status::ok);  // anew, for the next
  }

  refused = {};
  test::LogCapture log;
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

TEST_CASE("what an adapter says of itself is asked for, and must suffice") {
  Hooked h;
  for (const unsigned status : {0x02u, 0x00u}) {
    refused = {0x100, status, status == 0 ? EPERM : EREMOTEIO};
    test::LogCapture log;
    CHECK(h.open() != Status::ok);
    CHECK(log.warnings().size() == 1);
    CHECK(log.has("asking for its capabilities"));
    CHECK(log.has(status == 0 ? "DevX" : "update the adapter's firmware"));
  }
  refused = {};
  REQUIRE(h.open() == Status::ok);
  test::LogCapture log;
  CHECK(h.make(16) == Status::unsupported);
  CHECK(log.has("its queues hold 32768 entries, not 65536"));
  CHECK(log.has("TWINPATH_MODE=proxy"));
}

TEST_CASE("no mlx5 adapter, no address handles: said, and left to proxy") {
  Hooked h;
  h.mlx5.is_supported = [](ibv_device*) { return false; };
  {
    test::LogCapture log;
    CHECK(h.open() == Status::unsupported);
    CHECK(log.has("is no mlx5 adapter"));
  }
  h.mlx5.is_supported = real.is_supported;
  h.fabric->verbs.create_ah = nullptr;
  test::LogCapture log;
  CHECK(h.open() == Status::unsupported);
  CHECK(log.has("ibv_create_ah@IBVERBS_1.1"));
}

TEST_CASE("doorbell pages: of its own, else shared, never gathering") {
  Hooked h;
  REQUIRE(h.open() == Status::ok);
  REQUIRE(h.make() == Status::ok);
  CHECK(last_uar_type == 1u << 31);
  h.queues.reset();
  uars_asked = 0;
  uars_refused = 1;
  test::LogCapture log;
  REQUIRE(h.make() == Status::ok);
  CHECK(last_uar_type == MLX5DV_UAR_ALLOC_TYPE_NC);
  CHECK(log.warnings().empty());
  h.queues.reset();
  uars_asked = 0;
  uars_refused = 9;
  CHECK(h.make() == Status::unsupported);
  CHECK(uars_asked == 2);
  REQUIRE(log.warnings().size() == 1);
  CHECK(log.has("Linux 5.7 and rdma-core 32"));
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
  test::LogCapture log;
  const auto far = h.queues->end(0);
  CHECK(h.queues->raise(0, &far, true) == Status::system);
  REQUIRE(log.warnings().size() == 1);
  CHECK(log.has("finds no way to"));
  CHECK(log.has("the queue to rank 3 (host7)"));
  CHECK(log.has("check routes and VLANs"));
  CHECK(log.has(gid_text(far.rail.gid)));
}

TEST_CASE("memory that cannot be registered is named with the limit to raise") {
  Hooked h;
  REQUIRE(h.open() == Status::ok);
  h.mlx5.devx_umem_reg_ex = [](ibv_context*, mlx5dv_devx_umem_in* in) {
    CHECK(in->pgsz_bitmap == static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)));
    errno = ENOMEM;
    return static_cast<mlx5dv_devx_umem*>(nullptr);
  };
  test::LogCapture log;
  CHECK(h.make() == Status::no_memory);
  REQUIRE(log.warnings().size() == 1);
  CHECK(log.has("host memory (Cannot allocate memory)"));
  CHECK(log.has("memlock"));
  h.mlx5.devx_umem_reg_ex = nullptr;  // an older library: by the other call
  CHECK(h.make() == Status::ok);
}

TEST_CASE("all is given back in the order that an adapter wants, without a word") {
  Hooked h;
  REQUIRE(h.open() == Status::ok);
  REQUIRE(h.make() == Status::ok);
  REQUIRE(h.queues->raise(0, nullptr, true) == Status::ok);
  test::LogCapture log;
  h.queues.reset();
  CHECK(given_back == "QCQCPM");
  CHECK(log.warnings().empty());

  // Half-joined.
  given_back.clear();
  refused = {0x504, 0x09, EREMOTEIO};
  REQUIRE(h.make() == Status::ok);
  CHECK(h.queues->raise(0, nullptr, true) == Status::system);
  log.clear();
  h.queues.reset();
  CHECK(given_back == "QCQCPM");
  CHECK(log.warnings().empty());
}

TEST_CASE("what cannot be given back is named") {
  Hooked h;
  REQUIRE(h.open() == Status::ok);
  REQUIRE(h.make() == Status::ok);
  h.mlx5.devx_umem_dereg = [](mlx5dv_devx_umem* umem) {
    (void)real.devx_umem_dereg(umem);
    return EBUSY;
  };
  test::LogCapture log;
  h.queues.reset();
  REQUIRE(log.warnings().size() == 1);
  CHECK(log.has("cannot let go of the memory of its queues"));
}

TEST_CASE("memory for kernels: by dma-buf, else by address, from 0") {
  static int dmabufs = 0;
  static std::uint64_t iova = 0;
  static unsigned access = 0;
  static Verbs below;
  Hooked h;
  REQUIRE(h.open() == Status::ok);
  Verbs& verbs = h.fabric->verbs;
  below = verbs;
  verbs.reg_dmabuf_mr = [](ibv_pd*, std::uint64_t, std::size_t, std::uint64_t at, int, int) {
    ++dmabufs;
    CHECK(at == 0);
    errno = EOPNOTSUPP;
    return static_cast<ibv_mr*>(nullptr);
  };
  verbs.reg_mr_iova2 = [](ibv_pd* pd, void* data, std::size_t bytes, std::uint64_t at,
                          unsigned rights) {
    iova = at;
    access = rights;
    return below.reg_mr_iova2(pd, data, bytes, at, rights);
  };
  std::vector<std::uint8_t> data(4096);
  iova = 1;
  auto mr = register_region(*h.driven, {.data = data.data(), .bytes = data.size()});
  REQUIRE(mr);
  CHECK(dmabufs == 0);
  CHECK(iova == 0);
  CHECK((access & IBV_ACCESS_RELAXED_ORDERING) == 0);
  mr = register_region(
      *h.driven,
      {.data = data.data(), .bytes = data.size(), .dmabuf_fd = 0, .relaxed_ordering = true});
  REQUIRE(mr);
  CHECK(dmabufs == 1);
  CHECK((access & IBV_ACCESS_RELAXED_ORDERING) != 0);
  verbs.reg_mr_iova2 = [](ibv_pd*, void*, std::size_t, std::uint64_t, unsigned) {
    errno = ENOMEM;
    return static_cast<ibv_mr*>(nullptr);
  };
  test::LogCapture log;
  mr = register_region(*h.driven, {.data = data.data(), .bytes = data.size(), .dmabuf_fd = 0});
  CHECK(mr.status() == Status::no_memory);
  REQUIRE(log.warnings().size() == 1);
  CHECK(log.has("and by dma-buf: Operation not supported"));
  CHECK(log.has(h.rail.port.port->name));
}

TEST_CASE("a ringer rings what has risen: record, then register") {
  std::uint64_t words[2] = {}, bell = 0;
  std::uint32_t records[2] = {};
  BellRinger ringer(
      {{&words[0], &records[0], &bell, 0x111}, {&words[1], &records[1], &bell, 0x222}});
  CHECK_FALSE(ringer.turn());
  CHECK(bell == 0);
  words[1] = 0x12345;
  CHECK(ringer.turn());
  CHECK(records[0] == 0);
  CHECK(records[1] == gda::swap32(0x2345));
  CHECK(bell == gda::adapter_doorbell(0x12345, 0x222));
  bell = 0;
  CHECK_FALSE(ringer.turn());
  CHECK(bell == 0);
  words[1] = 0x12344;  // never back
  CHECK_FALSE(ringer.turn());
  words[0] = 0x1000001;
  CHECK(ringer.turn());
  CHECK(records[0] == gda::swap32(1));
  CHECK(bell == gda::adapter_doorbell(1, 0x111));  // 24 bits of the count
}
