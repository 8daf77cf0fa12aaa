// Machine files with random damage: each is refused with its name and the cause, or gives a sound
// Machine.  Nothing ends the process: libhwloc's own parser did, about once in a hundred files.
#include <algorithm>
#include <filesystem>
#include <random>
#include <set>

#include "test/support/catch.h"
#include "test/topology/data.h"
#include "topology/model/distance_rule.h"
#include "topology/read/hwloc_xml.h"
#include "topology/read/nccl_xml.h"
#include "topology/read/read_machine.h"

using namespace twinpath;
using namespace twinpath::test;

namespace {

constexpr int kDamages = TWINPATH_DAMAGES;  // 240, fewer under a sanitizer

std::vector<std::string> machine_files() {
  std::vector<std::string> out;
  for (const std::string& folder :
       {own_topologies(), shared_topologies() + "/hwloc", shared_topologies() + "/nccl"}) {
    std::error_code none;
    for (const auto& e : std::filesystem::directory_iterator(folder, none))
      if (e.path().extension() == ".xml") out.push_back(e.path().string());
  }
  std::sort(out.begin(), out.end());
  return out;
}

void damage(std::string& text, std::mt19937_64& random) {
  const std::size_t at = random() % text.size();
  const std::size_t length = std::min<std::size_t>(1 + random() % 64, text.size() - at);
  switch (random() % 6) {
    case 0:  // a byte
      text[at] = static_cast<char>(random() & 0xff);
      break;
    case 1:  // a bit
      text[at] = static_cast<char>(static_cast<unsigned char>(text[at]) ^ (1u << (random() % 8)));
      break;
    case 2:  // a piece missing
      text.erase(at, length);
      break;
    case 3:  // a piece twice
      text.insert(at, text.substr(at, length));
      break;
    case 4: {  // an attribute misspelt
      const std::size_t equals = text.find("=\"", at);
      if (equals != std::string::npos && equals > 0) text[equals - 1] = 'x';
      break;
    }
    default: {  // another number
      const std::size_t digit = text.find_first_of("0123456789", at);
      if (digit != std::string::npos) text[digit] = static_cast<char>('0' + random() % 10);
    }
  }
}

std::optional<Machine> parse(const std::string& text, std::string& why) {
  if (text.find("<topology") < text.find("<system")) return parse_hwloc_xml(text, why);
  auto hosts = parse_nccl_xml(text, why);
  return hosts ? std::optional<Machine>(std::move(hosts->front())) : std::nullopt;
}

}  // namespace

TEST_CASE("random damages of each machine file: refused with its name, or a sound machine") {
  const std::vector<std::string> files = machine_files();
  REQUIRE(files.size() >= 10);
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/damaged.xml";
  std::mt19937_64 random(20240607);
  std::set<std::string> refused, read;
  for (const std::string& file : files) {
    const std::string whole = slurp(file);
    for (int i = 0; i < kDamages; ++i) {
      std::string text = whole;
      damage(text, random);
      std::string why;
      std::optional<Machine> m;
      if (i % 12 != 0) {
        m = parse(text, why);
      } else {
        spill(path, text);
        m = read_machine({.path = path}, why);
        const bool named = m || why.starts_with(path + ": ");
        INFO(why);
        REQUIRE(named);
      }
      INFO(file << ", damage " << i << ": " << why);
      if (!m) {
        refused.insert(file);
        REQUIRE(why.size() > 8);
        REQUIRE(why.find('\n') == std::string::npos);
        continue;
      }
      read.insert(file);
      REQUIRE(check_machine(*m) == "");
      for (const Gpu& g : m->gpus)
        for (const Hca& h : m->hcas) REQUIRE_FALSE(nccl_letter(*m, g, h).empty());
      REQUIRE_FALSE(write_nccl_xml(*m).empty());
    }
  }
  // Some damage matters and some does not, of every file where it is tried often enough.
  const std::size_t least = kDamages < 240 ? 1 : files.size();
  CHECK(refused.size() >= least);
  CHECK(read.size() >= least);
}
