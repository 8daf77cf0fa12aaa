#include "tools/coll_perf/collective.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <sstream>

#include "tools/coll_perf/error.h"

namespace twinpath::coll {
namespace {

constexpr std::array kAll = {Collective::all_reduce,     Collective::all_gather,
                             Collective::reduce_scatter, Collective::broadcast,
                             Collective::sendrecv,       Collective::alltoall};

}  // namespace

const char* collective_name(Collective c) {
  switch (c) {
    case Collective::all_reduce:
      return "all_reduce";
    case Collective::all_gather:
      return "all_gather";
    case Collective::reduce_scatter:
      return "reduce_scatter";
    case Collective::broadcast:
      return "broadcast";
    case Collective::sendrecv:
      return "sendrecv";
    case Collective::alltoall:
      return "alltoall";
  }
  return "?";
}

std::vector<Collective> parse_collectives(const std::string& list) {
  std::vector<Collective> out;
  std::istringstream words(list);
  for (std::string word; std::getline(words, word, ',');) {
    if (word == "all") {
      out.insert(out.end(), kAll.begin(), kAll.end());
      continue;
    }
    const auto found = std::find_if(kAll.begin(), kAll.end(),
                                    [&](Collective c) { return word == collective_name(c); });
    if (found == kAll.end()) {
      throw ToolError(kExitUsage, "collective \"" + word +
                                      "\" is unknown; use all_reduce all_gather reduce_scatter "
                                      "broadcast sendrecv alltoall, or all");
    }
    out.push_back(*found);
  }
  return out;
}

Plan make_plan(Collective c, std::size_t bytes, std::size_t element_bytes, int rank, int ranks,
               std::size_t shift) {
  const auto n = static_cast<std::size_t>(ranks);
  const auto me = static_cast<std::size_t>(rank);
  const std::size_t total = std::max<std::size_t>(bytes / element_bytes, 1);
  const std::size_t share = std::max<std::size_t>(total / n, 1);
  const double gathered_factor =
      ranks > 1 ? static_cast<double>(n - 1) / static_cast<double>(n) : 1;
  Plan p;
  p.collective = c;
  switch (c) {
    case Collective::all_reduce:
      p.count = p.send_count = p.recv_count = total;
      p.reduces = true;
      p.expected = {{0, total, kReduced, shift}};
      p.bus_factor = ranks > 1 ? 2 * gathered_factor : 1;
      break;
    case Collective::all_gather:
      p.count = p.send_count = share;
      p.recv_count = share * n;
      p.in_place_send = me * share;
      for (std::size_t k = 0; k < n; ++k) {
        p.expected.push_back({k * share, share, static_cast<int>(k), shift});
      }
      p.bus_factor = gathered_factor;
      break;
    case Collective::reduce_scatter:
      p.count = p.recv_count = share;
      p.send_count = share * n;
      p.in_place_recv = me * share;
      p.reduces = true;
      p.expected = {{0, share, kReduced, shift + me * share}};
      p.bus_factor = gathered_factor;
      break;
    case Collective::broadcast:
      p.count = p.send_count = p.recv_count = total;
      p.root = 0;
      p.expected = {{0, total, 0, shift}};
      break;
    case Collective::sendrecv:
      p.count = p.send_count = p.recv_count = total;
      p.can_be_in_place = false;
      p.expected = {{0, total, (rank + ranks - 1) % ranks, shift}};
      break;
    case Collective::alltoall:
      p.count = share;
      p.send_count = p.recv_count = share * n;
      p.can_be_in_place = false;
      for (std::size_t k = 0; k < n; ++k) {
        p.expected.push_back({k * share, share, static_cast<int>(k), shift + me * share});
      }
      p.bus_factor = gathered_factor;
      break;
  }
  p.bytes = std::max(p.send_count, p.recv_count) * element_bytes;
  return p;
}

std::uint64_t count_wrong(DataType type, const std::byte* got, const std::byte* expected,
                          std::size_t count, std::size_t at, std::string& first) {
  const std::size_t bytes = type_info(type).bytes;
  if (std::memcmp(got, expected, count * bytes) == 0) return 0;
  std::uint64_t wrong = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (std::memcmp(got + i * bytes, expected + i * bytes, bytes) == 0) continue;
    if (wrong++ == 0 && first.empty()) {
      first = strf("element %zu is %.9g, expected %.9g", at + i, decode(type, got + i * bytes),
                   decode(type, expected + i * bytes));
    }
  }
  return wrong;
}

}  // namespace twinpath::coll
