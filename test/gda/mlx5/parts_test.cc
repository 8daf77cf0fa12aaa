// Pages, memory, regions, the ringer: what is asked for in which order, and given back.
#include <cerrno>

#include "gda/abi/cqe.h"
#include "gda/abi/wqe.h"
#include "gda/adapter/mlx5/doorbell_ringer.h"
#include "gda/adapter/mlx5/error_look.h"
#include "gda/adapter/mlx5/region.h"
#include "plugin/base/page_size.h"
#include "test/gda/mlx5/hooked.h"
#include "test/support/log_capture.h"

using namespace twinpath;
using namespace twinpath::gda::mlx5;
using namespace twinpath::test;

TEST_CASE("doorbell pages: of its own, else shared, never gathering") {
  Hooked h;
  REQUIRE(h.open() == Status::ok);
  REQUIRE(h.make() == Status::ok);
  // libmlx5 of rdma-core before 45 has no pages of a queue's own.
  const bool older = on_libraries() && uars_asked == 2;
  CHECK(last_uar_type == (older ? std::uint32_t{MLX5DV_UAR_ALLOC_TYPE_NC} : 1u << 31));
  h.queues.reset();
  uars_asked = 0;
  uars_refused = 1;
  LogCapture log;
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

TEST_CASE("memory that cannot be registered is named with the limit to raise") {
  Hooked h;
  REQUIRE(h.open() == Status::ok);
  h.mlx5.devx_umem_reg_ex = [](ibv_context*, mlx5dv_devx_umem_in* in) {
    CHECK(in->pgsz_bitmap == static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)));
    errno = ENOMEM;
    return static_cast<mlx5dv_devx_umem*>(nullptr);
  };
  LogCapture log;
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
  given_back.clear();
  REQUIRE(h.make() == Status::ok);
  REQUIRE(h.queues->raise(0, nullptr, true) == Status::ok);
  LogCapture log;
  h.queues.reset();
  CHECK(given_back == "QQCQQCPM");  // each with the pair that answers it
  CHECK(log.warnings().empty());

  // Half-joined.
  given_back.clear();
  refused = {0x504, 0x09, EREMOTEIO};
  REQUIRE(h.make() == Status::ok);
  CHECK(h.queues->raise(0, nullptr, true) == Status::system);
  log.clear();
  h.queues.reset();
  CHECK(given_back == "QQCQCPM");
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
  LogCapture log;
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
  const auto pages = std::make_unique<std::uint8_t[]>(2 * page_size());
  const std::span data(
      reinterpret_cast<std::uint8_t*>(page_end(reinterpret_cast<std::uintptr_t>(pages.get()))),
      page_size());
  iova = 1;
  auto mr = register_region(*h.driven, {.data = data.data(), .bytes = data.size()});
  REQUIRE(mr);
  CHECK(dmabufs == 0);
  CHECK(iova == 0);
  CHECK((access & IBV_ACCESS_RELAXED_ORDERING) == 0);
  mr = register_region(*h.driven, {.data = data.data(),
                                   .bytes = data.size(),
                                   .on_gpu = true,
                                   .dmabuf_fd = 0,
                                   .relaxed_ordering = true});
  REQUIRE(mr);
  CHECK(dmabufs == 2);  // with relaxed ordering, and without
  CHECK((access & IBV_ACCESS_RELAXED_ORDERING) != 0);
  verbs.reg_mr_iova2 = [](ibv_pd*, void*, std::size_t, std::uint64_t, unsigned) {
    errno = ENOMEM;
    return static_cast<ibv_mr*>(nullptr);
  };
  LogCapture log;
  mr = register_region(*h.driven,
                       {.data = data.data(), .bytes = data.size(), .on_gpu = true, .dmabuf_fd = 0});
  CHECK(mr.status() == Status::no_memory);
  REQUIRE(log.warnings().size() == 1);
  CHECK(log.has("by dma-buf: Operation not supported"));
  CHECK(log.has(h.rail.port.port->name));
}

TEST_CASE("GPU memory for kernels goes by the data-direct function where the port has one") {
  Hooked h;
  Port port = *h.rail.port.port;
  port.data_direct = "/sys/devices/of/the/data/direct";
  h.rail.port.port = &port;
  static int asked;
  asked = 0;
  h.fabric->verbs.reg_data_direct = [](ibv_pd*, std::uint64_t, std::size_t, std::uint64_t, int, int,
                                       int) -> ibv_mr* {
    ++asked;
    errno = EOPNOTSUPP;
    return nullptr;
  };
  REQUIRE(h.open() == Status::ok);
  alignas(65536) static std::uint8_t page[65536];
  LogCapture log;
  (void)register_region(*h.driven, {.data = page, .bytes = 8, .on_gpu = true, .dmabuf_fd = 0});
  CHECK(asked == 1);
  CHECK(log.has("by data direct: Operation not supported"));
}

TEST_CASE("memory for kernels begins where a page of the host does") {
  Hooked h;
  REQUIRE(h.open() == Status::ok);
  const auto pages = std::make_unique<std::uint8_t[]>(3 * 65536);
  auto* const first = reinterpret_cast<std::uint8_t*>(
      (reinterpret_cast<std::uintptr_t>(pages.get()) + 65535) / 65536 * 65536);
  LogCapture log;
  CHECK(register_region(*h.driven, {.data = first, .bytes = 8}));
  CHECK(register_region(*h.driven, {.data = first + page_size(), .bytes = 8}));
  CHECK(log.warnings().empty());
  CHECK(register_region(*h.driven, {.data = first + 64, .bytes = 8}).status() ==
        Status::bad_argument);
  CHECK(log.has("does not begin where a page of"));
  const PageSizeForTest of_host(65536);
  CHECK(register_region(*h.driven, {.data = first, .bytes = 8}));
  CHECK_FALSE(register_region(*h.driven, {.data = first + 4096, .bytes = 8}));
}

TEST_CASE("a ringer rings what has risen: record, then register") {
  std::uint64_t words[2] = {}, bell = 0;
  std::uint32_t records[2] = {};
  DoorbellRinger ringer(
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

TEST_CASE("the first error of a queue's own is told, not those that are flushed behind it") {
  using twinpath::gda::CqeBytes;
  using twinpath::gda::Syndrome;
  std::vector<std::uint8_t> ring(8 * twinpath::gda::kCqeBytes, twinpath::gda::kCqeFill);
  CHECK(first_error(ring) == Syndrome::none);
  CHECK(first_error({}) == Syndrome::none);
  const auto put = [&](std::size_t at, auto&& make) {
    CqeBytes cqe;
    make(cqe);
    std::copy(std::begin(cqe), std::end(cqe), ring.begin() + static_cast<std::ptrdiff_t>(at * 64));
  };
  using twinpath::gda::make_cqe;
  using twinpath::gda::make_error_cqe;
  put(0, [](CqeBytes& c) { make_cqe(c, 8, 8, 0x11, 8, 64); });
  put(1, [](CqeBytes& c) { make_error_cqe(c, 9, 8, 0x11, 8, Syndrome::flushed); });
  CHECK(first_error(ring) == Syndrome::flushed);
  put(7, [](CqeBytes& c) { make_error_cqe(c, 7, 8, 0x11, 8, Syndrome::retry_exceeded); });
  CHECK(first_error(ring) == Syndrome::retry_exceeded);
  ring.resize(7 * 64 + 63);  // half an entry is none
  CHECK(first_error(ring) == Syndrome::flushed);
  CHECK(std::string(text_of(Syndrome::retry_exceeded)).find("peer does not answer") !=
        std::string::npos);
  CHECK(std::string(text_of(Syndrome::none)).find("its log says") != std::string::npos);
}
