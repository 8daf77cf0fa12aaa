// The bytes of our commands: as they were written down once (golden), and beside the same command
// as NCCL's own adapter code sent it (test/golden/mlx5, recorded): every field in which the two
// differ is named here with the reason, and each of them must differ.
#include "gda/adapter/mlx5/commands.h"

#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>

#include "test/support/catch.h"

using namespace twinpath::gda::mlx5;

namespace {

using CommandBytes = std::vector<std::uint8_t>;

CommandBytes unhex(std::size_t size, const std::string& digits) {
  CommandBytes bytes(size);
  for (std::size_t i = 0; i + 1 < digits.size(); i += 2)
    bytes.at(i / 2) = static_cast<std::uint8_t>(std::stoul(digits.substr(i, 2), nullptr, 16));
  return bytes;
}

std::string hex(std::span<const std::uint8_t> bytes) {
  std::string out;
  std::size_t end = bytes.size();
  while (end > 0 && bytes[end - 1] == 0) --end;
  char two[3];
  for (std::size_t i = 0; i < end; ++i) {
    std::snprintf(two, sizeof two, "%02x", bytes[i]);
    out += two;
  }
  return std::to_string(bytes.size()) + " " + out;
}

std::ifstream open_golden(const std::string& name) {
  const char* const folder = std::getenv("TWINPATH_TEST_VECTORS");
  REQUIRE(folder != nullptr);
  std::ifstream file(std::string(folder) + "/" + name + ".txt");
  REQUIRE(file.good());
  return file;
}

// The commands of a recorded sequence, by opcode, in order.
std::map<unsigned, std::vector<CommandBytes>> commands_of(const std::string& name) {
  std::ifstream file = open_golden(name);
  std::map<unsigned, std::vector<CommandBytes>> out;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string step, digits;
    std::size_t size = 0;
    words >> step >> size >> digits;
    if (step != "create" && step != "modify" && step != "query" && step != "general") continue;
    const CommandBytes bytes = unhex(size, digits);
    out[bytes[0] * 256u + bytes[1]].push_back(bytes);
  }
  return out;
}

// By the manual's offsets, written again here: not those that the encoder has.
struct Difference {
  unsigned byte, high, low;
  const char* why;
};
std::uint32_t word_at(std::span<const std::uint8_t> bytes, std::size_t byte) {
  std::uint32_t w = 0;
  for (std::size_t i = 0; i < 4; ++i) w = w << 8 | bytes[byte + i];
  return w;
}
void compare(const Command& ours, const CommandBytes& theirs,
             const std::vector<Difference>& differences) {
  REQUIRE(ours.bytes().size() == theirs.size());
  for (std::size_t byte = 0; byte < theirs.size(); byte += 4) {
    std::uint32_t differing = word_at(ours.bytes(), byte) ^ word_at(theirs, byte);
    for (const Difference& d : differences) {
      if (d.byte != byte) continue;
      const std::uint32_t mask = (d.high - d.low == 31 ? ~0u : (1u << (d.high - d.low + 1)) - 1)
                                 << d.low;
      CAPTURE(d.why);
      CHECK((differing & mask) != 0);
      differing &= ~mask;
    }
    CAPTURE(byte, word_at(ours.bytes(), byte), word_at(theirs, byte));
    CHECK(differing == 0);
  }
}

constexpr unsigned kQpc = 0x18, kAddress = 0x18 + 0x18;

// What NCCL's first queue pair and completion queue were given, as the record has it; one umem
// where NCCL has one for each.
CqRequest nccl_cq() {
  CqRequest r;
  r.place = {0x102, 0, 0x102, 0x4000};
  r.log_entries = 7;
  r.uar_page = 0x101;
  r.eqn = 8;
  return r;
}
QpRequest nccl_qp() {
  QpRequest r;
  r.place = {0x105, 0, 0x105, 0x4008};
  r.log_entries = 7;
  r.pd = 1;
  r.cqn = 0x104;
  r.uar_page = 0x101;
  r.adapters_clock = true;
  return r;
}
Joint nccl_joint(bool ethernet, bool young) {
  Joint j;
  j.path.ethernet = ethernet;
  j.mtu = 5;
  j.far_qpn = 0x115;
  j.log_reads_in = j.log_reads_out = young ? 4 : 0;
  if (!ethernet) {
    j.path.lid = 9;
    return j;
  }
  j.path.global = true;
  j.path.gid = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0x2a, 0x4b, 0x00, 0x01};
  j.path.gid_index = 1;
  j.path.hop_limit = 255;
  j.path.mac = {0x02, 0x04, 0x88, 0x6c, 0x8b, 0xfb};
  j.path.udp_port = 0xff7c;
  return j;
}

const std::vector<Difference> kCqDifferences = {
    {0x14, 31, 0, "the record lies in the queues' umem: one registration for a context"},
    {0x4c, 31, 0, "and so at a place in it"},
};
const std::vector<Difference> kQpDifferences = {
    {kQpc + 0x00, 12, 11,
     "pm_state: migrated from the first, as pyverbs has it; RST2INIT says it again"},
    {kQpc + 0x08, 7, 6, "ts_format: NCCL's is refused by adapters with a real-time clock alone"},
    {kQpc + 0x9c, 23, 0,
     "cqn_rcv: any queue will do, for nothing is received; none is NCCL's choice"},
    {kQpc + 0xa4, 31, 0, "the record's place in the one umem"},
    {kQpc + 0xe4, 31, 0, "the record lies in the queues' umem"},
};

}  // namespace

TEST_CASE("queues are made as NCCL makes them, but for what is named") {
  for (const char* name :
       {"nccl-2.28.9-roce", "nccl-2.28.9-ib", "nccl-2.30.7-roce", "nccl-2.30.7-ib"}) {
    CAPTURE(name);
    auto theirs = commands_of(name);
    REQUIRE(theirs[0x400].size() == 3);
    REQUIRE(theirs[0x500].size() == 3);
    CqRequest cq = nccl_cq();
    QpRequest qp = nccl_qp();
    // The record tells its own numbers of objects.
    cq.place.umem = cq.place.record_umem = word_at(theirs[0x400][0], 0x58);
    cq.uar_page = qp.uar_page = word_at(theirs[0x400][0], 0x1c) & 0xffffff;
    qp.place.umem = qp.place.record_umem = word_at(theirs[0x500][0], 0x108);
    qp.cqn = word_at(theirs[0x500][0], kQpc + 0x7c) & 0xffffff;
    compare(create_cq(cq), theirs[0x400][0], kCqDifferences);
    compare(create_qp(qp), theirs[0x500][0], kQpDifferences);

    // The companion: NCCL means to set cd_master, too.
    qp.waits = true;
    qp.place.umem = qp.place.record_umem = word_at(theirs[0x500][1], 0x108);
    qp.cqn = word_at(theirs[0x500][1], kQpc + 0x7c) & 0xffffff;
    auto with_master = kQpDifferences;
    with_master.push_back(
        {kQpc + 0x94, 23, 0, "next_rcv_psn: where NCCL's store of cd_master, of 64 bits, ends up"});
    with_master.push_back(
        {kQpc + 0x90, 0, 0, "cd_master: its queue waits, and NCCL's store misses the bit"});
    compare(create_qp(qp), theirs[0x500][1], with_master);
  }
}

TEST_CASE("queue pairs are joined as NCCL joins them, but for what is named") {
  for (const bool young : {false, true}) {
    for (const bool ethernet : {true, false}) {
      const std::string name =
          std::string("nccl-") + (young ? "2.30.7" : "2.28.9") + (ethernet ? "-roce" : "-ib");
      CAPTURE(name);
      auto theirs = commands_of(name);
      REQUIRE(theirs[0x502].size() == 2);
      const std::uint32_t qpn = word_at(theirs[0x502][0], 8);
      Joint joint = nccl_joint(ethernet, young);
      const CommandBytes& receive = theirs[0x503][0];
      joint.far_qpn = word_at(receive, kQpc + 0x14) & 0xffffff;
      joint.path.udp_port = static_cast<std::uint16_t>(word_at(receive, kAddress + 0x20));
      if (ethernet) {
        for (unsigned i = 0; i < 16; ++i) joint.path.gid.at(i) = receive[kAddress + 0x10 + i];
        for (unsigned i = 0; i < 6; ++i) joint.path.mac.at(i) = receive[kAddress + 0x26 + i];
      }
      Path path;
      compare(to_init(qpn, path), theirs[0x502][0], {});
      compare(to_receive(qpn, joint), receive,
              {{0x10, 3, 1, "opt_param_mask: rights count only where the mask names them"},
               {kAddress + 0x24, 23, 16,
                "vhca_port_num: the path is told whole, as pyverbs tells it; NCCL leaves it to "
                "RST2INIT"},
               {kQpc + 0x90, 15, 15, "rre: all three are named, so all three are told"}});
      compare(to_send(qpn, joint), theirs[0x504][0],
              {{kQpc + 0x90, 19, 16, "atomic_mode: told before, and not in the mask here"},
               {kQpc + 0x90, 14, 13, "rwe, rae: likewise"}});
    }
  }
}

TEST_CASE("and as rdma-core's pyverbs joins them, but for what is named") {
  for (const bool ethernet : {true, false}) {
    auto theirs = commands_of(ethernet ? "pyverbs-44-roce" : "pyverbs-44-ib");
    REQUIRE(!theirs[0x503].empty());
    const CommandBytes& receive = theirs[0x503][0];
    const CommandBytes& send = theirs[0x504][0];
    Joint joint;
    joint.path.ethernet = joint.path.global = ethernet;
    joint.mtu = 3;
    joint.log_message = 20;
    joint.far_qpn = word_at(receive, kQpc + 0x14) & 0xffffff;
    joint.far_psn = word_at(receive, kQpc + 0x94) & 0xffffff;
    joint.psn = word_at(send, kQpc + 0x78) & 0xffffff;
    joint.log_reads_out = 4;
    joint.timeout = 14;
    if (ethernet) {
      joint.path.hop_limit = 64;
      joint.path.udp_port = static_cast<std::uint16_t>(word_at(receive, kAddress + 0x20));
      for (unsigned i = 0; i < 16; ++i) joint.path.gid.at(i) = receive[kAddress + 0x10 + i];
      for (unsigned i = 0; i < 6; ++i) joint.path.mac.at(i) = receive[kAddress + 0x26 + i];
    } else {
      joint.path.lid = 9;
    }
    compare(to_receive(word_at(receive, 8), joint), receive,
            {{0x10, 3, 1, "opt_param_mask: rights again; pyverbs leaves those of RST2INIT"},
             {kQpc + 0x90, 19, 16, "atomic_mode: goes with them"},
             {kQpc + 0x90, 15, 13, "rre, rwe, rae"}});
    compare(to_send(word_at(send, 8), joint), send,
            {{kAddress + 0x24, 23, 16, "vhca_port_num: told twice before"}});
  }
}

TEST_CASE("queries are NCCL's, byte for byte") {
  auto theirs = commands_of("nccl-2.30.7-roce");
  REQUIRE(!theirs[0x50b].empty());
  compare(query_qp(word_at(theirs[0x50b][0], 8)), theirs[0x50b][0], {});
  std::vector<std::string> kinds;
  for (const CommandBytes& c : theirs[0x100]) kinds.push_back(hex(c));
  for (const unsigned kind : {0u, 4u, 0x20u}) {
    CAPTURE(kind);
    CHECK(std::find(kinds.begin(), kinds.end(), hex(query_capabilities(kind).bytes())) !=
          kinds.end());
  }
}

TEST_CASE("our commands are, byte for byte, as they were written down") {
  std::map<std::string, std::string> golden;
  std::ifstream file = open_golden("ours");
  for (std::string line; std::getline(file, line);) {
    const std::size_t space = line.find(' ');
    golden[line.substr(0, space)] = line.substr(space + 1);
  }
  CqRequest collapsed = nccl_cq();
  collapsed.collapsed = true;
  QpRequest companion = nccl_qp();
  companion.waits = true;
  companion.place = {0x105, 0x2000, 0x105, 0x4010};
  QpRequest free_running = nccl_qp();
  free_running.adapters_clock = false;
  Joint roce = nccl_joint(true, true);
  roce.far_psn = 0xabcdef;
  roce.psn = 0x123456;
  roce.path.service_level = 3;
  roce.path.traffic_class = 0x6a;
  roce.path.port = 2;
  Joint routed = nccl_joint(false, true);
  routed.path.global = true;
  routed.path.gid = roce.path.gid;
  routed.path.gid_index = 2;
  routed.path.hop_limit = 255;
  routed.path.service_level = 9;
  routed.path.traffic_class = 0x6a;
  routed.path.pkey_index = 1;
  routed.mtu = 3;
  routed.log_message = 20;
  const std::map<std::string, Command> ours = {
      {"create_cq", create_cq(nccl_cq())},
      {"create_cq_collapsed", create_cq(collapsed)},
      {"create_qp", create_qp(nccl_qp())},
      {"create_qp_free_running", create_qp(free_running)},
      {"create_qp_companion", create_qp(companion)},
      {"to_init", to_init(0x107, routed.path)},
      {"to_receive_roce", to_receive(0x107, roce)},
      {"to_receive_lid", to_receive(0x107, nccl_joint(false, true))},
      {"to_receive_grh", to_receive(0x107, routed)},
      {"to_send", to_send(0x107, roce)},
      {"to_error", to_error(0x107)},
      {"query_qp", query_qp(0x107)},
      {"query_general", query_capabilities(0)},
      {"query_atomic", query_capabilities(3)},
      {"query_roce", query_capabilities(4)},
      {"query_general_2", query_capabilities(0x20)},
  };
  CHECK(golden.size() == ours.size());
  for (const auto& [name, command] : ours) {
    CAPTURE(name);
    CHECK(hex(command.bytes()) == golden[name]);
  }
}
