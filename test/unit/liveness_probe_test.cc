// What a peer's adapter is asked, and what counts as its answer.
#include "plugin/rdma/liveness_probe.h"

#include <vector>

#include "test/support/catch.h"
#include "test/support/log_capture.h"

namespace twinpath {
namespace {

// An adapter that keeps what is posted; its queue may be full.
struct FakeAdapter {
  ibv_context context{};
  ibv_qp qp{};
  static inline std::vector<ibv_send_wr> posted;
  static inline bool full = false;
  FakeAdapter() {
    posted.clear();
    full = false;
    qp.context = &context;
    context.ops.post_send = [](ibv_qp*, ibv_send_wr* wr, ibv_send_wr** bad) {
      if (full) {
        *bad = wr;
        return ENOMEM;
      }
      posted.push_back(*wr);
      return 0;
    };
  }
};

ibv_wc completion(ibv_wc_status status) {
  ibv_wc wc{};
  wc.status = status;
  return wc;
}

TEST_CASE("a liveness probe is one write without bytes, one at a time") {
  FakeAdapter adapter;
  LivenessProbe probe;
  probe.ask(&adapter.qp, 7, {0x1000, 0x77});
  probe.ask(&adapter.qp, 8, {0x1000, 0x77});
  REQUIRE(FakeAdapter::posted.size() == 1);
  const ibv_send_wr& wr = FakeAdapter::posted[0];
  CHECK(wr.wr_id == 7);
  CHECK(wr.opcode == IBV_WR_RDMA_WRITE);
  CHECK(wr.send_flags == IBV_SEND_SIGNALED);
  CHECK(wr.num_sge == 0);
  CHECK(wr.next == nullptr);
  CHECK(wr.wr.rdma.remote_addr == 0x1000);
  CHECK(wr.wr.rdma.rkey == 0x77);
  CHECK(probe.answers() == 0);

  CHECK(probe.answered(completion(IBV_WC_SUCCESS), "a queue"));
  CHECK(probe.answers() == 1);
  probe.ask(&adapter.qp, 9, {0x1000, 0x77});
  CHECK(FakeAdapter::posted.size() == 2);
}

TEST_CASE("a liveness probe without room is asked again, and one that fails is told once") {
  FakeAdapter adapter;
  LivenessProbe probe;
  FakeAdapter::full = true;
  probe.ask(&adapter.qp, 1, {});
  FakeAdapter::full = false;
  probe.ask(&adapter.qp, 2, {});
  REQUIRE(FakeAdapter::posted.size() == 1);
  CHECK(FakeAdapter::posted[0].wr_id == 2);

  test::LogCapture log;
  CHECK_FALSE(probe.answered(completion(IBV_WC_RETRY_EXC_ERR), "queue 3"));
  CHECK(probe.answers() == 0);
  CHECK(log.warnings().size() == 1);
  CHECK(log.has(LogLevel::warn, "queue 3: the peer's host is silent"));
  CHECK(log.has(LogLevel::warn, "the peer did not answer"));
  probe.ask(&adapter.qp, 3, {});
  CHECK(FakeAdapter::posted.size() == 2);
}

}  // namespace
}  // namespace twinpath
