// Signals without atomics: each adds once, what it says, when its receive has come.
#include "gda/served/back/counted_signals.h"

#include <cstring>
#include <vector>

#include "test/support/catch.h"
#include "test/support/log_capture.h"

using namespace twinpath;
using namespace twinpath::gda;

namespace {

// One row of a peer's memory, the adapter's part played by hand.
struct Row {
  static constexpr std::size_t kEntries = 80, kSignals = 4;
  Row()
      : entries(kEntries),
        table(kSignals),
        window(8),
        sender({.signals = kTable,
                .signals_bytes = kSignals * 8,
                .row = reinterpret_cast<std::uintptr_t>(entries.data()),
                .entries = kEntries}),
        inbox({entries.data(), table.data(), 1, kEntries, kSignals, &keys, 1}, nullptr) {
    const KeyedMemory here{reinterpret_cast<std::uintptr_t>(window.data()), 64, 3};
    const KeyedMemory remote[2] = {{0x90000, 64, 4}, here};
    key = *keys.add(here, remote, kRemoteAtomic | kRemoteWrite);
    readable = *keys.add(here, remote, kRemoteWrite);
  }
  // Its data arrives; the result is what its receive says.
  ibv_wc place(const Operation& operation) {
    std::uint8_t data[32];
    ibv_send_wr wr{};
    const std::uint32_t bytes = sender.fill(wr, operation, 5, data);
    CHECK(wr.wr.rdma.rkey == 5);
    std::memcpy(reinterpret_cast<void*>(wr.wr.rdma.remote_addr), data, bytes);
    ibv_wc wc{};
    wc.wr_id = WorkRequestId::kReceive;
    wc.imm_data = wr.imm_data;
    return wc;
  }
  ibv_wc place(std::uint64_t signal, std::uint64_t add) {
    return place({.kind = OperationKind::fetch_add, .remote = kTable + 8 * signal, .add = add});
  }
  // For a word of a window, as its sender names it.
  ibv_wc place_in(std::uint32_t window_key, std::uint64_t offset, std::uint64_t add) {
    return place({.kind = OperationKind::fetch_add,
                  .remote = 0x90000 + offset,
                  .add = add,
                  .window = window_key,
                  .offset = offset});
  }

  static constexpr std::uint64_t kTable = 0x70000;
  std::vector<CountedEntry> entries;
  std::vector<std::uint64_t> table, window;
  KeyTable keys{2};
  std::uint32_t key = 0, readable = 0;
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
  for (std::size_t i = 0; i < Row::kEntries; ++i) {
    ibv_send_wr wr{};
    std::uint8_t data[32];
    (void)row.sender.fill(wr, {.remote = Row::kTable}, 5, data);
    places.push_back(
        (wr.wr.rdma.remote_addr - reinterpret_cast<std::uintptr_t>(row.entries.data())) /
        sizeof(CountedEntry));
  }
  CHECK(places.front() == 15);
  CHECK(places.back() == 14);
}

TEST_CASE("A counted signal for a window adds to the word that it names, and to nothing else") {
  Row row;
  const test::LogCapture log;
  const ibv_wc first = row.place_in(row.key, 16, 5), table = row.place(2, 9),
               last = row.place_in(row.key, 56, ~std::uint64_t{0});
  for (const ibv_wc& wc : {first, table, last}) row.inbox.on_receive(wc);
  const std::vector<std::uint64_t> expected{0, 0, 5, 0, 0, 0, 0, ~std::uint64_t{0}};
  CHECK(row.window == expected);
  CHECK(row.table == std::vector<std::uint64_t>{0, 0, 9, 0});
  CHECK(log.warnings().empty());
  // A word at the end of the window, an odd one, a window without that right, one that is closed.
  row.inbox.on_receive(row.place_in(row.key, 64, 1));
  row.inbox.on_receive(row.place_in(row.key, ~std::uint64_t{0} - 3, 1));
  row.inbox.on_receive(row.place_in(row.key, 20, 1));
  row.inbox.on_receive(row.place_in(row.readable, 8, 1));
  row.keys.remove(row.key);
  row.inbox.on_receive(row.place_in(row.key, 16, 1));
  CHECK(row.window == expected);
  CHECK(log.warnings().size() == 5);
  CHECK(log.has("offset 20 of window"));
  CHECK(row.inbox.taken(0) == 8);
}
