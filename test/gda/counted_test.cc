// Signals without atomics: each adds once, what it says, when its receive has come.
#include "gda/served/back/counted_signals.h"

#include <cstring>
#include <vector>

#include "test/support/catch.h"

using namespace twinpath;
using namespace twinpath::gda;

namespace {

// One row of a peer's memory, the adapter's part played by hand.
struct Row {
  static constexpr std::size_t kWords = 80, kSignals = 4;
  Row()
      : words(kWords),
        table(kSignals),
        sender({.signals = kTable,
                .signals_bytes = kSignals * 8,
                .row = reinterpret_cast<std::uintptr_t>(words.data()),
                .words = kWords}),
        inbox({words.data(), table.data(), 1, kWords, kSignals}, nullptr) {}
  // Its data arrives; the result is what its receive says.
  ibv_wc place(std::uint64_t signal, std::uint64_t add) {
    ibv_send_wr wr{};
    sender.fill(wr, kTable + 8 * signal, 5);
    std::memcpy(reinterpret_cast<void*>(wr.wr.rdma.remote_addr), &add, sizeof add);
    ibv_wc wc{};
    wc.wr_id = WorkRequestId::kReceive;
    wc.imm_data = wr.imm_data;
    return wc;
  }

  static constexpr std::uint64_t kTable = 0x70000;
  std::vector<std::uint64_t> words, table;
  CountedSender sender;
  CountedInbox inbox;
};

}  // namespace

TEST_CASE("A counted signal adds once its receive has come, and nothing of the next one's word") {
  Row row;
  const ibv_wc first = row.place(1, 5), second = row.place(1, 7), third = row.place(2, 1);
  row.inbox.on_receive(first);
  CHECK(row.table == std::vector<std::uint64_t>{0, 5, 0, 0});
  row.inbox.on_receive(second);
  row.inbox.on_receive(third);
  CHECK(row.table == std::vector<std::uint64_t>{0, 12, 1, 0});
}

TEST_CASE("Counted signals of any value are added, going round their row") {
  Row row;
  // As few as are not posted again: there is no queue pair.
  for (int i = 0; i < 5; ++i) {
    row.inbox.on_receive(row.place(3, ~std::uint64_t{0}));
    row.inbox.on_receive(row.place(3, 1));
    row.inbox.on_receive(row.place(0, 0));
  }
  CHECK(row.table == std::vector<std::uint64_t>{0, 0, 0, 0});
  std::vector<std::uint64_t> places;
  for (std::size_t i = 0; i < Row::kWords; ++i) {
    ibv_send_wr wr{};
    row.sender.fill(wr, Row::kTable, 5);
    places.push_back((wr.wr.rdma.remote_addr - reinterpret_cast<std::uintptr_t>(row.words.data())) /
                     8);
  }
  CHECK(places.front() == 15);
  CHECK(places.back() == 14);
  CHECK(row.sender.covers(Row::kTable + 24));
  CHECK_FALSE(row.sender.covers(Row::kTable + 32));
  CHECK_FALSE(row.sender.covers(Row::kTable + 20));
  CHECK_FALSE(row.sender.covers(Row::kTable - 8));
}
