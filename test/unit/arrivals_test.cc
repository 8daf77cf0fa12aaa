// What a receiver makes of immediates, alone: the sender is whoever calls take() and writes to the
// box, and it need not be honest.
#include "proxy/receive/arrivals.h"

#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "test/support/catch.h"

namespace twinpath {
namespace {

constexpr std::uint32_t kRoom = 100;

// A receiving end without queues.
class End {
 public:
  End() {
    for (std::size_t q = 0; q < 4; ++q) arrivals.serve(q, q % 2);
  }
  // A receive of buffers of these sizes; its memory is filled with 0xee.
  RecvRequest& post(const std::vector<std::uint32_t>& rooms,
                    RecvRequest::Copied how = RecvRequest::Copied::straight) {
    RecvRequest* r = arrivals.requests().take(
        [](void* at, std::uint16_t slot) { return new (at) RecvRequest(nullptr, slot); });
    const auto count = static_cast<unsigned>(rooms.size());
    r->begin(count, 0, false);
    r->set_first_cell(cells.add(count, false));
    memory_.emplace_back();
    for (std::size_t i = 0; i < count; ++i) {
      memory_.back().emplace_back(rooms[i] + 8, std::uint8_t{0xee});
      r->sub(i).expect(memory_.back()[i].data(), rooms[i], how);
    }
    return *r;
  }
  bool take(const Immediate& imm, std::uint32_t bytes, int queue = 0) {
    return arrivals.take(encode(imm), bytes, queue, cells);
  }
  bool refused(const Immediate& imm, std::uint32_t bytes, const char* why, int queue = 0) {
    return !take(imm, bytes, queue) && arrivals.why().find(why) != std::string::npos;
  }
  struct Message {
    std::uint32_t receive;
    std::vector<std::uint8_t> bytes;
  };
  // Lays it in the box, as it were by RDMA; how long it is.
  std::uint32_t lay(std::uint8_t number, const std::vector<Message>& messages) {
    std::uint8_t* const at = box.data() + place_offset(number);
    std::size_t end = parcel_data_at(messages.size());
    for (std::size_t i = 0; i < messages.size(); ++i) {
      const auto size = static_cast<std::uint32_t>(messages[i].bytes.size());
      const std::uint32_t entry = encode(ParcelEntry{messages[i].receive, size});
      std::memcpy(at + 4 * i, &entry, sizeof entry);
      if (size != 0) std::memcpy(at + end, messages[i].bytes.data(), size);
      end += padded(size);
    }
    return static_cast<std::uint32_t>(end);
  }
  bool take_parcel(std::uint8_t number, const std::vector<Message>& messages, int longer = 0) {
    const auto count = static_cast<std::uint8_t>(messages.size());
    const std::uint32_t bytes = lay(number, messages);
    return arrivals.take(encode(ParcelImmediate{number, count}),
                         bytes + static_cast<std::uint32_t>(longer), 0, cells);
  }

  alignas(8) std::array<std::uint8_t, kBoxBytes> box{};
  counters::Connection counts;
  Queue nowhere;
  CtsWriter cells{nullptr, CtsLayout(1), nowhere, 0, 0, {}, false};
  Arrivals arrivals{box.data(), counts};

 private:
  std::vector<std::vector<std::vector<std::uint8_t>>> memory_;  // by receive and buffer
};

Immediate of(const RecvRequest& r, int sub = 0, int chunks = 1) {
  const CellMeta meta(r.bits());
  return {meta.slot(), static_cast<std::uint8_t>(sub), meta.generation(),
          static_cast<std::uint8_t>(chunks)};
}

std::uint32_t part(const RecvRequest& r, std::uint32_t sub) { return r.bits() | sub * kOneSub; }

std::vector<std::uint8_t> bytes_from(std::uint8_t first, std::size_t count) {
  std::vector<std::uint8_t> bytes(count);
  std::iota(bytes.begin(), bytes.end(), first);
  return bytes;
}

TEST_CASE("A message in one piece ends its receive, whichever way it is taken") {
  End end;
  RecvRequest& one = end.post({kRoom});
  RecvRequest& two = end.post({kRoom});
  CHECK(end.arrivals.take_whole(CellMeta(two.bits()), kRoom, 1, end.cells));
  CHECK(two.left() == 0);
  CHECK(two.size(0) == kRoom);
  CHECK(end.cells.ended() == 0);
  CHECK(end.take(of(one), 0));
  CHECK(one.left() == 0);
  CHECK(one.size(0) == 0);
  CHECK(end.cells.ended() == 2);
  CHECK(end.counts.rails[1].bytes.get() == kRoom);
}

TEST_CASE("What is no plain message in one piece is left to take()") {
  End end;
  RecvRequest& r = end.post({kRoom, kRoom});
  const CellMeta first(r.bits()), second(part(r, 1)), third(part(r, 2));
  CHECK_FALSE(end.arrivals.take_whole(first, kRoom + 1, 0, end.cells));
  CHECK_FALSE(end.arrivals.take_whole(third, 1, 0, end.cells));
  CHECK_FALSE(end.arrivals.take_whole(CellMeta(r.bits() + 1), 1, 0, end.cells));
  CHECK_FALSE(end.arrivals.take_whole(CellMeta(r.bits() + (1u << 9)), 1, 0, end.cells));
  CHECK(end.arrivals.take_whole(first, 1, 0, end.cells));
  CHECK_FALSE(end.arrivals.take_whole(first, 1, 0, end.cells));
  CHECK(r.left() == 1);
  CHECK(end.arrivals.take_whole(second, 1, 0, end.cells));
  CHECK(r.left() == 0);
}

TEST_CASE("Chunks are counted, in any order of their queues") {
  for (const std::vector<int>& queues :
       {std::vector{0, 1, 2}, std::vector{2, 0, 1}, std::vector{1, 2, 0}}) {
    End end;
    RecvRequest& r = end.post({kRoom});
    std::uint32_t sum = 0;
    for (const int q : queues) {
      CHECK(r.left() == 1);
      const auto bytes = static_cast<std::uint32_t>(10 * q + 1);
      CHECK(end.take(of(r, 0, 3), bytes, q));
      sum += bytes;
    }
    CHECK(r.left() == 0);
    CHECK(r.size(0) == sum);
    CHECK(end.cells.ended() == 1);
  }
}

TEST_CASE("Chunks that do not add up are refused, and the text says what the sender did") {
  Immediate in_order;
  {
    End end;
    RecvRequest& r = end.post({kRoom});
    CHECK(end.take(of(r, 0, 2), 10, 1));
    CHECK(end.refused(of(r, 0, 3), 10, "2 chunks where it had announced 2", 2));
  }
  {
    End end;
    RecvRequest& r = end.post({kRoom});
    CHECK(end.take(of(r, 0, 2), 10, 1));
    CHECK(end.refused(of(r, 0, 2), 10, "one of 2 chunks a second time", 1));
  }
  {
    End end;
    RecvRequest& r = end.post({kRoom});
    in_order = of(r, 0, 3);
    in_order.in_order = true;
    CHECK(end.take(in_order, 10));
    CHECK(end.take(in_order, 10));
    CHECK(end.refused(in_order, 0, "one of 3 chunks a second time"));
  }
  {
    End end;
    RecvRequest& r = end.post({kRoom});
    CHECK(end.take(of(r, 0, 2), 60, 0));
    CHECK(end.refused(of(r, 0, 2), 41, "it sent 101 bytes into a receive of 100", 1));
    CHECK(r.left() == 1);
  }
}

TEST_CASE("What answers no receive is refused, and what answers one again is told apart") {
  End end;
  RecvRequest& r = end.post({kRoom});
  const Immediate old = of(r);
  struct {
    std::uint8_t slot, sub, generation;
    const char* why;
  } const cases[] = {
      {1, 0, old.generation, "no receive posted"},
      {0, 1, old.generation, "no receive posted"},
      {0, 0, static_cast<std::uint8_t>(old.generation + 1), "no receive posted"},
      {0, 0, static_cast<std::uint8_t>(old.generation - 2), "no receive posted"},
      {0, 0, static_cast<std::uint8_t>(old.generation - 1), "one message a second time"},
  };
  for (const auto& c : cases) {
    CAPTURE(int{c.slot}, int{c.sub}, int{c.generation});
    End fresh;
    fresh.post({kRoom});
    CHECK(fresh.refused({c.slot, c.sub, c.generation}, 1, c.why));
  }
  CHECK(end.take(old, 1));
  CHECK(end.refused(old, 1, "one message a second time"));
  End other;
  other.post({kRoom});
  CHECK_FALSE(other.arrivals.take(1u << 25, 1, 0, other.cells));
  CHECK_FALSE(End().arrivals.unexpected(0));
}

TEST_CASE("The size of a message that was cut off from its immediate lies in the box") {
  for (const std::uint32_t written : {kRoom, kRoom + 1}) {
    End end;
    RecvRequest& r = end.post({kRoom});
    Immediate sized = of(r, 0, 2);
    sized.sized = true;
    CHECK(end.take(sized, 0, 0));
    std::memcpy(end.box.data() + size_offset(sized.slot, 0), &written, sizeof written);
    CHECK(end.take(of(r, 0, 2), 30, 1) == (written == kRoom));
    if (written == kRoom) CHECK(r.size(0) == kRoom);
  }
}

TEST_CASE("One notice for a group stands for all its messages, none of which came before") {
  const auto group_of = [](const RecvRequest& r) {
    Immediate imm = of(r, 2);
    imm.whole_group = true;
    return imm;
  };
  {
    End end;
    RecvRequest& r = end.post({kRoom, 20, 30});
    CHECK_FALSE(end.take(group_of(r), 29));
    CHECK(end.take(group_of(r), 30));
    CHECK(r.left() == 0);
    CHECK(r.size(0) == kRoom);
    CHECK(r.size(2) == 30);
    CHECK(end.cells.ended() == 3);
  }
  End end;
  RecvRequest& r = end.post({kRoom, 20, 30});
  CHECK(end.take(of(r, 1), 20));
  CHECK_FALSE(end.take(group_of(r), 30));
  CHECK(r.left() == 2);
}

TEST_CASE("A parcel's messages go where their receives want them") {
  End end;
  RecvRequest& lone = end.post({kRoom});
  RecvRequest& group = end.post({kParcelBytes, kRoom, kRoom});
  const auto longest = bytes_from(100, kParcelBytes);
  CHECK(end.take_parcel(0, {{part(group, 0), longest},
                            {part(group, 1), longest},
                            {part(group, 2), bytes_from(7, 13)},
                            {lone.bits(), bytes_from(50, 9)}}));
  CHECK(lone.left() == 0);
  CHECK(group.left() == 0);
  CHECK(end.cells.ended() == 4);
  CHECK(end.arrivals.frontier() == 1);
  const auto lies = [](RecvRequest& r, std::size_t i, const std::vector<std::uint8_t>& bytes) {
    const std::uint8_t* const to = r.sub(i).to;
    return r.size(i) == bytes.size() && std::memcmp(to, bytes.data(), bytes.size()) == 0 &&
           to[r.sub(i).capacity] == 0xee;
  };
  CHECK(lies(group, 0, longest));
  CHECK(lies(group, 1, longest));
  CHECK(lies(group, 2, bytes_from(7, 13)));
  CHECK(lies(lone, 0, bytes_from(50, 9)));
  // Its place is used again by number 4, which may not come before.
  CHECK_FALSE(end.take_parcel(0, {{lone.bits(), {}}}));
}

TEST_CASE("A parcel that lies is refused") {
  const auto refused = [](const char* what, auto&& attempt) {
    CAPTURE(what);
    End end;
    RecvRequest& r = end.post({kRoom, 20});
    const bool taken = attempt(end, r);
    CHECK_FALSE(taken);
    CHECK(r.sub(1).to[20] == 0xee);
  };
  refused("of a number that cannot be on its way", [](End& end, RecvRequest& r) {
    return end.take_parcel(kParcelPlaces, {{r.bits(), bytes_from(1, 8)}});
  });
  refused("shorter than its messages", [](End& end, RecvRequest& r) {
    return end.take_parcel(0, {{r.bits(), bytes_from(1, 8)}}, -8);
  });
  refused("longer than its messages", [](End& end, RecvRequest& r) {
    return end.take_parcel(0, {{r.bits(), bytes_from(1, 8)}}, 8);
  });
  refused("with more than there is room for", [](End& end, RecvRequest& r) {
    return end.take_parcel(0, {{part(r, 1), bytes_from(1, 21)}});
  });
  refused("with the longest messages for less room", [](End& end, RecvRequest& r) {
    return end.take_parcel(0, {{r.bits(), bytes_from(1, 64)}, {part(r, 1), bytes_from(1, 64)}});
  });
  refused("with one message twice", [](End& end, RecvRequest& r) {
    return end.take_parcel(0, {{r.bits(), bytes_from(1, 8)}, {r.bits(), bytes_from(1, 8)}});
  });
  refused("for a part that is not there", [](End& end, RecvRequest& r) {
    return end.take_parcel(0, {{part(r, 2), bytes_from(1, 8)}});
  });
  refused("for no receive", [](End& end, RecvRequest& r) {
    return end.take_parcel(0, {{r.bits(), bytes_from(1, 8)}, {r.bits() + 1, bytes_from(1, 8)}});
  });
}

TEST_CASE("No parcel is copied to where no CPU may write") {
  for (const auto how : {RecvRequest::Copied::never, RecvRequest::Copied::gone}) {
    End end;
    RecvRequest& r = end.post({kRoom}, how);
    CHECK_FALSE(end.take_parcel(0, {{r.bits(), bytes_from(1, 8)}}));
    CHECK(r.sub(0).to[0] == 0xee);
    CHECK((end.arrivals.why().find("deregistered") != std::string::npos) ==
          (how == RecvRequest::Copied::gone));
    // Nobody waits for it at the end, either.
    CHECK(end.arrivals.expects_data() == (how != RecvRequest::Copied::gone));
  }
}

TEST_CASE("When queues are replaced, what is incomplete is awaited anew and nothing else") {
  End end;
  RecvRequest& done = end.post({kRoom});
  RecvRequest& half = end.post({kRoom, kRoom});
  CHECK(end.take_parcel(0, {{done.bits(), bytes_from(1, 8)}}));
  CHECK(end.take(of(half, 0), 5));
  CHECK(end.take(of(half, 1, 2), 60, 1));
  HeldState held;
  end.arrivals.restart(held);
  CHECK_FALSE(held.awaits(0));
  CHECK_FALSE(held.awaits(1));
  CHECK(held.awaits(2));
  CHECK(end.arrivals.frontier() == 0);
  // From the same queue, and in another number of chunks.
  CHECK(end.take(of(half, 1, 3), 40, 1));
  CHECK(end.take(of(half, 1, 3), 40, 2));
  CHECK(end.take(of(half, 1, 3), 20, 3));
  CHECK(half.left() == 0);
  CHECK(half.size(1) == kRoom);
}

TEST_CASE("Rails are known that laid data, and neither those of empty messages nor of parcels") {
  End end;
  RecvRequest& empty = end.post({kRoom});
  RecvRequest& full = end.post({kRoom});
  RecvRequest& parcel = end.post({kRoom});
  CHECK(end.take_parcel(0, {{parcel.bits(), bytes_from(1, 8)}}));
  CHECK(end.arrivals.take_whole(CellMeta(empty.bits()), 0, 0, end.cells));
  CHECK(end.arrivals.carried() == 0);
  CHECK(end.take(of(full), 1, 3));
  CHECK(end.arrivals.carried() == 2);
  end.arrivals.forget_carried();
  CHECK(end.arrivals.carried() == 0);
}

}  // namespace
}  // namespace twinpath
