// Mistakes that other transports of this kind have made, as far as a unit alone can show them;
// the numbers are those of the list in proxy/README.md.
#include <sys/resource.h>

#include <cerrno>
#include <set>
#include <string>

#include "plugin/rdma/completion_text.h"
#include "plugin/rdma/mr_cache.h"
#include "proxy/wire/wr_id.h"
#include "test/support/catch.h"
#include "test/support/log_capture.h"

namespace twinpath {
namespace {

TEST_CASE("D11: every kind of work has a name, and a number that is no kind has one, too") {
  const std::string other = work_name(0);
  std::set<std::string> names;
  for (WrKind kind : {WrKind::send_data, WrKind::cts, WrKind::receive, WrKind::flush, WrKind::used,
                      WrKind::probe}) {
    const char* name = work_name(static_cast<int>(kind));
    REQUIRE(name != nullptr);
    CHECK(name != other);
    CHECK(names.insert(name).second);
  }
  // Four bits of a wr_id hold the kind, so 15 is the last that a completion can bring.
  for (int kind : {7, 8, 15, 16, 255, 256, -1, 1 << 20}) {
    INFO(kind);
    CHECK(work_name(kind) == other);
  }
}

TEST_CASE(
    "D11 and D13: every completion status has advice of its own, unknown ones general advice") {
  const std::string general = completion_hint(static_cast<ibv_wc_status>(31));
  CHECK(general.find("dmesg") != std::string::npos);
  for (int s = IBV_WC_SUCCESS; s <= IBV_WC_GENERAL_ERR; ++s)
    REQUIRE(completion_hint(static_cast<ibv_wc_status>(s)) != nullptr);
  std::set<std::string> texts;
  for (ibv_wc_status s :
       {IBV_WC_RETRY_EXC_ERR, IBV_WC_RNR_RETRY_EXC_ERR, IBV_WC_REM_ACCESS_ERR,
        IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_OP_ERR, IBV_WC_LOC_PROT_ERR, IBV_WC_LOC_LEN_ERR,
        IBV_WC_LOC_QP_OP_ERR, IBV_WC_WR_FLUSH_ERR, IBV_WC_FATAL_ERR}) {
    const std::string text = completion_hint(s);
    CHECK(text != general);
    CHECK(texts.insert(text).second);
  }
}

// Lowers the soft limit of locked memory and puts it back.
class LockedMemory {
 public:
  explicit LockedMemory(rlim_t bytes) {
    REQUIRE(::getrlimit(RLIMIT_MEMLOCK, &before_) == 0);
    rlimit now = before_;
    now.rlim_cur = bytes;
    REQUIRE(::setrlimit(RLIMIT_MEMLOCK, &now) == 0);
  }
  ~LockedMemory() { (void)::setrlimit(RLIMIT_MEMLOCK, &before_); }
  LockedMemory(const LockedMemory&) = delete;
  LockedMemory& operator=(const LockedMemory&) = delete;

 private:
  rlimit before_{};
};

TEST_CASE("A registration that fails for want of lockable memory names the limit and the remedy") {
  LockedMemory limit(48 * 1024);
  Verbs verbs;
  verbs.reg_mr_iova2 = [](ibv_pd*, void*, std::size_t, std::uint64_t, unsigned) -> ibv_mr* {
    errno = ENOMEM;
    return nullptr;
  };
  test::LogCapture log;
  MrCache cache(verbs, nullptr, "mlx5_3");
  MrRequest request;
  request.address = 0x7000;
  request.bytes = 1 << 20;
  CHECK(cache.acquire(request).status() == Status::no_memory);
  REQUIRE(log.warnings().size() == 1);
  const std::string text = log.warnings()[0];
  for (const char* part :
       {"mlx5_3", "1048576 bytes", "errno 12", "limit of locked memory is 48 KiB",
        "ulimit -l unlimited", "--ulimit memlock=-1"}) {
    INFO(part << " in: " << text);
    CHECK(text.find(part) != std::string::npos);
  }
  // Another cause is not blamed on the limit.
  log.clear();
  verbs.reg_mr_iova2 = [](ibv_pd*, void*, std::size_t, std::uint64_t, unsigned) -> ibv_mr* {
    errno = EFAULT;
    return nullptr;
  };
  CHECK(cache.acquire(request).status() == Status::system);
  REQUIRE(log.warnings().size() == 1);
  CHECK(log.warnings()[0].find("locked memory") == std::string::npos);
}

}  // namespace
}  // namespace twinpath
