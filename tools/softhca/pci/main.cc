// softhca-pci: the software HCA as a PCI function of a virtual machine, for its own kernel's mlx5
// driver.  `softhca --pci` calls it.
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plugin/base/clock.h"
#include "plugin/base/options.h"
#include "plugin/base/text.h"
#include "plugin/fabric/verbs.h"
#include "tools/softhca/pci/adapter.h"

namespace {

using namespace twinpath;
using namespace twinpath::softhca::pci;

constexpr const char* kUsage =
    R"(usage: softhca --pci --memory FILE --socket PATH [--socket PATH]... [--first N] [--machine NAME]
                     [--trace FILE] [--umr]

Plays mlx5 adapters (InfiniBand, one port each) to the kernel of a virtual machine, a PCI function
for each --socket, until QEMU ends.  QEMU is started after it, with the same FILE and PATHs:

  qemu-system-x86_64 -accel tcg -m 1024 -M q35,memory-backend=ram
    -object memory-backend-file,id=ram,size=1G,mem-path=FILE,share=on
    -chardev socket,path=PATH,id=hca0 -device ivshmem-doorbell,chardev=hca0,vectors=8 ...

  --memory FILE  the machine's memory; QEMU makes it
  --socket PATH  made here; QEMU connects to it
  --first N      adapters of the same TWINPATH_SOFT_JOB reach each other, also where other processes
                 play them to other machines: these are number N and on [0]
  --machine NAME  QEMU's: q35, or virt of arm64, whose memory lies elsewhere [q35]
  --trace FILE   writes each command and its answer, a JSON object a line
  --umr          work requests change keys: for dma-buf regions.  The driver then makes 6,000 keys
                 for each function first; "modprobe mlx5_core prof_sel=0" keeps it from that
  --help         this

Lines on standard input:
  port 0 down     pulls a cable; "up" puts it back
  port 0 new-lid  gives it another LID, and says so; what is sent to the one that it had is lost
  port 0 lose all  without a word loses what it sends and is sent; "answers": acknowledgements of
                  what it sends; "incoming": what is sent to it; "nothing": no more
  port 0 slow 16  sends at 16 Mb/s without a word, queue pairs only; 0: as fast as it goes
  port 0 fatal    a firmware error: what the adapter had is gone, and its driver starts it anew
  port 0 umr      as --umr, for a driver that takes it from now on
  port 0 no-devx  likewise, without commands of programs
  port 0 real-time  likewise, and queue pairs may not ask for the free-running clock
  port 0 plain    none of the three
Exit status: 0 when QEMU has ended, 1 after an error, 2 for wrong arguments.
)";

struct Arguments {
  std::string memory, trace;
  std::vector<std::string> sockets;
  bool changes_keys = false, virt = false;
  std::size_t first = 0;
};

int wrong(const char* what, const char* argument) {
  std::fprintf(stderr, "softhca: %s %s; see softhca --pci --help\n", what, argument);
  return 2;
}

// -1: go on; else the exit status.
int parse(int count, char** given, Arguments& out) {
  for (int i = 1; i < count; ++i) {
    const std::string_view name = given[i];
    if (name == "--help" || name == "-h") return std::fputs(kUsage, stdout) < 0 ? 1 : 0;
    if (name == "--umr") {
      out.changes_keys = true;
      continue;
    }
    if (name != "--memory" && name != "--socket" && name != "--trace" && name != "--first" &&
        name != "--machine")
      return wrong("unknown argument", given[i]);
    if (++i == count) return wrong("no value after", given[i - 1]);
    if (name == "--memory") out.memory = given[i];
    if (name == "--trace") out.trace = given[i];
    if (name == "--machine") {
      out.virt = std::string_view(given[i]) == "virt";
      if (!out.virt && std::string_view(given[i]) != "q35")
        return wrong("no machine that is known:", given[i]);
    }
    if (name == "--first") {
      constexpr std::int64_t kLast = 30;
      const auto number = parse_integer(given[i]);
      if (!number || *number < 0 || *number > kLast)
        return wrong("no number of an adapter:", given[i]);
      out.first = static_cast<std::size_t>(*number);
    }
    if (name == "--socket") out.sockets.emplace_back(given[i]);
  }
  if (out.memory.empty()) return wrong("needed:", "--memory");
  if (out.sockets.empty()) return wrong("needed:", "--socket");
  return -1;
}

// The machine's memory, which QEMU makes after it was started; empty after an error.
std::span<std::uint8_t> map_memory(const std::string& path, UniqueFd& file) {
  constexpr int kTries = 3000;
  constexpr useconds_t kBetween = 10'000;
  struct stat found {};
  for (int i = 0; i < kTries; ++i) {
    if (stat(path.c_str(), &found) == 0 && found.st_size != 0) break;
    usleep(kBetween);
  }
  file = UniqueFd(open(path.c_str(), O_RDWR | O_CLOEXEC));
  const auto bytes = static_cast<std::size_t>(found.st_size);
  void* const mapped =
      file ? mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0) : MAP_FAILED;
  if (mapped == MAP_FAILED) {
    std::fprintf(stderr, "softhca: --memory %s: %s; does QEMU make it (mem-path=)?\n", path.c_str(),
                 std::strerror(errno));
    return {};
  }
  return {static_cast<std::uint8_t*>(mapped), bytes};
}

// Those of the software HCA that carry the work, in this process until its end.
std::vector<ibv_context*> open_adapters(Config config, std::size_t first, std::size_t count,
                                        Verbs& verbs) {
  config.soft_hcas = std::to_string(first + count) + ",like=mlx5-ib";
  std::string why;
  std::vector<ibv_context*> opened;
  if (!load_soft_hca(verbs, config, why)) {
    std::fprintf(stderr, "softhca: %s\n", why.c_str());
    return opened;
  }
  int found = 0;
  ibv_device** const list = verbs.get_device_list(&found);
  for (auto i = static_cast<int>(first); i < found; ++i) {
    ibv_context* const context = verbs.open_device(list[i]);
    if (context != nullptr) opened.push_back(context);
  }
  verbs.free_device_list(list);
  return opened;
}

std::optional<soft::PortLoss> loss_called(std::string_view name) {
  if (name == "nothing") return soft::PortLoss::none;
  if (name == "all") return soft::PortLoss::all;
  if (name == "incoming") return soft::PortLoss::incoming;
  if (name == "answers") return soft::PortLoss::answers;
  return std::nullopt;
}

// "port 0 down", "port 0 lose all".  False: it is no order.
bool obey(const char* line, std::vector<std::unique_ptr<Adapter>>& adapters) {
  unsigned port = 0;
  char word[12] = "", more[12] = "";
  const int words = std::sscanf(line, "port %u %11s %11s", &port, word, more);
  if (words < 2 || port >= adapters.size()) return false;
  Adapter& adapter = *adapters[port];
  const std::string_view order = word;
  if (order == "lose") {
    const auto loss = loss_called(more);
    if (loss) adapter.lose(*loss);
    return loss.has_value();
  }
  if (order == "slow") {
    constexpr std::int64_t kMost = 1'000'000;
    const auto mbps = parse_integer(more);
    if (!mbps || *mbps < 0 || *mbps > kMost) return false;
    adapter.slow_down(static_cast<std::uint32_t>(*mbps));
    return true;
  }
  if (words != 2) return false;
  Offers offers = adapter.offers();
  if (order == "up" || order == "down") {
    adapter.set_link(order == "up");
  } else if (order == "new-lid") {
    adapter.change_lid();
  } else if (order == "fatal") {
    adapter.fail(now_ns());
  } else if (order == "umr") {
    offers.key_changes = true;
  } else if (order == "no-devx") {
    offers.devx = false;
  } else if (order == "real-time") {
    offers.free_running = false;
  } else if (order == "plain") {
    offers = {};
  } else {
    return false;
  }
  adapter.offer(offers);
  return true;
}

// Standard input, while it is open.
class Orders {
 public:
  void look(std::vector<std::unique_ptr<Adapter>>& adapters) {
    pollfd input{STDIN_FILENO, POLLIN, 0};
    if (!open_ || ::poll(&input, 1, 0) != 1) return;
    char bytes[256];
    const ssize_t got = read(STDIN_FILENO, bytes, sizeof bytes);
    open_ = got > 0;
    for (ssize_t i = 0; i < got; ++i) {
      if (bytes[i] != '\n') {
        line_ += bytes[i];
        continue;
      }
      if (!obey(line_.c_str(), adapters))
        std::fprintf(stderr, "softhca: %.60s: no order; see softhca --pci --help\n", line_.c_str());
      line_.clear();
    }
  }

 private:
  bool open_ = true;
  std::string line_;
};

int serve(const Arguments& arguments) {
  Trace trace;
  if (!trace.open(arguments.trace)) return 1;
  // The memory is there when QEMU has connected to the first.
  UniqueFd file;
  GuestMemory memory;
  const Config config = config_from_environment();
  Subnet subnet;
  std::string why;
  if (!subnet.connect(config.soft_job, why)) {
    std::fprintf(stderr, "softhca: other machines cannot be reached: %s\n", why.c_str());
    return 1;
  }
  std::vector<std::unique_ptr<Adapter>> adapters;
  for (const std::string& socket : arguments.sockets) {
    auto made = Adapter::create(static_cast<unsigned>(adapters.size()), socket, memory, trace);
    if (!made) return 1;
    adapters.push_back(std::move(made).take());
  }
  for (auto& adapter : adapters) {
    if (!adapter->accept()) {
      std::fprintf(stderr, "softhca: QEMU went away at once\n");
      return 1;
    }
  }
  const std::span<std::uint8_t> bytes = map_memory(arguments.memory, file);
  if (bytes.empty()) return 1;
  memory = arguments.virt
               ? GuestMemory(bytes, bytes.size(), file.get(), GuestMemory::kFirstOfVirt)
               : GuestMemory(bytes, GuestMemory::low_bytes_of_q35(bytes.size()), file.get());

  Verbs verbs;
  const std::vector<ibv_context*> contexts =
      open_adapters(config, arguments.first, adapters.size(), verbs);
  if (contexts.size() != adapters.size()) return 1;
  for (std::size_t i = 0; i < adapters.size(); ++i) {
    adapters[i]->start(verbs, contexts[i], subnet);
    if (arguments.changes_keys) adapters[i]->offer({.key_changes = true});
  }

  constexpr useconds_t kBetweenLooks = 200;
  constexpr int kLooksBetweenChecks = 100;
  Orders orders;
  for (int looks = 0;; ++looks) {
    bool moved = false;
    for (auto& adapter : adapters) moved |= adapter->turn(now_ns());
    if (looks % kLooksBetweenChecks == 0) {
      orders.look(adapters);
      if (adapters.front()->gone()) break;
    }
    if (!moved) usleep(kBetweenLooks);
  }
  for (auto& adapter : adapters) {
    if (adapter->rings_lost() != 0)
      std::fprintf(stderr, "softhca: %llu commands were found without their ring\n",
                   static_cast<unsigned long long>(adapter->rings_lost()));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  const int status = parse(argc, argv, arguments);
  if (status >= 0) return status;
  (void)std::signal(SIGPIPE, SIG_IGN);
  return serve(arguments);
}
