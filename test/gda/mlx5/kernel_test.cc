// What uverbs, mlx5_ib and libmlx5 refuse before the adapter is asked, and what only the adapter
// does: the same table over the model in this process, over the facade's libmlx5, and over Linux'
// own driver (test/vm/mlx5).  Where they disagree, Linux is right and the model is mended.
#include <cerrno>
#include <cstdlib>
#include <functional>

#include "gda/adapter/mlx5/page.h"
#include "plugin/base/page_size.h"
#include "test/gda/mlx5/bench.h"
#include "test/support/log_capture.h"

using namespace twinpath;
using namespace twinpath::gda::mlx5;
using namespace twinpath::test;

namespace {

// The errno, and whether the adapter has answered (with a status) or was not asked.
struct Outcome {
  int error = 0;
  bool answered = false;
  bool operator==(const Outcome&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Outcome& o) {
  return out << "errno " << o.error << (o.answered ? ", answered" : ", unanswered");
}
constexpr Outcome kDone{0, false}, kKept{EINVAL, false}, kRefused{EREMOTEIO, true};

struct Given {
  void operator()(void* p) const { std::free(p); }
};

// What whoever started this knows of the adapter, a digit in the variable.
std::optional<unsigned> known(const char* variable) {
  const char* const value = std::getenv(variable);
  return value == nullptr ? std::nullopt : std::optional<unsigned>(*value - '0');
}

// An opened adapter with memory, a page, a completion queue and a queue pair.
struct Opened : Bench {
  explicit Opened(const std::string& variant = "")
      : Bench(0, variant),
        memory(static_cast<std::uint8_t*>(std::aligned_alloc(page_size(), kBytes))) {
    stop_recording(mlx5);
    std::fill_n(memory.get(), kBytes, std::uint8_t{0xff});
    auto made = gda::mlx5::Adapter::make(fabric->verbs, mlx5, rail);
    REQUIRE(made);
    driven = std::move(made).take();
    umem = {mlx5.devx_umem_reg(context(), memory.get(), kBytes, IBV_ACCESS_LOCAL_WRITE),
            Destroyer{driven.get()}};
    REQUIRE(umem != nullptr);
    auto doorbell = DoorbellPage::make(*driven);
    REQUIRE(doorbell);
    page.emplace(std::move(doorbell).take());
    auto completions = driven->create(create_cq(cq_wish()), "completion queue");
    REQUIRE(completions);
    cq.emplace(std::move(completions).take());
    auto pair = driven->create(create_qp(qp_wish()), "queue pair");
    REQUIRE(pair);
    qp.emplace(std::move(pair).take());
  }
  static constexpr std::size_t kBytes = 64 * 1024;

  ibv_context* context() const { return rail.port.adapter->context; }
  CqRequest cq_wish() const {
    CqRequest wish;
    wish.place = {umem->umem_id, 8192, umem->umem_id, 64};
    wish.log_entries = 4;
    wish.uar_page = page->number();
    wish.eqn = driven->event_queue();
    return wish;
  }
  QpRequest qp_wish() const {
    QpRequest wish;
    wish.place = {umem->umem_id, 4096, umem->umem_id, 0};
    wish.log_entries = 4;
    wish.pd = driven->pd_number();
    wish.cqn = cq->number;
    wish.uar_page = page->number();
    wish.adapters_clock = driven->capabilities().chooses_clock;
    return wish;
  }

  using Answer = std::vector<std::uint8_t>;
  static Outcome outcome(int error, const Answer& answer) {
    return {error, error != 0 && read_bits(answer, kStatus) != 0};
  }
  Outcome create(const Command& c) const {
    Answer answer(kShortBytes);
    errno = 0;
    mlx5dv_devx_obj* const made = mlx5.devx_obj_create(
        context(), c.bytes().data(), c.bytes().size(), answer.data(), kShortBytes);
    const Outcome o = outcome(made == nullptr ? errno : 0, answer);
    if (made != nullptr) (void)mlx5.devx_obj_destroy(made);
    return o;
  }
  Outcome modify(const gda::mlx5::Adapter::Made& object, const Command& c) const {
    Answer answer(kShortBytes);
    const int error = mlx5.devx_obj_modify(object.object.get(), c.bytes().data(), c.bytes().size(),
                                           answer.data(), answer.size());
    return outcome(error, answer);
  }
  Outcome query(const gda::mlx5::Adapter::Made& object, const Command& c) const {
    Answer answer(qp::kBytes);
    const int error = mlx5.devx_obj_query(object.object.get(), c.bytes().data(), c.bytes().size(),
                                          answer.data(), answer.size());
    return outcome(error, answer);
  }
  Outcome general(const Command& c) const {
    Answer answer(cap::kAnswerBytes);
    const int error = mlx5.devx_general_cmd(context(), c.bytes().data(), c.bytes().size(),
                                            answer.data(), answer.size());
    return outcome(error, answer);
  }
  int register_umem(void* at, std::size_t bytes, unsigned access) const {
    errno = 0;
    const gda::mlx5::Handle<mlx5dv_devx_umem> made(mlx5.devx_umem_reg(context(), at, bytes, access),
                                                   Destroyer{driven.get()});
    return made == nullptr ? errno : 0;
  }

  std::unique_ptr<std::uint8_t, Given> memory;
  std::unique_ptr<gda::mlx5::Adapter> driven;
  gda::mlx5::Handle<mlx5dv_devx_umem> umem;
  std::optional<DoorbellPage> page;
  std::optional<gda::mlx5::Adapter::Made> cq, qp;
};

Command unknown_command() {
  Command c(kShortBytes);
  c.put(kOpcode, 0x0fff);
  return c;
}

}  // namespace

TEST_CASE("commands that the driver keeps, and those that the adapter refuses") {
  const Opened o;
  CqRequest no_queue = o.cq_wish(), no_memory = o.cq_wish();
  no_queue.eqn = 0xfe;
  no_memory.place.umem = 0xfffe;
  QpRequest no_cq = o.qp_wish();
  no_cq.cqn = 0xfffffe;
  const std::uint32_t qpn = o.qp->number, cqn = o.cq->number;
  struct Row {
    const char* what;
    Outcome got, expected;
  };
  const Row rows[] = {
      {"a completion queue", o.create(create_cq(o.cq_wish())), kDone},
      // mlx5_create_cq looks the event queue up among the driver's own.
      {"of no event queue", o.create(create_cq(no_queue)), {ENOENT, false}},
      {"in no memory", o.create(create_cq(no_memory)), kRefused},
      {"a queue pair of no completion queue", o.create(create_qp(no_cq)), kRefused},
      // devx_is_obj_create_cmd, _modify_cmd, _query_cmd, devx_is_general_cmd.
      {"a question, as something to make", o.create(query_qp(qpn)), kKept},
      {"nobody's command, as something to make", o.create(unknown_command()), kKept},
      {"a question, as a change", o.modify(*o.qp, query_qp(qpn)), kKept},
      {"a change, as a question", o.query(*o.qp, to_error(qpn)), kKept},
      {"something to make, as a general command", o.general(create_cq(o.cq_wish())), kKept},
      {"nobody's command, as a general one", o.general(unknown_command()), kKept},
      // devx_is_valid_obj_id.
      {"a change of another object", o.modify(*o.cq, to_error(qpn)), kKept},
      {"a question about another object", o.query(*o.qp, query_qp(qpn + 1)), kKept},
      {"the number is right, the kind is not", o.modify(*o.cq, to_error(cqn)), kKept},
      // The adapter's.
      {"a transition from another state", o.modify(*o.qp, to_send(qpn, {})), kRefused},
      {"the queue pair's state", o.query(*o.qp, query_qp(qpn)), kDone},
      {"capabilities that there are", o.general(query_capabilities(0)), kDone},
      {"capabilities that there are not", o.general(query_capabilities(0x3f)), kRefused},
  };
  for (const Row& row : rows) {
    CAPTURE(row.what);
    CHECK(row.got == row.expected);
  }
}

TEST_CASE("the clock that queue pairs may ask for is the one that the adapter tells") {
  const Opened o;
  const Command question = query_capabilities(0);
  std::vector<std::uint8_t> answer(cap::kAnswerBytes);
  REQUIRE(o.mlx5.devx_general_cmd(o.context(), question.bytes().data(), question.bytes().size(),
                                  answer.data(), answer.size()) == 0);
  QpRequest free_running = o.qp_wish(), of_adapter = o.qp_wish();
  free_running.adapters_clock = false;
  of_adapter.adapters_clock = true;
  // sq_ts_format: 0 free-running alone, 1 real time alone, 2 both.  RoCE's own page has the same.
  const std::uint32_t told = read_bits(answer, {16 + 0x88, 31, 30});
  CAPTURE(told);
  CHECK(told == known("TWINPATH_TEST_CLOCKS").value_or(told));
  CHECK(o.create(create_qp(free_running)) == (told == 1 ? kRefused : kDone));
  CHECK(o.create(create_qp(of_adapter)) == (told == 0 ? kRefused : kDone));
}

TEST_CASE("memory of queues: what uverbs and mlx5_ib take") {
  const Opened o;
  std::uint8_t* const at = o.memory.get();
  constexpr unsigned kWrite = IBV_ACCESS_LOCAL_WRITE;
  CHECK(o.register_umem(at, 4096, kWrite) == 0);
  CHECK(o.register_umem(at + 64, 4096, kWrite) == 0);
  CHECK(o.register_umem(at, 0, kWrite) == EINVAL);
  CHECK(o.register_umem(at, ~std::size_t{0}, kWrite) == EINVAL);
  CHECK(o.register_umem(at, 4096, kWrite | IBV_ACCESS_REMOTE_ATOMIC) == EINVAL);
  CHECK(o.register_umem(at, 4096, IBV_ACCESS_REMOTE_WRITE) == EINVAL);
  CHECK(o.register_umem(reinterpret_cast<void*>(page_size()), 4096, kWrite) == EFAULT);
  // A queue's memory stays as long as the queue.
  CHECK(o.mlx5.devx_umem_dereg(o.umem.get()) != 0);
}

TEST_CASE("a region's place in its page is its address' place in one") {
  const Opened o;
  struct Row {
    std::size_t offset;
    std::uint64_t iova;
    int error;
  };
  // The second is how a word between others was once registered for kernels.
  for (const Row row : {Row{0, 0, 0}, Row{64, 0, EINVAL}, Row{64, 64, 0}, Row{0, page_size(), 0},
                        Row{0, 64, EINVAL}, Row{64, (1ull << 40) + 64, 0}}) {
    errno = 0;
    ibv_mr* const mr =
        o.fabric->verbs.reg_mr_iova2(o.driven->pd(), o.memory.get() + row.offset, 8, row.iova,
                                     IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    CAPTURE(row.offset, row.iova);
    CHECK((mr == nullptr ? errno : 0) == row.error);
    if (mr != nullptr) CHECK(o.fabric->verbs.dereg_mr(mr) == 0);
  }
}

TEST_CASE("doorbell pages: each its own, or all the same") {
  const std::string variant = GENERATE("", "shared-page");
  if (on_libraries() && !variant.empty()) return;
  const Opened o(variant);
  const auto alloc = [&](std::uint32_t type) {
    errno = 0;
    return gda::mlx5::Handle<mlx5dv_devx_uar>(o.mlx5.devx_alloc_uar(o.context(), type),
                                              Destroyer{o.driven.get()});
  };
  constexpr std::uint32_t kDedicated = 1u << 31;
  const auto first = alloc(kDedicated);
  const int why = errno;
  const auto second = alloc(kDedicated);
  const bool dedicated = first != nullptr;
  if (!on_libraries()) CHECK(dedicated == variant.empty());
  CHECK(dedicated == (known("TWINPATH_TEST_DEDICATED_PAGES").value_or(dedicated ? 1 : 0) == 1));
  if (!dedicated) {  // rdma-core before 45
    CHECK(why == EOPNOTSUPP);
    CHECK(second == nullptr);
  } else {
    REQUIRE(second != nullptr);
    CHECK(first->reg_addr != second->reg_addr);
  }
  const auto shared = alloc(MLX5DV_UAR_ALLOC_TYPE_NC), again = alloc(MLX5DV_UAR_ALLOC_TYPE_NC);
  REQUIRE(shared != nullptr);
  REQUIRE(again != nullptr);
  CHECK(shared->reg_addr == again->reg_addr);
  CHECK(shared->page_id == again->page_id);
  // And so what contexts of ours are given.
  auto other = DoorbellPage::make(*o.driven);
  REQUIRE(other);
  CHECK((other->bell() == o.page->bell()) == !dedicated);
  if (!dedicated) {
    CHECK(o.page->bell() == shared->reg_addr);
    CHECK(o.page->number() == shared->page_id);
    CHECK(other->number() == shared->page_id);
  }
  CHECK(alloc(1u << 5) == nullptr);
  CHECK(errno == EOPNOTSUPP);
}
