// The executable of the copy process as the plugin starts it: what it takes along, what ends it and
// what does not.  Its driver has no GPU, so it copies nothing here.
#include <dlfcn.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

#include "plugin/base/clock.h"
#include "plugin/gpu/driver.h"
#include "plugin/gpu/process/copy_process.h"
#include "test/support/catch.h"
#include "test/support/log_capture.h"
#include "test/support/needs.h"

namespace twinpath::gpu::process {
namespace {

constexpr std::int64_t kPatience = 20 * kSecond;

// The stub in the driver's place, found by the path of its functions.
class StubDriver {
 public:
  StubDriver() {
    const char* path = std::getenv("TWINPATH_TEST_STUB_CUDA");
    if (path == nullptr || std::getenv("TWINPATH_TEST_COPIER") == nullptr) return;
    library_ = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library_ == nullptr) return;
    void* count = dlsym(library_, "cuDeviceGetCount");
    __builtin_memcpy(&table_.device_count, &count, sizeof count);
    cuda::set_driver_for_test(&table_);
  }
  ~StubDriver() {
    cuda::set_driver_for_test(nullptr);
    if (library_ != nullptr) dlclose(library_);
  }
  explicit operator bool() const { return library_ != nullptr; }

 private:
  void* library_ = nullptr;
  cuda::Driver table_;
};
#define NEEDS_COPIER(stub) \
  NEEDS(stub, "TWINPATH_TEST_COPIER and TWINPATH_TEST_STUB_CUDA do not name what was built")

std::unique_ptr<CopyProcess> start_copier(HelperCpus cpus = HelperCpus::near) {
  std::string why;
  auto made = CopyProcess::start(std::getenv("TWINPATH_TEST_COPIER"), cpus, why);
  INFO(why);
  REQUIRE(made);
  return std::move(made).take();
}

// Also when nobody has taken note of its end yet.
bool runs(int pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(stat, text);
  const std::size_t at = text.rfind(") ");
  return at != std::string::npos && text[at + 2] != 'Z' && text[at + 2] != 'X';
}

template <class Condition>
bool comes_true(Condition&& condition) {
  const std::int64_t deadline = now_ns() + kPatience;
  while (!condition()) {
    if (now_ns() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

bool answers(CopyProcess& copier) {
  return copier.import(1, ExportedAllocation{}).status() != Status::closed;
}

TEST_CASE("the copier takes nothing of the program's along and is nobody's child", "[copier]") {
  const StubDriver stub;
  NEEDS_COPIER(stub);
  int open_to_children[2];
  REQUIRE(::pipe(open_to_children) == 0);
  const auto copier = start_copier();
  const int pid = copier->pid();
  CHECK(answers(*copier));
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) {
    std::error_code gone;
    const std::string number = entry.path().filename();
    const std::string target = std::filesystem::read_symlink(entry.path(), gone);
    INFO(number << " is " << target);
    CHECK((number == "3" ? target.starts_with("socket:") : target == "/dev/null"));
  }
  CHECK(::getsid(pid) != ::getsid(0));
  // A program that waits for its children sees none.
  errno = 0;
  CHECK(::waitpid(-1, nullptr, WNOHANG) == -1);
  CHECK(errno == ECHILD);
  for (const int fd : open_to_children) ::close(fd);
}

TEST_CASE("the copier leaves a narrow binding, unless it is to stay", "[copier]") {
  const StubDriver stub;
  NEEDS_COPIER(stub);
  cpu_set_t before, one;
  REQUIRE(::sched_getaffinity(0, sizeof before, &before) == 0);
  NEEDS(CPU_COUNT(&before) > 1, "there is one processor only");
  CPU_ZERO(&one);
  for (int cpu = 0; CPU_COUNT(&one) == 0; ++cpu)
    if (CPU_ISSET(cpu, &before)) CPU_SET(cpu, &one);
  const auto cpus_of = [](const CopyProcess& copier) {
    cpu_set_t set;
    REQUIRE(::sched_getaffinity(copier.pid(), sizeof set, &set) == 0);
    return CPU_COUNT(&set);
  };
  REQUIRE(::sched_setaffinity(0, sizeof one, &one) == 0);
  const auto leaves = start_copier(), stays = start_copier(HelperCpus::inherit);
  REQUIRE(::sched_setaffinity(0, sizeof before, &before) == 0);
  CHECK(cpus_of(*leaves) >= CPU_COUNT(&before));
  CHECK(cpus_of(*stays) == 1);
}

TEST_CASE("signals that end jobs do not end the copier; its program's end does", "[copier]") {
  const StubDriver stub;
  NEEDS_COPIER(stub);
  auto copier = start_copier();
  const int pid = copier->pid();
  for (const int s : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGPIPE}) REQUIRE(::kill(pid, s) == 0);
  CHECK(answers(*copier));
  CHECK(runs(pid));
  copier.reset();
  CHECK(comes_true([pid] { return !runs(pid); }));
}

TEST_CASE("a copier ends with a program that is killed", "[copier]") {
  const StubDriver stub;
  NEEDS_COPIER(stub);
  int told[2];
  REQUIRE(::pipe(told) == 0);
  const pid_t program = ::fork();
  REQUIRE(program >= 0);
  if (program == 0) {
    (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);  // where the test fails
    std::string why;
    auto made = CopyProcess::start(std::getenv("TWINPATH_TEST_COPIER"), HelperCpus::near, why);
    const int pid = made ? (*made)->pid() : -1;
    (void)!::write(told[1], &pid, sizeof pid);
    for (;;) ::pause();
  }
  int pid = -1;
  REQUIRE(::read(told[0], &pid, sizeof pid) == sizeof pid);
  REQUIRE(pid > 0);
  CHECK(runs(pid));
  REQUIRE(::kill(program, SIGKILL) == 0);
  REQUIRE(::waitpid(program, nullptr, 0) == program);
  CHECK(comes_true([pid] { return !runs(pid); }));
  for (const int fd : told) ::close(fd);
}

TEST_CASE("a copier that is killed is noticed and named", "[copier]") {
  const StubDriver stub;
  NEEDS_COPIER(stub);
  const test::LogCapture log;
  const auto copier = start_copier();
  CHECK_FALSE(copier->ended());
  REQUIRE(::kill(copier->pid(), SIGKILL) == 0);
  CHECK(comes_true([&] { return copier->ended(); }));
  CHECK(log.has("process " + std::to_string(copier->pid())));
  CHECK_FALSE(answers(*copier));
}

}  // namespace
}  // namespace twinpath::gpu::process
