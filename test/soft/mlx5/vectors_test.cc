// Sequences of commands that other people's code made, played to the device model: none is refused,
// and what the device then knows is what that code meant.  test/golden/mlx5 has them, as
// tools/softhca/mlx5/vectors.py wrote them down from records: NCCL's DOCA code of 2.28.9 and 2.30.7
// (a main, a companion and a third queue pair; main and third joined), rdma-core's pyverbs 44 (two
// queue pairs joined), NVSHMEM 3.4.5's IBGDA (a rank of two: a dynamic initiator, two queue pairs
// to the other rank).
#include <array>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>

#include "test/soft/mlx5/world.h"
#include "test/support/catch.h"

using namespace twinpath::soft::mlx5;

namespace {

std::vector<std::uint8_t> unhex(std::size_t size, const std::string& digits) {
  std::vector<std::uint8_t> bytes(size);
  for (std::size_t i = 0; i + 1 < digits.size(); i += 2)
    bytes.at(i / 2) = static_cast<std::uint8_t>(std::stoul(digits.substr(i, 2), nullptr, 16));
  return bytes;
}

// A device that was played a sequence, and its queue pairs as they were before the first
// destruction.
struct Played {
  explicit Played(const std::string& name) {
    const char* const folder = std::getenv("TWINPATH_TEST_VECTORS");
    REQUIRE(folder != nullptr);
    const bool ethernet = name.ends_with("-roce");
    std::ifstream file(std::string(folder) + "/" + name + ".txt");
    REQUIRE(file.good());
    // None of them knows of clocks.
    Device device(
        {ethernet, 1, 8, 4, {8}, {.clocks = Clocks::both}},
        [](unsigned, unsigned, std::array<std::uint8_t, 16>& gid) {
          gid[0] = 0xfe;
          return true;
        },
        numbers);
    for (std::string line; std::getline(file, line); ++lines) {
      CAPTURE(name, lines, line.substr(0, 80));
      play(device, line);
    }
    remember(device);
  }

  void play(Device& device, const std::string& line) {
    std::istringstream words(line);
    std::string step, digits;
    std::uint64_t a = 0, b = 0;
    words >> step >> a;
    if (step == "next") {
      numbers = static_cast<std::uint32_t>(a) - 1;
    } else if (step == "uar") {
      (void)device.add_uar();
    } else if (step == "pd" || step == "cq" || step == "srq") {
      const Kind kind = step == "pd" ? Kind::pd : step == "cq" ? Kind::cq : Kind::srq;
      device.add_verbs_object({kind, static_cast<std::uint32_t>(a)});
    } else if (step == "umem") {
      words >> b;
      (void)device.add_umem({0x10000, a, b});
    } else if (step == "free") {
      // A doorbell register, whose page stays.
    } else if (step == "forget" || step == "destroy") {
      remember(device);
      words >> b;
      const Name name = step == "forget"
                            ? Name{Kind::umem, static_cast<std::uint32_t>(a)}
                            : Name{a == 0x400 ? Kind::cq : Kind::qp, static_cast<std::uint32_t>(b)};
      CHECK((device.remove(name) == Refusal::none) == !line.ends_with("busy"));
    } else {
      words >> digits;
      const std::vector<std::uint8_t> in = unhex(a, digits);
      std::vector<std::uint8_t> out(16 + 4096);
      const Refusal refusal = device.execute(in, out);
      CHECK(std::string(text_of(refusal)) == "");
      if (in[0] == 5 && in[1] == 0) qps[static_cast<std::uint32_t>(get(out, kNumber))] = {};
      if (in[0] == 4 && in[1] == 0) ++cqs;
    }
  }

  void remember(Device& device) {
    if (remembered || qps.empty()) return;
    remembered = true;
    for (auto& [number, context] : qps) {
      context.resize(272);
      Bytes in = twinpath::softhca::command(0x50b, 16).put(8, 23, 0, number);
      CHECK(device.execute({in.data(), in.size()}, context) == Refusal::none);
    }
  }

  std::atomic<std::uint32_t> numbers{0x100};
  int lines = 0, cqs = 0;
  bool remembered = false;
  std::map<std::uint32_t, std::vector<std::uint8_t>> qps;
};

// Read by byte and bit, as the reference manual has them.
std::uint64_t at(const std::vector<std::uint8_t>& context, std::uint32_t byte, std::uint32_t high,
                 std::uint32_t low) {
  return get(context, {8 * (0x18 + byte) + 31 - high, high - low + 1});
}

constexpr std::uint32_t kAddress = 0x18;

}  // namespace

TEST_CASE("NCCL's commands are accepted and mean what they should") {
  for (const bool young : {false, true}) {
    for (const bool ethernet : {true, false}) {
      const std::string name =
          std::string("nccl-") + (young ? "2.30.7" : "2.28.9") + (ethernet ? "-roce" : "-ib");
      CAPTURE(name);
      const Played p(name);
      CHECK(p.lines > 50);
      CHECK(p.cqs == 3);
      REQUIRE(p.qps.size() == 3);  // main, companion, and the one that main is joined to
      const auto& [main_number, main] = *p.qps.begin();
      const auto& [peer_number, peer] = *p.qps.rbegin();
      CHECK(at(std::next(p.qps.begin())->second, 0, 31, 28) == 0);
      CHECK(at(main, 0x14, 23, 0) == peer_number);
      CHECK(at(peer, 0x14, 23, 0) == main_number);
      for (const auto* qp : {&main, &peer}) {
        CHECK(at(*qp, 0, 31, 28) == 3);      // RTS
        CHECK(at(*qp, 0, 23, 16) == 0);      // RC
        CHECK(at(*qp, 0, 12, 11) == 3);      // migrated
        CHECK(at(*qp, 0x04, 23, 0) == 1);    // pd
        CHECK(at(*qp, 0x08, 31, 29) == 5);   // MTU 4096
        CHECK(at(*qp, 0x08, 28, 24) == 30);  // messages of 1 GiB
        CHECK(at(*qp, 0x08, 14, 11) == 7);   // 128 blocks
        CHECK(at(*qp, 0xac, 26, 24) == 3);   // no receive queue
        CHECK(at(*qp, 0x90, 15, 13) == 7);   // reads, writes, atomics
        CHECK(at(*qp, 0x90, 19, 16) == 1);   // of InfiniBand's size
        CHECK(at(*qp, 0x90, 0, 0) == 0);     // cd_master: a 64-bit store misses it
        CHECK(at(*qp, 0x94, 28, 24) == 12);  // RNR timer
        CHECK(at(*qp, 0x94, 23, 0) == 0);    // receive PSN
        CHECK(at(*qp, 0x78, 23, 0) == 0);    // send PSN
        CHECK(at(*qp, 0x70, 18, 16) == 7);   // retries
        CHECK(at(*qp, 0x70, 15, 13) == 7);
        CHECK(at(*qp, 0x70, 23, 21) == (young ? 4 : 0));  // reads under way, as powers of two
        CHECK(at(*qp, 0x90, 23, 21) == (young ? 4 : 0));
        CHECK(at(*qp, kAddress + 0x08, 31, 27) == 20);                  // timeout
        CHECK(at(*qp, kAddress + 0x24, 23, 16) == 1);                   // port
        CHECK(at(*qp, kAddress + 0x08, 23, 16) == (ethernet ? 1 : 0));  // GID index
        CHECK(at(*qp, kAddress + 0x08, 7, 0) == (ethernet ? 255 : 0));  // hops
        CHECK((at(*qp, kAddress + 0x20, 15, 0) >= 0xc000) == ethernet);
        CHECK((at(*qp, kAddress + 0x04, 15, 0) != 0) == !ethernet);  // LID
        CHECK((at(*qp, kAddress + 0x10 + 12, 31, 0) != 0) == ethernet);
        CHECK((at(*qp, kAddress + 0x28, 31, 0) != 0) == ethernet);  // MAC
      }
    }
  }
}

TEST_CASE("pyverbs' commands are accepted and mean what they should") {
  for (const char* name : {"pyverbs-44-roce", "pyverbs-44-ib"}) {
    CAPTURE(name);
    const Played p(name);
    CHECK(p.lines > 40);
    REQUIRE(p.qps.size() == 2);
    const auto& [first_number, first] = *p.qps.begin();
    const auto& [second_number, second] = *p.qps.rbegin();
    CHECK(at(first, 0x14, 23, 0) == second_number);
    CHECK(at(second, 0x14, 23, 0) == first_number);
    for (const auto* qp : {&first, &second}) {
      CHECK(at(*qp, 0, 31, 28) == 3);
      CHECK(at(*qp, 0x08, 31, 29) == 3);   // MTU 1024
      CHECK(at(*qp, 0x08, 28, 24) == 20);  // messages of 1 MiB
      CHECK(at(*qp, 0x08, 22, 19) == 10);  // receives
      CHECK(at(*qp, 0x08, 14, 11) == 12);  // sends
      CHECK(at(*qp, 0x90, 15, 14) == 3);   // reads, writes
      CHECK(at(*qp, 0x70, 23, 21) == 4);
      CHECK(at(*qp, kAddress + 0x08, 31, 27) == 14);
    }
    CHECK(at(first, 0x94, 23, 0) == at(second, 0x78, 23, 0));  // each expects the other's PSN
    CHECK(at(second, 0x94, 23, 0) == at(first, 0x78, 23, 0));
  }
}

TEST_CASE("NVSHMEM's commands are accepted and mean what they should") {
  Played p("nvshmem-3.4.5-roce");
  CHECK(p.lines > 35);
  CHECK(p.cqs == 3);
  REQUIRE(p.qps.size() == 3);
  const auto& initiator = p.qps.begin()->second;
  CHECK(at(initiator, 0, 31, 28) == 3);  // RTS
  CHECK(at(initiator, 0, 23, 16) == 5);  // DCI
  const auto& first = std::next(p.qps.begin())->second;
  const auto& second = p.qps.rbegin()->second;
  CHECK(at(second, 0x14, 23, 0) == at(first, 0x14, 23, 0) + 1);
  std::uint32_t user_index = 0;
  for (const auto* qp : {&first, &second}) {
    CHECK(at(*qp, 0, 31, 28) == 3);
    CHECK(at(*qp, 0, 23, 16) == 0);                // RC
    CHECK(at(*qp, 0x08, 31, 29) == 5);             // MTU 4096
    CHECK(at(*qp, 0x08, 14, 11) == 10);            // 1024 blocks
    CHECK(at(*qp, 0x10, 23, 0) == user_index++);   // numbered by the program
    CHECK(at(*qp, 0x90, 15, 13) == 7);             // reads, writes, atomics
    CHECK(at(*qp, 0x90, 19, 16) == 3);             // of up to 8 bytes, masked ones among them
    CHECK(at(*qp, kAddress + 0x08, 23, 16) == 1);  // GID index
    CHECK(at(*qp, kAddress + 0x08, 7, 0) == 255);  // hops
    CHECK(at(*qp, kAddress + 0x28, 31, 0) != 0);   // MAC
  }
}
