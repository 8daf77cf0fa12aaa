#include "test/vm/faults/network.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <net/if.h>
#include <poll.h>
#include <spawn.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>

#include "plugin/base/clock.h"
#include "plugin/base/owned.h"

namespace twinpath::test {
namespace {

constexpr std::int64_t kProgramLimit = 10 * kSecond;

std::vector<std::string> words(const std::string& text) {
  std::vector<std::string> out;
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    if (end > at) out.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return out;
}

bool tc(const std::string& text, std::string* output = nullptr) {
  return run_program(words("tc " + text), output);
}

// The number before or after `word` in tc's statistics.
long number_after(const std::string& text, const std::string& word) {
  const std::size_t at = text.find(word);
  return at == std::string::npos ? -1 : std::atol(text.c_str() + at + word.size());
}

// One interface ioctl on `request`.
bool interface_call(unsigned long call, const std::string& device, ifreq& request) {
  if (device.size() >= sizeof request.ifr_name) return false;
  std::memcpy(request.ifr_name, device.c_str(), device.size() + 1);
  const UniqueFd fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  return static_cast<bool>(fd) && ::ioctl(fd.get(), call, &request) == 0;
}

bool set_up(const std::string& device, bool up) {
  ifreq request{};
  if (!interface_call(SIOCGIFFLAGS, device, request)) return false;
  const int flags = request.ifr_flags;
  request.ifr_flags = static_cast<short>(up ? flags | IFF_UP : flags & ~IFF_UP);
  return interface_call(SIOCSIFFLAGS, device, request);
}

bool set_mtu(const std::string& device, int mtu) {
  ifreq request{};
  request.ifr_mtu = mtu;
  return interface_call(SIOCSIFMTU, device, request);
}

// A socket whose datagrams go to the port "discard" of `address`, where nobody listens.
UniqueFd udp_to(const std::string& address) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(9);
  UniqueFd fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd || ::inet_pton(AF_INET, address.c_str(), &to.sin_addr) != 1 ||
      ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0)
    return {};
  return fd;
}

}  // namespace

void rest_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

bool run_program(const std::vector<std::string>& args, std::string* output) {
  int pipe_ends[2];
  if (::pipe2(pipe_ends, O_CLOEXEC) != 0) return false;
  const UniqueFd out(pipe_ends[0]);
  UniqueFd in(pipe_ends[1]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in.get(), STDOUT_FILENO);
  std::vector<char*> argv;
  for (const std::string& a : args) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  pid_t pid = -1;
  const int error = ::posix_spawnp(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  in.reset();
  if (error != 0) return false;
  const std::int64_t end = now_ns() + kProgramLimit;
  for (std::array<char, 4096> part;;) {  // to the end of its output, that is of itself
    pollfd p{out.get(), POLLIN, 0};
    const std::int64_t left = end - now_ns();
    if (left <= 0 || ::poll(&p, 1, static_cast<int>(left / kMillisecond) + 1) < 1) {
      (void)::kill(pid, SIGKILL);
      break;
    }
    const ssize_t n = ::read(out.get(), part.data(), part.size());
    if (n <= 0) break;
    if (output != nullptr) output->append(part.data(), static_cast<std::size_t>(n));
  }
  int status = -1;
  return ::waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

bool restore_link(const std::string& device) { return run_program({"rxe-link", device, "up"}); }

Netem::Netem(std::string device, const std::string& rule) : device_(std::move(device)) {
  ok_ = tc("qdisc replace dev " + device_ + " root netem limit 20000 " + rule);
}

Netem::~Netem() { (void)tc("qdisc del dev " + device_ + " root"); }

void Netem::change(const std::string& rule) {
  ok_ = ok_ && tc("qdisc change dev " + device_ + " root netem limit 20000 " + rule);
}

long Netem::dropped() const {
  std::string text;
  return tc("-s qdisc show dev " + device_, &text) ? number_after(text, "(dropped ") : -1;
}

OpcodeFilter::OpcodeFilter(std::string device, int opcode) : device_(std::move(device)) {
  // Byte 28 of the IP packet (20 of IPv4, 8 of UDP) is the opcode.
  ok_ = tc("qdisc add dev " + device_ + " clsact") &&
        tc("filter add dev " + device_ +
           " egress protocol ip u32 match ip protocol 17 0xff match u8 " + std::to_string(opcode) +
           " 0xff at 28 action drop");
}

OpcodeFilter::~OpcodeFilter() { (void)tc("qdisc del dev " + device_ + " clsact"); }

long OpcodeFilter::dropped() const {
  std::string text;
  return tc("-s filter show dev " + device_ + " egress", &text) ? number_after(text, "(dropped ")
                                                                : -1;
}

Cut::Cut(std::string device) : device_(std::move(device)), cut_(true) {
  // All in one process: each takes a second where traffic has the only processor.
  const std::string file = "/run/cut-" + device_;
  std::ofstream(file) << "qdisc replace dev " << device_ << " root netem loss 100%\n"
                      << "qdisc add dev " << device_ << " clsact\n"
                      << "filter add dev " << device_
                      << " ingress protocol all prio 1 u32 match u32 0 0 action drop\n";
  ok_ = tc("-batch " + file);
}

bool Cut::felt(const std::string& address) const {
  const UniqueFd fd = udp_to(address);
  if (!fd) return false;
  (void)::send(fd.get(), "", 1, 0);
  rest_ms(20);
  std::string text;
  return tc("-s qdisc show dev " + device_ + " root", &text) && number_after(text, "(dropped ") > 0;
}

void Cut::mend() {
  // Where the host is busy, a program may not end in its time; what it left would cut for ever.
  for (int tries = 0; cut_ && tries < 5; ++tries) {
    (void)tc("qdisc del dev " + device_ + " clsact");
    (void)tc("qdisc del dev " + device_ + " root");
    std::string text;
    cut_ = !tc("qdisc show dev " + device_, &text) || text.find("netem") != std::string::npos ||
           text.find("clsact") != std::string::npos;
  }
}

LinkDown::LinkDown(std::string device) : device_(std::move(device)) {
  ok_ = down_ = set_up(device_, false);
}

void LinkDown::up() {
  if (!down_) return;
  down_ = false;
  ok_ = restore_link(device_);
}

Mtu::Mtu(std::string device, int mtu) : device_(std::move(device)) {
  ifreq request{};
  if (!interface_call(SIOCGIFMTU, device_, request)) return;
  before_ = request.ifr_mtu;
  ok_ = set_mtu(device_, mtu);
}

Mtu::~Mtu() {
  if (ok_) (void)set_mtu(device_, before_);
}

Counter::Counter(std::vector<std::string> devices, std::string name)
    : devices_(std::move(devices)), name_(std::move(name)), before_(now()) {}

long long Counter::now() const {
  long long sum = 0;
  for (const std::string& device : devices_) {
    std::ifstream file("/sys/class/infiniband/" + device + "/ports/1/hw_counters/" + name_);
    long long value = 0;
    if (file >> value) sum += value;
  }
  return sum;
}

bool link_carries(const std::string& address, int limit_ms) {
  const UniqueFd fd = udp_to(address);
  if (!fd) return false;
  for (const std::int64_t end = now_ns() + limit_ms * kMillisecond; now_ns() < end;) {
    // Either call may bring the error that the ICMP message of the other host left.
    if (::send(fd.get(), "", 1, 0) < 0 && errno == ECONNREFUSED) return true;
    pollfd p{fd.get(), POLLIN, 0};
    char byte;
    if (::poll(&p, 1, 250) > 0 && ::recv(fd.get(), &byte, 1, MSG_DONTWAIT) < 0 &&
        errno == ECONNREFUSED)
      return true;
  }
  return false;
}

bool port_is_active(const std::string& rdma_device) {
  std::ifstream file("/sys/class/infiniband/" + rdma_device + "/ports/1/state");
  std::string text;
  std::getline(file, text);
  return text.find("ACTIVE") != std::string::npos;
}

bool wait_ports_active(const std::vector<std::string>& rdma_devices) {
  for (const std::int64_t end = now_ns() + 5 * kSecond; now_ns() < end; rest_ms(2)) {
    bool all = true;
    for (const std::string& d : rdma_devices) all = all && port_is_active(d);
    if (all) return true;
  }
  return false;
}

}  // namespace twinpath::test
