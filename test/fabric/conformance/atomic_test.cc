// Atomics: values, atomicity among queue pairs, and their refusals (IB vol. 1, 9.4.5, 10.7.2.3).
#include <cerrno>

#include "test/fabric/conformance/endpoint.h"

using namespace twinpath::conformance;

TEST_CASE("fetch and add adds and gives back the old value", "[atomic]") {
  Pair p;
  if (p.without_atomics()) return;
  p.b.word() = 40;
  const ibv_wc wc = p.run(p.add(2));
  CHECK(wc.status == IBV_WC_SUCCESS);
  CHECK(wc.opcode == IBV_WC_FETCH_ADD);
  CHECK(p.b.word() == 42);
  CHECK(p.a.word() == 40);
}

TEST_CASE("fetch and add wraps around at 64 bits", "[atomic]") {
  Pair p;
  if (p.without_atomics()) return;
  p.b.word() = ~std::uint64_t{0};
  CHECK(p.run(p.add(3)).status == IBV_WC_SUCCESS);
  CHECK(p.b.word() == 2);
  CHECK(p.a.word() == ~std::uint64_t{0});
}

TEST_CASE("fetch and add of zero is an atomic read", "[atomic]") {
  Pair p;
  if (p.without_atomics()) return;
  p.b.word(64) = 0x1122334455667788;
  CHECK(p.run(p.add(0, 8, 64)).status == IBV_WC_SUCCESS);
  CHECK(p.a.word(8) == 0x1122334455667788);
  CHECK(p.b.word(64) == 0x1122334455667788);
}

TEST_CASE("compare and swap swaps when the word is as expected", "[atomic]") {
  Pair p;
  if (p.without_atomics()) return;
  p.b.word() = 41;
  const ibv_wc wc = p.run(p.swap(41, 5));
  CHECK(wc.status == IBV_WC_SUCCESS);
  CHECK(wc.opcode == IBV_WC_COMP_SWAP);
  CHECK(p.b.word() == 5);
  CHECK(p.a.word() == 41);
}

TEST_CASE("compare and swap leaves a word that is not as expected", "[atomic]") {
  Pair p;
  if (p.without_atomics()) return;
  p.b.word() = 41;
  CHECK(p.run(p.swap(40, 5)).status == IBV_WC_SUCCESS);
  CHECK(p.b.word() == 41);
  CHECK(p.a.word() == 41);
}

TEST_CASE("an atomic touches its eight bytes only", "[atomic]") {
  Pair p;
  if (p.without_atomics()) return;
  p.b.word(0) = p.b.word(16) = p.a.word(0) = p.a.word(16) = 0xeeeeeeeeeeeeeeee;
  CHECK(p.run(p.add(1, 8, 8)).status == IBV_WC_SUCCESS);
  CHECK(p.b.word(8) == 1);
  for (std::size_t at : {0u, 16u}) {
    CHECK(p.a.word(at) == 0xeeeeeeeeeeeeeeee);
    CHECK(p.b.word(at) == 0xeeeeeeeeeeeeeeee);
  }
}

TEST_CASE("atomics of one queue pair are done in order", "[atomic]") {
  Pair p;
  if (p.without_atomics()) return;
  for (std::size_t i = 0; i < 20; ++i) {
    Wr w = p.add(1, 8 * i);
    REQUIRE(p.post(w) == 0);
  }
  for (int i = 0; i < 20; ++i) REQUIRE(wait(p.a.cq.get()).status == IBV_WC_SUCCESS);
  for (std::size_t i = 0; i < 20; ++i) CHECK(p.a.word(8 * i) == i);
}

TEST_CASE("atomics of two queue pairs on one word lose nothing", "[atomic]") {
  Pair p;
  if (p.without_atomics()) return;
  const Qp qa = p.a.make_qp(), qb = p.b.make_qp();
  connect(p.a, qa.get(), p.b, qb.get());
  for (std::size_t i = 0; i < 20; ++i) {
    Wr w = p.add(1, 16 * i), v = p.add(1, 16 * i + 8);
    REQUIRE(p.post(w) == 0);
    REQUIRE(post(qa.get(), v) == 0);
  }
  std::uint64_t sum = 0;
  for (int i = 0; i < 40; ++i) REQUIRE(wait(p.a.cq.get()).status == IBV_WC_SUCCESS);
  for (std::size_t i = 0; i < 40; ++i) sum += p.a.word(8 * i);
  CHECK(p.b.word() == 40);
  CHECK(sum == 40 * 39 / 2);  // every old value was seen once
}

TEST_CASE("an atomic completes at the requester only", "[atomic]") {
  Pair p;
  if (p.without_atomics()) return;
  REQUIRE(p.b.receive(64, 64) == 0);
  CHECK(p.run(p.add(1)).status == IBV_WC_SUCCESS);
  CHECK(quiet(p.b.cq.get()));
}

TEST_CASE("an atomic on an unaligned address is refused", "[atomic]") {
  Pair p;
  if (p.without_atomics()) return;
  Wr w = p.add(1, 0, 4);
  const int rc = p.post(w);
  // Either at the post (both providers here look at the address) or by the responder's NAK.
  if (rc == 0) {
    CHECK(wait(p.a.cq.get()).status == IBV_WC_REM_INV_REQ_ERR);
  } else {
    CHECK(rc == posting_error(EINVAL));
  }
  CHECK(p.b.word() == 0);
  CHECK(p.b.word(8) == 0);
}

TEST_CASE("an atomic with fewer than eight local bytes is refused", "[atomic]") {
  Pair p;
  if (p.without_atomics()) return;
  Wr w = p.add(1);
  w.sge.length = 4;
  if (deviates("atomic-ignores-length")) {
    CHECK(p.run(w).status == IBV_WC_SUCCESS);
    return;
  }
  const int rc = p.post(w);
  if (rc == 0) {
    CHECK(wait(p.a.cq.get()).status == IBV_WC_LOC_LEN_ERR);
  } else {
    CHECK(rc == posting_error(EINVAL));
  }
  CHECK(p.b.word() == 0);
}
