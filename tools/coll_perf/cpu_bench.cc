#include "tools/coll_perf/cpu_bench.h"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <vector>

#include "plugin/base/clock.h"
#include "plugin/base/cpus.h"
#include "plugin/base/sync.h"
#include "tools/coll_perf/cpu_all_reduce.h"
#include "tools/coll_perf/error.h"
#include "tools/common/units.h"

namespace twinpath::coll {
namespace {

constexpr std::size_t kCpuGuardBytes = 4096;
constexpr int kCpuPoison = 0xff;

// Page-aligned memory.
class HostBuffer {
 public:
  explicit HostBuffer(std::size_t bytes) : bytes_(bytes) {
    data_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data_ == MAP_FAILED) {
      throw ToolError(kExitFailed, strf("no memory for %zu bytes; lower --end", bytes));
    }
  }
  ~HostBuffer() { munmap(data_, bytes_); }
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;
  Region region() const { return {static_cast<std::byte*>(data_), bytes_}; }

 private:
  std::size_t bytes_;
  void* data_;
};

class CpuTable {
 public:
  CpuTable(const Options& options, Group& group, Report& report, tools::NetPlugin& net, int device)
      : options_(options),
        group_(group),
        report_(report),
        net_(net),
        device_(device),
        input_(options.max_bytes() + kCpuGuardBytes),
        output_(options.max_bytes() + kCpuGuardBytes),
        scratch_(kScratchBytes),
        regions_{input_.region(), output_.region(), scratch_.region()},
        idle_passes_(group.size() > usable_cpus() ? 1 : 2000) {}

  void run(Algorithm algorithm, double begin_fraction, double share) {
    const Neighbours n = neighbours(algorithm, group_.rank(), group_.size());
    Links links =
        connect_links(net_, device_, group_, n.send_to, n.recv_from, regions_, options_.timeout_s);
    const char* name = algorithm == Algorithm::ring ? "ring" : "tree";
    report_.begin_table(strf("all_reduce, %s, %d processes on host memory over net ABI v%d of %s",
                             name, group_.size(), net_.abi(), net_.name()));
    const std::size_t lines = options_.types.size() * options_.sizes.size();
    std::size_t done = 0;
    for (const DataType type : options_.types) {
      Pattern pattern(type, ReduceOp::sum, group_.size());
      for (const std::size_t size : options_.sizes) {
        report_.progress(
            begin_fraction + share * static_cast<double>(done++) / static_cast<double>(lines),
            strf("%s %s %s", name, type_info(type).name, tools::format_bytes(size).c_str()));
        Row row;
        row.what = std::string("all_reduce ") + name;
        row.type = type;
        row.plan = plan(pattern, size, 0);
        row.checked = options_.checks > 0;
        row.out_of_place = measure(algorithm, links, pattern, size, false);
        row.in_place = measure(algorithm, links, pattern, size, true);
        report_.row(row);
      }
    }
    group_.barrier();  // nobody closes while another still reads
  }

 private:
  Plan plan(const Pattern& pattern, std::size_t size, std::size_t shift) const {
    return make_plan(Collective::all_reduce, size, pattern.element_bytes(), group_.rank(),
                     group_.size(), shift);
  }

  void once(Algorithm algorithm, Links& links, DataType type, std::size_t count, bool in_place) {
    const AllReduceJob job{type, count, group_.rank(), group_.size(), in_place};
    const auto work = algorithm == Algorithm::ring ? start_ring(job, links, regions_)
                                                   : start_tree(job, links, regions_);
    int idle = 0;
    std::int64_t deadline = 0;
    while (!work->finished()) {
      if (work->progress()) {
        idle = 0;
        deadline = 0;
        continue;
      }
      if (++idle < idle_passes_) {
        cpu_relax();
        continue;
      }
      // More processes than cores: the one that has our data may be waiting for this core.
      idle = 0;
      sched_yield();
      const std::int64_t now = now_ns();
      if (deadline == 0) deadline = now + static_cast<std::int64_t>(options_.timeout_s * 1e9);
      if (now > deadline) {
        throw ToolError(kExitFailed, strf("all_reduce of %zu %s: nothing moved for %g s; raise "
                                          "--timeout, or see the other ranks' messages",
                                          count, type_info(type).name, options_.timeout_s));
      }
    }
  }

  Measured measure(Algorithm algorithm, Links& links, Pattern& pattern, std::size_t size,
                   bool in_place) {
    const Plan p = plan(pattern, size, 0);
    const auto iterate = [&](int n) {
      for (int i = 0; i < n; ++i) once(algorithm, links, pattern.type(), p.count, in_place);
    };
    Measured mine;
    // Floats that grew in place over many rounds would end in slow arithmetic.
    std::memset(regions_[kInput].data, 0, p.bytes);
    std::memset(regions_[kOutput].data, 0, p.bytes);
    group_.barrier();
    iterate(options_.warmup + 1);  // one at least: ranks leave the barrier at different times
    const std::int64_t start = now_ns();
    iterate(options_.iterations);
    mine.time_us = static_cast<double>(now_ns() - start) / 1e3 / options_.iterations;
    for (int i = 0; i < options_.checks; ++i) {
      mine.wrong += check(algorithm, links, pattern, size, in_place);
    }
    std::vector<Measured> all(static_cast<std::size_t>(group_.size()));
    group_.gather(&mine, sizeof mine, all.data());
    if (group_.rank() != 0) return mine;
    Measured sum;
    for (const Measured& m : all) {
      sum.time_us += m.time_us / static_cast<double>(all.size());
      sum.wrong += m.wrong;
    }
    return sum;
  }

  std::uint64_t check(Algorithm algorithm, Links& links, Pattern& pattern, std::size_t size,
                      bool in_place) {
    const std::size_t shift = round_shift(++round_);
    const Plan p = plan(pattern, size, shift);
    const std::size_t element = pattern.element_bytes();
    const std::size_t step = kChunkBytes / element;
    std::byte* out = regions_[kOutput].data;
    std::byte* in = in_place ? out : regions_[kInput].data;
    std::memset(out, kCpuPoison, p.bytes + kCpuGuardBytes);
    for (std::size_t at = 0; at < p.count; at += step) {
      std::memcpy(in + at * element, pattern.data(group_.rank(), shift + at),
                  std::min(step, p.count - at) * element);
    }
    once(algorithm, links, pattern.type(), p.count, in_place);
    std::uint64_t wrong = 0;
    std::string first;
    for (std::size_t at = 0; at < p.count; at += step) {
      wrong += count_wrong(pattern.type(), out + at * element, pattern.reduced(shift + at),
                           std::min(step, p.count - at), at, first);
    }
    const std::byte* end = out + p.count * element;
    wrong += static_cast<std::uint64_t>(std::count_if(
        end, end + kCpuGuardBytes, [](std::byte b) { return b != std::byte{kCpuPoison}; }));
    if (wrong != 0 && reported_++ < 5) {
      std::fprintf(stderr, "coll_perf: rank %d: all_reduce %s of %zu bytes: %llu wrong: %s\n",
                   group_.rank(), type_info(pattern.type()).name, p.bytes,
                   static_cast<unsigned long long>(wrong),
                   first.empty() ? "bytes past the end were written" : first.c_str());
    }
    return wrong;
  }

  const Options& options_;
  Group& group_;
  Report& report_;
  tools::NetPlugin& net_;
  const int device_;
  HostBuffer input_, output_, scratch_;
  Regions regions_;
  const int idle_passes_;  // before the core is given away
  std::uint64_t round_ = 0;
  int reported_ = 0;
};

}  // namespace

void run_cpu_table(const Options& options, Group& group, Report& report) {
  const std::string path = tools::find_plugin(options.plugin);
  std::string why;
  const auto net = tools::NetPlugin::open(path, 0, tools::NetLog::warnings, why);
  if (net == nullptr) throw ToolError(kExitMissing, why);
  const std::size_t mine = static_cast<std::size_t>(group.rank()) % options.net_devices.size();
  const std::string& wanted = options.net_devices[mine];
  const int device = tools::find_net_device(*net, wanted, why);
  if (device < 0) {
    throw ToolError(kExitMissing, path + ": " + why);
  }
  tools::NetProperties properties;
  if (net->properties(device, properties) == 0) {
    report.note(strf("net device %d %s, %d Mb/s, plugin %s", device, properties.name.c_str(),
                     properties.speed_mbps, path.c_str()));
  }
  CpuTable table(options, group, report, *net, device);
  const double share = 1.0 / static_cast<double>(options.algorithms.size());
  double begin = 0;
  for (const Algorithm algorithm : options.algorithms) {
    table.run(algorithm, begin, share);
    begin += share;
  }
}

}  // namespace twinpath::coll
