// Which work requests ask for a completion, and what one retires.
#include "gda/served/back/send_chain.h"

#include "test/support/catch.h"

using namespace twinpath::gda;

namespace {

bool signalled(const ibv_send_wr& request) { return (request.send_flags & IBV_SEND_SIGNALED) != 0; }

// WQEs from `first`, one work request each.
void fill(SendChain& chain, std::uint64_t first, std::uint32_t count) {
  for (std::uint32_t i = 0; i < count; ++i) {
    chain.place().request.wr_id = first + i;
    (void)chain.add(first + i, first + i + 1, false);
  }
}

std::uint32_t length(const ibv_send_wr* request) {
  std::uint32_t count = 0;
  for (; request != nullptr; request = request->next) ++count;
  return count;
}

}  // namespace

TEST_CASE("Every eighth work request and the last of a chain ask for a completion") {
  SendChain chain(100);
  for (const std::uint32_t count : {1u, 7u, 8u, 9u, 20u, 64u}) {
    CAPTURE(count);
    fill(chain, 0, count);
    std::uint32_t at = 0;
    const ibv_send_wr* const first = chain.close();
    CHECK(length(first) == count);
    for (const ibv_send_wr* wr = first; wr != nullptr; wr = wr->next, ++at) {
      CHECK(wr->wr_id == at);
      CHECK(signalled(*wr) == (at % SendChain::kSignalEvery == 7 || wr->next == nullptr));
    }
    std::uint32_t retired = 0;
    std::uint64_t done = 0;
    while (const auto mark = chain.retire()) {
      retired += mark->requests;
      CHECK(mark->done == retired);
      done = mark->done;
    }
    CHECK(retired == count);
    CHECK(done == count);
    CHECK(chain.idle());
  }
}

TEST_CASE("A chain has as many work requests as the queue pair holds, and tells when it is full") {
  SendChain chain(3);
  CHECK(chain.slot() == 0);
  for (std::uint64_t i = 0; i < 3; ++i) {
    CHECK(chain.has_room());
    (void)chain.place();
    CHECK(chain.add(i, i, i == 1) == (i != 2));
  }
  CHECK_FALSE(chain.has_room());
  CHECK(chain.last() == 2);
  (void)chain.close();
  CHECK(chain.empty());
  CHECK_FALSE(chain.idle());
  CHECK_FALSE(chain.has_room());
  const auto mark = chain.retire();
  REQUIRE(mark);
  CHECK(mark->requests == 3);
  CHECK(mark->reads);
  CHECK(chain.has_room());
  CHECK_FALSE(chain.retire());
  fill(chain, 3, 1);
  CHECK(chain.slot() == 1);
  (void)chain.close();
  CHECK_FALSE(chain.retire()->reads);
}

TEST_CASE("What is nothing on the wire is done with the work request before it") {
  SendChain chain(20);
  fill(chain, 0, 8);  // the last one is signalled already
  chain.extend(10);
  (void)chain.close();
  chain.extend(12);  // under way
  CHECK(chain.retire()->done == 12);
  fill(chain, 12, 2);
  chain.extend(20);
  (void)chain.close();
  CHECK(chain.retire()->done == 20);
}

TEST_CASE("What is forgotten of a chain holds no slot") {
  SendChain chain(4);
  fill(chain, 0, 2);
  (void)chain.close();
  fill(chain, 2, 2);
  CHECK_FALSE(chain.has_room());
  chain.forget();
  CHECK(chain.idle());
  CHECK_FALSE(chain.retire());
  fill(chain, 4, 4);
  CHECK(length(chain.close()) == 4);
  CHECK(chain.retire()->done == 8);
}
