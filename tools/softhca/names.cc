// Names, rates and sysfs.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tools/softhca/facade.h"

using namespace twinpath::softhca;

namespace {

// Static rates: the code, how often 2.5 Gbit/s it is, and Mbit/s (IB specification, PathRecord).
struct Rate {
  ibv_rate code;
  int times;
  int mbps;
};
constexpr Rate kRates[] = {
    {IBV_RATE_2_5_GBPS, 1, 2500},       {IBV_RATE_5_GBPS, 2, 5000},
    {IBV_RATE_10_GBPS, 4, 10000},       {IBV_RATE_14_GBPS, 6, 14062},
    {IBV_RATE_20_GBPS, 8, 20000},       {IBV_RATE_25_GBPS, 10, 25781},
    {IBV_RATE_28_GBPS, 11, 28125},      {IBV_RATE_30_GBPS, 12, 30000},
    {IBV_RATE_40_GBPS, 16, 40000},      {IBV_RATE_50_GBPS, 20, 53125},
    {IBV_RATE_56_GBPS, 22, 56250},      {IBV_RATE_60_GBPS, 24, 60000},
    {IBV_RATE_80_GBPS, 32, 80000},      {IBV_RATE_100_GBPS, 40, 103125},
    {IBV_RATE_112_GBPS, 45, 112500},    {IBV_RATE_120_GBPS, 48, 120000},
    {IBV_RATE_168_GBPS, 67, 168750},    {IBV_RATE_200_GBPS, 80, 206250},
    {IBV_RATE_300_GBPS, 120, 309375},   {IBV_RATE_400_GBPS, 160, 425000},
    {IBV_RATE_600_GBPS, 240, 637500},   {IBV_RATE_800_GBPS, 320, 850000},
    {IBV_RATE_1200_GBPS, 480, 1275000},
};

template <class Match>
const Rate* find_rate(Match match) {
  for (const Rate& r : kRates) {
    if (match(r)) return &r;
  }
  return nullptr;
}

// One file's first line, as libibverbs gives it: without the newline, always terminated.
int read_file(const std::string& path, char* out, std::size_t size) {
  if (size == 0) return -1;
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return -1;
  ssize_t n = read(fd, out, size);
  close(fd);
  if (n <= 0) return -1;
  if (out[n - 1] == '\n') {
    out[--n] = 0;
  } else if (static_cast<std::size_t>(n) < size) {
    out[n] = 0;
  } else {
    return -1;
  }
  return static_cast<int>(n);
}

}  // namespace

extern "C" {

const char* ibv_node_type_str(ibv_node_type type) {
  switch (type) {
    case IBV_NODE_CA:
      return "InfiniBand channel adapter";
    case IBV_NODE_SWITCH:
      return "InfiniBand switch";
    case IBV_NODE_ROUTER:
      return "InfiniBand router";
    case IBV_NODE_RNIC:
      return "iWARP NIC";
    default:
      return "unknown";
  }
}

const char* ibv_port_state_str(ibv_port_state state) {
  constexpr const char* kNames[] = {"no state change (NOP)", "down", "init", "armed", "active",
                                    "active defer"};
  const auto i = static_cast<std::size_t>(state);
  return i < std::size(kNames) ? kNames[i] : "unknown";
}

const char* ibv_event_type_str(ibv_event_type type) {
  return facade() == nullptr ? "event" : verbs().event_type_str(type);
}

const char* ibv_wc_status_str(ibv_wc_status status) {
  return facade() == nullptr ? "error" : verbs().wc_status_str(status);
}

int ibv_rate_to_mult(ibv_rate rate) {
  const Rate* r = find_rate([&](const Rate& x) { return x.code == rate; });
  return r == nullptr ? -1 : r->times;
}
ibv_rate mult_to_ibv_rate(int times) {
  const Rate* r = find_rate([&](const Rate& x) { return x.times == times; });
  return r == nullptr ? IBV_RATE_MAX : r->code;
}
int ibv_rate_to_mbps(ibv_rate rate) {
  const Rate* r = find_rate([&](const Rate& x) { return x.code == rate; });
  return r == nullptr ? -1 : r->mbps;
}
ibv_rate mbps_to_ibv_rate(int mbps) {
  const Rate* r = find_rate([&](const Rate& x) { return x.mbps == mbps; });
  return r == nullptr ? IBV_RATE_MAX : r->code;
}

// Declared for providers only.
const char* ibv_get_sysfs_path();
const char* ibv_get_sysfs_path() {
  static const std::string path = [] {
    const char* const set = std::getenv("SYSFS_PATH");
    std::string p = set == nullptr || *set == 0 ? "/sys" : set;
    while (p.size() > 1 && p.back() == '/') p.pop_back();
    return p;
  }();
  return path.c_str();
}

int ibv_read_sysfs_file(const char* directory, const char* file, char* out, std::size_t size);
int ibv_read_sysfs_file(const char* directory, const char* file, char* out, std::size_t size) {
  // A software adapter without a PCI address has no directory.
  if (directory == nullptr || *directory == 0) return -1;
  return read_file(std::string(directory) + "/" + file, out, size);
}

}  // extern "C"
